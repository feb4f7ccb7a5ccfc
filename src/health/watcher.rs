//! The task that watches one backend.

mod publish;

use std::future::{Future, pending};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::probe::Manner;
use super::resolve::{LookedUp, NameLookup, ResolveError};
use super::succession::NameSuccession;
use super::surroundings::{Listened, SurroundingsWatch};
use super::votes::{Vote, Votes};
use super::{Ordered, SharedHealth};
use crate::addr::BackendAddr;
use crate::config::{self, Backend, Config, Frontend, Health, Target};
use crate::model::health::Cause;
use crate::model::health::doubt::Silence;
use crate::model::health::machine::{Arrival, DampingPolicy, Machine, Policy, ProbeOutcome};
use crate::model::health::{Dismissal, Order, SavedBackend};
use crate::model::ids::BackendId;
use crate::ports::orders::Pace;
use crate::sys::clock::now_ns;
use crate::table::Part;
use crate::table::backend::{BackendEntry, Registry};
use crate::table::journal::What;
use publish::UncountedReset;

/// How often the watcher of a removed backend looks for flows. It forgets the backend at the second look without flows,
/// because a worker may have been about to use it at the first.
const RETIRE_POLL_NS: u64 = 250_000_000;

/// A killed process's last bytes may arrive for so long after the refusal of a connect.
const UNDER_WAY_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) enum WatcherCommand {
    Configure(Box<Spec>),
    /// As `Configure`, and it becomes the current entry of its name: from now on it looks the name up.
    Lead(Box<Spec>),
    Remove(Dismissal),
    /// Flows of an earlier process use this address: take it if the name resolves to it.
    Prefer(BackendAddr),
    /// Removed already: its flows have drained for long enough.
    Expire,
    Order(Order, oneshot::Sender<Ordered>),
    Save(oneshot::Sender<SavedBackend>),
}

/// The initial state of a watcher.
pub(super) struct Beginning {
    pub(super) known: KnownBefore,
    /// An operator's order to the name.
    pub(super) order: Option<Order>,
    pub(super) dismissed: Option<Dismissal>,
}

/// The state of the backend before its first probe.
pub(super) enum KnownBefore {
    Nothing(Arrival),
    /// Another process has sent its state.
    Saved(Box<SavedBackend>),
}

impl Beginning {
    pub(super) fn new(known: KnownBefore) -> Self {
        Self { known, order: None, dismissed: None }
    }
}

/// The configuration of one backend's health checks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spec {
    health: Health,
    pub(super) backend: Backend,
    /// The addresses that its clients connect to.
    pub(super) listens: Vec<IpAddr>,
    drain_timeout: Duration,
    pub(super) reset_pace: Pace,
}

/// Probes one backend, and decides on its flows.
pub(super) struct Watcher {
    shared: Arc<SharedHealth>,
    entry: Arc<BackendEntry>,
    spec: Spec,
    machine: Machine,
    vote: Vote,
    surroundings: SurroundingsWatch,
    /// The result in words, and its duration in µs.
    last_probe: Option<String>,
    last_probe_us: u64,
    manner: Arc<Manner>,
    inbox: mpsc::UnboundedReceiver<WatcherCommand>,
    first_probed: watch::Sender<bool>,
    probing: Option<Running<ProbeReport>>,
    /// When the last probe ended, if it found no way to the backend; monotonic ns.
    refused_ns: Option<u64>,
    lookup: NameLookup,
    succession: NameSuccession,
    retiring: Option<Retiring>,
    /// Orders to end flows that wait until their flows are counted.
    uncounted: Vec<UncountedReset>,
}

/// A future that runs beside the watcher, which waits for its output.
pub(super) type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct ProbeReport {
    outcome: ProbeOutcome,
    began_ns: u64,
    took: Duration,
    flows_moved: bool,
    /// Whether the connect was refused, or found no way.
    refused: bool,
}

struct Retiring {
    with_frontend: bool,
    look_at_ns: u64,
    was_empty: bool,
}

impl Spec {
    pub(super) fn new(config: &Config, frontend: &Frontend, backend: &Backend) -> Self {
        Self {
            health: frontend.health.clone(),
            backend: backend.clone(),
            listens: frontend.listen.iter().map(|listen| listen.ip()).collect(),
            drain_timeout: frontend.drain_timeout,
            reset_pace: Pace { within: config.process.reset_within, per_second: config.process.reset_rate },
        }
    }

    /// For a backend that `config` does not have, or not at this address. The former kind of probe is not known, unless
    /// its frontend still exists: then that frontend's kind applies. Otherwise a connect probe is enough.
    pub(super) fn gone(
        config: &Config,
        frontend: &str,
        backend: &str,
        address: BackendAddr,
        drain_timeout: Option<Duration>,
    ) -> Self {
        let named = config.frontends.iter().find(|named| *named.name == *frontend);
        let by_default = config::frontend_by_default(frontend);
        let probed_at_other = |it: &Backend| *it.name == *backend && it.health_address.is_some();
        let health = match named {
            Some(named) if !named.backends.iter().any(probed_at_other) => named.health.clone(),
            _ => by_default.health.clone(),
        };
        let (name, address) = (Arc::from(backend), Target::Address(address));
        let backend =
            Backend { name, address, weight: 0, max_connections: None, health_address: None, is_discovered: false };
        let spec = Self::new(config, named.map_or(&by_default, |named| &**named), &backend);
        let drain_timeout = drain_timeout.unwrap_or(spec.drain_timeout);
        Self { health, drain_timeout, ..spec }
    }

    /// The same at this address, whatever its name resolves to.
    pub(super) fn at(&self, address: BackendAddr) -> Self {
        Self { backend: Backend { address: Target::Address(address), ..self.backend.clone() }, ..self.clone() }
    }

    pub(super) fn policy(&self) -> Policy {
        let health = &self.health;
        Policy {
            interval_ns: ns(health.interval),
            fast_interval_ns: ns(health.fast_interval),
            jitter_percent: health.jitter_percent,
            rise: health.rise,
            fall: health.fall,
            reset_fall: health.reset_fall,
            slow_start_ns: ns(health.slow_start),
            drain_timeout_ns: ns(self.drain_timeout),
            damping: DampingPolicy {
                half_life_ns: ns(health.damping.half_life),
                suppress: health.damping.suppress,
                reuse: health.damping.reuse,
            },
        }
    }
}

impl Watcher {
    pub(super) fn new(
        shared: Arc<SharedHealth>,
        entry: Arc<BackendEntry>,
        spec: Spec,
        beginning: Beginning,
        votes: Arc<Votes>,
        inbox: mpsc::UnboundedReceiver<WatcherCommand>,
        first_probed: watch::Sender<bool>,
    ) -> Self {
        let Beginning { known, order, dismissed } = beginning;
        let (arrival, saved) = match known {
            KnownBefore::Nothing(arrival) => (arrival, None),
            KnownBefore::Saved(saved) => (Arrival::AtStart, Some(saved)),
        };
        let mut watcher = Self {
            machine: Machine::new(spec.policy(), arrival, now_ns()),
            manner: Arc::new(Manner::new(&spec.health, &spec.backend)),
            vote: Vote::new(votes),
            surroundings: SurroundingsWatch::default(),
            last_probe: None,
            last_probe_us: 0,
            probing: None,
            refused_ns: None,
            lookup: NameLookup::default(),
            succession: NameSuccession::default(),
            retiring: None,
            uncounted: Vec::new(),
            shared,
            entry,
            spec,
            inbox,
            first_probed,
        };
        if let Some(saved) = saved {
            watcher.restore(*saved);
        }
        watcher.aim();
        if let Some(order) = order {
            watcher.machine.handle_order(now_ns(), order);
        }
        if let Some(dismissal) = dismissed {
            watcher.dismiss(dismissal);
            watcher.machine.handle_begun();
        }
        watcher.publish();
        watcher
    }

    /// Continues from another process's state. The caller has checked that the configuration has the backend at no
    /// other fixed address.
    fn restore(&mut self, saved: SavedBackend) {
        self.machine = Machine::restore(self.spec.policy(), saved.machine, now_ns());
        if self.entry.address().is_none() {
            self.entry.set_address(saved.address);
        }
        self.entry.set_ramp(saved.ramp_start_ns, saved.ramp_ns);
        // At least one, so that a removed backend waits for its flows.
        self.entry.other_process.expect(saved.flows.unwrap_or(1));
        self.last_probe = saved.last_probe;
        self.last_probe_us = saved.last_probe_us;
        self.first_probed.send_replace(true);
    }

    fn saved(&self) -> SavedBackend {
        let (frontend, backend) = (self.entry.frontend.name.to_string(), self.entry.name.to_string());
        let (ramp_start_ns, ramp_ns) = self.entry.ramp();
        SavedBackend {
            frontend,
            backend,
            address: self.entry.address(),
            machine: self.machine.save(),
            ramp_start_ns,
            ramp_ns,
            last_probe: self.last_probe.clone(),
            last_probe_us: self.last_probe_us,
            flows: Some(self.entry.active.load(Relaxed)),
            drain_timeout_ns: Some(ns(self.spec.drain_timeout)),
            former: self.entry.is_former(),
        }
    }

    pub(super) async fn run(mut self) {
        let entry = self.entry.clone();
        loop {
            self.begin_what_is_due();
            let wake_at_ns = self.wake_at_ns();
            tokio::select! {
                biased;
                command = self.inbox.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                report = finished(&mut self.probing) => self.judge(report),
                resolved = self.lookup.finished() => self.settle_address(resolved),
                () = entry.suspicion.notify.notified() => {
                    let bits = self.entry.suspicion.take();
                    tracing::debug!(backend = &*self.entry.name, bits, "suspicion: probing early");
                    self.machine.handle_suspicion(now_ns());
                }
                () = self.vote.changed() => {}
                () = self.succession.probed() => self.step_down(),
                () = sleep_until(wake_at_ns) => {}
            }
            if self.succession.until_ns().is_some_and(|until_ns| until_ns <= now_ns()) {
                self.step_down();
            }
            self.machine.handle_another_ready(now_ns(), self.vote.another());
            self.publish();
            self.reset_uncounted().await;
            // After the machine, so that actions that were held back while nobody was heard do not start only because
            // somebody is by now.
            let listened = Listened { table: &self.shared.table, entry: &self.entry, spec: &self.spec };
            if self.surroundings.look_around(listened) {
                self.begin_anew();
            }
            if self.has_retired() {
                return;
            }
        }
    }

    /// Takes the address from the configuration, or starts to look up its name.
    fn aim(&mut self) {
        match self.spec.backend.address {
            Target::Address(address) => {
                self.lookup.aim(false);
                self.settle_at(address);
            }
            Target::Name { .. } => self.lookup.aim(true),
        }
    }

    /// The entry keeps this address for good: another address is another entry.
    fn settle_at(&mut self, address: BackendAddr) {
        if self.entry.address().is_none() {
            self.entry.set_address(Some(address));
            self.probing = None;
            self.machine.handle_moved(now_ns());
        }
    }

    /// Discards the evidence of earlier probes and of the one that runs.
    fn begin_anew(&mut self) {
        self.probing = None;
        self.machine.handle_network_back(now_ns());
    }

    fn begin_what_is_due(&mut self) {
        let now = now_ns();
        if self.probing.is_none() && self.entry.address().is_some() && self.machine.next_probe_ns().is_none() {
            // The running probe is a lookup, and flows have shown the backend's address meanwhile.
            self.machine.handle_moved(now);
        }
        let probe_due = self.machine.next_probe_ns().is_some_and(|due| due <= now);
        let known = self.entry.address();
        let (target, interval) = (&self.spec.backend.address, self.spec.health.resolve_interval);
        // Without an address, the lookup is the probe.
        if self.lookup.begin(now, probe_due && known.is_none(), known, target, interval) && known.is_none() {
            self.machine.handle_probe_started(now);
        }
        if let (true, Some(address)) = (probe_due, known) {
            let to = self.spec.backend.health_address.unwrap_or(address);
            // Where probes go to another address than flows, the one says nothing of the other.
            let refused_ns = self.refused_ns.filter(|_| to == address);
            let registry = self.shared.table.registry.clone();
            let probe = probe(self.manner.clone(), to, registry, self.entry.id, now, refused_ns);
            self.probing = Some(Box::pin(probe));
            self.machine.handle_probe_started(now);
        }
    }

    fn wake_at_ns(&self) -> u64 {
        let probe = self.machine.next_probe_ns();
        let resolve = self.lookup.next_ns();
        let retire = self.retiring.as_ref().map(|retiring| retiring.look_at_ns);
        let look = self.surroundings.next_look_ns();
        let step_down = self.succession.until_ns();
        let due = [probe, resolve, retire, look, step_down, self.machine.next_timeout_ns()];
        due.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    fn judge(&mut self, report: ProbeReport) {
        let (frontend, backend) = self.entry.full_name();
        self.shared.table.probes.record(&frontend, &backend, report.outcome.label(), report.took);
        self.last_probe = Some(report.outcome.to_string());
        self.last_probe_us = report.took.as_micros() as u64;
        self.refused_ns = report.refused.then(now_ns);
        if let ProbeOutcome::Inconclusive { error } = &report.outcome {
            tracing::warn!(backend, error, "this host cannot send a probe; it does not count as failed");
        }
        let listened = Listened { table: &self.shared.table, entry: &self.entry, spec: &self.spec };
        match self.surroundings.hear(listened, &report.outcome, report.flows_moved, report.began_ns) {
            Silence::Anew => self.begin_anew(),
            Silence::Nothing => self.machine.handle_unsettled(now_ns(), fastrand::u64(..)),
            Silence::Counts => {
                self.machine.handle_outcome(now_ns(), report.outcome, report.flows_moved, fastrand::u64(..))
            }
        }
        self.first_probed.send_replace(true);
    }

    fn settle_address(&mut self, resolved: Result<BackendAddr, ResolveError>) {
        let before = self.entry.address();
        let Some(LookedUp { address, is_news }) = self.lookup.settle(resolved, before) else { return };
        if is_news {
            self.tell_address(address.as_ref().ok().copied().or(before), address.as_ref().err().cloned());
        }
        match (address, before) {
            (Ok(address), None) => self.settle_at(address),
            (Ok(address), Some(before)) => self.succeed_by((address != before).then_some(address)),
            (Err(error), None) => {
                let outcome = ProbeOutcome::Failed(Cause::Unresolved { error });
                let (began_ns, took) = (now_ns(), Duration::ZERO);
                self.judge(ProbeReport { outcome, began_ns, took, flows_moved: false, refused: false });
            }
            // A known address is better than none: a lookup may fail for reasons that are not the backend's.
            (Err(_), Some(_)) => {}
        }
    }

    /// Its name now resolves to `address`; `None`: to its own.
    fn succeed_by(&mut self, address: Option<BackendAddr>) {
        self.succession.succeed_by(address, &self.shared, &self.entry, &self.spec);
    }

    fn step_down(&mut self) {
        self.succession.step_down(&self.shared, &self.entry, &self.spec);
    }

    fn tell_address(&self, address: Option<BackendAddr>, error: Option<String>) {
        let (frontend, backend) = self.entry.full_name();
        let address = address.map(BackendAddr::socket_addr);
        self.shared.table.journal.record(What::BackendResolved { frontend, backend, address, error });
    }

    fn obey(&mut self, command: WatcherCommand) {
        match command {
            WatcherCommand::Configure(spec) => self.reconfigure(*spec),
            WatcherCommand::Lead(spec) => {
                self.reconfigure(*spec);
                self.lookup.postpone(self.spec.health.resolve_interval);
            }
            WatcherCommand::Remove(dismissal) => self.dismiss(dismissal),
            WatcherCommand::Prefer(address) => self.lookup.prefer(address),
            WatcherCommand::Expire => self.machine.handle_expired(now_ns()),
            WatcherCommand::Save(answer) => {
                self.publish();
                let _ = answer.send(self.saved());
            }
            WatcherCommand::Order(order, done) => {
                self.machine.handle_order(now_ns(), order);
                self.publish();
                let active = self.entry.active.load(Relaxed);
                let _ = done.send(Ordered { active, drain_deadline_ns: self.machine.drain_deadline_ns() });
            }
        }
    }

    /// No new flows; the old ones are watched until the last has ended.
    fn dismiss(&mut self, dismissal: Dismissal) {
        self.succeed_by(None);
        // Its name, if it has one, now belongs to others. A backend that never had an address has no flow.
        self.lookup.aim(false);
        let with_frontend = dismissal == Dismissal::Frontend;
        self.retiring = Some(Retiring { with_frontend, look_at_ns: now_ns() + RETIRE_POLL_NS, was_empty: false });
        self.machine.handle_removed(now_ns(), dismissal);
    }

    fn reconfigure(&mut self, spec: Spec) {
        let restored = self.retiring.take().is_some();
        if restored {
            self.machine.handle_restored(now_ns());
        }
        if spec == self.spec {
            if restored {
                self.aim();
            }
            return;
        }
        let before = std::mem::replace(&mut self.spec, spec);
        self.manner = Arc::new(Manner::new(&self.spec.health, &self.spec.backend));
        self.machine.handle_policy(now_ns(), self.spec.policy());
        if restored || before.backend.address != self.spec.backend.address {
            self.succeed_by(None);
            self.aim();
        }
        self.lookup.shorten(self.spec.health.resolve_interval);
        // Another kind of probe may find a fault; as for any suspicion, the next moments are soon enough.
        self.machine.handle_suspicion(now_ns());
    }

    fn has_retired(&mut self) -> bool {
        let Some(retiring) = &mut self.retiring else { return false };
        let now = now_ns();
        if now < retiring.look_at_ns {
            return false;
        }
        retiring.look_at_ns = now + RETIRE_POLL_NS;
        let frontend = &self.entry.frontend;
        let frontend_load = frontend.active.load(Relaxed) + frontend.other_process.count();
        let empty = self.entry.load() == 0 && (!retiring.with_frontend || frontend_load == 0);
        let twice = std::mem::replace(&mut retiring.was_empty, empty) && empty;
        let retired = twice && self.shared.retire(&self.entry, &self.inbox, retiring.with_frontend);
        if retired {
            self.shared.table.probes.forget(&self.entry.frontend.name, &self.entry.label());
        }
        retired
    }
}

/// `refused_ns`: when the probe before ended, if that was refused as well.
async fn probe(
    manner: Arc<Manner>,
    to: BackendAddr,
    registry: Part<Registry>,
    id: BackendId,
    started_ns: u64,
    refused_ns: Option<u64>,
) -> ProbeReport {
    let is_connected = Arc::new(AtomicBool::new(false));
    let heard = {
        let (registry, is_connected) = (registry.clone(), is_connected.clone());
        move || {
            is_connected.store(true, Relaxed);
            if let Some(entry) = registry.find_backend(id) {
                entry.heard_ns.fetch_max(now_ns(), Relaxed);
            }
        }
    };
    let connected =
        || registry.find_backend(id).map_or(0, |it| it.lanes.iter().map(|lane| lane.connected.value()).sum());
    let connected_before: u64 = connected();
    let outcome = manner.clone().probe(to, heard).await;
    let took = Duration::from_nanos(now_ns().saturating_sub(started_ns));
    let entry = registry.find_backend(id);
    if let Some(entry) = &entry {
        entry.segment_max.store(manner.segment_max(), Relaxed);
    }
    let doubtful = matches!(outcome, ProbeOutcome::Failed(Cause::TimedOut { .. } | Cause::Protocol { .. }));
    let refused = matches!(outcome, ProbeOutcome::Failed(Cause::Refused | Cause::Unreachable { .. }));
    // A killed process has sent nothing since its kernel refused the first connect. Where bytes have come since, a packet filter may reject
    // what begins a connection.
    let since_ns = if refused { refused_ns.map(|at_ns| at_ns + UNDER_WAY_NS) } else { doubtful.then_some(started_ns) };
    let flows_moved = entry.zip(since_ns).is_some_and(|(it, since_ns)| it.is_lively(since_ns));
    // Another address may be the probes' (`health_address`), so that the flows' connects count, too.
    let has_connected = is_connected.load(Relaxed) || connected() > connected_before;
    let is_late = matches!(outcome, ProbeOutcome::Failed(Cause::TimedOut { .. }));
    let outcome = match (is_late || refused) && flows_moved && !has_connected {
        true => ProbeOutcome::Failed(Cause::NoConnection),
        false => outcome,
    };
    ProbeReport { outcome, began_ns: started_ns, took, flows_moved, refused }
}

/// The output of the running future, which is then removed; never returns if none runs.
pub(super) async fn finished<T>(running: &mut Option<Running<T>>) -> T {
    match running {
        Some(future) => {
            let output = future.await;
            *running = None;
            output
        }
        None => pending().await,
    }
}

async fn sleep_until(at_ns: u64) {
    match at_ns.checked_sub(now_ns()) {
        None | Some(0) => {}
        Some(left_ns) => tokio::time::sleep(Duration::from_nanos(left_ns)).await,
    }
}

pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
