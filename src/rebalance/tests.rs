use super::*;
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::config::*;
use crate::drain::Drain;
use crate::model::balance::Preference;
use crate::ports::AllPorts;
use crate::ports::orders::{EndOrder, Selector};
use crate::table::Table;
use crate::table::backend::HealthView;
use crate::table::flows::{Field, FlowKey, FlowOrigin, FlowPlace, FlowState, ShardWriter};

const S: u64 = 1_000_000_000;

struct Bench {
    table: RebalanceParts,
    writer: ShardWriter,
    frontend: Frontend,
}

impl Bench {
    /// Backends cp0, cp1, ..., ready, with these many flows. Flow n of a backend moved its last byte at second n + 1.
    fn new(flows: &[u32]) -> Self {
        let (table, ports) = (Table::new(1), AllPorts::new(1).unwrap());
        let table =
            RebalanceParts { registry: table.part(), flows: table.part(), orders: ports.part(), journal: table.part() };
        let writer = table.flows.writer(0);
        let names: Vec<Arc<str>> = (0..flows.len()).map(|index| format!("cp{index}").into()).collect();
        let mut bench = Self { table, writer, frontend: frontend(names.clone()) };
        let entry = bench.table.registry.frontend(&bench.frontend.name);
        for (name, flows) in names.iter().zip(flows) {
            let backend = bench.table.registry.backend(&entry, name);
            backend.set_preference(Preference::Ready);
            bench.set_health_state(&backend, HealthState::Ready);
            for flow in 0..*flows {
                bench.flow(&backend, u64::from(flow + 1) * S);
            }
        }
        bench
    }

    fn set_health_state(&self, backend: &BackendEntry, health_state: HealthState) {
        let cause = Cause::Passed;
        let view = HealthView { health_state, cause, ..(*backend.health()).clone() };
        backend.set_health(view);
    }

    fn backend(&self, index: usize) -> Arc<BackendEntry> {
        self.table.registry.backends()[index].clone()
    }

    fn flow(&mut self, backend: &BackendEntry, last_byte_ns: u64) -> FlowKey {
        let origin = FlowOrigin {
            accepted_at_ns: 1,
            client: ClientAddr::new("192.0.2.1:5000".parse().unwrap()),
            vip: VipAddr::new("192.0.2.100:6443".parse().unwrap()),
            frontend: backend.frontend.id,
        };
        let (_, key) = self.writer.insert(&self.table.flows, &origin).unwrap();
        let slot = self.table.flows.slot(&self.writer, key);
        slot.set(Field::Place as usize, FlowPlace::new(FlowState::Proxied, Some(backend.id)).pack());
        slot.set(Field::LastToBackendNs as usize, last_byte_ns);
        backend.active.fetch_add(1, Relaxed);
        key
    }

    /// The flows that each backend should give away.
    fn excess(&self, now_ns: u64) -> Vec<(String, u32)> {
        let moves = plan_frontend(&self.table.registry, &self.frontend, now_ns);
        moves.into_iter().map(|planned| (planned.backend, planned.excess)).collect()
    }

    /// The flows that were ordered to end, by backend and last byte.
    fn ordered(&self) -> Vec<(String, u64)> {
        let orders = std::iter::from_fn(|| self.table.orders.take(0));
        orders.map(|order| self.describe(order)).collect()
    }

    fn describe(&self, order: EndOrder) -> (String, u64) {
        assert_eq!((order.reason, order.only_idle_for), (EndReason::Rebalanced, Some(Duration::from_secs(5))));
        let Selector::Flow { id, .. } = order.selector else { panic!("{order:?}") };
        let flow = self.table.flows.find(id).unwrap();
        let backend = self.table.registry.find_backend(flow.backend.unwrap()).unwrap();
        (backend.name.to_string(), flow.last_to_backend_ns / S)
    }

    fn planned_events(&self) -> usize {
        let events = self.table.journal.since(0, false);
        events.iter().filter(|event| matches!(event.what, What::RebalancePlanned { .. })).count()
    }
}

fn frontend(names: Vec<Arc<str>>) -> Frontend {
    let backend = |name| Backend {
        name,
        address: Target::Address(BackendAddr::new("192.0.2.200:6443".parse().unwrap())),
        weight: 1,
        max_connections: None,
        health_address: None,
    };
    let base = frontend_by_default("apiserver");
    Frontend {
        rebalance: Rebalance { balance_existing: true, tolerance_percent: 0, ..base.rebalance },
        backends: names.into_iter().map(backend).collect(),
        ..base
    }
}

fn config(frontend: Frontend) -> Arc<Config> {
    Arc::new(by_default(vec![Arc::new(frontend)]))
}

#[test]
fn a_dry_run_names_what_is_too_much_even_if_rebalancing_is_off() {
    let mut bench = Bench::new(&[30, 30, 0]);
    bench.frontend.rebalance.balance_existing = false;
    let moves = plan(&bench.table.registry, &config(bench.frontend.clone()));
    let id = bench.backend(0).id;
    let (frontend, backend) = ("apiserver".into(), "cp0".into());
    assert_eq!(moves[0], Move { frontend, backend, id, flows: 30, excess: 10 });
    assert_eq!((moves.len(), &*moves[1].backend, moves[1].excess), (2, "cp1", 10));
}

#[test]
fn nothing_moves_to_a_backend_that_is_not_ready_or_still_starts_slowly() {
    let bench = Bench::new(&[30, 0]);
    assert_eq!(bench.excess(100 * S), [("cp0".into(), 15)]);
    bench.set_health_state(&bench.backend(1), HealthState::Draining);
    assert_eq!(bench.excess(100 * S), []);
    bench.set_health_state(&bench.backend(1), HealthState::Ready);
    bench.backend(1).set_ramp(90 * S, 30 * S);
    assert_eq!(bench.excess(100 * S), []);
    assert_eq!(bench.excess(120 * S), [("cp0".into(), 15)]);
}

#[test]
fn hashed_clients_are_left_where_they_belong() {
    let mut bench = Bench::new(&[30, 0]);
    bench.frontend.balance = Balance::SourceHash;
    assert_eq!(bench.excess(100 * S), []);
}

#[tokio::test]
async fn the_longest_idle_go_first_at_the_pace_that_is_set() {
    let bench = Bench::new(&[10, 8, 0]);
    let mut mover = Rebalancer::new(100 * S);
    mover.step(&bench.table, &bench.frontend, 100 * S).await;
    assert_eq!(bench.ordered(), []);
    mover.step(&bench.table, &bench.frontend, 103 * S).await;
    // Flows of the same idle time by id: cp0's came first.
    assert_eq!(bench.ordered(), [("cp0".into(), 1), ("cp1".into(), 1), ("cp0".into(), 2)]);
    assert_eq!(bench.planned_events(), 1, "a plan is told when it begins, not at each step");
}

#[tokio::test]
async fn a_flow_that_refused_to_go_does_not_hold_up_the_rest() {
    let bench = Bench::new(&[6, 0]);
    let mut mover = Rebalancer::new(100 * S);
    for step in 1..=3 {
        mover.step(&bench.table, &bench.frontend, (100 + step) * S).await;
        assert_eq!(bench.ordered(), [("cp0".into(), step)]);
    }
}

#[tokio::test]
async fn flows_that_moved_a_byte_lately_stay() {
    let bench = Bench::new(&[10, 0]);
    let mut mover = Rebalancer::new(0);
    mover.step(&bench.table, &bench.frontend, 7 * S).await;
    // Seven may go, five are too many, but after 7 s only two have been idle for 5 s.
    assert_eq!(bench.ordered(), [("cp0".into(), 1), ("cp0".into(), 2)]);
}

#[tokio::test]
async fn rebalancing_runs_until_the_instance_leaves() {
    let bench = Bench::new(&[20, 0]);
    let mut frontend = bench.frontend.clone();
    frontend.rebalance.per_minute = 60 * 60;
    let (_config, seen) = watch::channel(config(frontend));
    let drain = Drain::default();
    let task = tokio::spawn(run(bench.table.clone(), seen, drain.watch(), Arc::default()));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let first = loop {
        if let Some(order) = bench.table.orders.take(0) {
            break order;
        }
        assert!(tokio::time::Instant::now() < deadline, "nothing was moved");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(bench.describe(first), ("cp0".into(), 1));
    drain.advance(LifePhase::Leaving);
    task.await.unwrap();
}
