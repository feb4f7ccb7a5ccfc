//! A backend whose flows an operator has killed.

use super::*;

fn kill(at_ms: u64) -> Vec<(u64, What)> {
    let ordered = |backend: &str, flows| What::FlowsOrdered {
        frontend: "apiserver".to_owned(),
        backend: backend.to_owned(),
        flows,
        reason: EndReason::Killed,
    };
    vec![
        (at_ms, What::OrderReceived { uid: 0, pid: 42, order: "kill --all".to_owned() }),
        (at_ms + 1, ordered("cp1", 60)),
        (at_ms + 2, ordered("cp2", 2)),
        (at_ms + 100, ended(1, EndReason::Killed)),
        (at_ms + 200, ended(2, EndReason::Killed)),
    ]
}

fn of_cp2(events: Vec<(u64, What)>) -> Vec<String> {
    told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap()
}

/// Regression: after a kill an older loss was told, and nothing of the kill; or the whole order, without the backend's own flows.
#[test]
fn a_backend_is_told_with_the_kill_since() {
    let own = "Of apiserver/cp2 it meant 2 flows: 2 ended for it, the last of them 200 ms after it.";
    let said = of_cp2(kill(0));
    assert!(said[0].ends_with("uid 0 (process 42) orders: baton kill --all."), "{said:?}");
    assert_eq!(said[1], own, "{said:?}");

    let loss = vec![
        (0, changed(HealthState::Ready, HealthState::Ejected, Cause::Refused)),
        (9_000, changed(HealthState::Ejected, HealthState::Ready, Cause::Passed)),
    ];
    let said = of_cp2([loss.clone(), kill(3_600_000)].concat());
    assert!(said[0].contains("ready → ejected"), "{said:?}");
    let newer = "Newer is an order: at 2026-11-25 04:12:07.412Z uid 0 (process 42) orders: baton kill --all.";
    assert_eq!(said.last().unwrap(), &format!("{newer} {own}"), "{said:?}");
    // One before the loss is another matter.
    let later = loss.into_iter().map(|(at_ms, what)| (at_ms + 60_000, what));
    let said = of_cp2(kill(0).into_iter().chain(later).collect());
    assert!(!said.join("\n").contains("kill"), "{said:?}");
}

#[test]
fn a_kill_by_the_backend_s_name_is_told_with_its_flows() {
    let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
    let said = of_cp2(vec![
        (0, What::OrderReceived { uid: 0, pid: 42, order: "kill --backend cp2".to_owned() }),
        (1, What::FlowsOrdered { frontend, backend, flows: 3, reason: EndReason::Killed }),
        (100, ended(1, EndReason::Killed)),
    ]);
    assert!(said[0].ends_with("baton kill --backend cp2."), "{said:?}");
    assert_eq!(said[1], "Of apiserver/cp2 it meant 3 flows: 1 ended for it, the last of them 100 ms after it.");
}
