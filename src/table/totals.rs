//! Counters since the start, by name: an upgrade passes them on, so that no counter falls.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::Table;
use super::backend::{BackendEntry, BackendLane, FrontendEntry, Registry};
use super::count::{Count, Tally};
use super::latency::{LatencyTotals, ProbeTotals};
use crate::model::connect::ConnectFailure;
use crate::model::end_reason::EndReason;
use crate::model::histogram::cells_of_buckets;

/// All frontends' and backends' counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub frontends: Vec<FrontendTotals>,
    pub backends: Vec<BackendTotals>,
    /// Of offload, the fleet, the workers and the log, by name. Absent from a release that does not send them.
    pub tallies: BTreeMap<String, u64>,
    /// By peer. Absent from a release that does not send them.
    pub resyncs: BTreeMap<String, u64>,
    /// Turns of the event loop, by worker. Absent from a release that does not send them, and so are the probes.
    pub loop_turns: Vec<LatencyTotals>,
    pub probes: Vec<ProbeTotals>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrontendTotals {
    pub name: String,
    pub accepted: u64,
    /// By the reason's label.
    pub ended: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendTotals {
    pub frontend: String,
    pub name: String,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub connected: u64,
    pub hedged: u64,
    /// By the failure's label.
    pub failures: BTreeMap<String, u64>,
    /// By the buckets of `LatencyHistogram`: all that a release has that sends no cells.
    pub connect_counts: Vec<u64>,
    /// By the cells of `LatencyHistogram`.
    pub connect_cells: Vec<u64>,
    pub connect_sum_us: u64,
}

impl Totals {
    /// The totals of the whole table.
    pub(crate) fn of_table(table: &Table) -> Self {
        let tallies = tallies(table).into_iter().map(|(name, tally)| (name, tally.value()));
        let tallies = tallies.filter(|(_, count)| *count > 0).collect();
        let (resyncs, probes) = (table.fleet.resyncs(), table.probes.totals());
        let loop_turns = table.workers.iter().map(|worker| LatencyTotals::of(&worker.turn.snapshot())).collect();
        Self { tallies, resyncs, loop_turns, probes, ..Self::of(&table.registry) }
    }

    /// The totals of frontends and backends alone.
    pub(crate) fn of(registry: &Registry) -> Self {
        Self {
            frontends: registry.frontends().iter().map(|entry| of_frontend(entry)).collect(),
            backends: registry.backends().iter().filter(|it| !it.is_former()).map(|entry| of_backend(entry)).collect(),
            ..Self::default()
        }
    }

    /// As [`Totals::carry_into`], with the totals of the other parts.
    pub(crate) fn carry_into_table(&self, table: &Table) {
        let mut before: BTreeMap<_, u64> = BTreeMap::new();
        for (name, count) in &self.tallies {
            *before.entry(of_fewer_workers(name, table.workers.len())).or_default() += count;
        }
        for (name, tally) in tallies(table) {
            tally.carry(before.get(&name).copied().unwrap_or(0));
        }
        let mut turns = vec![LatencyTotals::default(); table.workers.len()];
        let places = (0..turns.len()).cycle();
        self.loop_turns.iter().zip(places).for_each(|(of_worker, place)| turns[place].add(of_worker));
        table.workers.iter().zip(&turns).for_each(|(worker, before)| worker.turn.carry(before));
        let backends: HashSet<_> = table.registry.backends().iter().map(|entry| entry.full_name()).collect();
        let is_known = |it: &&ProbeTotals| backends.contains(&(it.frontend.clone(), it.backend.clone()));
        self.probes.iter().filter(is_known).for_each(|it| table.probes.carry(it));
        table.fleet.carry_resyncs(self.resyncs.clone());
        self.carry_into(&table.registry);
    }

    /// Sets all of this as an earlier process's counts, in place of earlier values. Names that `registry` does not know
    /// are left out. Only one thread may call this.
    pub(crate) fn carry_into(&self, registry: &Registry) {
        for entry in registry.frontends() {
            let same = |totals: &&FrontendTotals| *totals.name == *entry.name;
            if let (Some(totals), Some(lane)) = (self.frontends.iter().find(same), entry.lanes.last()) {
                raise(&lane.accepted, totals.accepted);
                for reason in EndReason::ALL {
                    raise(&lane.ended[*reason as usize], totals.ended.get(reason.label()).copied().unwrap_or(0));
                }
            }
        }
        for entry in registry.backends() {
            let same =
                |totals: &&BackendTotals| *totals.name == *entry.name && *totals.frontend == *entry.frontend.name;
            if let (Some(totals), Some(lane)) = (self.backends.iter().find(same), entry.lanes.last()) {
                carry_backend(totals, lane);
            }
        }
    }
}

fn tallies(table: &Table) -> Vec<(String, &Tally)> {
    let workers = table.workers.iter().enumerate().flat_map(|(number, worker)| {
        worker.tallies().map(|(name, tally)| (format!("{name}{OF_WORKER}{number}"), tally))
    });
    let log = [("log skipped".to_owned(), &table.flow_log.skipped), ("process pauses".to_owned(), &table.beats.pauses)];
    let (offload, fleet) = (table.offload.tallies(), table.fleet.census.tallies());
    let recorder = table.recorder.tallies().map(|(name, tally)| (name.to_owned(), tally));
    offload.into_iter().chain(fleet).chain(workers).chain(log).chain(recorder).collect()
}

/// Separates a tally's name from its worker's number.
const OF_WORKER: &str = " of worker ";

/// The name under which a tally continues when there are fewer workers.
fn of_fewer_workers(name: &str, workers: usize) -> String {
    let its = name.split_once(OF_WORKER).and_then(|(what, number)| Some((what, number.parse::<usize>().ok()?)));
    match its {
        Some((what, number)) => format!("{what}{OF_WORKER}{}", number % workers.max(1)),
        None => name.to_owned(),
    }
}

fn of_frontend(entry: &FrontendEntry) -> FrontendTotals {
    let ended = |reason: EndReason| entry.lanes.iter().map(|lane| lane.ended[reason as usize].value()).sum::<u64>();
    let ended = EndReason::ALL.iter().map(|reason| (reason.label().to_owned(), ended(*reason)));
    FrontendTotals {
        name: entry.name.to_string(),
        accepted: entry.lanes.iter().map(|lane| lane.accepted.value()).sum(),
        ended: ended.filter(|(_, count)| *count > 0).collect(),
    }
}

fn of_backend(entry: &BackendEntry) -> BackendTotals {
    let sum = |value: &dyn Fn(&BackendLane) -> u64| entry.lanes.iter().map(value).sum::<u64>();
    let failed = |failure: ConnectFailure| sum(&|lane| lane.failures[failure as usize].value());
    let failures = ConnectFailure::ALL.map(|failure| (failure.label().to_owned(), failed(failure)));
    let connect = entry.connect_latency();
    let LatencyTotals { cells, sum_us } = LatencyTotals::of(&connect);
    BackendTotals {
        frontend: entry.frontend.name.to_string(),
        name: entry.name.to_string(),
        bytes_to_backend: sum(&|lane| lane.bytes_to_backend.value()),
        bytes_to_client: sum(&|lane| lane.bytes_to_client.value()),
        connected: sum(&|lane| lane.connected.value()),
        hedged: sum(&|lane| lane.hedged.value()),
        failures: failures.into_iter().filter(|(_, count)| *count > 0).collect(),
        connect_counts: connect.buckets().to_vec(),
        connect_cells: cells,
        connect_sum_us: sum_us,
    }
}

fn carry_backend(totals: &BackendTotals, lane: &BackendLane) {
    raise(&lane.bytes_to_backend, totals.bytes_to_backend);
    raise(&lane.bytes_to_client, totals.bytes_to_client);
    raise(&lane.connected, totals.connected);
    raise(&lane.hedged, totals.hedged);
    for failure in ConnectFailure::ALL {
        raise(&lane.failures[failure as usize], totals.failures.get(failure.label()).copied().unwrap_or(0));
    }
    let mut cells = totals.connect_cells.clone();
    if cells.is_empty() {
        cells = cells_of_buckets(&totals.connect_counts);
    }
    LatencyTotals { cells, sum_us: totals.connect_sum_us }.raise(&lane.connect);
}

fn raise(count: &Count, to: u64) {
    count.add(to.saturating_sub(count.value()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::{Epoch, InstanceName, LastHeard, Liveness, MemberView};
    use std::time::Duration;

    fn registry() -> Registry {
        let registry = Registry::new(2);
        let frontend = registry.frontend(&"apiserver".into());
        registry.backend(&frontend, &"cp1".into());
        registry
    }

    #[test]
    fn counters_go_on_from_where_the_earlier_process_left_them() {
        let (old, new) = (registry(), registry());
        let lane = &old.backends()[0].lanes[1];
        lane.bytes_to_backend.add(10);
        lane.connect.record(Duration::from_millis(3));
        old.frontends()[0].lanes[0].ended[EndReason::Killed as usize].add(2);
        Totals::of(&old).carry_into(&new);
        lane.bytes_to_backend.add(5);
        new.backends()[0].lanes[0].bytes_to_backend.add(100);
        let last = Totals::of(&old);
        last.carry_into(&new);
        let seen = Totals::of(&new);
        assert_eq!(seen.backends[0].bytes_to_backend, 115);
        assert_eq!(seen.backends[0].connect_cells, last.backends[0].connect_cells);
        assert_eq!(seen.frontends, last.frontends);
    }

    #[test]
    fn latencies_go_on_also_from_a_release_that_has_them_by_bucket_alone() {
        let (old, new) = (registry(), registry());
        let latencies = [Duration::from_micros(250), Duration::from_millis(3), Duration::from_secs(60)];
        latencies.iter().for_each(|latency| old.backends()[0].lanes[1].connect.record(*latency));
        let mut totals = Totals::of(&old);
        totals.backends[0].connect_cells.clear();
        totals.carry_into(&new);
        totals.carry_into(&new);
        assert_eq!(Totals::of(&new).backends[0].connect_counts, totals.backends[0].connect_counts);
    }

    #[test]
    fn counters_of_workers_log_and_peers_go_on_also_where_there_are_fewer_workers() {
        let (old, new) = (Table::new(3), Table::new(2));
        (1..).zip(&old.workers).for_each(|(count, worker)| worker.accept_shed.add(count));
        old.workers[1].accept_errors.add(4);
        old.workers[0].ended_unlogged.add(5);
        old.flow_log.skipped.add(6);
        old.fleet.carry_resyncs([("b".to_owned(), 5)].into());
        old.fleet.show_members(vec![resynced("b", 2)], 0);
        for _ in 0..2 {
            Totals::of_table(&old).carry_into_table(&new);
        }
        new.workers[0].accept_shed.add(10);
        let workers = [0, 1].map(|at| &new.workers[at]);
        assert_eq!(workers.map(|it| it.accept_shed.value()), [1 + 3 + 10, 2]);
        assert_eq!(workers.map(|it| it.accept_errors.value()), [0, 4]);
        assert_eq!(workers.map(|it| it.ended_unlogged.value()), [5, 0]);
        assert_eq!(new.flow_log.skipped.value(), 6);
        assert_eq!(Totals::of_table(&new).resyncs["b"], 7, "before the first word of a peer");
        new.fleet.show_members(vec![resynced("b", 1)], 0);
        assert_eq!(Totals::of_table(&new).resyncs["b"], 8);
    }

    /// Regression: after each upgrade the histograms of probes and of the event loop began anew.
    #[test]
    fn latencies_of_probes_and_of_the_event_loop_go_on_in_the_next_process() {
        let with_backend = |workers| {
            let table = Table::new(workers);
            table.registry.backend(&table.registry.frontend(&"apiserver".into()), &"cp1".into());
            table
        };
        let (old, new) = (with_backend(3), with_backend(2));
        let ms = Duration::from_millis;
        (1..).zip(&old.workers).for_each(|(took, worker)| worker.turn.record(ms(took)));
        ["cp1", "removed"].into_iter().for_each(|name| old.probes.record("apiserver", name, "passed", ms(3)));
        new.probes.record("apiserver", "cp1", "passed", ms(7));
        for _ in 0..2 {
            // As it is sent; and the first message is followed by another.
            let sent = serde_json::to_string(&Totals::of_table(&old)).unwrap();
            serde_json::from_str::<Totals>(&sent).unwrap().carry_into_table(&new);
        }
        let turns = [0, 1].map(|at| new.workers[at].turn.snapshot());
        assert_eq!(turns.each_ref().map(|it| it.count()), [2, 1], "of the third worker, the first goes on");
        assert!((turns[0].sum_s - 0.004).abs() < 1e-9, "{turns:?}");
        let probes = new.probes.snapshots();
        let [(labels, passed)] = &probes[..] else { panic!("{probes:?}") };
        assert_eq!((labels, passed.count()), (&["apiserver", "cp1", "passed"].map(str::to_owned), 2));
        // An older release sends neither.
        serde_json::from_str::<Totals>(r#"{"frontends":[],"backends":[]}"#).unwrap().carry_into_table(&new);
        assert_eq!(new.probes.snapshots(), probes);
    }

    fn resynced(name: &str, resyncs: u64) -> MemberView {
        MemberView {
            name: InstanceName(name.into()),
            address: "192.0.2.2:9471".parse().unwrap(),
            liveness: Liveness::Alive,
            epoch: Epoch(1),
            slot: None,
            version: String::new(),
            synced: true,
            told: true,
            flows: 0,
            offloaded: 0,
            behind: 0,
            lag_ms: 0,
            resyncs,
            round_trip_us: 1,
            vips: Vec::new(),
            why_not: None,
            summary: None,
            last_heard: LastHeard::default(),
        }
    }
}
