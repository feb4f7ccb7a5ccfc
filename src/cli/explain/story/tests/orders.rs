//! Orders, and what a rebalancing does.

use super::*;

#[test]
fn an_operator_s_order_is_named_as_the_cause() {
    let order = What::OrderReceived { uid: 0, pid: 42, order: "eject cp2".to_owned() };
    let ejected = changed(HealthState::Ready, HealthState::Ejected, Cause::OrderedEject);
    let recording = recording(vec![(0, order), (3, ejected), (20, ended(1, EndReason::EjectedByOperator))]);
    let sentences = told(&recording, Subject::Backend("cp2".to_owned())).unwrap();
    assert_eq!(sentences[1], "3 ms earlier, at 2026-11-25 03:12:07.412Z, uid 0 (process 42) orders: baton eject cp2.");
    assert!(sentences[3].contains("ejected_by_operator 1"), "{sentences:?}");
    let last = sentences.last().unwrap();
    assert!(last.starts_with("The record has no later change: apiserver/cp2 was still ejected"), "{sentences:?}");
    assert!(!sentences.iter().any(|sentence| sentence.contains("fall =")), "{sentences:?}");
}

/// Regression: the end of one client's flows by `baton kill` was put down to an ejection of the backend that was long over.
#[test]
fn flows_that_an_operator_killed_are_not_put_down_to_the_last_loss_of_their_backend() {
    use HealthState::{Ejected, Ready};
    let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
    let order = "kill --client 10.0.0.31".to_owned();
    let recording = recording(vec![
        (0, changed(Ready, Ejected, Cause::Refused)),
        (5000, changed(Ejected, Ready, Cause::Passed)),
        (9000, What::OrderReceived { uid: 0, pid: 42, order }),
        (9001, What::FlowsOrdered { frontend, backend, flows: 1, reason: EndReason::Killed }),
        (9002, ended(1, EndReason::Killed)),
        (9003, ended(2, EndReason::ClientReset)),
    ]);
    let said = told(&recording, Subject::Event(3)).unwrap();
    assert!(said[0].contains("baton kill --client 10.0.0.31"), "{said:?}");
    assert!(said[1].contains("It meant 1 flow: apiserver/cp2 1."), "{said:?}");
    assert!(said[2].contains("1 flow ended for it (killed 1)"), "{said:?}");
}

fn order(order: &str) -> What {
    What::OrderReceived { uid: 0, pid: 42, order: order.to_owned() }
}

fn kills(frontend: &str, backend: &str, flows: usize) -> What {
    What::FlowsOrdered { frontend: frontend.to_owned(), backend: backend.to_owned(), flows, reason: EndReason::Killed }
}

fn end_of(flow: u64, of: (&str, &str), reason: EndReason) -> What {
    let mut what = ended(flow, reason);
    let What::FlowEnded { frontend, backend, .. } = &mut what else { unreachable!() };
    (*frontend, *backend) = (of.0.to_owned(), Some(of.1.to_owned()));
    what
}

/// Regression: after `baton kill --all` the last backend alone was told, with the ends of each other order and fault of those ten seconds.
#[test]
fn a_kill_is_told_with_all_its_backends_and_with_its_own_ends_alone() {
    let [one, two, other] = [("apiserver", "cp1"), ("apiserver", "cp2"), ("web", "w1")];
    let recording = recording(vec![
        (0, order("kill --all")),
        (1, kills(one.0, one.1, 2)),
        (1, kills(two.0, two.1, 1)),
        (1, kills(other.0, other.1, 1)),
        (5, end_of(1, one, EndReason::ClientReset)),
        (10, end_of(2, one, EndReason::Killed)),
        (20, end_of(3, two, EndReason::Killed)),
        (240, end_of(4, other, EndReason::Killed)),
        (3_000, order("kill --backend cp2")),
        (3_001, kills(two.0, two.1, 1)),
        (3_010, end_of(5, two, EndReason::Killed)),
        (3_020, end_of(6, other, EndReason::Killed)),
        (3_030, end_of(7, one, EndReason::BackendEjected)),
    ]);
    let explained = |subject: Subject| Story::new(&recording).tell(&subject).unwrap();
    for event in 0..4 {
        let (said, figures) = explained(Subject::Event(event));
        assert!(said[0].ends_with("orders: baton kill --all."), "{event}: {said:?}");
        assert_eq!(said[1], "It meant 4 flows: apiserver/cp1 2, apiserver/cp2 1, web/w1 1.");
        assert!(said[2].starts_with("4 flows ended for it (killed 4), the last of them 3.0 s after it"), "{said:?}");
        assert_eq!((figures.flows_ordered, figures.flows_ended), (4, BTreeMap::from([("killed", 4)])));
        assert_eq!(figures.longest_gap_ms, Some(10_000), "{said:?}");
    }
    for subject in [Subject::Last, Subject::Event(8), Subject::Event(9)] {
        let (said, figures) = explained(subject);
        assert!(said[0].ends_with("orders: baton kill --backend cp2."), "{said:?}");
        assert_eq!(said[1], "It meant 1 flow: apiserver/cp2 1.");
        assert!(said[2].starts_with("1 flow ended for it (killed 1), the last of them 10 ms after it"), "{said:?}");
        assert_eq!(figures.flows_ended, BTreeMap::from([("killed", 1)]));
    }
    let (said, _) = explained(Subject::Flow(FlowId(4)));
    assert!(said.iter().any(|it| it.contains("earlier, at ") && it.contains("baton kill --all")), "{said:?}");
    let (said, _) = explained(Subject::Flow(FlowId(6)));
    assert!(said.iter().any(|it| it.contains("baton kill --all")), "not the order of another backend: {said:?}");
}

/// Regression: the ends of another frontend's flows counted as those that an order had ended.
#[test]
fn flows_that_an_order_ends_are_told_without_those_of_another_frontend() {
    let stuck = What::FlowsOrdered {
        frontend: "apiserver".to_owned(),
        backend: "cp2".to_owned(),
        flows: 1,
        reason: EndReason::Rebalanced,
    };
    let recording = recording(vec![
        (0, stuck),
        (10, end_of(1, ("apiserver", "cp2"), EndReason::Rebalanced)),
        (20, end_of(2, ("web", "w1"), EndReason::Rebalanced)),
    ]);
    let said = told(&recording, Subject::Event(0)).unwrap();
    assert!(said.iter().any(|it| it.contains("1 flow ended for it (rebalanced 1)")), "{said:?}");
}

/// Regression: the ends of all other orders of those ten seconds were told as effects of a rebalancing.
#[test]
fn what_a_rebalancing_did_is_told_without_the_ends_of_other_orders() {
    let drain = What::OrderReceived { uid: 0, pid: 42, order: "drain apiserver/cp1".to_owned() };
    let moves = What::RebalancePlanned { frontend: "apiserver".to_owned(), moves: 2 };
    let recording = recording(vec![
        (0, drain),
        (200, moves),
        (300, ended(1, EndReason::Rebalanced)),
        (400, ended(2, EndReason::EjectedByOperator)),
    ]);
    let said = told(&recording, Subject::Event(1)).unwrap().join("\n");
    assert!(
        said.contains("(rebalanced 1)")
            && !said.contains("drain")
            && said.contains("rebalance.when = \"after_outage\""),
        "{said}"
    );
}

/// Regression: the ends of a rebalancing's next plan were told as those of the one before, the end of a rebalancing was told with what came
/// after it, and an order with the order before it as its cause.
#[test]
fn a_rebalancing_is_told_with_its_own_ends_and_an_order_without_the_one_before() {
    let moves = || What::RebalancePlanned { frontend: "apiserver".to_owned(), moves: 2 };
    let end = |flow| ended(flow, EndReason::Rebalanced);
    let order = |order: &str| What::OrderReceived { uid: 0, pid: 42, order: order.to_owned() };
    let shut = What::OffloadShut { why: "no CAP_BPF".to_owned(), unwatched: false };
    let recording = recording(vec![
        (0, shut),
        (100, moves()),
        (200, end(1)),
        (4000, moves()),
        (4100, end(2)),
        (4200, end(3)),
        (15_000, What::Rebalanced { frontend: "apiserver".to_owned(), flows: 3 }),
        (16_000, order("drain cp1")),
        (16_500, order("drain cp2")),
        (17_000, end(4)),
    ]);
    let said = |event| told(&recording, Subject::Event(event)).unwrap().join("\n");
    assert!(!said(0).contains("ended"), "flows that stay proxied end for other reasons: {}", said(0));
    assert!(said(1).contains("In the 3.8 s after it, 1 flow ended"), "{}", said(1));
    assert!(said(3).contains("In the 10 s after it, 2 flows ended"), "{}", said(3));
    assert!(said(6).contains("From its plan on, 14 s before, 3 flows ended"), "{}", said(6));
    assert!(!said(8).contains("cp1"), "{}", said(8));
}

/// Regression: a rebalancing was told from the plan of the process before on, which had died with it.
#[test]
fn a_rebalancing_is_not_told_from_the_plan_of_an_earlier_process_on() {
    let planned = || What::RebalancePlanned { frontend: "apiserver".to_owned(), moves: 2 };
    let recording = recording(vec![
        (0, planned()),
        (100, ended(1, EndReason::Rebalanced)),
        (5_000, What::Started { version: "1".to_owned() }),
        (6_000, planned()),
        (6_100, ended(2, EndReason::Rebalanced)),
        (7_000, What::Rebalanced { frontend: "apiserver".to_owned(), flows: 1 }),
    ]);
    let said = told(&recording, Subject::Event(5)).unwrap().join("\n");
    assert!(said.contains("From its plan on, 1.0 s before, 1 flow ended for it (rebalanced 1)."), "{said}");
}

/// Regression: the longest gap was told of faults, and of a drain or an ejection by order not, which resets flows as well.
#[test]
fn the_longest_gap_of_a_drain_and_of_an_ejection_by_order_is_told_if_they_reset_flows() {
    use HealthState::{Draining, Ejected, Ready};
    let eject = (changed(Ready, Ejected, Cause::OrderedEject), EndReason::EjectedByOperator);
    let drain = (changed(Ready, Draining, Cause::OrderedDrain), EndReason::DrainDeadline);
    for (order, reason) in [eject, drain] {
        let reset = recording(vec![(0, order.clone()), (20, ended(1, reason))]);
        let (said, figures) = Story::new(&reset).tell(&Subject::Backend("cp2".to_owned())).unwrap();
        assert_eq!(figures.longest_gap_ms, Some(10_000), "{said:?}");
        let gap = "so the longest gap that a node can have seen is 10 s: a renewal's.";
        assert!(said.len() <= SENTENCES_MAX && said.iter().any(|it| it.ends_with(gap)), "{said:?}");
        let alone = recording(vec![(0, order), (20, ended(1, EndReason::ClientClosed))]);
        let (said, figures) = Story::new(&alone).tell(&Subject::Backend("cp2".to_owned())).unwrap();
        assert_eq!((figures.longest_gap_ms, said.join(" ").contains("longest gap")), (None, false), "{said:?}");
    }
}

/// Regression: a backend that a reload had removed, and another added again 48 s later, "lasted 48 s".
#[test]
fn a_backend_that_was_removed_and_added_again_is_told_so() {
    use HealthState::{Draining, Ready};
    let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
    let recording = recording(vec![
        (0, What::BackendRemoved { frontend: frontend.clone(), backend: backend.clone() }),
        (1, changed(Ready, Draining, Cause::Removed)),
        (48_000, What::BackendAdded { frontend, backend }),
        (48_200, changed(Ready, Ready, Cause::Passed)),
    ]);
    let (said, figures) = Story::new(&recording).tell(&Subject::Backend("cp2".to_owned())).unwrap();
    let last = said.last().unwrap();
    let expected = "A reload had removed it at 2026-11-25 03:12:07.412Z, and one added it again at 2026-11-25 03:12:55.412Z, 48 s later.";
    assert_eq!((last.as_str(), figures.lasted_ms), (expected, None), "{said:?}");
}

/// Regression: of an order to drain only what else ended within ten seconds was told, and not what it did.
#[test]
fn an_order_is_told_with_what_it_did() {
    use HealthState::{Draining, Ready};
    let recording = recording(vec![
        (0, What::OrderReceived { uid: 0, pid: 42, order: "drain apiserver/cp2".to_owned() }),
        (3, changed(Ready, Draining, Cause::OrderedDrain)),
        (5_000, ended(9, EndReason::Rebalanced)),
        (150_003, ended(1, EndReason::DrainDeadline)),
    ]);
    let said = told(&recording, Subject::Event(0)).unwrap();
    assert!(said[0].contains("orders: baton drain apiserver/cp2") && said[1].contains("ready → draining"), "{said:?}");
    assert!(
        said.iter().any(|it| it.contains("drain_deadline 1") && it.contains("drain_timeout = 2 m 30 s")),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|it| it.contains("rebalanced")) && !said[1..].iter().any(|it| it.contains("orders:")),
        "{said:?}"
    );
}

/// Regression: a reload with which all backends were lost was not named, nor that loss before an older fault that was over.
#[test]
fn a_loss_by_a_reload_is_the_last_fault_and_names_the_reload() {
    use HealthState::{Draining, Ejected, Ready};
    let wrong = || Cause::Protocol { error: "TLS: certificate is for kubernetes".to_owned() };
    let recording = recording(vec![
        (0, other(Ready, Ejected)),
        (7_500, other(Ejected, Ready)),
        (60_000, What::Reloaded { changes: vec!["frontend apiserver: probes by other TLS settings".to_owned()] }),
        (60_440, changed(Ready, Draining, wrong())),
    ]);
    let said = told(&recording, Subject::Last).unwrap();
    assert!(said[0].contains("cp2: ready → draining: "), "{said:?}");
    assert!(said[2].starts_with("440 ms earlier") && said[2].contains("probes by other TLS settings"), "{said:?}");
    // Such a drain has no end of its own.
    assert!(said.iter().any(|it| it.contains("It still has 30 flows, which no time limit ends")), "{said:?}");
    assert!(!said.iter().any(|it| it.contains("drain_timeout")), "{said:?}");
}

/// Regression: a drain because of /readyz forecast a reset at the end of drain_timeout, which does not come while no other backend is ready.
#[test]
fn a_drain_without_another_ready_backend_forecasts_no_reset() {
    use HealthState::{Draining, Ready};
    let said = |state: &str| {
        let mut recording = recording(vec![(0, changed(Ready, Draining, Cause::NotReady { status: 500 }))]);
        let Recorded::Sample(sample) = &mut recording.records[0].what else { unreachable!() };
        sample.backends[0].state = state.to_owned();
        told(&recording, Subject::Backend("cp2".to_owned())).unwrap().join(" ")
    };
    assert!(said("ready").contains("drain_timeout = 2 m 30 s decides that those left"), "{}", said("ready"));
    assert!(said("draining").contains("no time limit ends while no other backend is ready"), "{}", said("draining"));
}

/// Regression: of a backend that flapped, and was held back, its last loss was told, which "lasted 1.4 s".
#[test]
fn a_backend_that_is_held_back_for_flapping_is_told_so_with_its_losses() {
    use HealthState::{Draining, Ejected, Ready};
    let flap =
        |at| [(at, changed(Ready, Ejected, Cause::Refused)), (at + 1_400, changed(Ejected, Ready, Cause::Passed))];
    let mut events: Vec<_> = [0, 4_000, 8_000].into_iter().flat_map(flap).collect();
    events.extend([
        (12_000, changed(Ready, Ejected, Cause::Refused)),
        (13_400, changed(Ejected, Draining, Cause::Damped)),
    ]);
    let said = told(&recording(events.clone()), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(
        said[0].contains("cp2: ejected → draining") && said[1].contains("it was lost 4 times within 10 m"),
        "{said:?}"
    );
    assert!(said.last().unwrap().contains("was still draining"), "{said:?}");
    events.push((90_000, changed(Draining, Ready, Cause::Passed)));
    let said = told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said[0].contains("cp2: ready → ejected"), "{said:?}");
}
