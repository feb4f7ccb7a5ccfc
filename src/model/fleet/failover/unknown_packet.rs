//! Packets that nobody here knows, though somebody may.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Action;
use super::agenda::Agenda;
use super::flows::{KnownFlows, KnownState};
use super::members::Members;
use super::timer::Timer;
use crate::model::ends::Key;
use crate::model::fleet::{Asked, InstanceName, PeerCommand, Said, StandbyRequest, UnknownPacket};

/// Those that others are asked of, those that are sent to a peer though no record says so, and those of which nothing could be learnt.
#[derive(Debug, Default)]
pub(super) struct UnknownPackets {
    asked: HashMap<Key, Waiting>,
    /// Keys without a record that are sent to a peer.
    lent: HashMap<Key, LentPackets>,
    /// Keys of which nothing could be learnt, and since when.
    unsaid: HashMap<Key, u64>,
    guard_until_ns: u64,
}

/// A packet that the others were asked of, or that was dropped because its entry is on its way.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet: UnknownPacket,
    since_ns: u64,
    asked: bool,
}

/// Where packets without a record are sent.
#[derive(Clone, Debug)]
struct LentPackets {
    since_ns: u64,
    to: IpAddr,
    /// From there they came back.
    before: Vec<IpAddr>,
}

/// The link answers sooner; this is for when it does not at all.
const ASK_WITHIN_NS: u64 = 1_500_000_000;

/// A flow that is forwarded and whose packets come back from its owner for so long is nobody's.
const LOOPS_NS: u64 = 1_000_000_000;

/// A record of a flow that a peer says is somebody's must come within this.
const LENT_NS: u64 = 10_000_000_000;
/// As long as no record can come from a peer that is not linked.
const LENT_UNLINKED_NS: u64 = 60_000_000_000;

/// For so long a packet that nobody could be asked of is dropped whenever it comes: TCP sends it again, and asking may succeed.
const UNSAID_NS: u64 = 3_000_000_000;
/// Longer than the pause between two words to who is woken again and again (`late_resets`), and says nothing by itself.
const UNSAID_FORGET_NS: u64 = 25_000_000_000;

impl UnknownPackets {
    /// Until then none is answered: the records of their flows are on their way.
    pub(super) fn guard(&mut self, until_ns: u64, agenda: &mut Agenda) {
        self.guard_until_ns = until_ns;
        agenda.later(until_ns, Timer::Guard);
    }

    /// 0: that is over.
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
            // No entry says so, for want of room.
            return agenda.act(Action::Answer(packet));
        }
        if let Some(before) = self.asked.get(&key).copied() {
            if !before.asked && now_ns.saturating_sub(before.since_ns) > LOOPS_NS {
                self.asked.remove(&key);
                agenda.act(Action::Answer(packet));
            }
            return;
        }
        if let Some(lent) = self.lent.get(&key) {
            // It comes back from there: of those that cannot be asked, another one may have it.
            if now_ns.saturating_sub(lent.since_ns) > LOOPS_NS {
                let tried: Vec<_> = lent.before.iter().copied().chain([lent.to]).collect();
                match members.unlinked_hop(key.to.ip(), &tried) {
                    Some(to) => self.lend(now_ns, key, to, tried, LENT_UNLINKED_NS, agenda),
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
            // Dropped, it comes again, and finds its entry; or its owner sends it back, for its address is just moving.
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
        // Its record has come meanwhile, or is about to.
        if flows.has_packets(&key) {
            return;
        }
        match said {
            Said::Known(owner) => match members.hop(&owner, key.to.ip()) {
                Some(to) => {
                    self.lend(now_ns, key, to, Vec::new(), LENT_NS, agenda);
                    // Should it come again and again, nothing could be entered for it.
                    self.asked.insert(key, Waiting { since_ns: now_ns, asked: false, ..waiting });
                    agenda.later(now_ns + 2 * LOOPS_NS, Timer::Asked(key));
                }
                None => self.answer(now_ns, waiting.packet, agenda),
            },
            Said::Unknown => match members.unlinked_hop(key.to.ip(), &[]) {
                Some(to) => self.lend(now_ns, key, to, Vec::new(), LENT_UNLINKED_NS, agenda),
                None => self.answer(now_ns, waiting.packet, agenda),
            },
            Said::Nothing => self.unsaid(now_ns, waiting.packet, agenda),
        }
    }

    /// Has such packets sent to a peer, though no record says whose they are.
    fn lend(&mut self, now_ns: u64, key: Key, to: IpAddr, before: Vec<IpAddr>, for_ns: u64, agenda: &mut Agenda) {
        self.unsaid.remove(&key);
        self.lent.insert(key, LentPackets { since_ns: now_ns, to, before });
        agenda.path(StandbyRequest::Lend { keys: vec![key], to });
        agenda.later(now_ns + for_ns, Timer::Lent(key));
    }

    /// Nothing could be learnt of it. It may be of a flow that lives: but not for ever.
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

    /// Should it come again, others are asked anew.
    pub(super) fn unsaid_expired(&mut self, key: Key) {
        self.unsaid.remove(&key);
    }

    /// Nobody knows it. While records are on their way that says nothing, and it will come again.
    fn answer(&self, now_ns: u64, packet: UnknownPacket, agenda: &mut Agenda) {
        if now_ns >= self.guard_until_ns {
            agenda.act(Action::Answer(packet));
        }
    }

    /// What was sent to `owner` would come to nobody now, or is told of if it is anybody's: whoever lives is asked anew.
    pub(super) fn lend_no_more(
        &mut self,
        owner: &InstanceName,
        flows: &KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let places = members.hops(owner);
        let its: Vec<_> = self.lent.iter().filter(|(_, lent)| places.contains(&lent.to)).map(|(key, _)| *key).collect();
        for key in its {
            self.asked.remove(&key);
            self.lent_over(key, flows, agenda);
        }
    }

    pub(super) fn lent_over(&mut self, key: Key, flows: &KnownFlows, agenda: &mut Agenda) {
        self.lent.remove(&key);
        if !flows.has_packets(&key) {
            agenda.forget(vec![key]);
        }
    }

    pub(super) fn is_lent(&self, key: &Key) -> bool {
        self.lent.contains_key(key)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.lent.is_empty() && self.unsaid.is_empty()
    }
}
