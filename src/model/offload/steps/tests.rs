//! Ends, kernel, worker and operator act in any order, and the process is killed at any time.

mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use world::{Event, Script, World};

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::BarrierOver),
        2 => Just(Event::SlipsIn),
        1 => Just(Event::Blocks),
        3 => Just(Event::Acknowledged),
        5 => any::<bool>().prop_map(|readable| Event::Turn { readable }),
        2 => (0..40_000_u64).prop_map(Event::Wait),
        2 => Just(Event::Due),
        1 => (0..2_usize).prop_map(Event::LegBreaks),
        1 => Just(Event::EntriesRemoved),
        1 => (0..2_usize).prop_map(Event::ResetByEnd),
        1 => Just(Event::Finished),
        1 => Just(Event::LooksAgain),
        1 => Just(Event::Ordered),
        1 => Just(Event::FallsSilent),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    (
        proptest::option::weighted(0.1, 0..2_usize),
        any::<bool>(),
        proptest::bool::weighted(0.9),
        proptest::collection::vec(event(), 0..14),
        proptest::collection::vec(0..45_u32, 0..3),
        proptest::collection::vec(any::<bool>(), 1..8),
    )
        .prop_map(|(write_fails, holds_bytes, can_mark, events, kills, hears)| Script {
            write_fails,
            holds_bytes,
            can_mark,
            events,
            kills,
            hears,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// At no moment would a kill leave an end that is neither served nor reset, or one that is served after a reset; no
    /// byte is lost with a socket; the worker learns of one end; no flow waits for ever; no end is reset more often
    /// than the drawing shows.
    #[test]
    fn each_end_is_carried_on_or_reset_whenever_the_process_dies(script in script()) {
        World::new(script).run();
    }
}

/// Kills the process at each moment of one flow that is offloaded, and of one that is reset: none is left to chance.
#[test]
fn a_kill_at_each_moment_leaves_each_end_carried_on_or_reset() {
    let offloaded = [Event::BarrierOver, Event::Acknowledged, Event::Turn { readable: true }];
    let (ordered, finished) = ([Event::Ordered, Event::Due], [Event::Finished, Event::Due]);
    for rest in [&[][..], &ordered, &finished] {
        for before in 0..=offloaded.len() {
            for kill in 0..60 {
                let events = offloaded[..before].iter().chain(rest).copied().collect();
                let kills = vec![kill];
                let script =
                    Script { write_fails: None, holds_bytes: true, can_mark: true, events, kills, hears: vec![true] };
                World::new(script).run();
            }
        }
    }
}

#[test]
fn a_broken_leg_says_whose_it_was_and_whether_its_end_is_silent() {
    let step = OffloadStep::enter((), 0).0;
    let reason = |by_client, timed_out| match step.handle_broken(by_client, timed_out)[..] {
        [SettleAction::End(reason)] => reason,
        ref other => panic!("{other:?}"),
    };
    assert_eq!([reason(true, false), reason(true, true)], [EndReason::ClientReset, EndReason::ClientTimedOut]);
    assert_eq!([reason(false, false), reason(false, true)], [EndReason::BackendReset, EndReason::BackendTimedOut]);
}

#[test]
fn an_end_that_owes_an_acknowledgement_for_too_long_is_named() {
    for (by_client_alone, reason) in [(true, EndReason::ClientTimedOut), (false, EndReason::BackendTimedOut)] {
        let mut step = OffloadStep::enter((), 7).0;
        step.handle_barrier_over();
        let mut look = |now_ns| step.handle_look(PassedOn::Awaited { by_client_alone }, now_ns, 100);
        assert_eq!(look(107).last(), Some(&SettleAction::LookAgain));
        assert_eq!(look(108), [SettleAction::End(reason)]);
    }
}

/// Otherwise the schedules above would prove nothing.
#[test]
fn the_schedules_reach_every_step_and_a_kill_in_each() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    let scripts = script();
    for _ in 0..4000 {
        let mut world = World::new(scripts.new_tree(&mut runner).unwrap().current());
        world.run();
        seen.append(&mut world.seen);
    }
    let expected = [
        "Alone",
        "End(BackendReset)",
        "End(BackendTimedOut)",
        "End(ClientReset)",
        "End(ClientTimedOut)",
        "End(Internal)",
        "Entered",
        "Fade",
        "Filling",
        "Over",
        "Reset",
        "Resetting",
        "challenged once more",
        "handed back",
        "killed in Alone",
        "killed in Entered",
        "killed in Filling",
        "killed in Over",
        "killed in Resetting",
        "killed in its sockets",
        "offloaded",
        "one entry left",
        "recovered",
        "removed",
        "reset after a kill",
        "told later",
        "unread",
    ];
    assert_eq!(seen, expected.map(String::from).into());
}
