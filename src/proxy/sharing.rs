//! Port sharing: Baton serves a port of its VIP while another process has that port on all addresses of this host, such as an
//! apiserver `*:6443`. A place is an address and a port that a BPF program gives to Baton.
//!
//! ```text
//!   SYN to VIP:6443 ──▶ BPF program: is it a place? ──yes──▶ Baton's socket, which is bound to a dummy address
//!                            │                       └─none─▶ RST: Baton is dead, and no other process may answer
//!                            └─no──▶ the kernel's own choice: the process that has *:6443
//! ```
//! Baton binds nothing on the port, so the other process can start after it. An accepted socket has the VIP as its address all
//! the same.
//!
//! A place is Baton's until a process serves a configuration without it, or until `baton offload remove`. The end of the process
//! frees no place, because Baton cannot tell a last stop from a restart: a client that reached the other process by the VIP in
//! between would have a connection that Baton does not watch, and that hangs when the VIP moves.

mod error;
mod pins;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::error::{ListenError, SharingError};
pub(crate) use self::pins::DIRECTORY as SHARED_PORTS;
use self::pins::{PlaceState, PortPins, key};
use super::plane;
use crate::addr::VipAddr;
use crate::config::{Config, Frontend, SharePort, can_share_port};
use crate::sys::port_holder::{self, PortHolder};
use crate::sys::{netdev, socket};

/// The places of this instance.
#[derive(Debug)]
pub(super) struct SharedPorts {
    /// Tells its places from those of other instances in this network namespace, also after a restart.
    owner: u64,
    held: Mutex<BTreeMap<VipAddr, Since>>,
}

/// Whether this process or an earlier one made a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// This process made it.
    Now,
    /// It existed when this process began.
    Before,
}

/// One listening socket for each worker, and the place if their port is shared.
#[derive(Debug)]
pub(super) struct ListenerGroup {
    pub sockets: Vec<OwnedFd>,
    pub claim: Option<PlaceClaim>,
}

/// A place that this process serves. Dropping it frees the place, if this process made it and has not kept it.
#[derive(Debug)]
pub(super) struct PlaceClaim {
    address: VipAddr,
    since: Since,
    is_kept: bool,
}

/// The addresses of this host, read once for all frontends of a configuration.
#[derive(Debug)]
pub(super) struct HostLook {
    here: Vec<IpAddr>,
}

impl HostLook {
    pub(super) fn now() -> Self {
        let addresses = netdev::addresses().unwrap_or_default();
        Self { here: addresses.into_iter().map(|(_, ip)| ip).collect() }
    }
}

impl SharedPorts {
    /// `socket`: the path of the instance's admin socket, which no other instance has.
    pub(super) fn new(socket: &Path) -> Self {
        // FNV-1a, 64 bits: the same in each version of Baton.
        let owner = socket.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { owner, held: Mutex::default() }
    }

    /// Listens on `address`, in the way that `frontend` asks for. `beside_own`: another listener of this process has the port on
    /// all addresses, or is to get it.
    pub(super) fn listen(
        &self,
        frontend: &Frontend,
        address: VipAddr,
        look: &HostLook,
        workers: usize,
        beside_own: bool,
    ) -> Result<ListenerGroup, ListenError> {
        let can_share = can_share_port(address);
        match frontend.share_port {
            SharePort::On if can_share => return self.share(frontend, address, workers),
            SharePort::Auto if can_share && frontend.has_backend_at(address.port(), &look.here) => {
                match self.share(frontend, address, workers) {
                    Err(ListenError::CannotShare { source, .. }) => {
                        return self.bind_or_say(frontend, address, workers, beside_own, source);
                    }
                    shared => return shared,
                }
            }
            _ => {}
        }
        match bind(frontend, address, workers, beside_own) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let holder = Box::new(PortHolder::find(address));
                if frontend.share_port == SharePort::Off || !can_share || !holder.is_everywhere() {
                    return Err(ListenError::AddressInUse { address, holder });
                }
                match self.share(frontend, address, workers) {
                    Err(ListenError::CannotShare { source, .. }) => {
                        Err(ListenError::PortInUse { address, holder, source })
                    }
                    shared => shared,
                }
            }
            Err(source) => Err(ListenError::Listen { address, source }),
            Ok(sockets) => {
                self.refuse_others(address)?;
                Ok(ListenerGroup { sockets, claim: None })
            }
        }
    }

    /// Uses listening sockets of the process before this one.
    pub(super) fn inherit(
        &self,
        frontend: &Frontend,
        address: VipAddr,
        sockets: Vec<OwnedFd>,
    ) -> Result<ListenerGroup, ListenError> {
        if !fits(frontend.share_port, &sockets) {
            return Err(ListenError::InheritedPort { address, wanted: frontend.share_port.label() });
        }
        if !sockets.iter().any(socket::listens_nowhere) {
            return Ok(ListenerGroup { sockets, claim: None });
        }
        let claim = self.claim(address, &sockets)?;
        Ok(ListenerGroup { sockets, claim: Some(claim) })
    }

    /// Keeps the place of `claim` beyond the life of `claim`, and of this process.
    pub(super) fn keep(&self, mut claim: PlaceClaim) {
        claim.is_kept = true;
        self.held().insert(claim.address, claim.since);
    }

    /// Whether the port of `address` is shared.
    pub(super) fn has(&self, address: VipAddr) -> bool {
        self.held().contains_key(&address)
    }

    /// Frees all places of this process but those of `addresses`, from the next connection on.
    pub(super) fn retain(&self, addresses: &[VipAddr]) {
        let gone: Vec<_> = self.held().keys().copied().filter(|held| !addresses.contains(held)).collect();
        self.give_up(&gone);
    }

    /// Frees the places that this process made.
    pub(super) fn give_up_new(&self) {
        let new: Vec<_> = self.held().iter().filter(|(_, since)| **since == Since::Now).map(|(at, _)| *at).collect();
        self.give_up(&new);
    }

    /// Frees places that dead processes left: those of this instance that its configuration no longer has, and those of
    /// `addresses` whose port this process has bound.
    pub(super) fn forget_dead(&self, addresses: &[VipAddr]) {
        let held: BTreeSet<_> = self.held().keys().map(|address| key(*address)).collect();
        let served: BTreeSet<_> = addresses.iter().map(|address| key(*address)).collect();
        let forget = || {
            let Some(ports) = PortPins::here()?.find()? else { return Ok(Vec::new()) };
            let mut freed = Vec::new();
            for (place, owner) in ports.places()? {
                let ours = owner == self.owner || served.contains(&place);
                if ours && !held.contains(&place) && ports.state(&place)? == PlaceState::Dead {
                    ports.free(&place)?;
                    freed.push(pins::address(&place));
                }
            }
            Ok::<_, io::Error>(freed)
        };
        match forget() {
            Ok(freed) => freed.iter().for_each(|address| {
                tracing::info!(%address, "the port of an earlier process is no longer shared");
            }),
            Err(error) => tracing::error!(
                %error,
                "cannot read which ports an earlier process shared; the kernel resets connections to these addresses until \
                 `baton offload remove`"
            ),
        }
    }

    /// Whether the program runs, or this process has no place.
    pub(super) fn are_whole(&self) -> bool {
        self.held().is_empty() || PortPins::here().is_ok_and(|pins| pins.are_whole())
    }

    /// Attaches the program again after another program has detached it or removed its pins. `listeners`: those of all workers.
    pub(super) fn fix(&self, listeners: &[(VipAddr, OwnedFd)]) -> Result<(), ListenError> {
        let held: Vec<_> = self.held().keys().copied().collect();
        for address in held {
            let own = listeners.iter().filter(|(at, _)| *at == address);
            let sockets: Vec<_> = own.map(|(_, socket)| socket.as_fd()).collect();
            if !sockets.is_empty() {
                self.claim(address, &sockets)?.is_kept = true;
            }
        }
        Ok(())
    }

    /// Addresses of `config` with a share_port that the sockets of this process contradict.
    pub(super) fn contradicts(&self, config: &Config, listening: &[VipAddr]) -> Vec<(VipAddr, SharePort)> {
        let frontends = config.frontends.iter();
        let asked =
            frontends.flat_map(|frontend| frontend.listen.iter().map(|address| (*address, frontend.share_port)));
        let other = |(address, asked): &(VipAddr, SharePort)| match asked {
            SharePort::Auto => false,
            SharePort::On => !self.has(*address),
            SharePort::Off => self.has(*address),
        };
        asked.filter(|(address, _)| listening.contains(address)).filter(other).collect()
    }

    /// Listens at a dummy address, and makes `address` a place.
    fn share(&self, frontend: &Frontend, address: VipAddr, workers: usize) -> Result<ListenerGroup, ListenError> {
        if port_holder::is_taken(address) {
            return Err(ListenError::AddressInUse { address, holder: Box::new(PortHolder::find(address)) });
        }
        let timeouts = plane::timeouts(&frontend.keepalive);
        let sockets = socket::listen_nowhere(address, &timeouts, workers)
            .map_err(|source| ListenError::Listen { address, source })?;
        let claim = self.claim(address, &sockets)?;
        tracing::info!(%address, "Baton shares the port: connections to other addresses of this host go to the process that has the port there");
        Ok(ListenerGroup { sockets, claim: Some(claim) })
    }

    /// Binds the port, because Baton cannot share it.
    fn bind_or_say(
        &self,
        frontend: &Frontend,
        address: VipAddr,
        workers: usize,
        beside_own: bool,
        source: SharingError,
    ) -> Result<ListenerGroup, ListenError> {
        match bind(frontend, address, workers, beside_own) {
            Ok(sockets) => {
                tracing::warn!(
                    %address,
                    "a backend on this host has the same port, and Baton cannot share it: {source}; Baton has bound the port, and \
                     a process that listens on it on all addresses cannot start"
                );
                Ok(ListenerGroup { sockets, claim: None })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(ListenError::PortInUse { address, holder: Box::new(PortHolder::find(address)), source })
            }
            Err(source) => Err(ListenError::Listen { address, source }),
        }
    }

    fn claim(&self, address: VipAddr, sockets: &[impl AsFd]) -> Result<PlaceClaim, ListenError> {
        let cannot = |source| ListenError::CannotShare { address, source };
        let map = |error| cannot(SharingError::Map(error));
        let ports = PortPins::here().map_err(SharingError::Namespace).and_then(|pins| pins.open()).map_err(cannot)?;
        let place = key(address);
        let state = ports.state(&place).map_err(map)?;
        if let PlaceState::Served(cookie) = state
            && !is_among(cookie, sockets)
        {
            return Err(ListenError::SharedByOther { address, holder: Box::new(PortHolder::of_cookie(cookie)) });
        }
        let since = if state == PlaceState::Free { Since::Now } else { Since::Before };
        ports.give(&place, &sockets[0], self.owner).map_err(map)?;
        Ok(PlaceClaim { address, since, is_kept: false })
    }

    /// Refuses an address that another instance shares: the program gives that instance all its connections.
    fn refuse_others(&self, address: VipAddr) -> Result<(), ListenError> {
        let look = || match PortPins::here()?.find()? {
            Some(ports) => ports.state(&key(address)),
            None => Ok(PlaceState::Free),
        };
        match look() {
            Ok(PlaceState::Served(cookie)) => {
                Err(ListenError::SharedByOther { address, holder: Box::new(PortHolder::of_cookie(cookie)) })
            }
            // [`Self::forget_dead`] reports maps that this process cannot read.
            _ => Ok(()),
        }
    }

    fn give_up(&self, addresses: &[VipAddr]) {
        for address in addresses {
            free(*address);
            self.held().remove(address);
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<VipAddr, Since>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PlaceClaim {
    fn drop(&mut self) {
        if !self.is_kept && self.since == Since::Now {
            free(self.address);
        }
    }
}

/// Whether listening sockets have their port bound or shared as `asked`.
fn fits(asked: SharePort, sockets: &[OwnedFd]) -> bool {
    let shared = sockets.iter().any(socket::listens_nowhere);
    match asked {
        SharePort::Auto => true,
        SharePort::On => shared,
        SharePort::Off => !shared,
    }
}

/// The listening sockets of an earlier process that agree with share_port in `config`, and the addresses of the others.
pub(crate) fn fitting(config: &Config, left: Vec<(VipAddr, OwnedFd)>) -> (Vec<(VipAddr, OwnedFd)>, BTreeSet<VipAddr>) {
    let asked = |address: &VipAddr| {
        let frontend = config.frontends.iter().find(|frontend| frontend.listen.contains(address));
        frontend.map_or(SharePort::Auto, |frontend| frontend.share_port)
    };
    let (fitting, other): (Vec<_>, Vec<_>) =
        left.into_iter().partition(|(address, socket)| fits(asked(address), std::slice::from_ref(socket)));
    (fitting, other.into_iter().map(|(address, _)| address).collect())
}

/// Removes the program that shares ports in this network namespace; returns how many places it had. `None`: there is none.
/// Fails with `ResourceBusy` while a process serves one of them.
pub fn remove() -> io::Result<Option<usize>> {
    PortPins::here()?.remove()
}

/// Has the kernel share ports in this network namespace, with this process's own rights.
pub(crate) fn install() -> Result<(), SharingError> {
    PortPins::here().map_err(SharingError::Namespace)?.install().map(drop)
}

fn bind(frontend: &Frontend, address: VipAddr, workers: usize, beside_own: bool) -> io::Result<Vec<OwnedFd>> {
    let timeouts = plane::timeouts(&frontend.keepalive);
    if !beside_own {
        socket::ensure_unused(address)?;
    }
    socket::listen_group(address, &timeouts, workers)
}

fn free(address: VipAddr) {
    let freed = PortPins::here().and_then(|pins| pins.find()?.map_or(Ok(()), |ports| ports.free(&key(address))));
    if let Err(error) = freed {
        tracing::error!(%address, %error, "cannot stop sharing a port; the kernel resets connections to this address");
    }
}

fn is_among(cookie: u64, sockets: &[impl AsFd]) -> bool {
    sockets.iter().any(|socket| socket::cookie(socket).is_ok_and(|own| own == cookie))
}
