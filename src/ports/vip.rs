//! Between the VIP's holder, the peer link, the failover and `app`, which knows of evacuations and stops.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::fleet::InstanceName;
use crate::model::fleet::vip::{PeerVip, VipBar, VipStanding};

/// Limit for the wait until the holder has looked.
const LEFT_WITHIN: Duration = Duration::from_millis(500);

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
    vacant: watch::Sender<VacantVip>,
}

/// Whether the holder leaves a vacant VIP to the next process of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum VacantVip {
    #[default]
    Takes,
    /// It is to, from its next look on.
    Asked,
    Leaves,
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

    /// Has the holder leave a vacant VIP to the next process of this host, and returns when it does: what it has until then that process finds
    /// at its first look.
    pub(crate) async fn leave_to_next(&self) {
        if self.addresses().is_empty() {
            return;
        }
        let mut vacant = self.vacant.subscribe();
        self.vacant.send_replace(VacantVip::Asked);
        let leaves = vacant.wait_for(|now| *now == VacantVip::Leaves);
        if tokio::time::timeout(LEFT_WITHIN, leaves).await.is_err() {
            tracing::warn!(
                "the VIP's thread does not answer; the next process may remove addresses that this one adds now"
            );
        }
    }

    /// There is no next process: the holder takes a vacant VIP again.
    pub(crate) fn take_again(&self) {
        self.vacant.send_replace(VacantVip::Takes);
    }

    /// For the holder, once in each look: whether it leaves a vacant VIP to the next process.
    pub(crate) fn leaves_to_next(&self) -> bool {
        self.vacant.send_if_modified(|now| {
            let is_asked = *now == VacantVip::Asked;
            if is_asked {
                *now = VacantVip::Leaves;
            }
            is_asked
        });
        *self.vacant.borrow() == VacantVip::Leaves
    }

    fn talk(&self) -> MutexGuard<'_, VipTalk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the old process of an upgrade took the VIP after the new one had looked at its host, which removed the addresses.
    #[tokio::test]
    async fn who_leaves_the_vip_to_the_next_process_goes_on_only_when_the_holder_takes_it_no_more() {
        let port = VipPort::default();
        // Without a VIP no holder would answer.
        port.leave_to_next().await;
        assert!(!port.leaves_to_next());
        port.set_addresses(vec!["10.0.0.1".parse().unwrap()]);
        let left = port.leave_to_next();
        tokio::pin!(left);
        tokio::select! {
            biased;
            () = &mut left => panic!("the holder has not looked"),
            () = std::future::ready(()) => {}
        }
        assert!(port.leaves_to_next() && port.leaves_to_next());
        left.await;
        port.take_again();
        assert!(!port.leaves_to_next());
    }
}
