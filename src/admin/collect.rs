//! The data plane's counters as metrics, read at each scrape. No label ever holds a client's address.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NativeHistogram, NativeHistogramBuckets};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::census::Census;
use super::watchdog;
use crate::config::{Config, OffloadMode};
use crate::metrics::Metrics;
use crate::model::connect::ConnectFailure;
use crate::model::end_reason::EndReason;
use crate::model::fleet::{Liveness, Strangeness};
use crate::model::health::HealthState;
use crate::model::histogram::{LATENCY_BOUNDS_S, LatencySnapshot, NATIVE_SCHEMA, NATIVE_ZERO_S};
use crate::model::stays::Stays;
use crate::ports::fleet::Fleet;
use crate::sys::clock::now_ns;
use crate::sys::netlink::conntrack;
use crate::table::backend::{BackendEntry, BackendLane, FrontendEntry, Registry, Service};
use crate::table::beats::LoopBeats;
use crate::table::fleet::{FleetView, MemberView};
use crate::table::flows::{FlowState, FlowTable};
use crate::table::latency::ProbeLatencies;
use crate::table::nodes::NodeBoard;
use crate::table::offload::OffloadCensus;
use crate::table::recorder::RecorderCensus;
use crate::table::worker::WorkerState;
use crate::table::{FlowLogCensus, Part};

/// Nodes with a series of their own: those that have been silent for the longest time.
const NODES_MAX: usize = 50;

/// The sources of the metrics.
#[derive(Debug)]
pub struct CollectorParts {
    pub registry: Part<Registry>,
    pub flows: Part<FlowTable>,
    pub offload: Part<OffloadCensus>,
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    pub workers: Part<[WorkerState]>,
    pub flow_log: Part<FlowLogCensus>,
    pub recorder: Part<RecorderCensus>,
    pub nodes: Part<NodeBoard>,
    pub probes: Part<ProbeLatencies>,
    pub beats: Part<LoopBeats>,
}

/// Adds the counters of `table` and the limits of `config` to `metrics`. Call it once for each pair.
pub fn register(metrics: &Metrics, table: CollectorParts, config: Arc<ArcSwap<Config>>, census: Arc<Census>) {
    metrics.with_registry(|registry| registry.register_collector(Box::new(TableCollector { table, config, census })));
}

#[derive(Debug)]
struct TableCollector {
    table: CollectorParts,
    config: Arc<ArcSwap<Config>>,
    census: Arc<Census>,
}

impl Collector for TableCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.info("build", "Version of the running process", &[("version", env!("CARGO_PKG_VERSION"))])?;
        self.encode_frontends(&mut families)?;
        self.encode_service(&mut families)?;
        self.encode_backends(&mut families)?;
        self.encode_limits(&mut families)?;
        self.encode_offload(&mut families)?;
        self.encode_failover(&mut families)?;
        self.encode_peers(&mut families)?;
        self.encode_nodes(&mut families)?;
        self.encode_workers(&mut families)
    }
}

impl TableCollector {
    fn encode_frontends(&self, families: &mut Families<'_>) -> fmt::Result {
        let frontends = self.table.registry.frontends();
        let counts = self.census.counts(&self.table.flows);
        let mut family = families.gauge("flows", "Current flows, by state")?;
        for frontend in &frontends {
            let states = counts.get(&frontend.id).copied().unwrap_or_default();
            for state in FlowState::ALL {
                let labels = [("frontend", &*frontend.name), ("state", state.label())];
                family.encode_family(&labels)?.encode_gauge(&(states.of(state) as i64))?;
            }
        }
        let help = "Current flows that Baton will end in their turn, at the configured pace of resets";
        let mut family = families.gauge("flows_ending", help)?;
        for frontend in &frontends {
            let ending = counts.get(&frontend.id).map_or(0, |states| states.ending);
            family.encode_family(&[("frontend", &*frontend.name)])?.encode_gauge(&(ending as i64))?;
        }
        let mut family = families.counter("flows_accepted", "Flows accepted", None)?;
        for frontend in &frontends {
            family.encode_family(&[("frontend", &*frontend.name)])?.counter(accepted(frontend))?;
        }
        let mut family = families.counter("flows_ended", "Flows ended, by reason", None)?;
        for frontend in &frontends {
            for reason in EndReason::ALL {
                let ended = frontend.lanes.iter().map(|lane| lane.ended[*reason as usize].value()).sum();
                let labels = [("frontend", &*frontend.name), ("reason", reason.label())];
                family.encode_family(&labels)?.counter(ended)?;
            }
        }
        Ok(())
    }

    /// Two facts: the addresses on this host, and the service of new connections to them.
    fn encode_service(&self, families: &mut Families<'_>) -> fmt::Result {
        let (config, now) = (self.config.load(), now_ns());
        let states = Service::ALL.map(Service::label).join(", ");
        let help = format!("1 for the best kind of backend that a frontend has for new connections, else 0: {states}");
        let mut family = families.gauge("frontend_state", &help)?;
        for frontend in self.table.registry.frontends() {
            // A removed frontend gets no new connections.
            if !config.frontends.iter().any(|it| it.name == frontend.name) {
                continue;
            }
            let (service, _) = self.table.registry.service(&frontend, now);
            for state in Service::ALL {
                let labels = [("frontend", &*frontend.name), ("state", state.label())];
                family.encode_family(&labels)?.encode_gauge(&i64::from(service == state))?;
            }
        }
        Ok(())
    }

    fn encode_backends(&self, families: &mut Families<'_>) -> fmt::Result {
        let backends = shown(&self.table.registry);
        let now = now_ns();
        let mut family = families.gauge("backend_state", "1 for the state that a backend is in, else 0")?;
        for (backend, label) in &backends {
            let health_state = backend.health().health_state;
            for state in HealthState::ALL {
                let [frontend, name] = labels(backend, label);
                let labels = [frontend, name, ("state", state.label())];
                family.encode_family(&labels)?.encode_gauge(&i64::from(health_state == state))?;
            }
        }
        let mut gauge = |name, help, value: &dyn Fn(&BackendEntry) -> f64| {
            let mut family = families.gauge(name, help)?;
            backends
                .iter()
                .try_for_each(|(it, label)| family.encode_family(&labels(it, label))?.encode_gauge(&value(it)))
        };
        gauge("backend_up", "1 if a backend is ready for new flows", &|it| {
            f64::from(it.health().health_state == HealthState::Ready)
        })?;
        gauge("backend_flows", "Flows of a backend, connecting ones included", &|it| {
            f64::from(it.active.load(Relaxed))
        })?;
        gauge("backend_weight", "Configured weight of a backend", &|it| f64::from(it.weight()))?;
        gauge("backend_share_ratio", "Fraction of a backend's weight in effect: below 1 during slow start", &|it| {
            f64::from(it.share(now)) / 1024.0
        })?;

        // The counters belong to the name, whatever its address.
        let backends: Vec<_> = backends.into_iter().filter(|(entry, _)| !entry.is_former()).collect();
        let mut family = families.counter("flow", "Bytes forwarded, by direction", Some(&Unit::Bytes))?;
        for (backend, label) in &backends {
            let [frontend, name] = labels(backend, label);
            for (direction, bytes) in [
                ("to_backend", sum(backend, |lane| lane.bytes_to_backend.value())),
                ("to_client", sum(backend, |lane| lane.bytes_to_client.value())),
            ] {
                family.encode_family(&[frontend, name, ("direction", direction)])?.counter(bytes)?;
            }
        }
        let mut family = families.counter("backend_connected", "Flows connected to a backend", None)?;
        for (backend, label) in &backends {
            let connected = sum(backend, |lane| lane.connected.value());
            family.encode_family(&labels(backend, label))?.counter(connected)?;
        }
        let help = "Hedged connect attempts: second attempts started because the first was slow";
        let mut family = families.counter("connects_hedged", help, None)?;
        for (backend, label) in &backends {
            family.encode_family(&labels(backend, label))?.counter(sum(backend, |lane| lane.hedged.value()))?;
        }
        let mut family = families.counter("connect_failures", "Connect attempts that failed, by reason", None)?;
        for (backend, label) in &backends {
            let [frontend, name] = labels(backend, label);
            for (kind, failure) in ConnectFailure::ALL.iter().enumerate() {
                let failed = sum(backend, |lane| lane.failures[kind].value());
                family.encode_family(&[frontend, name, ("reason", failure.label())])?.counter(failed)?;
            }
        }
        let help = "Time from the first connect attempt until a backend is connected";
        let mut family = families.histogram("connect_duration", help)?;
        for (backend, label) in &backends {
            family.encode_family(&labels(backend, label))?.latency(&backend.connect_latency())?;
        }
        let mut family = families.histogram("probe_duration", "Duration of health probes, by outcome")?;
        for ([frontend, backend, outcome], latency) in &self.table.probes.snapshots() {
            let labels = [("frontend", frontend), ("backend", backend), ("outcome", outcome)];
            family.encode_family(&labels.map(|(name, value)| (name, value.as_str())))?.latency(latency)?;
        }
        Ok(())
    }

    /// Only for limits that are set.
    fn encode_limits(&self, families: &mut Families<'_>) -> fmt::Result {
        let config = self.config.load();
        if let Some(max) = config.process.max_connections {
            families.gauge("flows_max", "max_connections of the process")?.encode_gauge(&i64::from(max))?;
        }
        let mut family = families.gauge("frontend_flows_max", "max_connections of a frontend")?;
        for frontend in &config.frontends {
            if let Some(max) = frontend.limits.max_connections {
                family.encode_family(&[("frontend", &*frontend.name)])?.encode_gauge(&i64::from(max))?;
            }
        }
        let mut family = families.gauge("backend_flows_max", "max_connections of a backend")?;
        for (backend, label) in &shown(&self.table.registry) {
            if let Some(max) = backend.max_connections() {
                family.encode_family(&labels(backend, label))?.encode_gauge(&i64::from(max))?;
            }
        }
        Ok(())
    }

    fn encode_offload(&self, families: &mut Families<'_>) -> fmt::Result {
        let census = &self.table.offload;
        let view = census.view();
        let mut gauge = |name, help, value: u64| families.gauge(name, help)?.encode_gauge(&(value as i64));
        let wanted = self.config.load().offload.mode != OffloadMode::Off;
        gauge("offload_wanted", "1 unless the configuration turns offload off", wanted.into())?;
        gauge("offload_open", "1 if Baton can offload flows", view.why_not.is_none().into())?;
        let help = "1 while Baton offloads no flow because flows were reset right after their offload";
        gauge("offload_stopped", help, self.table.offload.is_stopped().into())?;
        gauge(
            "offload_flows",
            "Flows in the map of the BPF program, including flows that have just ended",
            view.flows_held,
        )?;
        gauge("offload_flows_max", "Flows that the map of the BPF program can hold", view.flows_max)?;
        let mut counter = |name, help, value: u64| families.counter(name, help, None)?.counter(value);
        counter("flows_offloaded", "Flows that Baton has offloaded", census.offloaded.value())?;
        counter(
            "flows_recovered",
            "Offloaded flows of an earlier process that this process has recovered",
            census.recovered.value(),
        )?;
        let help = "Times that another process detached the BPF program and Baton attached it again";
        counter("offload_reattached", help, census.reattached.value())?;
        let help = "Times that Baton could not read the entry of an offloaded flow and left the flow as it was";
        counter("offload_unread", help, census.unread.value())?;
        let help = "Conntrack entries of offloaded flows that Baton removed or failed to remove; failed must stay 0";
        let mut family = families.counter("conntrack_removals", help, None)?;
        for (outcome, count) in [("removed", &census.untracked), ("failed", &census.still_tracked)] {
            family.encode_family(&[("outcome", outcome)])?.counter(count.value())?;
        }
        if let Ok(Some(load)) = conntrack::load() {
            let mut gauge = |name, help, value: u64| families.gauge(name, help)?.encode_gauge(&(value as i64));
            gauge("conntrack_entries", "Entries in the conntrack table of this host, of all programs", load.entries)?;
            gauge(
                "conntrack_entries_max",
                "Size of the conntrack table; beyond it the host drops new connections",
                load.entries_max,
            )?;
        }
        let help = "Attempts to offload a flow after which it stayed proxied, by reason";
        let mut family = families.counter("flows_stayed", help, None)?;
        for why in Stays::ALL {
            family.encode_family(&[("reason", why.label())])?.counter(census.stayed(*why))?;
        }
        let help = "Packets of offloaded flows, by the program's action";
        let mut family = families.counter("offload_packets", help, None)?;
        for (what, count) in &view.packets {
            family.encode_family(&[("action", *what)])?.counter(*count)?;
        }
        Ok(())
    }

    fn encode_peers(&self, families: &mut Families<'_>) -> fmt::Result {
        if !self.table.fleet.is_enabled() {
            return Ok(());
        }
        let members = self.table.fleet_view.members();
        let mut gauge = |name, help, value: &dyn Fn(&MemberView) -> f64| {
            let mut family = families.gauge(name, help)?;
            members.iter().try_for_each(|it| family.encode_family(&[("peer", &*it.name.0)])?.encode_gauge(&value(it)))
        };
        gauge("peer_up", "1 while this instance hears a peer", &|it| f64::from(it.liveness == Liveness::Alive))?;
        let help = "1 while a peer is alive and the link to it is down";
        gauge("peer_unlinked", help, &|it| f64::from(it.liveness == Liveness::Unlinked))?;
        gauge("peer_synced", "1 if this instance knows all flows of a peer", &|it| f64::from(it.synced))?;
        gauge("peer_flows", "Flows of a peer that this instance knows", &|it| it.flows as f64)?;
        gauge("peer_offloaded", "Flows of a peer that are offloaded", &|it| it.offloaded as f64)?;
        gauge("peer_changes_behind", "Changes of this instance's flows that a peer has not acknowledged", &|it| {
            it.behind as f64
        })?;
        gauge("peer_lag_seconds", "Age of the oldest change that a peer has not acknowledged", &|it| {
            it.lag_ms as f64 / 1e3
        })?;
        gauge("peer_round_trip_seconds", "Round-trip time on the link to a peer", &|it| it.round_trip_us as f64 / 1e6)?;
        let mut family =
            families.counter("peer_resyncs", "Times that this instance sent a peer all its flows again", None)?;
        members.iter().try_for_each(|it| family.encode_family(&[("peer", &*it.name.0)])?.counter(it.resyncs))
    }

    /// Packets for flows of other instances, and of instances that died.
    fn encode_failover(&self, families: &mut Families<'_>) -> fmt::Result {
        if !self.table.fleet.is_enabled() {
            return Ok(());
        }
        let census = &self.table.fleet_view.census;
        let view = self.table.offload.view();
        let packets = |wanted: &[&str]| -> u64 {
            view.packets.iter().filter(|(what, _)| wanted.contains(what)).map(|(_, count)| count).sum()
        };
        let help = "Packets that belong to no flow of this instance, by outcome; dropped must stay 0";
        let mut family = families.counter("unknown_packets", help, None)?;
        for (outcome, count) in [
            ("forwarded", packets(&["forwarded", "forwarded_by_port"])),
            ("reset", packets(&["reset"]) + census.reset.value()),
            ("inherited", census.inherited.value()),
            ("dropped", census.dropped.value()),
        ] {
            family.encode_family(&[("outcome", outcome)])?.counter(count)?;
        }
        let help = "Flows of peers that this instance did not take, for their frontend, their port or their number";
        let mut family = families.counter("peer_flows_refused", help, None)?;
        for (reason, why) in
            [("frontend", Strangeness::Frontend), ("port", Strangeness::Port), ("number", Strangeness::Crowd)]
        {
            family.encode_family(&[("reason", reason)])?.counter(census.refused(why).value())?;
        }
        let help = "Flows of peers for which this host's map has no room: Baton resets them if their owner dies";
        families.gauge("peer_flows_not_held", help)?.encode_gauge(&(census.no_standby.load(Relaxed) as i64))?;
        let mut counter = |name, help, value: u64| families.counter(name, help, None)?.counter(value);
        counter(
            "failovers",
            "Failovers: deaths of peers after which this instance carried on or reset their flows",
            census.failovers.value(),
        )?;
        let help = "Challenges: segments to idle clients of reset flows, so that the answer shows the sequence number \
                    for the RST";
        counter("failover_challenged", help, census.challenged.value())
    }

    /// Only where a source lists the nodes; silence, where this instance knows all connections, too.
    fn encode_nodes(&self, families: &mut Families<'_>) -> fmt::Result {
        if let Some(counts) = self.table.nodes.counts() {
            let help = "Nodes of the list, by state: connected, silent, lost (no connection, but for a short time), unknown \
                        (an instance is not heard) and never seen";
            let mut family = families.gauge("nodes", help)?;
            for (state, nodes) in *counts {
                family.encode_family(&[("state", state)])?.encode_gauge(&(nodes as i64))?;
            }
        }
        let Some(silent) = self.table.nodes.silent() else { return Ok(()) };
        let help = "Nodes that once had a connection, and have had none, or have sent nothing, for longer than a kubelet \
                    that lives";
        families.gauge("nodes_silent", help)?.encode_gauge(&(silent.len() as i64))?;
        let help = format!("Time for which a node has been silent, for at most {NODES_MAX} nodes");
        let now = now_ns();
        let mut family = families.gauge("node_silent_seconds", &help)?;
        for node in silent.iter().take(NODES_MAX) {
            let labels =
                [("node", &*node.name), ("reason", node.refused.map_or(node.kind.label(), |it| it.reason.label()))];
            let silent_s = now.saturating_sub(node.since_ns) as f64 / 1e9;
            family.encode_family(&labels)?.encode_gauge(&silent_s)?;
        }
        Ok(())
    }

    fn encode_workers(&self, families: &mut Families<'_>) -> fmt::Result {
        let workers: Vec<_> = self.table.workers.iter().enumerate().map(|(n, it)| (n.to_string(), it)).collect();
        let now = now_ns();
        let mut gauge = |name, help, value: &dyn Fn(&WorkerState) -> i64| {
            let mut family = families.gauge(name, help)?;
            workers
                .iter()
                .try_for_each(|(n, it)| family.encode_family(&[("worker", n.as_str())])?.encode_gauge(&value(it)))
        };
        gauge("worker_stuck", "1 while one turn of a worker's event loop lasts too long", &|it| {
            i64::from(watchdog::stuck_for(it, now).is_some())
        })?;
        gauge("accept_paused", "1 while a worker has paused accepting because no file descriptor is left", &|it| {
            i64::from(it.accept_paused.load(Relaxed))
        })?;
        gauge("pipes_in_use", "Pipes in use for bulk data (splice)", &|it| it.pipes_in_use.load(Relaxed) as i64)?;
        let mut counter = |name, help, value: &dyn Fn(&WorkerState) -> u64| {
            let mut family = families.counter(name, help, None)?;
            workers.iter().try_for_each(|(n, it)| family.encode_family(&[("worker", n.as_str())])?.counter(value(it)))
        };
        counter("accept_errors", "accept(2) calls that failed because no file descriptor or memory was left", &|it| {
            it.accept_errors.value()
        })?;
        counter(
            "accepts_shed",
            "Connections that Baton reset unserved because it had paused accepting for too long",
            &|it| it.accept_shed.value(),
        )?;
        counter(
            "flows_ended_unreported",
            "Ended flows missing from log and events because their queue was full",
            &|it| it.ended_unlogged.value(),
        )?;
        let help = "Ended flows left out of the log by its rate limit";
        families.counter("flow_log_skipped", help, None)?.counter(self.table.flow_log.skipped.value())?;
        let help = "Times at which this process did not run for a second or more";
        families.counter("process_pauses", help, None)?.counter(self.table.beats.pauses.value())?;
        let recorder = &self.table.recorder;
        let help = "Bytes that the recorder has written to its files";
        families.counter("recorder_written_bytes", help, None)?.counter(recorder.written.value())?;
        let help = "Events that the recorder could not write to its files";
        families.counter("recorder_events_dropped", help, None)?.counter(recorder.dropped.value())?;
        let help = "1 while the recorder writes nothing because its files cannot be written, 0 otherwise";
        families.gauge("recorder_failing", help)?.encode_gauge(&i64::from(recorder.fault().is_some()))?;
        let help = "Duration of a turn of a worker's event loop: the longest that an event in it waited";
        let mut family = families.histogram("event_loop_turn", help)?;
        for (worker, state) in &workers {
            family.encode_family(&[("worker", worker.as_str())])?.latency(&state.turn.snapshot())?;
        }
        Ok(())
    }
}

/// Begins families of metrics.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn gauge<'s>(&'s mut self, name: &'s str, help: &'s str) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)
    }

    fn counter<'s>(
        &'s mut self,
        name: &'s str,
        help: &'s str,
        unit: Option<&'s Unit>,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, MetricType::Counter)
    }

    /// Of seconds.
    fn histogram<'s>(&'s mut self, name: &'s str, help: &'s str) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)
    }

    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }
}

trait Values {
    fn counter(&mut self, value: u64) -> fmt::Result;
    fn latency(&mut self, snapshot: &LatencySnapshot) -> fmt::Result;
}

impl Values for MetricEncoder<'_> {
    fn counter(&mut self, value: u64) -> fmt::Result {
        self.encode_counter::<[(&str, &str); 0], _, u64>(&value, None)
    }

    fn latency(&mut self, snapshot: &LatencySnapshot) -> fmt::Result {
        let bounds = LATENCY_BOUNDS_S.iter().copied().chain([f64::INFINITY]);
        let (buckets, native): (Vec<_>, _) = (bounds.zip(snapshot.buckets()).collect(), snapshot.native());
        let native = NativeHistogram {
            schema: NATIVE_SCHEMA.into(),
            zero_threshold: NATIVE_ZERO_S,
            zero_count: native.zero,
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &native.spans, deltas: &native.deltas },
            // An upgrade passes the counts on: they are older than this process.
            created: None,
        };
        let (sum_s, count) = (snapshot.sum_s, snapshot.count());
        self.encode_histogram_with_native::<[(&str, &str); 0]>(sum_s, count, &buckets, None, native)
    }
}

/// Every backend, with its label.
fn shown(registry: &Registry) -> Vec<(Arc<BackendEntry>, String)> {
    let label = |entry: Arc<BackendEntry>| {
        let label = entry.label().into_owned();
        (entry, label)
    };
    registry.backends().into_iter().map(label).collect()
}

fn labels<'a>(backend: &'a BackendEntry, label: &'a str) -> [(&'static str, &'a str); 2] {
    [("frontend", &backend.frontend.name), ("backend", label)]
}

fn accepted(frontend: &FrontendEntry) -> u64 {
    frontend.lanes.iter().map(|lane| lane.accepted.value()).sum()
}

fn sum(backend: &BackendEntry, value: impl Fn(&BackendLane) -> u64) -> u64 {
    backend.lanes.iter().map(value).sum()
}
