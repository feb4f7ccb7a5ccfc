//! Backends, client and operator act in any order and at any time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::script::{Fate, LATENESS_MAX, Mishap, Script, When, script};
use super::*;

/// Events from outside. Events at the same time come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answered(u8),
    /// With the index of its failure.
    Failed(u8, usize),
    Deadline,
    GiveUp(BackendId),
    Mishap(usize),
}

/// An attempt in its owner's list.
#[derive(Clone, Copy, Debug)]
struct Open {
    backend: BackendId,
    started_at_ns: u64,
}

/// How a flow left the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Established,
    Ended,
    Killed,
}

/// Carries out the machine's actions, and records them. It counts everything independently of the machine.
struct World {
    script: Script,
    machine: ConnectMachine,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    timers: BinaryHeap<Reverse<u64>>,
    open: BTreeMap<u8, Open>,
    /// How often each attempt ended, by a reset or as the leg.
    ended: BTreeMap<u8, u32>,
    begun: u32,
    attempted: BTreeSet<BackendId>,
    ejected: BTreeSet<BackendId>,
    last_failure: Option<(ConnectFailure, i32)>,
    /// The attempts that the machine must report as failed, with their failures.
    failing: BTreeMap<u8, FailedConnect>,
    /// Whether the last search found no backend for want of places.
    found_full: bool,
    taken_meanwhile: bool,
    /// Whether it found none for any reason.
    found_none: bool,
    /// The errno of a lack of descriptors, for which accepting must be paused.
    out_of_files: Option<i32>,
    /// Set in this search, with whether it was for a hedge: no attempt may start before the next.
    paused: Option<bool>,
    hedges: bool,
    told: u32,
    client_left: Option<i32>,
    client_seen: ClientSeen,
    outcome: Option<Outcome>,
    /// Each failure has an errno of its own, so that an end identifies one.
    errno: i32,
    /// The attempts begun since the present event, and whether the peers were to be told.
    begun_now: BTreeSet<u8>,
    tells_now: bool,
    is_deadline: bool,
    steps: usize,
    seen: BTreeSet<String>,
}

impl World {
    fn new(script: Script) -> Self {
        let mut events = BinaryHeap::new();
        for (index, (when, _)) in script.mishaps.iter().enumerate() {
            if let When::At(at_ns) = when {
                events.push(Reverse((*at_ns, Event::Mishap(index))));
            }
        }
        Self {
            machine: ConnectMachine::begin(0, ClientSeen::default()),
            script,
            now_ns: 0,
            events,
            timers: BinaryHeap::new(),
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            begun: 0,
            attempted: BTreeSet::new(),
            ejected: BTreeSet::new(),
            last_failure: None,
            failing: BTreeMap::new(),
            found_full: false,
            taken_meanwhile: false,
            found_none: false,
            out_of_files: None,
            paused: None,
            hedges: false,
            told: 0,
            client_left: None,
            client_seen: ClientSeen::default(),
            outcome: None,
            errno: 1000,
            begun_now: BTreeSet::new(),
            tells_now: false,
            is_deadline: false,
            steps: 0,
            seen: BTreeSet::new(),
        }
    }

    fn run(&mut self) -> Outcome {
        self.carry_out();
        while self.outcome.is_none() {
            for index in 0..self.script.mishaps.len() {
                if matches!(self.script.mishaps[index].0, When::Step(step) if step == self.steps)
                    && self.outcome.is_none()
                {
                    self.happen(Event::Mishap(index));
                }
            }
            if self.outcome.is_none() {
                let event = self.next_event();
                self.happen(event);
            }
            self.steps += 1;
        }
        self.look_back();
        self.outcome.unwrap()
    }

    /// The earliest event, at its time or a little later.
    fn next_event(&mut self) -> Event {
        let timer = self.timers.peek().map(|Reverse(at_ns)| (*at_ns, Event::Deadline));
        let event = self.events.peek().map(|Reverse(event)| *event);
        let (at_ns, event) = timer.into_iter().chain(event).min().expect("a flow that waits for nothing");
        match event {
            Event::Deadline => drop(self.timers.pop()),
            _ => drop(self.events.pop()),
        }
        let lateness = self.script.lateness[self.steps % self.script.lateness.len()];
        self.now_ns = self.now_ns.max(at_ns + lateness);
        event
    }

    fn happen(&mut self, event: Event) {
        self.forget_search();
        (self.tells_now, self.is_deadline) = (false, event == Event::Deadline);
        self.begun_now.clear();
        match event {
            Event::Answered(number) => {
                // The owner has no socket of an attempt that was reset.
                let Some(open) = self.open.get(&number) else { return };
                let is_ejected = self.ejected.contains(&open.backend);
                let preference = if is_ejected { Preference::Never } else { Preference::Draining };
                self.machine.handle_answered(number, preference);
            }
            Event::Failed(number, failure) => {
                if !self.open.contains_key(&number) {
                    return;
                }
                let failed = self.fail(ConnectFailure::ALL[failure]);
                self.failing.insert(number, failed);
                self.machine.handle_failed(number, failed);
            }
            Event::Deadline => self.machine.handle_deadline(),
            Event::GiveUp(backend) => self.machine.handle_ejected(backend),
            Event::Mishap(index) => match self.script.mishaps[index].1 {
                Mishap::Ejected { backend, order_after } => {
                    self.ejected.insert(BackendId(backend));
                    self.events.push(Reverse((self.now_ns + order_after, Event::GiveUp(BackendId(backend)))));
                }
                Mishap::ClientSends { ends } => {
                    let seen = ClientSeen { readable: true, ends };
                    self.client_seen = ClientSeen { readable: true, ends: ends || self.client_seen.ends };
                    self.machine.handle_client(seen);
                }
                Mishap::ClientLeaves => {
                    self.errno += 1;
                    self.client_left = Some(self.errno);
                    self.machine.handle_client_left(self.errno);
                }
                Mishap::Killed => return self.leave(Outcome::Killed),
                Mishap::Peers(are_there) => self.script.policy.has_peers = are_there,
                Mishap::SpareDeadline => self.machine.handle_deadline(),
            },
        }
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let mut actions = 0;
        while self.outcome.is_none()
            && let Some(action) = self.machine.poll(&self.script.policy, self.now_ns)
        {
            actions += 1;
            assert!(actions < 100, "it never rests");
            if let Some(errno) = self.out_of_files.take() {
                assert_eq!(action, ConnectAction::PauseAccepting { errno }, "no descriptors, and no pause");
                self.paused = Some(self.hedges);
                self.seen.insert("PauseAccepting".into());
                if !self.open.is_empty() {
                    self.seen.insert("Pause beside one under way".into());
                }
                continue;
            }
            self.carry_out_one(action);
        }
        assert!(self.out_of_files.is_none(), "no descriptors, and no pause");
        if self.outcome.is_none() {
            self.look_at_rest();
        }
    }

    fn carry_out_one(&mut self, action: ConnectAction) {
        match action {
            ConnectAction::Start { number, hedges } => {
                let is_next_search = hedges && self.paused == Some(false);
                assert!(self.paused.is_none() || is_next_search, "an attempt without a descriptor");
                self.hedges = hedges;
                assert!(self.begun < self.script.policy.attempts_max, "more than connect_attempts");
                assert!(self.open.len() < 2, "a third attempt beside two");
                assert_eq!(u32::from(number), self.begun, "a number that was used, or left out");
                self.seen.insert(if hedges { "Hedge" } else { "Start" }.into());
                if hedges {
                    let after_ns = self.script.policy.hedge_after_ns.expect("a hedge that nobody wants");
                    assert_eq!(self.open.len(), 1, "a hedge beside none");
                    let slow = self.open.values().all(|open| open.started_at_ns + after_ns <= self.now_ns);
                    assert!(slow, "a hedge beside one that is not slow");
                }
                let answer = self.start(number);
                self.machine.handle_start(&self.script.policy, self.now_ns, answer);
            }
            ConnectAction::Reset { number, failed } => {
                let open = self.end_attempt(number);
                self.forget_search();
                self.seen.insert(if failed.is_some() { "Reset(failed)" } else { "Reset(ejected)" }.into());
                let is_late = open.started_at_ns + self.script.policy.timeout_ns <= self.now_ns;
                match (self.failing.remove(&number), failed) {
                    (None, Some(FailedConnect::TIMED_OUT)) => {
                        assert!(is_late, "given up before its time");
                        self.last_failure = Some((ConnectFailure::TimedOut, 110));
                    }
                    (None, None) => assert!(self.ejected.contains(&open.backend), "given up for no reason"),
                    (expected, failed) => assert_eq!(expected, failed, "not its failure"),
                }
            }
            ConnectAction::Establish { number, started_at_ns } => {
                let winner = self.end_attempt(number);
                assert_eq!(winner.started_at_ns, started_at_ns);
                assert!(!self.ejected.contains(&winner.backend), "established with an ejected backend");
                assert_eq!(self.machine.client_seen(), self.client_seen);
                self.seen.insert("Establish".into());
                if !self.open.is_empty() {
                    self.seen.insert("Establish and reset the other".into());
                }
                self.leave(Outcome::Established);
            }
            ConnectAction::TellPeers => {
                assert!(self.script.policy.has_peers && self.now_ns >= 20 * MS, "told too soon, or to nobody");
                assert!(!self.open.is_empty(), "told of ends that are not there");
                assert_eq!(self.told, 0, "told twice");
                self.seen.insert("TellPeers".into());
                self.tells_now = true;
                if self.script.tellable[self.steps % self.script.tellable.len()] {
                    self.told += 1;
                    self.machine.handle_told();
                }
            }
            ConnectAction::SetTimer { at_ns } => self.timers.push(Reverse(at_ns)),
            ConnectAction::PauseAccepting { .. } => panic!("a pause, and there are descriptors"),
            ConnectAction::End(reason, errno) => {
                self.seen.insert(format!("End({reason:?})"));
                assert_eq!((reason, errno), self.expected_end());
                if self.client_left.is_none() {
                    assert!(self.open.is_empty(), "given up with an attempt under way");
                    let is_used_up = self.begun == self.script.policy.attempts_max;
                    assert!(is_used_up || self.found_none || self.paused.is_some(), "given up without a search");
                }
                self.leave(Outcome::Ended);
            }
        }
    }

    /// Searches for a backend, and begins an attempt there.
    fn start(&mut self, number: u8) -> StartAnswer {
        let ids = (0..self.script.fates.len() as u32).map(BackendId);
        let usable: Vec<_> =
            ids.filter(|id| !self.ejected.contains(id) && !self.machine.tried().contains(id)).collect();
        let fate = |id: &BackendId| self.script.fates[id.0 as usize];
        let open: Vec<_> = usable
            .iter()
            .copied()
            .filter(|id| !matches!(fate(id), Fate::FullUntil(at_ns) if self.now_ns < at_ns))
            .collect();
        if open.is_empty() {
            self.found_none = true;
            self.found_full = self.taken_meanwhile || !usable.is_empty();
            return StartAnswer::NoPick(if usable.is_empty() { NoPick::None } else { NoPick::AllFull });
        }
        let backend = open[self.script.picks[self.begun as usize % self.script.picks.len()] % open.len()];
        assert!(self.attempted.insert(backend), "{backend} is tried twice");
        match fate(&backend) {
            Fate::TakenMeanwhile => {
                self.taken_meanwhile = true;
                return StartAnswer::Full(backend);
            }
            Fate::Unresolved => return StartAnswer::Unresolved(backend),
            Fate::FailsAtOnce(failure) => {
                self.begun += 1;
                let failed = self.fail(failure);
                if failure == ConnectFailure::OutOfFiles {
                    self.out_of_files = Some(failed.errno);
                }
                return StartAnswer::Failed(backend, failed);
            }
            Fate::FailsAfter(after, failure) => {
                let index = ConnectFailure::ALL.iter().position(|known| *known == failure).unwrap();
                self.events.push(Reverse((self.now_ns + after, Event::Failed(number, index))));
            }
            Fate::AnswersAfter(after) | Fate::FullUntil(after) => {
                self.events.push(Reverse((self.now_ns + after, Event::Answered(number))))
            }
            Fate::Silent => {}
        }
        self.begun += 1;
        self.begun_now.insert(number);
        self.open.insert(number, Open { backend, started_at_ns: self.now_ns });
        StartAnswer::Begun(backend)
    }

    fn fail(&mut self, failure: ConnectFailure) -> FailedConnect {
        self.errno += 1;
        self.last_failure = Some((failure, self.errno));
        FailedConnect { failure, errno: self.errno }
    }

    fn forget_search(&mut self) {
        (self.paused, self.found_none, self.found_full, self.taken_meanwhile) = (None, false, false, false);
    }

    fn end_attempt(&mut self, number: u8) -> Open {
        *self.ended.entry(number).or_default() += 1;
        self.open.remove(&number).expect("an attempt that is not under way")
    }

    /// Open attempts are reset with the flow, or beside the winner.
    fn leave(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        while let Some((number, _)) = self.open.first_key_value() {
            self.end_attempt(*number);
        }
    }

    fn expected_end(&self) -> (EndReason, i32) {
        if let Some(errno) = self.client_left {
            return (EndReason::ClientLeft, errno);
        }
        match self.last_failure {
            Some((ConnectFailure::TimedOut, errno)) => (EndReason::ConnectTimedOut, errno),
            Some((ConnectFailure::OutOfFiles, errno)) => (EndReason::OutOfFiles, errno),
            Some((ConnectFailure::OutOfPorts, errno)) => (EndReason::OutOfPorts, errno),
            Some((_, errno)) => (EndReason::ConnectFailed, errno),
            None if self.found_full => (EndReason::BackendsFull, 0),
            None => (EndReason::NoBackend, 0),
        }
    }

    /// The invariants while no action is left.
    fn look_at_rest(&self) {
        let policy = &self.script.policy;
        let known: Vec<_> = self.machine.under_way.iter().map(|attempt| (attempt.number, attempt.backend)).collect();
        let open: Vec<_> = self.open.iter().map(|(number, open)| (*number, open.backend)).collect();
        assert_eq!(known, open, "the machine and its owner have other attempts under way");
        let first = self.open.values().map(|open| open.started_at_ns).min().expect("it waits for no attempt");
        let timer = self.timers.peek().expect("it waits with no timer set").0;
        assert!(timer <= first + policy.timeout_ns, "an attempt is given up late");
        assert!(self.now_ns <= self.latest_ns(), "it takes too long");
        if let Some(after_ns) = policy.hedge_after_ns.filter(|after_ns| *after_ns > 0)
            && let [only] = open[..]
            && self.begun_now.contains(&only.0)
        {
            assert!(timer <= self.now_ns + after_ns, "nobody will look whether it is slow");
        }
        if self.told == 0 && policy.has_peers && self.now_ns >= 20 * MS && self.is_deadline {
            assert!(self.tells_now, "the peers are not told");
        }
        let constant = !self.script.mishaps.iter().any(|(_, mishap)| matches!(mishap, Mishap::Peers(_)));
        if constant && policy.has_peers && self.now_ns < 20 * MS {
            assert!(timer <= 20 * MS, "nobody will tell the peers");
        }
        assert!(self.steps < 200, "it never ends");
    }

    /// The time for all attempts one after the other, each for its whole timeout, with a late loop for each.
    fn latest_ns(&self) -> u64 {
        u64::from(self.script.policy.attempts_max) * (self.script.policy.timeout_ns + LATENESS_MAX)
    }

    fn look_back(&self) {
        assert!(self.now_ns <= self.latest_ns(), "it took too long");
        assert!(self.open.is_empty());
        assert!(self.ended.values().all(|times| *times == 1), "an attempt was ended twice: {:?}", self.ended);
        let started = self.begun as usize - self.failed_at_once();
        assert_eq!(self.ended.len(), started, "an attempt was not ended");
    }

    fn failed_at_once(&self) -> usize {
        let at_once = |id: &&BackendId| matches!(self.script.fates[id.0 as usize], Fate::FailsAtOnce(_));
        self.attempted.iter().filter(at_once).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// Attempts, hedges, ends and messages to the peers follow their rules at every step, and no flow waits for ever.
    #[test]
    fn every_flow_is_established_or_ends_in_time_and_leaves_no_attempt_behind(script in script()) {
        World::new(script).run();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// With time to wait and without interference, a backend that answers is found behind those that do not.
    #[test]
    fn a_backend_that_answers_is_found_behind_those_that_do_not(script in script(), at in any::<usize>()) {
        let mut script = script;
        script.mishaps.clear();
        script.fates.iter_mut().for_each(|fate| {
            if let Fate::FailsAtOnce(failure @ ConnectFailure::OutOfFiles) = fate {
                *failure = ConnectFailure::Refused;
            }
        });
        let good = at % (script.fates.len() + 1);
        script.fates.insert(good, Fate::AnswersAfter(0));
        script.policy.attempts_max = 8;
        script.policy.timeout_ns = 100 * MS;
        prop_assert_eq!(World::new(script).run(), Outcome::Established);
    }
}

/// Otherwise the schedules above would prove nothing.
#[test]
fn the_schedules_reach_every_action_and_every_way_out() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    let scripts = script();
    for _ in 0..2000 {
        let mut world = World::new(scripts.new_tree(&mut runner).unwrap().current());
        seen.insert(format!("{:?}", world.run()));
        seen.append(&mut world.seen);
    }
    let expected = [
        "End(BackendsFull)",
        "End(ClientLeft)",
        "End(ConnectFailed)",
        "End(ConnectTimedOut)",
        "End(NoBackend)",
        "End(OutOfFiles)",
        "End(OutOfPorts)",
        "Ended",
        "Establish",
        "Establish and reset the other",
        "Established",
        "Hedge",
        "Killed",
        "Pause beside one under way",
        "PauseAccepting",
        "Reset(ejected)",
        "Reset(failed)",
        "Start",
        "TellPeers",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
}
