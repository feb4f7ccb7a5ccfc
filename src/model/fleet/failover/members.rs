//! Who belongs to the fleet, and who has which address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::agenda::Agenda;
use super::peer::PeerState;
use super::{Action, Settings};
use crate::model::ends::Ends;
use crate::model::fleet::{InstanceName, Liveness};

/// For so long after a VIP has come a silent owner counts as dead.
const FRESH_NS: u64 = 5_000_000_000;

/// The other instances and the addresses of this host: what says who is to look after a flow, and how others are reached.
#[derive(Debug)]
pub(super) struct Members {
    settings: Settings,
    /// Addresses of frontends that the file has no more: flows may live there until their drain is over.
    former: BTreeSet<IpAddr>,
    peers: BTreeMap<InstanceName, PeerState>,
    /// The frontends' addresses that are on this host; `None`: nobody has said yet.
    here: Option<BTreeSet<IpAddr>>,
    /// This host's other addresses.
    own: BTreeSet<IpAddr>,
    /// Until then a silent owner counts as dead, unless it has answered since: a VIP has come.
    fresh_until_ns: u64,
    /// Other live instances have the same VIP.
    shared: bool,
}

/// The frontends' addresses that have come to this host, and that have left it.
#[derive(Debug)]
pub(super) struct VipsMoved {
    pub(super) came: Vec<IpAddr>,
    pub(super) went: Vec<IpAddr>,
}

impl Members {
    pub(super) fn new(settings: Settings) -> Self {
        let peers = settings.peers.iter().map(|(name, link)| (name.clone(), PeerState::new(*link))).collect();
        let (here, own) = (None, BTreeSet::new());
        Self { settings, former: BTreeSet::new(), peers, here, own, fresh_until_ns: 0, shared: false }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where frontends listen.
    pub(super) fn vips(&self) -> BTreeSet<IpAddr> {
        self.settings.vips.iter().map(|vip| vip.ip()).collect()
    }

    /// The file has been read again. Returns what counts as a frontend's address from now on and is here already.
    pub(super) fn configure(&mut self, settings: Settings) -> Vec<IpAddr> {
        let Settings { vips: all, challenge, guard_ns, priority, .. } = settings;
        let known = self.vips();
        (self.settings.vips, self.settings.challenge, self.settings.guard_ns) = (all, challenge, guard_ns);
        self.settings.priority = priority;
        let listens = self.vips();
        self.former.extend(known.difference(&listens));
        self.former.retain(|ip| !listens.contains(ip));
        let vips = self.all_vips();
        if let Some(here) = &mut self.here {
            // What is here has not come just now: it only counts from now on.
            let addresses: BTreeSet<_> = here.union(&self.own).copied().collect();
            (*here, self.own) = addresses.into_iter().partition(|ip| vips.contains(ip));
        }
        vips.difference(&known).copied().filter(|ip| self.is_here(*ip)).collect()
    }

    /// Where frontends listen, or did in an earlier file.
    fn all_vips(&self) -> BTreeSet<IpAddr> {
        self.vips().union(&self.former).copied().collect()
    }

    pub(super) fn joined(&mut self, owner: InstanceName, link: IpAddr) {
        self.peers.entry(owner).or_insert_with(|| PeerState::new(link)).link_at(link);
    }

    /// Returns whether it was one.
    pub(super) fn gone(&mut self, owner: &InstanceName) -> bool {
        self.peers.remove(owner).is_some()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = (&InstanceName, &PeerState)> {
        self.peers.iter()
    }

    pub(super) fn peer(&self, owner: &InstanceName) -> Option<&PeerState> {
        self.peers.get(owner)
    }

    pub(super) fn peer_mut(&mut self, owner: &InstanceName) -> Option<&mut PeerState> {
        self.peers.get_mut(owner)
    }

    pub(super) fn is_dead(&self, owner: &InstanceName) -> bool {
        self.peers.get(owner).is_some_and(PeerState::is_dead)
    }

    pub(super) fn dead(&self) -> Vec<InstanceName> {
        self.names(PeerState::is_dead)
    }

    pub(super) fn living(&self) -> Vec<InstanceName> {
        self.names(|peer| !peer.is_dead())
    }

    fn names(&self, which: impl Fn(&PeerState) -> bool) -> Vec<InstanceName> {
        self.peers.iter().filter(|(_, peer)| which(peer)).map(|(name, _)| name.clone()).collect()
    }

    /// All addresses of this host.
    pub(super) fn move_addresses(&mut self, addresses: &[IpAddr]) -> VipsMoved {
        let vips = self.all_vips();
        let (now, own): (BTreeSet<_>, _) = addresses.iter().partition(|ip| vips.contains(ip));
        self.own = own;
        if now.is_empty() {
            // Whoever has got it now judges whether its last owner lives.
            self.fresh_until_ns = 0;
        }
        let before = self.here.replace(now.clone());
        let went = before.iter().flatten().filter(|ip| !now.contains(ip)).copied().collect();
        let came = match &before {
            Some(before) => now.difference(before).copied().collect(),
            // As it was when this process began: nothing has moved.
            None => Vec::new(),
        };
        VipsMoved { came, went }
    }

    /// VIPs have come here: whoever does not answer from now on may have died of what brought them. Returns who has fallen silent
    /// already.
    pub(super) fn vips_came(&mut self, now_ns: u64) -> Vec<InstanceName> {
        self.fresh_until_ns = now_ns + FRESH_NS;
        self.peers.values_mut().for_each(PeerState::await_answer);
        self.names(|peer| !peer.is_dead() && peer.liveness() == Liveness::Silent)
    }

    pub(super) fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns < self.fresh_until_ns
    }

    /// Whether anybody is to be asked if it lives.
    pub(super) fn ping(&mut self, now_ns: u64) -> bool {
        self.peers.values_mut().filter_map(|peer| peer.ping(now_ns).then_some(())).count() > 0
    }

    /// Who was asked and has not answered in time; said once.
    pub(super) fn take_mute(&mut self, now_ns: u64) -> Vec<InstanceName> {
        let mute = self.peers.iter_mut().filter_map(|(name, peer)| peer.take_mute(now_ns).then_some(name));
        mute.cloned().collect()
    }

    pub(super) fn is_here(&self, ip: IpAddr) -> bool {
        self.here.as_ref().is_some_and(|here| here.contains(&ip))
    }

    /// The frontends' addresses that are on this host.
    pub(super) fn here(&self) -> impl Iterator<Item = IpAddr> {
        self.here.iter().flatten().copied()
    }

    /// Whether nobody can carry the flow: its backend or its client is on this host, and what that gets seems to come from an
    /// address of this host, too. A kernel takes no such packet from the wire, and sends none there.
    pub(super) fn is_stuck(&self, ends: &Ends) -> bool {
        let both_here = |end, from| self.own.contains(&end) && self.is_here(from);
        both_here(ends.backend.ip(), ends.local.ip()) || both_here(ends.client.ip(), ends.vip.ip())
    }

    /// Whether one of its ends is on this host.
    pub(super) fn is_own(&self, ends: &Ends) -> bool {
        [ends.backend.ip(), ends.client.ip()].iter().any(|ip| self.own.contains(ip))
    }

    /// An address of the owner's host, of the family of `vip`, that is its own and no frontend's.
    pub(super) fn hop(&self, owner: &InstanceName, vip: IpAddr) -> Option<IpAddr> {
        let fits = |ip: &IpAddr| {
            let is_frontends = self.former.contains(ip) || self.settings.vips.iter().any(|vip| vip.ip() == *ip);
            ip.is_ipv4() == vip.is_ipv4() && !is_frontends
        };
        self.peers.get(owner)?.places().find(fits)
    }

    /// One of each family that it has.
    pub(super) fn hops(&self, name: &InstanceName) -> Vec<IpAddr> {
        let families = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        families.iter().filter_map(|family| self.hop(name, *family)).collect()
    }

    /// Where a peer is that lives and cannot be asked: what those that can be know nothing of may be its own. One that has
    /// the address goes first.
    pub(super) fn unlinked_hop(&self, vip: IpAddr, but: &[IpAddr]) -> Option<IpAddr> {
        let unlinked = self.peers.iter().filter(|(_, it)| it.liveness() == Liveness::Unlinked && !it.is_dead());
        let mut unlinked: Vec<_> = unlinked.collect();
        unlinked.sort_by_key(|(_, peer)| !peer.has(vip));
        unlinked.iter().filter_map(|(name, _)| self.hop(name, vip)).find(|to| !but.contains(to))
    }

    /// Whether this instance is the one to look after a flow of `vip` whose owner is dead: the first by name of those that
    /// have the address, or of all that live if none has.
    pub(super) fn is_heir(&self, vip: IpAddr) -> bool {
        let live = || self.peers.iter().filter(|(_, peer)| peer.serves());
        let others = |having: bool| live().filter(|(_, peer)| !having || peer.has(vip)).map(|(name, _)| name).min();
        let me = &self.settings.me;
        match (self.is_here(vip), others(true)) {
            (true, first) => first.is_none_or(|first| me < first),
            (false, Some(_)) => false,
            (false, None) => others(false).is_none_or(|first| me < first),
        }
    }

    /// Of two that both look after a flow of `vip`, whether this one goes on with it. If both think so, or neither does, it is
    /// nobody's for a moment, and then whose its packets come to.
    pub(super) fn prevails_over(&self, owner: &InstanceName, vip: IpAddr) -> bool {
        self.prevails_by_address(owner, vip).unwrap_or(self.settings.me < *owner)
    }

    /// `None`: both have the address, or neither.
    pub(super) fn prevails_by_address(&self, owner: &InstanceName, vip: IpAddr) -> Option<bool> {
        let there = self.peers.get(owner).is_some_and(|peer| peer.has(vip));
        let here = self.is_here(vip);
        (here != there).then_some(here)
    }

    /// Whether packets of one flow may come to several instances.
    pub(super) fn see_sharing(&mut self, agenda: &mut Agenda) {
        let here = self.here().collect();
        self.peers.values_mut().for_each(|peer| peer.see_shared(&here));
        let shared = self.peers.values().any(|peer| peer.may_meet(&here));
        if shared != self.shared {
            self.shared = shared;
            agenda.act(Action::Shared(shared));
        }
    }
}
