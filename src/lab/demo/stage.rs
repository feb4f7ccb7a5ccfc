//! Starts and ends everything in the demo: stand-ins, Baton before them, kubelet-like clients before Baton.

use std::fs::DirBuilder;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::baton::status::{self, DemoStatus};
use super::baton::{Baton, DemoOrderError, DemoPlaces, DemoStartError};
use super::guard::{DIR_PREFIX, Guard};
use super::process::{Condition, ProcessError, Recipe, StandInProcess};
use crate::addr::VipAddr;
use crate::lab::bind;
use crate::lab::certs::{Authority, CertError, Flaw};
use crate::lab::kubelet::{Kubelet, KubeletSettings, Observed, Summary};
use crate::lab::tls::{self, TlsFileError};
use crate::sys::clock::now_ns;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    #[error("a directory for the demo's files: {0}")]
    Dir(#[source] io::Error),
    #[error("the guard process: {0}")]
    Guard(#[source] io::Error),
    #[error("finding this program: {0}")]
    Program(#[source] io::Error),
    #[error("no free port: {0}")]
    Port(#[source] io::Error),
    #[error(transparent)]
    Certs(#[from] CertError),
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error(transparent)]
    StandIn(#[from] ProcessError),
    #[error(transparent)]
    Baton(#[from] DemoStartError),
    #[error("Baton ended with {status} instead of serving. Its last words:\n{last_words}")]
    BatonEnded { status: std::process::ExitStatus, last_words: String },
    #[error("Baton did not find all stand-ins ready within {} s. Its last words:\n{last_words}", READY_TIMEOUT.as_secs())]
    NotReady { last_words: String },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Order(#[from] DemoOrderError),
}

/// An action on a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandInAction {
    Kill,
    /// SIGTERM, as when it is upgraded.
    Terminate,
    Hang,
    Resume,
    ToggleReady,
    Drain,
    Undrain,
    /// Undoes any action.
    BringBack,
}

/// A client and its events.
#[derive(Debug)]
pub(super) struct DemoClient {
    pub kubelet: Kubelet,
    /// The moment from which it counts the times of its events.
    pub start_ns: u64,
    pub observed: mpsc::UnboundedReceiver<Observed>,
}

impl DemoClient {
    /// Starts a client on the current runtime.
    pub(super) fn start(settings: KubeletSettings) -> Self {
        let start_ns = now_ns();
        let (kubelet, observed) = Kubelet::start(settings);
        Self { kubelet, start_ns, observed }
    }
}

/// All processes and tasks of the demo. Dropping it ends them, in the order of the fields.
#[derive(Debug)]
pub(super) struct DemoStage {
    pub clients: Vec<DemoClient>,
    pub status: watch::Receiver<DemoStatus>,
    baton: Baton,
    pub stand_ins: Vec<StandInProcess>,
    _dir: Dir,
    guard: Guard,
}

impl DemoStage {
    /// Starts everything and returns once Baton finds all stand-ins ready. The status page is at `http`, or at the next
    /// free port.
    pub(super) async fn start(http: SocketAddr, kubelets: usize) -> Result<Self, StageError> {
        let program = std::env::current_exe().map_err(StageError::Program)?;
        let dir = Dir::create("").map_err(StageError::Dir)?;
        let mut guard = Guard::start(&program, &dir.0).map_err(StageError::Guard)?;
        let authority = Authority::new()?;
        let ca = authority.write(&dir.0)?;

        let mut stand_ins = Vec::new();
        for name in STAND_INS {
            let recipe = Recipe {
                program: program.clone(),
                name: name.to_owned(),
                certs: authority.issue(&dir.0, name, &[], Flaw::None)?,
                watch_period: WATCH_PERIOD,
                shutdown_delay: SHUTDOWN_DELAY,
                space: None,
            };
            let address = bind::free_address().map_err(StageError::Port)?;
            stand_ins.push(StandInProcess::start(recipe, address, Some(&mut guard)).await?);
        }

        let places = DemoPlaces {
            program,
            frontend: VipAddr::new(bind::free_address().map_err(StageError::Port)?),
            http: bind::free_from(http).map_err(StageError::Port)?,
            socket: dir.0.join("admin.sock"),
            config: dir.0.join("baton.toml"),
            log: dir.0.join("baton.log"),
        };
        let mut baton = Baton::start(places, &ca, &stand_ins, &mut guard)?;
        let mut status = status::follow(baton.places().http);
        until_ready(&mut baton, &mut status, &mut guard).await?;

        let tls = tls::client_config(&ca)?;
        let frontend = baton.places().frontend;
        let clients = (1..=kubelets)
            .map(|number| DemoClient::start(KubeletSettings::new(frontend, tls.clone(), format!("node-{number}"))))
            .collect();
        Ok(Self { clients, status, baton, stand_ins, _dir: dir, guard })
    }

    pub(super) fn places(&self) -> &DemoPlaces {
        self.baton.places()
    }

    /// The figures of all clients.
    pub(super) fn summaries(&self) -> Vec<Summary> {
        self.clients.iter().map(|client| client.kubelet.summary()).collect()
    }

    /// Why Baton has ended, if it has.
    pub(super) fn baton_ended(&mut self) -> Option<StageError> {
        let answers = self.status.borrow().instance.pid;
        let status = self.baton.ended(answers, &mut self.guard)?;
        Some(StageError::BatonEnded { status, last_words: self.baton.last_words() })
    }

    /// Carries out `action` on a stand-in and returns a sentence about it.
    pub(super) async fn act(&mut self, target: usize, action: StandInAction) -> Result<String, ActError> {
        let Self { stand_ins, baton, guard, .. } = self;
        let stand_in = &mut stand_ins[target];
        let name = stand_in.name().to_owned();
        Ok(match (action, stand_in.condition()) {
            (StandInAction::Drain, _) => {
                baton.order("drain", &name).await?;
                format!("baton drain {name}")
            }
            (StandInAction::Undrain, _) => {
                baton.order("undrain", &name).await?;
                format!("baton undrain {name}")
            }
            (StandInAction::BringBack, condition) => {
                match condition {
                    Condition::Killed | Condition::Terminating => stand_in.restart(Some(guard)).await?,
                    Condition::Hung { .. } | Condition::NotReady => {
                        stand_in.resume()?;
                        stand_in.set_ready(true)?;
                    }
                    Condition::Running => {}
                }
                baton.order("undrain", &name).await?;
                format!("brought {name} back")
            }
            (_, Condition::Killed) => format!("{name} is dead: bring it back first"),
            (StandInAction::Kill, _) => {
                stand_in.kill();
                format!("killed {name} (SIGKILL)")
            }
            (StandInAction::Terminate, _) => {
                stand_in.terminate()?;
                format!("told {name} to end (SIGTERM): it is unready for {} s first", SHUTDOWN_DELAY.as_secs())
            }
            (StandInAction::Hang, _) => {
                stand_in.hang()?;
                format!("hung {name} (SIGSTOP)")
            }
            (StandInAction::Resume, _) => {
                stand_in.resume()?;
                format!("let {name} continue (SIGCONT)")
            }
            (StandInAction::ToggleReady, Condition::NotReady | Condition::Hung { ready: false }) => {
                stand_in.set_ready(true)?;
                format!("made {name} ready: /readyz answers 200")
            }
            (StandInAction::ToggleReady, _) => {
                stand_in.set_ready(false)?;
                format!("made {name} unready: /readyz answers 500")
            }
        })
    }

    /// Ends everything in order: clients, then Baton, then the stand-ins.
    pub(super) async fn stop(mut self) {
        self.clients.clear();
        self.baton.stop(STOP_TIMEOUT).await;
    }
}

async fn until_ready(
    baton: &mut Baton,
    status: &mut watch::Receiver<DemoStatus>,
    guard: &mut Guard,
) -> Result<(), StageError> {
    let deadline = tokio::time::Instant::now() + READY_TIMEOUT;
    while !status.borrow_and_update().all_ready() {
        let answers = status.borrow().instance.pid;
        if let Some(status) = baton.ended(answers, guard) {
            return Err(StageError::BatonEnded { status, last_words: baton.last_words() });
        }
        if tokio::time::Instant::now() > deadline {
            return Err(StageError::NotReady { last_words: baton.last_words() });
        }
        // If Baton has ended, the status never changes, hence the limit.
        let _ = tokio::time::timeout(Duration::from_millis(100), status.changed()).await;
    }
    Ok(())
}

/// A directory of mode 0700, removed with its content when dropped.
#[derive(Debug)]
pub(super) struct Dir(pub PathBuf);

impl Dir {
    /// The name is short, because users type the path of the socket in it.
    pub(super) fn create(suffix: &str) -> io::Result<Self> {
        let name = format!("{DIR_PREFIX}{}{suffix}", std::process::id());
        let make = |name: &str| {
            let path = std::env::temp_dir().join(name);
            DirBuilder::new().mode(0o700).create(&path).map(|()| Self(path))
        };
        match make(&name) {
            // Whoever owns it: nothing in it may be used.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                make(&format!("{name}-{:08x}", fastrand::u32(..)))
            }
            made => made,
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all::<&Path>(&self.0);
    }
}

pub(super) const STAND_INS: [&str; 3] = ["cp1", "cp2", "cp3"];
pub(super) const WATCH_PERIOD: Duration = Duration::from_secs(5);
pub(super) const SHUTDOWN_DELAY: Duration = Duration::from_secs(3);
const READY_TIMEOUT: Duration = Duration::from_secs(15);
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
