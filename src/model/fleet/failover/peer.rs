//! What is known of one other instance, and how it is reached.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use super::{Action, Failover, Known, KnownState};
use crate::model::fleet::{
    AcceptedFlow, Epoch, Farewell, FleetId, InstanceName, Liveness, PeerPortRange, PortRange, SLOTS, StandbyRequest,
    port_range,
};

#[derive(Debug)]
pub(super) struct PeerState {
    /// Where its link is.
    pub link: IpAddr,
    pub liveness: Liveness,
    /// Its flows have been taken over.
    pub is_dead: bool,
    /// When it was last asked whether it lives, if it has not answered.
    pub pinged_ns: Option<u64>,
    /// It has answered since a frontend's address last came here: so that did not come because of its death.
    pub answered: bool,
    pub synced: bool,
    /// The frontends' addresses that both hosts have, as far as was heard of it: none that has come here since it last answered.
    shared: BTreeSet<IpAddr>,
    slot: Option<u8>,
    /// Of the process that was last heard.
    epoch: Option<Epoch>,
    /// That said that another one goes on with all that it has.
    is_succeeded: bool,
    /// Another process has begun since it was last synced, without any socket of the one before.
    is_anew: bool,
    /// Flows in sockets that died with it, and whose address was not here then.
    pub untold: HashSet<FleetId>,
    /// All addresses of its host.
    pub addresses: Vec<IpAddr>,
    pub flows: HashSet<FleetId>,
    /// Those that its snapshot, which is under way, has not named yet.
    pub stale: HashSet<FleetId>,
    /// Others have told of these since it did, and its snapshot has not named them yet.
    pub also_stale: HashSet<FleetId>,
}

impl PeerState {
    pub(super) fn new(link: IpAddr) -> Self {
        Self {
            link,
            liveness: Liveness::Unheard,
            is_dead: false,
            pinged_ns: None,
            answered: false,
            synced: false,
            shared: BTreeSet::new(),
            slot: None,
            epoch: None,
            is_succeeded: false,
            is_anew: false,
            untold: HashSet::new(),
            addresses: Vec::new(),
            flows: HashSet::new(),
            stale: HashSet::new(),
            also_stale: HashSet::new(),
        }
    }

    /// It may still say something.
    pub(super) fn can_be_asked(&self) -> bool {
        !self.is_dead && matches!(self.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent)
    }

    /// What it has is known here, or it has nothing.
    pub(super) fn has_told(&self) -> bool {
        match self.liveness {
            _ if self.is_dead => true,
            Liveness::Alive => self.synced,
            Liveness::Unheard | Liveness::Dead | Liveness::Left(Farewell::Stopped) => true,
            Liveness::Unlinked | Liveness::Silent | Liveness::Left(Farewell::Succeeded) => false,
        }
    }

    /// Whether backend legs from its ports may live. Who is not heard and counts as dead may be cut off from here alone; behind a router
    /// it goes on getting clients then, and of what begins there nobody is told.
    fn may_have_legs(&self) -> bool {
        self.serves()
            || !self.shared.is_empty()
                && !matches!(self.liveness, Liveness::Unheard | Liveness::Left(Farewell::Stopped))
    }

    fn serves(&self) -> bool {
        let left = Liveness::Left(Farewell::Succeeded);
        !self.is_dead
            && (matches!(self.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent)
                || self.liveness == left)
    }
}

impl Failover {
    pub(super) fn begin(&mut self, owner: &InstanceName, epoch: Epoch, slot: u8) {
        let Some(peer) = self.peers.get_mut(owner) else { return };
        peer.stale = peer.flows.clone();
        let also = self.flows.iter().filter(|(_, known)| known.also.contains(owner));
        peer.also_stale = also.map(|(id, _)| *id).collect();
        peer.synced = false;
        peer.slot = Some(slot);
        if peer.epoch.replace(epoch).is_some_and(|before| before != epoch) {
            peer.is_anew |= !std::mem::take(&mut peer.is_succeeded);
        }
        // Nobody tells what it has and is dead.
        self.lives(owner);
        self.show_port_ranges();
    }

    pub(super) fn synced(&mut self, now_ns: u64, owner: &InstanceName) {
        let Some(peer) = self.peers.get_mut(owner) else { return };
        peer.synced = true;
        let gone: Vec<_> = std::mem::take(&mut peer.stale).into_iter().collect();
        let also_gone = std::mem::take(&mut peer.also_stale);
        let (is_anew, mut untold) = (std::mem::take(&mut peer.is_anew), std::mem::take(&mut peer.untold));
        untold.retain(|id| is_anew && gone.contains(id));
        let untold: Vec<_> = untold.into_iter().filter_map(|id| Some((id, self.flows.get(&id)?.ends))).collect();
        if !also_gone.is_empty() {
            self.says_no_more(owner, |id| also_gone.contains(id));
        }
        // What another has given to it, it may not have heard of yet; nor does it name what it has given back.
        let was_told = |id: &FleetId| self.flows.get(id).is_some_and(|known| known.told);
        let gone: Vec<_> = gone.into_iter().filter(was_told).collect();
        gone.into_iter().for_each(|id| self.remove(id));
        // All that it has is known by now: of another flow a client may begin a new connection by the same port, and its SYN must not
        // go to a host that has not the address.
        self.lend_no_more(owner);
        self.died_unheard(now_ns, owner, untold);
        self.end_stuck(owner);
        self.settle();
    }

    pub(super) fn liveness(&mut self, now_ns: u64, owner: InstanceName, liveness: Liveness) {
        let is_fresh = now_ns < self.fresh_until_ns;
        let guard_ns = self.settings.guard_ns;
        let Some(peer) = self.peers.get_mut(&owner) else { return };
        let before = std::mem::replace(&mut peer.liveness, liveness);
        match liveness {
            Liveness::Alive => {
                (peer.pinged_ns, peer.answered) = (None, true);
                if !peer.synced && before != Liveness::Alive {
                    // What it has is about to be told.
                    self.guard_until_ns = self.guard_until_ns.max(now_ns + guard_ns);
                    self.agenda.later(self.guard_until_ns, super::Timer::Guard);
                }
                self.lives(&owner);
            }
            // What it does meanwhile is not heard, but what it had is its own.
            Liveness::Unlinked => {
                peer.pinged_ns = None;
                self.lives(&owner);
            }
            Liveness::Dead | Liveness::Left(Farewell::Stopped) => self.bury(&owner),
            Liveness::Silent if is_fresh && !peer.answered => self.bury(&owner),
            Liveness::Left(Farewell::Succeeded) => peer.is_succeeded = true,
            Liveness::Silent | Liveness::Unheard => {}
        }
        self.see_sharing();
        self.show_port_ranges();
        let is_parted = |liveness| matches!(liveness, Liveness::Unlinked | Liveness::Dead);
        let comes_or_goes = before != liveness && (is_parted(before) || is_parted(liveness));
        if comes_or_goes && self.settings.carries && self.peers.get(&owner).is_some_and(|peer| !peer.shared.is_empty())
        {
            self.agenda.path(StandbyRequest::AskEnds);
        }
    }

    /// It was taken for dead, and is heard of again: what was refused in its name is forwarded again.
    fn lives(&mut self, owner: &InstanceName) {
        let Some(peer) = self.peers.get_mut(owner).filter(|peer| peer.is_dead) else { return };
        peer.is_dead = false;
        self.forward_again(owner, |state| state == KnownState::Refused);
        self.rounds.retain(|_, round| round.from != *owner);
    }

    pub(super) fn peer_addresses(&mut self, owner: &InstanceName, addresses: Vec<IpAddr>) {
        let Some(peer) = self.peers.get_mut(owner) else { return };
        let before = std::mem::replace(&mut peer.addresses, addresses);
        let now = peer.addresses.clone();
        // Both had it: neighbours may still believe the other.
        let here = self.here.iter().flatten();
        let left: Vec<_> = here.filter(|ip| before.contains(ip) && !now.contains(ip)).copied().collect();
        left.into_iter().for_each(|ip| self.agenda.act(Action::Announce(ip)));
        self.see_last_owners();
        self.see_sharing();
        self.show_port_ranges();
        if before != now {
            self.forward_again(owner, |state| state == KnownState::Noted);
        }
    }

    fn forward_again(&mut self, owner: &InstanceName, which: impl Fn(KnownState) -> bool) {
        let Some(peer) = self.peers.get(owner) else { return };
        for id in peer.flows.iter().copied().collect::<Vec<_>>() {
            let again = |known: &&Known| which(known.state) && !self.is_stuck(&known.ends);
            let known = self.flows.get(&id).filter(again);
            let flow = known.map(|&Known { ends, accepted_unix_ms, .. }| AcceptedFlow { ends, accepted_unix_ms });
            let Some(flow) = flow else { continue };
            let state = self.forward(owner, flow);
            if let Some(known) = self.flows.get_mut(&id) {
                known.state = state;
            }
        }
    }

    /// An address of the owner's host, of the family of `vip`, that is its own and no frontend's.
    pub(super) fn hop(&self, owner: &InstanceName, vip: IpAddr) -> Option<IpAddr> {
        let peer = self.peers.get(owner)?;
        let fits = |ip: &IpAddr| {
            let is_frontends = self.settings.vips.iter().any(|vip| vip.ip() == *ip);
            ip.is_ipv4() == vip.is_ipv4() && !is_frontends
        };
        std::iter::once(&peer.link).chain(&peer.addresses).copied().find(fits)
    }

    /// Tells the offload engine whose backend legs come from which ports, if that has changed: those of all instances, for nobody else's
    /// packets are ever answered for.
    pub(super) fn show_port_ranges(&mut self) {
        if !self.settings.carries {
            return;
        }
        let part = |slot| port_range(self.settings.ports.clone(), slot);
        let own = part(self.settings.slot).map(|ports| PeerPortRange { ports, at: Vec::new() });
        let peers = self.peers.iter().filter_map(|(name, peer)| {
            let at = if peer.may_have_legs() { self.hops(name) } else { Vec::new() };
            Some(PeerPortRange { ports: part(peer.slot?)?, at })
        });
        // One that has not been heard yet has any of the others: what goes there may be of a flow that somebody holds.
        let known = |slot: &u8| *slot == self.settings.slot || self.peers.values().any(|peer| peer.slot == Some(*slot));
        let unheard = self.peers.values().any(|peer| peer.slot.is_none());
        let unknown = (0..SLOTS).filter(|slot| unheard && !known(slot));
        let unknown = unknown.filter_map(|slot| Some(PeerPortRange { ports: part(slot)?, at: Vec::new() }));
        // A port is looked for in their order.
        let mut port_ranges: Vec<_> = self.frontends_of_other_process();
        port_ranges.extend(own.into_iter().chain(peers).chain(unknown));
        if port_ranges != self.port_ranges {
            self.port_ranges.clone_from(&port_ranges);
            self.agenda.path(StandbyRequest::PortRanges(port_ranges));
        }
    }

    /// Frontends' ports whose unknown packets are for a peer, though no record says so: it has their address, or had it
    /// until a moment ago. A handshake that began there ends there, and nobody could be told of it before it has ended.
    fn frontends_of_other_process(&self) -> Vec<PeerPortRange> {
        let ports: BTreeSet<_> = self.settings.vips.iter().map(|vip| vip.port()).collect();
        let of = |port| self.settings.vips.iter().filter(move |vip| vip.port() == port).map(|vip| vip.ip());
        let port_ranges = ports.into_iter().filter_map(|port| {
            let mut came = of(port).filter(|ip| self.just_came.contains_key(ip)).peekable();
            let owners: BTreeSet<_> = match came.peek() {
                Some(_) => came.filter_map(|ip| self.last_owners.get(&ip)).collect(),
                // The offload engine tells them by port alone, and what comes for this one is this instance's.
                None if of(port).any(|ip| self.is_here(ip)) => return None,
                None => of(port).filter_map(|ip| self.last_owners.get(&ip)).collect(),
            };
            let mut owners = owners.into_iter().filter(|owner| self.peers[*owner].serves());
            let (owner, None) = (owners.next()?, owners.next()) else { return None };
            Some(PeerPortRange { ports: PortRange { first: port, last: port }, at: self.hops(owner) })
        });
        port_ranges.collect()
    }

    /// One of each family that it has.
    pub(super) fn hops(&self, name: &InstanceName) -> Vec<IpAddr> {
        let families = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        families.iter().filter_map(|family| self.hop(name, *family)).collect()
    }

    /// An address that is on its way is still its last owner's; one that several have is nobody's alone.
    pub(super) fn see_last_owners(&mut self) {
        for ip in self.settings.vips.iter().map(|vip| vip.ip()).collect::<BTreeSet<_>>() {
            let mut owners = self.peers.iter().filter(|(_, peer)| peer.serves() && peer.addresses.contains(&ip));
            match (owners.next().map(|(name, _)| name.clone()), owners.next()) {
                (Some(owner), None) => drop(self.last_owners.insert(ip, owner)),
                (Some(_), Some(_)) => drop(self.last_owners.remove(&ip)),
                (None, _) => {}
            }
        }
    }

    pub(super) fn left_for_good(&mut self, now_ns: u64, ip: IpAddr) {
        if self.just_came.get(&ip).is_some_and(|until_ns| *until_ns <= now_ns) {
            self.just_came.remove(&ip);
            self.show_port_ranges();
        }
    }

    /// Whether packets of one flow may come to several instances.
    pub(super) fn see_sharing(&mut self) {
        let here: BTreeSet<_> = self.here.iter().flatten().collect();
        for peer in self.peers.values_mut() {
            let both: BTreeSet<_> = peer.addresses.iter().filter(|ip| here.contains(ip)).copied().collect();
            peer.shared = match peer.serves() && peer.answered {
                true => both,
                false => peer.shared.intersection(&both).copied().collect(),
            };
        }
        let has = |peer: &PeerState| peer.addresses.iter().any(|ip| self.is_here(*ip));
        let may_meet = |peer: &PeerState| peer.serves() && has(peer) || peer.may_have_legs() && !peer.shared.is_empty();
        let shared = self.peers.values().any(may_meet);
        if shared != self.shared {
            self.shared = shared;
            self.agenda.act(Action::Shared(shared));
        }
    }

    /// Whether this instance is the one to look after a flow of `vip` whose owner is dead: the first by name of those that
    /// have the address, or of all that live if none has.
    pub(super) fn is_heir(&self, vip: IpAddr) -> bool {
        let live = || self.peers.iter().filter(|(_, peer)| peer.serves());
        let others = |having: bool| {
            live().filter(|(_, peer)| !having || peer.addresses.contains(&vip)).map(|(name, _)| name).min()
        };
        let me = &self.settings.me;
        match (self.is_here(vip), others(true)) {
            (true, first) => first.is_none_or(|first| me < first),
            (false, Some(_)) => false,
            (false, None) => others(false).is_none_or(|first| me < first),
        }
    }
}
