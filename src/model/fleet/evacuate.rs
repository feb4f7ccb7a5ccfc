//! Decisions of an evacuation: this instance gives its addresses to another one, so that an operator can switch its
//! host off.
//!
//! ```text
//!   Telling ──all is known there──▶ MovingVip ──seen there──▶ Emptying ──none left──▶ Confirming ──known there──▶ Away
//!      │                               │                        │   │ deadline                                     │
//!      │ nobody to give to             │ nobody takes it        │   └────▶ Resetting ──────────▶ Confirming        │
//!      ▼                               ▼                        ▼ nobody has it any more                           │
//!    Here ◀───────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Before `MovingVip` no client notices anything, and until `Resetting` everything can be undone. The caller looks
//! every few milliseconds, and carries out the orders. If the peer that has the VIP forwards no packets, `Emptying` is left out.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Farewell, InstanceName, Liveness, MemberView, OffloadBrief};
use crate::model::humane::duration_ms;

/// What an instance whose host is evacuated says of itself (`InstanceSummary::not_ready`). Peers know it by these words.
pub(crate) const VIP_GIVEN: &str = "an evacuation has given its VIP to another instance";

/// Where the frontends' addresses are on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Of all frontends, wherever they are.
    pub frontends: Vec<IpAddr>,
    /// On an interface, or put on `lo` by somebody other than Baton: neighbours or routers send packets here.
    pub here: Vec<IpAddr>,
    /// Put on `lo` by this instance, for flows whose packets come by another instance, now or soon.
    pub kept: Vec<IpAddr>,
}

impl Places {
    /// The VIPs that are on `lo` here, and nowhere else on this host: this kernel drops packets from them, and no neighbour sends here.
    pub(crate) fn kept_alone(&self) -> impl Iterator<Item = IpAddr> {
        self.kept.iter().copied().filter(|vip| !self.here.contains(vip))
    }
}

/// The situation at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation<'a> {
    pub now_ns: u64,
    pub peers: &'a [MemberView],
    pub places: &'a Places,
    /// Flows that end with this host: those with sockets here, and those whose backend is here.
    pub ending_here: usize,
    /// Flows accepted since this process began.
    pub accepted: u64,
}

/// An operator's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `None`: to any live peer.
    pub to: Option<InstanceName>,
    /// When the flows that are left are reset.
    pub deadline_ns: u64,
}

/// The orders to carry out, in this sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvacuateOrder {
    /// Add the addresses to `lo` before they leave their interfaces: no packet of a flow may find them missing.
    Keep,
    /// Say that this host should not have the VIP.
    GiveVip,
    /// Offload all flows that can be offloaded, even young ones.
    Offload,
    /// Reset every new connection: clients of this host may still reach it by an address on `lo`.
    Refuse,
    /// Reset what is left, paced.
    Reset,
    /// Say that this host may have the VIP again, and cancel the other orders.
    TakeBack,
    /// No flow needs the addresses on `lo` any more.
    Release,
}

/// The step of an evacuation, also in the reports of its progress. The last two are the ends, which a report has as its
/// outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvacuateStep {
    /// The peers acknowledge all changes so far.
    #[default]
    Telling,
    /// The VIP leaves this host, and a peer reports it.
    MovingVip,
    /// Flows are offloaded, or end by themselves.
    Emptying,
    /// The deadline has passed, or no packet of these flows comes here any more.
    Resetting,
    /// The peers acknowledge the last changes.
    Confirming,
    /// Done: the host may be switched off.
    Away,
    /// The evacuation failed, or the operator cancelled it: this host may have the VIP.
    Here,
}

/// Why this host keeps its addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("there is no peer {asked}; there is {}", .known.join(", "))]
    Unknown { asked: InstanceName, known: Vec<String> },
    #[error("{peer} is {}, so it cannot get the VIP", .liveness.label())]
    NotAlive { peer: InstanceName, liveness: Liveness },
    #[error("no peer is alive: {}", .0.join(", "))]
    NobodyAlive(Vec<String>),
    #[error(
        "{peer} does not know all flows of this instance: {behind} changes are not acknowledged after {}",
        duration_ms(*.waited_ms)
    )]
    NotTold { peer: InstanceName, behind: usize, waited_ms: u64 },
    #[error("cannot keep {0} on lo for proxied flows; the log has the error")]
    NotKept(IpAddr),
    #[error("{vip} is still on this host after {}: no program removes it while `baton ready` fails", duration_ms(*.waited_ms))]
    NotLeft { vip: IpAddr, waited_ms: u64 },
    #[error("no live peer has taken {vip} within {}", duration_ms(*.waited_ms))]
    NotTaken { vip: IpAddr, waited_ms: u64 },
    #[error(
        "new connections still come here after {}: no program withdraws the route to {vip} while `baton \
         ready` fails",
        duration_ms(*.waited_ms)
    )]
    NotWithdrawn { vip: IpAddr, waited_ms: u64 },
    #[error("no live peer has {0} any more")]
    HeirLost(IpAddr),
    #[error("cannot write failover.track_file {path}: {error}")]
    TrackFile { path: String, error: String },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Evacuation {
    wish: Wish,
    step: EvacuateStep,
    began_ns: u64,
    /// When this step began.
    since_ns: u64,
    /// Addresses of this host that no live peer had at the beginning: they leave this host, and a peer reports them.
    moving: Vec<IpAddr>,
    /// Addresses that peers have as well, to which routers send packets: routers must stop sending them here.
    routed: Vec<IpAddr>,
    /// `moving` and `routed`, and the addresses that a live peer had all along: each must always have an owner.
    watched: Vec<IpAddr>,
    accepted: u64,
    /// When the last new flow came.
    came_ns: u64,
    /// Since when no live peer has one of the addresses.
    missing_since_ns: Option<u64>,
    /// How often what is left was reset.
    resets: u32,
    /// Peers that had not confirmed everything at the end.
    unconfirmed: Vec<InstanceName>,
    failure: Option<Failure>,
    orders: VecDeque<EvacuateOrder>,
}

/// Limit for peers to confirm all changes from before the evacuation.
const TELL_MAX_NS: u64 = 5_000_000_000;
/// Limit for a peer to take the address; after that this host takes it back.
const TAKE_MAX_NS: u64 = 5_000_000_000;
/// Routers take longer to withdraw routes; this host serves clients meanwhile.
const WITHDRAW_MAX_NS: u64 = 15_000_000_000;
/// A route counts as withdrawn if no new connection came for so long. deploy/bird/watch asks twice before it withdraws one, which takes up to 2 s,
/// and routers follow after that.
const QUIET_NS: u64 = 3_000_000_000;
/// An address that no live peer has for so long has no owner.
const MISSING_MAX_NS: u64 = 2_000_000_000;
/// If flows are left so long after the resets should be complete, a worker hangs.
const RESET_PATIENCE_NS: u64 = 30_000_000_000;
/// What is left after this time is reset again, then after twice the time, and so on: an order to all workers costs something.
const RESET_AGAIN_NS: u64 = 500_000_000;
/// Until a change is in the link's queue, and until a view for people is renewed.
const QUEUED_NS: u64 = 100_000_000;

impl Evacuation {
    /// Begins, unless the situation already shows that the evacuation would fail.
    pub(crate) fn begin(wish: Wish, look: &Situation<'_>) -> Result<Self, Failure> {
        heirs(&wish, look.peers)?;
        let taken = |vip: &IpAddr| living(look.peers).any(|peer| peer.vips.contains(vip));
        let (routed, moving) = look.places.here.iter().copied().partition(taken);
        let somewhere = |vip: &&IpAddr| look.places.here.contains(vip) || taken(vip);
        let watched = look.places.frontends.iter().filter(somewhere).copied().collect();
        let mut evacuation = Self {
            wish,
            step: EvacuateStep::Telling,
            began_ns: look.now_ns,
            since_ns: look.now_ns,
            moving,
            routed,
            watched,
            accepted: look.accepted,
            came_ns: look.now_ns,
            missing_since_ns: None,
            resets: 0,
            unconfirmed: Vec::new(),
            failure: None,
            orders: VecDeque::new(),
        };
        if !evacuation.moving.is_empty() {
            evacuation.orders.push_back(EvacuateOrder::Keep);
        }
        Ok(evacuation)
    }

    pub(crate) fn step(&self) -> EvacuateStep {
        self.step
    }

    /// Addresses that leave this host, or its routes.
    pub(crate) fn vips(&self) -> impl Iterator<Item = IpAddr> {
        self.moving.iter().chain(&self.routed).copied()
    }

    /// The frontends' addresses that somebody had at the beginning.
    pub(crate) fn watched(&self) -> impl Iterator<Item = IpAddr> {
        self.watched.iter().copied()
    }

    /// The peer that the operator names.
    pub(crate) fn to(&self) -> Option<&InstanceName> {
        self.wish.to.as_ref()
    }

    /// Why the evacuation failed. `None` in [`EvacuateStep::Here`]: the operator cancelled it.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Peers that did not confirm everything at the end.
    pub(crate) fn unconfirmed(&self) -> &[InstanceName] {
        &self.unconfirmed
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.began_ns.saturating_add(self.wish.deadline_ns)
    }

    pub(crate) fn poll_order(&mut self) -> Option<EvacuateOrder> {
        self.orders.pop_front()
    }

    /// The operator wants the VIP to be able to come back. Flows that were reset stay reset.
    pub(crate) fn cancel(&mut self) {
        if self.step != EvacuateStep::Here {
            self.take_back(None);
        }
    }

    /// An order could not be carried out.
    pub(crate) fn fail(&mut self, failure: Failure) {
        if self.step != EvacuateStep::Here {
            self.take_back(Some(failure));
        }
    }

    pub(crate) fn handle_look(&mut self, look: &Situation<'_>) {
        if look.accepted != self.accepted {
            (self.accepted, self.came_ns) = (look.accepted, look.now_ns);
        }
        match self.step {
            EvacuateStep::Telling => self.telling(look),
            EvacuateStep::MovingVip => self.moving_vip(look),
            EvacuateStep::Emptying | EvacuateStep::Resetting => self.emptying(look),
            EvacuateStep::Confirming => self.confirming(look),
            EvacuateStep::Away => self.watch_heirs(look),
            EvacuateStep::Here => {}
        }
    }

    fn telling(&mut self, look: &Situation<'_>) {
        let heirs = match heirs(&self.wish, look.peers) {
            Ok(heirs) => heirs,
            Err(failure) => return self.take_back(Some(failure)),
        };
        let waited_ns = look.now_ns.saturating_sub(self.since_ns);
        let missing = self.moving.iter().find(|vip| !look.places.kept.contains(vip)).copied();
        match heirs.into_iter().find(|peer| !self.is_told(peer, look.now_ns)) {
            Some(peer) if waited_ns > self.at_most(TELL_MAX_NS) => self.take_back(Some(Failure::NotTold {
                peer: peer.name.clone(),
                behind: peer.behind,
                waited_ms: waited_ns / 1_000_000,
            })),
            None if missing.is_none() => {
                self.orders.push_back(EvacuateOrder::GiveVip);
                self.go_to(EvacuateStep::MovingVip, look.now_ns);
            }
            _ => {
                if let Some(vip) = missing.filter(|_| waited_ns > self.at_most(TELL_MAX_NS)) {
                    self.take_back(Some(Failure::NotKept(vip)));
                }
            }
        }
    }

    fn moving_vip(&mut self, look: &Situation<'_>) {
        if look.peers.iter().all(is_gone) {
            return self.take_back(Some(nobody_lives(look.peers)));
        }
        let waited_ns = look.now_ns.saturating_sub(self.since_ns);
        let waited_ms = waited_ns / 1_000_000;
        let taken = |vip: &IpAddr| living(look.peers).any(|peer| peer.vips.contains(vip));
        let left = |vip: &IpAddr| !look.places.here.contains(vip);
        let quiet = look.now_ns.saturating_sub(self.came_ns.max(self.since_ns)) >= QUIET_NS;
        let failure = if let Some(vip) = self.moving.iter().find(|vip| !left(vip)).copied() {
            (waited_ns > self.at_most(TAKE_MAX_NS)).then_some(Failure::NotLeft { vip, waited_ms })
        } else if let Some(vip) = self.vips().find(|vip| !taken(vip)) {
            (waited_ns > self.at_most(TAKE_MAX_NS)).then_some(Failure::NotTaken { vip, waited_ms })
        } else if let Some(vip) = self.routed.iter().find(|vip| !left(vip) && !quiet).copied() {
            (waited_ns > self.at_most(WITHDRAW_MAX_NS)).then_some(Failure::NotWithdrawn { vip, waited_ms })
        } else if self.is_forwarded(look) {
            self.orders.push_back(EvacuateOrder::Offload);
            return self.go_to(EvacuateStep::Emptying, look.now_ns);
        } else {
            return self.reset(look.now_ns);
        };
        if failure.is_some() {
            self.take_back(failure);
        }
    }

    fn emptying(&mut self, look: &Situation<'_>) {
        self.watch_heirs(look);
        if !matches!(self.step, EvacuateStep::Emptying | EvacuateStep::Resetting) {
            return;
        }
        let waited_ns = look.now_ns.saturating_sub(self.since_ns);
        if look.ending_here == 0 || self.step == EvacuateStep::Resetting && waited_ns > RESET_PATIENCE_NS {
            self.go_to(EvacuateStep::Confirming, look.now_ns);
        } else if self.step == EvacuateStep::Emptying && look.now_ns >= self.deadline_ns() {
            self.reset(look.now_ns);
        } else if self.step == EvacuateStep::Resetting && waited_ns >= RESET_AGAIN_NS << (self.resets - 1) {
            // A flow was on its way between a worker and the offload engine, or was accepted at that moment.
            self.orders.push_back(EvacuateOrder::Reset);
            self.resets += 1;
        }
    }

    /// Whether a peer that has the addresses sends on packets of flows that have stayed here. One that has not said counts as such.
    fn is_forwarded(&self, look: &Situation<'_>) -> bool {
        let has_one = |peer: &&MemberView| self.vips().any(|vip| peer.vips.contains(&vip));
        let forwards =
            |peer: &MemberView| peer.summary.as_ref().is_none_or(|it| it.summary.offload != OffloadBrief::Off);
        self.vips().next().is_none() || living(look.peers).filter(has_one).any(forwards)
    }

    fn reset(&mut self, now_ns: u64) {
        self.orders.extend([EvacuateOrder::Refuse, EvacuateOrder::Reset]);
        self.resets = 1;
        self.go_to(EvacuateStep::Resetting, now_ns);
    }

    /// Peers must hold the recently offloaded flows before this host may go.
    fn confirming(&mut self, look: &Situation<'_>) {
        self.watch_heirs(look);
        // Without a living peer that has the address, nobody is left to whom the last changes matter: it comes back, or this host
        // takes the address again.
        if self.step != EvacuateStep::Confirming || self.missing_since_ns.is_some() {
            return;
        }
        if look.ending_here > 0 && look.now_ns < self.deadline_ns() {
            // A client of this host has come again.
            return self.go_to(EvacuateStep::Emptying, look.now_ns);
        }
        // If no peer is heard, none has confirmed anything. One that is just starting may have the VIP, and is told when it is linked.
        let is_heard = living(look.peers).next().is_some();
        let asked = look.peers.iter().filter(|it| !is_heard || lives(it) || it.liveness == Liveness::Unlinked);
        let untold = asked.filter(|peer| !self.is_told(peer, look.now_ns));
        self.unconfirmed = untold.map(|peer| peer.name.clone()).collect();
        if self.unconfirmed.is_empty() || look.now_ns.saturating_sub(self.since_ns) > TELL_MAX_NS {
            self.orders.push_back(EvacuateOrder::Release);
            self.go_to(EvacuateStep::Away, look.now_ns);
        }
    }

    /// No peer has the address, and this host still lives: this host takes it back.
    fn watch_heirs(&mut self, look: &Situation<'_>) {
        let orphan = self.watched().find(|vip| !living(look.peers).any(|peer| peer.vips.contains(vip)));
        let Some(vip) = orphan else { return self.missing_since_ns = None };
        let since_ns = *self.missing_since_ns.get_or_insert(look.now_ns);
        if look.peers.iter().all(is_gone) || look.now_ns.saturating_sub(since_ns) > MISSING_MAX_NS {
            self.take_back(Some(Failure::HeirLost(vip)));
        }
    }

    fn take_back(&mut self, failure: Option<Failure>) {
        self.failure = failure;
        self.orders.push_back(EvacuateOrder::TakeBack);
        self.step = EvacuateStep::Here;
    }

    fn go_to(&mut self, step: EvacuateStep, now_ns: u64) {
        (self.step, self.since_ns) = (step, now_ns);
    }

    /// Whether the peer has acknowledged all changes from before this step.
    fn is_told(&self, peer: &MemberView, now_ns: u64) -> bool {
        let knows_until_ns = now_ns.saturating_sub(QUEUED_NS + peer.lag_ms * 1_000_000);
        peer.liveness == Liveness::Alive && peer.told && knows_until_ns >= self.since_ns
    }

    /// The limit, but never later than the operator's own deadline.
    fn at_most(&self, limit_ns: u64) -> u64 {
        limit_ns.min(self.wish.deadline_ns)
    }
}

/// The peers that must confirm everything: the named one, or all live ones.
fn heirs<'a>(wish: &Wish, peers: &'a [MemberView]) -> Result<Vec<&'a MemberView>, Failure> {
    let names = || peers.iter().map(|peer| peer.name.to_string()).collect();
    match &wish.to {
        Some(to) => {
            let Some(peer) = peers.iter().find(|peer| peer.name == *to) else {
                return Err(Failure::Unknown { asked: to.clone(), known: names() });
            };
            if !lives(peer) {
                return Err(Failure::NotAlive { peer: to.clone(), liveness: peer.liveness });
            }
            Ok(vec![peer])
        }
        None => {
            let alive: Vec<_> = living(peers).collect();
            match alive.is_empty() {
                true => Err(nobody_lives(peers)),
                false => Ok(alive),
            }
        }
    }
}

fn nobody_lives(peers: &[MemberView]) -> Failure {
    let each = |peer: &MemberView| format!("{} is {}", peer.name, peer.liveness.label());
    Failure::NobodyAlive(peers.iter().map(each).collect())
}

/// Whether the peer lives: a pause of moments is no death, nor is an upgrade.
fn lives(peer: &MemberView) -> bool {
    matches!(peer.liveness, Liveness::Alive | Liveness::Silent | Liveness::Left(Farewell::Succeeded))
}

/// Whether the peer can take no address now.
fn is_gone(peer: &MemberView) -> bool {
    matches!(peer.liveness, Liveness::Unheard | Liveness::Dead | Liveness::Left(Farewell::Stopped))
}

fn living(peers: &[MemberView]) -> impl Iterator<Item = &MemberView> {
    peers.iter().filter(|peer| lives(peer))
}
