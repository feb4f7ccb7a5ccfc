//! The wiring: makes the parts, connects them, and takes them down again. Only this module knows all of them.
//!
//! ```text
//!   start   listeners bound ─▶ first probes ─▶ serving
//!   reload  file ─▶ valid? ─▶ new addresses bound? ─▶ flows, health and doors change over
//!   upgrade new process started ─▶ state, listeners and flows handed to it ─▶ this one exits
//!   stop    readiness fails ─▶ no new flows ─▶ flows end by themselves ─▶ the rest is reset
//! ```

pub(crate) mod broker;
mod changes;
mod control;
mod diff;
mod discover;
mod doors;
mod evacuate;
pub(crate) mod history;
mod offload;
mod peers;
mod reload;
mod stop;
mod upgrade;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch as latest};

use crate::addr::VipAddr;
use crate::admin::doors::{Doors, OpenDoorError};
use crate::admin::flow_log::{self, FlowLogParts};
use crate::admin::nodes;
use crate::admin::refusals;
use crate::admin::watchdog;
use crate::admin::{Admin, AdminPorts};
use crate::config::{Config, OffloadMode};
use crate::drain::{Drain, DrainWatch, LifePhase};
use crate::essential::Tasks;
use crate::fleet::failover::{self, FailoverParts};
use crate::fleet::link::PeerLinkParts;
use crate::health::{Checker, HealthParts};
use crate::late_resets;
use crate::metrics::Metrics;
use crate::model::fleet::{Farewell, SavedFleet};
use crate::model::ids::FlowId;
use crate::offload::engine::EngineParts;
use crate::offload::program::LAYOUT;
use crate::ports::AllPorts;
use crate::proxy::{Bindings, Proxy, ProxyError, ProxyParts};
use crate::rebalance::{self, RebalanceOrder, RebalanceParts};
use crate::recorder::{self, RecorderParts};
use crate::sys::clock::{now_ns, unix_ns};
use crate::sys::process::{self, FILES_MIN};
use crate::table::Table;
use crate::table::flows::IdShare;
use crate::table::journal::What;
use crate::upgrade::channel::Channel;
use crate::upgrade::destination::{self, NoOffer, Offer, Outcome};
use crate::upgrade::message::{Hello, ProgramReader, State};
use crate::vips;
use crate::vips::holder::{self, HolderHost, HolderParts};
use control::Wiring;
use doors::OpenDoors;
use upgrade::new::StartingInstance;

pub(crate) use reload::Reloader;
pub(crate) use upgrade::{Replacement, Succession, Upgrader};

/// Limit for the end's wait until the last events are on disk.
const RECORD_MAX: Duration = Duration::from_secs(1);

/// How often quiet sources are forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Why an instance cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("it may open {limit} files, and needs {FILES_MIN} at least: set LimitNOFILE= in its unit, or `ulimit -Hn`")]
    FewFiles { limit: u64 },
    #[error("cannot make the queues between the threads: {0}")]
    Ports(#[source] io::Error),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(transparent)]
    Door(#[from] OpenDoorError),
    #[error("Baton cannot offload flows, and offload.mode is \"require\": {0}")]
    Offload(#[source] offload::NoOffload),
    #[error("cannot get the flows of the old process: {0}")]
    NoOffer(#[from] NoOffer),
}

/// A running instance. Dropping it without [`Bound::stop`] closes its flows at once.
pub(crate) struct Bound {
    /// The address of the HTTP server, if it runs.
    pub http: Option<SocketAddr>,
    pub socket: PathBuf,
    pub workers: usize,
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    doors: Arc<OpenDoors>,
    upgrader: Arc<Upgrader>,
    /// The result of the upgrade that this process began with.
    outcome: Option<latest::Receiver<Option<Outcome>>>,
    tasks: Tasks,
    /// Logs the last ended flows, and so ends after everything else.
    flow_log: Tasks,
    /// Writes the last events, and so ends after the flow log.
    recorder: Option<JoinHandle<()>>,
}

/// The parts of a running instance.
pub(crate) struct Core {
    table: Arc<Table>,
    ports: Arc<AllPorts>,
    offload: offload::InstanceOffload,
    peers: peers::PeerLinks,
    evacuation: evacuate::EvacuationState,
    proxy: Proxy,
    checker: Checker,
    /// With the backends that were discovered.
    config: Arc<ArcSwap<Config>>,
    discovered: discover::Discoveries,
    latest: latest::Sender<Arc<Config>>,
    drain: Drain,
    next_phase: Notify,
    /// Operators' orders to rebalance.
    rebalance_orders: mpsc::Sender<RebalanceOrder>,
    /// Whether systemd keeps the listening sockets open after this process's end.
    listeners_kept: AtomicBool,
    succession: latest::Sender<Succession>,
    replacement: latest::Sender<Option<Replacement>>,
}

/// Orders to rebalance that may wait for the task that carries them out.
const REBALANCE_ORDERS_MAX: usize = 16;

/// The parts of an instance that serves no client yet.
struct Parts {
    config: Arc<Config>,
    rebalance_orders: mpsc::Receiver<RebalanceOrder>,
    core: Arc<Core>,
    metrics: Arc<Metrics>,
    reloader: Arc<Reloader>,
    doors: Arc<OpenDoors>,
    upgrader: Arc<Upgrader>,
    admin: Arc<Admin>,
}

/// Starts an instance with `config`, which was read from `path`, on `inherited` listeners where it has any. Needs a
/// tokio runtime; the data plane has threads of its own.
pub(crate) async fn build(
    config: Config,
    path: &Path,
    inherited: Vec<(VipAddr, OwnedFd)>,
) -> Result<Bound, StartError> {
    evacuate::begin_anew(&config);
    let found = discover::Discoveries::default().sets_for(&config).await;
    let (parts, bindings) = assemble(config, found, path, inherited, State::default(), false)?;
    let doors = Doors::open(parts.admin.clone(), &parts.config.admin)?;
    let (http, socket) = (doors.http_address(), doors.socket_path().to_owned());
    parts.doors.set(doors);
    parts.core.offload.recover();
    parts.core.link_up(None);
    parts.core.hold_vip(&parts.metrics, false);
    if parts.config.peers.is_none() {
        // A process with peers may have been killed here.
        failover::give_up_addresses();
    }
    if parts.config.offload.mode != OffloadMode::Off {
        parts.core.offload.serve();
    }
    parts.core.proxy.reconfigure(&parts.config, bindings);
    parts.core.proxy.forget_dead_ports();
    let core = parts.core.clone();
    let bound = Bound::new(parts, http, socket);
    bound.tasks.spawn("start", announce(core));
    Ok(bound)
}

/// Starts the new process of an upgrade; `channel` leads to the old one. It serves once that process is
/// done; see [`Bound::dismissed`].
pub(crate) async fn upgrade_from(config: Config, path: &Path, channel: Channel) -> Result<Bound, StartError> {
    let hello = Hello::here().reading(ProgramReader { layout: LAYOUT, pins: Some(config.offload.pins.clone()) });
    let met = move || (destination::meet(&channel, hello, upgrade::new::PATIENCE), channel);
    let (offer, channel) = tokio::task::spawn_blocking(met).await.expect("meeting does not panic");
    let Offer { welcome, doors, state } = offer?;
    let old = process::ProcessHandle::open(welcome.pid).ok();
    let (listeners, shared) = upgrade::new::sort(doors);
    let counters = state.counters.clone();
    let mut found = discover::Discoveries::default().sets_for(&config).await;
    discover::found_before(&config, &state.backends, &mut found);
    let assembled = assemble(config, found, path, listeners, state, true).inspect(|(parts, _)| {
        parts.core.proxy.restore(&parts.config, &counters);
        parts.core.table.flows.share_ids(IdShare::Odd);
    });
    let ready =
        assembled.and_then(|(parts, bindings)| Ok((Doors::wait(&parts.config.admin, shared)?, parts, bindings)));
    let (waiting, parts, bindings) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            destination::refuse(&channel, vec![error.to_string()], upgrade::new::PATIENCE);
            return Err(error);
        }
    };
    let (http, socket) = (waiting.http_address(), waiting.socket_path().to_owned());
    let starting = StartingInstance {
        core: parts.core.clone(),
        config: parts.config.clone(),
        doors: parts.doors.clone(),
        admin: parts.admin.clone(),
        metrics: parts.metrics.clone(),
        bindings: Some(bindings),
        waiting: Some(waiting),
        runtime: Handle::current(),
        welcome,
        imported: 0,
        saved: None,
        old,
    };
    let outcome = starting.take(channel);
    let mut bound = Bound::new(parts, http, socket);
    bound.outcome = Some(outcome);
    Ok(bound)
}

fn assemble(
    file: Config,
    found: discover::FoundSets,
    path: &Path,
    inherited: Vec<(VipAddr, OwnedFd)>,
    state: State,
    taking_over: bool,
) -> Result<(Parts, Bindings), StartError> {
    let limit = process::raise_file_limit();
    if limit < FILES_MIN {
        return Err(StartError::FewFiles { limit });
    }
    let config = file.with_found(&found);
    let discovered = discover::Discoveries::default();
    discovered.begin(&file, found);
    let workers = config.process.workers.unwrap_or_else(process::cores);
    let (table, ports) = (Table::new(workers), AllPorts::new(workers).map_err(StartError::Ports)?);
    // From the first event on: parts of Baton have some to tell before it serves.
    table.journal.unrecorded.turn(config.recorder.size_mb > 0);
    table.journal.record(What::Started { version: env!("CARGO_PKG_VERSION").to_owned() });
    table.flows.begin_ids_at(state.next_flow_id);
    if config.peers.is_some() {
        // Peers hold flows that this host may have forgotten. If the clock is wrong, the peers' records show which ids
        // are in use.
        table.flows.begin_ids_at(FlowId::first_count(unix_ns() / 1_000_000_000));
    }
    peers::PeerLinks::expect(&config, &ports.fleet, &table.flows);
    let metrics = Arc::new(Metrics::default());
    let config = Arc::new(config);
    let left_by = match taking_over {
        true => offload::LeftBy::Living { offloaded: state.offloaded },
        false => offload::LeftBy::Dead,
    };
    let offloaded = offload::InstanceOffload::open(&config, engine_parts(&table, &ports), left_by)?;
    let (proxy, bindings) = Proxy::start_idle(proxy_parts(&table, &ports), &config, inherited)?;
    state.totals.carry_into_table(&table);
    table.nodes.watch().restore(now_ns(), state.nodes);
    let parts = HealthParts {
        registry: table.part(),
        flows: table.part(),
        orders: ports.part(),
        journal: table.part(),
        reachability: ports.part(),
        fleet: ports.part(),
        fleet_view: table.part(),
        probes: table.part(),
        engine: ports.part(),
    };
    let checker = Checker::resume(parts, &config, Handle::current(), state.backends);
    rebalance::restore_outages(&table.registry, state.outages);
    let (orders, rebalance_orders) = mpsc::channel(REBALANCE_ORDERS_MAX);
    let core = Arc::new(Core {
        table: table.clone(),
        ports: ports.clone(),
        offload: offloaded,
        peers: peers::PeerLinks::default(),
        evacuation: evacuate::EvacuationState::default(),
        proxy,
        checker,
        config: Arc::new(ArcSwap::new(config.clone())),
        latest: latest::Sender::new(config.clone()),
        discovered,
        drain: Drain::default(),
        next_phase: Notify::new(),
        rebalance_orders: orders,
        listeners_kept: AtomicBool::new(false),
        succession: latest::Sender::new(Succession::None),
        replacement: latest::Sender::new(None),
    });
    let doors = Arc::new(OpenDoors::default());
    let reloader = Reloader::new(core.clone(), metrics.clone(), path, file, Arc::downgrade(&doors));
    let upgrader = Upgrader::new(core.clone(), reloader.clone(), metrics.clone(), Arc::downgrade(&doors));
    let wiring = Arc::new(Wiring::new(core.clone(), reloader.clone(), upgrader.clone()));
    let admin_ports = AdminPorts { orders: ports.part(), fleet: ports.part() };
    let admin =
        Admin::new(table.clone(), admin_ports, core.config.clone(), metrics.clone(), wiring, core.drain.watch());
    Ok((Parts { config, rebalance_orders, core, metrics, reloader, doors, upgrader, admin }, bindings))
}

fn engine_parts(table: &Arc<Table>, ports: &Arc<AllPorts>) -> EngineParts {
    EngineParts {
        flows: table.part(),
        registry: table.part(),
        journal: table.part(),
        beats: table.part(),
        census: table.part(),
        fleet_census: table.part(),
        fleet: ports.part(),
        offload: ports.part(),
        orders: ports.part(),
        reachability: ports.part(),
        late_resets: ports.part(),
    }
}

fn proxy_parts(table: &Arc<Table>, ports: &Arc<AllPorts>) -> ProxyParts {
    ProxyParts {
        flows: table.part(),
        registry: table.part(),
        workers: table.part(),
        journal: table.part(),
        census: table.part(),
        orders: ports.part(),
        offload: ports.part(),
        fleet: ports.part(),
        late_resets: ports.part(),
        ended: ports.part(),
    }
}

impl Bound {
    fn new(parts: Parts, http: Option<SocketAddr>, socket: PathBuf) -> Self {
        let Parts { core, rebalance_orders, reloader, doors, upgrader, admin, metrics, .. } = parts;
        let (table, ports) = (core.table.clone(), core.ports.clone());
        let parts = FlowLogParts {
            ended: ports.part(),
            registry: table.part(),
            names: table.part(),
            nodes: table.part(),
            journal: table.part(),
            census: table.part(),
        };
        let flow_log = Tasks::default();
        let config = core.config.clone();
        flow_log.spawn_with("flow log", |ended| flow_log::run(parts, config, ended.cancelled_owned()));
        let tasks = Tasks::default();
        tasks.spawn("nodes", once_serving(core.drain.watch(), nodes::watch(admin.clone())));
        tasks.spawn("rates", admin.clone().sample_rates());
        tasks.spawn("charts", once_serving(core.drain.watch(), history::fill(admin, core.config.load_full())));
        tasks.spawn("watchdog", watchdog::run(table.part(), (table.part(), table.part(), table.part()), table.part()));
        tasks.spawn("refusals", refusals::run(table.part(), table.part()));
        tasks.spawn("late resets", late_resets::run(ports.part(), ports.part()));
        let (phase, path) = (core.drain.watch(), reloader.path().to_owned());
        let parts =
            RebalanceParts { registry: table.part(), flows: table.part(), orders: ports.part(), journal: table.part() };
        let moves = rebalance::run(parts, core.latest.subscribe(), phase.clone(), rebalance_orders);
        tasks.spawn("rebalance", once_serving(phase.clone(), moves));
        let follow = once_serving(phase.clone(), watch::run(reloader.clone(), path, phase));
        tasks.spawn("configuration", follow);
        let found = discover::run(core.clone(), reloader.clone(), metrics.clone());
        tasks.spawn("discovered backends", once_serving(core.drain.watch(), found));
        let vips = vips::keep(core.table.part(), core.latest.subscribe(), metrics);
        tasks.spawn("vips", once_serving(core.drain.watch(), vips));
        tasks.spawn("sweep", sweep(core.clone()));
        let (journal, registry) = (table.part(), table.part());
        let parts = RecorderParts { journal, registry, standing: table.part(), census: table.part() };
        let recorder = recorder::start(parts, core.latest.subscribe())
            .inspect_err(|error| tracing::error!(%error, "cannot start the recorder: no event is written to its files"))
            .ok();
        let workers = core.proxy.workers();
        Self { http, socket, workers, core, reloader, doors, upgrader, outcome: None, tasks, flow_log, recorder }
    }

    /// The part that replaces this process.
    pub(crate) fn upgrader(&self) -> Arc<Upgrader> {
        self.upgrader.clone()
    }

    /// Duplicates each listening socket, for a keeper that holds it after this process's end; a stop then resets new
    /// clients, which would otherwise wait there. It blocks for a moment.
    pub(crate) fn listeners_to_keep(
        &self,
    ) -> impl Fn() -> io::Result<Vec<(VipAddr, OwnedFd)>> + Clone + Send + 'static {
        let core = self.core.clone();
        move || {
            core.listeners_kept.store(true, Relaxed);
            core.proxy.share_listeners()
        }
    }

    /// Returns once a new process serves everything: the caller must then call [`Bound::leave`].
    pub(crate) async fn replaced(&self) -> Replacement {
        let mut replacement = self.core.replacement.subscribe();
        let _ = replacement.wait_for(Option::is_some).await;
        // Another caller may have taken it; it must not be used twice.
        match self.core.replacement.send_replace(None) {
            Some(replacement) => replacement,
            None => std::future::pending().await,
        }
    }

    /// Returns if the old process of the upgrade continues; then this one's listeners are closed.
    pub(crate) async fn dismissed(&self) {
        let Some(mut outcome) = self.outcome.clone() else { return std::future::pending().await };
        let stepped_back = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::SteppedBack { .. }));
        if outcome.wait_for(stepped_back).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns when no flow is left here.
    pub(crate) async fn gone(&self) {
        stop::gone(&self.core).await;
    }

    /// Ends at once, and leaves the listeners' addresses and the admin socket's file to the process that has them now.
    pub(crate) async fn leave(self) {
        if let Some(doors) = self.doors.take() {
            doors.leave();
        }
        self.end().await;
    }

    async fn end(self) {
        self.tasks.stop().await;
        let core = self.core.clone();
        // Joining threads may take a moment, for which the runtime must not wait.
        let exit = move || {
            core.proxy.exit();
            core.offload.stop();
        };
        let _ = tokio::task::spawn_blocking(exit).await;
        self.flow_log.stop().await;
        self.core.table.journal.unrecorded.end();
        if let Some(recorder) = self.recorder {
            let last_events = tokio::task::spawn_blocking(move || recorder.join());
            let _ = tokio::time::timeout(RECORD_MAX, last_events).await;
        }
        drop(self.doors.take());
    }

    pub(crate) fn phase(&self) -> DrainWatch {
        self.core.drain.watch()
    }

    /// The running configuration, now and after each reload.
    pub(crate) fn config(&self) -> latest::Receiver<Arc<Config>> {
        self.core.latest.subscribe()
    }

    /// Why this process should be restarted: the loops that hang, one sentence each.
    pub(crate) fn complaints(&self) -> impl Fn() -> Vec<String> + Send + 'static {
        let core = self.core.clone();
        move || watchdog::complaints(&core.table.workers, &core.table.beats, core.drain.watch().phase(), now_ns())
    }

    /// The part that reads the configuration again.
    pub(crate) fn reloader(&self) -> Arc<Reloader> {
        self.reloader.clone()
    }

    /// A function that makes a stop that is under way go to its next phase at once.
    pub(crate) fn shorten_stop(&self) -> impl Fn() + Send + 'static {
        let core = self.core.clone();
        move || core.next_phase.notify_one()
    }

    /// Goes through the phases of a stop, and returns when no flow is left.
    pub(crate) async fn stop(self) {
        stop::run(&self.core).await;
        stop::vip_is_given_up(&self.core).await;
        self.core.peers.leave(Farewell::Stopped).await;
        let has_peers = self.core.config.load().peers.is_some();
        self.end().await;
        if has_peers {
            failover::lay_down().await;
        }
    }
}

impl Core {
    /// Links up with the peers, if there are any. `saved`: what the process before this one knew of them. The recovery of own flows must have
    /// begun. Needs a tokio runtime.
    fn link_up(&self, saved: Option<SavedFleet>) {
        let (table, ports) = (&self.table, &self.ports);
        let parts = PeerLinkParts {
            fleet: ports.part(),
            fleet_view: table.part(),
            flows: table.part(),
            standby: ports.part(),
            journal: table.part(),
            beats: table.part(),
            vip: ports.part(),
        };
        let Some(links) = self.peers.start(parts, self.latest.subscribe(), saved) else { return };
        let parts = FailoverParts {
            fleet: ports.part(),
            fleet_view: table.part(),
            fleet_census: table.part(),
            offload: ports.part(),
            flows: table.part(),
            late_resets: ports.part(),
            orders: ports.part(),
            registry: table.part(),
            journal: table.part(),
            beats: table.part(),
            vip: ports.part(),
        };
        if let Err(error) = failover::start(parts, self.latest.subscribe(), links) {
            tracing::error!(%error, "cannot start failover: this instance will not carry on or reset the flows of a peer that dies");
        }
    }
}

impl Core {
    /// Starts the VIP's holder. `is_successor`: this is the new process of an upgrade.
    fn hold_vip(self: &Arc<Self>, metrics: &Arc<Metrics>, is_successor: bool) {
        let (table, ports) = (&self.table, &self.ports);
        let parts = HolderParts {
            vip: ports.part(),
            fleet: ports.part(),
            fleet_view: table.part(),
            registry: table.part(),
            names: table.part(),
            flows: table.part(),
            reachability: ports.part(),
            engine: ports.part(),
            journal: table.part(),
            beats: table.part(),
        };
        let core = self.clone();
        let hangs =
            move || watchdog::complaints(&core.table.workers, &core.table.beats, core.drain.watch().phase(), now_ns());
        let host = HolderHost {
            config: self.latest.subscribe(),
            phase: self.drain.watch(),
            is_live: Box::new(move || hangs().is_empty()),
            is_successor,
            metrics: metrics.clone(),
        };
        if let Err(error) = holder::start(parts, host) {
            table.journal.record(What::VipRefused { error: error.to_string() });
        }
    }
}

async fn once_serving(mut phase: DrainWatch, work: impl Future<Output = ()>) {
    phase.reached(LifePhase::Serving).await;
    work.await;
}

/// Serving begins when every backend has been probed once.
async fn announce(core: Arc<Core>) {
    core.checker.first_round().await;
    core.drain.advance(LifePhase::Serving);
}

async fn sweep(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        core.proxy.sweep_sources();
        core.offload.keep_lock();
        if core.drain.watch().phase() <= LifePhase::Leaving {
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || core.proxy.fix_shared_ports()).await;
        }
    }
}
