//! A second fault before the first is over, and what went before it.

use super::*;

fn vip() -> String {
    "10.0.0.100".to_owned()
}

fn held(by: &str) -> What {
    What::VipHeld { vip: vip(), by: by.to_owned() }
}

fn dead(peer: &str) -> What {
    What::PeerLiveness { peer: peer.to_owned(), liveness: Liveness::Dead, stuck_ms: None }
}

fn failed_over(peer: &str, inherited: usize) -> What {
    What::FailedOver { instance: InstanceName(peer.into()), inherited, reset: 0 }
}

fn started() -> What {
    What::Started { version: "1".to_owned() }
}

/// Regression: a second death was told with the flows of the first one, two minutes before.
#[test]
fn a_second_death_has_none_of_the_flows_of_the_first() {
    let linked = What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() };
    let mut events = vec![(0, failed_over("lb-b", 12)), (800, dead("lb-b")), (60_000, linked)];
    let said = |events: &Vec<_>| told(&recording(events.clone()), Subject::Instance("lb-b".to_owned())).unwrap();
    assert!(said(&events).join(" ").contains("12 flows"), "{:?}", said(&events));
    events.push((120_000, dead("lb-b")));
    let second = said(&events);
    assert!(second[0].starts_with("At 2026-11-25 03:14:07.412Z lb-b"), "{second:?}");
    assert!(!second.join(" ").contains("12 flows"), "{second:?}");
}

/// Regression: a gap of 11 s was told of a peer whose link was cut, though it answered for the VIP all the time.
#[test]
fn a_peer_that_answers_for_the_vip_has_left_no_client_waiting() {
    let answered = What::VipAnswered { by: "02:00:00:00:00:02".to_owned(), address: None };
    let silent = What::PeerLiveness { peer: "lb-b".to_owned(), liveness: Liveness::Silent, stuck_ms: None };
    let said = |answers: bool| {
        let mut events = vec![(0, silent.clone()), (810, failed_over("lb-b", 12)), (820, dead("lb-b"))];
        if answers {
            events.insert(1, (400, answered.clone()));
        }
        told(&recording(events), Subject::Instance("lb-b".to_owned())).unwrap().join(" ")
    };
    assert!(said(false).contains("longest gap"), "{}", said(false));
    assert!(!said(true).contains("longest gap"), "{}", said(true));
}

/// Regression: "It had given the VIP up", of a standby that never had it.
#[test]
fn a_standby_that_was_killed_had_no_vip_to_give_up() {
    let events = vec![(0, started()), (10, held("lb-b")), (60_000, started())];
    let said = told(&recording(events), Subject::Last).unwrap().join(" ");
    assert!(said.contains("It had no VIP when it ended: lb-b had it."), "{said}");
    assert!(!said.contains("given the VIP up"), "{said}");
}

/// Regression: one connection that went to a peer and came back was "an earlier process's flow with this number".
#[test]
fn a_flow_that_moved_and_came_back_is_no_other() {
    let events = vec![(0, ended(1, EndReason::Moved)), (5_000, ended(1, EndReason::ClientClosed))];
    let story = recording(events);
    let said = told(&story, Subject::Flow(FlowId(1))).unwrap().join(" ");
    assert!(!said.contains("Earlier processes"), "{said}");
    assert_eq!(Story::new(&story).moved_away_ms(FlowId(1)), None);
    let away = recording(vec![(0, ended(1, EndReason::Moved))]);
    assert_eq!(Story::new(&away).moved_away_ms(FlowId(1)), Some(AT_MS));
}

/// Regression: "its clients had none", of the last backend that a host lost after it had given the VIP to one that served them.
#[test]
fn clients_of_a_host_without_the_vip_have_the_backends_of_the_one_that_has_it() {
    let lost = |backend: &str| What::BackendChanged {
        frontend: "apiserver".to_owned(),
        backend: backend.to_owned(),
        from: HealthState::Ready,
        to: HealthState::Ejected,
        cause: Cause::TimedOut { after_ms: 500 },
    };
    let given_up = What::VipGivenUp {
        vip: vip(),
        why: "no backend can be used here".to_owned(),
        loss: None,
        late_ms: None,
        cut_off: false,
    };
    let said = |has_vip: bool| {
        let mut events = vec![(0, lost("cp1")), (3_000, lost("cp2")), (3_010, ended(1, EndReason::BackendEjected))];
        if !has_vip {
            events.insert(1, (1_000, given_up.clone()));
        }
        told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap().join(" ")
    };
    assert!(said(true).contains("its clients had none"), "{}", said(true));
    assert!(!said(false).contains("its clients had none"), "{}", said(false));
    assert!(said(false).contains("longest gap that a node can have seen is 12.3 s"), "{}", said(false));
}

/// Regression: "4.0 s later lb-a has the VIP", of a host that was cut off and heard so late that lb-a had it after 0.1 s.
#[test]
fn a_host_that_was_cut_off_tells_when_it_heard_of_the_next_holder() {
    let given_up =
        |cut_off| What::VipGivenUp { vip: vip(), why: "no carrier".to_owned(), loss: None, late_ms: None, cut_off };
    let said = |cut_off| told(&recording(vec![(0, given_up(cut_off)), (4_000, held("lb-a"))]), Subject::Event(0));
    assert!(said(true).unwrap().join(" ").contains("This host heard 4.0 s later that lb-a has the VIP"));
    assert!(said(false).unwrap().join(" ").contains("4.0 s later lb-a has the VIP"));
}

/// Regression: of a failover in two steps the flows that the second one had reset were left out.
#[test]
fn a_failover_in_two_steps_is_told_with_both() {
    let step = |inherited, reset| What::FailedOver { instance: InstanceName("lb-b".into()), inherited, reset };
    let events = vec![(0, dead("lb-b")), (5, step(16, 0)), (400, step(0, 4))];
    for at in 0..3 {
        let (said, figures) = Story::new(&recording(events.clone())).tell(&Subject::Event(at)).unwrap();
        let all = said.join("\n");
        assert!(all.contains("carries on 16 flows of it.") && all.contains("resets 4 flows of it."), "{at}: {all}");
        assert_eq!(figures.flows_ordered, 4, "{at}: {all}");
    }
}

/// Regression: that a host answers for the VIP was said twice.
#[test]
fn that_a_host_answers_for_the_vip_is_said_once() {
    let silent = What::PeerLiveness { peer: "lb-b".to_owned(), liveness: Liveness::Silent, stuck_ms: None };
    let answered = What::VipAnswered { by: "lb-b, 02:00:00:00:00:02".to_owned(), address: None };
    let gained = What::VipGained {
        vip: vip(),
        why: "lb-b had it and was silent".to_owned(),
        gain: None,
        silent: Some("lb-b".to_owned()),
    };
    let events = vec![(0, silent), (400, answered), (810, failed_over("lb-b", 12)), (820, dead("lb-b")), (900, gained)];
    for at in 0..5 {
        let said = told(&recording(events.clone()), Subject::Event(at)).unwrap();
        assert_eq!(said.iter().filter(|it| it.contains("answers for it")).count(), 1, "{at}: {said:#?}");
    }
    let (said, figures) = Story::new(&recording(events)).tell(&Subject::Last).unwrap();
    let all: Vec<_> = said.into_iter().chain(figures.beside).collect();
    assert_eq!(all.iter().filter(|it| it.contains("answers for it")).count(), 1, "{all:#?}");
}
