//! Stand-ins as child processes, which can be killed, stopped and brought back.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

use super::guard::Guard;
use super::space::NetSpace;
use crate::addr::BackendAddr;
use crate::lab::certs::CertFiles;
use crate::lab::stand_in::LISTENING;
use crate::sys::process::ProcessHandle;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("starting stand-in {name}: {source}")]
    Start { name: String, source: io::Error },
    #[error("stand-in {name} ended, or did not say where it listens, within {} s", START_TIMEOUT.as_secs())]
    Silent { name: String },
    #[error("signalling stand-in {name}: {source}")]
    Signal { name: String, source: io::Error },
}

/// The last action on a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Running,
    /// It runs, and its /readyz answers 500.
    NotReady,
    /// SIGSTOP: its kernel accepts connections, and the process answers nothing. `ready`: the answer of its /readyz
    /// once it continues.
    Hung {
        ready: bool,
    },
    /// SIGTERM: not ready for its shutdown delay, then it ends in order.
    Terminating,
    Killed,
}

impl Condition {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::NotReady => "not ready",
            Self::Hung { .. } => "hung",
            Self::Terminating => "ending",
            Self::Killed => "killed",
        }
    }
}

/// How to start a stand-in.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The `baton` binary.
    pub program: PathBuf,
    pub name: String,
    pub certs: CertFiles,
    /// Zero: watches send nothing.
    pub watch_period: Duration,
    /// Time after SIGTERM for which it serves but is not ready.
    pub shutdown_delay: Duration,
    /// `None`: in the network of this process.
    pub space: Option<NetSpace>,
}

/// A stand-in's process. Dropping it kills it, even if it is stopped.
#[derive(Debug)]
pub struct StandInProcess {
    recipe: Recipe,
    address: BackendAddr,
    condition: Condition,
    /// `None` once it was killed and reaped.
    child: Option<Reaper>,
}

impl StandInProcess {
    /// Starts it on `address`, where port 0 takes a free one, and waits until it listens.
    pub async fn start(recipe: Recipe, address: SocketAddr, guard: Option<&mut Guard>) -> Result<Self, ProcessError> {
        let (child, address) = spawn(&recipe, address, guard).await?;
        Ok(Self { recipe, address, condition: Condition::Running, child: Some(child) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.recipe.name
    }

    pub fn address(&self) -> BackendAddr {
        self.address
    }

    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child = None;
        self.condition = Condition::Killed;
    }

    /// SIGSTOP.
    pub fn hang(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::STOP)?;
        if let Condition::Running | Condition::NotReady = self.condition {
            self.condition = Condition::Hung { ready: self.condition == Condition::Running };
        }
        Ok(())
    }

    /// SIGCONT after a hang.
    pub fn resume(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::CONT)?;
        if let Condition::Hung { ready } = self.condition {
            self.condition = if ready { Condition::Running } else { Condition::NotReady };
        }
        Ok(())
    }

    /// SIGTERM, as when an apiserver is upgraded.
    pub fn terminate(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::TERM)?;
        if let Condition::Running | Condition::NotReady = self.condition {
            self.condition = Condition::Terminating;
        }
        Ok(())
    }

    /// Switches its /readyz; if it hangs, the switch takes effect once it continues.
    pub fn set_ready(&mut self, ready: bool) -> Result<(), ProcessError> {
        self.signal(if ready { Signal::USR2 } else { Signal::USR1 })?;
        self.condition = match self.condition {
            Condition::Running | Condition::NotReady if ready => Condition::Running,
            Condition::Running | Condition::NotReady => Condition::NotReady,
            Condition::Hung { .. } => Condition::Hung { ready },
            Condition::Terminating | Condition::Killed => self.condition,
        };
        Ok(())
    }

    /// Starts it again on its old address, after any action.
    pub async fn restart(&mut self, guard: Option<&mut Guard>) -> Result<(), ProcessError> {
        self.kill();
        let (child, _) = spawn(&self.recipe, self.address.socket_addr(), guard).await?;
        self.child = Some(child);
        self.condition = Condition::Running;
        Ok(())
    }

    /// Does nothing to a process that was killed.
    fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        let Some(child) = &self.child else { return Ok(()) };
        kill_process(child.pid(), signal)
            .map_err(|errno| ProcessError::Signal { name: self.recipe.name.clone(), source: errno.into() })
    }
}

async fn spawn(
    recipe: &Recipe,
    address: SocketAddr,
    guard: Option<&mut Guard>,
) -> Result<(Reaper, BackendAddr), ProcessError> {
    let failed = |source| ProcessError::Start { name: recipe.name.clone(), source };
    let mut command = Command::new(&recipe.program);
    command
        .args(["stand-in", "--name", &recipe.name, "--listen", &address.to_string()])
        .args(["--watch-period", &format!("{}ms", recipe.watch_period.as_millis())])
        .args(["--shutdown-delay", &format!("{}ms", recipe.shutdown_delay.as_millis())])
        .arg("--cert")
        .arg(&recipe.certs.cert)
        .arg("--key")
        .arg(&recipe.certs.key)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A process group of its own: Ctrl-C in the terminal is for the demo, which ends the stand-ins in its own way.
        .process_group(0);
    let child = match &recipe.space {
        Some(space) => space.inside(|| command.spawn()),
        None => command.spawn(),
    };
    let child = child.map_err(failed)?;
    if let Some(guard) = guard {
        let _ = guard.take(&child);
    }
    let mut child = Reaper(child);
    let silent = || ProcessError::Silent { name: recipe.name.clone() };
    let stdout = child.0.stdout.take().ok_or_else(silent)?;
    // If no line comes, the reaper kills the child, which ends the reading thread too.
    let line = tokio::task::spawn_blocking(|| BufReader::new(stdout).lines().next());
    let line = tokio::time::timeout(START_TIMEOUT, line).await.map_err(|_| silent())?;
    let address = line
        .ok()
        .flatten()
        .and_then(Result::ok)
        .and_then(|line| line.strip_prefix(LISTENING)?.parse().ok())
        .ok_or_else(silent)?;
    Ok((child, BackendAddr::new(address)))
}

/// A child that is killed and reaped when dropped. SIGKILL ends a stopped process too.
#[derive(Debug)]
pub(crate) struct Reaper(pub Child);

impl Reaper {
    /// Valid until this is dropped: a process that was not reaped keeps its number.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process of Baton: a child, or the process that an upgrade has put in its place. Dropping this kills both.
#[derive(Debug)]
pub(crate) struct BatonProcess {
    child: Reaper,
    successor: Option<UpgradedProcess>,
    /// Since when no process is known to run.
    gone: Option<Instant>,
}

impl BatonProcess {
    pub(crate) fn new(child: Child) -> Self {
        Self { child: Reaper(child), successor: None, gone: None }
    }

    /// The exit status of the child, if it has ended and no other process is in its place. `answers`: the process that answers for the
    /// instance now; 0: none has answered yet.
    pub(crate) fn ended(&mut self, answers: u32, guard: &mut Guard) -> Option<ExitStatus> {
        let status = self.child.0.try_wait().ok().flatten()?;
        if self.successor_runs() {
            return None;
        }
        if answers != 0 && answers != self.pid() && self.replaced_by(answers) {
            let _ = guard.take_process(answers);
            return None;
        }
        // After an upgrade the other process answers a moment later.
        let since = self.gone.get_or_insert_with(Instant::now);
        (!status.success() || since.elapsed() >= REPLACED_MAX).then_some(status)
    }

    /// An upgrade has put the process `pid` in this one's place. Returns whether it runs.
    pub(crate) fn replaced_by(&mut self, pid: u32) -> bool {
        let Ok(successor) = UpgradedProcess::open(pid) else { return false };
        (self.successor, self.gone) = (Some(successor), None);
        self.successor_runs()
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let _ = kill_process(self.child.pid(), Signal::TERM);
        self.successor.iter().for_each(|it| it.signal(Signal::TERM));
    }

    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None)) || self.successor_runs()
    }

    /// That of the process that was in place last.
    fn pid(&self) -> u32 {
        self.successor.as_ref().map_or(self.child.0.id(), |it| it.pid)
    }

    fn successor_runs(&self) -> bool {
        self.successor.as_ref().is_some_and(|it| !it.has_ended())
    }
}

#[derive(Debug)]
struct UpgradedProcess {
    pid: u32,
    handle: ProcessHandle,
}

impl UpgradedProcess {
    fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, handle: ProcessHandle::open(pid)? })
    }

    fn has_ended(&self) -> bool {
        self.handle.ends_within(Duration::ZERO)
    }

    fn signal(&self, signal: Signal) {
        let _ = self.handle.signal(signal);
    }
}

impl Drop for UpgradedProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Limit for the first answer of the process that an upgrade has put in the child's place.
const REPLACED_MAX: Duration = Duration::from_secs(3);

const START_TIMEOUT: Duration = Duration::from_secs(10);
