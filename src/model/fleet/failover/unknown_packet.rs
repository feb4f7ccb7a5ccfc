//! Packets that this host does not know, though a peer may.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Action;
use super::agenda::Agenda;
use super::flows::{KnownFlows, KnownState};
use super::members::Members;
use super::timer::Timer;
use crate::model::ends::Key;
use crate::model::fleet::{Asked, InstanceName, PeerCommand, Said, StandbyRequest, UnknownPacket};

/// The packets that peers are asked about, those that go to a peer without a record, and those whose question had no
/// result.
#[derive(Debug, Default)]
pub(super) struct UnknownPackets {
    asked: HashMap<Key, Waiting>,
    /// Keys without a record whose packets go to a peer.
    forwarded: HashMap<Key, ForwardedPackets>,
    /// Keys whose question had no result, and since when.
    unsaid: HashMap<Key, u64>,
    guard_until_ns: u64,
}

/// A packet that the peers were asked about, or that was dropped because its entry is not in the map yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet: UnknownPacket,
    since_ns: u64,
    asked: bool,
}

/// The destination of packets without a record.
#[derive(Clone, Debug)]
struct ForwardedPackets {
    since_ns: u64,
    to: IpAddr,
    /// Destinations that sent them back.
    before: Vec<IpAddr>,
}

/// The link answers sooner; this limit is for a link that does not answer at all.
const ASK_WITHIN_NS: u64 = 1_500_000_000;

/// If a forwarded flow's packets come back from its owner for so long, no instance has the flow.
const LOOPS_NS: u64 = 1_000_000_000;

/// The record of a flow that a peer says belongs to an instance must come within this time.
const FORWARD_NS: u64 = 10_000_000_000;
/// Longer for a peer that is not linked: no record can come from it.
const FORWARD_UNLINKED_NS: u64 = 60_000_000_000;

/// While a question about a packet has no result, the packet is dropped for so long: TCP repeats it, and a later
/// question may succeed.
const UNSAID_NS: u64 = 3_000_000_000;
/// Longer than the pause between two messages to clients that `late_resets` challenges again and again, and that send
/// nothing by themselves.
const UNSAID_FORGET_NS: u64 = 25_000_000_000;

impl UnknownPackets {
    /// Until then no unknown packet is answered: the records of their flows are on their way.
    pub(super) fn guard(&mut self, until_ns: u64, agenda: &mut Agenda) {
        self.guard_until_ns = until_ns;
        agenda.later(until_ns, Timer::Guard);
    }

    /// 0: no guard, or it is over.
    pub(super) fn guard_until_ns(&self, now_ns: u64) -> u64 {
        if self.guard_until_ns > now_ns { self.guard_until_ns } else { 0 }
    }

    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        packet: UnknownPacket,
        flows: &KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let key = packet.key;
        let known = flows.of_packets(&key);
        if known.is_some_and(|known| matches!(known.state, KnownState::Refused | KnownState::NoRoom)) {
            // The map had no room for an entry that would refuse it.
            return agenda.act(Action::Answer(packet));
        }
        if let Some(before) = self.asked.get(&key).copied() {
            if !before.asked && now_ns.saturating_sub(before.since_ns) > LOOPS_NS {
                self.asked.remove(&key);
                agenda.act(Action::Answer(packet));
            }
            return;
        }
        if let Some(forwarded) = self.forwarded.get(&key) {
            // The packet came back from that peer: another peer that cannot be asked may have the flow.
            if now_ns.saturating_sub(forwarded.since_ns) > LOOPS_NS {
                let tried: Vec<_> = forwarded.before.iter().copied().chain([forwarded.to]).collect();
                match members.unlinked_hop(key.to.ip(), &tried) {
                    Some(to) => self.forward(now_ns, key, to, tried, FORWARD_UNLINKED_NS, agenda),
                    None => self.answer(now_ns, packet, agenda),
                }
            }
            return;
        }
        let knows = flows.has_packets(&key);
        if !knows && !members.peers().any(|(_, peer)| peer.can_be_asked()) {
            return self.answer(now_ns, packet, agenda);
        }
        self.asked.insert(key, Waiting { packet, since_ns: now_ns, asked: !knows });
        if knows {
            // If the packet is dropped now, TCP repeats it, and it finds its entry; or its owner sends it back, because
            // its address is moving.
            agenda.later(now_ns + 2 * LOOPS_NS, Timer::Asked(key));
        } else {
            agenda.send(PeerCommand::Ask(Asked { from: key.from, to: key.to }));
            agenda.later(now_ns + ASK_WITHIN_NS, Timer::Asked(key));
        }
    }

    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        (ends, said): (Asked, Said),
        flows: &KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let key = Key { from: ends.from, to: ends.to };
        let Some(waiting) = self.asked.remove(&key).filter(|waiting| waiting.asked) else { return };
        // The record has come meanwhile, or is about to.
        if flows.has_packets(&key) {
            return;
        }
        match said {
            Said::Known(owner) => match members.hop(&owner, key.to.ip()) {
                Some(to) => {
                    self.forward(now_ns, key, to, Vec::new(), FORWARD_NS, agenda);
                    // If the packet came again and again, no entry could be made for it.
                    self.asked.insert(key, Waiting { since_ns: now_ns, asked: false, ..waiting });
                    agenda.later(now_ns + 2 * LOOPS_NS, Timer::Asked(key));
                }
                None => self.answer(now_ns, waiting.packet, agenda),
            },
            Said::Unknown => match members.unlinked_hop(key.to.ip(), &[]) {
                Some(to) => self.forward(now_ns, key, to, Vec::new(), FORWARD_UNLINKED_NS, agenda),
                None => self.answer(now_ns, waiting.packet, agenda),
            },
            Said::Nothing => self.unsaid(now_ns, waiting.packet, agenda),
        }
    }

    /// Has these packets sent to a peer, though no record names their owner.
    fn forward(&mut self, now_ns: u64, key: Key, to: IpAddr, before: Vec<IpAddr>, for_ns: u64, agenda: &mut Agenda) {
        self.unsaid.remove(&key);
        self.forwarded.insert(key, ForwardedPackets { since_ns: now_ns, to, before });
        agenda.standby(StandbyRequest::ForwardKeys { keys: vec![key], to });
        agenda.later(now_ns + for_ns, Timer::Forwarded(key));
    }

    /// The question had no result. The packet may belong to a live flow, so it is dropped, but not forever.
    fn unsaid(&mut self, now_ns: u64, packet: UnknownPacket, agenda: &mut Agenda) {
        let key = packet.key;
        let since_ns = *self.unsaid.entry(key).or_insert(now_ns);
        if since_ns == now_ns {
            agenda.later(now_ns + UNSAID_FORGET_NS, Timer::Unsaid(key));
        } else if now_ns.saturating_sub(since_ns) >= UNSAID_NS {
            self.answer(now_ns, packet, agenda);
        }
    }

    pub(super) fn ask_expired(&mut self, now_ns: u64, key: Key, agenda: &mut Agenda) {
        if let Some(waiting) = self.asked.remove(&key).filter(|waiting| waiting.asked) {
            self.unsaid(now_ns, waiting.packet, agenda);
        }
    }

    /// If the packet comes again, the peers are asked again.
    pub(super) fn unsaid_expired(&mut self, key: Key) {
        self.unsaid.remove(&key);
    }

    /// No peer knows the packet. While records are on their way that proves nothing, and TCP will repeat it.
    fn answer(&self, now_ns: u64, packet: UnknownPacket, agenda: &mut Agenda) {
        if now_ns >= self.guard_until_ns {
            agenda.act(Action::Answer(packet));
        }
    }

    /// Packets that were sent to `owner` have no destination there any more, or have a record by now: of the next ones
    /// the live peers are asked.
    pub(super) fn stop_forwarding(
        &mut self,
        owner: &InstanceName,
        flows: &KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let places = members.hops(owner);
        let its: Vec<_> = self
            .forwarded
            .iter()
            .filter(|(_, forwarded)| places.contains(&forwarded.to))
            .map(|(key, _)| *key)
            .collect();
        for key in its {
            self.asked.remove(&key);
            self.forward_expired(key, flows, agenda);
        }
    }

    pub(super) fn forward_expired(&mut self, key: Key, flows: &KnownFlows, agenda: &mut Agenda) {
        self.forwarded.remove(&key);
        if !flows.has_packets(&key) {
            agenda.forget(vec![key]);
        }
    }

    pub(super) fn is_forwarded(&self, key: &Key) -> bool {
        self.forwarded.contains_key(key)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.forwarded.is_empty() && self.unsaid.is_empty()
    }
}
