//! Which instance of a fleet has the VIP: decisions only, each instance for itself. No clock, no socket.
//!
//! ```text
//!            nobody has it, and nobody comes first        no answer, and somebody is heard
//!   Stands ────────────────────────────────────▶ Takes ───────────────────────────────────▶ Holds
//!     ▲                                            │ another host answers, a better one takes   │ a stop, an evacuation, a later claim,
//!     │                                            │ it, or nobody is heard                     │ not ready while a peer is
//!     └────────────────────────────────────────────┴────────────────────────────────────────────┘
//! ```
//! Whoever drives it looks every few milliseconds and carries out its orders at once. All addresses of both families are one VIP: they are
//! asked for, added and removed together.
//!
//! An instance takes the VIP from a peer that it has not heard for [`SILENT_NS`], which is much sooner than it counts the peer as dead. It may:
//! a host that lives answers the question for its address, and an address whose process does not run is removed by its kernel, because
//! the process must renew it ([`LEASE_NS`]). docs/decisions/016-vip.md has the reasons.

#[cfg(test)]
mod simulation;
mod standing;
#[cfg(test)]
mod tests;
mod view;
mod why;

use std::collections::{BTreeMap, VecDeque};

use super::InstanceName;
use crate::addr::Mac;
use crate::model::damping::{DampingPolicy, Penalty};

pub(crate) use standing::{PeerVip, VipPart, VipStanding, address_set};
pub(crate) use view::{VipPeerView, VipView};
pub(crate) use why::{VipBar, VipGain, VipLoss, VipWhy};

/// Five beats are missing.
pub(crate) const SILENT_NS: u64 = 250_000_000;
/// For so long the kernel keeps the addresses of a process that does not renew them.
pub(crate) const LEASE_NS: u64 = 2_000_000_000;
/// Longer ago than this the kernel may have removed them by the time that they are renewed.
const LEASE_SAFE_NS: u64 = 1_800_000_000;
const RENEW_NS: u64 = 500_000_000;

/// Questions for the addresses before they are taken, and the wait behind each. RFC 5227 section 2.1.1 asks as often, a second apart: it is
/// for hosts that have time, and its answer is as late as the slowest host that may have the address. Here this is a host that has just
/// been silent, and a wrong guess is corrected as soon as the two instances hear each other.
const ASKS: u32 = 3;
/// After an answer: a host has the addresses and lives, so an answer that is lost must not count for much.
const ASKS_ANSWERED: u32 = 6;
const ASK_EVERY_NS: u64 = 40_000_000;
/// Without anybody heard it goes on asking for so long.
const ASK_MAX_NS: u64 = 1_000_000_000;
/// Until it asks again after an answer, and after it heard nobody; at first, and later.
const AGAIN_NS: u64 = 150_000_000;
const AGAIN_LATER_NS: u64 = 1_000_000_000;
const SOON_NS: u64 = 5_000_000_000;
/// Whoever comes first has so long to begin; the next as long again.
const PATIENCE_NS: u64 = 300_000_000;
/// Whoever comes first and has not ended asking within this does not hear what it must.
const TAKES_MAX_NS: u64 = 600_000_000;
/// The heir has so long for itself.
const GAVE_UP_NS: u64 = 500_000_000;
/// Between two times that it is given up because a peer is ready and this instance is not: the heir may fail to take it.
const UNREADY_AGAIN_NS: u64 = 5_000_000_000;
/// Without a carrier for so long, the host is cut off: another one has the VIP by now.
const NO_CARRIER_NS: u64 = 250_000_000;
/// The gateway, a backend or a client was heard within this.
const HEARD_NS: u64 = 3_000_000_000;
const FAILED_NS: u64 = 5_000_000_000;
/// Neighbours are told where the VIP is: so long after it came.
const ANNOUNCE_NS: [u64; 4] = [0, 200_000_000, 1_000_000_000, 3_000_000_000];
const DAMPING: DampingPolicy = DampingPolicy { half_life_ns: 60_000_000_000, suppress: 3.0, reuse: 1.0 };

/// What does not change while the machine lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VipTerms {
    pub me: InstanceName,
    pub priority: u8,
    /// [`address_set`] of the addresses.
    pub addresses: u32,
    /// A fleet of one has nobody to give the VIP to.
    pub has_peers: bool,
}

/// Which of the addresses are on the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VipPresence {
    Absent,
    Partial,
    Whole,
}

/// How things are at a moment.
#[derive(Clone, Debug)]
pub(crate) struct VipLook<'a> {
    pub now_ns: u64,
    /// `None`: the peer link does not look at the moment, so that silence means nothing.
    pub peers: Option<&'a [PeerVip]>,
    pub bar: Option<VipBar>,
    pub ready: bool,
    /// All flows of all peers are known here.
    pub synced: bool,
    /// When the gateway, a backend or a client was last heard; 0: never.
    pub heard_ns: u64,
    pub has_carrier: bool,
    pub here: VipPresence,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VipOrder {
    /// Say this to the peers.
    Tell(VipStanding),
    /// Ask whether another host has one of the addresses, and make the gateway and the backends show themselves.
    Ask,
    /// Add the addresses that are missing, each for [`LEASE_NS`]; call [`VipMachine::handle_failed`] if that fails.
    Add,
    /// Keep them for [`LEASE_NS`] from now on.
    Renew,
    /// Tell all neighbours that the addresses are here.
    Announce,
    /// Remove the addresses. `serves`: flows of this process may need them on `lo`, and they are to be there before they leave.
    Remove {
        serves: bool,
    },
    Note(VipNote),
}

/// What is worth remembering, and what hooks are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VipNote {
    Gained(VipGain),
    Lost(VipLoss),
    /// Something else had removed the addresses, and they are here again.
    Restored,
    /// Another host has one of the addresses, and no peer says so: told once for each vacancy.
    Answered(Mac),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum VipStage {
    Stands,
    Takes { since_ns: u64, asked: u32, next_ns: u64 },
    Holds { since_ns: u64, renewed_ns: u64, announce_from_ns: u64, announced: usize, gain: VipGain },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct VipMachine {
    settings: VipTerms,
    stage: VipStage,
    /// Why it is where it is.
    why: VipWhy,
    /// Of the claim that it holds by, or takes with; 0: none, or it has found the addresses.
    claim: u64,
    /// The highest that was ever seen.
    claim_max: u64,
    /// Since when no peer is known to have it.
    vacant_ns: Option<u64>,
    last_holder: Option<InstanceName>,
    /// Peers that take it, and since when they say so.
    takers: BTreeMap<InstanceName, u64>,
    /// Another host with a lower Ethernet address asks, too; and whether a peer has said meanwhile that it takes the VIP, which that may be.
    rival: Option<Mac>,
    saw_taker: bool,
    /// Not before this it asks again, for the reason in `why`.
    again_ns: u64,
    /// Who answered last, when that was first, and whether it was told.
    answered: Option<(Mac, u64)>,
    no_carrier_ns: Option<u64>,
    unready_ns: Option<u64>,
    failed: Option<(String, u64)>,
    /// Another instance holds it, too, by an earlier claim.
    is_contested: bool,
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
            takers: BTreeMap::new(),
            rival: None,
            saw_taker: false,
            again_ns: 0,
            answered: None,
            no_carrier_ns: None,
            unready_ns: None,
            failed: None,
            is_contested: false,
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

    /// Whether it asks for the addresses now: then the sooner the next look, and what was heard, the better.
    pub(crate) fn takes(&self) -> bool {
        matches!(self.stage, VipStage::Takes { .. })
    }

    pub(crate) fn handle_look(&mut self, look: &VipLook<'_>) {
        self.damped = self.penalty.holds(&DAMPING, look.now_ns);
        let peers = look.peers.unwrap_or_default();
        let claims = peers.iter().filter_map(|peer| peer.says(self.settings.addresses)).map(|it| it.claim);
        self.claim_max = claims.fold(self.claim_max, u64::max);
        match look.has_carrier {
            true => self.no_carrier_ns = None,
            false => drop(self.no_carrier_ns.get_or_insert(look.now_ns)),
        }
        self.failed.take_if(|(_, until_ns)| look.now_ns >= *until_ns);
        self.see_takers(look, peers);
        match &self.stage {
            VipStage::Holds { .. } => self.hold(look, peers),
            VipStage::Stands | VipStage::Takes { .. } => self.stand(look, peers),
        }
        self.tell(look, peers);
    }

    /// Another host has one of the addresses, or says that it has: it answered, or told so by itself.
    pub(crate) fn handle_answer(&mut self, by: Mac, now_ns: u64) {
        if !self.takes() {
            return;
        }
        let since_ns = match self.answered {
            Some((_, since_ns)) => since_ns,
            None => {
                self.orders.push_back(VipOrder::Note(VipNote::Answered(by)));
                now_ns
            }
        };
        self.answered = Some((by, since_ns));
        self.pause(VipWhy::Answered { by }, since_ns, now_ns);
    }

    /// Another host asks for the addresses at the same time, and does not hear this instance by the peer link, or it would leave them to one of
    /// the two. The lower Ethernet address goes on.
    pub(crate) fn handle_rival(&mut self, its: Mac, own: Mac) {
        if self.takes() && its < own {
            self.rival = Some(its);
        }
    }

    /// The addresses were renewed without an order.
    pub(crate) fn handle_renewed(&mut self, now_ns: u64) {
        if let VipStage::Holds { renewed_ns, .. } = &mut self.stage {
            *renewed_ns = now_ns;
        }
    }

    /// The addresses cannot be added.
    pub(crate) fn handle_failed(&mut self, error: String, now_ns: u64) {
        self.failed = Some((error.clone(), now_ns + FAILED_NS));
        if self.holds() {
            self.give_up(VipLoss::Barred(VipBar::Failed { error }), now_ns);
        }
    }

    fn hold(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let now_ns = look.now_ns;
        let VipStage::Holds { renewed_ns, .. } = self.stage else { return };
        if now_ns.saturating_sub(renewed_ns) >= LEASE_SAFE_NS {
            return self.give_up(VipLoss::Late, now_ns);
        }
        if let Some(bar) = look.bar.clone().filter(|bar| *bar != VipBar::Starting) {
            return self.give_up(VipLoss::Barred(bar), now_ns);
        }
        let is_cut_off = self.no_carrier_ns.is_some_and(|since_ns| now_ns - since_ns >= NO_CARRIER_NS);
        if is_cut_off && self.settings.has_peers {
            return self.give_up(VipLoss::NoCarrier, now_ns);
        }
        if self.claim == 0 && look.ready && !peers.iter().any(|peer| self.holds_too(peer)) {
            // Whoever had it before, nobody has it beside this instance.
            self.claim_max += 1;
            self.claim = self.claim_max;
        }
        let mine = self.own(look, peers);
        let above = |peer: &&PeerVip| match peer.says(self.settings.addresses) {
            Some(its) => its.hold_rank(&peer.name) > mine.hold_rank(&self.settings.me),
            // What moves the VIP there does not ask Baton.
            None => true,
        };
        if let Some(peer) = peers.iter().filter(|peer| self.holds_too(peer)).find(above) {
            let to = peer.name.clone();
            return self.give_up(VipLoss::Yielded { to }, now_ns);
        }
        if let Some(heir) = self.heir(look, peers) {
            self.unready_ns = Some(now_ns);
            return self.give_up(VipLoss::NotReady { heir }, now_ns);
        }
        let is_contested = peers.iter().any(|peer| self.holds_too(peer));
        let was_contested = std::mem::replace(&mut self.is_contested, is_contested);
        self.keep(look, was_contested && !self.is_contested);
    }

    /// Adds what is missing, renews, announces.
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
        if is_alone_again {
            (*announce_from_ns, *announced) = (now_ns, 0);
        }
        while ANNOUNCE_NS.get(*announced).is_some_and(|after_ns| now_ns >= *announce_from_ns + after_ns) {
            *announced += 1;
            self.orders.push_back(VipOrder::Announce);
        }
    }

    /// Who takes it if this instance gives it up because it is not ready.
    fn heir(&self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<InstanceName> {
        let is_soon = self.unready_ns.is_some_and(|at_ns| look.now_ns.saturating_sub(at_ns) < UNREADY_AGAIN_NS);
        if look.ready || is_soon {
            return None;
        }
        let able = peers.iter().filter(|peer| peer.is_heard()).filter_map(|peer| Some((peer, self.says(peer)?)));
        let able = able.filter(|(_, its)| its.ready && its.is_able());
        able.max_by(|(one, its), (other, theirs)| its.rank(&one.name).cmp(&theirs.rank(&other.name)))
            .map(|(peer, _)| peer.name.clone())
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
                        return self.pause(VipWhy::Answered { by }, now_ns, now_ns);
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

    /// The addresses are here, and this machine has not added them.
    fn find(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) {
        let now_ns = look.now_ns;
        let holder = peers.iter().find(|peer| self.holds_too(peer)).map(|peer| peer.name.clone());
        let bar = look.bar.clone().filter(|bar| *bar != VipBar::Starting);
        let loss = bar.map(VipLoss::Barred).or(holder.map(|holder| VipLoss::LeftOver { holder }));
        match loss {
            Some(loss) => {
                self.orders.extend([VipOrder::Remove { serves: true }, VipOrder::Note(VipNote::Lost(loss))]);
                self.pause(VipWhy::GaveUp, now_ns, now_ns);
            }
            None => self.gain(VipGain::Found, 0, now_ns),
        }
    }

    /// Why the VIP is not to be taken now.
    fn obstacle(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<VipWhy> {
        let now_ns = look.now_ns;
        let bar = look.bar.clone().or_else(|| self.failed.clone().map(|(error, _)| VipBar::Failed { error }));
        if let Some(bar) = bar {
            return Some(VipWhy::Barred(bar));
        }
        if !look.has_carrier {
            return Some(VipWhy::NoCarrier);
        }
        if look.peers.is_none() {
            return Some(VipWhy::Blind);
        }
        if let Some(peer) = peers.iter().find(|peer| self.holds_too(peer)) {
            (self.vacant_ns, self.answered, self.last_holder) = (None, None, Some(peer.name.clone()));
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

    /// A peer hears a third instance that holds it, and that this one does not hear.
    fn hearsay(&self, peers: &[PeerVip]) -> Option<(InstanceName, Option<InstanceName>)> {
        let by_tag = |tag: u16| peers.iter().find(|peer| peer.name.tag() == tag);
        peers.iter().filter(|peer| peer.is_heard()).find_map(|peer| {
            let tag = self.says(peer)?.holder.filter(|tag| *tag != self.settings.me.tag())?;
            let holder = by_tag(tag);
            // What it says itself is newer.
            let denies = holder.is_some_and(|holder| holder.is_heard() && self.says(holder).is_some());
            (!denies).then(|| (peer.name.clone(), holder.map(|holder| holder.name.clone())))
        })
    }

    /// A peer that is to take the VIP rather than this instance.
    fn first(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> Option<InstanceName> {
        let now_ns = look.now_ns;
        let mine = self.own(look, peers);
        let rank = mine.rank(&self.settings.me);
        let heard = peers.iter().filter(|peer| peer.is_heard()).filter_map(|peer| Some((peer, self.says(peer)?)));
        let better: Vec<_> = heard.filter(|(peer, its)| its.rank(&peer.name) > rank).collect();
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
            // Another host has it, and that peer asks again and again.
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

    fn says<'a>(&self, peer: &'a PeerVip) -> Option<&'a VipStanding> {
        peer.says(self.settings.addresses)
    }

    /// It is heard, and has the VIP.
    fn holds_too(&self, peer: &PeerVip) -> bool {
        peer.is_heard() && peer.holds(self.settings.addresses)
    }

    fn reason(&self, peers: &[PeerVip]) -> VipGain {
        let Some(name) = self.last_holder.clone() else { return VipGain::Vacant };
        let silent = peers.iter().any(|peer| peer.name == name && peer.silence_ns.is_some() && !peer.is_heard());
        if silent { VipGain::Silent(name) } else { VipGain::GivenUp(name) }
    }

    fn gain(&mut self, gain: VipGain, claim: u64, now_ns: u64) {
        self.claim = claim;
        self.claim_max = self.claim_max.max(claim);
        self.stage = VipStage::Holds {
            since_ns: now_ns,
            renewed_ns: now_ns,
            announce_from_ns: now_ns,
            announced: 1,
            gain: gain.clone(),
        };
        (self.vacant_ns, self.answered, self.is_contested, self.changed_ns) = (None, None, false, now_ns);
        self.orders.extend([VipOrder::Add, VipOrder::Announce, VipOrder::Note(VipNote::Gained(gain))]);
    }

    fn give_up(&mut self, loss: VipLoss, now_ns: u64) {
        if !matches!(loss, VipLoss::Barred(VipBar::Stopping | VipBar::Evacuated)) {
            self.penalty.add(&DAMPING, now_ns);
        }
        let serves = !matches!(loss, VipLoss::Late);
        self.last_holder = Some(self.settings.me.clone());
        self.claim = 0;
        self.orders.extend([VipOrder::Remove { serves }, VipOrder::Note(VipNote::Lost(loss))]);
        (self.stage, self.why, self.again_ns) = (VipStage::Stands, VipWhy::GaveUp, now_ns + GAVE_UP_NS);
        (self.vacant_ns, self.changed_ns) = (None, now_ns);
    }

    /// It asks no more for a while.
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

    /// How this instance stands at this look.
    fn own(&self, look: &VipLook<'_>, peers: &[PeerVip]) -> VipStanding {
        let part = match self.stage {
            VipStage::Holds { .. } => VipPart::Holds,
            VipStage::Takes { .. } => VipPart::Takes,
            VipStage::Stands if look.bar.is_some() || self.failed.is_some() || !look.has_carrier => VipPart::Out,
            VipStage::Stands => VipPart::Stands,
        };
        let holder = peers.iter().find(|peer| self.holds_too(peer));
        VipStanding {
            part,
            claim: self.claim,
            ready: look.ready,
            synced: look.synced,
            hears: look.heard_ns > 0 && look.now_ns.saturating_sub(look.heard_ns) < HEARD_NS,
            damped: self.damped,
            answered: self.answered.is_some(),
            priority: self.settings.priority,
            holder: holder.map(|peer| peer.name.tag()),
            addresses: self.settings.addresses,
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
