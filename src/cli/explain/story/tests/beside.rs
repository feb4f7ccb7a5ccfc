//! What is named beside the last fault.

use super::*;
use crate::model::nodes::SilenceKind;

fn of(backend: &str, from: HealthState, to: HealthState, cause: Cause) -> What {
    What::BackendChanged { frontend: "apiserver".to_owned(), backend: backend.to_owned(), from, to, cause }
}

fn hangs(backend: &str) -> What {
    of(backend, HealthState::Ready, HealthState::Ejected, Cause::TimedOut { after_ms: 500 })
}

/// Regression: three backends died within seconds, and the last one alone was told.
#[test]
fn each_backend_of_several_that_died_is_named() {
    let back = of("cp1", HealthState::Ejected, HealthState::Ready, Cause::Passed);
    let events = vec![(0, hangs("cp1")), (700, hangs("cp2")), (1_700, hangs("cp3")), (5_000, back)];
    let (said, beside) = last(&recording(events));
    assert!(said[0].contains("cp3: ready → ejected"), "{said:?}");
    let [first, second] = &beside[..] else { panic!("{beside:?}") };
    assert!(first.contains("cp1: ready → ejected") && first.contains("; over after 5.0 s ("), "{first}");
    assert!(second.contains("cp2: ready → ejected") && second.contains("; still so ("), "{second}");
}

/// Regression: a failover and a backend that hung a second later; only one was told. And an hour later it is no longer beside it.
#[test]
fn a_failover_and_a_backend_s_loss_shortly_after_it_are_both_named() {
    let failover = || {
        let over = What::FailedOver { instance: InstanceName("lb-a".into()), inherited: 0, reset: 12 };
        let gained = What::VipGained {
            vip: "10.0.0.100".to_owned(),
            why: "lb-a was silent".to_owned(),
            gain: None,
            silent: Some("lb-a".to_owned()),
        };
        vec![(0, gained), (10, over), (30_000, What::PeerLinked { peer: "lb-a".to_owned(), version: "1".to_owned() })]
    };
    let at = |at_ms| last(&recording(failover().into_iter().chain([(at_ms, hangs("cp1"))]).collect()));
    let (said, beside) = at(1_500);
    assert!(said[0].contains("this host has the VIP") && said[1].contains("resets 12 flows of it"), "{said:?}");
    assert!(beside.iter().any(|it| it.contains("cp1: ready → ejected")), "{beside:?}");
    assert!(at(3_600_000).0[0].contains("cp1: ready → ejected"));
    assert_eq!(at(3_600_000).1, [""; 0]);
}

/// Regression: one that an operator ejected was "over or cost nothing" beside a newer fault, though it was out.
#[test]
fn what_an_operator_has_ejected_is_still_so() {
    let ejected = of("cp2", HealthState::Ready, HealthState::Ejected, Cause::OrderedEject);
    let (_, beside) = last(&recording(vec![(0, ejected), (600_000, hangs("cp1"))]));
    let [line] = &beside[..] else { panic!("{beside:?}") };
    assert!(line.contains("ejected by an operator; still so"), "{line}");
}

/// What goes on is named before what is over, and no more than can be read.
#[test]
fn of_many_faults_those_that_go_on_are_named() {
    let mut events = vec![(0, silent(&["worker-7"], SilenceKind::NoConnection, 10_000))];
    for number in 0..9u64 {
        let name = format!("b{number}");
        events.push((100 + number, hangs(&name)));
        events.push((1_000 + number, of(&name, HealthState::Ejected, HealthState::Ready, Cause::Passed)));
    }
    let (frontend, backend) = ("apiserver".to_owned(), "cp1".to_owned());
    events.push((2_000, hangs("cp1")));
    events.push((2_000, What::FlowsOrdered { frontend, backend, flows: 24, reason: EndReason::BackendEjected }));
    let (_, beside) = last(&recording(events));
    assert!(beside[0].contains("worker-7") && beside[0].contains("still so"), "{beside:?}");
    assert_eq!(beside.len(), 7, "{beside:?}");
    assert_eq!(beside[6], "and 4 more faults (baton events)");
}

/// Regression: a backend that an operator ejected once it was dead, and that was well again, was told as dead still.
#[test]
fn an_operator_s_ejection_of_a_dead_backend_is_what_keeps_it_out() {
    let (ejected, ready) = (HealthState::Ejected, HealthState::Ready);
    let mut events = vec![(0, hangs("cp2")), (20_000, of("cp2", ejected, ejected, Cause::OrderedEject))];
    let said = |events: &Vec<_>| told(&recording(events.clone()), Subject::Backend("cp2".to_owned())).unwrap();
    let newer =
        "What keeps it out now is newer: at 2026-11-25 03:12:27.412Z apiserver/cp2: ejected: ejected by an operator";
    assert!(said(&events).last().unwrap().starts_with(newer), "{:?}", said(&events));
    events.push((30_000, of("cp2", ejected, ready, Cause::Passed)));
    assert!(!said(&events).join(" ").contains("What keeps it out"), "{:?}", said(&events));
}

/// Regression: "It had no VIP then", of a peer whose VIP this host had taken a millisecond before it counted as dead.
#[test]
fn a_vip_that_was_taken_a_moment_before_its_holder_counted_as_dead_was_the_holder_s() {
    let vip = || "10.0.0.100".to_owned();
    let held = What::VipHeld { vip: vip(), by: "lb-a".to_owned() };
    let gained =
        What::VipGained { vip: vip(), why: "lb-a was silent".to_owned(), gain: None, silent: Some("lb-a".to_owned()) };
    let dead = What::PeerLiveness { peer: "lb-a".to_owned(), liveness: Liveness::Dead, stuck_ms: None };
    let recording = recording(vec![(0, held), (60_000, gained), (60_001, dead)]);
    let said = failovers::vip_at_death(&Story::new(&recording), "lb-a").unwrap();
    assert!(said.starts_with("It had the VIP 10.0.0.100 then"), "{said}");
}
