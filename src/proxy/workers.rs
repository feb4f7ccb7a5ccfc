//! All workers: started, reconfigured and ended together.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_queue::SegQueue;

use super::accept::listeners::Listener;
use super::accept::sources::Sources;
use super::context::WorkerContext;
use super::message::Message;
use super::parts::ProxyParts;
use super::plane::Plane;
use super::shared::Shared;
use super::sharing::{HostLook, ListenError, ListenerGroup, SharedPorts};
use super::worker::Worker;
use crate::addr::VipAddr;
use crate::config::{Config, SharePort};
use crate::essential;
use crate::model::end_reason::EndReason;
use crate::sys::liveness::forget_user_timeout;
use crate::sys::{clock, socket};

/// Why the data plane cannot apply the configuration. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot start worker {worker}: {source}")]
    Worker { worker: usize, source: io::Error },
}

/// New listening sockets, one per worker and address.
#[derive(Debug)]
pub struct Bindings(HashMap<VipAddr, ListenerGroup>);

/// The running data plane.
#[derive(Debug)]
pub struct Proxy {
    pub(super) table: ProxyParts,
    pub(super) shared: Arc<Shared>,
    ports: SharedPorts,
    listening: Mutex<Vec<VipAddr>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    version: AtomicU64,
}

impl Proxy {
    /// Binds every address of `config`, then starts one worker thread per entry of `table.workers`.
    #[allow(dead_code, reason = "for tests of the plane, and benches")]
    pub fn start(table: ProxyParts, config: &Config) -> Result<Self, ProxyError> {
        let (proxy, bindings) = Self::start_idle(table, config, Vec::new())?;
        proxy.publish(proxy.plane(config), bindings);
        Ok(proxy)
    }

    /// As [`Proxy::start`], but listens on `inherited` sockets where their address is in `config`, and serves no client
    /// before [`Proxy::reconfigure`] gets the bindings.
    pub(crate) fn start_idle(
        table: ProxyParts,
        config: &Config,
        inherited: Vec<(VipAddr, OwnedFd)>,
    ) -> Result<(Self, Bindings), ProxyError> {
        let workers = table.workers.len();
        let inboxes = (0..workers).map(|_| SegQueue::new()).collect();
        let shared = Arc::new(Shared { sources: Sources::default(), inboxes });
        let proxy = Self {
            table,
            shared,
            ports: SharedPorts::new(&config.admin.socket),
            listening: Mutex::default(),
            threads: Mutex::default(),
            version: AtomicU64::new(1),
        };
        let bindings = proxy.bind_with(config, inherited)?;
        let plane = proxy.plane(config);
        for number in 0..workers {
            let (table, shared) = (proxy.table.clone(), proxy.shared.clone());
            let started = WorkerContext::new(number, table, shared, plane.clone())
                .and_then(Worker::new)
                .and_then(|mut worker| essential::thread(format!("worker-{number}"), move || worker.run()));
            let thread = started.map_err(|source| ProxyError::Worker { worker: number, source })?;
            proxy.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok((proxy, bindings))
    }

    /// Applies `config`, for which `bindings` were made. Flows go on. Returns the version of the settings, for
    /// [`Proxy::follows`].
    pub fn reconfigure(&self, config: &Config, bindings: Bindings) -> u64 {
        let version = self.version.fetch_add(1, Relaxed) + 1;
        self.publish(Arc::new(Plane::new(config, &self.table.registry, version)), bindings);
        version
    }

    /// Whether every worker applies settings of `version` or later.
    pub fn follows(&self, version: u64) -> bool {
        self.table.workers.iter().all(|worker| worker.plane_version.load(Relaxed) >= version)
    }

    /// Serves the connections in the backlogs, then closes all listeners.
    pub fn stop_accepting(&self) {
        self.tell_all(|| Message::StopAccepting);
        self.listening().clear();
    }

    /// Serves the connections in the backlogs, then resets every new one. For listeners that another process keeps
    /// open, in which clients would otherwise wait.
    pub(crate) fn turn_away(&self) {
        self.tell_all(|| Message::TurnAway);
    }

    /// Resets every new connection for this reason from now on; `None`: serves them again.
    pub(crate) fn refuse(&self, reason: Option<EndReason>) {
        self.tell_all(|| Message::Refuse(reason));
    }

    /// Has flows offloaded as soon as possible, or (`false`) as the configuration says.
    pub(crate) fn offload_at_once(&self, at_once: bool) {
        self.table.offload.set_wanted_at_once(at_once);
        if at_once {
            self.tell_all(|| Message::OffloadAtOnce);
        }
    }

    /// Ends the workers and waits for them. They reset their proxied flows.
    pub fn exit(&self) {
        self.tell_all(|| Message::Exit);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }

    /// Forgets sources that have been quiet. Call it now and then; returns how many are left.
    pub(crate) fn sweep_sources(&self) -> usize {
        self.shared.sources.sweep(clock::now_ns())
    }

    /// Binds the addresses of `config` that are not bound yet. They serve no client before [`Proxy::reconfigure`];
    /// dropping the bindings closes them.
    pub fn bind(&self, config: &Config) -> Result<Bindings, ProxyError> {
        self.bind_with(config, Vec::new())
    }

    fn bind_with(&self, config: &Config, inherited: Vec<(VipAddr, OwnedFd)>) -> Result<Bindings, ProxyError> {
        let mut inherited = inherit(inherited);
        let listening = self.listening();
        let (look, workers) = (HostLook::now(), self.table.workers.len());
        let mut sockets = HashMap::new();
        for frontend in &config.frontends {
            for &address in frontend.listen.iter().filter(|address| !listening.contains(address)) {
                let group = match inherited.remove(&address) {
                    Some(group) => {
                        let group = spread(group, workers).map_err(|source| ListenError::Listen { address, source })?;
                        self.ports.inherit(frontend, address, group)?
                    }
                    None => {
                        // A wildcard listener of our own does not count as another process on a single address, nor the
                        // reverse.
                        let beside_own = listening.iter().chain(sockets.keys()).any(|ours| ours.overlaps(address));
                        self.ports.listen(frontend, address, &look, workers, beside_own)?
                    }
                };
                sockets.insert(address, group);
            }
        }
        Ok(Bindings(sockets))
    }

    /// Addresses that this process serves with the port bound although share_port in `config` is "on", or shared although it is
    /// "off".
    pub(crate) fn contradicts(&self, config: &Config) -> Vec<(VipAddr, SharePort)> {
        self.ports.contradicts(config, &self.listening())
    }

    /// Frees ports that dead processes shared and this process does not. Call it once no other process may continue to serve
    /// them.
    pub(crate) fn forget_dead_ports(&self) {
        self.ports.forget_dead(&self.listening());
    }

    /// Attaches the program that shares ports again, if another program has detached it. Call it now and then; it may block for
    /// a moment.
    pub(crate) fn fix_shared_ports(&self) {
        if self.ports.are_whole() {
            return;
        }
        let fixed = self.share_listeners().map_err(|error| error.to_string());
        match fixed.and_then(|listeners| self.ports.fix(&listeners).map_err(|error| error.to_string())) {
            Ok(()) => tracing::warn!(
                "another program has detached the program that shares ports: Baton has attached it again"
            ),
            Err(error) => tracing::error!(
                "another program has detached the program that shares ports, and Baton cannot attach it again: {error}; clients \
                 reach the process that has the port on all addresses"
            ),
        }
    }

    /// Frees the ports that this process was the first to share, because it steps back in an upgrade.
    pub(crate) fn give_up_new_ports(&self) {
        self.ports.give_up_new();
    }

    fn listening(&self) -> MutexGuard<'_, Vec<VipAddr>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plane(&self, config: &Config) -> Arc<Plane> {
        Arc::new(Plane::new(config, &self.table.registry, self.version.load(Relaxed)))
    }

    fn publish(&self, plane: Arc<Plane>, Bindings(sockets): Bindings) {
        let workers = self.table.workers.len();
        let mut openings: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
        let addresses = plane.frontends.iter().flat_map(|frontend| frontend.settings.listen.iter().copied());
        let addresses: Vec<_> = addresses.collect();
        // Before the workers close the sockets: the kernel would reset clients in between.
        self.ports.retain(&addresses);
        for (address, group) in sockets {
            let Some(frontend) = plane.listening_on(address) else { continue };
            let is_shared = group.claim.is_some();
            group.claim.into_iter().for_each(|claim| self.ports.keep(claim));
            for (number, socket) in group.sockets.into_iter().enumerate() {
                let frontend = frontend.clone();
                // A process of an earlier release has set it.
                forget_user_timeout(&socket);
                openings[number % workers].push(Listener { socket, address, is_shared, frontend });
            }
        }
        for (worker, open) in openings.into_iter().enumerate() {
            self.shared.inboxes[worker].push(Message::Reconfigure { plane: plane.clone(), open });
            self.table.orders.wake(worker);
        }
        for frontend in &plane.frontends {
            let shared = frontend.settings.listen.iter().copied().filter(|address| self.ports.has(*address));
            frontend.entry.shared_ports.store(Arc::new(shared.collect()));
        }
        *self.listening() = addresses;
    }

    fn tell_all(&self, message: impl Fn() -> Message) {
        for worker in 0..self.table.workers.len() {
            self.shared.inboxes[worker].push(message());
            self.table.orders.wake(worker);
        }
    }
}

/// The sockets by address, each only once: workers of the other process may have shared one.
fn inherit(sockets: Vec<(VipAddr, OwnedFd)>) -> HashMap<VipAddr, Vec<OwnedFd>> {
    let mut seen = HashSet::new();
    let mut groups: HashMap<_, Vec<_>> = HashMap::new();
    for (address, socket) in sockets {
        if socket::identity(&socket).is_ok_and(|identity| seen.insert(identity)) {
            groups.entry(address).or_default().push(socket);
        }
    }
    groups
}

/// At least one socket for each of `workers`. If there are fewer, several workers share a socket: a new one would get
/// its share of connections at once, and lose them if this process failed. See [`Proxy::widen_listeners`].
fn spread(mut group: Vec<OwnedFd>, workers: usize) -> io::Result<Vec<OwnedFd>> {
    for number in 0..workers.saturating_sub(group.len()) {
        group.push(group[number].try_clone()?);
    }
    Ok(group)
}
