//! What is told at a host whose VIP another one has, of nodes that were silent, and of a drain that runs.

use super::*;
use crate::model::fleet::vip::VipLoss;
use crate::model::nodes::SilenceKind;

fn vip() -> String {
    "10.0.0.100".to_owned()
}

fn liveness(liveness: Liveness) -> What {
    What::PeerLiveness { peer: "lb-b".to_owned(), liveness, stuck_ms: None }
}

fn given_up() -> What {
    What::VipGivenUp {
        vip: vip(),
        why: "the interface has no carrier".to_owned(),
        loss: Some(VipLoss::NoCarrier),
        late_ms: None,
        cut_off: true,
    }
}

fn of_cp2() -> What {
    changed(HealthState::Ready, HealthState::Ejected, Cause::TimedOut { after_ms: 500 })
}

/// Regression: of the VIP the third instance told nothing, and the new owner not what had kept it from taking it.
#[test]
fn the_death_of_the_vips_owner_names_who_has_the_vip_now_and_what_came_between() {
    let dies = [
        (0, liveness(Liveness::Silent)),
        (810, liveness(Liveness::Dead)),
        (815, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 40, reset: 0 }),
    ];
    let of = |more: Vec<(u64, What)>| {
        let mut events: Vec<_> = dies.iter().cloned().chain(more).collect();
        events.sort_by_key(|(at_ms, _)| *at_ms);
        told(&recording(events), Subject::Last).unwrap()
    };
    let third = of(vec![(420, What::VipHeld { vip: vip(), by: "lb-c".to_owned() })]);
    let moments: Vec<_> = third.iter().filter_map(|it| it.get(..27)).filter(|it| it.starts_with("At 2")).collect();
    assert!(moments.is_sorted() && moments.len() == 4, "{third:?}");
    assert!(third[1].ends_with("lb-c has the VIP 10.0.0.100 now."), "{third:?}");
    let gained =
        What::VipGained { vip: vip(), why: "lb-b had it".to_owned(), gain: None, silent: Some("lb-b".to_owned()) };
    let answers = What::VipAnswered { by: "02:00:00:00:00:09".to_owned(), address: None };
    let new_owner = of(vec![(700, answers), (2_900, gained)]);
    assert!(new_owner[0].contains("another host (02:00:00:00:00:09) answers for it"), "{new_owner:?}");
    assert!(new_owner.iter().any(|it| it.contains("this host has the VIP 10.0.0.100 now")), "{new_owner:?}");
}

/// Regression: the old owner said that another host might have the VIP, and not which had it.
#[test]
fn whoever_gives_the_vip_up_says_who_has_it_then() {
    let held = What::VipHeld { vip: vip(), by: "lb-b".to_owned() };
    let said = told(&recording(vec![(0, given_up()), (640, held)]), Subject::Event(0)).unwrap();
    assert!(said[1].starts_with("It had 90 flows then: those that were offloaded go on"), "{said:?}");
    assert!(said[2].starts_with("A host that is so for 250 ms gives it up"), "{said:?}");
    assert_eq!(said[4..], ["This host heard 640 ms later that lb-b has the VIP 10.0.0.100 now."]);
}

/// Regression: a host that was cut off told an outage of a backend, which its clients had at another host by then.
#[test]
fn a_host_that_was_cut_off_names_that_and_not_the_backends_and_peers_it_no_longer_reached() {
    let events =
        vec![(0, given_up()), (250, liveness(Liveness::Silent)), (1_000, liveness(Liveness::Dead)), (1_500, of_cp2())];
    let recording = recording(events);
    let said = told(&recording, Subject::Last).unwrap();
    assert!(said[0].contains("given up the VIP 10.0.0.100: the interface has no carrier"), "{said:?}");
    let (said, figures) = Story::new(&recording).tell(&Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said.iter().any(|it| it.starts_with("This host was cut off and does not have the VIP")), "{said:?}");
    assert!(!said.iter().any(|it| it.contains("longest gap")) && figures.longest_gap_ms.is_none(), "{said:?}");
}

/// Regression: a standby whose cable was pulled told that the owner of the VIP was dead, and a gap of 11 s.
#[test]
fn a_standby_that_was_cut_off_names_that_and_not_the_death_of_a_peer_that_lives() {
    let cut_off = What::VipHostCutOff { why: "the interface has no carrier".to_owned(), cause: None };
    let failed_over = What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 20, reset: 0 };
    let recording = recording(vec![
        (250, cut_off),
        (260, liveness(Liveness::Silent)),
        (1_000, liveness(Liveness::Dead)),
        (1_001, failed_over),
    ]);
    let said = told(&recording, Subject::Last).unwrap();
    assert!(said[0].contains("this host is cut off from its peers, and does not have the VIP"), "{said:?}");
    let of_peer = Subject::Instance("lb-b".to_owned());
    let (said, figures) = Story::new(&recording).tell(&of_peer).unwrap();
    assert!(said[1].starts_with("This host itself was cut off then"), "{said:?}");
    assert!(!said.iter().any(|it| it.contains("longest gap")) && figures.longest_gap_ms.is_none(), "{said:?}");
}

/// Regression: a standby told a gap of 13 s, though it had neither the VIP nor a flow.
#[test]
fn a_standby_without_a_flow_tells_no_gap_of_its_backends() {
    let held = || What::VipHeld { vip: vip(), by: "lb-b".to_owned() };
    let mut idle = recording(vec![(0, held()), (1_500, of_cp2())]);
    let Recorded::Sample(sample) = &mut idle.records[0].what else { unreachable!() };
    sample.frontends[0].flows = 0;
    sample.backends.iter_mut().for_each(|it| it.flows = 0);
    let said = told(&idle, Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said.iter().any(|it| it.starts_with("This host had neither the VIP nor a flow")), "{said:?}");
    assert!(!said.iter().any(|it| it.contains("longest gap")), "{said:?}");
    assert_eq!(told(&idle, Subject::Last), Some(said), "it is no fault of this host, but there is none beside it");
    let back = changed(HealthState::Ejected, HealthState::Ready, Cause::Passed);
    let event = Event { number: 2, at_unix_ms: AT_MS + 9_000, what: back };
    idle.records.push(TimedRecord { at_unix_ms: event.at_unix_ms, owner: 0, what: Recorded::Event(event) });
    assert_eq!(told(&idle, Subject::Last), None, "it is over");
    // One that has flows still loses them.
    let busy = recording(vec![(0, held()), (1_500, of_cp2())]);
    assert!(told(&busy, Subject::Last).unwrap()[0].contains("cp2: ready → ejected"));
}

/// Regression: of a node that was away for 53 s nobody was told that it came back, nor that its grace had passed.
#[test]
fn a_silence_is_told_with_its_length_beside_the_grace_and_its_end_by_the_same_words() {
    let silent = silent(&["worker-5"], SilenceKind::NoByte, 20_000);
    let back = |for_ms| What::NodesBack { nodes: vec!["worker-5".to_owned()], more: 0, for_ms };
    let other = What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() };
    let recording = recording(vec![(0, silent), (3_800, other), (32_800, back(52_800))]);
    for subject in [Subject::Event(0), Subject::Event(2), Subject::Last] {
        let (said, figures) = Story::new(&recording).tell(&subject).unwrap();
        let last = said.last().unwrap();
        assert!(last.contains(", after 52 s, longer than cluster.node_monitor_grace_period = 40 s"), "{said:?}");
        assert!(!said.iter().any(|it| it.contains("linked with lb-b")), "{said:?}");
        assert_eq!(figures.lasted_ms, Some(52_800));
    }
}

/// Regression: the resets of another backend were told as the cause, and a flow that had moved as the last one.
#[test]
fn a_node_s_silence_is_not_put_down_to_a_backend_that_it_was_not_connected_to() {
    let node = Some("worker-8".to_owned());
    let of_cp1 = |flow, reason| {
        let mut what = ended(flow, reason);
        let What::FlowEnded { backend, node: its, .. } = &mut what else { unreachable!() };
        (*backend, *its) = (Some("cp1".to_owned()), node.clone());
        what
    };
    let silent = silent(&["worker-8"], SilenceKind::NoConnection, 10_000);
    let recording = recording(vec![
        (0, of_cp2()),
        (8_000, of_cp1(1, EndReason::ClientClosed)),
        (9_000, of_cp1(2, EndReason::Moved)),
        (18_000, silent),
    ]);
    let said = told(&recording, Subject::Event(3)).unwrap();
    assert!(!said.iter().any(|it| it.contains("cp2")), "{said:?}");
    assert!(said[1].starts_with("The last flow of worker-8 ended 10 s before, with apiserver/cp1"), "{said:?}");
}

/// Regression: while a drain ran, all that was said of its flows was that Baton had reset none.
#[test]
fn a_drain_that_runs_is_told_with_what_is_left_and_until_when() {
    let drains = changed(HealthState::Ready, HealthState::Draining, Cause::OrderedDrain);
    let said = told(&recording(vec![(0, drains.clone())]), Subject::Backend("cp2".to_owned())).unwrap();
    let left = said.iter().find(|it| it.starts_with("It still has 30 flows")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(left.contains("drain_timeout = 2 m 30 s") && left.contains("03:14:37.412Z"), "{left}");
    // Regression: a reload that changed it was not counted.
    let mut reloaded = recording(vec![(0, drains.clone()), (1_000, What::Reloaded { changes: Vec::new() })]);
    let mut owner = reloaded.owners[0].clone();
    owner.frontends[0].drain_timeout_ms = 20_000;
    reloaded.owners.push(owner);
    reloaded.records.last_mut().unwrap().owner = 1;
    let said = told(&reloaded, Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said.iter().any(|it| it.contains("drain_timeout = 20 s") && it.contains("03:12:27.412Z")), "{said:?}");
    let later = What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() };
    let over = told(&recording(vec![(0, drains), (151_000, later)]), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(!over.iter().any(|it| it.contains("It still has")), "{over:?}");
}

/// Regression: a moment's silence since then hid the death of a peer.
#[test]
fn a_peer_is_explained_by_its_death_though_it_was_silent_for_a_moment_since() {
    let recording = recording(vec![
        (0, liveness(Liveness::Silent)),
        (810, liveness(Liveness::Dead)),
        (815, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 40, reset: 0 }),
        (40_000, What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() }),
        (90_000, liveness(Liveness::Silent)),
        (90_200, liveness(Liveness::Alive)),
    ]);
    let said = told(&recording, Subject::Instance("lb-b".to_owned())).unwrap();
    assert!(said.iter().any(|it| it.contains("carries on 40 flows")), "{said:?}");
    assert!(said.last().unwrap().contains("this instance is linked with lb-b"), "{said:?}");
}

/// Regression: a standby told a fault of an hour ago, and nothing of a backend that was away now.
#[test]
fn a_standby_tells_of_a_backend_that_is_away_now_beside_an_older_fault_of_its_own() {
    let held = What::VipHeld { vip: vip(), by: "lb-b".to_owned() };
    let refused = What::ReloadRefused { errors: vec!["line 3".to_owned()] };
    let mut events = vec![(0, held), (10, refused), (3_600_000, of_cp2())];
    let idle = |events: &Vec<_>| {
        let mut idle = recording(events.clone());
        let Recorded::Sample(sample) = &mut idle.records[0].what else { unreachable!() };
        sample.frontends[0].flows = 0;
        last(&idle)
    };
    let (said, beside) = idle(&events);
    assert!(said[0].contains("line 3"), "{said:?}");
    let [away] = &beside[..] else { panic!("{beside:?}") };
    assert!(away.starts_with("2026-11-25 04:12:07.412Z apiserver/cp2: ready → ejected"), "{away}");
    assert!(away.ends_with("; still so; felt by no client of this host (baton explain event:2)"), "{away}");
    events.push((3_700_000, changed(HealthState::Ejected, HealthState::Ready, Cause::Passed)));
    assert_eq!(idle(&events).1, [""; 0]);
}

/// Regression: the evacuation of this host, which the death of its only peer called off, was told as the fault, and not that death.
#[test]
fn a_death_that_calls_an_evacuation_off_is_the_fault() {
    let called_off = What::EvacuationCancelled { why: Some("lb-b is dead".to_owned()) };
    let events = vec![(0, liveness(Liveness::Dead)), (40, called_off.clone())];
    let said = told(&recording(events), Subject::Last).unwrap();
    assert!(said[0].contains("lb-b is considered dead"), "{said:?}");
    let alone = told(&recording(vec![(0, liveness(Liveness::Dead)), (60_000, called_off)]), Subject::Last).unwrap();
    assert!(alone[0].contains("the evacuation failed"), "{alone:?}");
}

/// Regression: "the last flow of worker-7 ended 5 m 54 s before" of a node without a connection for 10 s: its flows were at another host by then.
#[test]
fn a_flow_that_ended_long_before_a_silence_is_not_its_last_one() {
    let silent = |for_ms| silent(&["worker-7"], SilenceKind::NoConnection, for_ms);
    let mut end = ended(1, EndReason::ClientClosed);
    let What::FlowEnded { node, .. } = &mut end else { unreachable!() };
    *node = Some("worker-7".into());
    let said = |at_ms, for_ms| {
        let recording = recording(vec![(0, end.clone()), (at_ms, silent(for_ms))]);
        told(&recording, Subject::Last).unwrap().join(" ")
    };
    assert!(said(10_000, 10_000).contains("The last flow of worker-7 ended 10 s before"), "{}", said(10_000, 10_000));
    assert!(!said(354_000, 10_000).contains("The last flow"), "{}", said(354_000, 10_000));
}

/// Regression: of a peer whose worker was stuck before it died the gap began with its silence, and of flows that were not here nothing was said.
#[test]
fn the_gap_of_a_peer_that_hung_begins_when_its_worker_was_stuck_and_its_other_flows_are_told() {
    let silent = |stuck_ms| What::PeerLiveness { peer: "lb-b".to_owned(), liveness: Liveness::Silent, stuck_ms };
    let dies = |stuck_ms, known| {
        let events = vec![
            (0, What::PeerSynced { peer: "lb-b".to_owned(), flows: known }),
            (60_000, silent(stuck_ms)),
            (60_800, liveness(Liveness::Dead)),
            (60_810, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 40, reset: 1 }),
            (
                60_830,
                What::VipGained { vip: vip(), why: "lb-b had it and was silent".to_owned(), gain: None, silent: None },
            ),
            (90_000, What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() }),
        ];
        let (said, figures) = Story::new(&recording(events)).tell(&Subject::Last).unwrap();
        assert!(said.len() <= SENTENCES_MAX, "{said:?}");
        (said, figures)
    };
    let (said, figures) = dies(Some(4_200), 60);
    assert!(
        said[0].ends_with("lb-b is silent; by then one of its workers had been stuck for 4.2 s, as it had said."),
        "{said:?}"
    );
    let gap = "The longest gap that a node can have seen is 15.1 s: 5.1 s from the time at which a worker of lb-b was stuck to this";
    assert!(said.iter().any(|it| it.starts_with(gap)), "{said:?}");
    assert_eq!(figures.longest_gap_ms, Some(15_030));
    let rest = "it had 60 flows: of the 19 beyond these no end is recorded here";
    assert!(said.iter().any(|it| it.contains(rest)), "{said:?}");
    // Of one that said nothing, its own record knows more.
    let (said, _) = dies(None, 3);
    assert!(said.iter().any(|it| it.contains("1.1 s from lb-b's last beat to this")), "{said:?}");
}

/// Regression: a VIP that came from a peer that lived on was told without a word of that peer's flows.
#[test]
fn what_became_of_the_flows_of_a_peer_that_was_silent_for_a_moment_is_told_as_far_as_it_is_known() {
    let gained = What::VipGained {
        vip: vip(),
        why: "lb-b had it and was silent".to_owned(),
        gain: None,
        silent: Some("lb-b".to_owned()),
    };
    let claimed = What::FlowsClaimed { instance: InstanceName("lb-b".into()), flows: 7 };
    let of = |events: Vec<(u64, What)>| {
        let silent = vec![(0, liveness(Liveness::Silent)), (300, gained.clone())];
        told(&recording(silent.into_iter().chain(events).collect()), Subject::Last).unwrap()
    };
    let said = of(vec![(900, claimed)]);
    assert!(
        said.iter().any(|it| it.starts_with("7 flows of lb-b came here with their packets and went on;")),
        "{said:?}"
    );
    let said = of(Vec::new());
    assert!(said.iter().any(|it| it.starts_with("Which flows of lb-b came here is not recorded")), "{said:?}");
    assert!(said.last().unwrap().starts_with("Whether workers of lb-b were stuck before its last beat"), "{said:?}");
}
