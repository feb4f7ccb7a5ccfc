//! A recording of chosen events.

use crate::recorder::{
    BackendSample, FileOwner, FrontendSample, FrontendSettings, Recorded, RecordedSample, Recording, TimedRecord,
};
use crate::table::journal::{Event, What};

/// 2026-11-25 03:12:07.412Z.
pub(crate) const AT_MS: u64 = 1_795_576_327_412;

fn owner() -> FileOwner {
    let frontend = FrontendSettings {
        name: "apiserver".to_owned(),
        probe: "https".to_owned(),
        interval_ms: 1000,
        fast_interval_ms: 250,
        timeout_ms: 500,
        rise: 2,
        fall: 2,
        reset_fall: 2,
        connect_timeout_ms: 1000,
        drain_timeout_ms: 150_000,
        idle_timeout_ms: Some(7_200_000),
        reset_after_silence_ms: 2250,
        rebalance_when: "after_outage".to_owned(),
        max_connections: Some(20),
        max_connections_per_source: Some(3),
        proxy_header_timeout_ms: Some(3000),
    };
    FileOwner {
        reset_within_ms: 250,
        lease_renew_ms: 10_000,
        node_grace_ms: 40_000,
        frontends: vec![frontend],
        ..FileOwner::default()
    }
}

/// The recording of these events, each so long after [`AT_MS`]: of one process, and of another one from each start on but the first event.
pub(crate) fn recording(events: Vec<(u64, What)>) -> Recording {
    let backend = |name: &str, flows| BackendSample {
        frontend: "apiserver".to_owned(),
        name: name.to_owned(),
        state: "ready".to_owned(),
        flows,
        connected_total: 0,
        failed_total: 0,
        last_probe_us: 0,
    };
    let sample = RecordedSample {
        at_unix_ms: AT_MS - 400,
        frontends: vec![FrontendSample { name: "apiserver".to_owned(), flows: 90, accepted_total: 0, ended_total: 0 }],
        backends: vec![backend("cp1", 60), backend("cp2", 30)],
        ..RecordedSample::default()
    };
    let mut records = vec![TimedRecord { at_unix_ms: sample.at_unix_ms, owner: 0, what: Recorded::Sample(sample) }];
    let mut owners = vec![owner()];
    for (number, (later, what)) in (0..).zip(events) {
        if number > 0 && matches!(what, What::Started { .. }) {
            owners.push(FileOwner { pid: owners.len() as u32, ..owner() });
        }
        let event = Event { number, at_unix_ms: AT_MS + later, what };
        let what = Recorded::Event(event);
        records.push(TimedRecord { at_unix_ms: AT_MS + later, owner: owners.len() - 1, what });
    }
    Recording { records, owners, ..Recording::default() }
}
