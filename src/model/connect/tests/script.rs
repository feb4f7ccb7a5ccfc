//! The events of a flow that is being connected: backends of all kinds, and events from outside.

use proptest::prelude::*;

use super::*;

/// The loop handles an event at most so late.
pub(super) const LATENESS_MAX: u64 = 3 * MS;

/// The result of an attempt at a backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Connect fails at once.
    FailsAtOnce(ConnectFailure),
    FailsAfter(u64, ConnectFailure),
    AnswersAfter(u64),
    Silent,
    /// It has a place left at the search, and none at the reservation.
    TakenMeanwhile,
    /// It is at its cap until then, and afterwards answers after as long.
    FullUntil(u64),
    Unresolved,
}

/// Events from outside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mishap {
    /// The backend must not be picked from now on. Attempts there are given up so much later.
    Ejected {
        backend: u32,
        order_after: u64,
    },
    ClientSends {
        ends: bool,
    },
    ClientLeaves,
    Killed,
    /// Peers are added or removed.
    Peers(bool),
    /// A deadline that was set for something else.
    SpareDeadline,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    At(u64),
    /// Before this event of the run.
    Step(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Script {
    pub policy: ConnectPolicy,
    pub fates: Vec<Fate>,
    pub mishaps: Vec<(When, Mishap)>,
    /// How late the loop handles each event.
    pub lateness: Vec<u64>,
    /// Whether the peers can be told, each time.
    pub tellable: Vec<bool>,
    pub picks: Vec<usize>,
}

/// Short, so that many events coincide; or realistic.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![3 => (0..14u64).prop_map(|at| at * 5 * MS), 1 => 0..80 * MS]
}

fn failure() -> impl Strategy<Value = ConnectFailure> {
    prop::sample::select(&ConnectFailure::ALL[..])
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        2 => failure().prop_map(Fate::FailsAtOnce),
        3 => (time(), failure()).prop_map(|(after, failure)| Fate::FailsAfter(after, failure)),
        3 => time().prop_map(Fate::AnswersAfter),
        3 => Just(Fate::Silent),
        1 => Just(Fate::TakenMeanwhile),
        1 => prop_oneof![Just(u64::MAX), time()].prop_map(Fate::FullUntil),
        1 => Just(Fate::Unresolved),
    ]
}

fn mishap() -> impl Strategy<Value = (When, Mishap)> {
    let when = prop_oneof![time().prop_map(When::At), (0..12usize).prop_map(When::Step)];
    let mishap = prop_oneof![
        4 => (0..7u32, time()).prop_map(|(backend, order_after)| Mishap::Ejected { backend, order_after }),
        2 => any::<bool>().prop_map(|ends| Mishap::ClientSends { ends }),
        1 => Just(Mishap::ClientLeaves),
        1 => Just(Mishap::Killed),
        1 => any::<bool>().prop_map(Mishap::Peers),
        1 => Just(Mishap::SpareDeadline),
    ];
    (when, mishap)
}

pub(super) fn script() -> impl Strategy<Value = Script> {
    let policy = (1..6u32, time(), prop::option::of(time()), any::<bool>()).prop_map(
        |(attempts_max, timeout_ns, hedge_after_ns, has_peers)| ConnectPolicy {
            attempts_max,
            timeout_ns: timeout_ns + MS,
            hedge_after_ns,
            has_peers,
        },
    );
    (
        policy,
        prop::collection::vec(fate(), 0..7),
        prop::collection::vec(mishap(), 0..4),
        prop::collection::vec(prop_oneof![2 => Just(0), 1 => 0..LATENESS_MAX], 1..8),
        prop::collection::vec(any::<bool>(), 1..4),
        prop::collection::vec(any::<usize>(), 1..8),
    )
        .prop_map(|(policy, fates, mishaps, lateness, tellable, picks)| Script {
            policy,
            fates,
            mishaps,
            lateness,
            tellable,
            picks,
        })
}
