//! The state of the own host that contradicts the machine: a question that was not sent, addresses that could not be added, addresses that the
//! machine has not added, an instance that has the VIP and cannot serve, and another host that has it, too.

use super::{
    AGAIN_LATER_NS, AGAIN_NS, CUT_OFF_NS, FAILED_NS, LINKING_NS, NO_BACKEND_NS, PeerVip, SOON_NS, UNREADY_AGAIN_NS,
    VipBar, VipGain, VipLook, VipLoss, VipMachine, VipNote, VipOrder, VipPresence, VipStage, VipWhy,
};
use crate::addr::Mac;
use crate::model::fleet::InstanceName;

impl VipMachine {
    /// Whether this host has been cut off for longer than a moment.
    pub(super) fn is_cut_off(&self, now_ns: u64) -> bool {
        self.cut_off_ns.is_some_and(|since_ns| now_ns - since_ns >= CUT_OFF_NS)
    }

    /// Tells that a host without the VIP is cut off, once it has been for a moment; and who has the VIP once it no longer is.
    pub(super) fn tell_cut_off(&mut self, why: &VipWhy, now_ns: u64) {
        if self.is_cut_off(now_ns) && self.settings.has_peers && !self.is_told_cut_off {
            self.is_told_cut_off = true;
            self.orders.push_back(VipOrder::Note(VipNote::CutOff(why.clone())));
        } else if self.cut_off_ns.is_none() && self.is_told_cut_off {
            (self.is_told_cut_off, self.holder_since) = (false, None);
        }
    }

    /// As [`VipMachine::handle_answer`], for the holder. A peer that holds the VIP as well is no stranger: one of the two yields.
    pub(super) fn defend(&mut self, by: Mac, now_ns: u64) {
        if let VipStage::Holds { announce_from_ns, announced, .. } = &mut self.stage
            && !self.is_contested
            && self.defence.hear(now_ns)
        {
            // As after a gain, more than once: a neighbour may believe nobody else for a second (net.ipv4.neigh.default.locktime).
            (*announce_from_ns, *announced) = (now_ns, 0);
            self.orders.push_back(VipOrder::Note(VipNote::Defended(by)));
        }
    }

    /// The interface is new, or has another Ethernet address: neighbours know the old one.
    pub(crate) fn handle_new_link(&mut self, now_ns: u64) {
        if let VipStage::Holds { announce_from_ns, announced, .. } = &mut self.stage {
            (*announce_from_ns, *announced) = (now_ns, 0);
        }
    }

    /// The question was not sent, or its answers could not be heard: this instance asks anew, from the first question on.
    pub(crate) fn handle_unasked(&mut self, error: String, now_ns: u64) {
        if self.takes() {
            let since_ns = self.vacant_ns.unwrap_or(now_ns);
            self.pause(VipWhy::Mute { error }, since_ns, now_ns);
        }
    }

    /// The caller could not add or renew the addresses: the orders that follow from it are void, so nobody is told of a gain. The VIP is whole or
    /// not there: addresses that the caller could add go as well.
    pub(crate) fn handle_failed(&mut self, error: String, now_ns: u64) {
        let is_void = |order: &VipOrder| {
            matches!(
                order,
                VipOrder::Tell(_)
                    | VipOrder::Announce
                    | VipOrder::Note(VipNote::Gained(_) | VipNote::Kept | VipNote::Restored)
            )
        };
        let is_fresh = self.orders.iter().any(|order| matches!(order, VipOrder::Note(VipNote::Gained(_))));
        self.orders.retain(|order| !is_void(order));
        self.told = None;
        self.failed = Some((error.clone(), now_ns + FAILED_NS));
        let bar = VipBar::Failed { error };
        if !self.holds() {
            return;
        }
        if !is_fresh {
            return self.give_up(VipLoss::Barred(bar), now_ns);
        }
        (self.stage, self.claim) = (VipStage::Stands, 0);
        self.orders.push_back(VipOrder::Remove { serves: true });
        self.set_why(VipWhy::Barred(bar), now_ns);
    }

    /// The addresses are on this host, and this machine has not added them. At the first look an earlier process may have left them; after
    /// that another program has added them, and no host was asked.
    pub(super) fn find(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let now_ns = look.now_ns;
        let holder = peers.iter().find(|peer| self.holds_too(peer)).map(|peer| peer.name.clone());
        let bar = look.bar.clone().filter(|bar| *bar != VipBar::Starting);
        let is_strange = self.why != VipWhy::Unseen && self.settings.has_peers;
        let loss = bar.map(VipLoss::Barred).or(holder.map(|holder| VipLoss::LeftOver { holder }));
        match loss.or(is_strange.then_some(VipLoss::Strange)) {
            Some(loss) => self.clear(loss, now_ns),
            None => {
                let is_kept = self.settings.had_it && self.why == VipWhy::Unseen && look.here == VipPresence::Whole;
                let note = if is_kept { VipNote::Kept } else { VipNote::Gained(VipGain::Found) };
                self.begin_to_hold(VipGain::Found, 0, now_ns, note);
            }
        }
    }

    /// Removes such addresses, and again after a pause if they stay or come back.
    fn clear(&mut self, loss: VipLoss, now_ns: u64) {
        self.stage = VipStage::Stands;
        self.left_over.take_if(|it| now_ns.saturating_sub(it.seen_ns) >= SOON_NS);
        let is_new = self.left_over.is_none();
        let it = self.left_over.get_or_insert(LeftOver { since_ns: now_ns, seen_ns: now_ns, next_ns: now_ns });
        it.seen_ns = now_ns;
        if now_ns < it.next_ns {
            return;
        }
        let since_ns = it.since_ns;
        it.next_ns = now_ns + if now_ns - since_ns < SOON_NS { AGAIN_NS } else { AGAIN_LATER_NS };
        self.orders.push_back(VipOrder::Remove { serves: true });
        if is_new {
            self.orders.push_back(VipOrder::Note(VipNote::Lost(loss)));
        }
        self.pause(VipWhy::GaveUp, since_ns, now_ns);
    }

    /// The ready peer that this instance, which is not ready, gives the VIP up to.
    pub(super) fn heir(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<InstanceName> {
        if self.is_linking(look) {
            return None;
        }
        if look.ready && look.has_backend {
            self.no_backend_ns = None;
            return None;
        }
        let heir = self.best_ready(peers);
        if look.ready {
            match heir {
                None => self.no_backend_ns = None,
                Some(_) => {
                    let since_ns = *self.no_backend_ns.get_or_insert(look.now_ns);
                    if look.now_ns - since_ns < NO_BACKEND_NS {
                        return None;
                    }
                }
            }
        }
        let is_soon = self.unready_ns.is_some_and(|at_ns| look.now_ns.saturating_sub(at_ns) < UNREADY_AGAIN_NS);
        heir.filter(|_| !is_soon)
    }

    /// Whether this instance began a moment ago with the VIP on its host, and is ready as soon as its peers have told it what they know.
    fn is_linking(&self, look: &VipLook<'_>) -> bool {
        let VipStage::Holds { since_ns, gain: VipGain::Found, .. } = &self.stage else { return false };
        look.bar == Some(VipBar::Starting) && look.now_ns.saturating_sub(*since_ns) < LINKING_NS
    }

    /// The best of the ready peers that could take the VIP.
    fn best_ready(&self, peers: &[PeerVip]) -> Option<InstanceName> {
        let able = peers.iter().filter(|peer| peer.is_heard()).filter_map(|peer| Some((peer, self.says(peer)?)));
        let able = able.filter(|(_, its)| its.ready && its.is_able());
        let heirs = self.heirs(peers);
        able.max_by(|(one, its), (other, theirs)| its.rank(&one.name, &heirs).cmp(&theirs.rank(&other.name, &heirs)))
            .map(|(peer, _)| peer.name.clone())
    }
}

/// Addresses on this host that the machine has not added.
#[derive(Debug)]
pub(super) struct LeftOver {
    since_ns: u64,
    seen_ns: u64,
    /// The machine does not remove them again before this time.
    next_ns: u64,
}
