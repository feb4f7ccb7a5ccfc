//! Gathers a [`Status`] from the shared state.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::admin::Admin;
use crate::admin::census::Counts;
use crate::admin::rates::{Sample, Samples};
use crate::admin::summary;
use crate::admin::watchdog;
use crate::admin::words;
use crate::config;
use crate::model::balance::WHOLE_SHARE;
use crate::model::connect::ConnectFailure;
use crate::model::end_reason::EndReason;
use crate::model::fleet::vip::VipPart;
use crate::model::histogram::LatencySnapshot;
use crate::model::stays::Stays;
use crate::sys::clock::unix_ms;
use crate::sys::{broker, netdev, syscall_filter};
use crate::table::backend::{BackendEntry, FrontendEntry, Registry};
use crate::table::journal::What;
use crate::table::worker::WorkerState;

/// Events on the page.
const EVENTS: usize = 50;

/// Silent nodes with their names.
const SILENT_NODES: usize = 10;

/// Moves of the VIP that `baton vip --why` shows.
const MOVES: usize = 10;

/// The inputs of one gathering.
struct Gathering<'a> {
    now_ns: u64,
    sample: Sample,
    samples: &'a Samples,
    counts: &'a Counts,
    registry: &'a Registry,
}

impl Status {
    /// The status at `now_ns`. It may walk the table: call it on a blocking thread.
    pub(crate) fn gather(admin: &Admin, now_ns: u64) -> Self {
        let counts = admin.census().counts(&admin.table.flows);
        let samples = admin.samples();
        let sample = Sample::take(&admin.table.registry, now_ns);
        let registry = &admin.table.registry;
        let gathering = Gathering { now_ns, sample, samples: &samples, counts: &counts, registry };
        let config = admin.config.load();
        let mut entries = admin.table.registry.frontends();
        // Stable: frontends without a place keep their order at the end.
        let place = |entry: &FrontendEntry| config.frontends.iter().position(|frontend| frontend.name == entry.name);
        entries.sort_by_key(|entry| place(entry).unwrap_or(usize::MAX));
        let backends = admin.table.registry.backends();
        let frontends: Vec<_> = entries
            .iter()
            .map(|entry| {
                let configured = config.frontends.iter().find(|frontend| frontend.name == entry.name);
                frontend_status(&gathering, entry, configured.map(|frontend| &**frontend), &backends)
            })
            .collect();
        let mut events = admin.table.journal.since(0, false);
        events.drain(..events.len().saturating_sub(EVENTS));
        Self {
            at_unix_ms: unix_ms(),
            instance: instance(admin, now_ns),
            totals: totals(&gathering, &frontends),
            offload: offload(admin),
            fleet: peers_report(admin),
            vip: vip(admin),
            recorder: recorder(admin, &config),
            nodes: nodes(admin, now_ns),
            frontends,
            events,
        }
    }
}

/// One backend, without rates.
pub(crate) fn backend_status(entry: &BackendEntry, now_ns: u64) -> BackendStatus {
    let health = entry.health();
    // The counters belong to the name, whatever its address.
    let lanes = if entry.is_former() { &[] } else { &*entry.lanes };
    let connects = if entry.is_former() { LatencySnapshot::default() } else { entry.connect_latency() };
    let sum = |value: fn(&crate::table::backend::BackendLane) -> u64| lanes.iter().map(value).sum::<u64>();
    let failures = ConnectFailure::ALL.iter().enumerate().map(|(kind, failure)| {
        let count: u64 = lanes.iter().map(|lane| lane.failures[kind].value()).sum();
        (failure.label().to_owned(), count)
    });
    BackendStatus {
        frontend: entry.frontend.name.to_string(),
        name: entry.label().into_owned(),
        address: entry.address().map(|address| address.socket_addr()),
        health_state: health.health_state,
        why: health.cause.to_string(),
        cause: health.cause.clone(),
        since_ms: (health.since_ns != 0).then(|| now_ns.saturating_sub(health.since_ns) / 1_000_000),
        order: health.order.map(str::to_owned),
        drain_deadline_in_ms: health.drain_deadline_ns.map(|at| at.saturating_sub(now_ns) / 1_000_000),
        weight: entry.weight(),
        share_percent: entry.share(now_ns) * 100 / WHOLE_SHARE,
        whole_in_ms: entry.whole_in_ns(now_ns).map(|ns| ns / 1_000_000),
        flows: entry.active.load(Relaxed),
        max_connections: entry.max_connections(),
        connected_total: sum(|lane| lane.connected.value()),
        hedged_total: sum(|lane| lane.hedged.value()),
        connect_failures_total: failures.filter(|(_, count)| *count > 0).collect(),
        connect_mean_us: (connects.count() > 0).then(|| (connects.sum_s * 1e6) as u64 / connects.count()),
        bytes_to_backend_total: sum(|lane| lane.bytes_to_backend.value()),
        bytes_to_client_total: sum(|lane| lane.bytes_to_client.value()),
        rates: Rate::default(),
        last_probe: health.last_probe.clone(),
        last_probe_us: health.last_probe_us,
    }
}

/// The fleet's state, without any wait.
pub(crate) fn peers_report(admin: &Admin) -> PeersReport {
    let (config, fleet) = (admin.config.load(), &admin.ports.fleet);
    let settings = config.peers.as_ref().filter(|_| fleet.is_enabled());
    let mut report = PeersReport {
        name: settings.map(|it| it.name.clone()),
        slot: settings.map(|it| it.slot),
        ready: fleet.is_ready(),
        barred: vip(admin).and_then(|it| it.barred),
        vips: vips(&config, admin),
        own: fleet.summary(),
        peers: admin.table.fleet.members().to_vec(),
        disagreements: Vec::new(),
    };
    report.disagreements = summary::lasting(&report, &config);
    report
}

pub(crate) fn vip_report(admin: &Admin) -> VipReport {
    let config = admin.config.load();
    let name = config.name().cloned();
    let Some(settings) = &config.vip else { return VipReport { name, ..VipReport::default() } };
    let is_move = |event: &Event| matches!(event.what, What::VipGained { .. } | What::VipGivenUp { .. });
    let mut moves: Vec<_> = admin.table.journal.since(0, false).into_iter().filter(is_move).collect();
    let shown = moves.split_off(moves.len().saturating_sub(MOVES));
    VipReport {
        name,
        addresses: settings.addresses.clone(),
        interface: settings.interface.to_string(),
        view: admin.table.fleet.vip().map(|view| VipView::clone(&view)),
        moves: shown,
    }
}

fn vip(admin: &Admin) -> Option<VipStatus> {
    let view = admin.table.fleet.vip()?;
    let addresses = admin.config.load().vip.as_ref()?.addresses.clone();
    let barred = (view.part == VipPart::Out).then(|| view.why.clone());
    Some(VipStatus { addresses, holder: view.holder.clone(), why: view.why.clone(), barred })
}

fn recorder(admin: &Admin, config: &config::Config) -> RecorderStatus {
    let (census, settings) = (&admin.table.recorder, &config.recorder);
    RecorderStatus {
        directory: (settings.size_mb > 0).then(|| settings.directory.clone()),
        written_bytes_total: census.written.value(),
        dropped_total: census.dropped.value(),
        fault: census.fault(),
    }
}

pub(in crate::admin) fn nodes(admin: &Admin, now_ns: u64) -> NodesStatus {
    let Some(silent) = admin.table.nodes.silent() else { return NodesStatus::default() };
    let first = silent.iter().take(SILENT_NODES).map(|it| SilentNodeStatus {
        node: it.name.to_string(),
        why: it.kind,
        for_ms: now_ns.saturating_sub(it.since_ns) / 1_000_000,
        refused: it.refused,
    });
    NodesStatus { silent_total: Some(silent.len() as u64), silent: first.collect() }
}

/// The frontends' addresses that bring packets to this host: all but those that stay here for good.
pub(in crate::admin) fn vips(config: &config::Config, admin: &Admin) -> Vec<IpAddr> {
    let kept = &admin.table.fleet.places().kept;
    let networks = netdev::networks().unwrap_or_default();
    let here = |ip: &IpAddr| networks.iter().any(|(_, network)| network.addr() == *ip) && !kept.contains(ip);
    let listens = config.frontends.iter().flat_map(|frontend| &frontend.listen).map(|vip| vip.ip());
    let mut vips: Vec<_> = listens.filter(|ip| !is_fixed(config, *ip)).filter(here).collect();
    vips.sort();
    vips.dedup();
    vips
}

/// Whether a frontend's address stays on this host for good.
pub(in crate::admin) fn is_fixed(config: &config::Config, ip: IpAddr) -> bool {
    let own = config.peers.as_ref().map(|peers| peers.listen.ip());
    ip.is_unspecified() || ip.is_loopback() || Some(ip) == own
}

fn offload(admin: &Admin) -> OffloadStatus {
    let census = &admin.table.offload;
    let view = census.view();
    let stayed = Stays::ALL.iter().map(|why| (why.label().to_owned(), census.stayed(*why)));
    OffloadStatus {
        why_not: view.why_not.clone(),
        stopped: admin.table.offload.is_stopped(),
        interfaces: view.interfaces.clone(),
        flows_held: view.flows_held,
        flows_max: view.flows_max,
        offloaded_total: census.offloaded.value(),
        recovered_total: census.recovered.value(),
        stayed_total: stayed.filter(|(_, count)| *count > 0).collect(),
        packets_total: view.packets.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
    }
}

fn instance(admin: &Admin, now_ns: u64) -> Instance {
    Instance {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        uptime_ms: now_ns.saturating_sub(admin.started_at_ns()) / 1_000_000,
        phase: admin.phase.phase().label().to_owned(),
        vips: vips(&admin.config.load(), admin),
        not_ready: admin.not_ready(),
        not_live: admin.not_live(now_ns),
        unfiltered: unfiltered(),
        rights: broker::fault().map(str::to_owned),
        workers: admin.table.workers.iter().map(|worker| worker_status(worker, now_ns)).collect(),
        config: admin.control.config_state(),
    }
}

/// Asks the kernel: each thread has the filter, or none has.
fn unfiltered() -> Option<String> {
    let why = || syscall_filter::supported().err().map_or_else(|| "its start failed".to_owned(), |it| it.to_string());
    (!syscall_filter::is_in_force()).then(why)
}

fn worker_status(worker: &WorkerState, now_ns: u64) -> WorkerStatus {
    let state = if !worker.is_alive() {
        WorkerCondition::Gone
    } else if let Some(stuck) = watchdog::stuck_for(worker, now_ns) {
        WorkerCondition::Stuck { for_ms: stuck.as_millis() as u64 }
    } else if worker.accept_paused.load(Relaxed) {
        WorkerCondition::AcceptPaused
    } else {
        WorkerCondition::Serving
    };
    WorkerStatus {
        state,
        accepted_total: worker.accepted.value(),
        accept_errors_total: worker.accept_errors.value(),
        accept_shed_total: worker.accept_shed.value(),
    }
}

fn frontend_status(
    gathering: &Gathering<'_>,
    entry: &FrontendEntry,
    configured: Option<&config::Frontend>,
    backends: &[std::sync::Arc<BackendEntry>],
) -> FrontendStatus {
    let ended = EndReason::ALL.iter().map(|reason| {
        let count: u64 = entry.lanes.iter().map(|lane| lane.ended[*reason as usize].value()).sum();
        (reason.label().to_owned(), count)
    });
    let mine = backends.iter().filter(|backend| backend.frontend.id == entry.id).map(|backend| {
        let rates = gathering.samples.rate(&gathering.sample, |sample| sample.backends.get(&backend.hash_key).copied());
        let rates = if backend.is_former() { Rate::default() } else { rates };
        BackendStatus { rates, ..backend_status(backend, gathering.now_ns) }
    });
    let (state, since_ns) = gathering.registry.service(entry, gathering.now_ns);
    let since_ms = gathering.now_ns.saturating_sub(since_ns) / 1_000_000;
    let draining =
        backends.iter().filter(|it| it.frontend.id == entry.id && it.health().health_state == HealthState::Draining);
    let in_words = words::service(state, draining.count(), since_ms);
    FrontendStatus {
        name: entry.name.to_string(),
        service: ServiceStatus { state, since_ms, in_words },
        removed: configured.is_none(),
        listen: configured.map_or(Vec::new(), |config| config.listen.iter().map(|vip| vip.socket_addr()).collect()),
        shared_ports: entry.shared_ports.load().iter().map(|vip| vip.socket_addr()).collect(),
        balance: configured.map(|config| balance_label(config.balance).to_owned()),
        flows: entry.active.load(Relaxed),
        states: gathering.counts.get(&entry.id).copied().unwrap_or_default(),
        max_connections: configured.and_then(|config| config.limits.max_connections),
        accepted_total: entry.lanes.iter().map(|lane| lane.accepted.value()).sum(),
        ended_total: ended.filter(|(_, count)| *count > 0).collect(),
        rates: gathering.samples.rate(&gathering.sample, |sample| sample.frontends.get(&entry.id).copied()),
        backends: mine.collect(),
    }
}

fn totals(gathering: &Gathering<'_>, frontends: &[FrontendStatus]) -> StatusTotals {
    let mut totals = StatusTotals {
        bytes_to_backend_total: gathering.sample.totals.bytes_to_backend,
        bytes_to_client_total: gathering.sample.totals.bytes_to_client,
        rates: gathering.samples.rate(&gathering.sample, |sample| Some(sample.totals)),
        ..StatusTotals::default()
    };
    let mut ended = BTreeMap::new();
    for frontend in frontends {
        totals.flows.merge(&frontend.states);
        totals.accepted_total += frontend.accepted_total;
        for (reason, count) in &frontend.ended_total {
            *ended.entry(reason.clone()).or_default() += count;
        }
    }
    totals.ended_total = ended;
    totals
}

fn balance_label(balance: crate::model::balance::Balance) -> &'static str {
    use crate::model::balance::Balance::*;
    match balance {
        LeastConn => "least_conn",
        RoundRobin => "round_robin",
        RandomTwo => "random_two",
        SourceHash => "source_hash",
    }
}
