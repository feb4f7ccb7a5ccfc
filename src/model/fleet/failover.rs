//! What becomes of other instances' flows when addresses and instances come and go: decisions only.
//!
//! ```text
//!   peer link ──Remote──▶ │            │ ──Path──▶ hold, forward, refuse, inherit
//!   addresses ──────────▶ │  Failover  │ ──Send──▶ claim, ask, ping
//!   path ──StandbyAnswer───▶ │            │ ──Announce, Challenge, Answer──▶ the wire
//! ```
//! A flow of another instance is in one of these states:
//! ```text
//!                 its owner keeps sockets          it has none any more
//!   (told) ──────▶ Forwarded ───────────────────────────▶ Held ──▶ this instance's: its packets come here,
//!                     │  ▲                                          or its owner is dead and the VIP is here
//!    its owner is dead│  │ it lives after all
//!                     ▼  │
//!                   Refused ──▶ forgotten: its client was told
//! ```
//! Dead is who was not heard of for long; who was not heard of for moments, too, when the VIP has just come here. Nobody
//! resets flows of an instance that answers on the link.

mod agenda;
mod bury;
mod claims;
mod flows;
mod members;
mod peer;
mod room;
#[cfg(test)]
mod tests;
mod timer;
mod unknown_packet;
mod unlisted;
mod untold;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::{
    Asked, FleetId, InstanceName, Liveness, PeerCommand, PeerPortRange, Remote, StandbyAnswer, StandbyRequest, Then,
    Unknown, UnknownPacket,
};
use crate::addr::VipAddr;
use crate::model::ends::{Ends, Key};

use agenda::Agenda;
use bury::Round;
pub use bury::{Challenge, Wake};
use peer::PeerState;
use timer::Timer;
use unlisted::Unlisted;
use untold::Untold;

/// What an operator may choose, and what the host is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub me: InstanceName,
    /// Which part of `ports` is this instance's.
    pub slot: u8,
    /// Where each peer's link is: the next hop towards it.
    pub peers: Vec<(InstanceName, IpAddr)>,
    /// Where frontends listen; port 0 is none.
    pub vips: Vec<VipAddr>,
    /// There is the offload engine: flows can be held and forwarded.
    pub carries: bool,
    pub challenge: bool,
    pub guard_ns: u64,
    /// Clients in the first of these are told first, then the next; all others last.
    pub priority: Vec<IpNet>,
    /// Source ports of this network's hosts, from which each instance has its part.
    pub ports: RangeInclusive<u16>,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Path(StandbyRequest),
    Send(PeerCommand),
    /// Tell all neighbours that the address is here.
    Announce(IpAddr),
    /// Make these ends show themselves, paced, in this order; then call `handle_challenged`.
    Challenge {
        round: u64,
        ends: Vec<Challenge>,
    },
    /// These clients have answered neither round, and their network may be out: wake them again and again.
    WakeOn(Vec<Wake>),
    /// Answer with RST.
    Answer(UnknownPacket),
    /// Other live instances have the same VIP: packets of one flow may come to several of them.
    Shared(bool),
    Note(Note),
}

/// What is worth remembering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// So many flows of a living owner are reset: their backend is on this host, and so is the address of their leg.
    Stuck {
        from: InstanceName,
        flows: usize,
    },
    /// The owner is dead: so many of its flows go on here, so many are reset.
    FailedOver {
        from: InstanceName,
        inherited: usize,
        reset: usize,
    },
    /// What became of those that were reset. Without offload nobody knows, and all count as silent.
    Told {
        from: InstanceName,
        answered: usize,
        silent: usize,
    },
    Claimed {
        from: InstanceName,
        flows: usize,
    },
    Released {
        to: InstanceName,
        flows: usize,
    },
    AddressCame(IpAddr),
    AddressWent(IpAddr),
}

/// See the module.
#[derive(Debug)]
pub struct Failover {
    settings: Settings,
    peers: BTreeMap<InstanceName, PeerState>,
    flows: HashMap<FleetId, Known>,
    /// By the ends of their ids: two flows do not have the same at one time.
    by_ends: HashMap<u64, FleetId>,
    /// Of packets of flows that are forwarded or refused.
    by_key: HashMap<Key, FleetId>,
    /// Flows that were other instances' and are this one's, or that another says are its own, until they are over.
    mine: HashMap<FleetId, Mine>,
    /// Flows of this instance of which another says the same.
    contested: HashSet<FleetId>,
    /// The frontends' addresses that are on this host; `None`: nobody has said yet.
    here: Option<BTreeSet<IpAddr>>,
    /// This host's other addresses.
    own: BTreeSet<IpAddr>,
    /// Until then a silent owner counts as dead, unless it has answered since: a VIP has come.
    fresh_until_ns: u64,
    guard_until_ns: u64,
    /// The one peer that has each of the frontends' addresses, or had it last.
    last_owners: BTreeMap<IpAddr, InstanceName>,
    /// Addresses that have just come, until when they count as such.
    just_came: BTreeMap<IpAddr, u64>,
    rules: HashMap<VipAddr, Unknown>,
    rounds: BTreeMap<u64, Round>,
    /// Rounds that wait to hear who has not answered, in the order of the questions.
    finding: VecDeque<u64>,
    next_round: u64,
    asked: HashMap<Key, unknown_packet::Waiting>,
    /// Keys without a record that are sent to a peer.
    lent: HashMap<Key, unknown_packet::LentPackets>,
    /// Keys of which nothing could be learnt, and since when.
    unsaid: HashMap<Key, u64>,
    untold: HashMap<FleetId, Untold>,
    unlisted: Unlisted,
    /// What an earlier process held has been sorted out.
    settled: bool,
    /// All peers are synced, or were waited for long enough.
    ready: bool,
    shared: bool,
    /// Flows that the map had no room for, until they are held after all or forgotten.
    no_room: HashSet<FleetId>,
    port_ranges: Vec<PeerPortRange>,
    agenda: Agenda,
}

/// A flow that was another instance's.
#[derive(Clone, Debug)]
struct Mine {
    /// `None`: not known any more, or not yet.
    ends: Option<Ends>,
    from: Option<InstanceName>,
    /// When packets of its client had last come while it was another's; 0: they have not.
    touched_ns: u64,
}

/// A flow of another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    owner: InstanceName,
    ends: Ends,
    /// As in its record; 0: nobody has told of it yet.
    accepted_unix_ms: u64,
    state: KnownState,
    /// Others that say the same of it, for a moment: it goes from one to another.
    also: Vec<InstanceName>,
    /// Its owner has told of it. Else only somebody who has given it up says whose it is.
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownState {
    Forwarded,
    /// There is no way to its owner, or no offload engine here.
    Noted,
    Refused,
    Held,
    /// As `Held`, but this host's map has no room for it.
    NoRoom,
}

/// For so long after a flow's packets have come here it stays here, whatever others say of it.
const TOUCHED_NS: u64 = 2_000_000_000;
/// An owner that does not answer the ping in this time counts as silent.
const PING_NS: u64 = 250_000_000;
/// For so long after a VIP has come a silent owner counts as dead.
const FRESH_NS: u64 = 5_000_000_000;
/// For so long after an address has come, what nobody here knows is for its last owner, if that lives: handshakes that
/// began there, and flows of which nothing has been told yet.
const LEAVES_NS: u64 = 5_000_000_000;

/// Flows up to which invariants are checked after every event.
const CHECKED_MAX: usize = 64;

impl Failover {
    pub fn new(settings: Settings) -> Self {
        let peers = settings.peers.iter().map(|(name, link)| (name.clone(), PeerState::new(*link))).collect();
        Self {
            agenda: Agenda::new(settings.carries),
            settings,
            peers,
            flows: HashMap::new(),
            by_ends: HashMap::new(),
            by_key: HashMap::new(),
            mine: HashMap::new(),
            contested: HashSet::new(),
            here: None,
            own: BTreeSet::new(),
            fresh_until_ns: 0,
            guard_until_ns: 0,
            last_owners: BTreeMap::new(),
            just_came: BTreeMap::new(),
            rules: HashMap::new(),
            rounds: BTreeMap::new(),
            finding: VecDeque::new(),
            next_round: 0,
            asked: HashMap::new(),
            lent: HashMap::new(),
            unsaid: HashMap::new(),
            untold: HashMap::new(),
            unlisted: Unlisted::default(),
            settled: false,
            ready: false,
            shared: false,
            no_room: HashSet::new(),
            port_ranges: Vec::new(),
        }
    }

    pub fn poll_action(&mut self) -> Option<Action> {
        self.agenda.poll()
    }

    /// When to call [`Failover::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<u64> {
        self.agenda.next_ns()
    }

    pub fn handle_remote(&mut self, now_ns: u64, remote: Remote) {
        match remote {
            Remote::Joined { owner, link } => self.joined(owner, link),
            Remote::Gone { owner } => self.gone(&owner),
            Remote::Begin { owner, epoch, slot } => self.begin(&owner, epoch, slot),
            Remote::Flow { owner, record } => self.flow(now_ns, owner, *record),
            Remote::Ended { owner, id } => self.ended(now_ns, &owner, id),
            Remote::Moved { owner, id, to } => self.moved(now_ns, &owner, id, &to),
            Remote::Synced { owner } => self.synced(now_ns, &owner),
            Remote::Liveness { owner, liveness } => self.liveness(now_ns, owner, liveness),
            Remote::Claimed { by, flows } => self.claimed_by(now_ns, by, flows),
            Remote::Addresses { owner, vips } => self.peer_addresses(&owner, vips),
            // Who tells them is not the failover.
            Remote::Untold(_) => {}
            Remote::Answer { ends, said } => self.unknown_packet_answered(now_ns, ends, said),
        }
        self.renew_rules(now_ns);
        self.check();
    }

    pub fn handle_standby(&mut self, now_ns: u64, answer: StandbyAnswer) {
        match answer {
            StandbyAnswer::Touched(flows) => self.claim(now_ns, flows),
            StandbyAnswer::Ours(flows) => self.also_ours(now_ns, &flows),
            StandbyAnswer::NoStandby(flows) => self.no_standby(flows),
            StandbyAnswer::Held(flows) => self.held_after_all(flows),
            StandbyAnswer::Over(flows) => self.over(&flows),
            StandbyAnswer::UnknownPackets(packets) => {
                packets.into_iter().for_each(|packet| self.packet(now_ns, packet))
            }
            StandbyAnswer::Unanswered(keys) => self.second_round(now_ns, &keys),
            StandbyAnswer::Reached(round) => self.first_round(round),
            StandbyAnswer::Keeps { flows, keys } => self.see_kept(now_ns, flows, keys),
        }
        self.renew_rules(now_ns);
        self.check();
    }

    #[cfg(test)]
    pub(super) fn taken_over(&self) -> impl Iterator<Item = FleetId> {
        self.mine.keys().copied()
    }

    /// All addresses of this host.
    pub fn handle_addresses(&mut self, now_ns: u64, addresses: &[IpAddr]) {
        let vips: BTreeSet<_> = self.settings.vips.iter().map(|vip| vip.ip()).collect();
        let (now, own): (BTreeSet<_>, _) = addresses.iter().partition(|ip| vips.contains(ip));
        self.own = own;
        self.agenda.send(PeerCommand::Addresses(addresses.to_vec()));
        let before = self.here.replace(now.clone());
        let came: Vec<_> = match &before {
            Some(before) => now.difference(before).copied().collect(),
            // As it was when this process began: nothing has moved.
            None => Vec::new(),
        };
        for ip in before.iter().flatten().filter(|ip| !now.contains(ip)) {
            self.agenda.note(Note::AddressWent(*ip));
        }
        if now.is_empty() {
            // Whoever has got it now judges whether its last owner lives.
            self.fresh_until_ns = 0;
        }
        if !came.is_empty() {
            self.vips_came(now_ns, &came);
        }
        self.see_sharing();
        self.show_port_ranges();
        self.settle();
        self.renew_rules(now_ns);
        self.check();
    }

    /// The peers' flows are all known, or were waited for long enough.
    pub fn handle_ready(&mut self) {
        self.ready = true;
        self.settle();
        self.check();
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(timer) = self.agenda.take_due(now_ns) {
            match timer {
                Timer::Ping => self.ping_over(now_ns),
                Timer::Forget(id, ends) => self.forget(id, &ends),
                Timer::Promised(id, times) => self.promise_due(now_ns, id, times),
                Timer::Contested(id) => self.contest_due(id),
                Timer::Round(round) => self.round_due(now_ns, round),
                Timer::Asked(key) => self.ask_expired(now_ns, key),
                Timer::Lent(key) => self.lent_over(key),
                Timer::Unsaid(key) => drop(self.unsaid.remove(&key)),
                Timer::Guard => {}
                Timer::Left(ip) => self.left_for_good(now_ns, ip),
                Timer::Untold(id) => drop(self.untold.remove(&id)),
            }
        }
        self.renew_rules(now_ns);
        self.check();
    }

    /// Flows of other instances that are known here.
    pub fn known(&self) -> usize {
        self.flows.len()
    }

    /// Own addresses first: neighbours that still send to the dead host are to come here before they are asked anything.
    fn vips_came(&mut self, now_ns: u64, came: &[IpAddr]) {
        for ip in came {
            self.agenda.act(Action::Announce(*ip));
            self.agenda.note(Note::AddressCame(*ip));
            self.just_came.insert(*ip, now_ns + LEAVES_NS);
            self.agenda.later(now_ns + LEAVES_NS, Timer::Left(*ip));
        }
        self.guard_until_ns = now_ns + self.settings.guard_ns;
        self.agenda.later(self.guard_until_ns, Timer::Guard);
        self.fresh_until_ns = now_ns + FRESH_NS;
        self.peers.values_mut().for_each(|peer| peer.answered = false);
        let (dead, silent): (Vec<_>, Vec<_>) = self.peers.iter().partition(|(_, peer)| peer.is_dead);
        let dead: Vec<_> = dead.into_iter().map(|(name, _)| name.clone()).collect();
        let silent: Vec<_> = silent.into_iter().filter(|(_, peer)| peer.liveness == Liveness::Silent).collect();
        let silent: Vec<_> = silent.into_iter().map(|(name, _)| name.clone()).collect();
        dead.into_iter().for_each(|owner| self.bury_where(&owner, came));
        silent.into_iter().for_each(|owner| self.bury(&owner));
        let living: Vec<_> =
            self.peers.iter().filter(|(_, peer)| !peer.is_dead).map(|(name, _)| name.clone()).collect();
        living.into_iter().for_each(|owner| self.end_stuck(&owner));
        self.tell_untold();
        let mut pinged = false;
        for peer in self.peers.values_mut().filter(|peer| peer.liveness == Liveness::Alive) {
            peer.pinged_ns = Some(now_ns);
            pinged = true;
        }
        if pinged {
            self.agenda.send(PeerCommand::Ping);
            self.agenda.later(now_ns + PING_NS, Timer::Ping);
        }
    }

    fn ping_over(&mut self, now_ns: u64) {
        // Those of a later ping have time left: an address that flaps comes twice in it.
        let is_mute = |peer: &PeerState| peer.pinged_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) >= PING_NS);
        let mute: Vec<_> = self.peers.iter().filter(|(_, peer)| is_mute(peer)).map(|(name, _)| name.clone()).collect();
        for owner in mute {
            if let Some(peer) = self.peers.get_mut(&owner) {
                peer.pinged_ns = None;
            }
            self.bury(&owner);
        }
    }

    /// What an earlier process of this host held for others: over, if all peers have said what they have; else somebody's
    /// who is dead, and so this instance's if the VIP is here.
    fn settle(&mut self) {
        if self.settled || !self.ready || !self.settings.carries {
            return;
        }
        let all_known = self.peers.values().all(|peer| peer.synced);
        let claim = !all_known && self.here.as_ref().is_some_and(|here| !here.is_empty());
        if all_known || claim {
            self.settled = true;
            self.agenda.path(StandbyRequest::Settle { claim });
        }
    }

    /// Says anew what becomes of packets that nobody here knows.
    fn renew_rules(&mut self, now_ns: u64) {
        if !self.settings.carries {
            return;
        }
        let guard_until_ns = if self.guard_until_ns > now_ns { self.guard_until_ns } else { 0 };
        // Flows that a full map has no entry for are refused from here, for which the program must show their packets.
        let is_shown = (!self.no_room.is_empty() || !self.rounds.is_empty()) && guard_until_ns > 0;
        let is_asked = is_shown || self.peers.values().any(PeerState::can_be_asked);
        let all_told = self.peers.values().all(PeerState::has_told);
        let then = if is_asked { Then::Ask { all_told } } else { Then::Reset };
        for vip in self.settings.vips.clone() {
            // Of the others only source ports of backend legs: what those of living peers get is forwarded. One of them may
            // be in somebody else's use, whom conntrack knows, so no RST goes out unasked.
            let any_port = VipAddr::new((vip.ip(), 0).into());
            for (vip, then) in [(vip, then), (any_port, Then::Ask { all_told: false })] {
                let rule = Unknown { guard_until_ns, then };
                if self.rules.get(&vip) != Some(&rule) {
                    self.rules.insert(vip, rule);
                    self.agenda.path(StandbyRequest::Unknown { vip, unknown: Some(rule) });
                }
            }
        }
    }

    fn is_here(&self, ip: IpAddr) -> bool {
        self.here.as_ref().is_some_and(|here| here.contains(&ip))
    }

    /// In debug builds: what must hold after every event.
    fn check(&self) {
        // It looks at every flow, which is too much to do for each of thousands.
        if cfg!(debug_assertions) && self.flows.len() < CHECKED_MAX {
            for id in self.mine.keys() {
                debug_assert!(!self.flows.contains_key(id), "{id} has two owners");
            }
            for (key, id) in &self.by_key {
                let known = self.flows.get(id);
                let fits =
                    known.is_some_and(|known| known.ends.keys().contains(key) && known.state != KnownState::Held);
                debug_assert!(fits, "{id} {known:?}");
            }
            let owned: usize = self.peers.values().map(|peer| peer.flows.len()).sum();
            debug_assert_eq!(owned, self.flows.len());
            debug_assert_eq!(self.by_ends.len(), self.flows.len());
            debug_assert!(self.no_room.iter().all(|id| self.flows.contains_key(id)));
            for (id, known) in &self.flows {
                debug_assert!(known.state != KnownState::NoRoom || self.no_room.contains(id), "{id}");
            }
        }
    }
}
