//! An owner is dead: what has no sockets goes on, all else is reset, those first whom most depends on.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::{Action, Failover, Note, Timer};
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{FleetId, InstanceName, StandbyRequest};
use crate::model::segment::Flags;
use crate::model::splice::FlowDirection;

/// One end of a dead connection, and who is to send to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub with: Flags,
}

/// A client of a dead connection whose numbers nobody knows, and the address that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// Flows of one dead owner that are being told.
#[derive(Debug)]
pub(super) struct Round {
    pub from: InstanceName,
    flows: Vec<(FleetId, Ends)>,
    second: bool,
    /// Whose clients have not answered.
    silent: HashSet<Key>,
}

/// Kernels answer once in 500 ms per connection to what is out of their window (tcp_invalid_ratelimit).
const BETWEEN_NS: u64 = 700_000_000;

/// After that only the rule for unknown packets answers.
pub(super) const REFUSED_NS: u64 = 30_000_000_000;

impl Failover {
    pub(super) fn begin_round(&mut self, owner: &InstanceName, mut flows: Vec<(FleetId, Ends)>) {
        let class = |ends: &Ends| {
            let ip = ends.client.ip();
            self.members.settings().priority.iter().position(|network| network.contains(&ip)).unwrap_or(usize::MAX)
        };
        flows.sort_by_cached_key(|(id, ends)| (class(ends), *id));
        let number = self.next_round;
        self.next_round += 1;
        self.rounds.insert(number, Round { from: owner.clone(), flows, second: false, silent: HashSet::new() });
        match (self.members.settings().challenge, self.members.settings().carries) {
            (false, _) => self.agenda.later(0, Timer::Round(number)),
            // What the ends answer must not be sent to the dead owner.
            (true, true) => self.agenda.path(StandbyRequest::Report(number)),
            (true, false) => self.first_round(number),
        }
    }

    /// Nothing is forwarded to the dead owner any more.
    pub(super) fn first_round(&mut self, number: u64) {
        if let Some(flows) = self.rounds.get(&number).map(|round| round.flows.clone()) {
            self.challenge(number, &flows);
        }
    }

    /// Clients before backends: a client waits, a backend only keeps what it does not need.
    fn challenge(&mut self, number: u64, flows: &[(FleetId, Ends)]) {
        // A firewall that tracks the connection, on the client's own host for one, drops an ACK whose numbers are not the
        // connection's, and nobody here knows those. The second round is for what lets only ACKs pass.
        let second = self.rounds.get(&number).is_some_and(|round| round.second);
        let with = if second { Flags::Ack } else { Flags::SynAck };
        let clients = flows.iter().map(|(_, ends)| Challenge {
            from: ends.vip.socket_addr(),
            to: ends.client.socket_addr(),
            with,
        });
        let backends = flows.iter().filter(|(_, ends)| self.members.is_here(ends.local.ip())).map(|(_, ends)| {
            Challenge { from: ends.local.socket_addr(), to: ends.backend.socket_addr(), with: Flags::Ack }
        });
        let ends = clients.chain(backends).collect();
        self.agenda.act(Action::Challenge { round: number, ends });
    }

    /// All ends of a round have been sent to.
    pub fn handle_challenged(&mut self, now_ns: u64, round: u64) {
        if self.rounds.contains_key(&round) {
            self.agenda.later(now_ns + BETWEEN_NS, Timer::Round(round));
        }
    }

    /// The ends have had their time to answer.
    pub(super) fn round_due(&mut self, now_ns: u64, number: u64) {
        let Some(round) = self.rounds.get(&number) else { return };
        if self.members.settings().carries && self.members.settings().challenge {
            let keys: Vec<_> = round.flows.iter().flat_map(|(_, ends)| ends.keys()).collect();
            self.finding.push_back(number);
            return self.agenda.path(StandbyRequest::FindUnanswered(keys));
        }
        match round.second || !self.members.settings().challenge {
            true => {
                if let Some(round) = self.rounds.get_mut(&number) {
                    round.silent = round.flows.iter().map(|(_, ends)| ends.key(FlowDirection::ToBackend)).collect();
                }
                self.round_over(now_ns, number);
            }
            false => self.challenge_again(number, |_| true),
        }
    }

    /// No packet has come for these keys of the round that was asked for first.
    pub(super) fn second_round(&mut self, now_ns: u64, silent: &[Key]) {
        let Some(number) = self.finding.pop_front() else { return };
        let Some(round) = self.rounds.get_mut(&number) else { return };
        let is_silent: HashSet<_> = silent.iter().copied().collect();
        let clients = round.flows.iter().map(|(_, ends)| ends.key(FlowDirection::ToBackend));
        round.silent = clients.filter(|key| is_silent.contains(key)).collect();
        if silent.is_empty() || round.second {
            return self.round_over(now_ns, number);
        }
        self.challenge_again(number, |ends| ends.keys().iter().any(|key| is_silent.contains(key)));
    }

    fn challenge_again(&mut self, number: u64, which: impl Fn(&Ends) -> bool) {
        let Some(round) = self.rounds.get_mut(&number) else { return };
        round.second = true;
        let flows: Vec<_> = round.flows.iter().filter(|(_, ends)| which(ends)).copied().collect();
        self.challenge(number, &flows);
    }

    fn round_over(&mut self, now_ns: u64, number: u64) {
        let Some(round) = self.rounds.remove(&number) else { return };
        let silent = round.silent.len();
        let answered = round.flows.len() - silent;
        self.agenda.note(Note::Told { from: round.from, answered, silent });
        let mut wake_on = Vec::new();
        for (id, ends) in round.flows {
            // Unless its owner lives after all.
            if self.flows.take_refused(id) {
                self.agenda.later(now_ns + REFUSED_NS, Timer::Forget(id, ends));
                if round.silent.contains(&ends.key(FlowDirection::ToBackend)) {
                    wake_on.push(Wake { from: ends.vip.socket_addr(), to: ends.client.socket_addr() });
                }
            }
        }
        if self.members.settings().challenge && !wake_on.is_empty() {
            self.agenda.act(Action::WakeOn(wake_on));
        }
    }
}
