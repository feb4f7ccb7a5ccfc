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
