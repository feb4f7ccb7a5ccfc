//! Active health checks: one task per backend probes it, lets the machine of [`crate::model::health`] judge, and
//! publishes the result for new flows.
//!
//! ```text
//!   config ──▶ Checker ── commands ──▶ watcher (one per backend) ──▶ BackendEntry: preference, ramp, HealthView
//!   operator ─▶   │                     │  ▲  ▲                 ├──▶ orders to reset flows
//!                 │                     ▼  │  └─ suspicion      └──▶ journal, log, metrics
//!                 └─ first_round      probe, DNS
//! ```

mod names;
mod probe;
mod resolve;
mod succession;
mod surroundings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod votes;
mod watcher;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::essential::Tasks;
use crate::model::health::machine::Arrival;
use crate::model::health::{Dismissal, Order, SavedBackend};
use crate::model::ids::{BackendId, FrontendId};
use crate::ports::fleet::Fleet;
use crate::ports::offload::EngineWake;
use crate::ports::orders::Orders;
use crate::ports::reachability::Reachability;
use crate::table::Part;
use crate::table::backend::{BackendEntry, Registry};
use crate::table::fleet::FleetView;
use crate::table::flows::FlowTable;
use crate::table::journal::{Journal, What};
use crate::table::latency::ProbeLatencies;
pub(crate) use succession::dismissal_after;
use succession::{dismissal_of, fixed, order_for};
use votes::Votes;
use watcher::{Beginning, KnownBefore, Spec, Watcher, WatcherCommand};

/// The parts of the table that the health checker may touch.
#[derive(Clone, Debug)]
pub(crate) struct HealthParts {
    pub registry: Part<Registry>,
    /// To count the flows that an order will end.
    pub flows: Part<FlowTable>,
    pub orders: Part<Orders>,
    pub journal: Part<Journal>,
    /// The peers, backends and clients that this host hears: while it hears none, a backend's silence proves nothing.
    pub reachability: Part<Reachability>,
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    pub probes: Part<ProbeLatencies>,
    /// To have the offload engine challenge clients.
    pub engine: Part<EngineWake>,
}

/// Watches every backend. Dropping it stops all probes; the last health states stay.
#[derive(Debug)]
pub(crate) struct Checker {
    shared: Arc<SharedHealth>,
    _strangers: Tasks,
}

/// The result of an order: the flows that are still to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    /// Flows of the backend.
    pub active: u32,
    /// Monotonic ns at which they are reset; `None`: they are not reset.
    pub drain_deadline_ns: Option<u64>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum OrderError {
    #[error("there is no backend {0}")]
    Unknown(String),
    #[error("backend {0} was removed, and its last flow has just ended")]
    Gone(String),
}

/// The state that all watchers share.
#[derive(Debug)]
struct SharedHealth {
    table: HealthParts,
    runtime: Handle,
    /// The latest configuration.
    config: Mutex<Arc<Config>>,
    roster: Mutex<Roster>,
}

#[derive(Debug, Default)]
struct Roster {
    watched: HashMap<BackendId, Watched>,
    votes: HashMap<FrontendId, Arc<Votes>>,
}

/// Backends that were not watched so far.
enum Added {
    /// The process starts; an earlier process may have known them.
    AtStart(Vec<SavedBackend>),
    ByReload,
}

#[derive(Debug)]
struct Watched {
    entry: Arc<BackendEntry>,
    commands: mpsc::UnboundedSender<WatcherCommand>,
    first_probed: watch::Receiver<bool>,
    _task: Tasks,
    /// `Some` once it will never get flows again.
    removed: Option<Dismissal>,
}

impl Checker {
    /// [`Checker::resume`] without another process's state.
    #[cfg(test)]
    pub(crate) fn start(table: HealthParts, config: &Arc<Config>, runtime: Handle) -> Self {
        Self::resume(table, config, runtime, Vec::new())
    }

    /// Begins to probe the backends of `config` on `runtime`. When this returns, their entries exist and those with a
    /// fixed address have it. `saved`: another process's state of the backends.
    pub(crate) fn resume(table: HealthParts, config: &Arc<Config>, runtime: Handle, saved: Vec<SavedBackend>) -> Self {
        let (roster, latest) = (Mutex::default(), Mutex::new(config.clone()));
        let shared = Arc::new(SharedHealth { table, runtime, config: latest, roster });
        let strangers = Tasks::default();
        strangers.spawn_on("health", shared.clone().watch_strangers(), &shared.runtime);
        let checker = Self { shared, _strangers: strangers };
        let added = Added::AtStart(saved);
        checker.welcome(config, &added);
        checker.see_off(config, &added);
        checker.dismiss(config);
        checker
    }

    /// The state of every backend, for the new process of an upgrade.
    pub(crate) async fn save(&self) -> Vec<SavedBackend> {
        let ask = |watched: &Watched| {
            let (answer, answered) = oneshot::channel();
            let _ = watched.commands.send(WatcherCommand::Save(answer));
            answered
        };
        let asked: Vec<_> = self.shared.roster().watched.values().map(ask).collect();
        let mut saved = Vec::new();
        for answered in asked {
            // An error means that the backend has just been forgotten.
            saved.extend(answered.await);
        }
        // A release that knows only one address per name takes the first.
        saved.sort_by_key(|it: &SavedBackend| it.former);
        saved
    }

    /// Begins to probe new backends of `config`, and applies its settings to the others; removes nothing yet. Call it
    /// before the workers learn of `config`, so that new backends are probed before flows come.
    pub(crate) fn prepare(&self, config: &Arc<Config>) {
        self.welcome(config, &Added::ByReload);
    }

    /// Applies `config`. Backends that stay keep their state; removed ones drain and are forgotten after their last
    /// flow. Call it after the workers have learnt of `config`, so that no flow can still choose a removed backend.
    pub(crate) fn reconfigure(&self, config: &Arc<Config>) {
        self.prepare(config);
        self.dismiss(config);
    }

    /// Carries out an operator's order; when this returns, the backend's state shows it.
    ///
    /// # Errors
    /// [`OrderError::Unknown`] and [`OrderError::Gone`].
    pub(crate) async fn order(&self, id: BackendId, order: Order) -> Result<Ordered, OrderError> {
        let (done, carried_out) = oneshot::channel();
        let (entry, others) = {
            let roster = self.shared.roster();
            let watched = roster.watched.get(&id).ok_or_else(|| OrderError::Unknown(format!("with id {id}")))?;
            let _ = watched.commands.send(WatcherCommand::Order(order, done));
            let entry = watched.entry.clone();
            // Flows at the name's former addresses belong to it, too. These addresses are draining already.
            let formers = self.shared.table.registry.formers_of(&entry).into_iter().filter(|_| order == Order::Eject);
            let ask = |former: Arc<BackendEntry>| {
                let (done, carried_out) = oneshot::channel();
                let _ = roster.watched.get(&former.id)?.commands.send(WatcherCommand::Order(order, done));
                Some(carried_out)
            };
            (entry, formers.filter_map(ask).collect::<Vec<_>>())
        };
        let mut ordered = carried_out.await.map_err(|_| OrderError::Gone(entry.name.to_string()))?;
        for carried_out in others {
            ordered.active += carried_out.await.map_or(0, |it| it.active);
        }
        Ok(ordered)
    }

    /// Returns once the first probe of every backend has ended.
    pub(crate) async fn first_round(&self) {
        let rounds: Vec<_> =
            self.shared.roster().watched.values().map(|watched| watched.first_probed.clone()).collect();
        for mut round in rounds {
            // An error means that the backend was removed meanwhile.
            let _ = round.wait_for(|probed| *probed).await;
        }
    }

    fn welcome(&self, config: &Arc<Config>, added: &Added) {
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = config.clone();
        let registry = &self.shared.table.registry;
        // Held throughout, so that no removed backend is forgotten between the search and its restoration.
        let mut roster = self.shared.roster();
        for frontend in &config.frontends {
            let frontend_entry = registry.frontend(&frontend.name);
            for backend in &frontend.backends {
                let entry = match fixed(&backend.address) {
                    Some(address) => registry.backend_at(&frontend_entry, &backend.name, address),
                    None => registry.backend(&frontend_entry, &backend.name),
                };
                let spec = Spec::new(config, frontend, backend);
                match roster.watched.get_mut(&entry.id) {
                    Some(watched) => {
                        watched.removed = None;
                        let _ = watched.commands.send(WatcherCommand::Configure(Box::new(spec)));
                    }
                    None => {
                        let beginning = self.beginning(&entry, added);
                        self.shared.watch(&mut roster, entry, spec, beginning);
                    }
                }
            }
        }
    }

    fn beginning(&self, entry: &BackendEntry, added: &Added) -> Beginning {
        let known = match added {
            Added::ByReload if entry.is_former() => {
                let current = self.shared.table.registry.backend(&entry.frontend, &entry.name);
                let known = KnownBefore::Nothing(Arrival::ByReload);
                return Beginning { order: order_for(&current), ..Beginning::new(known) };
            }
            Added::ByReload => {
                let (frontend, backend) = entry.full_name();
                self.shared.table.journal.record(What::BackendAdded { frontend, backend });
                None
            }
            Added::AtStart(saved) => saved.iter().find(|saved| {
                let is_there = entry.address().map_or(!saved.former, |address| saved.address == Some(address));
                *saved.frontend == *entry.frontend.name && *saved.backend == *entry.name && is_there
            }),
        };
        let arrival = match added {
            Added::ByReload => Arrival::ByReload,
            Added::AtStart(_) => Arrival::AtStart,
        };
        let reinstated = |saved: &SavedBackend| {
            let machine = saved.machine.clone().reinstated();
            KnownBefore::Saved(Box::new(SavedBackend { machine, ..saved.clone() }))
        };
        Beginning::new(known.map_or(KnownBefore::Nothing(arrival), reinstated))
    }

    /// Also watches backends that `config` no longer has, or has at another address, until their last flow has ended.
    /// They are dismissed next, and drain as after a reload.
    fn see_off(&self, config: &Arc<Config>, added: &Added) {
        let Added::AtStart(saved) = added else { return };
        let registry = &self.shared.table.registry;
        let mut roster = self.shared.roster();
        for saved in saved {
            let Some(address) = saved.address else { continue };
            let drain_timeout = saved.drain_timeout_ns.map(Duration::from_nanos);
            let spec = Spec::gone(config, &saved.frontend, &saved.backend, address, drain_timeout);
            let frontend = registry.frontend(&Arc::from(&*saved.frontend));
            let entry = registry.backend_at(&frontend, &Arc::from(&*saved.backend), address);
            if !roster.watched.contains_key(&entry.id) {
                let known = KnownBefore::Saved(Box::new(saved.clone()));
                self.shared.watch(&mut roster, entry, spec, Beginning::new(known));
            }
        }
    }

    fn dismiss(&self, config: &Arc<Config>) {
        let mut roster = self.shared.roster();
        let registry = &self.shared.table.registry;
        for frontend in &config.frontends {
            let entry = registry.frontend(&frontend.name);
            for backend in &frontend.backends {
                if let Some(address) = fixed(&backend.address) {
                    self.shared.lead(&registry.backend_at(&entry, &backend.name, address));
                }
            }
        }
        let entries: Vec<_> = roster.watched.values().map(|watched| watched.entry.clone()).collect();
        for entry in &entries {
            if let Some(dismissal) = dismissal_of(entry, config)
                && roster.dismiss(entry, dismissal)
                && dismissal != Dismissal::Address
            {
                let (frontend, backend) = entry.full_name();
                self.shared.table.journal.record(What::BackendRemoved { frontend, backend });
            }
        }
        entries.iter().filter(|it| !it.is_former()).for_each(|it| self.shared.expire_oldest(&roster, it));
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        // The other tasks hold the shared state as well.
        self.shared.roster().watched.clear();
    }
}

impl Roster {
    /// Returns whether it was not dismissed before.
    fn dismiss(&mut self, entry: &BackendEntry, dismissal: Dismissal) -> bool {
        let Some(watched) = self.watched.get_mut(&entry.id) else { return false };
        let before = watched.removed.replace(dismissal);
        if before != Some(dismissal) {
            let _ = watched.commands.send(WatcherCommand::Remove(dismissal));
        }
        before.is_none()
    }
}

impl SharedHealth {
    fn watch(self: &Arc<Self>, roster: &mut Roster, entry: Arc<BackendEntry>, spec: Spec, beginning: Beginning) {
        let votes = roster.votes.entry(entry.frontend.id).or_default().clone();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (first, first_probed) = watch::channel(false);
        let watcher = Watcher::new(self.clone(), entry.clone(), spec, beginning, votes, inbox, first);
        let task = Tasks::default();
        task.spawn_on("health", watcher.run(), &self.runtime);
        let id = entry.id;
        roster.watched.insert(id, Watched { entry, commands, first_probed, _task: task, removed: None });
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a removed backend, unless a command for it has just come.
    fn retire(
        &self,
        entry: &BackendEntry,
        inbox: &mpsc::UnboundedReceiver<WatcherCommand>,
        with_frontend: bool,
    ) -> bool {
        let mut roster = self.roster();
        if !inbox.is_empty() {
            return false;
        }
        let registry = &self.table.registry;
        if !registry.forget_backend(entry.id) {
            return false;
        }
        roster.watched.remove(&entry.id);
        let frontend = entry.frontend.id;
        if with_frontend && !roster.watched.values().any(|watched| watched.entry.frontend.id == frontend) {
            roster.votes.remove(&frontend);
            registry.forget_frontend(frontend);
        }
        true
    }
}
