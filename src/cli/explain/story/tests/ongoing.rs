//! Faults that still go on when the record ends.

use super::*;

fn slow(from: HealthState, to: HealthState) -> What {
    changed(from, to, if to == HealthState::Ready { Cause::Passed } else { Cause::Slow })
}

/// Regression: a backend that drained for 20 s, which cost nothing, hid a node that had been silent for four minutes and still was.
#[test]
fn a_fault_that_goes_on_and_costs_nodes_is_told_before_newer_ones_that_are_over_or_cost_nothing() {
    use HealthState::{Draining, Ready};
    let mut events =
        vec![(0, silent(&["worker-5"], SilenceKind::NoConnection, 38_000)), (212_000, slow(Ready, Draining))];
    let first = |events: &Vec<_>| last(&recording(events.clone())).0;
    let drains = "2026-11-25 03:15:39.412Z apiserver/cp2: ready → draining";
    for beside in [&[drains][..], &[]] {
        let (said, others) = last(&recording(events.clone()));
        assert!(said[0].contains("worker-5"), "{said:?}");
        let goes_on = said.last().unwrap();
        assert!(goes_on.starts_with("This is still going on at 2026-11-25 03:1"), "{said:?}");
        assert!(goes_on.contains("worker-5 is silent for 4 m"), "{said:?}");
        assert_eq!(others.len(), beside.len(), "{others:?}");
        assert!(others.iter().zip(beside).all(|(line, begins)| line.starts_with(begins)), "{others:?}");
        assert!(others.iter().all(|line| line.ends_with("; still so (baton explain event:1)")), "{others:?}");
        events.push((232_000, slow(Draining, Ready)));
    }
    // Another silence is as bad, and newer.
    let mut both = events.clone();
    both.push((240_000, silent(&["worker-6"], SilenceKind::NoConnection, 38_000)));
    assert!(first(&both)[0].contains("worker-6"), "{:?}", first(&both));
    // Once it is over, the newest fault is told.
    let back = What::NodesBack { nodes: vec!["worker-5".to_owned()], more: 0, for_ms: 271_000 };
    events.push((233_000, back));
    let said = first(&events);
    assert!(said[0].contains("cp2: ready → draining") && !said.join(" ").contains("still going on"), "{said:?}");
    // The next process tells anew of a node that is silent.
    let restarted = vec![
        (0, What::Started { version: "1".to_owned() }),
        (5, silent(&["worker-5"], SilenceKind::NoConnection, 38_000)),
        (10_000, What::Stopping { flows: 0, timeout_ms: 1 }),
        (20_000, What::Started { version: "1".to_owned() }),
        (30_000, slow(Ready, Draining)),
    ];
    assert!(first(&restarted)[0].contains("cp2: ready → draining"), "{:?}", first(&restarted));
}

/// Regression: an upgrade, whose next process tells nothing anew, was taken for the end of a silence.
#[test]
fn a_silence_goes_on_across_an_upgrade() {
    let start = |at_ms| (at_ms, What::Started { version: "1".to_owned() });
    let upgraded = What::UpgradeFinished {
        from_version: "1".to_owned(),
        from_pid: 1,
        flows: 2,
        not_moved: 0,
        held_bytes: 0,
        longest_pause_us: 1,
        took_us: 1,
    };
    let mut events = vec![
        start(0),
        (10_000, silent(&["worker-5"], SilenceKind::NoConnection, 38_000)),
        (20_000, What::UpgradeBegun { binary: "/usr/bin/baton".into(), config: String::new() }),
        start(20_100),
        (20_200, upgraded),
        (30_000, slow(HealthState::Ready, HealthState::Draining)),
    ];
    let (said, _) = last(&recording(events.clone()));
    assert!(said[0].contains("worker-5") && said.last().unwrap().starts_with("This is still going on"), "{said:?}");
    // Another start tells it anew.
    events.insert(5, start(25_000));
    let (said, _) = last(&recording(events));
    assert!(!said.last().unwrap().starts_with("This is still going on"), "{said:?}");
}

/// Regression: "still so" was said of a refused file, although the process had been started anew since, by a good one.
#[test]
fn what_an_earlier_process_saw_is_not_still_so() {
    let start = |at_ms| (at_ms, What::Started { version: "1".to_owned() });
    let refused = What::ReloadRefused { errors: vec!["line 3".to_owned()] };
    let (said, others) = last(&recording(vec![start(0), (10_000, refused), start(30_000)]));
    assert!(said[0].contains("Baton 1 starts"), "{said:?}");
    assert!(others.len() == 1 && !others[0].contains("still so"), "{others:?}");
}

#[test]
fn new_connections_that_are_still_refused_are_told_before_a_newer_fault() {
    use HealthState::{Draining, Ready};
    let refused = What::RefusalsBegun { frontend: "apiserver".to_owned(), reason: EndReason::LimitFrontend };
    let said = told(&recording(vec![(0, refused), (60_000, slow(Ready, Draining))]), Subject::Last).unwrap();
    assert!(said[0].contains("began to reset new connections"), "{said:?}");
    assert!(said.iter().any(|it| it.contains("still going on at 2026-11-25 03:13:07.412Z")), "{said:?}");
}

/// A loss that reset flows and is not over comes before one that cost nothing, unless it was long ago.
#[test]
fn a_loss_that_goes_on_and_cost_flows_is_told_before_a_newer_one_that_cost_none() {
    use HealthState::{Draining, Ejected, Ready};
    let lost = || {
        vec![(0, changed(Ready, Ejected, Cause::TimedOut { after_ms: 500 })), (9, ended(1, EndReason::BackendEjected))]
    };
    let at = |later| {
        let What::BackendChanged { frontend, from, to, cause, .. } = slow(Ready, Draining) else { unreachable!() };
        let newer = What::BackendChanged { frontend, backend: "cp1".to_owned(), from, to, cause };
        let recording = recording(lost().into_iter().chain([(later, newer)]).collect());
        Story::new(&recording).tell(&Subject::Last).unwrap()
    };
    let (said, figures) = at(300_000);
    assert_eq!(figures.at_unix_ms, AT_MS);
    assert!(said.iter().any(|it| it.contains("was still ejected")), "{said:?}");
    assert_eq!(at(700_000).1.at_unix_ms, AT_MS + 700_000);
}

/// Regression: of two silent nodes one came back, and the other, which was still away, was not named any more.
#[test]
fn a_node_that_is_silent_still_is_named_beside_the_one_that_came_back() {
    let both = silent(&["worker-3", "worker-7"], SilenceKind::NoConnection, 10_000);
    let back = |node: &str| What::NodesBack { nodes: vec![node.to_owned()], more: 0, for_ms: 23_000 };
    let said = |events| Story::new(&recording(events)).tell(&Subject::Last).unwrap();
    let (told, figures) = said(vec![(0, both.clone()), (13_000, back("worker-3")), (18_000, back("worker-9"))]);
    assert!(told.iter().any(|it| it.starts_with("worker-3 was heard again at")), "{told:?}");
    assert!(told.last().unwrap().contains("worker-7 is silent for 28 s"), "{told:?}");
    assert_eq!(figures.lasted_ms, None);
    let (told, figures) = said(vec![(0, both.clone()), (13_000, back("worker-3")), (18_000, back("worker-7"))]);
    assert!(!told.iter().any(|it| it.contains("silent for")) && figures.lasted_ms.is_some(), "{told:?}");
    // The one that is named first stays away.
    let (told, _) = said(vec![(0, both), (13_000, back("worker-7"))]);
    assert!(told.iter().any(|it| it.starts_with("worker-7 was heard again at")), "{told:?}");
    assert!(told.last().unwrap().contains("worker-3 is silent for 23 s"), "{told:?}");
}

/// Regression: a node that was switched off hid each fault after it, whatever that cost.
#[test]
fn a_node_that_is_away_for_good_does_not_hide_a_newer_fault() {
    use HealthState::{Ejected, Ready};
    let hang = |at_ms| {
        let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
        vec![
            (at_ms, changed(Ready, Ejected, Cause::TimedOut { after_ms: 500 })),
            (at_ms, What::FlowsOrdered { frontend, backend, flows: 24, reason: EndReason::BackendEjected }),
            (at_ms + 20, ended(1, EndReason::BackendEjected)),
            (at_ms + 9_000, changed(Ejected, Ready, Cause::Passed)),
        ]
    };
    for at_ms in [60_000, 3_600_000] {
        let (said, beside) = last(&recording(
            [vec![(0, silent(&["worker-7"], SilenceKind::NoConnection, 38_000))], hang(at_ms)].concat(),
        ));
        assert!(said[0].contains("cp2: ready → ejected"), "{said:?}");
        let [silence] = &beside[..] else { panic!("{beside:?}") };
        assert!(silence.starts_with("2026-11-25 03:12:07.412Z worker-7 has had no connection"), "{beside:?}");
        assert!(silence.ends_with("; still so (baton explain event:0)"), "{beside:?}");
    }
}
