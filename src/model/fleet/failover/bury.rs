//! An owner is dead: what has no sockets goes on, all else is reset, those first whom most depends on.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::{Action, Failover, Known, KnownState, Note, Timer};
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
    /// Takes over all that `owner` had.
    pub(super) fn bury(&mut self, owner: &InstanceName) {
        let Some(peer) = self.peers.get_mut(owner).filter(|peer| !peer.is_dead) else { return };
        peer.is_dead = true;
        peer.pinged_ns = None;
        peer.synced = false;
        self.show_port_ranges();
        self.lend_no_more(owner);
        self.bury_flows(owner, |_| true);
        self.says_no_more(owner, |_| true);
        self.inherit();
    }

    /// Whoever was to go on with flows of the dead may have died before it could.
    fn inherit(&mut self) {
        let dead = self.peers.iter().filter(|(_, peer)| peer.is_dead).map(|(name, _)| name.clone());
        for owner in dead.collect::<Vec<_>>() {
            let Some(peer) = self.peers.get(&owner) else { continue };
            let held = |id: &FleetId| self.flows.get(id).filter(|known| known.state == KnownState::Held);
            let its = peer.flows.iter().filter_map(held).map(|known| known.ends);
            let orphans: HashSet<_> = its.filter(|ends| self.is_heir(ends.vip.ip())).collect();
            if !orphans.is_empty() {
                self.bury_flows(&owner, |ends| orphans.contains(ends));
            }
        }
    }

    /// What `owner` said of flows that others have since told of counts no more.
    pub(super) fn says_no_more(&mut self, owner: &InstanceName, which: impl Fn(&FleetId) -> bool) {
        for (id, known) in &mut self.flows {
            if !known.also.is_empty() && which(id) {
                known.also.retain(|other| other != owner);
            }
        }
    }

    /// Takes over what a dead owner had of addresses that have just come here.
    pub(super) fn bury_where(&mut self, owner: &InstanceName, vips: &[IpAddr]) {
        self.bury_flows(owner, |ends| vips.contains(&ends.vip.ip()));
    }

    /// Whether nobody can carry the flow: its backend or its client is on this host, and what that gets seems to come from an
    /// address of this host, too. A kernel takes no such packet from the wire, and sends none there.
    pub(super) fn is_stuck(&self, ends: &Ends) -> bool {
        let both_here = |end, from| self.own.contains(&end) && self.is_here(from);
        both_here(ends.backend.ip(), ends.local.ip()) || both_here(ends.client.ip(), ends.vip.ip())
    }

    /// Whether one of its ends is on this host.
    fn is_own(&self, ends: &Ends) -> bool {
        [ends.backend.ip(), ends.client.ip()].iter().any(|ip| self.own.contains(ip))
    }

    /// Resets what a living owner can serve no more since the address is here.
    pub(super) fn end_stuck(&mut self, owner: &InstanceName) {
        let Some(peer) = self.peers.get(owner) else { return };
        let stuck = |id: &FleetId| self.flows.get(id).map(|known| known.ends).filter(|ends| self.is_stuck(ends));
        let stuck: HashSet<_> = peer.flows.iter().filter_map(stuck).collect();
        self.bury_flows(owner, |ends| stuck.contains(ends));
    }

    /// Answers RST to packets of a flow, whatever was said of it before.
    pub(super) fn refuse(&mut self, owner: InstanceName, id: FleetId, ends: Ends) {
        if self.flows.get(&id).is_some_and(|known| known.state == KnownState::Refused && known.ends == ends) {
            return;
        }
        self.remove(id);
        self.agenda.carry(StandbyRequest::Refuse(ends.keys().to_vec()));
        if let Some(peer) = self.peers.get_mut(&owner) {
            peer.flows.insert(id);
        }
        self.index(id, &ends);
        let (state, also) = (KnownState::Refused, Vec::new());
        self.enter(id, Known { owner, ends, accepted_unix_ms: 0, state, also, told: true });
    }

    pub(super) fn bury_flows(&mut self, owner: &InstanceName, which: impl Fn(&Ends) -> bool) {
        let Some(peer) = self.peers.get(owner) else { return };
        let flows: Vec<_> = peer.flows.iter().copied().collect();
        let is_dead = peer.is_dead;
        let (mut inherited, mut refused, mut told, mut dropped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut untold = Vec::new();
        for id in flows {
            let Some(known) = self.flows.get(&id).filter(|known| which(&known.ends)) else { continue };
            let (ends, state) = (known.ends, known.state);
            match state {
                // Should the address come here, it would be stuck; any other host can carry it.
                KnownState::Held if self.is_own(&ends) && !self.is_stuck(&ends) => {}
                KnownState::Held if self.settings.carries && !self.is_own(&ends) => {
                    if self.is_heir(ends.vip.ip()) {
                        self.take_out(id);
                        self.mine
                            .insert(id, super::Mine { ends: Some(ends), from: Some(owner.clone()), touched_ns: 0 });
                        inherited.push(id);
                    }
                }
                // Without offload nothing here can carry it on.
                _ => {
                    match self.is_here(ends.vip.ip()) {
                        true => told.push((id, ends)),
                        false => untold.push(id),
                    }
                    if matches!(state, KnownState::Held | KnownState::NoRoom) {
                        dropped.push(id);
                    }
                    if state != KnownState::Refused {
                        refused.extend(ends.keys());
                    }
                    if let Some(known) = self.flows.get_mut(&id) {
                        known.state = KnownState::Refused;
                        self.index(id, &ends);
                    }
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(owner).filter(|peer| peer.is_dead) {
            peer.untold.extend(untold);
            for (id, _) in &told {
                peer.untold.remove(id);
            }
        }
        if inherited.is_empty() && refused.is_empty() && told.is_empty() {
            return;
        }
        let from = owner.clone();
        self.agenda.note(match is_dead {
            true => Note::FailedOver { from, inherited: inherited.len(), reset: told.len() },
            false => Note::Stuck { from, flows: told.len() },
        });
        if !dropped.is_empty() {
            self.agenda.carry(StandbyRequest::Drop(dropped));
        }
        if !refused.is_empty() {
            self.agenda.carry(StandbyRequest::Refuse(refused));
        }
        if !told.is_empty() {
            self.begin_round(owner, told);
        }
        if !inherited.is_empty() {
            self.agenda.path(StandbyRequest::Inherit(inherited));
        }
    }

    pub(super) fn begin_round(&mut self, owner: &InstanceName, mut flows: Vec<(FleetId, Ends)>) {
        let class = |ends: &Ends| {
            let ip = ends.client.ip();
            self.settings.priority.iter().position(|network| network.contains(&ip)).unwrap_or(usize::MAX)
        };
        flows.sort_by_cached_key(|(id, ends)| (class(ends), *id));
        let number = self.next_round;
        self.next_round += 1;
        self.rounds.insert(number, Round { from: owner.clone(), flows, second: false, silent: HashSet::new() });
        match (self.settings.challenge, self.settings.carries) {
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
        let backends = flows.iter().filter(|(_, ends)| self.is_here(ends.local.ip())).map(|(_, ends)| Challenge {
            from: ends.local.socket_addr(),
            to: ends.backend.socket_addr(),
            with: Flags::Ack,
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
        if self.settings.carries && self.settings.challenge {
            let keys: Vec<_> = round.flows.iter().flat_map(|(_, ends)| ends.keys()).collect();
            self.finding.push_back(number);
            return self.agenda.path(StandbyRequest::FindUnanswered(keys));
        }
        match round.second || !self.settings.challenge {
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
            if self.flows.get(&id).is_some_and(|known| known.state == KnownState::Refused) {
                self.take_out(id);
                self.agenda.later(now_ns + REFUSED_NS, Timer::Forget(id, ends));
                if round.silent.contains(&ends.key(FlowDirection::ToBackend)) {
                    wake_on.push(Wake { from: ends.vip.socket_addr(), to: ends.client.socket_addr() });
                }
            }
        }
        if self.settings.challenge && !wake_on.is_empty() {
            self.agenda.act(Action::WakeOn(wake_on));
        }
    }
}
