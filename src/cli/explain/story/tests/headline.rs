//! Which of several faults is told first.

use super::*;
use crate::model::nodes::SilenceKind;

fn lost(backend: &str, cause: Cause) -> What {
    let (from, to) = (HealthState::Ready, HealthState::Ejected);
    What::BackendChanged { frontend: "apiserver".to_owned(), backend: backend.to_owned(), from, to, cause }
}

fn back(backend: &str) -> What {
    let (from, to) = (HealthState::Ejected, HealthState::Ready);
    What::BackendChanged {
        frontend: "apiserver".to_owned(),
        backend: backend.to_owned(),
        from,
        to,
        cause: Cause::Passed,
    }
}

/// A backend that hung, with a flow that was reset.
fn hang(at_ms: u64) -> Vec<(u64, What)> {
    vec![
        (at_ms, lost("cp2", Cause::TimedOut { after_ms: 500 })),
        (at_ms + 20, ended(at_ms, EndReason::BackendEjected)),
        (at_ms + 9_000, back("cp2")),
    ]
}

fn silent_node() -> What {
    silent(&["worker-7"], SilenceKind::NoConnection, 38_000)
}

fn failed_over(inherited: usize, reset: usize) -> What {
    What::FailedOver { instance: InstanceName("lb-b".into()), inherited, reset }
}

fn start() -> What {
    What::Started { version: "1".to_owned() }
}

fn head(events: Vec<(u64, What)>) -> String {
    last(&recording(events)).0[0].clone()
}

/// Regression: a node that was silent for minutes was told, and not the worker that stuck or the VIP that two hosts had since.
#[test]
fn a_worse_fault_since_is_told_before_a_silence_that_goes_on() {
    let worse = [
        What::WorkerStuck { worker: 0, for_ms: 2_000 },
        What::VipShared { address: "10.0.0.100".parse().unwrap(), by: "02:00:00:00:00:09".to_owned() },
        What::AcceptPaused { worker: 1, error: "too many open files".to_owned() },
        failed_over(0, 12),
    ];
    for what in worse {
        let sentence = what.sentence();
        let said = head(vec![(0, silent_node()), (240_000, what)]);
        assert!(said.contains(&sentence), "{said}");
    }
    // What cost nothing is less than a node that is away.
    let said = head(vec![(0, silent_node()), (240_000, liveness("lb-b", Liveness::Dead))]);
    assert!(said.contains("worker-7"), "{said}");
}

/// Regression: a silence of before a fault was told, because its event came after it.
#[test]
fn a_silence_that_began_before_a_fault_is_not_the_younger_one() {
    let mut events = hang(0);
    events.insert(2, (5_000, silent_node()));
    assert!(head(events).contains("cp2: ready → ejected"));
}

/// Regression: the start after a crash was told, and not that since then every connection was refused.
#[test]
fn a_worse_fault_since_is_told_before_a_start_after_a_crash() {
    let refused = What::RefusalsBegun { frontend: "apiserver".to_owned(), reason: EndReason::NoBackend };
    let said = head(vec![(0, start()), (60_000, start()), (75_000, refused)]);
    assert!(said.contains("began to reset new connections"), "{said}");
    let said = head([vec![(0, start()), (60_000, start())], hang(75_000)].concat());
    assert!(said.contains("cp2: ready → ejected"), "{said}");
    // A reload that was refused is less.
    let refused = What::ReloadRefused { errors: vec!["line 3".to_owned()] };
    let said = head(vec![(0, start()), (60_000, start()), (75_000, refused)]);
    assert!(said.contains("Baton 1 starts"), "{said}");
}

/// Regression: twelve clients that a failover had reset were told beside a backend whose loss no flow had felt.
#[test]
fn of_the_faults_of_one_minute_the_worst_is_told() {
    let unfelt = |at_ms| (at_ms, lost("cp1", Cause::Refused));
    let said = head(vec![(0, failed_over(0, 12)), unfelt(20_000)]);
    assert!(said.contains("lb-b is dead"), "{said}");
    let said = head(vec![(0, failed_over(0, 12)), unfelt(120_000)]);
    assert!(said.contains("cp1: ready → ejected"), "a minute later it is a fault of its own: {said}");
    let said = head([hang(0), vec![(20_000, failed_over(3, 0))]].concat());
    assert!(said.contains("lb-b is dead"), "of equal ones the newer: {said}");
}

/// Regression: a peer's death half a minute before was told, and not that this process, which had 90 flows, had been killed.
#[test]
fn a_crash_that_reset_flows_is_told_before_an_older_fault_of_its_minute() {
    let gained = || What::VipGained {
        vip: "10.0.0.100".to_owned(),
        why: "lb-b had it and was silent".to_owned(),
        gain: None,
        silent: Some("lb-b".to_owned()),
    };
    let linked = || What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() };
    let said = head(vec![(0, gained()), (30_000, linked()), (32_000, start())]);
    assert!(said.contains("Baton 1 starts"), "{said}");
    // What began after the next process had started is a later fault of a minute that the death is not in.
    let said = head([vec![(0, gained()), (30_000, linked()), (90_000, start())], hang(100_000)].concat());
    assert!(said.contains("cp2: ready → ejected"), "{said}");
}

/// Regression: neither was ever the headline.
#[test]
fn a_kill_of_all_flows_and_a_clean_stop_are_told_before_an_older_fault() {
    let ordered = What::FlowsOrdered {
        frontend: "apiserver".to_owned(),
        backend: "cp1".to_owned(),
        flows: 60,
        reason: EndReason::Killed,
    };
    let order = What::OrderReceived { uid: 0, pid: 42, order: "kill --all".to_owned() };
    for later_ms in [20_000, 3_600_000] {
        let killed = vec![
            (later_ms, order.clone()),
            (later_ms + 1, ordered.clone()),
            (later_ms + 9, ended(7, EndReason::Killed)),
        ];
        let said = head([hang(0), killed].concat());
        assert!(said.contains("kill --all"), "{said}");
    }
    let stopped = vec![(3_600_000, What::Stopping { flows: 30, timeout_ms: 10_000 }), (3_605_000, start())];
    let said = head([hang(0), stopped].concat());
    assert!(said.contains("Baton stops: 30 flows"), "{said}");
}

/// Regression: a crash that no flow felt, since all were offloaded and went on, was told before a backend that had been down since, and its
/// flows reset.
#[test]
fn a_crash_whose_flows_went_on_is_told_after_a_later_loss_that_goes_on() {
    let took_up = |flows| What::OffloadRecovered { flows, reset: 0 };
    let of_crash = |recovered| vec![(57_000, start()), (60_000, start()), (60_010, took_up(recovered))];
    let hangs = hang(85_000)[..2].to_vec();
    let said = head([of_crash(90), hangs.clone()].concat());
    assert!(said.contains("cp2: ready → ejected"), "{said}");
    let said = head([of_crash(40), hangs].concat());
    assert!(said.contains("Baton 1 starts"), "fifty were reset: {said}");
    let (said, _) = last(&recording(of_crash(90)));
    assert!(said[2].starts_with("90 flows that were offloaded went on meanwhile"), "{said:?}");
}

/// Regression: after a stop that cut nothing off an older fault was told, though Baton did not run any more.
#[test]
fn a_stop_after_which_nothing_runs_is_told_before_an_older_fault() {
    let stop = || What::Stopping { flows: 0, timeout_ms: 10_000 };
    let said = head([hang(0), vec![(75_000, stop())]].concat());
    assert!(said.contains("Baton stops"), "{said}");
    let said = head([hang(0), vec![(75_000, stop()), (76_000, start())]].concat());
    assert!(said.contains("cp2: ready → ejected"), "it runs again: {said}");
}
