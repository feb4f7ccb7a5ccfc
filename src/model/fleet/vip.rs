//! Decides which instance of a fleet holds the VIP, each instance for itself. No clock and no socket.
//!
//! ```text
//!            no holder, and no better peer             no answer, and the host hears others
//!   Stands ────────────────────────────────────▶ Takes ───────────────────────────────────▶ Holds
//!     ▲                                            │ another host answers, a better peer takes  │ a stop, an evacuation, a later claim,
//!     │                                            │ the VIP, or the host hears no other        │ not ready while a peer is
//!     └────────────────────────────────────────────┴────────────────────────────────────────────┘
//! ```
//! The caller passes a look to the machine every few milliseconds and carries out its orders at once. All addresses of both families are one VIP:
//! the machine asks for them, adds them and removes them together.
//!
//! An instance takes the VIP from a peer that it has not heard for [`SILENT_NS`], long before it counts the peer as dead. This is safe: the
//! kernel of a living host answers a question for its address, and the kernel removes an address that the holder's process does not renew
//! ([`LEASE_NS`]). docs/decisions/016-vip.md gives the reasons.

mod deafness;
mod defence;
mod host;
mod look;
#[cfg(test)]
mod simulation;
mod standing;
#[cfg(test)]
mod tests;
mod view;
mod why;

use std::net::IpAddr;

use std::collections::{BTreeMap, VecDeque};

use super::InstanceName;
use crate::addr::Mac;
use crate::model::damping::{DampingPolicy, Penalty};
use crate::model::neighbour::ANNOUNCE_AFTER_NS;

use deafness::Deafness;
use defence::Defence;
use host::LeftOver;
pub(crate) use look::{InterfaceState, VipLook, VipNote, VipOrder, VipPresence, VipTerms};
pub(crate) use standing::{PeerVip, VipPart, VipStanding, address_set};
pub(crate) use view::{VipPeerView, VipView};
pub(crate) use why::{VipBar, VipGain, VipLoss, VipWhy};

/// A peer that was not heard for five beats is silent.
pub(crate) const SILENT_NS: u64 = 250_000_000;
/// The kernel removes an address this long after the process renewed it last.
pub(crate) const LEASE_NS: u64 = 2_000_000_000;
/// If the last renewal is longer ago, the kernel may remove the addresses before the process renews them.
pub(crate) const LEASE_SAFE_NS: u64 = 1_800_000_000;
const RENEW_NS: u64 = 500_000_000;

/// An instance asks this many times for the addresses before it takes them, [`ASK_EVERY_NS`] apart. RFC 5227 section 2.1.1 asks as often, a
/// second apart, because any host of the network may have the address, also a slow one. Here only a host that has just fallen silent may have
/// it, and the two instances correct a wrong guess as soon as they hear each other.
const ASKS: u32 = 3;
/// From then on it is told that a host answers: a peer has said by then that it has just taken the addresses.
const STRANGE_NS: u64 = 1_000_000_000;
/// Questions after a host has answered: it lives and has the addresses, so one lost answer must not count for much.
const ASKS_ANSWERED: u32 = 6;
const ASK_EVERY_NS: u64 = 40_000_000;
/// An instance that hears no other host stops asking after this time.
const ASK_MAX_NS: u64 = 1_000_000_000;
/// Pause before the instance asks again, after an answer or while it hears no other host: at first, and after [`SOON_NS`].
const AGAIN_NS: u64 = 150_000_000;
const AGAIN_LATER_NS: u64 = 1_000_000_000;
const SOON_NS: u64 = 5_000_000_000;
/// The best instance has this long to begin to ask; each further one waits as long again.
const PATIENCE_NS: u64 = 300_000_000;
/// A better peer that has asked for longer than this does not hear other hosts: this instance stops waiting for it.
const TAKES_MAX_NS: u64 = 600_000_000;
/// An instance that gave the VIP up does not ask for it again before this time, so that a peer can take it.
const GAVE_UP_NS: u64 = 500_000_000;
/// The same after this host heard nobody by IP: its peers ask once a second by then.
const DEAF_AGAIN_NS: u64 = 3_000_000_000;
/// Least time between two times that an unready instance gives the VIP up to a ready peer, because that peer may fail to take it.
const UNREADY_AGAIN_NS: u64 = 5_000_000_000;
/// An instance that found the VIP on its host as it began keeps it for so long although it is not ready yet: linking and what peers tell take
/// milliseconds. A link that takes longer may never come about, and a ready peer serves new connections meanwhile.
const LINKING_NS: u64 = 2_000_000_000;
/// An instance without a usable backend gives the VIP up to a peer with one after this time: when all backends go or return, the instances
/// notice it one after the other, and the VIP must not move for that.
pub(crate) const NO_BACKEND_NS: u64 = 1_500_000_000;
/// After this time without a carrier the host is cut off, and another host has taken the VIP. Without an address of its own the host is cut
/// off, too, unless a program gives the interface another one at once.
pub(crate) const CUT_OFF_NS: u64 = 250_000_000;
/// An instance hears others if it heard its gateway, a backend or a client within this time.
const HEARD_NS: u64 = 3_000_000_000;
const FAILED_NS: u64 = 5_000_000_000;
/// Interval between two counts of the holder's flows to this host: each new number goes to the peers at once.
const COUNT_EVERY_NS: u64 = 1_000_000_000;
const DAMPING: DampingPolicy = DampingPolicy { half_life_ns: 60_000_000_000, suppress: 3.0, reuse: 1.0 };

#[derive(Clone, Debug, PartialEq, Eq)]
enum VipStage {
    Stands,
    Takes { since_ns: u64, asked: u32, next_ns: u64 },
    Holds { since_ns: u64, renewed_ns: u64, announce_from_ns: u64, announced: usize, gain: VipGain },
}

/// Another host has the addresses that no peer has.
#[derive(Debug)]
struct StrangeAnswer {
    since_ns: u64,
    is_told: bool,
}

/// The state machine of the module's drawing.
#[derive(Debug)]
pub(crate) struct VipMachine {
    settings: VipTerms,
    stage: VipStage,
    /// Why this instance does not hold the VIP.
    why: VipWhy,
    /// The number of this instance's claim; 0: it has none, or it found the addresses on its host.
    claim: u64,
    /// The highest number that any instance has used.
    claim_max: u64,
    /// Since when this instance knows no holder.
    vacant_ns: Option<u64>,
    last_holder: Option<InstanceName>,
    /// The last peer that held the VIP, and since when, unless another instance held it meanwhile.
    holder_since: Option<(InstanceName, u64)>,
    /// The holder's offloaded flows whose backend is on this host, the holder, and when this instance counted them.
    flows_here: u32,
    counted: Option<(InstanceName, u64)>,
    /// The peers that ask for the VIP, and since when each says so.
    takers: BTreeMap<InstanceName, u64>,
    /// A host with a lower Ethernet address that asks for the addresses at the same time, and whether a peer has said meanwhile that it
    /// takes the VIP: the host may be that peer's.
    rival: Option<Mac>,
    saw_taker: bool,
    /// The instance does not ask before this time, for the reason in `why`.
    again_ns: u64,
    /// The first answer of this vacancy.
    answered: Option<StrangeAnswer>,
    cut_off_ns: Option<u64>,
    /// It was told that this host is cut off, while it did not hold the VIP.
    is_told_cut_off: bool,
    unready_ns: Option<u64>,
    /// Since when no backend can be used here and a peer that could take the VIP has one.
    no_backend_ns: Option<u64>,
    failed: Option<(String, u64)>,
    left_over: Option<LeftOver>,
    /// Another instance holds the VIP at the same time, by an earlier claim.
    is_contested: bool,
    defence: Defence,
    deafness: Deafness,
    penalty: Penalty,
    damped: bool,
    told: Option<VipStanding>,
    changed_ns: u64,
    orders: VecDeque<VipOrder>,
}

impl VipMachine {
    pub(crate) fn new(settings: VipTerms) -> Self {
        Self {
            settings,
            stage: VipStage::Stands,
            why: VipWhy::Unseen,
            claim: 0,
            claim_max: 0,
            vacant_ns: None,
            last_holder: None,
            holder_since: None,
            flows_here: 0,
            counted: None,
            takers: BTreeMap::new(),
            rival: None,
            saw_taker: false,
            again_ns: 0,
            answered: None,
            cut_off_ns: None,
            is_told_cut_off: false,
            unready_ns: None,
            no_backend_ns: None,
            failed: None,
            left_over: None,
            is_contested: false,
            defence: Defence::default(),
            deafness: Deafness::default(),
            penalty: Penalty::default(),
            damped: false,
            told: None,
            changed_ns: 0,
            orders: VecDeque::new(),
        }
    }

    pub(crate) fn poll_order(&mut self) -> Option<VipOrder> {
        self.orders.pop_front()
    }

    pub(crate) fn holds(&self) -> bool {
        matches!(self.stage, VipStage::Holds { .. })
    }

    /// Whether the instance asks for the addresses now: then the caller looks at other hosts' packets more often.
    pub(crate) fn takes(&self) -> bool {
        matches!(self.stage, VipStage::Takes { .. })
    }

    pub(crate) fn handle_look(&mut self, look: &VipLook<'_>) {
        self.damped = self.penalty.holds(&DAMPING, look.now_ns);
        let peers = look.peers.unwrap_or_default();
        let claims = peers.iter().filter_map(|peer| peer.says(self.settings.addresses)).map(|it| it.claim);
        self.claim_max = claims.fold(self.claim_max, u64::max);
        match look.is_cut_off() {
            false => self.cut_off_ns = None,
            true => drop(self.cut_off_ns.get_or_insert(look.now_ns)),
        }
        self.failed.take_if(|(_, until_ns)| look.now_ns >= *until_ns);
        self.see_takers(look, peers);
        self.count(look, peers);
        match &self.stage {
            VipStage::Holds { .. } => self.hold(look, peers),
            VipStage::Stands | VipStage::Takes { .. } => self.stand(look, peers),
        }
        self.tell(look, peers);
    }

    /// The host `by` has this one of the addresses: it answered a question, or announced the address.
    pub(crate) fn handle_answer(&mut self, (by, address): (Mac, IpAddr), now_ns: u64) {
        if self.holds() {
            return self.defend(by, now_ns);
        }
        if !self.takes() {
            return;
        }
        let answer = self.answered.get_or_insert(StrangeAnswer { since_ns: now_ns, is_told: false });
        let since_ns = answer.since_ns;
        if !answer.is_told && now_ns - since_ns >= STRANGE_NS {
            answer.is_told = true;
            self.orders.push_back(VipOrder::Note(VipNote::Answered { by, address }));
        }
        self.pause(VipWhy::Answered { by, address: Some(address) }, since_ns, now_ns);
    }

    /// Another host asks for the addresses. If this instance does, too, the two do not hear each other by the peer link, or the standings would
    /// decide; so the host with the lower Ethernet address goes on.
    pub(crate) fn handle_rival(&mut self, its: Mac, own: Mac, now_ns: u64) {
        self.deafness.hear_question(now_ns);
        if self.takes() && its < own {
            self.rival = Some(its);
        }
    }

    /// The caller renewed the addresses without an order.
    pub(crate) fn handle_renewed(&mut self, now_ns: u64) {
        if let VipStage::Holds { renewed_ns, .. } = &mut self.stage {
            *renewed_ns = now_ns;
        }
    }

    fn hold(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let now_ns = look.now_ns;
        let VipStage::Holds { renewed_ns, .. } = self.stage else { return };
        let late_ns = now_ns.saturating_sub(renewed_ns);
        if late_ns >= LEASE_SAFE_NS {
            return self.give_up(VipLoss::Late { for_ms: late_ns / 1_000_000 }, now_ns);
        }
        if let Some(bar) = look.bar.clone().filter(|bar| *bar != VipBar::Starting) {
            return self.give_up(VipLoss::Barred(bar), now_ns);
        }
        if self.is_cut_off(now_ns) && self.settings.has_peers {
            let loss = match look.interface {
                InterfaceState::Running => VipLoss::NoAddress,
                InterfaceState::NoCarrier => VipLoss::NoCarrier,
                InterfaceState::Absent => VipLoss::NoInterface { name: self.settings.interface.clone() },
            };
            self.is_told_cut_off = true;
            return self.give_up(loss, now_ns);
        }
        let is_deaf = self.deafness.is_certain(look, peers, self.damped);
        if self.deafness.rouses(now_ns) {
            self.orders.push_back(VipOrder::Rouse);
        }
        if is_deaf && self.settings.has_peers {
            self.give_up(VipLoss::Deaf, now_ns);
            self.again_ns = now_ns + DEAF_AGAIN_NS;
            return;
        }
        if self.claim == 0 && look.ready && !peers.iter().any(|peer| self.holds_too(peer)) {
            // This instance found the addresses, and no peer holds them: from now on it holds them by a claim.
            self.claim_max += 1;
            self.claim = self.claim_max;
        }
        let mine = self.own(look, peers);
        let above = |peer: &&PeerVip| match peer.says(self.settings.addresses) {
            Some(its) => its.hold_rank(&peer.name) > mine.hold_rank(&self.settings.me),
            // On that host another program moves the VIP, and it does not ask Baton.
            None => true,
        };
        if let Some(peer) = peers.iter().filter(|peer| self.holds_too(peer)).find(above) {
            let to = peer.name.clone();
            return self.give_up(VipLoss::Yielded { to }, now_ns);
        }
        if let Some(heir) = self.heir(look, peers) {
            self.unready_ns = Some(now_ns);
            let loss = if look.ready { VipLoss::NoBackend { heir } } else { VipLoss::NotReady { heir } };
            return self.give_up(loss, now_ns);
        }
        let is_contested = peers.iter().any(|peer| self.holds_too(peer));
        let was_contested = std::mem::replace(&mut self.is_contested, is_contested);
        self.keep(look, was_contested && !self.is_contested);
    }

    /// Adds missing addresses, renews and announces.
    fn keep(&mut self, look: &VipLook<'_>, is_alone_again: bool) {
        let now_ns = look.now_ns;
        let VipStage::Holds { renewed_ns, announce_from_ns, announced, .. } = &mut self.stage else { return };
        if look.here != VipPresence::Whole {
            *renewed_ns = now_ns;
            (*announce_from_ns, *announced) = (now_ns, 0);
            self.orders.extend([VipOrder::Add, VipOrder::Note(VipNote::Restored)]);
        } else if now_ns.saturating_sub(*renewed_ns) >= RENEW_NS {
            *renewed_ns = now_ns;
            self.orders.push_back(VipOrder::Renew);
        }
        if is_alone_again || self.defence.is_over(now_ns) {
            (*announce_from_ns, *announced) = (now_ns, 0);
        }
        while ANNOUNCE_AFTER_NS.get(*announced).is_some_and(|after_ns| now_ns >= *announce_from_ns + after_ns) {
            *announced += 1;
            self.orders.push_back(VipOrder::Announce);
        }
    }

    fn stand(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let now_ns = look.now_ns;
        if look.here != VipPresence::Absent {
            return self.find(look, peers);
        }
        if let Some(why) = self.obstacle(look, peers) {
            self.stage = VipStage::Stands;
            self.set_why(why, now_ns);
            return;
        }
        match self.stage {
            VipStage::Takes { since_ns, asked, next_ns } if now_ns >= next_ns => {
                let asks = if self.answered.is_some() { ASKS_ANSWERED } else { ASKS };
                if asked >= asks && look.heard_ns >= since_ns {
                    if let Some(by) = self.rival.filter(|_| !self.saw_taker) {
                        return self.pause(VipWhy::Answered { by, address: None }, now_ns, now_ns);
                    }
                    return self.gain(self.reason(peers), self.claim, now_ns);
                }
                if now_ns - since_ns >= ASK_MAX_NS {
                    let vacant_ns = self.vacant_ns.unwrap_or(now_ns);
                    return self.pause(VipWhy::Deaf, vacant_ns, now_ns);
                }
                self.stage = VipStage::Takes { since_ns, asked: asked + 1, next_ns: now_ns + ASK_EVERY_NS };
                self.orders.push_back(VipOrder::Ask);
            }
            VipStage::Takes { .. } => {}
            _ => {
                self.claim = self.claim_max + 1;
                (self.rival, self.saw_taker) = (None, !self.takers.is_empty());
                self.stage = VipStage::Takes { since_ns: now_ns, asked: 1, next_ns: now_ns + ASK_EVERY_NS };
                self.set_why(VipWhy::Taking, now_ns);
                self.orders.push_back(VipOrder::Ask);
            }
        }
    }

    /// Why this instance does not take the VIP now.
    fn obstacle(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<VipWhy> {
        let now_ns = look.now_ns;
        let bar = look.bar.clone().or_else(|| self.failed.clone().map(|(error, _)| VipBar::Failed { error }));
        if let Some(bar) = bar {
            return Some(VipWhy::Barred(bar));
        }
        let why = match look.interface {
            InterfaceState::Running => VipWhy::NoAddress,
            InterfaceState::NoCarrier => VipWhy::NoCarrier,
            InterfaceState::Absent => VipWhy::NoInterface { name: self.settings.interface.clone() },
        };
        self.tell_cut_off(&why, now_ns);
        if look.interface != InterfaceState::Running || look.is_bare && self.settings.has_peers {
            return Some(why);
        }
        if look.peers.is_none() {
            return Some(VipWhy::Blind);
        }
        if let Some(peer) = peers.iter().find(|peer| self.holds_too(peer)) {
            (self.vacant_ns, self.answered, self.last_holder) = (None, None, Some(peer.name.clone()));
            if self.holder_since.as_ref().is_none_or(|(name, _)| *name != peer.name) {
                self.holder_since = Some((peer.name.clone(), now_ns));
                self.orders.push_back(VipOrder::Note(VipNote::HeldBy(peer.name.clone())));
            }
            return Some(VipWhy::HeldBy(peer.name.clone()));
        }
        if let Some((by, holder)) = self.hearsay(peers) {
            self.vacant_ns = None;
            return Some(VipWhy::HeldAsToldBy { by, holder });
        }
        if let Some(name) = self.first(look, peers) {
            return Some(VipWhy::After(name));
        }
        (now_ns < self.again_ns).then(|| self.why.clone())
    }

    /// A peer says that it hears a third instance hold the VIP, and this instance does not hear that third one.
    fn hearsay(&self, peers: &[PeerVip]) -> Option<(InstanceName, Option<InstanceName>)> {
        let by_tag = |tag: u16| peers.iter().find(|peer| peer.name.tag() == tag);
        peers.iter().filter(|peer| peer.is_heard()).find_map(|peer| {
            let tag = self.says(peer)?.holder.filter(|tag| *tag != self.settings.me.tag())?;
            let holder = by_tag(tag);
            // The word of the named instance itself is newer.
            let denies = holder.is_some_and(|holder| holder.is_heard() && self.says(holder).is_some());
            (!denies).then(|| (peer.name.clone(), holder.map(|holder| holder.name.clone())))
        })
    }

    /// A better peer that this instance leaves the VIP to.
    fn first(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<InstanceName> {
        let now_ns = look.now_ns;
        let mine = self.own(look, peers);
        let heirs = self.heirs(peers);
        let rank = mine.rank(&self.settings.me, &heirs);
        let heard = peers.iter().filter(|peer| peer.is_heard()).filter_map(|peer| Some((peer, self.says(peer)?)));
        let better: Vec<_> = heard.filter(|(peer, its)| its.rank(&peer.name, &heirs) > rank).collect();
        let is_early =
            |name: &InstanceName| self.takers.get(name).is_some_and(|since_ns| now_ns - since_ns < TAKES_MAX_NS);
        if let Some((peer, _)) = better.iter().find(|(peer, its)| its.part == VipPart::Takes && is_early(&peer.name)) {
            return Some(peer.name.clone());
        }
        if self.takes() {
            return None;
        }
        let able: Vec<_> = better.iter().filter(|(_, its)| its.is_able()).collect();
        if let Some((peer, _)) = able.iter().find(|(_, its)| its.answered) {
            // Another host has the addresses, and that peer asks again and again.
            let name = peer.name.clone();
            self.vacant_ns = Some(now_ns);
            return Some(name);
        }
        let patience_ns = PATIENCE_NS * able.len() as u64;
        let first = able.first().map(|(peer, _)| peer.name.clone());
        let vacant_ns = *self.vacant_ns.get_or_insert(now_ns);
        first.filter(|_| now_ns - vacant_ns < patience_ns)
    }

    fn see_takers(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let addresses = self.settings.addresses;
        let takes =
            |peer: &&PeerVip| peer.is_heard() && peer.says(addresses).is_some_and(|its| its.part == VipPart::Takes);
        let takers: Vec<_> = peers.iter().filter(takes).map(|peer| &peer.name).collect();
        self.takers.retain(|name, _| takers.contains(&name));
        self.saw_taker |= !takers.is_empty();
        for name in takers {
            self.takers.entry(name.clone()).or_insert(look.now_ns);
        }
    }

    /// Counts the flows that the holder has offloaded to this host. Without a holder the last count stays.
    fn count(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let Some(holder) = peers.iter().find(|peer| self.holds_too(peer)).filter(|_| !self.holds()) else { return };
        let is_recent = |(name, at_ns): &(InstanceName, u64)| {
            *name == holder.name && look.now_ns.saturating_sub(*at_ns) < COUNT_EVERY_NS
        };
        if !self.counted.as_ref().is_some_and(is_recent) {
            (self.flows_here, self.counted) = (holder.flows_here, Some((holder.name.clone(), look.now_ns)));
        }
    }

    /// The tags of the instances that operators evacuate other hosts to.
    fn heirs(&self, peers: &[PeerVip]) -> Vec<u16> {
        peers.iter().filter(|peer| peer.is_heard()).filter_map(|peer| self.says(peer)?.heir).collect()
    }

    fn says<'a>(&self, peer: &'a PeerVip) -> Option<&'a VipStanding> {
        peer.says(self.settings.addresses)
    }

    /// Whether this instance hears the peer, and the peer holds the VIP.
    fn holds_too(&self, peer: &PeerVip) -> bool {
        peer.is_heard() && peer.holds(self.settings.addresses)
    }

    fn reason(&self, peers: &[PeerVip]) -> VipGain {
        let Some(name) = self.last_holder.clone() else { return VipGain::Vacant };
        let silent = peers.iter().any(|peer| peer.name == name && peer.silence_ns.is_some() && !peer.is_heard());
        if silent { VipGain::Silent(name) } else { VipGain::GivenUp(name) }
    }

    fn gain(&mut self, gain: VipGain, claim: u64, now_ns: u64) {
        let note = VipNote::Gained(gain.clone());
        self.begin_to_hold(gain, claim, now_ns, note);
    }

    fn begin_to_hold(&mut self, gain: VipGain, claim: u64, now_ns: u64, note: VipNote) {
        self.claim = claim;
        self.claim_max = self.claim_max.max(claim);
        self.stage =
            VipStage::Holds { since_ns: now_ns, renewed_ns: now_ns, announce_from_ns: now_ns, announced: 1, gain };
        (self.vacant_ns, self.answered, self.is_contested, self.changed_ns) = (None, None, false, now_ns);
        (self.deafness, self.holder_since) = (Deafness::default(), None);
        (self.flows_here, self.counted) = (0, None);
        self.orders.extend([VipOrder::Add, VipOrder::Announce, VipOrder::Note(note)]);
    }

    fn give_up(&mut self, loss: VipLoss, now_ns: u64) {
        if !matches!(loss, VipLoss::Barred(VipBar::Stopping | VipBar::Evacuated { .. })) {
            self.penalty.add(&DAMPING, now_ns);
        }
        let serves = !matches!(loss, VipLoss::Late { .. });
        self.last_holder = Some(self.settings.me.clone());
        self.claim = 0;
        self.orders.extend([VipOrder::Remove { serves }, VipOrder::Note(VipNote::Lost(loss))]);
        (self.stage, self.why, self.again_ns) = (VipStage::Stands, VipWhy::GaveUp, now_ns + GAVE_UP_NS);
        (self.vacant_ns, self.no_backend_ns, self.changed_ns) = (None, None, now_ns);
    }

    /// Stops asking for a while.
    fn pause(&mut self, why: VipWhy, since_ns: u64, now_ns: u64) {
        let wait_ns = if now_ns.saturating_sub(since_ns) < SOON_NS { AGAIN_NS } else { AGAIN_LATER_NS };
        (self.stage, self.again_ns) = (VipStage::Stands, now_ns + wait_ns);
        self.set_why(why, now_ns);
    }

    fn set_why(&mut self, why: VipWhy, now_ns: u64) {
        if self.why != why {
            (self.why, self.changed_ns) = (why, now_ns);
        }
    }

    /// This instance's standing at this look.
    fn own(&self, look: &VipLook<'_>, peers: &[PeerVip]) -> VipStanding {
        let part = match self.stage {
            VipStage::Holds { .. } => VipPart::Holds,
            VipStage::Takes { .. } => VipPart::Takes,
            VipStage::Stands if look.bar.is_some() || self.failed.is_some() || look.is_cut_off() => VipPart::Out,
            VipStage::Stands => VipPart::Stands,
        };
        let holder = peers.iter().find(|peer| self.holds_too(peer));
        let heir = match &look.bar {
            Some(VipBar::Evacuated { to }) => Some(to.as_ref().unwrap_or(&self.settings.me).tag()),
            _ => None,
        };
        VipStanding {
            part,
            claim: self.claim,
            ready: look.ready && look.has_backend,
            synced: look.synced,
            hears: look.heard_ns > 0 && look.now_ns.saturating_sub(look.heard_ns) < HEARD_NS,
            damped: self.damped,
            answered: self.answered.is_some(),
            priority: self.settings.priority,
            holder: holder.map(|peer| peer.name.tag()),
            addresses: self.settings.addresses,
            flows_here: self.flows_here,
            heir,
        }
    }

    fn tell(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let standing = self.own(look, peers);
        if self.told != Some(standing) {
            self.told = Some(standing);
            self.orders.push_back(VipOrder::Tell(standing));
        }
    }
}
