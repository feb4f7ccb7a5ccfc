//! Notices after the fact that the whole process did not run: stopped by a signal, on a host without a free processor, or on a machine that was
//! suspended. The watchdog, which is a part of the process, does not see that.

use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::essential;
use crate::sys::clock::boot_ns;
use crate::table::Part;
use crate::table::beats::LoopBeats;
use crate::table::flows::FlowTable;
use crate::table::journal::{Journal, What};
use crate::table::offload::OffloadCensus;

/// What it counts the waiting flows by, and the pauses.
pub(crate) type PauseParts = (Part<FlowTable>, Part<OffloadCensus>, Part<LoopBeats>);

/// Watches until the guard is dropped, on a thread of its own: a task waits for other tasks, and this thread for a processor alone. If there can
/// be no thread, pauses stay untold.
pub(crate) fn watch((flows, offload, beats): PauseParts, journal: Part<Journal>) -> DropGuard {
    let ended = CancellationToken::new();
    let until = ended.clone();
    let work = move || {
        let mut watch = PauseWatch::new(boot_ns());
        while !until.is_cancelled() {
            std::thread::sleep(LOOK_EVERY);
            if let Some(pause) = watch.look(boot_ns()) {
                beats.pauses.add(1);
                let proxied = offload.flows_with_sockets(&flows) as u64;
                journal.record(What::ProcessPaused { for_ms: pause.as_millis() as u64, proxied });
            }
        }
    };
    drop(essential::thread("pauses", work));
    ended.drop_guard()
}

#[derive(Debug)]
struct PauseWatch {
    looked_ns: u64,
}

impl PauseWatch {
    fn new(now_ns: u64) -> Self {
        Self { looked_ns: now_ns }
    }

    /// For how long, at least, the process has not run since the look before. `None`: for less than a fault.
    fn look(&mut self, now_ns: u64) -> Option<Duration> {
        let since = Duration::from_nanos(now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns)));
        Some(since.saturating_sub(LOOK_EVERY)).filter(|pause| *pause >= FAULT_AFTER)
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A peer takes an instance for dead after a second, and a thread of a busy host waits for less.
const FAULT_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_of_a_second_is_one_and_a_late_look_is_none() {
        let mut watch = PauseWatch::new(5);
        assert_eq!(watch.look(5 + 100 * MS), None);
        assert_eq!(watch.look(5 + 1_150 * MS), None, "it may have slept for 100 ms of these");
        assert_eq!(watch.look(5 + 4_350 * MS), Some(Duration::from_millis(3_100)));
        assert_eq!(watch.look(5 + 4_450 * MS), None, "it is told once");
    }
}
