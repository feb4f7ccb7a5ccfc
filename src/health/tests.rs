//! The checker against a server that changes its mind.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::testing::{backend, config, frontend, health};
use super::*;
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::config::{Backend, Frontend, Health, Target};
use crate::model::balance::Preference;
use crate::model::end_reason::EndReason;
use crate::model::health::{Cause, HealthState};
use crate::ports::AllPorts;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::ports::suspicion::Suspicion;
use crate::sys::clock::now_ns;
use crate::table::Table;
use crate::table::flows::{Field, FlowKey, FlowOrigin, FlowPlace, FlowState, ShardWriter};
use crate::table::journal::What;

/// Long enough for a loaded machine; a test that passes waits far less.
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Answers(u16),
    Silent,
    Refuses,
}

/// An HTTP server on one port.
struct Stub {
    addr: BackendAddr,
    mode: watch::Sender<Mode>,
    probes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    async fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mode = watch::Sender::new(mode);
        let probes = Arc::<AtomicUsize>::default();
        let task = tokio::spawn(serve(listener, addr, mode.subscribe(), probes.clone()));
        Self { addr: BackendAddr::new(addr), mode, probes, task }
    }

    fn becomes(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    fn probes(&self) -> usize {
        self.probes.load(Relaxed)
    }
}

async fn serve(first: TcpListener, addr: SocketAddr, mut mode: watch::Receiver<Mode>, probes: Arc<AtomicUsize>) {
    let mut listener = Some(first);
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Refuses => {
                listener = None;
                mode.changed().await.unwrap();
                continue;
            }
            _ if listener.is_none() => {
                let socket = TcpSocket::new_v4().unwrap();
                socket.set_reuseaddr(true).unwrap();
                socket.bind(addr).unwrap();
                listener = Some(socket.listen(64).unwrap());
            }
            _ => {}
        }
        let accepted = tokio::select! {
            accepted = listener.as_ref().unwrap().accept() => accepted,
            _ = mode.changed() => continue,
        };
        let Ok((mut stream, _)) = accepted else { continue };
        probes.fetch_add(1, Relaxed);
        tokio::spawn(async move {
            let _ = stream.read(&mut [0; 1000]).await;
            match now {
                Mode::Answers(status) => {
                    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                _ => {
                    let _ = stream.read(&mut [0; 1]).await;
                }
            }
        });
    }
}

struct Bench {
    table: HealthParts,
    checker: Checker,
    writer: ShardWriter,
}

impl Bench {
    fn start(config: &Arc<Config>) -> Self {
        let table = parts();
        let checker = Checker::start(table.clone(), config, Handle::current());
        let writer = table.flows.writer(0);
        Self { table, checker, writer }
    }

    fn entry(&self, name: &str) -> Arc<BackendEntry> {
        let entries = self.table.registry.backends().into_iter().filter(|it| !it.is_former()).collect::<Vec<_>>();
        entries.into_iter().find(|entry| &*entry.name == name).expect("the backend is known")
    }

    /// A flow to the backend `name`.
    fn flow(&mut self, name: &str) -> FlowKey {
        let entry = self.entry(name);
        let origin = FlowOrigin {
            accepted_at_ns: now_ns(),
            client: ClientAddr::new("192.0.2.1:5000".parse().unwrap()),
            vip: VipAddr::new("192.0.2.100:6443".parse().unwrap()),
            frontend: entry.frontend.id,
        };
        let (_, key) = self.writer.insert(&self.table.flows, &origin).unwrap();
        assert!(entry.reserve());
        entry.frontend.active.fetch_add(1, Relaxed);
        self.set(key, Field::Place, FlowPlace::new(FlowState::Proxied, Some(entry.id)).pack());
        key
    }

    fn end(&mut self, name: &str, key: FlowKey) {
        let entry = self.entry(name);
        self.writer.remove(&self.table.flows, key);
        entry.release();
        entry.frontend.active.fetch_sub(1, Relaxed);
    }

    fn set(&self, key: FlowKey, field: Field, value: u64) {
        self.table.flows.slot(&self.writer, key).set(field as usize, value);
    }

    fn events(&self) -> Vec<What> {
        self.table.journal.since(0, false).into_iter().map(|event| event.what).collect()
    }

    async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !condition() {
            assert!(tokio::time::Instant::now() < deadline, "{what} did not come; events: {:#?}", self.events());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn until_health(&self, name: &str, health_state: HealthState) -> Cause {
        let entry = self.entry(name);
        self.until(health_state.label(), || entry.health().health_state == health_state).await;
        entry.health().cause.clone()
    }

    /// The next order, which must be for the backend `name`.
    async fn until_order(&self, name: &str) -> EndOrder {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            if let Some(order) = self.table.orders.take(0) {
                assert_eq!(order.selector, Selector::Backend(self.entry(name).id));
                assert_eq!(order.only_idle_for, None);
                return order;
            }
            assert!(tokio::time::Instant::now() < deadline, "no order; events: {:#?}", self.events());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The parts of a new table for one worker.
fn parts() -> HealthParts {
    let (table, ports) = (Table::new(1), AllPorts::new(1).unwrap());
    HealthParts {
        registry: table.part(),
        flows: table.part(),
        orders: ports.part(),
        journal: table.part(),
        reachability: ports.part(),
        fleet: ports.part(),
        fleet_view: table.part(),
        probes: table.part(),
        engine: ports.part(),
    }
}

fn quick() -> Health {
    Health {
        interval: Duration::from_millis(40),
        fast_interval: Duration::from_millis(20),
        timeout: Duration::from_millis(400),
        ..health()
    }
}

fn one(stub: &Stub, health: Health) -> Frontend {
    frontend("apiserver", health, vec![backend("cp1", stub.addr)])
}

#[tokio::test]
async fn a_backend_goes_from_ready_to_draining_and_back_without_losing_a_flow() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let mut bench = Bench::start(&config(vec![one(&stub, quick())]));
    let entry = bench.entry("cp1");
    assert_eq!(entry.address(), Some(stub.addr));
    assert_eq!((entry.preference(), &entry.health().cause), (Preference::Ready, &Cause::NotProbed));
    bench.checker.first_round().await;
    assert_eq!(entry.health().last_probe.as_deref(), Some("passed"));
    assert_eq!((entry.health().health_state, &entry.health().cause), (HealthState::Ready, &Cause::Passed));
    assert_eq!(entry.share(now_ns()), 1024);
    bench.flow("cp1");

    stub.becomes(Mode::Answers(503));
    assert_eq!(bench.until_health("cp1", HealthState::Draining).await, Cause::NotReady { status: 503 });
    assert_eq!(entry.preference(), Preference::Draining);
    assert_eq!(entry.health().last_probe.as_deref(), Some("answered 503"));
    assert_eq!(entry.health().drain_deadline_ns, None, "no other backend is ready");

    stub.becomes(Mode::Answers(200));
    bench.until_health("cp1", HealthState::Ready).await;
    assert_eq!(entry.preference(), Preference::Ready);
    assert!(entry.share(now_ns()) < 200, "it starts slowly");
    assert_eq!(bench.table.orders.take(0), None);
    let states = bench.events().into_iter().filter_map(|what| match what {
        What::BackendChanged { from, to, .. } => Some((from, to)),
        _ => None,
    });
    let (ready, draining) = (HealthState::Ready, HealthState::Draining);
    assert_eq!(states.collect::<Vec<_>>(), [(ready, ready), (ready, draining), (draining, ready)]);
}

#[tokio::test]
async fn the_flows_of_a_backend_that_refuses_are_reset_also_those_that_come_late() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let mut bench = Bench::start(&config(vec![one(&stub, quick())]));
    bench.checker.first_round().await;
    let early = bench.flow("cp1");
    stub.becomes(Mode::Refuses);
    assert_eq!(bench.until_health("cp1", HealthState::Ejected).await, Cause::Refused);
    assert_eq!(bench.entry("cp1").preference(), Preference::Never);
    let order = bench.until_order("cp1").await;
    let pace = Pace { within: Duration::from_secs(1), per_second: 5000 };
    assert_eq!((order.reason, order.pace), (EndReason::BackendEjected, pace));
    let ordered = |what: &What| matches!(what, What::FlowsOrdered { backend, flows: 1, reason: EndReason::BackendEjected, .. } if backend == "cp1");
    bench.until("the journal's line", || bench.events().iter().any(ordered)).await;

    let id = bench.entry("cp1").id;
    bench.set(early, Field::Place, FlowPlace { ending: true, ..FlowPlace::new(FlowState::Proxied, Some(id)) }.pack());
    while bench.table.orders.take(0).is_some() {}
    bench.flow("cp1");
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::BackendEjected);
}

/// Regression: "Baton ends 3 flows" was told where one ended: connects that go to another backend counted, and flows that end anyway.
#[tokio::test]
async fn the_flows_of_a_reset_are_counted_without_those_that_end_anyway_or_go_to_another_backend() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let mut bench = Bench::start(&config(vec![one(&stub, quick())]));
    bench.checker.first_round().await;
    let id = bench.entry("cp1").id;
    let [_, connects, ends] = [(); 3].map(|()| bench.flow("cp1"));
    bench.set(connects, Field::Place, FlowPlace::new(FlowState::Connecting, Some(id)).pack());
    bench.set(ends, Field::Place, FlowPlace { ending: true, ..FlowPlace::new(FlowState::Proxied, Some(id)) }.pack());
    stub.becomes(Mode::Refuses);
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::BackendEjected);
    let ordered = |what| if let What::FlowsOrdered { flows, .. } = what { Some(flows) } else { None };
    bench.until("the journal's line", || bench.events().into_iter().any(|what| ordered(what).is_some())).await;
    assert_eq!(bench.events().into_iter().find_map(ordered), Some(1));
}

/// A backend that answers its probes, which wait for 60 ms, and has a flow.
async fn with_a_flow() -> (Stub, Bench) {
    let stub = Stub::start(Mode::Answers(200)).await;
    let health = Health { timeout: Duration::from_millis(60), ..quick() };
    let mut bench = Bench::start(&config(vec![one(&stub, health)]));
    bench.checker.first_round().await;
    bench.flow("cp1");
    (stub, bench)
}

#[tokio::test]
async fn a_silent_backend_is_reset_unless_its_flows_move() {
    let (stub, bench) = with_a_flow().await;
    bench.entry("cp1").spoke_ns.store(u64::MAX, Relaxed);
    stub.becomes(Mode::Silent);
    assert_eq!(bench.until_health("cp1", HealthState::Draining).await, Cause::Slow);
    let seen = stub.probes();
    bench.until("more probes", || stub.probes() > seen + 5).await;
    assert_eq!(bench.table.orders.take(0), None);

    bench.entry("cp1").spoke_ns.store(now_ns(), Relaxed);
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::BackendEjected);
    assert_eq!(bench.entry("cp1").health().cause, Cause::TimedOut { after_ms: 60 });
}

/// Regression: a packet filter that rejected new connections had the flows of a backend reset that lived and served them.
#[tokio::test]
async fn a_backend_that_refuses_is_reset_unless_its_flows_move() {
    let (stub, bench) = with_a_flow().await;
    bench.entry("cp1").spoke_ns.store(u64::MAX, Relaxed);
    stub.becomes(Mode::Refuses);
    assert_eq!(bench.until_health("cp1", HealthState::Draining).await, Cause::NoConnection);
    assert_eq!(bench.table.orders.take(0), None);

    bench.entry("cp1").spoke_ns.store(now_ns(), Relaxed);
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::BackendEjected);
    assert_eq!(bench.entry("cp1").health().cause, Cause::Refused);
}

#[tokio::test]
async fn a_silent_backend_that_speaks_but_takes_nothing_is_reset() {
    let (stub, bench) = with_a_flow().await;
    let entry = bench.entry("cp1");
    [&entry.spoke_ns, &entry.untaken_ns, &entry.taken_ns].into_iter().for_each(|at_ns| at_ns.store(u64::MAX, Relaxed));
    stub.becomes(Mode::Silent);
    assert_eq!(bench.until_health("cp1", HealthState::Draining).await, Cause::Slow, "one flow loses, another does not");
    assert_eq!(bench.table.orders.take(0), None);

    entry.taken_ns.store(0, Relaxed);
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::BackendEjected);
}

#[tokio::test]
async fn a_drain_deadline_runs_once_another_backend_is_ready() {
    let (draining, other) = (Stub::start(Mode::Answers(500)).await, Stub::start(Mode::Answers(500)).await);
    let backends = vec![backend("cp1", draining.addr), backend("cp2", other.addr)];
    let frontend = Frontend { drain_timeout: Duration::from_millis(100), ..frontend("apiserver", quick(), backends) };
    let mut bench = Bench::start(&config(vec![frontend]));
    bench.checker.first_round().await;
    bench.flow("cp1");
    let seen = draining.probes();
    bench.until("more probes", || draining.probes() > seen + 5).await;
    assert_eq!(bench.entry("cp1").health().drain_deadline_ns, None);
    assert_eq!(bench.table.orders.take(0), None);
    other.becomes(Mode::Answers(200));
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::DrainDeadline);
    assert_eq!(bench.entry("cp2").health().health_state, HealthState::Ready);
}

#[tokio::test]
async fn an_operators_orders_show_when_they_return() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let mut bench = Bench::start(&config(vec![one(&stub, quick())]));
    bench.checker.first_round().await;
    bench.flow("cp1");
    let entry = bench.entry("cp1");
    let id = entry.id;
    let ordered = bench.checker.order(id, Order::Drain).await.unwrap();
    assert_eq!(ordered, Ordered { active: 1, drain_deadline_ns: entry.health().drain_deadline_ns });
    assert!(ordered.drain_deadline_ns.is_some());
    assert_eq!((entry.preference(), entry.health().order), (Preference::OrderedAway, Some("drain")));
    bench.checker.order(id, Order::Eject).await.unwrap();
    assert_eq!((entry.preference(), entry.health().order), (Preference::Never, Some("eject")));
    assert_eq!(bench.until_order("cp1").await.reason, EndReason::EjectedByOperator);
    bench.checker.order(id, Order::Undrain).await.unwrap();
    assert_eq!((entry.preference(), entry.health().order), (Preference::Ready, None));
}

#[tokio::test]
async fn an_order_for_no_backend_is_refused() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let bench = Bench::start(&config(vec![one(&stub, quick())]));
    let error = bench.checker.order(BackendId(99), Order::Drain).await.unwrap_err();
    assert!(matches!(error, OrderError::Unknown(_)));
}

#[tokio::test]
async fn a_removed_backend_drains_and_is_forgotten_after_its_last_flow() {
    let (kept, removed) = (Stub::start(Mode::Answers(200)).await, Stub::start(Mode::Answers(200)).await);
    let both = vec![backend("cp1", kept.addr), backend("cp2", removed.addr)];
    let mut bench = Bench::start(&config(vec![frontend("apiserver", quick(), both.clone())]));
    bench.checker.first_round().await;
    let flow = bench.flow("cp2");
    let id = bench.entry("cp2").id;
    bench.checker.reconfigure(&config(vec![one(&kept, quick())]));
    assert_eq!(bench.until_health("cp2", HealthState::Draining).await, Cause::Removed);
    assert_eq!(bench.entry("cp2").preference(), Preference::Never);
    assert!(bench.entry("cp2").health().drain_deadline_ns.is_some());

    bench.checker.reconfigure(&config(vec![frontend("apiserver", quick(), both)]));
    bench.until_health("cp2", HealthState::Ready).await;
    assert_eq!(bench.entry("cp2").id, id);

    bench.checker.reconfigure(&config(vec![one(&kept, quick())]));
    bench.until_health("cp2", HealthState::Draining).await;
    bench.end("cp2", flow);
    bench.until("forgetting", || bench.table.registry.find_backend(id).is_none()).await;
    assert_eq!(bench.table.orders.take(0), None);
    assert_eq!(bench.entry("cp1").health().health_state, HealthState::Ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reloads_in_a_row_lose_no_backend() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let both = vec![backend("cp1", stub.addr), backend("cp2", stub.addr)];
    let with = config(vec![frontend("apiserver", quick(), both)]);
    let without = config(vec![one(&stub, quick())]);
    let mut bench = Bench::start(&with);
    bench.checker.first_round().await;
    bench.flow("cp1");
    for reload in 0..300 {
        bench.checker.reconfigure(if reload % 2 == 0 { &without } else { &with });
        // Now and then wait long enough for the removed backend to be forgotten.
        if reload % 100 == 0 {
            bench.until("forgetting", || bench.table.registry.backends().len() == 1).await;
        }
    }
    let entries = bench.table.registry.backends();
    assert_eq!(entries.len(), 2);
    // Commands of the last reloads may still wait: an order is answered after all before it.
    for entry in &entries {
        bench.checker.order(entry.id, Order::Undrain).await.unwrap();
    }
    bench.until_health("cp2", HealthState::Ready).await;
    for entry in entries {
        assert_eq!((entry.preference(), entry.health().order), (Preference::Ready, None));
    }
    assert_eq!(bench.table.orders.take(0), None);
}

#[tokio::test]
async fn a_removed_frontend_resets_its_flows_at_the_deadline_and_is_forgotten() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let gone = frontend("old", quick(), vec![backend("cp9", stub.addr)]);
    let gone = Frontend { drain_timeout: Duration::from_millis(50), ..gone };
    let mut bench = Bench::start(&config(vec![one(&stub, quick()), gone]));
    bench.checker.first_round().await;
    let flow = bench.flow("cp9");
    bench.checker.reconfigure(&config(vec![one(&stub, quick())]));
    assert_eq!(bench.until_order("cp9").await.reason, EndReason::FrontendRemoved);
    bench.end("cp9", flow);
    bench.until("forgetting", || bench.table.registry.frontends().len() == 1).await;
}

#[tokio::test]
async fn a_backend_that_a_reload_adds_gets_flows_after_its_first_pass() {
    let (old, new) = (Stub::start(Mode::Answers(200)).await, Stub::start(Mode::Silent).await);
    let mut bench = Bench::start(&config(vec![one(&old, quick())]));
    bench.checker.first_round().await;
    let both = vec![backend("cp1", old.addr), backend("cp2", new.addr)];
    bench.checker.reconfigure(&config(vec![frontend("apiserver", quick(), both)]));
    assert_eq!(bench.entry("cp2").preference(), Preference::Never);
    assert_eq!(bench.entry("cp2").address(), Some(new.addr));
    bench.flow("cp1");
    new.becomes(Mode::Answers(200));
    bench.until_health("cp2", HealthState::Ready).await;
    assert!(bench.events().iter().any(|what| matches!(what, What::BackendAdded { backend, .. } if backend == "cp2")));
    assert_eq!(bench.table.orders.take(0), None);
}

#[tokio::test]
async fn settings_change_without_losing_state() {
    let stub = Stub::start(Mode::Answers(500)).await;
    let bench = Bench::start(&config(vec![one(&stub, Health { interval: Duration::from_secs(3600), ..quick() })]));
    bench.checker.first_round().await;
    assert_eq!(bench.until_health("cp1", HealthState::Draining).await, Cause::NotReady { status: 500 });
    stub.becomes(Mode::Answers(200));
    bench.checker.reconfigure(&config(vec![one(&stub, Health { rise: 3, ..quick() })]));
    assert_eq!(bench.entry("cp1").health().health_state, HealthState::Draining);
    let seen = stub.probes();
    bench.until_health("cp1", HealthState::Ready).await;
    assert!(stub.probes() >= seen + 3, "rise is 3");
}

#[tokio::test]
async fn a_moved_backend_is_probed_at_its_new_address_at_once() {
    let (before, after) = (Stub::start(Mode::Answers(200)).await, Stub::start(Mode::Answers(200)).await);
    let slow = Health { interval: Duration::from_secs(3600), ..quick() };
    let bench = Bench::start(&config(vec![one(&before, slow.clone())]));
    bench.checker.first_round().await;
    bench.checker.reconfigure(&config(vec![one(&after, slow)]));
    bench.until("a probe of the new address", || after.probes() > 0).await;
    assert_eq!(bench.entry("cp1").address(), Some(after.addr));
    bench.until("it is ready", || bench.entry("cp1").health().health_state == HealthState::Ready).await;
}

#[tokio::test]
async fn a_suspicion_probes_long_before_the_interval() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let bench = Bench::start(&config(vec![one(&stub, Health { interval: Duration::from_secs(3600), ..quick() })]));
    bench.checker.first_round().await;
    stub.becomes(Mode::Refuses);
    bench.entry("cp1").suspicion.raise(Suspicion::SEGMENTS_UNACKED);
    bench.until_health("cp1", HealthState::Ejected).await;
}

#[tokio::test]
async fn probes_go_to_the_health_address() {
    let (serving, probed) = (Stub::start(Mode::Answers(200)).await, Stub::start(Mode::Answers(500)).await);
    let backend = Backend { health_address: Some(probed.addr), ..backend("cp1", serving.addr) };
    let bench = Bench::start(&config(vec![frontend("apiserver", quick(), vec![backend])]));
    bench.checker.first_round().await;
    assert_eq!(bench.entry("cp1").health().cause, Cause::NotReady { status: 500 });
    assert_eq!((bench.entry("cp1").address(), serving.probes()), (Some(serving.addr), 0));
}

#[tokio::test]
async fn a_name_is_resolved_and_one_that_does_not_resolve_ejects() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let named = |name: &str, host: &str| Backend {
        address: Target::Name { host: host.into(), port: stub.addr.port() },
        ..backend(name, stub.addr)
    };
    let backends = vec![named("cp1", "127.0.0.1"), named("cp2", "no-such-host.invalid")];
    let bench = Bench::start(&config(vec![frontend("apiserver", quick(), backends)]));
    assert_eq!(bench.entry("cp1").address(), None);
    bench.checker.first_round().await;
    assert_eq!(bench.entry("cp1").address(), Some(stub.addr));
    assert_eq!(bench.until_health("cp1", HealthState::Ready).await, Cause::Passed);
    let health = bench.entry("cp2").health();
    assert!(matches!(health.cause, Cause::Unresolved { .. }), "{health:?}");
    assert_eq!((health.health_state, bench.entry("cp2").preference()), (HealthState::Ejected, Preference::Never));
    let told = |what: &What| match what {
        What::BackendResolved { backend, error: Some(_), address: None, .. } => backend == "cp2",
        _ => false,
    };
    assert_eq!(bench.events().iter().filter(|what| told(what)).count(), 1);
}

#[tokio::test]
async fn each_probe_is_measured() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let bench = Bench::start(&config(vec![one(&stub, quick())]));
    bench.checker.first_round().await;
    let measured = bench.table.probes.snapshots();
    assert!(measured.iter().any(|(labels, _)| *labels == ["apiserver", "cp1", "passed"]), "{measured:?}");
}

#[tokio::test]
async fn a_dropped_checker_probes_no_more() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let Bench { checker, table, .. } = Bench::start(&config(vec![one(&stub, quick())]));
    checker.first_round().await;
    let shared = Arc::downgrade(&checker.shared);
    drop(checker);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while shared.upgrade().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "a watcher still runs");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(table.registry.backends()[0].health().health_state, HealthState::Ready);
}

#[test]
fn each_timer_of_a_frontends_health_reaches_the_machine() {
    let of = |change: fn(&mut Frontend)| {
        let mut changed =
            frontend("apiserver", quick(), vec![backend("cp1", "127.0.0.1:1".parse().map(BackendAddr::new).unwrap())]);
        change(&mut changed);
        super::watcher::Spec::new(&config(vec![]), &changed, &changed.backends[0]).policy()
    };
    let by_default = of(|_| {});
    let changes: [fn(&mut Frontend); 11] = [
        |it| it.health.interval *= 2,
        |it| it.health.fast_interval *= 2,
        |it| it.health.rise += 1,
        |it| it.health.fall += 1,
        |it| it.health.reset_fall += 1,
        |it| it.health.jitter_percent += 1,
        |it| it.health.slow_start += Duration::from_secs(1),
        |it| it.health.damping.half_life *= 2,
        |it| it.health.damping.suppress += 1.0,
        |it| it.health.damping.reuse += 0.1,
        |it| it.drain_timeout *= 2,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_ne!(of(change), by_default, "change {number}");
    }
}

#[tokio::test]
async fn timers_of_a_reload_count_for_a_backend_that_is_watched_already() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let mut health = quick();
    (health.rise, health.slow_start) = (1, Duration::from_secs(30));
    let bench = Bench::start(&config(vec![one(&stub, health.clone())]));
    bench.checker.first_round().await;
    (health.rise, health.fall, health.reset_fall, health.slow_start) = (5, 4, 4, Duration::ZERO);
    bench.checker.reconfigure(&config(vec![one(&stub, health)]));
    let seen = stub.probes();
    stub.becomes(Mode::Answers(503));
    bench.until_health("cp1", HealthState::Draining).await;
    assert!(stub.probes() >= seen + 4, "four failures");
    let seen = stub.probes();
    stub.becomes(Mode::Answers(200));
    bench.until_health("cp1", HealthState::Ready).await;
    assert!(stub.probes() >= seen + 5, "five passes");
    assert_eq!(bench.entry("cp1").share(now_ns()), 1024, "its whole share at once");
}

/// Regression: a name was resolved again only after a day, the interval before the reload.
#[tokio::test]
async fn a_shorter_resolve_interval_counts_at_once() {
    let stub = Stub::start(Mode::Answers(200)).await;
    let named = |interval: Duration| {
        let mut health = quick();
        health.resolve_interval = interval;
        let port = stub.addr.socket_addr().port();
        let by_name = Backend { address: Target::Name { host: "localhost".into(), port }, ..backend("cp1", stub.addr) };
        config(vec![frontend("apiserver", health, vec![by_name])])
    };
    let bench = Bench::start(&named(Duration::from_secs(86_400)));
    bench.checker.first_round().await;
    let entry = bench.entry("cp1");
    bench.until("the name is resolved", || entry.address().is_some()).await;
    let found = entry.address();
    // As if it had had another address when the lookup began.
    entry.set_address(Some("127.0.0.1:1".parse().map(BackendAddr::new).unwrap()));
    bench.checker.reconfigure(&named(Duration::from_millis(100)));
    let leads = || bench.table.registry.backend(&entry.frontend, &entry.name).address();
    bench.until("it is resolved again", || leads() == found).await;
}

/// Regression: an instance never became ready, because it had recovered flows of a backend while it looked up that
/// backend's name.
#[cfg(not(feature = "resolver"))]
#[test]
fn a_backend_whose_flows_show_its_address_while_its_name_is_looked_up_is_probed() {
    // Threads for blocking work call getaddrinfo(3). There is one, and it is busy until the flows have shown the address.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (looks_up, wait) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || wait.recv());
        let stub = Stub::start(Mode::Answers(200)).await;
        let port = stub.addr.socket_addr().port();
        let by_name = Backend { address: Target::Name { host: "localhost".into(), port }, ..backend("cp1", stub.addr) };
        let bench = Bench::start(&config(vec![frontend("apiserver", quick(), vec![by_name])]));
        // The watcher begins.
        tokio::task::yield_now().await;
        let entry = bench.entry("cp1");
        assert_eq!(entry.address(), None);
        entry.set_address(Some(stub.addr));
        drop(looks_up);
        bench.until("it is probed", || stub.probes() > 0).await;
        bench.checker.first_round().await;
    });
}

/// The program that writes the file, or the name server, may change it all the time.
#[tokio::test]
async fn of_a_backend_that_never_rests_the_flows_of_eight_old_addresses_are_kept() {
    let mut stubs = Vec::new();
    for _ in 0..11 {
        stubs.push(Stub::start(Mode::Answers(200)).await);
    }
    let at = |stub: &Stub| config(vec![one(stub, quick())]);
    let mut bench = Bench::start(&at(&stubs[0]));
    let mut old = Vec::new();
    for stub in &stubs[1..] {
        bench.flow("cp1");
        old.push(bench.entry("cp1").id);
        bench.checker.reconfigure(&at(stub));
        let entry = bench.entry("cp1");
        assert_eq!(entry.address(), Some(stub.addr));
        // By then each has a deadline of its own.
        bench
            .until("the one before is drained", || {
                let before = bench.table.registry.find_backend(old[old.len() - 1]);
                before.is_some_and(|it| it.health().drain_deadline_ns.is_some())
            })
            .await;
    }
    let mut reset = std::collections::BTreeSet::new();
    let expected: std::collections::BTreeSet<_> = old[..2].iter().map(|id| id.0).collect();
    bench
        .until("the oldest two are reset", || {
            while let Some(order) = bench.table.orders.take(0) {
                assert_eq!(order.reason, EndReason::DrainDeadline);
                let Selector::Backend(id) = order.selector else { panic!("{order:?}") };
                reset.insert(id.0);
            }
            reset == expected
        })
        .await;
    assert_eq!(bench.entry("cp1").health().order, None);
}

/// Regression: a backend drained for ever. A reload had removed it, and the next process's file had it again.
#[tokio::test]
async fn a_removed_backend_that_the_next_process_has_again_is_ready() {
    let (stub, other) = (Stub::start(Mode::Answers(200)).await, Stub::start(Mode::Answers(200)).await);
    let mut bench = Bench::start(&config(vec![one(&stub, quick())]));
    bench.checker.first_round().await;
    bench.flow("cp1");
    bench.checker.reconfigure(&config(vec![frontend("apiserver", quick(), vec![backend("cp2", other.addr)])]));
    bench.until_health("cp1", HealthState::Draining).await;
    let saved = bench.checker.save().await;
    let table = parts();
    let again = config(vec![one(&stub, quick())]);
    let checker = Checker::resume(table.clone(), &again, Handle::current(), saved);
    let entry = table.registry.backends().into_iter().find(|it| &*it.name == "cp1").unwrap();
    bench.until("it is ready", || entry.health().health_state == HealthState::Ready).await;
    assert_eq!((entry.health().order, entry.health().drain_deadline_ns), (None, None));
    drop(checker);
}
