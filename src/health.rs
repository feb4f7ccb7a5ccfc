//! Active health checks: one task per backend probes it, lets the machine of [`crate::model::health`] judge, and
//! publishes what new flows should make of it.
//!
//! ```text
//!   config ──▶ Checker ── commands ──▶ watcher (one per backend) ──▶ BackendEntry: preference, ramp, HealthView
//!   operator ─▶   │                     │  ▲  ▲                 ├──▶ orders to reset flows
//!                 │                     ▼  │  └─ suspicion      └──▶ journal, log, metrics
//!                 └─ first_round      probe, DNS
//! ```

mod probe;
mod publish;
mod resolve;
mod surroundings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod votes;
mod watcher;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::essential;
use crate::metrics::Metrics;
use crate::model::health::machine::Arrival;
use crate::model::health::{Order, SavedBackend};
use crate::model::ids::{BackendId, FrontendId};
use crate::table::Table;
use crate::table::backend::BackendEntry;
use crate::table::journal::What;
use votes::Votes;
use watcher::{Beginning, Command, Spec, Watcher};

/// Watches over every backend. Dropping it stops all probes; the last standings stay.
#[derive(Debug)]
pub struct Checker {
    shared: Arc<Shared>,
    runtime: Handle,
}

/// An order was carried out; this is what is left to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Flows of the backend.
    pub active: u32,
    /// Monotonic ns at which they are reset, if they are.
    pub drain_deadline_ns: Option<u64>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OrderError {
    #[error("there is no backend {0}")]
    Unknown(String),
    #[error("{backend} is a backend of several frontends: {}", frontends.join(", "))]
    Ambiguous { backend: String, frontends: Vec<String> },
    #[error("backend {0} was removed, and its last flow has just ended")]
    Gone(String),
}

/// What the watchers share.
#[derive(Debug)]
struct Shared {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    roster: Mutex<Roster>,
}

#[derive(Debug, Default)]
struct Roster {
    watched: HashMap<BackendId, Watched>,
    votes: HashMap<FrontendId, Arc<Votes>>,
}

/// Where backends come from that were not watched so far.
enum Newcomers {
    /// The process starts; another may have known them.
    AtStart(Vec<SavedBackend>),
    ByReload,
}

#[derive(Debug)]
struct Watched {
    entry: Arc<BackendEntry>,
    commands: mpsc::UnboundedSender<Command>,
    first_probed: watch::Receiver<bool>,
    task: JoinHandle<()>,
    /// `Some` once a reload removed it: whether with its frontend.
    removed: Option<bool>,
}

impl Checker {
    /// Begins to probe the backends of `config` on `runtime`. When this returns, their entries exist and those with a
    /// fixed address have it.
    pub fn start(table: Arc<Table>, metrics: Arc<Metrics>, config: &Arc<Config>, runtime: Handle) -> Self {
        Self::resume(table, metrics, config, runtime, Vec::new())
    }

    /// As [`Checker::start`], but goes on with what another process knew of the backends.
    pub fn resume(
        table: Arc<Table>,
        metrics: Arc<Metrics>,
        config: &Arc<Config>,
        runtime: Handle,
        saved: Vec<SavedBackend>,
    ) -> Self {
        let shared = Arc::new(Shared { table, metrics, roster: Mutex::default() });
        let checker = Self { shared, runtime };
        let newcomers = Newcomers::AtStart(saved);
        checker.welcome(config, &newcomers);
        checker.see_off(config, &newcomers);
        checker.dismiss(config);
        checker
    }

    /// What is known of every backend, for the process that takes over.
    pub async fn save(&self) -> Vec<SavedBackend> {
        let ask = |watched: &Watched| {
            let (answer, answered) = oneshot::channel();
            let _ = watched.commands.send(Command::Save(answer));
            answered
        };
        let asked: Vec<_> = self.shared.roster().watched.values().map(ask).collect();
        let mut saved = Vec::new();
        for answered in asked {
            // An error means that the backend has just been forgotten.
            saved.extend(answered.await);
        }
        saved
    }

    /// Begins to probe what `config` adds, and lets the others go on under their new settings; nothing is removed yet.
    /// Call it before the workers learn of `config`, so that new backends have been probed when flows come to them.
    pub fn prepare(&self, config: &Arc<Config>) {
        self.welcome(config, &Newcomers::ByReload);
    }

    /// Goes over to `config`. Backends that stay keep their state; removed ones drain and are forgotten after their last
    /// flow. Call it after the workers have learnt of `config`, so that no flow is still to choose a removed backend.
    pub fn reconfigure(&self, config: &Arc<Config>) {
        self.prepare(config);
        self.dismiss(config);
    }

    /// The backend called `backend`. `frontend` may be left out where the name is used once.
    ///
    /// # Errors
    /// [`OrderError::Unknown`] and [`OrderError::Ambiguous`].
    pub fn find(&self, frontend: Option<&str>, backend: &str) -> Result<BackendId, OrderError> {
        let roster = self.shared.roster();
        let matches = |entry: &BackendEntry| {
            &*entry.name == backend && frontend.is_none_or(|frontend| &*entry.frontend.name == frontend)
        };
        let found: Vec<_> = roster.watched.values().map(|watched| &watched.entry).filter(|e| matches(e)).collect();
        match found.as_slice() {
            [one] => Ok(one.id),
            [] => {
                let frontend = frontend.map(|frontend| format!("{frontend}/")).unwrap_or_default();
                Err(OrderError::Unknown(format!("{frontend}{backend}")))
            }
            many => {
                let mut frontends: Vec<_> = many.iter().map(|entry| entry.frontend.name.to_string()).collect();
                frontends.sort_unstable();
                Err(OrderError::Ambiguous { backend: backend.into(), frontends })
            }
        }
    }

    /// Carries out an operator's order; when this returns, it shows.
    ///
    /// # Errors
    /// [`OrderError::Unknown`] and [`OrderError::Gone`].
    pub async fn order(&self, id: BackendId, order: Order) -> Result<Ordered, OrderError> {
        let (done, carried_out) = oneshot::channel();
        let entry = {
            let roster = self.shared.roster();
            let watched = roster.watched.get(&id).ok_or_else(|| OrderError::Unknown(format!("with id {id}")))?;
            let _ = watched.commands.send(Command::Order(order, done));
            watched.entry.clone()
        };
        carried_out.await.map_err(|_| OrderError::Gone(entry.name.to_string()))
    }

    /// Returns once the first probe of every backend has ended.
    pub async fn first_round(&self) {
        let rounds: Vec<_> =
            self.shared.roster().watched.values().map(|watched| watched.first_probed.clone()).collect();
        for mut round in rounds {
            // An error means that the backend was removed meanwhile.
            let _ = round.wait_for(|probed| *probed).await;
        }
    }

    fn welcome(&self, config: &Arc<Config>, newcomers: &Newcomers) {
        let registry = &self.shared.table.registry;
        // Held throughout, so that no removed backend is forgotten between being found and being restored.
        let mut roster = self.shared.roster();
        for frontend in &config.frontends {
            let frontend_entry = registry.frontend(&frontend.name);
            for backend in &frontend.backends {
                let entry = registry.backend(&frontend_entry, &backend.name);
                let spec = Spec::new(config, frontend, backend);
                match roster.watched.get_mut(&entry.id) {
                    Some(watched) => {
                        watched.removed = None;
                        let _ = watched.commands.send(Command::Configure(Box::new(spec)));
                    }
                    None => self.watch(&mut roster, entry, spec, newcomers),
                }
            }
        }
    }

    /// Watches also what `config` no longer has, until its last flow has ended: dismissed next, it drains as after a
    /// reload.
    fn see_off(&self, config: &Arc<Config>, newcomers: &Newcomers) {
        let Newcomers::AtStart(saved) = newcomers else { return };
        let registry = &self.shared.table.registry;
        let mut roster = self.shared.roster();
        for saved in saved {
            let Some(spec) = Spec::gone(config, saved) else { continue };
            let entry = registry.backend(&registry.frontend(&Arc::from(&*saved.frontend)), &Arc::from(&*saved.backend));
            if !roster.watched.contains_key(&entry.id) {
                self.watch(&mut roster, entry, spec, newcomers);
            }
        }
    }

    fn dismiss(&self, config: &Arc<Config>) {
        let mut roster = self.shared.roster();
        for watched in roster.watched.values_mut() {
            let (frontend, backend) = watched.entry.full_name();
            let kept = config.frontends.iter().find(|kept| *kept.name == *frontend);
            if kept.is_some_and(|kept| kept.backends.iter().any(|kept| *kept.name == *backend)) {
                continue;
            }
            if watched.removed.is_none() {
                self.shared.table.journal.record(What::BackendRemoved { frontend, backend });
            }
            let with_frontend = kept.is_none();
            if watched.removed.replace(with_frontend) != Some(with_frontend) {
                let _ = watched.commands.send(Command::Remove { with_frontend });
            }
        }
    }

    fn watch(&self, roster: &mut Roster, entry: Arc<BackendEntry>, spec: Spec, newcomers: &Newcomers) {
        let (frontend, backend) = entry.full_name();
        let beginning = match newcomers {
            Newcomers::ByReload => {
                self.shared.table.journal.record(What::BackendAdded { frontend, backend });
                Beginning::New(Arrival::ByReload)
            }
            Newcomers::AtStart(saved) => {
                let known = saved.iter().find(|saved| saved.frontend == frontend && saved.backend == backend);
                known.map_or(Beginning::New(Arrival::AtStart), |saved| Beginning::Saved(Box::new(saved.clone())))
            }
        };
        let votes = roster.votes.entry(entry.frontend.id).or_default().clone();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (first, first_probed) = watch::channel(false);
        let watcher = Watcher::new(self.shared.clone(), entry.clone(), spec, beginning, votes, inbox, first);
        let task = self.runtime.spawn(essential::task("health", watcher.run()));
        let id = entry.id;
        roster.watched.insert(id, Watched { entry, commands, first_probed, task, removed: None });
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.shared.roster().watched.values().for_each(|watched| watched.task.abort());
    }
}

impl Shared {
    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a removed backend, unless a command has just come for it.
    fn retire(&self, entry: &BackendEntry, inbox: &mpsc::UnboundedReceiver<Command>, with_frontend: bool) -> bool {
        let mut roster = self.roster();
        if !inbox.is_empty() {
            return false;
        }
        roster.watched.remove(&entry.id);
        let registry = &self.table.registry;
        registry.forget_backend(entry.id);
        let frontend = entry.frontend.id;
        if with_frontend && !roster.watched.values().any(|watched| watched.entry.frontend.id == frontend) {
            roster.votes.remove(&frontend);
            registry.forget_frontend(frontend);
        }
        true
    }
}
