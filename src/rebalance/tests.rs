use super::*;
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::config::*;
use crate::drain::Drain;
use crate::model::balance::Preference;
use crate::model::end_reason::EndReason;
use crate::ports::AllPorts;
use crate::ports::orders::{EndOrder, Selector};
use crate::table::Table;
use crate::table::backend::HealthView;
use crate::table::flows::{Field, FlowKey, FlowOrigin, FlowPlace, FlowState, ShardWriter};
use crate::table::journal::What;

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

    fn set_gone_since(&self, index: usize, since_ns: u64) {
        let backend = self.backend(index);
        let view = HealthView {
            health_state: HealthState::Ejected,
            cause: Cause::Refused,
            since_ns,
            served_until_ns: since_ns,
            ..(*backend.health()).clone()
        };
        backend.set_health(view);
    }

    fn backend(&self, index: usize) -> Arc<BackendEntry> {
        self.table.registry.backends()[index].clone()
    }

    fn flow(&mut self, backend: &BackendEntry, last_byte_ns: u64) -> FlowKey {
        self.flow_since(backend, 1, last_byte_ns)
    }

    fn flow_since(&mut self, backend: &BackendEntry, accepted_at_ns: u64, last_byte_ns: u64) -> FlowKey {
        let origin = FlowOrigin {
            accepted_at_ns,
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
        let moves = plan_frontend(&entries(&self.table.registry, &self.frontend), &self.frontend, 0, 0, now_ns);
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
        is_discovered: false,
    };
    let base = frontend_by_default("apiserver");
    Frontend {
        rebalance: Rebalance { when: RebalanceWhen::Always, tolerance_percent: 0, ..base.rebalance },
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
    bench.frontend.rebalance.when = RebalanceWhen::Ordered;
    let moves = plan(&bench.table.registry, &config(bench.frontend.clone()));
    let id = bench.backend(0).id;
    let (frontend, backend) = ("apiserver".into(), "cp0".into());
    assert_eq!(moves[0], Move { frontend, backend, id, flows: 30, excess: 10 });
    assert_eq!((moves.len(), &*moves[1].backend, moves[1].excess), (2, "cp1", 10));
}

#[test]
fn nothing_moves_to_a_backend_that_is_not_ready_and_little_to_one_that_starts_slowly() {
    let bench = Bench::new(&[30, 0]);
    assert_eq!(bench.excess(100 * S), [("cp0".into(), 15)]);
    bench.set_health_state(&bench.backend(1), HealthState::Draining);
    assert_eq!(bench.excess(100 * S), []);
    bench.set_health_state(&bench.backend(1), HealthState::Ready);
    bench.backend(1).set_ramp(90 * S, 30 * S);
    // A third of the time and a tenth from the start make 0.4 of its share.
    assert_eq!(bench.excess(100 * S), [("cp0".into(), 8)]);
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

/// Regression: after an even time all flows that were too much moved at once.
#[tokio::test]
async fn moves_that_nobody_needed_do_not_add_up() {
    let bench = Bench::new(&[10, 10, 0]);
    bench.backend(2).set_preference(Preference::Never);
    bench.set_gone_since(2, S);
    let mut mover = Rebalancer::new(100 * S);
    for second in 100..160 {
        mover.step(&bench.table, &bench.frontend, second * S).await;
    }
    assert_eq!(bench.ordered(), []);
    bench.backend(2).set_preference(Preference::Ready);
    bench.set_health_state(&bench.backend(2), HealthState::Ready);
    mover.step(&bench.table, &bench.frontend, 160 * S).await;
    assert_eq!(bench.ordered(), [("cp0".into(), 1)]);
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
    let (_orders, orders) = mpsc::channel(1);
    let (_config, seen) = watch::channel(config(frontend));
    let drain = Drain::default();
    let task = tokio::spawn(run(bench.table.clone(), seen, drain.watch(), orders));
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

/// Which flows were ordered to end until `until_ns`, one look each quarter of a second, as a data plane that ends them all.
async fn moved_until(bench: &mut Bench, mover: &mut Rebalancer, now_ns: &mut u64, until_ns: u64) -> Vec<u64> {
    let mut moved = Vec::new();
    while *now_ns < until_ns {
        mover.step(&bench.table, &bench.frontend, *now_ns).await;
        while let Some(order) = bench.table.orders.take(0) {
            let Selector::Flow { id, key } = order.selector else { panic!("{order:?}") };
            let flow = bench.table.flows.find(id).unwrap();
            let backend = bench.table.registry.find_backend(flow.backend.unwrap()).unwrap();
            backend.active.fetch_sub(1, Relaxed);
            bench.writer.remove(&bench.table.flows, key);
            moved.push(flow.origin.accepted_at_ns / S);
        }
        *now_ns += S / 4;
    }
    moved
}

#[tokio::test]
async fn after_an_outage_flows_that_began_in_it_move_and_older_ones_stay() {
    let mut bench = Bench::new(&[4, 4, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::AfterOutage;
    let (mut mover, mut now_ns) = (Rebalancer::new(0), 100 * S);
    assert_eq!(moved_until(&mut bench, &mut mover, &mut now_ns, 110 * S).await, [0; 0], "an old skew stays");

    bench.set_gone_since(2, 110 * S);
    now_ns = 111 * S;
    assert_eq!(moved_until(&mut bench, &mut mover, &mut now_ns, 120 * S).await, [0; 0]);
    let first = bench.backend(0);
    for second in 111..=114 {
        bench.flow_since(&first, second * S, 112 * S);
    }
    bench.set_health_state(&bench.backend(2), HealthState::Ready);
    let moved = moved_until(&mut bench, &mut mover, &mut now_ns, 130 * S).await;
    // Eight of twelve: four more than its share, and the other backend's four are all older.
    assert_eq!(moved.len(), 4, "{moved:?}");
    assert!(moved.iter().all(|began| *began >= 111), "{moved:?}");
}

/// Regression: a backend that was lost again before the outage before was over came back to no flow for good, since each client had
/// moved once.
#[tokio::test]
async fn each_loss_of_a_backend_lets_clients_move_again_also_before_the_outage_before_is_over() {
    let mut bench = Bench::new(&[0, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::AfterOutage;
    let (mut mover, mut now_ns) = (Rebalancer::new(0), 100 * S);
    mover.step(&bench.table, &bench.frontend, now_ns).await;
    let first = bench.backend(0);
    for lost_s in [110, 125, 140] {
        bench.set_gone_since(1, lost_s * S);
        now_ns = (lost_s + 1) * S;
        assert_eq!(moved_until(&mut bench, &mut mover, &mut now_ns, (lost_s + 2) * S).await, [0; 0]);
        for _ in first.active.load(Relaxed)..4 {
            bench.flow_since(&first, lost_s * S, lost_s * S);
        }
        bench.set_health_state(&bench.backend(1), HealthState::Ready);
        // Two of four flows of one client, which has moved twice after each loss before.
        let moved = moved_until(&mut bench, &mut mover, &mut now_ns, (lost_s + 12) * S).await;
        assert_eq!(moved.len(), 2, "after the loss at {lost_s} s");
    }
}

/// Regression: after an upgrade within an outage, the backend that came back had no flows for good.
#[tokio::test]
async fn an_outage_goes_on_in_the_process_after_an_upgrade_and_ends_there() {
    let mut bench = Bench::new(&[4, 4, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::AfterOutage;
    bench.set_gone_since(2, 110 * S);
    let (mut mover, mut now_ns) = (Rebalancer::new(0), 111 * S);
    assert_eq!(moved_until(&mut bench, &mut mover, &mut now_ns, 120 * S).await, [0; 0]);
    let first = bench.backend(0);
    for second in 111..=114 {
        bench.flow_since(&first, second * S, 112 * S);
    }
    bench.set_health_state(&bench.backend(2), HealthState::Ready);
    let upgraded = |bench: &Bench| {
        let sent = serde_json::to_vec(&save_outages(&bench.table.registry)).unwrap();
        first.frontend.outage.set(None);
        restore_outages(&bench.table.registry, serde_json::from_slice(&sent).unwrap());
        Rebalancer::resume(first.frontend.outage.get(), 121 * S)
    };
    let mut moved = Vec::new();
    let mut processes = 1;
    while now_ns < 130 * S {
        let until_ns = now_ns + S;
        moved.extend(moved_until(&mut bench, &mut mover, &mut now_ns, until_ns).await);
        if processes == 1 || (processes == 2 && !moved.is_empty()) {
            mover = upgraded(&bench);
            processes += 1;
        }
    }
    assert!(moved.len() == 4 && moved.iter().all(|began| *began >= 111), "{moved:?}");
    assert_eq!(processes, 3);
    // A minute after the last backend came back it is over, for the next process, too.
    assert_eq!(moved_until(&mut bench, &mut mover, &mut now_ns, 200 * S).await, [0; 0]);
    assert_eq!(save_outages(&bench.table.registry), []);
}

#[tokio::test]
async fn by_order_flows_move_at_once_and_the_result_says_what_stays() {
    let mut bench = Bench::new(&[6, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::Ordered;
    let (mut mover, now_ns) = (Rebalancer::new(0), 100 * S);
    assert!(mover.step(&bench.table, &bench.frontend, now_ns).await.is_none());
    assert_eq!(bench.table.orders.take(0).map(|order| order.reason), None);
    mover.order(now_ns);
    let mut asked = 0;
    let mut done = None;
    for step in 0..400 {
        done = mover.step(&bench.table, &bench.frontend, now_ns + step * S / 4).await;
        asked += std::iter::from_fn(|| bench.table.orders.take(0)).count();
        if done.is_some() {
            break;
        }
    }
    // Nobody ends them: they are asked again and again, and then told.
    let done = done.expect("it ends");
    assert!(asked > 6, "{asked}");
    let left = &done.left[0];
    assert_eq!((done.moved, done.left.len(), left.planned.excess, done.took), (0, 1, 3, Duration::from_secs(45)));
    assert_eq!((left.never_quiet, left.moved_before), (6, 0));
}

/// Regression: clients that had connected again counted as on their way for five seconds more, and the order ended before its moves were done.
#[tokio::test]
async fn an_order_of_more_flows_than_may_move_in_a_step_moves_them_all() {
    let mut bench = Bench::new(&[15, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::Ordered;
    let (mut mover, mut now_ns) = (Rebalancer::new(99 * S), 100 * S);
    mover.order(now_ns);
    let done = loop {
        if let Some(done) = mover.step(&bench.table, &bench.frontend, now_ns).await {
            break done;
        }
        while let Some(order) = bench.table.orders.take(0) {
            let Selector::Flow { key, .. } = order.selector else { panic!("{order:?}") };
            bench.backend(0).active.fetch_sub(1, Relaxed);
            bench.writer.remove(&bench.table.flows, key);
            let other = bench.backend(1);
            bench.flow_since(&other, now_ns, now_ns);
        }
        now_ns += S / 4;
        assert!(now_ns < 150 * S, "it ends");
    };
    assert_eq!((done.moved, done.left.len()), (7, 0));
    assert!(done.took < Duration::from_secs(3), "{:?}", done.took);
}

/// Number of flows moved until `until_ns`, or until an order is done: each client that is moved comes back to the backend with too many.
async fn moved_in_vain(
    bench: &mut Bench,
    mover: &mut Rebalancer,
    now_ns: &mut u64,
    until_ns: u64,
) -> (u32, Option<Rebalanced>) {
    let (backend, mut moved, mut done) = (bench.backend(0), 0, None);
    while *now_ns < until_ns && done.is_none() {
        done = mover.step(&bench.table, &bench.frontend, *now_ns).await;
        while let Some(order) = bench.table.orders.take(0) {
            let Selector::Flow { key, .. } = order.selector else { panic!("{order:?}") };
            backend.active.fetch_sub(1, Relaxed);
            bench.writer.remove(&bench.table.flows, key);
            bench.flow_since(&backend, *now_ns, *now_ns);
            moved += 1;
        }
        *now_ns += S / 4;
    }
    (moved, done)
}

/// Regression: an order waited for 45 s although each client had moved, and none could move any more.
#[tokio::test]
async fn by_order_a_client_moves_once_for_each_of_its_flows_and_the_rest_is_told_as_moved_already() {
    for (flows, within) in [(4, Duration::from_secs(10)), (200, Duration::from_secs(45))] {
        let mut bench = Bench::new(&[flows, 0]);
        bench.frontend.rebalance.when = RebalanceWhen::Ordered;
        let (mut mover, mut now_ns) = (Rebalancer::new(0), 1000 * S);
        mover.order(now_ns);
        let (moved, done) = moved_in_vain(&mut bench, &mut mover, &mut now_ns, 1100 * S).await;
        let done = done.expect("it ends");
        let left = &done.left[0];
        assert_eq!((moved, done.moved, left.never_quiet, left.moved_before), (flows, flows, 0, flows), "{done:?}");
        assert!(done.took < within, "{done:?}");
    }
}

#[tokio::test]
async fn after_an_order_an_outage_moves_no_client_that_it_had_moved_before() {
    let mut bench = Bench::new(&[0, 0]);
    bench.frontend.rebalance.when = RebalanceWhen::AfterOutage;
    let (mut mover, mut now_ns) = (Rebalancer::new(0), 111 * S);
    bench.set_gone_since(1, 110 * S);
    mover.step(&bench.table, &bench.frontend, now_ns).await;
    let first = bench.backend(0);
    for _ in 0..4 {
        bench.flow_since(&first, 111 * S, 111 * S);
    }
    bench.set_health_state(&bench.backend(1), HealthState::Ready);
    assert_eq!(moved_in_vain(&mut bench, &mut mover, &mut now_ns, 121 * S).await.0, 4, "each once");
    mover.order(now_ns);
    let (moved, done) = moved_in_vain(&mut bench, &mut mover, &mut now_ns, 168 * S).await;
    assert!((1..=4).contains(&moved) && done.is_some(), "at most once each, as ordered: {moved}, {done:?}");
    // Until just before the outage is over.
    assert_eq!(moved_in_vain(&mut bench, &mut mover, &mut now_ns, 170 * S).await.0, 0);
}
