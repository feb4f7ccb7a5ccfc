//! From a changed file to a changed instance, or to no change at all.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::doors::OpenDoors;
use super::{Core, changes};
use crate::admin::control::{ConfigState, LastReload, ReloadRefused};
use crate::admin::diff::ConfigChange;
use crate::admin::doors::OpenDoorError;
use crate::admin::protocol::{LoadedBefore, Reloaded};
use crate::config::{self, Config, Diagnostic, FileFault, Log, Rejected, UnreadFile};
use crate::drain::LifePhase;
use crate::essential;
use crate::metrics::{Metrics, ReloadLabels};
use crate::proxy::{Bindings, ProxyError};
use crate::sys::clock::unix_ms;
use crate::table::journal::What;

/// How long new backends may take for their first probe before flows go there.
const FIRST_ROUND_MAX: Duration = Duration::from_secs(2);

/// How often, and how many times, the reload checks whether all workers follow: a worker that hangs must not block it
/// for ever.
const FOLLOW_CHECK_EVERY: Duration = Duration::from_millis(1);
const FOLLOW_CHECKS_MAX: u32 = 1000;

/// Who orders a reload so long after Baton has loaded the file by itself may have just edited it.
const A_MOMENT_MS: u64 = 60_000;

/// Why a reload was refused. The running configuration stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// One line for each error in the file.
    #[error("the file has {} errors", .0.len())]
    Invalid(Vec<Diagnostic>),
    /// One line for each key, with the command that can.
    #[error("a reload cannot change {} settings", .0.len())]
    NotByReload(Vec<String>),
    /// The file, or one that it names; it may be well.
    #[error(transparent)]
    Unread(UnreadFile),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(transparent)]
    Door(#[from] OpenDoorError),
    #[error("the instance is stopping")]
    Stopping,
    #[error("an upgrade is under way, and the new process reads the file itself; repeat the reload in a moment")]
    Upgrading,
}

impl ReloadError {
    /// A line for each error.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid(findings) => findings.iter().map(ToString::to_string).collect(),
            Self::NotByReload(lines) => lines.clone(),
            other => vec![other.to_string()],
        }
    }
}

impl From<Rejected> for ReloadError {
    fn from(rejected: Rejected) -> Self {
        match rejected.only_unread() {
            Some(file) => Self::Unread(file.clone()),
            None => Self::Invalid(rejected.errors),
        }
    }
}

impl From<ReloadError> for ReloadRefused {
    fn from(error: ReloadError) -> Self {
        if let ReloadError::Unread(file) = error {
            return Self::Unread { why: file.to_string() };
        }
        let errors = error.lines();
        let findings = if let ReloadError::Invalid(findings) = error { findings } else { Vec::new() };
        Self::Invalid { errors, findings }
    }
}

type ApplyLog = Box<dyn Fn(&Log) + Send + Sync>;

/// Reloads one at a time.
pub(crate) struct Reloader {
    core: Arc<Core>,
    metrics: Arc<Metrics>,
    path: PathBuf,
    doors: Weak<OpenDoors>,
    /// Locked during a whole reload.
    turn: tokio::sync::Mutex<()>,
    log: OnceLock<ApplyLog>,
    inner: Mutex<Inner>,
}

struct Inner {
    last: LastReload,
    /// Nobody ordered the last reload.
    is_by_itself: bool,
    /// The content of the file when it was last read, valid or not.
    bytes: Option<Vec<u8>>,
    /// The running configuration as the file has it, without discovered backends.
    file: Config,
}

impl Inner {
    /// What the last reload changed, if it is a moment ago and nobody ordered it.
    fn loaded_lately(&self) -> Option<LoadedBefore> {
        match &self.last {
            LastReload::Taken { at_unix_ms, changes }
                if self.is_by_itself && !changes.is_empty() && at_unix_ms + A_MOMENT_MS >= unix_ms() =>
            {
                Some(LoadedBefore { at_unix_ms: *at_unix_ms, changes: changes.clone() })
            }
            _ => None,
        }
    }
}

impl Reloader {
    pub(super) fn new(
        core: Arc<Core>,
        metrics: Arc<Metrics>,
        path: &Path,
        file: Config,
        doors: Weak<OpenDoors>,
    ) -> Arc<Self> {
        metrics.last_reload_successful.set(1);
        metrics.last_reload_success_time.set(unix_ms() as i64 / 1000);
        let inner = Inner { last: LastReload::None, is_by_itself: false, bytes: config::read_file(path).ok(), file };
        Arc::new(Self {
            core,
            metrics,
            path: path.to_owned(),
            doors,
            turn: tokio::sync::Mutex::new(()),
            log: OnceLock::new(),
            inner: Mutex::new(inner),
        })
    }

    /// Blocks every reload as long as the guard exists.
    pub(crate) async fn hold(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Has `apply` called with the log's settings after each reload: once the reload is in the log, so that a quieter log
    /// has it, and before the answer to who ordered it. Call it once; a second call has no effect.
    pub(crate) fn set_log(&self, apply: impl Fn(&Log) + Send + Sync + 'static) {
        let _ = self.log.set(Box::new(apply));
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn state(&self) -> ConfigState {
        ConfigState { path: self.path.clone(), last_reload: self.inner().last.clone() }
    }

    /// Reads the file and applies it. Returns the changes, or why it was refused; without changes those that Baton applied by itself a moment
    /// before. Logs, records and counts the result, except for a refusal because of an upgrade.
    ///
    /// # Errors
    /// [`ReloadError`]. During an upgrade it returns that at once: an answer after the upgrade would come from a
    /// process that is about to exit.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<Reloaded, ReloadError> {
        if self.core.is_upgrading() {
            return Err(ReloadError::Upgrading);
        }
        // A task of its own, so that a reload completes even if its caller goes away.
        let reloader = self.clone();
        let reload = tokio::spawn(essential::task("reload", async move {
            let _turn = reloader.turn.lock().await;
            let read = reloader.read().await;
            let before = reloader.inner().loaded_lately();
            let outcome = reloader.reload_in_turn(read).await;
            reloader.inner().is_by_itself = false;
            outcome.map(|changes| Reloaded { loaded_before: before.filter(|_| changes.is_empty()), changes })
        }));
        match reload.await {
            Ok(outcome) => outcome,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// As [`Reloader::reload`], if the file has other content than at the last read. It is read once: the content that
    /// is compared is the content that is applied.
    pub(crate) async fn reload_if_changed(self: &Arc<Self>) {
        if self.core.is_upgrading() {
            return;
        }
        let reloader = self.clone();
        let reload = tokio::spawn(essential::task("reload", async move {
            let _turn = reloader.turn.lock().await;
            let read = reloader.read().await;
            if reloader.differs(&read) {
                tracing::info!(path = %reloader.path.display(), "the configuration file has changed; Baton reloads it");
                // It logs and records the result.
                let is_taken = reloader.reload_in_turn(read).await.is_ok();
                reloader.inner().is_by_itself = is_taken;
            }
        }));
        if let Err(panicked) = reload.await {
            std::panic::resume_unwind(panicked.into_panic());
        }
    }

    async fn read(&self) -> Result<Vec<u8>, FileFault> {
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || config::read_file(&path)).await.expect("reading does not panic")
    }

    /// Whether the file has other content than at the last read. A file that is missing or cannot be read counts as
    /// unchanged: somebody may be replacing it.
    fn differs(&self, read: &Result<Vec<u8>, FileFault>) -> bool {
        match read {
            Ok(bytes) => self.inner().bytes.as_deref() != Some(&bytes[..]),
            // Refused once, and then not again until it is a regular file again.
            Err(FileFault::TooLarge | FileFault::NotRegular | FileFault::Directory) => self.inner().bytes.is_some(),
            Err(FileFault::Missing | FileFault::NotPermitted | FileFault::Unanswered(_) | FileFault::Unreadable(_)) => {
                false
            }
        }
    }

    /// The caller has the turn.
    async fn reload_in_turn(&self, read: Result<Vec<u8>, FileFault>) -> Result<Vec<String>, ReloadError> {
        let outcome = self.apply(read).await;
        match &outcome {
            Ok(changes) => {
                self.core.table.journal.record(What::Reloaded { changes: changes.clone() });
                if let Some(apply) = self.log.get() {
                    apply(&self.core.config.load().log);
                }
                self.core.ports.offload.want_retry();
                self.metrics.last_reload_success_time.set(unix_ms() as i64 / 1000);
                self.inner().last = LastReload::Taken { at_unix_ms: unix_ms(), changes: changes.clone() };
            }
            Err(error) => {
                let errors = error.lines();
                self.core.table.journal.record(What::ReloadRefused { errors: errors.clone() });
                self.inner().last = LastReload::Refused { at_unix_ms: unix_ms(), errors };
            }
        }
        self.metrics.last_reload_successful.set(i64::from(outcome.is_ok()));
        let label = if outcome.is_ok() { "success" } else { "failure" };
        self.metrics.reloads.get_or_create(&ReloadLabels { outcome: label }).inc();
        outcome
    }

    async fn apply(&self, read: Result<Vec<u8>, FileFault>) -> Result<Vec<String>, ReloadError> {
        if self.core.drain.watch().phase() > LifePhase::Serving {
            return Err(ReloadError::Stopping);
        }
        // The upgrade had its turn first, and has succeeded.
        if self.core.is_upgrading() {
            return Err(ReloadError::Upgrading);
        }
        self.inner().bytes = read.as_ref().ok().cloned();
        let path = self.path.clone();
        // It reads the certificate files.
        let loaded = tokio::task::spawn_blocking(move || config::check(&path, read));
        let loaded = loaded.await.expect("the loader does not panic");
        let loaded = loaded?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let found = self.core.discovered.sets_for(&loaded.config).await;
        let (old, new) = (self.core.config.load_full(), Arc::new(loaded.config.with_found(&found)));
        let Compared { changes, refused } = compared(&self.core, &old, &new);
        if !refused.is_empty() {
            return Err(ReloadError::NotByReload(refused));
        }
        let changes = changes.into_iter().map(|change| change.words).collect();
        let doors = self.doors.upgrade().unwrap_or_default();
        let prepared = doors.prepare(&new.admin)?;
        let bindings = self.core.proxy.bind(&new)?;
        self.core.discovered.begin(&loaded.config, found);
        self.inner().file = loaded.config;
        self.change_over(&old, new, bindings).await;
        prepared.map_or(Ok(()), |prepared| doors.change(prepared))?;
        Ok(changes)
    }

    /// Applies what has been discovered. Does nothing if that is in force already.
    ///
    /// # Errors
    /// As [`Reloader::reload`]; the caller tries again.
    pub(super) async fn follow_discovered(&self) -> Result<(), ReloadError> {
        let _turn = self.turn.lock().await;
        if self.core.drain.watch().phase() > LifePhase::Serving {
            return Err(ReloadError::Stopping);
        }
        if self.core.is_upgrading() {
            return Err(ReloadError::Upgrading);
        }
        let new = Arc::new(self.inner().file.with_found(&self.core.discovered.sets()));
        let old = self.core.config.load_full();
        if *new != *old {
            let bindings = self.core.proxy.bind(&new)?;
            self.change_over(&old, new, bindings).await;
            self.core.ports.offload.want_retry();
        }
        Ok(())
    }

    /// The caller has the turn.
    async fn change_over(&self, old: &Config, new: Arc<Config>, bindings: Bindings) {
        // Nothing can fail from here on. New backends are probed before their first flow, and removed ones serve until
        // no worker can choose them any more: so even exchanging all of them fails no connect.
        self.core.checker.prepare(&new);
        let _ = tokio::time::timeout(FIRST_ROUND_MAX, self.core.checker.first_round()).await;
        let version = self.core.proxy.reconfigure(&new, bindings);
        for _ in 0..FOLLOW_CHECKS_MAX {
            if self.core.proxy.follows(version) {
                break;
            }
            tokio::time::sleep(FOLLOW_CHECK_EVERY).await;
        }
        self.core.checker.reconfigure(&new);
        self.core.offload.follow(old.offload.mode, new.offload.mode);
        self.core.config.store(new.clone());
        self.core.latest.send_replace(new);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The difference between two configurations.
pub(super) struct Compared {
    pub changes: Vec<ConfigChange>,
    /// Changes that need another command, a sentence each. With any, a reload changes nothing.
    pub refused: Vec<String>,
}

/// What a reload from `old` to `new` changes, and what it cannot change.
pub(super) fn compared(core: &Core, old: &Config, new: &Config) -> Compared {
    let mut refused = changes::refused(old, new, core.offload.is_there());
    refused.extend(changes::refused_ports(&core.proxy.contradicts(new)));
    Compared { changes: changes::between(old, new), refused }
}
