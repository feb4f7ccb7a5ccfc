//! Actions to take now and timers for later.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::timer::{FailoverTimers, Timer};
use super::{Action, Note};
use crate::model::ends::Key;
use crate::model::fleet::{AcceptedFlow, FleetId, InstanceName, PeerCommand, StandbyRequest};

/// The actions that wait to be taken, in order, and the timers. An action is merged with the one before it where
/// possible; callers do not notice.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Whether there is an offload engine.
    carries: bool,
    actions: VecDeque<Action>,
    timers: FailoverTimers,
}

impl Agenda {
    pub(super) fn new(carries: bool) -> Self {
        Self { carries, actions: VecDeque::new(), timers: FailoverTimers::default() }
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn send(&mut self, command: PeerCommand) {
        self.act(Action::Send(command));
    }

    /// An instance that starts again tells of its flows one by one, and a peer claims most of them in one message.
    pub(super) fn claim(&mut self, owner: InstanceName, flows: Vec<FleetId>) {
        match self.actions.back_mut() {
            Some(Action::Send(PeerCommand::Claim { owner: last, flows: more })) if *last == owner => more.extend(flows),
            _ => self.send(PeerCommand::Claim { owner, flows }),
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    pub(super) fn standby(&mut self, request: StandbyRequest) {
        self.act(Action::Standby(request));
    }

    /// Queues a request to the offload engine; drops it if there is none.
    pub(super) fn carry(&mut self, request: StandbyRequest) {
        if self.carries {
            self.standby(request);
        }
    }

    pub(super) fn forward(&mut self, flow: AcceptedFlow, hop: IpAddr) {
        match self.actions.back_mut() {
            Some(Action::Standby(StandbyRequest::Forward { flows: more, to })) if *to == hop => more.push(flow),
            _ => self.standby(StandbyRequest::Forward { flows: vec![flow], to: hop }),
        }
    }

    pub(super) fn forward_keys(&mut self, keys: Vec<Key>, hop: IpAddr) {
        match self.actions.back_mut() {
            Some(Action::Standby(StandbyRequest::ForwardKeys { keys: more, to })) if *to == hop => more.extend(keys),
            _ if keys.is_empty() => {}
            _ => self.standby(StandbyRequest::ForwardKeys { keys, to: hop }),
        }
    }

    pub(super) fn drop_standby(&mut self, id: FleetId) {
        match self.actions.back_mut() {
            Some(Action::Standby(StandbyRequest::Drop(more))) => more.push(id),
            _ => self.carry(StandbyRequest::Drop(vec![id])),
        }
    }

    /// Does nothing for an empty list.
    pub(super) fn forget(&mut self, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.carry(StandbyRequest::Forget(keys));
        }
    }

    pub(super) fn later(&mut self, at_ns: u64, timer: Timer) {
        self.timers.set(at_ns, timer);
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Timer> {
        self.timers.take_due(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
    use crate::model::ends::Ends;
    use crate::model::ids::FlowId;

    fn actions(agenda: &mut Agenda) -> Vec<Action> {
        std::iter::from_fn(|| agenda.poll()).collect()
    }

    #[test]
    fn what_follows_one_another_goes_to_the_offload_engine_together() {
        let addr = |port: u16| ([10, 0, 0, 1], port).into();
        let ends = |port| Ends {
            client: ClientAddr::new(addr(port)),
            vip: VipAddr::new(addr(6443)),
            local: LocalAddr::new(addr(port + 1)),
            backend: BackendAddr::new(addr(6444)),
        };
        let flow = |port| AcceptedFlow { ends: ends(port), accepted_unix_ms: 1 };
        let (one, other) = (IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 3]));
        let mut agenda = Agenda::new(true);
        agenda.forward(flow(1), one);
        agenda.forward(flow(3), one);
        agenda.forward(flow(5), other);
        agenda.forward_keys(ends(7).keys().to_vec(), one);
        agenda.forward_keys(ends(9).keys().to_vec(), one);
        agenda.forward_keys(Vec::new(), other);
        agenda.send(PeerCommand::Ping);
        agenda.forward_keys(ends(11).keys().to_vec(), one);
        let forwarded = |ports: &[u16]| StandbyRequest::ForwardKeys {
            keys: ports.iter().flat_map(|port| ends(*port).keys()).collect(),
            to: one,
        };
        let expected = [
            Action::Standby(StandbyRequest::Forward { flows: vec![flow(1), flow(3)], to: one }),
            Action::Standby(StandbyRequest::Forward { flows: vec![flow(5)], to: other }),
            Action::Standby(forwarded(&[7, 9])),
            Action::Send(PeerCommand::Ping),
            Action::Standby(forwarded(&[11])),
        ];
        assert_eq!(actions(&mut agenda), expected);
    }

    #[test]
    fn claims_against_one_owner_that_follow_one_another_are_one_message() {
        let id = |number| FleetId { flow: FlowId::of(7, number), ends: 1 };
        let claim = |owner: &str, numbers: &[u64]| {
            let flows = numbers.iter().map(|number| id(*number)).collect();
            Action::Send(PeerCommand::Claim { owner: InstanceName(owner.into()), flows })
        };
        let mut agenda = Agenda::new(true);
        for (owner, number) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
            agenda.claim(InstanceName(owner.into()), vec![id(number)]);
        }
        agenda.send(PeerCommand::Ping);
        agenda.claim(InstanceName("a".into()), vec![id(5)]);
        let expected = [
            claim("a", &[1, 2]),
            claim("b", &[3]),
            claim("a", &[4]),
            Action::Send(PeerCommand::Ping),
            claim("a", &[5]),
        ];
        assert_eq!(actions(&mut agenda), expected);
    }

    #[test]
    fn without_offload_nothing_is_held_and_nothing_dropped() {
        let id = FleetId { flow: FlowId::of(7, 1), ends: 1 };
        let key = Key { from: ([10, 0, 0, 1], 1).into(), to: ([10, 0, 0, 2], 6443).into() };
        for (carries, expected) in [(true, 3), (false, 0)] {
            let mut agenda = Agenda::new(carries);
            agenda.carry(StandbyRequest::Inherit(vec![id]));
            agenda.drop_standby(id);
            agenda.drop_standby(id);
            agenda.forget(vec![key]);
            assert_eq!(actions(&mut agenda).len(), expected);
        }
    }
}
