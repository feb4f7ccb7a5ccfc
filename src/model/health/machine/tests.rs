use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn policy() -> Policy {
    Policy {
        interval_ns: S,
        fast_interval_ns: 250 * MS,
        jitter_percent: 0,
        rise: 2,
        fall: 2,
        reset_fall: 2,
        slow_start_ns: 30 * S,
        drain_timeout_ns: 150 * S,
        damping: DampingPolicy { half_life_ns: 60 * S, suppress: 3.0, reuse: 1.0 },
    }
}

/// A machine, its clock, and all its actions.
struct Bench {
    machine: Machine,
    now_ns: u64,
    actions: Vec<HealthAction>,
}

impl Bench {
    fn new(policy: Policy, arrival: Arrival) -> Self {
        Self { machine: Machine::new(policy, arrival, S), now_ns: S, actions: Vec::new() }
    }

    /// After its first pass, while another backend is ready.
    fn ready(policy: Policy) -> Self {
        let mut bench = Self::new(policy, Arrival::AtStart);
        bench.machine.handle_another_ready(bench.now_ns, true);
        bench.probe(ProbeOutcome::Passed);
        assert_eq!(bench.machine.health_state(), HealthState::Ready);
        bench.actions.clear();
        bench
    }

    fn probe(&mut self, outcome: ProbeOutcome) {
        self.probe_with(outcome, false);
    }

    /// Waits until the probe is due, and ends it at once, or after 500 ms if it times out.
    fn probe_with(&mut self, outcome: ProbeOutcome, flows_moved: bool) {
        self.now_ns = self.now_ns.max(self.machine.next_probe_ns().unwrap());
        self.machine.handle_probe_started(self.now_ns);
        assert_eq!(self.machine.next_probe_ns(), None);
        if matches!(outcome, ProbeOutcome::Failed(Cause::TimedOut { .. })) {
            self.now_ns += 500 * MS;
        }
        self.machine.handle_outcome(self.now_ns, outcome, flows_moved, 0);
        self.collect();
    }

    fn slow(&mut self) {
        self.probe_with(silent(), true);
    }

    fn order(&mut self, order: Order) {
        self.machine.handle_order(self.now_ns, order);
        self.collect();
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.machine.handle_timeout(self.now_ns);
        self.collect();
    }

    fn another_ready(&mut self, is: bool) {
        self.machine.handle_another_ready(self.now_ns, is);
        self.collect();
    }

    fn collect(&mut self) {
        self.actions.extend(std::iter::from_fn(|| self.machine.poll_action()));
    }

    fn resets(&self) -> Vec<EndReason> {
        let reason = |action: &HealthAction| match action {
            HealthAction::ResetFlows { reason, .. } => Some(*reason),
            _ => None,
        };
        self.actions.iter().filter_map(reason).collect()
    }

    fn state(&self) -> (HealthState, Cause, Preference) {
        (self.machine.health_state(), self.machine.cause(), self.machine.preference())
    }
}

fn silent() -> ProbeOutcome {
    ProbeOutcome::Failed(Cause::TimedOut { after_ms: 500 })
}

fn refused() -> ProbeOutcome {
    ProbeOutcome::Failed(Cause::Refused)
}

fn not_ready() -> ProbeOutcome {
    ProbeOutcome::NotReady { status: 500 }
}

fn expired() -> ProbeOutcome {
    ProbeOutcome::Failed(Cause::Tls { error: "certificate expired".into() })
}

#[test]
fn a_backend_of_the_start_is_used_before_its_first_probe() {
    let bench = Bench::new(policy(), Arrival::AtStart);
    assert_eq!(bench.state(), (HealthState::Ready, Cause::NotProbed, Preference::Ready));
    assert!(!bench.machine.is_proven_ready());
}

#[test]
fn a_backend_that_a_reload_adds_waits_for_its_first_pass() {
    let mut bench = Bench::new(policy(), Arrival::ByReload);
    assert_eq!(bench.state(), (HealthState::Ejected, Cause::NotProbed, Preference::Never));
    bench.probe(ProbeOutcome::Passed);
    assert_eq!(bench.state(), (HealthState::Ready, Cause::Passed, Preference::Ready));
    assert!(bench.actions.contains(&HealthAction::SlowStart { start_ns: bench.now_ns, ramp_ns: 30 * S }));
}

#[test]
fn the_first_probe_decides_alone() {
    let first = |outcome| {
        let mut bench = Bench::new(policy(), Arrival::AtStart);
        bench.probe(outcome);
        assert_eq!(bench.resets(), []);
        bench.state().0
    };
    assert_eq!(first(ProbeOutcome::Passed), HealthState::Ready);
    assert_eq!(first(not_ready()), HealthState::Draining);
    assert_eq!(first(expired()), HealthState::Draining);
    assert_eq!(first(refused()), HealthState::Ejected);
    assert_eq!(first(ProbeOutcome::Failed(Cause::Unresolved { error: "NXDOMAIN".into() })), HealthState::Ejected);
}

#[test]
fn the_first_pass_is_told_but_starts_no_slow_start() {
    let mut bench = Bench::new(policy(), Arrival::AtStart);
    bench.probe(ProbeOutcome::Passed);
    let (from, to) = (HealthState::Ready, HealthState::Ready);
    assert_eq!(bench.actions, [HealthAction::Changed { from, to, cause: Cause::Passed }]);
}

#[test]
fn dead_is_what_refuses_resets_is_unreachable_or_silent() {
    let causes = [
        Cause::Refused,
        Cause::Reset,
        Cause::Unreachable { error: "No route to host".into() },
        Cause::TimedOut { after_ms: 500 },
        Cause::Protocol { error: "not TLS".into() },
    ];
    for cause in causes {
        let mut bench = Bench::ready(policy());
        bench.probe(ProbeOutcome::Failed(cause.clone()));
        assert_eq!(bench.state(), (HealthState::Ready, Cause::Passed, Preference::Ready));
        bench.probe(ProbeOutcome::Failed(cause.clone()));
        assert_eq!(bench.state(), (HealthState::Ejected, cause.clone(), Preference::Never));
        let changed = HealthAction::Changed { from: HealthState::Ready, to: HealthState::Ejected, cause };
        assert_eq!(
            bench.actions,
            [changed, HealthAction::ResetFlows { reason: EndReason::BackendEjected, again: false }]
        );
    }
}

#[test]
fn a_blip_neither_ejects_nor_resets() {
    let mut bench = Bench::ready(policy());
    for _ in 0..50 {
        bench.probe(refused());
        bench.probe(ProbeOutcome::Passed);
        assert_eq!(bench.machine.health_state(), HealthState::Ready);
    }
    assert_eq!(bench.actions, []);
}

/// Regression: clients that connected again before so many probes had failed counted as older than the outage, and no rebalancing moved
/// them back: one backend had no flow for ever.
#[test]
fn it_is_known_to_have_served_until_the_last_probe_that_passed_began() {
    let mut bench = Bench::ready(policy());
    bench.pass(S);
    bench.probe(ProbeOutcome::Passed);
    let passed_ns = bench.now_ns;
    bench.probe(silent());
    bench.probe(silent());
    assert_eq!(bench.machine.health_state(), HealthState::Ejected);
    assert!(bench.machine.since_ns() > passed_ns + S);
    assert_eq!(bench.machine.served_until_ns(), passed_ns);
    let saved = bench.machine.save();
    assert_eq!(Machine::restore(policy(), saved, bench.now_ns).served_until_ns(), passed_ns);
    bench.probe(not_ready());
    bench.probe(not_ready());
    assert_eq!((bench.machine.health_state(), bench.machine.served_until_ns()), (HealthState::Draining, passed_ns));
    bench.probe(ProbeOutcome::Passed);
    bench.probe(ProbeOutcome::Passed);
    bench.order(Order::Drain);
    assert_eq!(bench.machine.served_until_ns(), bench.now_ns, "an order is no death");
}

#[test]
fn resetting_has_its_own_threshold() {
    let mut bench = Bench::ready(Policy { reset_fall: 4, ..policy() });
    for failures in 1..=6 {
        bench.probe(silent());
        assert_eq!(bench.machine.health_state() == HealthState::Ejected, failures >= 2);
        assert_eq!(bench.resets().len(), (failures as usize).saturating_sub(3), "after {failures}");
    }
    assert!(bench.resets().iter().all(|reason| *reason == EndReason::BackendEjected));
}

#[test]
fn what_was_counted_while_this_host_had_no_network_resets_nobody() {
    let mut bench = Bench::ready(Policy { reset_fall: 3, ..policy() });
    (0..2).for_each(|_| bench.probe(silent()));
    bench.machine.handle_network_back(bench.now_ns);
    (0..2).for_each(|_| bench.probe(silent()));
    assert_eq!((bench.machine.health_state(), bench.resets().len()), (HealthState::Ejected, 0));
    bench.probe(silent());
    assert_eq!(bench.resets(), [EndReason::BackendEjected]);
}

#[test]
fn a_readyz_of_500_drains_and_never_resets_by_itself() {
    let mut bench = Bench::ready(policy());
    bench.another_ready(false);
    for _ in 0..1000 {
        bench.probe(not_ready());
    }
    assert_eq!(bench.state(), (HealthState::Draining, Cause::NotReady { status: 500 }, Preference::Draining));
    assert_eq!(bench.resets(), []);
}

#[test]
fn a_backend_that_is_slow_but_moves_bytes_drains_later_and_is_never_reset() {
    let mut bench = Bench::ready(policy());
    for _ in 0..3 {
        bench.slow();
        assert_eq!(bench.machine.health_state(), HealthState::Ready, "a lost SYN is no overload");
    }
    bench.slow();
    assert_eq!(bench.state(), (HealthState::Draining, Cause::Slow, Preference::Draining));
    for _ in 0..1000 {
        bench.slow();
    }
    bench.pass(3600 * S);
    assert_eq!(bench.resets(), []);
    assert_eq!(bench.machine.drain_deadline_ns(), None);
}

#[test]
fn a_certificate_fault_drains_and_leaves_live_flows_alone() {
    let mut bench = Bench::ready(policy());
    bench.probe(expired());
    bench.probe(expired());
    assert_eq!(bench.machine.health_state(), HealthState::Draining);
    assert!(bench.machine.cause().to_string().contains("expired"));
    bench.pass(3600 * S);
    assert_eq!(bench.resets(), []);
}

#[test]
fn a_probe_that_this_host_could_not_make_says_nothing_of_the_backend() {
    let mut bench = Bench::ready(policy());
    bench.probe(refused());
    for _ in 0..10 {
        bench.probe(ProbeOutcome::Inconclusive { error: "Too many open files".into() });
    }
    assert_eq!(bench.machine.health_state(), HealthState::Ready);
    bench.probe(refused());
    assert_eq!(bench.machine.health_state(), HealthState::Ejected);
}

#[test]
fn an_ejected_backend_that_answers_500_becomes_draining() {
    let mut bench = Bench::ready(policy());
    bench.probe(refused());
    bench.probe(refused());
    bench.probe(not_ready());
    assert_eq!(bench.machine.health_state(), HealthState::Ejected);
    bench.probe(not_ready());
    assert_eq!(bench.machine.health_state(), HealthState::Draining);
}

#[test]
fn a_backend_that_returns_starts_slowly() {
    let mut bench = Bench::ready(policy());
    bench.probe(refused());
    bench.probe(refused());
    bench.actions.clear();
    bench.probe(ProbeOutcome::Passed);
    assert_eq!(bench.actions, []);
    bench.probe(ProbeOutcome::Passed);
    let changed = HealthAction::Changed { from: HealthState::Ejected, to: HealthState::Ready, cause: Cause::Passed };
    assert_eq!(bench.actions, [changed, HealthAction::SlowStart { start_ns: bench.now_ns, ramp_ns: 30 * S }]);
}

#[test]
fn a_backend_that_flaps_is_held_back_until_it_was_stable() {
    let mut bench = Bench::ready(policy());
    let mut losses = 0;
    while bench.machine.cause() != Cause::Damped {
        (0..2).for_each(|_| bench.probe(not_ready()));
        (0..2).for_each(|_| bench.probe(ProbeOutcome::Passed));
        losses += 1;
        assert!(losses < 10, "it is never damped");
    }
    assert_eq!(losses, 4);
    assert_eq!(bench.state(), (HealthState::Draining, Cause::Damped, Preference::Draining));
    assert_eq!(bench.machine.drain_deadline_ns(), None, "it serves its flows");
    let held_at_ns = bench.now_ns;
    while bench.machine.health_state() != HealthState::Ready {
        bench.probe(ProbeOutcome::Passed);
        assert!(bench.now_ns < held_at_ns + 200 * S, "it is held for ever");
    }
    // From just under 4 to 1: two half-lives.
    assert!(bench.now_ns > held_at_ns + 110 * S);
}

#[test]
fn the_drain_deadline_waits_while_no_backend_is_ready() {
    let mut bench = Bench::ready(policy());
    bench.another_ready(false);
    bench.probe(not_ready());
    bench.probe(not_ready());
    bench.pass(1000 * S);
    assert_eq!((bench.machine.next_timeout_ns(), bench.resets()), (None, vec![]));
    bench.another_ready(true);
    let deadline_ns = bench.now_ns + 150 * S;
    assert_eq!(bench.machine.next_timeout_ns(), Some(deadline_ns));
    bench.pass(150 * S - 1);
    assert_eq!(bench.resets(), []);
    bench.pass(1);
    assert_eq!(bench.resets(), [EndReason::DrainDeadline]);
    assert_eq!(bench.machine.next_timeout_ns(), None);
    bench.probe(not_ready());
    assert_eq!(bench.resets().len(), 2, "a flow may have been connecting at the first reset");
}

#[test]
fn an_operators_drain_keeps_its_deadline_when_no_backend_is_ready() {
    let mut bench = Bench::ready(policy());
    bench.another_ready(false);
    bench.order(Order::Drain);
    assert_eq!(bench.state(), (HealthState::Draining, Cause::OrderedDrain, Preference::OrderedAway));
    assert_eq!(bench.machine.order(), Some("drain"));
    bench.pass(149 * S);
    assert_eq!(bench.resets(), []);
    bench.pass(S);
    assert_eq!(bench.resets(), [EndReason::DrainDeadline]);
}

#[test]
fn an_undrained_backend_is_what_its_probes_say() {
    let mut bench = Bench::ready(policy());
    bench.order(Order::Drain);
    bench.pass(149 * S);
    bench.order(Order::Undrain);
    assert_eq!(bench.state(), (HealthState::Ready, Cause::Passed, Preference::Ready));
    bench.order(Order::Drain);
    bench.probe(not_ready());
    bench.probe(not_ready());
    bench.pass(100 * S);
    bench.order(Order::Undrain);
    assert_eq!(bench.state(), (HealthState::Draining, Cause::NotReady { status: 500 }, Preference::Draining));
    assert_eq!(bench.machine.drain_deadline_ns(), Some(bench.now_ns + 150 * S), "the operator's time was not its own");
}

#[test]
fn an_order_upon_a_drain_that_runs_does_not_lengthen_it() {
    let mut bench = Bench::ready(policy());
    bench.probe(not_ready());
    bench.probe(not_ready());
    let deadline = bench.machine.drain_deadline_ns();
    assert!(deadline.is_some());
    bench.pass(100 * S);
    bench.order(Order::Drain);
    assert_eq!(bench.machine.drain_deadline_ns(), deadline);
}

#[test]
fn an_operators_eject_resets_now_and_again_until_lifted() {
    let mut bench = Bench::ready(policy());
    bench.order(Order::Eject);
    assert_eq!(bench.state(), (HealthState::Ejected, Cause::OrderedEject, Preference::Never));
    bench.probe(ProbeOutcome::Passed);
    assert_eq!(bench.resets(), [EndReason::EjectedByOperator; 2]);
    bench.order(Order::Undrain);
    bench.probe(ProbeOutcome::Passed);
    assert_eq!(bench.state().0, HealthState::Ready);
    assert_eq!(bench.resets().len(), 2);
}

#[test]
fn maintenance_of_a_drained_backend_is_no_flapping() {
    let mut bench = Bench::ready(policy());
    bench.order(Order::Drain);
    for _ in 0..20 {
        (0..2).for_each(|_| bench.probe(refused()));
        (0..2).for_each(|_| bench.probe(ProbeOutcome::Passed));
    }
    bench.order(Order::Undrain);
    assert_eq!(bench.machine.health_state(), HealthState::Ready);
}

#[test]
fn the_flows_of_a_drained_backend_that_dies_are_reset() {
    let mut bench = Bench::ready(policy());
    bench.order(Order::Drain);
    bench.probe(silent());
    bench.probe(silent());
    assert_eq!(bench.state(), (HealthState::Ejected, Cause::TimedOut { after_ms: 500 }, Preference::Never));
    assert_eq!(bench.resets(), [EndReason::BackendEjected]);
}

/// Regression: a backend that a reload added, and a former one that a peer's flows made known, were told to have been in a state before.
#[test]
fn what_nobody_has_found_in_a_state_is_not_told_to_leave_it() {
    let told = |bench: &Bench| {
        let changed = |action: &HealthAction| match action {
            HealthAction::Changed { from, to, .. } => Some((*from, *to)),
            _ => None,
        };
        bench.actions.iter().filter_map(changed).collect::<Vec<_>>()
    };
    let mut added = Bench::new(policy(), Arrival::ByReload);
    added.probe(ProbeOutcome::Passed);
    assert_eq!(told(&added), [(HealthState::Ready, HealthState::Ready)]);
    assert!(added.actions.iter().any(|it| matches!(it, HealthAction::SlowStart { .. })), "its share still grows");
    let mut stranger = Bench::new(policy(), Arrival::AtStart);
    stranger.machine.handle_removed(stranger.now_ns, Dismissal::Address);
    stranger.machine.handle_begun();
    stranger.collect();
    assert_eq!(told(&stranger), [(HealthState::Draining, HealthState::Draining)]);
    stranger.machine.handle_begun();
    (0..2).for_each(|_| stranger.probe(silent()));
    assert_eq!(told(&stranger)[1..], [(HealthState::Draining, HealthState::Ejected)]);
}

#[test]
fn a_removed_backend_drains_to_its_deadline() {
    for (dismissal, reason, cause) in [
        (Dismissal::Backend, EndReason::DrainDeadline, Cause::Removed),
        (Dismissal::Frontend, EndReason::FrontendRemoved, Cause::Removed),
        (Dismissal::Address, EndReason::DrainDeadline, Cause::Readdressed),
    ] {
        let mut bench = Bench::ready(policy());
        bench.another_ready(false);
        bench.machine.handle_removed(bench.now_ns, dismissal);
        assert_eq!(bench.state(), (HealthState::Draining, cause, Preference::Never));
        bench.pass(150 * S);
        assert_eq!(bench.resets(), [reason]);
    }
}

#[test]
fn one_removed_backend_too_many_does_not_wait_for_its_deadline() {
    let mut bench = Bench::ready(policy());
    bench.pass(200 * S);
    bench.machine.handle_expired(bench.now_ns);
    bench.collect();
    assert_eq!(bench.resets(), [], "it was not removed");
    bench.machine.handle_removed(bench.now_ns, Dismissal::Address);
    bench.machine.handle_expired(bench.now_ns);
    bench.collect();
    assert_eq!(bench.resets(), [EndReason::DrainDeadline]);
}

#[test]
fn a_removed_backend_that_comes_back_is_as_before() {
    let mut bench = Bench::ready(policy());
    bench.order(Order::Drain);
    bench.machine.handle_removed(bench.now_ns, Dismissal::Backend);
    bench.machine.handle_restored(bench.now_ns);
    assert_eq!(bench.machine.cause(), Cause::OrderedDrain);
    bench.order(Order::Undrain);
    assert_eq!(bench.state(), (HealthState::Ready, Cause::Passed, Preference::Ready));
    assert_eq!(bench.resets(), []);
}

#[test]
fn a_lower_fall_takes_effect_on_what_was_counted() {
    let mut bench = Bench::ready(Policy { fall: 5, ..policy() });
    (0..3).for_each(|_| bench.probe(refused()));
    bench.machine.handle_policy(bench.now_ns, policy());
    assert_eq!(bench.state(), (HealthState::Ejected, Cause::Refused, Preference::Never));
}

#[test]
fn a_moved_backend_keeps_its_health_until_one_probe_of_the_new_place() {
    let mut bench = Bench::ready(policy());
    bench.probe(refused());
    bench.machine.handle_moved(bench.now_ns);
    assert_eq!(bench.machine.next_probe_ns(), Some(bench.now_ns));
    assert_eq!(bench.machine.health_state(), HealthState::Ready);
    bench.probe(refused());
    assert_eq!(bench.machine.health_state(), HealthState::Ejected);
    assert_eq!(bench.resets(), []);
    bench.machine.handle_moved(bench.now_ns);
    bench.probe(ProbeOutcome::Passed);
    assert_eq!(bench.machine.health_state(), HealthState::Ready);
}

#[test]
fn probes_are_fast_only_while_something_changes() {
    let mut bench = Bench::ready(policy());
    let mut gap_after = |outcome: ProbeOutcome| {
        let before_ns = bench.machine.next_probe_ns().unwrap();
        bench.probe(outcome);
        (bench.machine.next_probe_ns().unwrap() - before_ns) / MS
    };
    assert_eq!(gap_after(ProbeOutcome::Passed), 1000);
    assert_eq!(gap_after(refused()), 250);
    assert_eq!(gap_after(refused()), 1000);
    assert_eq!(gap_after(refused()), 1000);
    assert_eq!(gap_after(ProbeOutcome::Passed), 250);
    assert_eq!(gap_after(ProbeOutcome::Passed), 1000);
    assert_eq!(gap_after(not_ready()), 250);
    assert_eq!(gap_after(not_ready()), 1000);
    assert_eq!(gap_after(silent()), 500);
    assert_eq!(gap_after(silent()), 1000);
}

#[test]
fn jitter_only_shortens_the_interval() {
    for random in [0, 1 << 32, u64::MAX / 2, u64::MAX] {
        let mut machine = Machine::new(Policy { jitter_percent: 20, ..policy() }, Arrival::AtStart, S);
        machine.handle_probe_started(S);
        machine.handle_outcome(S, ProbeOutcome::Passed, false, random);
        let gap_ns = machine.next_probe_ns().unwrap() - S;
        assert!((800 * MS..=S).contains(&gap_ns), "{gap_ns}");
    }
}

#[test]
fn a_suspicion_probes_at_once_but_no_faster_than_fast_interval() {
    let mut bench = Bench::ready(policy());
    let last_ns = bench.now_ns;
    bench.machine.handle_suspicion(last_ns + 10 * MS);
    assert_eq!(bench.machine.next_probe_ns(), Some(last_ns + 250 * MS));
    bench.probe(ProbeOutcome::Passed);
    bench.machine.handle_suspicion(bench.now_ns + 600 * MS);
    assert_eq!(bench.machine.next_probe_ns(), Some(bench.now_ns + 600 * MS));
    let start_ns = bench.now_ns + 600 * MS;
    bench.machine.handle_probe_started(start_ns);
    bench.machine.handle_suspicion(start_ns + MS);
    bench.machine.handle_outcome(start_ns + 5 * MS, ProbeOutcome::Passed, false, 0);
    assert_eq!(bench.machine.next_probe_ns(), Some(start_ns + 250 * MS));
}

#[test]
fn flows_of_a_silent_backend_are_reset_within_2500_ms_of_its_death() {
    for death_ms in 0..2000 {
        let mut bench = Bench::ready(policy());
        let death_ns = bench.now_ns + death_ms * MS;
        while bench.resets().is_empty() {
            let dead = bench.machine.next_probe_ns().unwrap() >= death_ns;
            bench.probe(if dead { silent() } else { ProbeOutcome::Passed });
        }
        let took_ms = (bench.now_ns - death_ns) / MS;
        assert!(took_ms <= 2000, "died at {death_ms} ms, reset {took_ms} ms later");
    }
}

#[derive(Clone, Debug)]
enum Input {
    Probe { outcome: ProbeOutcome, flows_moved: bool },
    Order(Order),
    Removed(Dismissal),
    Restored,
    Moved,
    Suspicion,
    AnotherReady(bool),
    Fall(u32),
    Wait(u64),
}

fn outcome() -> impl Strategy<Value = ProbeOutcome> {
    prop_oneof![
        4 => Just(ProbeOutcome::Passed),
        2 => Just(not_ready()),
        3 => Just(refused()),
        3 => Just(silent()),
        1 => Just(expired()),
        1 => Just(ProbeOutcome::Failed(Cause::Protocol { error: "not HTTP".into() })),
        1 => Just(ProbeOutcome::Inconclusive { error: "Too many open files".into() }),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        20 => (outcome(), any::<bool>()).prop_map(|(outcome, flows_moved)| Input::Probe { outcome, flows_moved }),
        1 => prop_oneof![Just(Order::Drain), Just(Order::Undrain), Just(Order::Eject)].prop_map(Input::Order),
        1 => prop_oneof![Just(Dismissal::Backend), Just(Dismissal::Frontend), Just(Dismissal::Address)].prop_map(Input::Removed),
        1 => Just(Input::Restored),
        1 => Just(Input::Moved),
        2 => Just(Input::Suspicion),
        2 => any::<bool>().prop_map(Input::AnotherReady),
        1 => (1u32..5).prop_map(Input::Fall),
        1 => (0..200 * S).prop_map(Input::Wait),
    ]
}

fn feed(bench: &mut Bench, input: Input) {
    let now_ns = bench.now_ns;
    match input {
        Input::Probe { outcome, flows_moved } => bench.probe_with(outcome, flows_moved),
        Input::Order(order) => bench.order(order),
        Input::Removed(dismissal) => bench.machine.handle_removed(now_ns, dismissal),
        Input::Restored => bench.machine.handle_restored(now_ns),
        Input::Moved => bench.machine.handle_moved(now_ns),
        Input::Suspicion => bench.machine.handle_suspicion(now_ns),
        Input::AnotherReady(is) => bench.machine.handle_another_ready(now_ns, is),
        Input::Fall(fall) => bench.machine.handle_policy(now_ns, Policy { fall, reset_fall: fall + 1, ..policy() }),
        Input::Wait(ns) => bench.pass(ns),
    }
    bench.collect();
}

proptest! {
    /// The machine's own checks hold at every step, and `rise` passes make any backend ready once it is neither
    /// ordered away nor damped.
    #[test]
    fn from_any_state_rise_passes_lead_to_ready(inputs in proptest::collection::vec(input(), 0..60)) {
        let mut bench = Bench::new(policy(), Arrival::ByReload);
        inputs.into_iter().for_each(|input| feed(&mut bench, input));
        bench.machine.handle_restored(bench.now_ns);
        bench.order(Order::Undrain);
        bench.pass(3600 * S);
        (0..2).for_each(|_| bench.probe(ProbeOutcome::Passed));
        prop_assert_eq!(bench.state(), (HealthState::Ready, Cause::Passed, Preference::Ready));
        bench.actions.clear();
        bench.probe(ProbeOutcome::Passed);
        prop_assert_eq!(&bench.actions, &[]);
    }

    /// Counted apart from the machine: no flow is reset for a dead backend below `reset_fall` dead probes in a row.
    #[test]
    fn a_blip_never_kills(
        probes in proptest::collection::vec((outcome(), any::<bool>()), 0..200), fall in 1u32..4, more in 0u32..4,
    ) {
        let mut bench = Bench::new(Policy { fall, reset_fall: fall + more, ..policy() }, Arrival::AtStart);
        let mut dead = 0;
        for (outcome, flows_moved) in probes {
            let answers = match &outcome {
                ProbeOutcome::Failed(Cause::TimedOut { .. } | Cause::Protocol { .. }) => flows_moved,
                ProbeOutcome::Failed(Cause::Tls { .. }) | ProbeOutcome::Passed | ProbeOutcome::NotReady { .. } => true,
                _ => false,
            };
            match outcome {
                ProbeOutcome::Inconclusive { .. } => {}
                _ if answers => dead = 0,
                _ => dead += 1,
            }
            bench.probe_with(outcome, flows_moved);
            prop_assert_eq!(bench.resets().is_empty(), dead < fall + more);
            bench.actions.clear();
        }
    }

    /// Whatever else happens, a backend whose flows move enough to outweigh its late probes keeps them.
    #[test]
    fn slow_never_resets(late in proptest::collection::vec((any::<bool>(), 0..100 * S), 0..100), another: bool) {
        let mut bench = Bench::ready(policy());
        bench.another_ready(another);
        for (slow, wait_ns) in late {
            if slow { bench.slow() } else { bench.probe(ProbeOutcome::Passed) }
            bench.pass(wait_ns);
        }
        prop_assert_eq!(bench.resets(), []);
    }
}
