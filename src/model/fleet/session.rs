//! The state between this instance and one peer.
//!
//! ```text
//!   its flows, told to the peer:   Waiting ─▶ Snapshot ─▶ CatchingUp ─▶ Following
//!                                  until the     ▲         the changes     │ its place fell out of the log,
//!                                  own are known │         meanwhile       │ or the peer missed one
//!                                                └─────────────────────────┘
//!   the peer's flows, told here:   nothing ─ Begin ─▶ coming ─ Whole ─▶ synced ─ a number is missing ─▶ nothing; Again
//! ```
//! A new link begins with a snapshot each way. This instance keeps what a peer told before its link broke: a failover
//! needs it.

mod saved;
mod view;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::message::{CLAIM_MAX, Change, Hello, Message, RECORDS_MAX, UNTOLD_MAX};
use super::mirror::Mirror;
use super::summary::{InstanceSummary, SummariesTold};
use super::vip::PeerVip;
use super::{
    Abandoned, Asked, BeatKey, Farewell, FleetId, InstanceName, Keeping, Liveness, Notice, PeerVitals, PortRange,
    Remote,
};
use crate::model::ids::FlowId;

/// Between two beats.
pub(super) const BEAT_NS: u64 = 50_000_000;
/// A peer that was not heard for so long is silent.
pub(super) const SILENT_NS: u64 = 250_000_000;
pub(super) const DEAD_NS: u64 = 1_000_000_000;
/// Time for a link whose peer did not run for a while: what its kernel has comes just after the first beat.
const BACK_NS: u64 = 100_000_000;
/// Time for the new process of an upgrade to be heard.
const SUCCESSION_NS: u64 = 5_000_000_000;
/// A peer that is linked gets this many times the deadline to tell all its flows.
const LINKED_PATIENCE: u64 = 6;
/// Interval at which a beat asks for an echo.
const ECHO_NS: u64 = 1_000_000_000;

/// Flows of one peer: a peer that tells more violates the protocol.
pub(crate) const PEER_FLOWS_MAX: usize = 2_000_000;
/// Messages other than flows that may wait for one peer.
const OUTBOX_MAX: usize = 4096;
const VIPS_MAX: usize = 1024;

/// One peer, with or without a link.
#[derive(Debug)]
pub(super) struct Session {
    pub name: InstanceName,
    pub address: SocketAddr,
    pub link: Option<Link>,
    pub vitals: PeerVitals,
    /// When a beat came beside the link after nothing had come by either for [`SILENT_NS`].
    back_ns: Option<u64>,
    /// Its flows; an offloaded one with the host of its backend.
    flows: HashMap<FleetId, Option<IpAddr>>,
    offloaded: usize,
    /// The number of its offloaded flows to each host of backends.
    offloaded_to: HashMap<IpAddr, usize>,
    vips: Vec<IpAddr>,
    /// Whether the peer's present process has said which addresses its host has.
    has_told_addresses: bool,
    /// The latest summary of the peer's present process, and when it came.
    summary: Option<(u64, Arc<InstanceSummary>)>,
    pub why_not: Option<String>,
    /// The reasons that were told since the last link.
    told_why_not: Vec<String>,
    pub health_state: PeerReport,
}

/// Whether readiness waits for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerReport {
    Awaited {
        since_ns: u64,
    },
    /// It is synced, or this instance has waited long enough.
    Settled,
}

#[derive(Debug)]
pub(super) struct Link {
    telling: Telling,
    /// Number of the next change to send.
    next: u64,
    /// The peer has acknowledged every change below. `None`: nothing of this snapshot.
    acked: Option<u64>,
    /// Number of the next change to receive. `None`: changes are ignored until its next `Begin`.
    expected: Option<u64>,
    ack: Option<u64>,
    beat_due_ns: u64,
    beats: u32,
    /// The next beat must carry an echo.
    echo_wanted: bool,
    /// A ping was sent: the answer is reported even if the liveness is unchanged.
    pinged: bool,
    /// The beat that the peer must echo, and when it was sent.
    awaited: Option<(u32, u64)>,
    echo: Option<u32>,
    outbox: VecDeque<Message>,
    /// `None`: the link's version has no summaries.
    pub summaries: Option<SummariesTold>,
    /// Whether the link's version has source ports.
    pub has_ports: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Waiting,
    /// All flows up to this id were sent. `None`: not begun.
    Snapshot {
        after: Option<FlowId>,
    },
    /// All flows were sent; the changes below this number, made meanwhile, are still to be sent.
    CatchingUp {
        until: u64,
    },
    Following,
}

/// A violation of the protocol. The link ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("it sent its hello twice")]
    Hello,
    #[error("it refuses: {0}")]
    Refused(String),
    #[error("it tells of more than {PEER_FLOWS_MAX} flows")]
    TooMany,
    #[error("it acknowledges changes that this instance has not sent")]
    Ack,
    #[error("one of its messages is longer than allowed")]
    TooLong,
}

/// Results that the exchange must act on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    Asked { number: u32, packet: Asked },
    Answered { number: u32, known: bool },
    Claimed(Vec<FleetId>),
    Ports(PortRange),
}

impl Session {
    pub(super) fn new(name: InstanceName, address: SocketAddr, why_not: &str, health_state: PeerReport) -> Self {
        Self {
            name,
            address,
            link: None,
            vitals: PeerVitals::default(),
            back_ns: None,
            flows: HashMap::new(),
            offloaded_to: HashMap::new(),
            offloaded: 0,
            vips: Vec::new(),
            has_told_addresses: false,
            summary: None,
            why_not: Some(why_not.to_owned()),
            told_why_not: Vec::new(),
            health_state,
        }
    }

    /// Its hello was accepted. `wait`: if the peer was away, this instance is not ready before it is synced again.
    pub(super) fn linked(&mut self, hello: &Hello, wait: bool, now_ns: u64) -> Option<Liveness> {
        let returns = !matches!(self.vitals.liveness, Liveness::Alive | Liveness::Unlinked | Liveness::Silent)
            || self.vitals.epoch != hello.epoch;
        if returns && wait && self.health_state == PeerReport::Settled {
            self.health_state = PeerReport::Awaited { since_ns: now_ns };
        }
        if self.vitals.epoch != hello.epoch {
            (self.vitals.synced, self.vitals.vip, self.has_told_addresses, self.summary) = (false, None, false, None);
            (self.vitals.witnessed_ns, self.vitals.beat_ns, self.vitals.beat_key, self.vitals.beat_number) =
                (None, None, None, 0);
        }
        self.vitals.epoch = hello.epoch;
        self.vitals.slot = Some(hello.slot);
        self.vitals.version.clone_from(&hello.version);
        self.why_not = None;
        self.told_why_not.clear();
        self.link = Some(Link {
            telling: Telling::Waiting,
            next: 0,
            acked: None,
            expected: None,
            ack: None,
            beat_due_ns: now_ns,
            beats: 0,
            echo_wanted: true,
            pinged: false,
            awaited: None,
            echo: None,
            outbox: VecDeque::new(),
            summaries: None,
            has_ports: false,
        });
        self.vitals.heard_ns = Some(now_ns);
        self.set_liveness(Liveness::Alive)
    }

    /// Its liveness now; `None`: unchanged.
    pub(super) fn liveness_now(&mut self, now_ns: u64) -> Option<Liveness> {
        let silence = self.vitals.heard_ns.map(|heard| now_ns.saturating_sub(heard));
        // Hearing counts even from before the link ended: the peer lived a moment ago, and its next beat is on its way.
        let is_witnessed = self.vitals.witnessed_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < SILENT_NS);
        // A few lost beats are no death either.
        let latest = self.vitals.heard_ns.max(self.vitals.witnessed_ns).map(|heard| now_ns.saturating_sub(heard));
        let liveness = match (self.vitals.liveness, silence) {
            (Liveness::Left(Farewell::Succeeded), _) if now_ns.saturating_sub(self.vitals.left_ns) < SUCCESSION_NS => {
                self.vitals.liveness
            }
            (Liveness::Left(Farewell::Stopped), _) => self.vitals.liveness,
            (_, None) => Liveness::Unheard,
            (_, Some(silence)) if silence < SILENT_NS && self.link.is_some() => Liveness::Alive,
            _ if is_witnessed => Liveness::Unlinked,
            _ if latest.is_none_or(|silence| silence >= DEAD_NS) => Liveness::Dead,
            (Liveness::Dead, _) if self.link.is_none() => Liveness::Dead,
            // A link that ends without a farewell counts as a few missing beats.
            _ => Liveness::Silent,
        };
        self.set_liveness(liveness)
    }

    /// Whether its link was silent for so long that a new one is needed: for a second, or for a moment since beats have come again after a
    /// silence. The network was away, and TCP, which doubles its pauses meanwhile, may repeat nothing for as long again.
    pub(super) fn is_stale(&self, now_ns: u64) -> bool {
        let is_silent_since = |at_ns: u64| self.vitals.heard_ns.is_some_and(|heard_ns| heard_ns <= at_ns);
        let is_back = self.back_ns.filter(|at_ns| now_ns.saturating_sub(*at_ns) >= BACK_NS);
        self.link.is_some() && (is_silent_since(now_ns.saturating_sub(DEAD_NS)) || is_back.is_some_and(is_silent_since))
    }

    /// Readiness no longer waits for the peer once it has had its time. `moves_vip`: Baton moves the VIP.
    pub(super) fn stop_waiting(&mut self, sync_deadline_ns: u64, moves_vip: bool, now_ns: u64) {
        let PeerReport::Awaited { since_ns } = self.health_state else { return };
        let is_absent =
            matches!(self.vitals.liveness, Liveness::Unheard | Liveness::Dead | Liveness::Left(Farewell::Stopped));
        let patience_ns = match self.link.is_some() {
            true => sync_deadline_ns.saturating_mul(LINKED_PATIENCE),
            // A host that has the VIP answers for it, whether it is heard here or not. If none does, nobody would have the VIP meanwhile.
            false if moves_vip && is_absent => DEAD_NS.min(sync_deadline_ns),
            false => sync_deadline_ns,
        };
        if now_ns.saturating_sub(since_ns) >= patience_ns {
            self.health_state = PeerReport::Settled;
        }
    }

    /// The secret of its beats, once it has sent it.
    pub(super) fn beat_key(&self) -> Option<&BeatKey> {
        self.vitals.beat_key.as_ref()
    }

    /// The beat `number` of this peer has come beside the link. False: a repetition, which does not count.
    pub(super) fn beat(&mut self, number: u64, now_ns: u64) -> bool {
        if number <= self.vitals.beat_number {
            return false;
        }
        if self.heard_at_ns().is_some_and(|at_ns| now_ns.saturating_sub(at_ns) >= SILENT_NS) {
            self.back_ns = Some(now_ns);
        }
        (self.vitals.beat_number, self.vitals.beat_ns) = (number, Some(now_ns));
        self.witness(now_ns);
        true
    }

    /// This instance or another one heard the peer beside the link.
    pub(super) fn witness(&mut self, at_ns: u64) {
        self.vitals.witnessed_ns = self.vitals.witnessed_ns.max(Some(at_ns));
    }

    /// When this instance itself last heard the peer.
    pub(super) fn heard_at_ns(&self) -> Option<u64> {
        self.vitals.heard_ns.max(self.vitals.beat_ns)
    }

    /// The peer, as the machine of a VIP with the addresses `of` sees it.
    /// `own`: the addresses of this host.
    pub(super) fn vip_peer(&self, of: &[IpAddr], own: &[IpAddr], now_ns: u64) -> PeerVip {
        let silence_ns = match self.vitals.liveness {
            // The new process of its upgrade goes on as it did.
            Liveness::Left(Farewell::Succeeded) => Some(0),
            Liveness::Left(Farewell::Stopped) => None,
            _ => self.heard_at_ns().map(|at_ns| now_ns.saturating_sub(at_ns)),
        };
        // The addresses that an earlier process told may be gone.
        let has_address = self.has_told_addresses && self.vips.iter().any(|ip| of.contains(ip));
        let flows_here = own.iter().filter_map(|ip| self.offloaded_to.get(ip)).sum::<usize>();
        let flows_here = u32::try_from(flows_here).unwrap_or(u32::MAX);
        PeerVip { name: self.name.clone(), silence_ns, standing: self.vitals.vip, has_address, flows_here }
    }

    /// The destinations of beats to it: all known addresses of its host.
    pub(super) fn places(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.address.ip()).chain(self.vips.iter().copied())
    }

    /// A message came. A message after a farewell does not revoke it; only a new link does.
    pub(super) fn heard(&mut self, now_ns: u64) -> Option<Liveness> {
        self.vitals.heard_ns = Some(now_ns);
        match self.vitals.liveness {
            Liveness::Left(_) => None,
            _ => self.set_liveness(Liveness::Alive),
        }
    }

    /// This instance did not read the peer's messages during this time.
    pub(super) fn was_not_listened_to(&mut self, absence_ns: u64) {
        if self.link.is_some() {
            self.vitals.heard_ns = self.vitals.heard_ns.map(|heard| heard + absence_ns);
        }
        if self.vitals.liveness == Liveness::Unlinked {
            self.vitals.witnessed_ns = self.vitals.witnessed_ns.map(|heard| heard + absence_ns);
        }
    }

    fn set_liveness(&mut self, liveness: Liveness) -> Option<Liveness> {
        (std::mem::replace(&mut self.vitals.liveness, liveness) != liveness).then_some(liveness)
    }

    /// Takes in one message.
    pub(super) fn handle(
        &mut self,
        message: Message,
        now_ns: u64,
        remotes: &mut VecDeque<Remote>,
        notices: &mut VecDeque<Notice>,
    ) -> Result<Heard, Fault> {
        let Some(link) = &mut self.link else { return Ok(Heard::Nothing) };
        let name = self.name.clone();
        let owner = || name.clone();
        match message {
            Message::Hello(_) => return Err(Fault::Hello),
            Message::Refuse(why) => return Err(Fault::Refused(why)),
            Message::Begin { next } => {
                link.expected = Some(next);
                self.flows.clear();
                self.offloaded_to.clear();
                (self.offloaded, self.vitals.synced) = (0, false);
                let slot = self.vitals.slot.unwrap_or_default();
                remotes.push_back(Remote::Begin { owner: owner(), epoch: self.vitals.epoch, slot });
            }
            Message::Records(records) => {
                if records.len() > RECORDS_MAX {
                    return Err(Fault::TooLong);
                }
                if link.expected.is_some() {
                    records.into_iter().try_for_each(|record| self.told(Change::Flow(Box::new(record)), remotes))?;
                }
            }
            Message::Changes { first, changes } => {
                if changes.len() > RECORDS_MAX {
                    return Err(Fault::TooLong);
                }
                match link.expected {
                    Some(expected) if expected == first => {
                        let next = first.saturating_add(changes.len() as u64);
                        (link.expected, link.ack) = (Some(next), Some(next));
                        changes.into_iter().try_for_each(|change| self.told(change, remotes))?;
                    }
                    Some(_) => {
                        self.ask_again();
                        notices.push_back(Notice::Gap { peer: owner() });
                    }
                    None => {}
                }
            }
            Message::Whole => {
                if link.expected.is_some() && !self.vitals.synced {
                    link.ack = link.expected;
                    self.vitals.synced = true;
                    self.health_state = PeerReport::Settled;
                    remotes.push_back(Remote::Synced { owner: owner() });
                    notices.push_back(Notice::Synced { peer: owner(), flows: self.flows.len() as u64 });
                }
            }
            Message::Ack { next } => {
                if next > link.next {
                    return Err(Fault::Ack);
                }
                link.acked = link.acked.max(Some(next));
            }
            Message::Again => {
                if link.telling != Telling::Waiting {
                    link.telling = Telling::Snapshot { after: None };
                    self.vitals.resyncs += 1;
                }
            }
            Message::Beat { number, echo } => {
                if echo {
                    link.echo = Some(number);
                }
            }
            Message::Echo { number } => {
                if let Some((_, sent_ns)) = link.awaited.take_if(|(awaited, _)| *awaited == number) {
                    self.vitals.round_trip_us = now_ns.saturating_sub(sent_ns) / 1000;
                    if std::mem::take(&mut link.pinged) {
                        remotes.push_back(Remote::Liveness { owner: owner(), liveness: self.vitals.liveness });
                    }
                }
            }
            Message::Claim(flows) => {
                if flows.len() > CLAIM_MAX {
                    return Err(Fault::TooLong);
                }
                return Ok(Heard::Claimed(flows));
            }
            Message::Ask { number, packet } => return Ok(Heard::Asked { number, packet }),
            Message::Answer { number, known } => return Ok(Heard::Answered { number, known }),
            Message::Ports(ports) => {
                let told = ports.whole_of(self.vitals.slot.unwrap_or_default());
                remotes.push_back(Remote::Ports { owner: owner(), ports: told });
                return Ok(Heard::Ports(ports));
            }
            Message::Addresses(vips) | Message::Kept(vips) if vips.len() > VIPS_MAX => return Err(Fault::TooLong),
            Message::Addresses(vips) => {
                self.vips.clone_from(&vips);
                self.has_told_addresses = true;
                remotes.push_back(Remote::Addresses { owner: owner(), vips });
            }
            Message::Kept(vips) => remotes.push_back(Remote::Kept { owner: owner(), vips }),
            Message::BeatKey(key) => self.vitals.beat_key = Some(key),
            Message::Vip(standing) => self.vitals.vip = Some(standing),
            Message::Summary(mut summary) => match summary.is_within_limits() {
                true => self.summary = Some((now_ns, Arc::new(summary.printable()))),
                false => return Err(Fault::TooLong),
            },
            Message::Untold(all) => {
                if all.len() > UNTOLD_MAX {
                    return Err(Fault::TooLong);
                }
                remotes.push_back(Remote::Untold(all));
            }
            Message::Farewell(farewell) => {
                self.vitals.left_ns = now_ns;
                if let Some(liveness) = self.set_liveness(Liveness::Left(farewell)) {
                    remotes.push_back(Remote::Liveness { owner: owner(), liveness });
                    notices.push_back(Notice::Liveness { peer: owner(), liveness });
                }
            }
        }
        Ok(Heard::Nothing)
    }

    fn told(&mut self, change: Change, remotes: &mut VecDeque<Remote>) -> Result<(), Fault> {
        let owner = self.name.clone();
        match change {
            Change::Flow(record) => {
                let offloaded = matches!(record.keeping, Keeping::Passage(_));
                let to = offloaded.then(|| record.ends.backend.socket_addr().ip());
                let before = self.flows.insert(record.fleet_id(), to);
                self.discount(before);
                if let Some(to) = to {
                    self.offloaded += 1;
                    *self.offloaded_to.entry(to).or_default() += 1;
                }
                if self.flows.len() > PEER_FLOWS_MAX {
                    return Err(Fault::TooMany);
                }
                remotes.push_back(Remote::Flow { owner, record });
            }
            // The end may be all that a claimant tells of a flow.
            Change::Ended(id) => {
                self.forget(id);
                remotes.push_back(Remote::Ended { owner, id });
            }
            Change::Moved { id, to } => {
                self.forget(id);
                remotes.push_back(Remote::Moved { owner, id, to });
            }
        }
        Ok(())
    }

    /// Has the peer name all its flows again.
    pub(super) fn ask_again(&mut self) {
        if let Some(link) = &mut self.link {
            link.expected = None;
            link.outbox.push_back(Message::Again);
            self.vitals.synced = false;
        }
    }

    fn forget(&mut self, id: FleetId) {
        let flow = self.flows.remove(&id);
        self.discount(flow);
    }

    /// Leaves out of the counts a flow that was in `flows`.
    fn discount(&mut self, flow: Option<Option<IpAddr>>) {
        let Some(to) = flow.flatten() else { return };
        self.offloaded -= 1;
        if let Entry::Occupied(mut count) = self.offloaded_to.entry(to) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The next message for it. `whole`: `mirror` holds all own flows.
    pub(super) fn poll(&mut self, mirror: &Mirror, whole: bool, now_ns: u64) -> Option<Message> {
        let link = self.link.as_mut()?;
        if let Some(message) = link.outbox.pop_front() {
            return Some(message);
        }
        if let Some(number) = link.echo.take() {
            return Some(Message::Echo { number });
        }
        if now_ns >= link.beat_due_ns {
            link.beat_due_ns = now_ns + BEAT_NS;
            link.beats = link.beats.wrapping_add(1);
            let stale = link.awaited.is_none_or(|(_, sent_ns)| now_ns.saturating_sub(sent_ns) >= ECHO_NS);
            let echo = std::mem::take(&mut link.echo_wanted) || stale;
            if echo {
                link.awaited = Some((link.beats, now_ns));
            }
            return Some(Message::Beat { number: link.beats, echo });
        }
        if let Some(next) = link.ack.take() {
            return Some(Message::Ack { next });
        }
        if let Some(summary) = link.summaries.as_mut().and_then(|it| it.poll(now_ns)) {
            return Some(summary);
        }
        match link.telling {
            Telling::Waiting if !whole => None,
            Telling::Waiting | Telling::Snapshot { after: None } => {
                link.telling = Telling::Snapshot { after: Some(FlowId(0)) };
                (link.next, link.acked) = (mirror.end(), None);
                Some(Message::Begin { next: link.next })
            }
            Telling::Snapshot { after: Some(after) } => {
                let records = mirror.records(after, RECORDS_MAX);
                let Some(last) = records.last() else {
                    link.telling = Telling::CatchingUp { until: mirror.end() };
                    return self.poll(mirror, whole, now_ns);
                };
                link.telling = Telling::Snapshot { after: Some(last.id) };
                Some(Message::Records(records))
            }
            Telling::CatchingUp { until } if link.next >= until => {
                link.telling = Telling::Following;
                Some(Message::Whole)
            }
            Telling::CatchingUp { .. } | Telling::Following if !mirror.reaches_back_to(link.next) => {
                link.telling = Telling::Snapshot { after: None };
                self.vitals.resyncs += 1;
                self.poll(mirror, whole, now_ns)
            }
            Telling::CatchingUp { .. } | Telling::Following => {
                let changes = mirror.changes(link.next, RECORDS_MAX);
                if changes.is_empty() {
                    return None;
                }
                let first = link.next;
                link.next += changes.len() as u64;
                Some(Message::Changes { first, changes })
            }
        }
    }

    /// Queues a message; false: there is no link, or too many messages wait.
    pub(super) fn say(&mut self, message: Message) -> bool {
        let outbox = self.link.as_mut().map(|link| &mut link.outbox).filter(|outbox| outbox.len() < OUTBOX_MAX);
        outbox.is_some_and(|outbox| {
            outbox.push_back(message);
            true
        })
    }

    /// Queues a report of clients that may not know of their end.
    pub(super) fn say_untold(&mut self, all: &[Abandoned]) {
        all.chunks(UNTOLD_MAX).for_each(|some| {
            self.say(Message::Untold(some.to_vec()));
        });
    }

    /// Sends a beat at once, and asks for an echo.
    pub(super) fn ping(&mut self, now_ns: u64) {
        if let Some(link) = &mut self.link {
            (link.beat_due_ns, link.echo_wanted, link.pinged) = (now_ns, true, true);
        }
    }

    /// Whether it has every change below `end`.
    #[cfg(test)]
    pub(super) fn has_all(&self, end: u64) -> bool {
        self.link.as_ref().is_some_and(|link| link.telling == Telling::Following && link.acked >= Some(end))
    }
}
