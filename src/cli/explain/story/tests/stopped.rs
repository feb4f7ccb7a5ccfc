//! Instances that were stopped, and the record that they leave.

use super::*;

fn vip() -> String {
    "10.0.0.100".to_owned()
}

fn linked(peer: &str) -> What {
    What::PeerLinked { peer: peer.to_owned(), version: "1".to_owned() }
}

fn left() -> What {
    liveness("lb-b", Liveness::Left(Farewell::Stopped))
}

fn stops(at_ms: u64) -> Vec<(u64, What)> {
    let why = "this instance is stopping".to_owned();
    vec![
        (at_ms, What::OrderReceived { uid: 0, pid: 42, order: "stop".to_owned() }),
        (at_ms + 1, What::Stopping { flows: 30, timeout_ms: 10_000 }),
        (at_ms + 2, What::VipGivenUp { vip: vip(), why, loss: None, late_ms: None, cut_off: false }),
        (at_ms + 500, left()),
        (at_ms + 501, What::PeerLost { peer: "lb-b".to_owned(), why: "it has stopped".to_owned() }),
    ]
}

fn starts(at_ms: u64) -> Vec<(u64, What)> {
    vec![
        (at_ms, What::Started { version: "1".to_owned() }),
        (at_ms + 10, What::PeerUnreachable { peer: "lb-b".to_owned(), why: "connection refused".to_owned() }),
        (at_ms + 1_000, liveness("lb-b", Liveness::Dead)),
        (at_ms + 1_500, What::VipGained { vip: vip(), why: "no instance had it".to_owned(), gain: None, silent: None }),
        (at_ms + 9_000, linked("lb-b")),
    ]
}

/// Regression: after a clean stop of all instances and a start, a peer that was not started yet was told as dead.
#[test]
fn a_clean_stop_of_the_fleet_and_a_start_is_told_as_such_and_not_as_a_fault() {
    let (said, beside) = last(&recording([stops(0), starts(600_000)].concat()));
    assert!(said[0].starts_with("At 2026-11-25 03:12:07.413Z Baton stops: 30 flows may go on for 10 s."), "{said:?}");
    assert_eq!(said[1], "It was stopped in order, which is no fault.");
    let all = said.join("\n");
    assert!(all.contains("At 2026-11-25 03:12:07.912Z lb-b is stopped."), "{all}");
    assert!(all.contains("9 m 59 s later, at 2026-11-25 03:22:07.412Z, Baton 1 starts."), "{all}");
    assert_eq!(beside, [""; 0]);
    let (said, _) = last(&recording(stops(0)));
    assert!(said[0].contains("Baton stops: 30 flows"), "{said:?}");
    assert!(said.last().unwrap().contains("The record has no start since."), "{said:?}");
}

#[test]
fn a_fault_after_a_clean_stop_and_a_start_is_told() {
    let lost = (660_000, changed(HealthState::Ready, HealthState::Ejected, Cause::Refused));
    let (said, _) = last(&recording([stops(0), starts(600_000), vec![lost]].concat()));
    assert!(said[0].contains("cp2: ready → ejected"), "{said:?}");
    // A peer that is dead though it had never stopped.
    let (said, _) = last(&recording([stops(0)[..3].to_vec(), starts(600_000)[..4].to_vec()].concat()));
    assert!(said[0].contains("lb-b is considered dead"), "{said:?}");
}

/// Regression: of a peer that lived when the record ended, the coming of its link was told, and what came next.
#[test]
fn a_peer_that_lived_when_the_record_ended_is_told_as_of_then() {
    let held = What::VipHeld { vip: vip(), by: "lb-b".to_owned() };
    let synced = What::PeerSynced { peer: "lb-b".to_owned(), flows: 1204 };
    let events = vec![(0, linked("lb-b")), (20, synced), (300, held), (3_600_000, What::WorkerMoves { worker: 0 })];
    let said = told(&recording(events), Subject::Instance("lb-b".to_owned())).unwrap();
    assert_eq!(
        said,
        [
            "lb-b was alive at 2026-11-25 04:12:07.412Z, where the record ends: at 2026-11-25 03:12:07.412Z this instance is linked with lb-b \
             (Baton 1).",
            "When this instance had got all flows of lb-b, at 2026-11-25 03:12:07.432Z, it had 1,204 flows.",
            "It had the VIP 10.0.0.100, since 2026-11-25 03:12:07.712Z.",
            "The record has no death of lb-b.",
        ]
    );
}
