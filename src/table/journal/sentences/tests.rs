//! The sentences of events, and their log lines.

use serde_json::Value;

use super::*;
use crate::model::end_reason::EndReason;
use crate::model::fleet::{InstanceName, Liveness};
use crate::model::health::{Cause, HealthState};
use crate::model::ids::FlowId;
use crate::model::nodes::{NodeRefusal, SilenceKind};
use crate::table::journal::Journal;
use crate::table::journal::testing::logged;

/// The JSON log lines that recording `events` writes.
fn recorded(events: &[What]) -> Vec<Value> {
    let journal = Journal::default();
    logged(|| events.iter().for_each(|event| journal.record(event.clone())))
}

fn ended() -> What {
    What::FlowEnded {
        flow: FlowId(7),
        frontend: "apiserver".to_owned(),
        backend: Some("cp1".to_owned()),
        backend_address: Some("10.0.0.11:6443".parse().unwrap()),
        source: Some("10.0.0.100:51234".parse().unwrap()),
        client: "192.0.2.7:1234".parse().unwrap(),
        node: Some("worker-7".to_owned()),
        reason: EndReason::BackendReset,
        duration_ms: 5,
        connect_us: 300,
        bytes_to_backend: 10,
        bytes_to_client: 2_000,
        error: Some("reset".to_owned()),
    }
}

#[test]
fn an_event_is_logged_in_the_words_that_the_command_line_and_the_page_use() {
    let (frontend, backend) = ("apiserver".to_owned(), "cp1".to_owned());
    let instance = InstanceName("lb-a".into());
    let events = [
        What::BackendChanged {
            frontend: frontend.clone(),
            backend: backend.clone(),
            from: HealthState::Ready,
            to: HealthState::Ejected,
            cause: Cause::NotProbed,
        },
        What::FlowsOrdered { frontend, backend, flows: 1_200, reason: EndReason::BackendEjected },
        What::WorkerMoves { worker: 1 },
        What::VipShared { address: "10.0.0.100".parse().unwrap(), by: "02:00:00:00:00:01".to_owned() },
        What::PeerLiveness { peer: "lb-b".to_owned(), liveness: Liveness::Dead, stuck_ms: None },
        What::FailedOver { instance: instance.clone(), inherited: 3, reset: 1 },
        What::EvacuationBegun { to: Some(instance), flows: 2 },
        What::Evacuated { flows_reset: 0, took_ms: 900 },
        What::OffloadResumed {},
    ];
    let lines = recorded(&events);
    assert_eq!(lines.len(), events.len(), "{lines:?}");
    for (event, line) in events.iter().zip(&lines) {
        assert_eq!(line["message"], event.sentence());
        let level = match event.weight() {
            Weight::Bad => "ERROR",
            Weight::Notice => "WARN",
            Weight::Plain | Weight::Good => "INFO",
        };
        assert_eq!((&line["level"], &line["target"]), (&level.into(), &"baton::event".into()), "{line}");
        let Value::Object(fields) = serde_json::to_value(event).unwrap() else { panic!("{event:?}") };
        for (name, value) in fields.iter().filter(|(name, _)| !["event", "cause"].contains(&name.as_str())) {
            assert_eq!(&line[name], value, "{name} of {line}");
        }
    }
    assert_eq!(lines[0]["message"], "apiserver/cp1: ready → ejected: not probed yet");
    assert_eq!(lines[0]["cause"], "not probed yet");
    assert_eq!(lines[1]["message"], "apiserver/cp1: Baton ends 1,200 flows because Baton found this backend dead");
}

#[test]
fn flows_that_have_ended_are_logged_by_whoever_records_them_if_at_all() {
    assert_eq!(recorded(&[ended()]), [Value::Null; 0]);
    let words = "flow 7 192.0.2.7:1234 (worker-7) → apiserver/cp1: backend_reset after 5 ms, 10 B to the backend, \
                 2.0 kB to the client, connected in 300 µs (reset)";
    assert_eq!(ended().sentence(), words);
}

#[test]
fn silent_nodes_are_named_up_to_a_number() {
    let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let one = What::NodesSilent {
        nodes: nodes(&["worker-17"]),
        more: 0,
        why: SilenceKind::NoConnection,
        for_ms: 38_000,
        refused: None,
    };
    assert_eq!(one.sentence(), "worker-17 has had no connection for 38 s");
    let refused = |nodes| What::NodesSilent {
        nodes,
        more: 0,
        why: SilenceKind::NoConnection,
        for_ms: 13_000,
        refused: Some(NodeRefusal { reason: EndReason::Denied, times: 30 }),
    };
    let said = "worker-3 has had no connection for 13 s: Baton refuses it (denied: allow, deny), 30 times since";
    assert_eq!(refused(nodes(&["worker-3"])).sentence(), said);
    assert!(refused(nodes(&["a", "b"])).sentence().contains(": Baton refuses them (denied"));
    let many = What::NodesSilent {
        nodes: nodes(&["a", "b"]),
        more: 40,
        why: SilenceKind::NoByte,
        for_ms: 20_000,
        refused: None,
    };
    assert_eq!(many.sentence(), "42 nodes (a, b and 40 more) have sent no byte for 20 s");
    let back = What::NodesBack { nodes: nodes(&["a", "b"]), more: 0, for_ms: 61_000 };
    assert_eq!(back.sentence(), "2 nodes (a, b) are heard again after 1 m 01 s");
}

#[test]
fn offload_that_is_shut_as_configured_is_nothing_to_look_at() {
    let shut = |why: &str, unwatched| What::OffloadShut { why: why.to_owned(), unwatched }.weight();
    assert_eq!(shut(OFF, false), Weight::Plain);
    assert_eq!(shut("no CAP_BPF", false), Weight::Notice);
    assert_eq!(shut("no process watches 12 flows", true), Weight::Bad);
}

/// Regression: after the death of a peer it said "carries on 0 flows of it", of a peer of which it carried on 16.
#[test]
fn a_failover_in_two_steps_says_of_each_what_is_new() {
    let said =
        |inherited, reset| What::FailedOver { instance: InstanceName("lb-b".into()), inherited, reset }.sentence();
    assert_eq!(said(16, 0), "lb-b is dead: this instance carries on 16 flows of it");
    assert_eq!(said(0, 4), "lb-b is dead: this instance resets 4 flows of it");
    assert_eq!(said(16, 4), "lb-b is dead: this instance carries on 16 flows of it and resets 4 others");
    assert_eq!(said(0, 0), "lb-b is dead: this instance carries on none of its flows");
}

/// Regression: the event comes ten seconds after the last refusal, and did not say when that was.
#[test]
fn the_end_of_refusals_is_told_with_the_time_of_the_last_one_and_an_older_record_without() {
    let old = r#"{"event":"refusals_over","frontend":"api","reason":"no_backend","refused":3,"lasted_ms":250}"#;
    let old: What = serde_json::from_str(old).unwrap();
    assert!(
        old.sentence().starts_with("api: Baton has reset no new connection for 10 s; before that"),
        "{}",
        old.sentence()
    );
    let What::RefusalsOver { frontend, reason, refused, lasted_ms, .. } = old else { panic!() };
    let last_unix_ms = Some(1_764_040_000_000);
    let said = What::RefusalsOver { frontend, reason, refused, lasted_ms, last_unix_ms }.sentence();
    assert!(said.starts_with("api: Baton has reset no new connection since 03:06:40Z; before that"), "{said}");
}

#[test]
fn moves_of_the_vip_that_an_earlier_release_recorded_are_read() {
    let gained = r#"{"event":"vip_gained","vip":"10.0.0.100","why":"lb-b had it and is silent","silent":"lb-b"}"#;
    let given_up = r#"{"event":"vip_given_up","vip":"10.0.0.100","why":"lb-b took it later"}"#;
    let answered = r#"{"event":"vip_answered","by":"02:00:00:00:00:09"}"#;
    let [gained, given_up, answered] = [gained, given_up, answered].map(|it| serde_json::from_str::<What>(it).unwrap());
    assert!(matches!(&gained, What::VipGained { gain: None, .. }) && gained.sentence().contains("is silent"));
    assert!(matches!(&given_up, What::VipGivenUp { loss: None, .. }) && given_up.sentence().contains("took it later"));
    assert!(answered.sentence().contains("another host (02:00:00:00:00:09) answers for it"), "{}", answered.sentence());
}

/// Regression: pins that somebody had removed were told as another process that detached the program, or by no event.
#[test]
fn removed_pins_are_told_with_what_they_cost() {
    let said = |interfaces: &[&str], unpinned: Option<&str>| {
        let interfaces = interfaces.iter().map(|it| (*it).to_owned()).collect();
        What::ProgramReattached { interfaces, unpinned: unpinned.map(str::to_owned) }.sentence()
    };
    assert!(said(&["eth0"], None).starts_with("another process detached the BPF program from eth0"));
    assert!(
        said(&["eth0"], Some("/p"))
            .contains("from /p, which detached it from eth0; Baton pinned and attached it again")
    );
    assert!(said(&[], Some("/p")).contains("Baton pinned it again, and no flow was interrupted"));
}
