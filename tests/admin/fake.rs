//! An instance without a data plane: a table filled by hand, a control that records its calls, and one thread that
//! carries out orders as a worker would.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use baton::addr::{BackendAddr, ClientAddr, VipAddr};
use baton::admin::control::{
    ConfigState, Control, LastReload, OrderRefused, Ordering, PlannedMove, RebalanceDone, RebalancePlan, Rebalancing,
    ReloadRefused, Reloading, StayingFlows,
};
use baton::admin::diff::{Diffing, ReloadDiff};
use baton::admin::doors::Doors;
use baton::admin::evacuate::{Evacuating, EvacuationCheck, EvacuationFailed, EvacuationRequest};
use baton::admin::protocol::Reloaded;
use baton::admin::upgrade::{Checking, UpgradeFailed, UpgradeRequest, Upgrading};
use baton::admin::{Admin, AdminPorts};
use baton::config::{self, BudgetHost, Config};
use baton::drain::{Drain, LifePhase};
use baton::metrics::Metrics;
use baton::model::end_reason::EndReason;
use baton::model::fleet::{Epoch, InstanceName, LastHeard, Liveness, MemberView};
use baton::model::health::{Cause, HealthState, Order};
use baton::model::ids::{BackendId, FlowId};
use baton::ports::AllPorts;
use baton::ports::orders::{Orders, Selector};
use baton::sys::clock::now_ns;
use baton::table::backend::{BackendEntry, HealthView};
use baton::table::flows::{Field, FlowKey, FlowOrigin, FlowPlace, FlowState, ShardWriter};
use baton::table::{Part, Table};

/// Flows of the fake instance, by backend.
pub const FLOWS: [(&str, usize); 3] = [("cp1", 6), ("cp2", 4), ("cp3", 0)];

pub struct FakeInstance {
    pub admin: Arc<Admin>,
    pub doors: Doors,
    pub control: Arc<FakeControl>,
    pub table: Arc<Table>,
    pub ports: Arc<AllPorts>,
    pub drain: Drain,
    pub directory: tempfile::TempDir,
}

#[derive(Default)]
pub struct FakeControl {
    pub orders: Mutex<Vec<(BackendId, Order)>>,
    pub not_ready: Mutex<Vec<String>>,
    /// The result of the next reload.
    pub reload_errors: Mutex<Vec<String>>,
    pub last_reload: Mutex<Option<LastReload>>,
    pub rebalanced: Mutex<u32>,
    /// The result of the next comparison.
    pub diff: Mutex<ReloadDiff>,
}

impl Control for FakeControl {
    fn not_ready(&self) -> Vec<String> {
        self.not_ready.lock().unwrap().clone()
    }

    fn not_live(&self) -> Vec<String> {
        Vec::new()
    }

    fn order(&self, backend: BackendId, order: Order) -> Ordering {
        let outcome = match order {
            Order::Eject => Err(OrderRefused::Stopping),
            order => {
                self.orders.lock().unwrap().push((backend, order));
                Ok(())
            }
        };
        Box::pin(std::future::ready(outcome))
    }

    fn reload(&self) -> Reloading {
        let errors = self.reload_errors.lock().unwrap().clone();
        Box::pin(async move {
            if errors.is_empty() {
                let changes = vec!["frontend apiserver: backend cp4 added".to_owned()];
                Ok(Reloaded { changes, loaded_before: None })
            } else {
                Err(ReloadRefused::Invalid { errors, findings: Vec::new() })
            }
        })
    }

    fn diff(&self, path: PathBuf) -> Diffing {
        let errors = self.reload_errors.lock().unwrap().clone();
        let mut diff = self.diff.lock().unwrap().clone();
        diff.path = path;
        let outcome =
            if errors.is_empty() { Ok(diff) } else { Err(ReloadRefused::Invalid { errors, findings: Vec::new() }) };
        Box::pin(std::future::ready(outcome))
    }

    fn config_state(&self) -> ConfigState {
        let last_reload = self.last_reload.lock().unwrap().clone().unwrap_or(LastReload::None);
        ConfigState { path: PathBuf::from("/etc/baton/baton.toml"), last_reload }
    }

    fn rebalance_plan(&self) -> RebalancePlan {
        let (frontend, backend) = ("apiserver".to_owned(), "cp1".to_owned());
        let moves = vec![PlannedMove { frontend, backend, flows: 6, fair_share: 4, moves: 2 }];
        RebalancePlan { moves, ..RebalancePlan::default() }
    }

    fn rebalance(&self) -> Rebalancing {
        *self.rebalanced.lock().unwrap() += 1;
        let staying = |planned| StayingFlows { planned, moved_before: 0, never_quiet: 2 };
        let (frontend, left) = ("apiserver".to_owned(), self.rebalance_plan().moves.into_iter().map(staying).collect());
        Box::pin(async { Ok(vec![RebalanceDone { frontend, moved: 1, left, took_ms: 1200 }]) })
    }

    fn upgrade(&self, _: UpgradeRequest) -> Result<Upgrading, UpgradeFailed> {
        Err(UpgradeFailed { why: "it has no data plane".to_owned(), moved: 0 })
    }

    fn check_upgrade(&self, _: UpgradeRequest) -> Checking {
        unreachable!("no test asks for it")
    }

    fn evacuate(&self, _: EvacuationRequest) -> Result<Evacuating, EvacuationFailed> {
        Err(EvacuationFailed { why: "there is no [peers] in its configuration".to_owned() })
    }

    fn take_back(&self) -> Result<Evacuating, EvacuationFailed> {
        Err(EvacuationFailed { why: "no evacuation is under way".to_owned() })
    }

    fn check_evacuation(&self, _: &EvacuationRequest) -> EvacuationCheck {
        unreachable!("no test asks for it")
    }

    fn budget_host(&self) -> BudgetHost {
        BudgetHost { adverts: Some(Duration::from_secs(1)), ..BudgetHost::default() }
    }
}

impl FakeInstance {
    /// Serves on a free port and a socket in a directory of its own.
    pub fn start() -> Self {
        Self::start_with(0)
    }

    /// With so many flows of cp1 more.
    pub fn start_with(more: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let (table, ports) = (Table::new(2), AllPorts::new(2).unwrap());
        let mut writers: Vec<_> = (0..2).map(|worker| table.flows.writer(worker)).collect();
        let live = fill(&table, &mut writers, more);
        let control = Arc::<FakeControl>::default();
        let drain = Drain::default();
        drain.advance(LifePhase::Serving);
        table.workers.iter().for_each(|worker| worker.mark_alive(true));
        let doors_config = config.admin.clone();
        let admin = Admin::new(
            table.clone(),
            AdminPorts { orders: ports.part(), fleet: ports.part() },
            Arc::new(ArcSwap::from_pointee(config)),
            Arc::<Metrics>::default(),
            control.clone(),
            drain.watch(),
        );
        let doors = Doors::open(admin.clone(), &doors_config).unwrap();
        tokio::spawn(obey(table.clone(), ports.part(), writers, live));
        Self { admin, doors, control, table, ports, drain, directory }
    }

    pub fn socket(&self) -> PathBuf {
        self.doors.socket_path().to_owned()
    }

    pub fn backend(&self, name: &str) -> Arc<BackendEntry> {
        self.table.registry.backends().into_iter().find(|entry| *entry.name == *name).unwrap()
    }
}

pub struct Live {
    id: FlowId,
    key: FlowKey,
    worker: usize,
    client: ClientAddr,
    backend: BackendId,
}

fn fill(table: &Table, writers: &mut [ShardWriter], more: usize) -> Vec<Live> {
    let frontend = table.registry.frontend(&"apiserver".into());
    let now = now_ns();
    let mut live = Vec::new();
    for (number, (name, flows)) in FLOWS.into_iter().enumerate() {
        let flows = if number == 0 { flows + more } else { flows };
        let backend = table.registry.backend(&frontend, &name.into());
        backend.set_address(Some(BackendAddr::new(format!("10.0.0.{}:6443", 11 + number).parse().unwrap())));
        backend.configure(1, None);
        backend.active.store(flows as u32, Relaxed);
        backend.set_health(health(name, now));
        backend.lanes[0].connected.add(flows as u64);
        backend.lanes[0].bytes_to_backend.add(1000 * flows as u64);
        backend.lanes[1].bytes_to_client.add(9000 * flows as u64);
        backend.lanes[0].connect.record(Duration::from_micros(420));
        for _ in 0..flows {
            let worker = live.len() % 2;
            let is_more = number == 0 && live.len() >= FLOWS[0].1;
            let ip = match number {
                0 if is_more => Ipv4Addr::from(0x0a01_0000 + live.len() as u32),
                0 => Ipv4Addr::new(192, 0, 2, 1 + live.len() as u8),
                _ => Ipv4Addr::new(192, 0, 2, 1 + (live.len() - more) as u8),
            };
            let client = ClientAddr::new((ip, 40000).into());
            let vip = VipAddr::new("10.0.0.100:6443".parse().unwrap());
            let origin = FlowOrigin { accepted_at_ns: now, client, vip, frontend: frontend.id };
            let (id, key) = writers[worker].insert(&table.flows, &origin).unwrap();
            let slot = table.flows.slot(&writers[worker], key);
            slot.set(Field::Place as usize, FlowPlace::new(FlowState::Proxied, Some(backend.id)).pack());
            slot.set(Field::BytesToBackend as usize, if is_more { 1000 + live.len() as u64 } else { 1000 });
            live.push(Live { id, key, worker, client, backend: backend.id });
        }
    }
    frontend.active.store(live.len() as u32, Relaxed);
    frontend.lanes[0].accepted.add(live.len() as u64 + 3);
    frontend.lanes[0].ended[EndReason::ClientClosed as usize].add(2);
    frontend.lanes[1].ended[EndReason::BackendEjected as usize].add(1);
    live
}

fn health(backend: &str, now: u64) -> HealthView {
    let (health_state, cause) = match backend {
        "cp3" => (HealthState::Ejected, Cause::TimedOut { after_ms: 500 }),
        "cp2" => (HealthState::Draining, Cause::NotReady { status: 500 }),
        _ => (HealthState::Ready, Cause::Passed),
    };
    HealthView {
        health_state,
        cause,
        since_ns: now,
        served_until_ns: now,
        last_probe: Some("200".to_owned()),
        last_probe_us: 3100,
        order: None,
        drain_deadline_ns: (health_state == HealthState::Draining).then_some(now + 150_000_000_000),
    }
}

/// Ends flows as ordered, as the workers would.
async fn obey(table: Arc<Table>, orders: Part<Orders>, mut writers: Vec<ShardWriter>, mut live: Vec<Live>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        for (worker, writer) in writers.iter_mut().enumerate() {
            while let Some(order) = orders.take(worker) {
                live.retain(|flow| {
                    let meant = flow.worker == worker
                        && match order.selector {
                            Selector::Flow { id, .. } => flow.id == id,
                            Selector::Backend(id) => flow.backend == id,
                            Selector::Client(network) => network.contains(&flow.client.ip()),
                            Selector::SocketsOf(_) | Selector::WithSockets | Selector::EndingHere | Selector::All => {
                                true
                            }
                        };
                    if meant {
                        writer.remove(&table.flows, flow.key);
                        let backend = table.registry.find_backend(flow.backend).unwrap();
                        backend.release();
                    }
                    !meant
                });
            }
        }
    }
}

fn config(directory: &Path) -> Config {
    let backend = |(name, _): (&str, usize)| config::Backend {
        name: name.into(),
        address: config::Target::Name { host: name.to_owned(), port: 6443 },
        weight: 1,
        max_connections: None,
        health_address: None,
        is_discovered: false,
    };
    let base = config::frontend_by_default("apiserver");
    let frontend = config::Frontend {
        listen: vec![VipAddr::new("10.0.0.100:6443".parse().unwrap()), VipAddr::new("[::]:6443".parse().unwrap())],
        limits: config::Limits { max_connections: Some(1_000_000), ..base.limits },
        backends: FLOWS.into_iter().map(backend).collect(),
        ..base
    };
    let base = config::by_default(vec![Arc::new(frontend)]);
    Config {
        admin: config::Admin {
            http: Some("127.0.0.1:0".parse().unwrap()),
            socket: directory.join("admin.sock"),
            metrics: Some("127.0.0.1:0".parse().unwrap()),
            allowed_hosts: Vec::new(),
            group: Some(config::Group { name: "nogroup".to_owned(), gid: 65534 }),
        },
        process: config::Process { workers: Some(2), max_connections: Some(1_000_000), ..base.process },
        ..base
    }
}

/// A peer that is heard, and says nothing of itself.
pub fn a_peer() -> MemberView {
    MemberView {
        name: InstanceName("lb-b".into()),
        address: "10.0.0.22:9471".parse().unwrap(),
        liveness: Liveness::Alive,
        epoch: Epoch(1),
        slot: Some(1),
        version: String::new(),
        synced: true,
        flows: 0,
        offloaded: 0,
        told: true,
        behind: 0,
        lag_ms: 0,
        resyncs: 0,
        round_trip_us: 100,
        vips: Vec::new(),
        why_not: None,
        summary: None,
        last_heard: LastHeard::default(),
    }
}
