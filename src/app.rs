//! The wiring: makes the parts, joins them, and takes them down again. Nothing else knows all of them.
//!
//! ```text
//!   start   listeners bound ─▶ first probes ─▶ serving
//!   reload  file ─▶ valid? ─▶ new addresses bound? ─▶ flows, health and doors change over
//!   stop    readiness fails ─▶ no new flows ─▶ flows end by themselves ─▶ the rest is reset
//! ```

mod changes;
mod control;
mod reload;
mod stop;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch as latest};
use tokio::task::{JoinHandle, JoinSet};

use crate::admin::Admin;
use crate::admin::doors::{Doors, OpenDoorError};
use crate::admin::{flow_log, watchdog};
use crate::config::Config;
use crate::drain::{Drain, DrainWatch, Phase};
use crate::health::Checker;
use crate::metrics::Metrics;
use crate::proxy::{Proxy, ProxyError};
use crate::rebalance;
use crate::sys::process;
use crate::table::Table;
use crate::table::journal::What;
use control::Wiring;

pub use reload::{ReloadError, Reloader};

/// How often quiet sources are forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Why an instance cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot make the flow table: {0}")]
    Table(#[source] io::Error),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(transparent)]
    Door(#[from] OpenDoorError),
}

/// A running instance. Dropping it without [`Bound::stop`] closes its flows at once.
pub struct Bound {
    /// Where the HTTP door listens, if it is open.
    pub http: Option<SocketAddr>,
    pub socket: PathBuf,
    pub workers: usize,
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    tasks: JoinSet<()>,
    flow_log: JoinHandle<()>,
    end_flow_log: oneshot::Sender<()>,
}

/// The parts of a running instance.
struct Core {
    table: Arc<Table>,
    proxy: Proxy,
    checker: Checker,
    config: Arc<ArcSwap<Config>>,
    latest: latest::Sender<Arc<Config>>,
    drain: Drain,
    hasten: Notify,
    /// An operator wants the flows spread again, though the configuration may not.
    rebalance_now: Arc<Notify>,
}

/// Starts an instance with `config`, which was read from `path`. Needs a tokio runtime; the data plane has threads of
/// its own.
pub async fn build(config: Config, path: &Path) -> Result<Bound, StartError> {
    process::raise_file_limit();
    let workers = config.process.workers.unwrap_or_else(process::cores);
    let table = Table::new(workers).map_err(StartError::Table)?;
    let metrics = Arc::new(Metrics::default());
    let config = Arc::new(config);
    let proxy = Proxy::start(table.clone(), &config)?;
    let checker = Checker::start(table.clone(), metrics.clone(), &config, Handle::current());
    let core = Arc::new(Core {
        table: table.clone(),
        proxy,
        checker,
        config: Arc::new(ArcSwap::new(config.clone())),
        latest: latest::Sender::new(config.clone()),
        drain: Drain::default(),
        hasten: Notify::new(),
        rebalance_now: Arc::default(),
    });
    let reloader = Reloader::new(core.clone(), metrics.clone(), path);
    let wiring = Arc::new(Wiring::new(core.clone(), reloader.clone()));
    let admin = Admin::new(table.clone(), core.config.clone(), metrics.clone(), wiring, core.drain.watch());
    let doors = Doors::open(admin.clone(), &config.admin)?;
    let (http, socket) = (doors.http_address(), doors.socket_path().to_owned());
    reloader.adopt_doors(doors);
    table.journal.record(What::Started { version: env!("CARGO_PKG_VERSION").to_owned() });

    let (end_flow_log, ended) = oneshot::channel();
    let stop = async move { drop(ended.await) };
    let flow_log = tokio::spawn(flow_log::run(table.clone(), core.config.clone(), metrics, stop));
    let mut tasks = JoinSet::new();
    tasks.spawn(admin.sample_rates());
    tasks.spawn(watchdog::run(table.clone()));
    tasks.spawn(rebalance::run(table, core.latest.subscribe(), core.drain.watch(), core.rebalance_now.clone()));
    tasks.spawn(watch::run(reloader.clone(), path.to_owned(), core.drain.watch()));
    tasks.spawn(sweep(core.clone()));
    tasks.spawn(announce(core.clone()));
    Ok(Bound { http, socket, workers, core, reloader, tasks, flow_log, end_flow_log })
}

impl Bound {
    pub fn phase(&self) -> DrainWatch {
        self.core.drain.watch()
    }

    /// The configuration as it runs, now and after each reload.
    pub fn config(&self) -> latest::Receiver<Arc<Config>> {
        self.core.latest.subscribe()
    }

    /// What reads the configuration again.
    pub fn reloader(&self) -> Arc<Reloader> {
        self.reloader.clone()
    }

    /// What makes a stop that is under way go to its next phase at once.
    pub fn hasten(&self) -> impl Fn() + Send + 'static {
        let core = self.core.clone();
        move || core.hasten.notify_one()
    }

    /// Goes through the phases of a stop, and returns when no flow is left.
    pub async fn stop(mut self) {
        stop::run(&self.core).await;
        self.tasks.shutdown().await;
        let core = self.core.clone();
        // Joining threads may take a moment, which is not this runtime's to wait.
        let _ = tokio::task::spawn_blocking(move || core.proxy.exit()).await;
        let _ = self.end_flow_log.send(());
        let _ = self.flow_log.await;
        self.reloader.shut_doors();
    }
}

/// Serving begins when every backend has been looked at once.
async fn announce(core: Arc<Core>) {
    core.checker.first_round().await;
    core.drain.advance(Phase::Serving);
}

async fn sweep(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        core.proxy.sweep_sources();
    }
}
