//! Between the VIP's holder, the peer link, the failover and `app`, which knows of evacuations and stops.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::model::fleet::InstanceName;
use crate::model::fleet::vip::{PeerVip, VipBar, VipStanding};

/// The state that they share. Unused if Baton does not move the VIP.
#[derive(Debug, Default)]
pub struct VipPort {
    talk: Mutex<VipTalk>,
    /// This process has added the VIP to this host.
    held: AtomicBool,
    /// An operator's program runs, or is about to.
    hooks_run: AtomicBool,
    /// The failover must add the addresses to `lo`, because they are about to leave the interface.
    leaving: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct VipTalk {
    /// The addresses of the VIP; empty: Baton does not move it.
    addresses: Vec<IpAddr>,
    /// The standing that the link has not sent yet.
    untold: Option<VipStanding>,
    /// The peers, and when the link looked at them, in monotonic ns.
    peers: Option<(u64, Vec<PeerVip>)>,
    /// The evacuation that moves the VIP to another host.
    evacuated: Option<VipBar>,
}

impl VipPort {
    /// Sets the VIP's addresses from now on. None: Baton does not move it any more.
    pub(crate) fn set_addresses(&self, addresses: Vec<IpAddr>) {
        let mut talk = self.talk();
        if talk.addresses != addresses {
            (talk.addresses, talk.peers) = (addresses, None);
        }
    }

    /// Empty: the link need not show the peers.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.talk().addresses.clone()
    }

    /// Leaves the standing for the link, which looks every few milliseconds.
    pub(crate) fn tell(&self, standing: VipStanding) {
        self.talk().untold = Some(standing);
    }

    /// Takes the standing that the link has not sent yet.
    pub(crate) fn take_untold(&self) -> Option<VipStanding> {
        self.talk().untold.take()
    }

    /// Shows the peers' state at `now_ns`.
    pub(crate) fn show_peers(&self, now_ns: u64, peers: Vec<PeerVip>) {
        self.talk().peers = Some((now_ns, peers));
    }

    /// The peers as the link last showed them, and when that was.
    pub(crate) fn peers(&self) -> Option<(u64, Vec<PeerVip>)> {
        self.talk().peers.clone()
    }

    /// Why this instance must not have the VIP, if an evacuation moves it to another host.
    pub(crate) fn evacuated(&self) -> Option<VipBar> {
        self.talk().evacuated.clone()
    }

    /// An evacuation moves the VIP to another host: to `to`, if the operator names one.
    pub(crate) fn evacuate(&self, to: Option<InstanceName>) {
        self.talk().evacuated = Some(VipBar::Evacuated { to });
    }

    /// This host may have the VIP again.
    pub(crate) fn take_back(&self) {
        self.talk().evacuated = None;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Acquire)
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Release);
    }

    pub(crate) fn do_hooks_run(&self) -> bool {
        self.hooks_run.load(Acquire)
    }

    pub(crate) fn set_hooks_run(&self, run: bool) {
        self.hooks_run.store(run, Release);
    }

    /// Whether the failover must add the frontends' addresses to `lo`.
    pub(crate) fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    pub(crate) fn set_leaving(&self, leaving: bool) {
        self.leaving.send_if_modified(|now| std::mem::replace(now, leaving) != leaving);
    }

    fn talk(&self) -> MutexGuard<'_, VipTalk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
