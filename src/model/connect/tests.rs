mod random;
mod script;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

const MS: u64 = 1_000_000;
const REFUSED: FailedConnect = FailedConnect { failure: ConnectFailure::Refused, errno: 111 };

fn policy() -> ConnectPolicy {
    ConnectPolicy { attempts_max: 3, timeout_ns: 1000 * MS, hedge_after_ns: Some(200 * MS), has_peers: true }
}

/// A machine, its clock and its settings.
struct Bench {
    machine: ConnectMachine,
    policy: ConnectPolicy,
    now_ns: u64,
}

impl Bench {
    fn new() -> Self {
        Self { machine: ConnectMachine::begin(0, ClientSeen::default()), policy: policy(), now_ns: 0 }
    }

    /// All actions up to the next start.
    fn poll(&mut self) -> Vec<ConnectAction> {
        let mut asked = Vec::new();
        while let Some(action) = self.machine.poll(&self.policy, self.now_ns) {
            asked.push(action);
            if matches!(action, ConnectAction::Start { .. } | ConnectAction::End(..)) {
                break;
            }
        }
        asked
    }

    fn start(&mut self, answer: StartAnswer) -> Vec<ConnectAction> {
        assert!(self.machine.start.is_some());
        self.machine.handle_start(&self.policy, self.now_ns, answer);
        self.poll()
    }

    fn at(&mut self, ms: u64) -> Vec<ConnectAction> {
        self.now_ns = ms * MS;
        self.machine.handle_deadline();
        self.poll()
    }
}

fn start(number: u8, hedges: bool) -> ConnectAction {
    ConnectAction::Start { number, hedges }
}

fn timer(ms: u64) -> ConnectAction {
    ConnectAction::SetTimer { at_ns: ms * MS }
}

fn reset(number: u8, failed: Option<FailedConnect>) -> ConnectAction {
    ConnectAction::Reset { number, failed }
}

const ONE: StartAnswer = StartAnswer::Begun(BackendId(1));
const TWO: StartAnswer = StartAnswer::Begun(BackendId(2));
const NONE: StartAnswer = StartAnswer::NoPick(NoPick::None);

#[test]
fn a_slow_attempt_is_hedged_and_the_first_answer_wins() {
    let mut bench = Bench::new();
    assert_eq!(bench.poll(), [start(0, false)]);
    assert_eq!(bench.start(ONE), [timer(20)]);
    assert_eq!(bench.at(20), [ConnectAction::TellPeers, timer(200)]);
    bench.machine.handle_told();
    assert_eq!(bench.at(200), [start(1, true)]);
    assert_eq!(bench.start(TWO), [timer(1000)]);
    bench.machine.handle_answered(0, Preference::Ready);
    assert_eq!(bench.machine.poll(&policy(), 201 * MS), Some(ConnectAction::Establish { number: 0, started_at_ns: 0 }));
}

#[test]
fn a_hedge_that_finds_no_backend_is_not_tried_again_and_again() {
    let mut bench = Bench::new();
    bench.policy.has_peers = false;
    assert_eq!(bench.poll(), [start(0, false)]);
    assert_eq!(bench.start(ONE), [timer(200)]);
    assert_eq!(bench.at(200), [start(1, true)]);
    assert_eq!(bench.start(NONE), [timer(1000)]);
    assert_eq!(bench.at(1000), [reset(0, Some(FailedConnect::TIMED_OUT)), start(1, false)]);
    assert_eq!(bench.start(NONE), [ConnectAction::End(EndReason::ConnectTimedOut, 110)]);
}

#[test]
fn one_of_two_attempts_that_fails_is_replaced_and_the_other_goes_on() {
    let mut bench = Bench::new();
    bench.policy.has_peers = false;
    bench.poll();
    bench.start(ONE);
    bench.at(200);
    bench.start(TWO);
    bench.machine.handle_failed(0, REFUSED);
    assert_eq!(bench.poll(), [reset(0, Some(REFUSED)), start(2, false)]);
    assert_eq!(bench.start(StartAnswer::Begun(BackendId(3))), [timer(1200)]);
    // All attempts are used up.
    bench.machine.handle_failed(1, REFUSED);
    assert_eq!(bench.poll(), [reset(1, Some(REFUSED))]);
    bench.machine.handle_ejected(BackendId(3));
    assert_eq!(bench.poll(), [reset(2, None), ConnectAction::End(EndReason::ConnectFailed, 111)]);
}

#[test]
fn a_backend_that_is_ejected_while_it_answers_does_not_get_the_flow() {
    let mut bench = Bench::new();
    bench.poll();
    bench.start(ONE);
    bench.machine.handle_answered(0, Preference::Never);
    assert_eq!(bench.poll(), [reset(0, None), start(1, false)]);
    assert_eq!(bench.start(NONE), [ConnectAction::End(EndReason::NoBackend, 0)]);
}

#[test]
fn a_place_that_was_taken_meanwhile_makes_full_of_none() {
    let mut bench = Bench::new();
    bench.poll();
    assert_eq!(bench.start(StartAnswer::Full(BackendId(1))), [start(0, false)]);
    assert_eq!(bench.start(StartAnswer::Unresolved(BackendId(2))), [start(0, false)]);
    assert_eq!(bench.machine.tried(), [BackendId(1), BackendId(2)]);
    assert_eq!(bench.start(NONE), [ConnectAction::End(EndReason::BackendsFull, 0)]);
}

#[test]
fn backends_that_were_full_for_a_hedge_are_not_why_the_flow_ends_later() {
    let mut bench = Bench::new();
    (bench.policy.attempts_max, bench.policy.has_peers) = (2, false);
    bench.poll();
    bench.start(ONE);
    assert_eq!(bench.at(200), [start(1, true)]);
    assert_eq!(bench.start(StartAnswer::NoPick(NoPick::AllFull)), [timer(1000)]);
    assert_eq!(bench.at(400), [start(1, true)]);
    bench.start(TWO);
    bench.machine.handle_ejected(BackendId(1));
    assert_eq!(bench.poll(), [reset(0, None), timer(600)]);
    bench.machine.handle_ejected(BackendId(2));
    assert_eq!(bench.poll(), [reset(1, None), ConnectAction::End(EndReason::NoBackend, 0)]);
}

#[test]
fn the_attempt_that_an_ejection_leaves_is_hedged_in_its_own_time() {
    let mut bench = Bench::new();
    bench.policy.has_peers = false;
    bench.poll();
    bench.start(ONE);
    assert_eq!(bench.at(200), [start(1, true)]);
    assert_eq!(bench.start(TWO), [timer(1000)]);
    bench.machine.handle_ejected(BackendId(1));
    assert_eq!(bench.poll(), [reset(0, None), timer(400)]);
    assert_eq!(bench.at(400), [start(2, true)]);
}

#[test]
fn without_a_descriptor_no_other_backend_is_tried() {
    let out_of_files = FailedConnect { failure: ConnectFailure::OutOfFiles, errno: 24 };
    let mut bench = Bench::new();
    bench.poll();
    let asked = bench.start(StartAnswer::Failed(BackendId(1), out_of_files));
    assert_eq!(asked, [ConnectAction::PauseAccepting { errno: 24 }, ConnectAction::End(EndReason::OutOfFiles, 24)]);
}

#[test]
fn the_reason_and_the_errno_are_those_of_the_last_failure() {
    for (failure, reason) in ConnectFailure::ALL.into_iter().zip([
        EndReason::ConnectFailed,
        EndReason::ConnectTimedOut,
        EndReason::ConnectFailed,
        EndReason::ConnectFailed,
        EndReason::OutOfFiles,
        EndReason::OutOfPorts,
        EndReason::ConnectFailed,
    ]) {
        let mut bench = Bench::new();
        bench.poll();
        bench.start(StartAnswer::Failed(BackendId(1), REFUSED));
        bench.start(TWO);
        bench.machine.handle_failed(1, FailedConnect { failure, errno: 7 });
        bench.poll();
        assert_eq!(bench.start(NONE), [ConnectAction::End(reason, 7)], "{failure:?}");
    }
}

#[test]
fn peers_who_could_not_be_told_are_told_at_the_next_deadline() {
    let mut bench = Bench::new();
    bench.poll();
    bench.start(ONE);
    assert_eq!(bench.at(20), [ConnectAction::TellPeers, timer(200)]);
    assert_eq!(bench.at(200), [start(1, true)]);
    assert_eq!(bench.start(NONE), [ConnectAction::TellPeers, timer(1000)]);
    bench.machine.handle_told();
    assert!(bench.machine.is_told());
    assert_eq!(bench.at(400), [start(1, true)]);
    assert_eq!(bench.start(NONE), [timer(1000)]);
}

#[test]
fn what_the_client_has_shown_adds_up() {
    let mut machine = ConnectMachine::begin(0, ClientSeen { readable: true, ends: false });
    machine.handle_client(ClientSeen { readable: false, ends: true });
    assert_eq!(machine.client_seen(), ClientSeen { readable: true, ends: true });
    machine.handle_client_left(104);
    assert_eq!(machine.poll(&policy(), 0), Some(ConnectAction::End(EndReason::ClientLeft, 104)));
}

#[test]
fn a_hedge_begins_when_the_attempt_is_slow_and_not_before() {
    for (hedge_ms, timeout_ms) in [(0, 1), (1, 2), (19, 100), (20, 100), (21, 100), (99, 100)] {
        let mut bench = Bench::new();
        bench.policy.timeout_ns = timeout_ms * MS;
        bench.policy.hedge_after_ns = Some(hedge_ms * MS);
        bench.poll();
        let mut timers: BinaryHeap<_> = [Reverse(0)].into();
        let mut hedged_at_ns = None;
        let mut asked = bench.start(ONE);
        while hedged_at_ns.is_none() {
            for action in asked {
                match action {
                    ConnectAction::SetTimer { at_ns } => timers.push(Reverse(at_ns)),
                    ConnectAction::Start { hedges: true, .. } => hedged_at_ns = Some(bench.now_ns),
                    ConnectAction::TellPeers => bench.machine.handle_told(),
                    other => panic!("{other:?} before the hedge"),
                }
            }
            let Reverse(at_ns) = timers.pop().expect("no hedge");
            asked = if hedged_at_ns.is_none() { bench.at(at_ns / MS) } else { Vec::new() };
        }
        assert_eq!(hedged_at_ns, Some(hedge_ms * MS));
    }
}
