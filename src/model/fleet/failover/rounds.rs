//! The two rounds in which both ends of reset flows are challenged: first the clients with priority, then again the
//! ends that did not answer.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::SocketAddr;

use super::agenda::Agenda;
use super::flows::KnownFlows;
use super::members::Members;
use super::timer::Timer;
use super::{Action, Note};
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{FleetId, InstanceName, StandbyRequest};
use crate::model::segment::Flags;
use crate::model::splice::FlowDirection;

/// One end of a dead connection, and the address that the challenge comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub with: Flags,
}

/// A client of a dead connection whose sequence numbers no instance knows, and the address that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// The flows that are being told, in rounds: one event's flows form one round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    rounds: BTreeMap<u64, Round>,
    /// Rounds that wait for the list of ends that have not answered, in the order of the requests.
    finding: VecDeque<u64>,
    next: u64,
}

/// The flows of one dead owner in a round.
#[derive(Debug)]
struct Round {
    from: InstanceName,
    flows: Vec<(FleetId, Ends)>,
    second: bool,
    /// The flows whose clients have not answered.
    silent: HashSet<Key>,
}

/// A kernel answers segments outside its window once in 500 ms per connection (tcp_invalid_ratelimit).
const BETWEEN_NS: u64 = 700_000_000;

/// After this time only the rule for unknown packets answers.
const REFUSED_NS: u64 = 30_000_000_000;

impl Rounds {
    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// Begins a round. The engine must already refuse `flows`.
    pub(super) fn begin(
        &mut self,
        owner: &InstanceName,
        mut flows: Vec<(FleetId, Ends)>,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        if flows.is_empty() {
            return;
        }
        let settings = members.settings();
        let class = |ends: &Ends| {
            let ip = ends.client.ip();
            settings.priority.iter().position(|network| network.contains(&ip)).unwrap_or(usize::MAX)
        };
        flows.sort_by_cached_key(|(id, ends)| (class(ends), *id));
        let number = self.next;
        self.next += 1;
        self.rounds.insert(number, Round { from: owner.clone(), flows, second: false, silent: HashSet::new() });
        match (settings.challenge, settings.carries) {
            (false, _) => agenda.later(0, Timer::Round(number)),
            // The ends' answers must not be forwarded to the dead owner.
            (true, true) => agenda.standby(StandbyRequest::Report(number)),
            (true, false) => self.first(number, members, agenda),
        }
    }

    /// The owner lives after all, or has left the fleet. Returns the flows whose ends may not have been told yet.
    pub(super) fn call_off(&mut self, owner: &InstanceName) -> Vec<FleetId> {
        let called_off = self.rounds.extract_if(.., |_, round| round.from == *owner);
        called_off.flat_map(|(_, round)| round.flows).map(|(id, _)| id).collect()
    }

    /// The engine no longer forwards packets to the dead owner: challenges the ends.
    pub(super) fn first(&self, number: u64, members: &Members, agenda: &mut Agenda) {
        if let Some(round) = self.rounds.get(&number) {
            round.challenge(number, |_| true, members, agenda);
        }
    }

    /// Every end of a round has been challenged.
    pub(super) fn challenged(&self, now_ns: u64, number: u64, agenda: &mut Agenda) {
        if self.rounds.contains_key(&number) {
            agenda.later(now_ns + BETWEEN_NS, Timer::Round(number));
        }
    }

    /// The ends have had time to answer.
    pub(super) fn due(
        &mut self,
        now_ns: u64,
        number: u64,
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let Some(round) = self.rounds.get_mut(&number) else { return };
        let settings = members.settings();
        if settings.carries && settings.challenge {
            let keys: Vec<_> = round.flows.iter().flat_map(|(_, ends)| ends.keys()).collect();
            self.finding.push_back(number);
            return agenda.standby(StandbyRequest::FindUnanswered(keys));
        }
        match round.second || !settings.challenge {
            true => {
                round.silent = round.flows.iter().map(|(_, ends)| ends.key(FlowDirection::ToBackend)).collect();
                self.over(now_ns, number, flows, members, agenda);
            }
            false => round.challenge_again(number, |_| true, members, agenda),
        }
    }

    /// The engine's answer for the first open request: no packet came for these keys.
    pub(super) fn unanswered(
        &mut self,
        now_ns: u64,
        silent: &[Key],
        flows: &mut KnownFlows,
        members: &Members,
        agenda: &mut Agenda,
    ) {
        let Some(number) = self.finding.pop_front() else { return };
        let Some(round) = self.rounds.get_mut(&number) else { return };
        let is_silent: HashSet<_> = silent.iter().copied().collect();
        let clients = round.flows.iter().map(|(_, ends)| ends.key(FlowDirection::ToBackend));
        round.silent = clients.filter(|key| is_silent.contains(key)).collect();
        if silent.is_empty() || round.second {
            return self.over(now_ns, number, flows, members, agenda);
        }
        round.challenge_again(number, |ends| ends.keys().iter().any(|key| is_silent.contains(key)), members, agenda);
    }

    fn over(&mut self, now_ns: u64, number: u64, flows: &mut KnownFlows, members: &Members, agenda: &mut Agenda) {
        let Some(round) = self.rounds.remove(&number) else { return };
        let silent = round.silent.len();
        let answered = round.flows.len() - silent;
        agenda.note(Note::Told { from: round.from, answered, silent });
        let mut wake_on = Vec::new();
        for (id, ends) in round.flows {
            // Unless its owner lives after all: then it is no longer refused.
            if flows.take_refused(id) {
                agenda.later(now_ns + REFUSED_NS, Timer::Forget(id, ends));
                if round.silent.contains(&ends.key(FlowDirection::ToBackend)) {
                    wake_on.push(Wake { from: ends.vip.socket_addr(), to: ends.client.socket_addr() });
                }
            }
        }
        if members.settings().challenge && !wake_on.is_empty() {
            agenda.act(Action::WakeOn(wake_on));
        }
    }
}

impl Round {
    fn challenge_again(&mut self, number: u64, which: impl Fn(&Ends) -> bool, members: &Members, agenda: &mut Agenda) {
        self.second = true;
        self.challenge(number, which, members, agenda);
    }

    /// Challenges clients before backends: a client waits, a backend only keeps a connection that it does not need.
    fn challenge(&self, number: u64, which: impl Fn(&Ends) -> bool, members: &Members, agenda: &mut Agenda) {
        // A firewall that tracks the connection, even the client's own, drops an ACK with wrong numbers, and this
        // instance does not know the right ones. So the first round sends SYN-ACKs. The second round is for firewalls
        // that let only ACKs pass.
        let with = if self.second { Flags::Ack } else { Flags::SynAck };
        let all = || self.flows.iter().map(|(_, ends)| ends).filter(|ends| which(ends));
        let clients = all().map(|ends| Challenge { from: ends.vip.socket_addr(), to: ends.client.socket_addr(), with });
        let backends = all().filter(|ends| members.is_here(ends.local.ip())).map(|ends| Challenge {
            from: ends.local.socket_addr(),
            to: ends.backend.socket_addr(),
            with: Flags::Ack,
        });
        let ends = clients.chain(backends).collect();
        agenda.act(Action::Challenge { round: number, ends });
    }
}
