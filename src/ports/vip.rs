//! Between whoever decides about the VIP, the peer link, and the wiring that knows of evacuations and stops.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::model::fleet::vip::{PeerVip, VipStanding};

/// What they know of each other. Without a built-in VIP nothing of it is used.
#[derive(Debug, Default)]
pub(crate) struct VipPort {
    talk: Mutex<VipTalk>,
    /// An evacuation wants the VIP to be elsewhere.
    evacuated: AtomicBool,
    /// This host has the VIP by this process's hand.
    held: AtomicBool,
    /// The addresses are to be on `lo` as well: they are about to leave.
    keeping: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct VipTalk {
    /// The addresses of the VIP; empty: it is not built in.
    addresses: Vec<IpAddr>,
    /// What the peers are to be told.
    untold: Option<VipStanding>,
    /// The peers, and when the link looked at them (monotonic ns).
    peers: Option<(u64, Vec<PeerVip>)>,
}

impl VipPort {
    /// Which addresses are the VIP from now on. None: it is not built in any more.
    pub(crate) fn set_addresses(&self, addresses: Vec<IpAddr>) {
        let mut talk = self.talk();
        if talk.addresses != addresses {
            (talk.addresses, talk.peers) = (addresses, None);
        }
    }

    /// Empty: nobody wants to know about the peers.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.talk().addresses.clone()
    }

    /// Leaves word for the peers; the link looks every few milliseconds.
    pub(crate) fn tell(&self, standing: VipStanding) {
        self.talk().untold = Some(standing);
    }

    /// What the peers are to be told, if that is new.
    pub(crate) fn take_untold(&self) -> Option<VipStanding> {
        self.talk().untold.take()
    }

    /// The peers as they are at `now_ns`.
    pub(crate) fn show_peers(&self, now_ns: u64, peers: Vec<PeerVip>) {
        self.talk().peers = Some((now_ns, peers));
    }

    /// As they were last shown, and when that was.
    pub(crate) fn peers(&self) -> Option<(u64, Vec<PeerVip>)> {
        self.talk().peers.clone()
    }

    pub(crate) fn is_evacuated(&self) -> bool {
        self.evacuated.load(Relaxed)
    }

    pub(crate) fn set_evacuated(&self, evacuated: bool) {
        self.evacuated.store(evacuated, Relaxed);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Acquire)
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Release);
    }

    /// Whether the frontends' addresses are to be on `lo` as well, before they leave.
    pub(crate) fn keeping(&self) -> watch::Receiver<bool> {
        self.keeping.subscribe()
    }

    pub(crate) fn set_keeping(&self, keeping: bool) {
        self.keeping.send_if_modified(|now| std::mem::replace(now, keeping) != keeping);
    }

    fn talk(&self) -> MutexGuard<'_, VipTalk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
