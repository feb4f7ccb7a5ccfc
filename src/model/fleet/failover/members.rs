//! The members of the fleet, and the addresses of each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::agenda::Agenda;
use super::peer::PeerState;
use super::timer::Timer;
use super::{Action, Settings};
use crate::addr::VipAddr;
use crate::model::ends::Ends;
use crate::model::fleet::{InstanceName, Liveness, PeerCommand, PortRange, Strangeness};

/// For so long after a VIP has come here, a silent owner counts as dead.
const FRESH_NS: u64 = 5_000_000_000;

/// So long an address may be away from a live owner before flows that nothing forwards to it are reset.
const UNFORWARDED_NS: u64 = 2_000_000_000;

/// No outgoing connection has a lower port (net/ipv4/sysctl_net_ipv4.c, ipv4_local_port_range), unless an administrator has moved
/// this limit.
const UNPRIVILEGED: u16 = 1024;

/// Ranges of ports that are kept: as many as a fleet has when each instance has changed its own several times.
const TOLD_PORTS_MAX: usize = 64;

/// The other instances and the addresses of this host. They determine which instance owns a flow, and how to reach a
/// peer.
#[derive(Debug)]
pub(crate) struct Members {
    settings: Settings,
    /// Frontends' listening addresses that the configuration no longer names: flows may use them until their drain is over.
    former: BTreeSet<VipAddr>,
    peers: BTreeMap<InstanceName, PeerState>,
    /// From these ports instances connect to backends, or did: flows outlive the range of ports from which they began, and the
    /// instance.
    told_ports: Vec<PortRange>,
    /// The frontends' addresses that are on this host; `None`: not known yet.
    here: Option<BTreeSet<IpAddr>>,
    /// This host's other addresses.
    own: BTreeSet<IpAddr>,
    /// Until then a silent owner counts as dead, unless it has answered since a VIP came here.
    fresh_until_ns: u64,
    /// Whether other live instances have the same VIP.
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
        Self {
            settings,
            former: BTreeSet::new(),
            peers,
            told_ports: Vec::new(),
            here,
            own,
            fresh_until_ns: 0,
            shared: false,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The frontends' listening addresses.
    pub(super) fn vips(&self) -> BTreeSet<IpAddr> {
        self.settings.vips.iter().map(|vip| vip.ip()).collect()
    }

    /// Applies new settings. Returns addresses that are here already and that count as a frontend's from now on.
    pub(super) fn configure(&mut self, settings: Settings) -> Vec<IpAddr> {
        let Settings { vips: all, listens, backend_keys, sources, challenge, guard_ns, priority, .. } = settings;
        let known = self.vips();
        (self.settings.vips, self.settings.challenge, self.settings.guard_ns) = (all, challenge, guard_ns);
        (self.settings.sources, self.settings.priority) = (sources, priority);
        self.settings.backend_keys = backend_keys;
        self.former.extend(std::mem::replace(&mut self.settings.listens, listens));
        self.former.retain(|listen| !self.settings.listens.contains(listen));
        let vips = self.all_vips();
        if let Some(here) = &mut self.here {
            // An address that was here before has not come now: it only counts from now on.
            let addresses: BTreeSet<_> = here.union(&self.own).copied().collect();
            (*here, self.own) = addresses.into_iter().partition(|ip| vips.contains(ip));
        }
        vips.difference(&known).copied().filter(|ip| self.is_here(*ip)).collect()
    }

    /// The frontends' listening addresses, and those of earlier configurations.
    fn all_vips(&self) -> BTreeSet<IpAddr> {
        let former = self.former.iter().map(|listen| listen.ip());
        let mut vips = self.vips();
        vips.extend(former.filter(|ip| !ip.is_unspecified() && !ip.is_loopback()));
        vips
    }

    /// Whether a frontend has this address, or had it in an earlier configuration.
    pub(crate) fn is_vip(&self, ip: IpAddr) -> bool {
        self.former.iter().chain(&self.settings.vips).any(|vip| vip.ip() == ip)
    }

    /// Whether `owner` can have a flow with these ends: its client has asked a frontend, here or at an address of `owner`'s host, and
    /// its backend leg does not come from an address that only this host has. An entry for other ends would take the packets of a
    /// connection that is not Baton's.
    fn can_be_peers(&self, owner: &InstanceName, ends: &Ends) -> bool {
        let (vip, from) = (ends.vip, ends.local.ip());
        let mut listens = self.settings.listens.iter().chain(&self.former);
        // Instances without a VIP listen each on its own address.
        let is_owners = self.peer(owner).is_some_and(|peer| peer.has(vip.ip())) && !self.own.contains(&vip.ip());
        let is_asked = |listen: &VipAddr| {
            let is_there = listen.ip() == vip.ip() || listen.ip().is_unspecified() || is_owners;
            listen.port() == vip.port() && is_there
        };
        listens.any(is_asked)
            && (from == vip.ip() || !self.own.contains(&from) || self.settings.sources.contains(&from))
    }

    /// Whether the workers take an offloaded flow that this instance inherits: they look for its backend and then for a frontend at its address.
    /// `backend_key`: as in its record. `None`: not known, and so not the reason to reset it.
    pub(super) fn serves(&self, ends: &Ends, backend_key: Option<u64>) -> bool {
        let (ip, port) = (ends.vip.ip(), ends.vip.port());
        let is_its = |listen: &VipAddr| {
            let is_any = listen.ip().is_unspecified() && listen.ip().is_ipv4() == ip.is_ipv4();
            listen.port() == port && (listen.ip() == ip || is_any)
        };
        backend_key.is_none_or(|key| self.settings.backend_keys.contains(&key))
            || self.settings.listens.iter().any(is_its)
    }

    /// Whether an earlier configuration named an address of a frontend that the present one does not.
    pub(super) fn has_former(&self) -> bool {
        !self.former.is_empty()
    }

    /// Why no flow of `owner` can have these ends. `None`: it can.
    pub(super) fn strangeness(&self, owner: &InstanceName, ends: &Ends) -> Option<Strangeness> {
        match () {
            () if !self.can_be_peers(owner, ends) => Some(Strangeness::Frontend),
            () if !self.can_be_leg(ends.local.port()) => Some(Strangeness::Port),
            () => None,
        }
    }

    /// Whether an instance of this fleet connects to backends from this port, or did. It may be any of them: flows go from one to
    /// another. With a port of a service, the entry for what the backend sends would take packets of a client of that service.
    fn can_be_leg(&self, port: u16) -> bool {
        let is_unknown = self.peers.values().any(|peer| !peer.has_told_ports());
        self.settings.ports.contains(&port)
            || port >= UNPRIVILEGED && (is_unknown || self.told_ports.iter().any(|ports| ports.contains(port)))
    }

    /// `owner` has told ports of its host. If they are more than were known, flows that were not taken are asked for again.
    pub(super) fn tell_ports(&mut self, owner: &InstanceName, ports: PortRange, agenda: &mut Agenda) {
        let Some(peer) = self.peers.get_mut(owner) else { return };
        peer.tell_ports();
        if !self.told_ports.contains(&ports) && self.told_ports.len() < TOLD_PORTS_MAX {
            self.told_ports.push(ports);
            self.take_lacking().into_iter().for_each(|owner| agenda.send(PeerCommand::AskAgain(owner)));
        }
    }

    /// The ports that instances have told.
    pub(super) fn told_ports(&self) -> &[PortRange] {
        &self.told_ports
    }

    /// Returns, only once, the peers of which not all flows were taken.
    pub(super) fn take_lacking(&mut self) -> Vec<InstanceName> {
        let lacking = self.peers.iter_mut().filter_map(|(name, peer)| peer.take_lacks().then_some(name));
        lacking.cloned().collect()
    }

    pub(super) fn joined(&mut self, owner: InstanceName, link: IpAddr) {
        self.peers.entry(owner).or_insert_with(|| PeerState::new(link)).link_at(link);
    }

    /// Removes a member. Returns whether `owner` was one.
    pub(super) fn gone(&mut self, owner: &InstanceName) -> bool {
        self.peers.remove(owner).is_some()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = (&InstanceName, &PeerState)> {
        self.peers.iter()
    }

    /// Whether each peer is alive and linked.
    pub(crate) fn hears_all(&self) -> bool {
        self.peers().all(|(_, peer)| peer.is_heard())
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
            // The new owner of the address judges whether its last owner lives.
            self.fresh_until_ns = 0;
        }
        let before = self.here.replace(now.clone());
        if before.as_ref() != Some(&now) {
            self.peers.values_mut().for_each(PeerState::addresses_have_moved);
        }
        let went = before.iter().flatten().filter(|ip| !now.contains(ip)).copied().collect();
        let came = match &before {
            Some(before) => now.difference(before).copied().collect(),
            // The first report after this process began: no address has moved.
            None => Vec::new(),
        };
        VipsMoved { came, went }
    }

    /// VIPs have come here, perhaps because their owner died: from now on a peer that does not answer may be dead.
    /// Returns the peers that are silent already.
    pub(super) fn vips_came(&mut self, now_ns: u64) -> Vec<InstanceName> {
        self.fresh_until_ns = now_ns + FRESH_NS;
        self.peers.values_mut().for_each(PeerState::await_answer);
        self.names(|peer| !peer.is_dead() && peer.liveness() == Liveness::Silent)
    }

    pub(super) fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns < self.fresh_until_ns
    }

    /// Whether any peer must be asked if it lives.
    pub(super) fn ping(&mut self, now_ns: u64) -> bool {
        self.peers.values_mut().filter_map(|peer| peer.ping(now_ns).then_some(())).count() > 0
    }

    /// Returns, only once, the peers that were asked and did not answer in time.
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

    /// Whether the flow's packets pass by `lo`: its backend or its client is on this host, and so is the address from which
    /// the packets to that end come. A kernel accepts no such packet from the wire, and sends none there.
    pub(super) fn is_stuck(&self, ends: &Ends) -> bool {
        let both_here = |end, from| self.own.contains(&end) && self.is_here(from);
        both_here(ends.backend.ip(), ends.local.ip()) || both_here(ends.client.ip(), ends.vip.ip())
    }

    /// Whether no instance can carry the flow, although its VIP is here: its packets pass by `lo`, and the program does not
    /// carry it there.
    pub(super) fn is_lost(&self, ends: &Ends, is_offloaded: bool) -> bool {
        self.is_stuck(ends) && !(is_offloaded && self.settings.carries)
    }

    /// Whether packets of `owner`'s flows of `vip` come here for good, and to nobody but this kernel, which knows no such connection: without the
    /// program nothing forwards them.
    pub(super) fn ends_here(&self, owner: &InstanceName, vip: IpAddr) -> bool {
        self.is_unforwarded(owner, vip) && self.peer(owner).is_some_and(PeerState::has_lost_address)
    }

    fn is_unforwarded(&self, owner: &InstanceName, vip: IpAddr) -> bool {
        let is_here_alone = self.peer(owner).is_some_and(|peer| peer.serves() && !peer.has(vip)) && self.is_here(vip);
        !self.settings.carries && is_here_alone
    }

    /// Its address may go back in a moment, as where one program hands it to another: until a packet comes, its flows are whole.
    pub(super) fn watch_unforwarded(&self, now_ns: u64, owner: &InstanceName, agenda: &mut Agenda) {
        if self.here().any(|vip| self.is_unforwarded(owner, vip)) {
            agenda.later(now_ns + UNFORWARDED_NS, Timer::Unforwarded(owner.clone()));
        }
    }

    /// Whether one of its ends is on this host.
    pub(super) fn is_own(&self, ends: &Ends) -> bool {
        [ends.backend.ip(), ends.client.ip()].into_iter().any(|ip| self.has_own(ip))
    }

    /// Whether a living peer's host has both addresses.
    pub(crate) fn are_together(&self, vip: IpAddr, end: IpAddr) -> bool {
        self.peers().any(|(_, peer)| peer.serves() && peer.has(vip) && peer.has(end))
    }

    /// Whether this host may lack a frontend's address.
    pub(crate) fn lacks_vip(&self) -> bool {
        let lacks = |ip: IpAddr| ip.is_unspecified() || !ip.is_loopback() && !self.is_here(ip);
        self.settings.listens.iter().chain(&self.former).any(|listen| lacks(listen.ip()))
    }

    /// Whether a living peer's host has `vip`, and this one does not.
    pub(crate) fn is_at_peer_alone(&self, vip: IpAddr) -> bool {
        let is_on_this_host = self.is_here(vip) || self.has_own(vip);
        !is_on_this_host && self.peers().any(|(_, peer)| peer.serves() && peer.has(vip))
    }

    /// Whether a linked peer's host keeps `vip` on `lo`. What a peer without a link said may be outdated.
    pub(crate) fn is_kept_by_peer(&self, vip: IpAddr) -> bool {
        self.peers().any(|(_, peer)| peer.is_heard() && peer.keeps(vip))
    }

    /// Whether a linked peer's host has the address `end`, and keeps `vip` on `lo`.
    pub(crate) fn is_kept_beside(&self, vip: IpAddr, end: IpAddr) -> bool {
        self.peers().any(|(_, peer)| peer.is_heard() && peer.keeps(vip) && peer.has(end))
    }

    /// Whether the address is this host's, and no VIP.
    pub(crate) fn has_own(&self, ip: IpAddr) -> bool {
        self.own.contains(&ip)
    }

    /// An address of the owner's host of the same family as `vip` that is not a frontend's address.
    pub(super) fn hop(&self, owner: &InstanceName, vip: IpAddr) -> Option<IpAddr> {
        let fits = |ip: &IpAddr| ip.is_ipv4() == vip.is_ipv4() && !self.is_vip(*ip);
        self.peers.get(owner)?.places().find(fits)
    }

    /// One address of each family that the peer has.
    pub(super) fn hops(&self, name: &InstanceName) -> Vec<IpAddr> {
        let families = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        families.iter().filter_map(|family| self.hop(name, *family)).collect()
    }

    /// The address of a live peer that cannot be asked: a packet that the other peers do not know may belong to it. A
    /// peer with the address `vip` goes first. `but`: addresses to leave out.
    pub(super) fn unlinked_hop(&self, vip: IpAddr, but: &[IpAddr]) -> Option<IpAddr> {
        let unlinked = self.peers.iter().filter(|(_, it)| it.liveness() == Liveness::Unlinked && !it.is_dead());
        let mut unlinked: Vec<_> = unlinked.collect();
        unlinked.sort_by_key(|(_, peer)| !peer.has(vip));
        unlinked.iter().filter_map(|(name, _)| self.hop(name, vip)).find(|to| !but.contains(to))
    }

    /// Whether this instance inherits a flow of `vip` whose owner is dead: it must be the first by name of the
    /// instances with the address, or of all live ones if none has it.
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

    /// This instance and `owner` both claim a flow of `vip`: whether it goes on here. If both conclude yes, or both no,
    /// the next packet decides.
    pub(super) fn prevails_over(&self, owner: &InstanceName, vip: IpAddr) -> bool {
        self.prevails_by_address(owner, vip).unwrap_or(self.settings.me < *owner)
    }

    /// As `prevails_over`, by the place of the address alone. `None`: both have the address, or neither.
    pub(super) fn prevails_by_address(&self, owner: &InstanceName, vip: IpAddr) -> Option<bool> {
        let there = self.peers.get(owner).is_some_and(|peer| peer.has(vip));
        let here = self.is_here(vip);
        (here != there).then_some(here)
    }

    /// Checks whether packets of one flow may come to several instances.
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
