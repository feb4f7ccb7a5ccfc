//! The log of ended flows: one line and one event each, if the configuration asks for them.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::{Config, FlowLog, Log};
use crate::model::end_reason::EndReason;
use crate::model::pacing::TokenBucket;
use crate::ports::ended::{EndedFlow, EndedFlows};
use crate::sys::clock::now_ns;
use crate::table::backend::Registry;
use crate::table::journal::{Journal, What};
use crate::table::names::ClientNames;
use crate::table::nodes::{NodeBoard, NodeRefusal};
use crate::table::{FlowLogCensus, Part};

/// The parts of the table that the flow log may touch.
#[derive(Clone, Debug)]
pub(crate) struct FlowLogParts {
    /// The source of ended flows.
    pub ended: Part<EndedFlows>,
    /// To find their names.
    pub registry: Part<Registry>,
    pub names: Part<ClientNames>,
    /// For nodes that Baton refuses.
    pub nodes: Part<NodeBoard>,
    pub journal: Part<Journal>,
    pub census: Part<FlowLogCensus>,
}

/// Takes ended flows of all workers, in batches, until `stop` completes; then takes those that are left and returns.
pub(crate) async fn run(table: FlowLogParts, config: Arc<ArcSwap<Config>>, stop: impl Future<Output = ()>) {
    let mut writer = FlowLogWriter::new(table, &config.load().log, now_ns());
    let mut stop = std::pin::pin!(stop);
    loop {
        let mut stopping = tokio::select! {
            () = writer.table.ended.reported() => false,
            () = &mut stop => true,
        };
        loop {
            while writer.write(&config.load().log, now_ns()) {
                tokio::task::yield_now().await;
            }
            if stopping {
                return writer.say_left_out();
            }
            // At most this often, so that many short flows share one wake.
            stopping = tokio::select! {
                () = tokio::time::sleep(BATCH_EVERY) => false,
                () = &mut stop => true,
            };
            if !stopping {
                break;
            }
        }
    }
}

/// Writes lines for ended flows within the configured rate.
struct FlowLogWriter {
    table: FlowLogParts,
    bucket: TokenBucket,
    per_second: u32,
    /// Number since the last line about it.
    left_out: u64,
    said_at_ns: u64,
}

impl FlowLogWriter {
    fn new(table: FlowLogParts, log: &Log, now_ns: u64) -> Self {
        let bucket = TokenBucket::new(log.flows_per_second, log.flows_per_second, now_ns);
        Self { table, bucket, per_second: log.flows_per_second, left_out: 0, said_at_ns: now_ns }
    }

    /// Writes the flows of one batch. Returns whether there may be more: a batch is bounded, because others share this
    /// thread.
    fn write(&mut self, log: &Log, now_ns: u64) -> bool {
        if log.flows_per_second != self.per_second {
            self.per_second = log.flows_per_second;
            self.bucket = TokenBucket::new(self.per_second, self.per_second, now_ns);
        }
        let ended = self.table.ended.clone();
        let mut more = false;
        for worker in 0..ended.workers() {
            let mut room = BATCH;
            while let Some(flow) = ended.next(worker) {
                self.write_one(log, &flow, now_ns);
                room -= 1;
                if room == 0 {
                    more = true;
                    break;
                }
            }
        }
        if self.left_out > 0 && now_ns.saturating_sub(self.said_at_ns) >= SAY_EVERY_NS {
            self.say_left_out();
            self.said_at_ns = now_ns;
        }
        more
    }

    fn write_one(&mut self, log: &Log, flow: &EndedFlow, now_ns: u64) {
        let registry = &self.table.registry;
        let frontend = registry.find_frontend(flow.origin.frontend).map_or_else(String::new, |it| it.name.to_string());
        let backend = flow.backend.and_then(|id| registry.find_backend(id)).map(|it| it.name.to_string());
        let duration_ms = flow.ended_at_ns.saturating_sub(flow.origin.accepted_at_ns) / 1_000_000;
        if NodeRefusal::REASONS.contains(&flow.reason) {
            self.note_refused(flow);
        }
        let error = (flow.errno != 0).then(|| std::io::Error::from_raw_os_error(flow.errno).to_string());
        let what = What::FlowEnded {
            flow: flow.id,
            frontend,
            backend,
            backend_address: flow.backend_addr,
            source: flow.source,
            client: flow.origin.client.socket_addr(),
            node: self.table.names.of(flow.origin.client.ip()).map(|name| name.to_string()),
            reason: flow.reason,
            duration_ms,
            connect_us: flow.connect_us,
            bytes_to_backend: flow.bytes_to_backend,
            bytes_to_client: flow.bytes_to_client,
            error,
        };
        if wants_line(log.flows, flow.reason) {
            if self.bucket.take(now_ns) {
                what.log();
            } else {
                self.left_out += 1;
                self.table.census.skipped.add(1);
            }
        }
        // Ends wait for this log.
        let ago_ms = now_ns.saturating_sub(flow.ended_at_ns) / 1_000_000;
        self.table.journal.record_past(what, ago_ms);
    }

    fn say_left_out(&mut self) {
        let lines = std::mem::take(&mut self.left_out);
        if lines > 0 {
            tracing::warn!(
                lines,
                per_second = self.per_second,
                "Baton left out log lines of ended flows: there were more than log.flows_per_second"
            );
        }
    }

    /// Here, and not where it is refused: this costs no worker anything.
    fn note_refused(&self, flow: &EndedFlow) {
        let FlowLogParts { names, nodes, .. } = &self.table;
        if let Some(node) = names.nodes().by_address.get(&flow.origin.client.ip().to_canonical()) {
            nodes.note_refused(node, flow.reason);
        }
    }
}

fn wants_line(flows: FlowLog, reason: EndReason) -> bool {
    match flows {
        FlowLog::All => true,
        FlowLog::Errors => !matches!(reason, EndReason::ClientClosed | EndReason::BackendClosed),
        FlowLog::Off => false,
    }
}

/// Flows of one worker in one batch.
const BATCH: usize = 1024;
const BATCH_EVERY: Duration = Duration::from_millis(50);
const SAY_EVERY_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{ClientAddr, VipAddr};
    use crate::config::{LogFormat, LogLevel};
    use crate::model::ids::{BackendId, FlowId};
    use crate::ports::AllPorts;
    use crate::table::Table;
    use crate::table::flows::FlowOrigin;
    use crate::table::journal::testing::logged;
    use crate::table::names::NameSource;

    fn log(flows: FlowLog, flows_per_second: u32) -> Log {
        Log { format: LogFormat::Json, level: LogLevel::Info, flows, flows_per_second }
    }

    fn table() -> (FlowLogParts, BackendId) {
        let (table, ports) = (Table::new(1), AllPorts::new(1).unwrap());
        let frontend = table.registry.frontend(&"apiserver".into());
        let backend = table.registry.backend(&frontend, &"cp1".into()).id;
        let (registry, names, nodes) = (table.part(), table.part(), table.part());
        let (journal, census) = (table.part(), table.part());
        (FlowLogParts { ended: ports.part(), registry, names, nodes, journal, census }, backend)
    }

    fn end(table: &FlowLogParts, backend: BackendId, reason: EndReason) {
        let frontend = table.registry.frontends()[0].id;
        let flow = EndedFlow {
            id: FlowId(7),
            origin: FlowOrigin {
                accepted_at_ns: 1_000_000,
                client: ClientAddr::new("192.0.2.7:1234".parse().unwrap()),
                vip: VipAddr::new("10.0.0.100:6443".parse().unwrap()),
                frontend,
            },
            backend: Some(backend),
            backend_addr: Some("10.0.0.11:6443".parse().unwrap()),
            source: Some("10.0.0.100:51234".parse().unwrap()),
            reason,
            bytes_to_backend: 10,
            bytes_to_client: 20,
            connect_us: 300,
            ended_at_ns: 6_000_000,
            errno: libc::ECONNRESET,
        };
        assert!(table.ended.report(0, flow));
    }

    /// Regression: a node that `deny` keeps out was told as one that does not connect, though Baton refused it 30 times.
    #[test]
    fn refusals_of_a_listed_node_are_counted_until_it_has_a_connection() {
        let (table, backend) = table();
        let name: Arc<str> = "worker-3".into();
        table.names.set(NameSource::File, [("192.0.2.7".parse().unwrap(), name.clone())].into_iter().collect());
        let reasons = [EndReason::RateSource, EndReason::Denied, EndReason::ClientReset, EndReason::NoBackend];
        reasons.into_iter().for_each(|reason| end(&table, backend, reason));
        let log = log(FlowLog::Errors, 10);
        FlowLogWriter::new(table.clone(), &log, 0).write(&log, 0);
        let refused = table.nodes.refused(|_| true);
        let refusal = NodeRefusal { reason: EndReason::Denied, times: 2 };
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), [(name, refusal)]);
        assert!(table.nodes.refused(|node| node != "worker-3").is_empty(), "it has a connection");
        assert!(table.nodes.refused(|_| true).is_empty(), "and it is forgotten");
    }

    #[test]
    fn an_ended_flow_has_a_line_that_says_who_ended_it_and_how() {
        let (table, backend) = table();
        end(&table, backend, EndReason::BackendReset);
        let log = log(FlowLog::Errors, 10);
        let mut writer = FlowLogWriter::new(table.clone(), &log, 0);
        let lines = logged(|| assert!(!writer.write(&log, 0)));
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for (key, value) in [
            ("flow", serde_json::json!(7)),
            ("client", "192.0.2.7:1234".into()),
            ("frontend", "apiserver".into()),
            ("backend", "cp1".into()),
            ("backend_address", "10.0.0.11:6443".into()),
            ("reason", "backend_reset".into()),
            ("by", "backend".into()),
            ("duration_ms", 5.into()),
            ("connect_us", 300.into()),
            ("bytes_to_backend", 10.into()),
            ("bytes_to_client", 20.into()),
        ] {
            assert_eq!(line[key], value, "{key} in {line}");
        }
        assert!(line["error"].as_str().unwrap().contains("reset"), "{line}");
        let events = table.journal.since(0, true);
        assert!(matches!(events[0].what, What::FlowEnded { reason: EndReason::BackendReset, .. }), "{events:?}");
    }

    /// Regression: an end had the time at which the log came to it, so that resets seemed to take longer than `reset_within`.
    #[test]
    fn an_ended_flow_is_recorded_with_the_time_of_its_end() {
        let (table, backend) = table();
        table.journal.record(What::OffloadResumed {});
        end(&table, backend, EndReason::BackendReset);
        let log = log(FlowLog::Off, 10);
        FlowLogWriter::new(table.clone(), &log, 0).write(&log, 3_000_000 + 3_600_000_000_000);
        let mut at_ms: Vec<_> = table.journal.since(0, true).iter().map(|event| event.at_unix_ms).collect();
        at_ms.sort_unstable();
        let apart_ms = at_ms[1] - at_ms[0];
        assert!((3_590_000..=3_600_000).contains(&apart_ms), "{apart_ms}");
    }

    #[test]
    fn a_busy_host_gets_so_many_lines_and_is_told_how_many_are_missing() {
        let (table, backend) = table();
        let log = log(FlowLog::All, 5);
        let mut writer = FlowLogWriter::new(table.clone(), &log, 0);
        let lines = logged(|| {
            for _ in 0..20 {
                end(&table, backend, EndReason::ClientClosed);
            }
            writer.write(&log, 0);
            writer.write(&log, SAY_EVERY_NS);
        });
        assert_eq!(lines.iter().filter(|line| line["target"] == "baton::flow").count(), 5);
        assert_eq!(lines.last().unwrap()["lines"], 15);
        assert_eq!(table.census.skipped.value(), 15);
        assert_eq!(table.journal.since(0, true).len(), 20);
    }

    #[test]
    fn ordinary_ends_are_no_errors_and_off_means_off_from_the_next_flow_on() {
        let (table, backend) = table();
        let mut writer = FlowLogWriter::new(table.clone(), &log(FlowLog::Errors, 10), 0);
        let lines = logged(|| {
            end(&table, backend, EndReason::ClientClosed);
            end(&table, backend, EndReason::BackendClosed);
            writer.write(&log(FlowLog::Errors, 10), 0);
            end(&table, backend, EndReason::Killed);
            writer.write(&log(FlowLog::Off, 10), 0);
        });
        assert!(lines.is_empty(), "{lines:?}");
    }

    #[tokio::test]
    async fn flows_that_ended_just_before_the_stop_are_not_forgotten() {
        let (table, backend) = table();
        let config = Config {
            admin: crate::config::Admin {
                http: None,
                socket: "/nonexistent".into(),
                metrics: None,
                allowed_hosts: Vec::new(),
                group: None,
            },
            process: crate::config::Process {
                workers: None,
                max_connections: None,
                shutdown_delay: Duration::ZERO,
                stop_timeout: Duration::ZERO,
                reset_within: Duration::ZERO,
                reset_rate: 1,
            },
            log: log(FlowLog::Off, 1),
            recorder: Default::default(),
            names: Default::default(),
            offload: crate::config::OffloadSettings::default(),
            cluster: crate::config::Cluster::default(),
            instance: Default::default(),
            peers: None,
            failover: crate::config::FailoverSettings::default(),
            vip: None,
            frontends: Vec::new(),
        };
        let config = Arc::new(ArcSwap::from_pointee(config));
        end(&table, backend, EndReason::Shutdown);
        run(table.clone(), config, async {}).await;
        assert_eq!(table.journal.since(0, true).len(), 1);
    }
}
