//! Replaces this process: starts the new one, gives everything to it, and handles the result.

mod binary;
pub(super) mod new;
mod old;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use self::binary::BinaryProcess;
use self::old::{IDS_KEPT, RunningInstance, kill};
use super::Core;
use super::doors::OpenDoors;
use super::reload::Reloader;
use crate::admin::upgrade::{
    Checking, NotMoved, ToldGuard, UpgradeCheck, UpgradeFailed, UpgradeProgress, UpgradeRequest, Upgraded, Upgrading,
};
use crate::drain::LifePhase;
use crate::essential;
use crate::metrics::{Metrics, UpgradeLabels};
use crate::sys::broker::BinaryTask;
use crate::table::flows::IdShare;
use crate::table::journal::What;
use crate::upgrade::channel::Channel;
use crate::upgrade::message::Hello;
use crate::upgrade::source::{self, Deadlines, Other, SourceProgress, SourceStep, UpgradeFailure};

/// Time after which a new process that has flows and does not answer is killed: its clients must not wait for it for
/// ever.
const FAREWELL_MAX: Duration = Duration::from_secs(10);

/// Limit for another binary to report its versions, or to check a file.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Starts upgrades, one at a time.
pub(crate) struct Upgrader {
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    metrics: Arc<Metrics>,
    doors: Weak<OpenDoors>,
    /// The path of this process's binary: by now another file may be there, as an upgrade intends.
    binary: Option<PathBuf>,
}

/// Whether another process is taking, or has taken, this one's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    None,
    UnderWay,
    Done { pid: u32 },
}

/// The new process serves everything.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub pid: u32,
    /// Completes once the requester has been told of the upgrade.
    pub told: oneshot::Receiver<()>,
}

impl Upgrader {
    pub(crate) fn new(
        core: Arc<Core>,
        reloader: Arc<Reloader>,
        metrics: Arc<Metrics>,
        doors: Weak<OpenDoors>,
    ) -> Arc<Self> {
        let binary = std::env::current_exe().ok();
        Arc::new(Self { core, reloader, metrics, doors, binary })
    }

    /// Waits for the result of the upgrade that is under way, if one is.
    pub(crate) async fn settled(&self) -> Succession {
        let mut succession = self.core.succession.subscribe();
        // The sender lives as long as `self`, so there is no error.
        succession.wait_for(|now| *now != Succession::UnderWay).await.map_or(Succession::None, |now| *now)
    }

    /// Begins to replace this process.
    pub(crate) fn upgrade(self: &Arc<Self>, asked: UpgradeRequest) -> Result<Upgrading, UpgradeFailed> {
        let refused = |why: &str| UpgradeFailed { why: why.to_owned(), moved: 0 };
        match self.core.drain.watch().phase() {
            LifePhase::Serving => {}
            LifePhase::Starting => return Err(refused("it is still starting")),
            _ => return Err(refused("it is stopping")),
        }
        if self.core.evacuation.is_busy() {
            return Err(refused("an evacuation is under way or done; `baton evacuate --cancel` ends it"));
        }
        let (binary, config) = self.places(asked)?;
        let begun = |succession: &mut Succession| {
            let free = *succession == Succession::None;
            if free {
                *succession = Succession::UnderWay;
            }
            free
        };
        if !self.core.succession.send_if_modified(begun) {
            return Err(refused("another upgrade is under way"));
        }
        let (sender, progress) = watch::channel(UpgradeProgress::default());
        let upgrader = self.clone();
        let task = tokio::spawn(essential::task("upgrade", upgrader.run(binary, config, sender)));
        let outcome =
            Box::pin(
                async move { task.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic())) },
            );
        Ok(Upgrading { progress, outcome })
    }

    /// Whether an upgrade to the requested program would begin.
    pub(crate) fn check(&self, asked: UpgradeRequest) -> Checking {
        let (core, places) = (self.core.clone(), self.places(asked));
        Box::pin(async move {
            match places {
                Ok((binary, config)) => check(&core, binary, config).await,
                Err(failed) => UpgradeCheck {
                    binary: PathBuf::new(),
                    config: PathBuf::new(),
                    version: None,
                    obstacles: vec![failed.why],
                },
            }
        })
    }

    async fn run(
        self: Arc<Self>,
        binary: PathBuf,
        config: PathBuf,
        progress: watch::Sender<UpgradeProgress>,
    ) -> Result<(Upgraded, ToldGuard), UpgradeFailed> {
        // No reload may change anything during the upgrade.
        let _turn = self.reloader.hold().await;
        let [to, with] = [&binary, &config].map(|path| path.display().to_string());
        self.core.table.journal.record(What::UpgradeBegun { binary: to, config: with });
        // Otherwise the failover would remove an address on `lo` that flows of the new process need.
        self.core.ports.fleet.set_succeeded(true);
        let (upgrader, runtime) = (self.clone(), Handle::current());
        let handed =
            tokio::task::spawn_blocking(move || upgrader.move_to_new_process(&binary, &config, runtime, progress))
                .await;
        match handed.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic())) {
            Ok((pid, progress)) => Ok(self.done(pid, progress)),
            Err(failed) => {
                self.core.ports.fleet.set_succeeded(false);
                self.core.ports.vip.take_again();
                self.core.offload.resume();
                self.core.peers.come_back().await;
                self.metrics.upgrades.outcomes.get_or_create(&UpgradeLabels { outcome: "failed" }).inc();
                let (why, moved) = (failed.why.clone(), failed.moved);
                self.core.table.journal.record(What::UpgradeFailed { why, moved });
                // Before a waiting reload gets its turn.
                self.core.succession.send_replace(Succession::None);
                Err(failed)
            }
        }
    }

    fn move_to_new_process(
        &self,
        binary: &Path,
        config: &Path,
        runtime: Handle,
        progress: watch::Sender<UpgradeProgress>,
    ) -> Result<(u32, SourceProgress), UpgradeFailed> {
        let failed =
            |error: io::Error| UpgradeFailed { why: format!("cannot start {}: {error}", binary.display()), moved: 0 };
        let (near, far) = Channel::pair().map_err(failed)?;
        let child = BinaryProcess::successor(binary, config, far).map_err(failed)?;
        let doors = self.doors.upgrade().unwrap_or_default();
        let mut old_process = RunningInstance::new(self.core.clone(), doors, child, runtime, progress);
        let channel = match Channel::new(near) {
            Ok(channel) => channel,
            Err(error) => {
                kill(&mut old_process.child);
                return Err(UpgradeFailed { why: error.to_string(), moved: 0 });
            }
        };
        match source::give(&channel, &mut old_process, &Deadlines::default()) {
            Ok(progress) => Ok((old_process.child.id(), progress)),
            Err(failure) => {
                let UpgradeFailure { progress, other, .. } = &*failure;
                let (moved, why) = (progress.moved, explain(&failure, &mut old_process.child));
                self.core.go_on_alone(failure.step >= SourceStep::Begin);
                if *other != Other::Dead {
                    attend(channel, old_process.child, *other);
                }
                Err(UpgradeFailed { why, moved })
            }
        }
    }

    fn done(&self, pid: u32, progress: SourceProgress) -> (Upgraded, ToldGuard) {
        let not_moved = progress.refused.into_iter().map(|refused| NotMoved { flow: refused.flow, why: refused.why });
        let upgraded = Upgraded {
            old_pid: std::process::id(),
            new_pid: pid,
            old_version: env!("CARGO_PKG_VERSION").to_owned(),
            new_version: progress.version,
            moved: progress.moved,
            held_bytes: progress.held_bytes,
            longest_pause_us: progress.longest_pause.as_micros() as u64,
            took_us: progress.took.as_micros() as u64,
            not_moved: not_moved.collect(),
        };
        tracing::info!(
            pid,
            moved = upgraded.moved,
            not_moved = upgraded.not_moved.len(),
            longest_pause_us = upgraded.longest_pause_us,
            took_us = upgraded.took_us,
            "upgrade done: the new process serves all flows"
        );
        let (tell, told) = oneshot::channel();
        self.core.succession.send_replace(Succession::Done { pid });
        self.core.replacement.send_replace(Some(Replacement { pid, told }));
        (upgraded, ToldGuard(tell))
    }

    fn places(&self, asked: UpgradeRequest) -> Result<(PathBuf, PathBuf), UpgradeFailed> {
        let why = "it does not know the path of its own binary; name one with --binary";
        let unknown = || UpgradeFailed { why: why.to_owned(), moved: 0 };
        let binary = asked.binary.or_else(|| self.binary.clone()).ok_or_else(unknown)?;
        Ok((binary, asked.config.unwrap_or_else(|| self.reloader.path().to_owned())))
    }
}

impl Core {
    /// After a failed upgrade. `begun`: the new process may have given ids to flows that it serves.
    fn go_on_alone(&self, begun: bool) {
        self.proxy.forget_other_process();
        let flows = &self.table.flows;
        if begun {
            flows.begin_ids_at(flows.next_id() + 2 * IDS_KEPT);
        }
        flows.share_ids(IdShare::All);
    }

    /// Whether orders would get lost between two processes.
    pub(crate) fn is_upgrading(&self) -> bool {
        *self.succession.borrow() != Succession::None
    }
}

/// The failure in words, and how the new process ended if it has.
fn explain(failure: &UpgradeFailure, child: &mut BinaryProcess) -> String {
    match child.try_wait() {
        Ok(Some(status)) if !matches!(failure.why, source::Why::Refused(_)) => format!("{failure} ({status})"),
        _ => failure.to_string(),
    }
}

/// Handles a new process that has only a part of the flows.
fn attend(channel: Channel, mut child: BinaryProcess, other: Other) {
    let attend = move || {
        let pid = child.id();
        match if other == Other::Silent { source::farewell(&channel, FAREWELL_MAX) } else { other } {
            Other::Serves(flows) => tracing::warn!(
                pid,
                flows,
                "the upgrade failed; the new process serves the flows that it has, then exits"
            ),
            Other::Dead => {}
            Other::Silent => {
                tracing::error!(
                    pid,
                    "the new process does not answer: this process kills it, so that no client waits for it"
                );
                kill(&mut child);
            }
        }
        drop(channel);
        let _ = child.wait();
    };
    let spawned = std::thread::Builder::new().name("upgrade-attend".to_owned()).spawn(attend);
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start the thread that waits for the new process to exit");
    }
}

async fn check(core: &Core, binary: PathBuf, config: PathBuf) -> UpgradeCheck {
    let mut obstacles = Vec::new();
    let mut version = None;
    match answer(&binary, &config, BinaryTask::Version).await {
        Ok(output) => match serde_json::from_slice::<Hello>(&output.stdout) {
            Ok(hello) => {
                if hello.common_protocol().is_none() {
                    let (min, max) = (hello.protocol_min, hello.protocol_max);
                    obstacles.push(source::Why::Protocol { version: hello.version.clone(), min, max }.to_string());
                }
                obstacles.extend(core.offload.obstacle(hello.path.as_ref()));
                version = Some(hello.version);
            }
            Err(_) => obstacles.push(format!(
                "{} cannot take part in an upgrade: {}",
                binary.display(),
                last_line(&output.stderr)
            )),
        },
        Err(error) => obstacles.push(format!("cannot run {}: {error}", binary.display())),
    }
    if obstacles.is_empty() {
        match answer(&binary, &config, BinaryTask::Check).await {
            Ok(output) if output.status.success() => {}
            Ok(output) => obstacles.extend(String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned)),
            Err(error) => obstacles.push(format!("cannot run {}: {error}", binary.display())),
        }
    }
    UpgradeCheck { binary, config, version, obstacles }
}

async fn answer(binary: &Path, config: &Path, task: BinaryTask) -> io::Result<Output> {
    let (binary, config) = (binary.to_owned(), config.to_owned());
    let answered = essential::aside(move || binary::answer(&binary, &config, task, CHECK_MAX)).await;
    answered.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it printed no error").to_owned()
}
