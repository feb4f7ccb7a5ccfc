//! This instance, a frontend and a node by their names.

use super::*;
use crate::model::nodes::SilenceKind;

fn named(recording: &Recording, name: &str) -> Vec<String> {
    Story::new(recording).named(name).unwrap_or_else(|| panic!("{name} is not explained")).0
}

/// Regression: the name of the instance itself was that of no backend and no peer.
#[test]
fn this_instance_is_explained_with_its_starts_reloads_stalls_and_the_vip() {
    let start = |at| (at, What::Started { version: "1".to_owned() });
    let gained = What::VipGained {
        vip: "10.0.0.100".to_owned(),
        why: "no instance had it".to_owned(),
        gain: None,
        silent: None,
    };
    let mut recording = recording(vec![
        start(0),
        (1_000, What::Reloaded { changes: vec!["fall = 3".to_owned()] }),
        (2_000, What::WorkerStuck { worker: 1, for_ms: 2_000 }),
        (3_000, What::WorkerMoves { worker: 1 }),
        start(10_000),
        (11_000, gained),
    ]);
    for owner in &mut recording.owners {
        (owner.instance, owner.host) = (Some("lb-a".to_owned()), "host-a".to_owned());
    }
    let said = named(&recording, "lb-a");
    assert!(
        said[0].starts_with("lb-a is this instance: its process (pid 1), began at 2026-11-25 03:12:17.412Z"),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("The record has 2 starts of it, 1 time after a crash or a kill, the last at "),
        "{said:?}"
    );
    assert!(said[2].starts_with("1 reload, the last at 2026-11-25 03:12:08.412Z: Baton reloaded"), "{said:?}");
    assert!(
        said[3].starts_with("1 stall, the last at ") && said[3].ends_with("; 1.0 s later worker 1 moves again."),
        "{said:?}"
    );
    assert!(said[4].starts_with("1 move of the VIP, the last at 2026-11-25 03:12:18.412Z: this host has"), "{said:?}");
    assert_eq!(said[5], "The record has no upgrade.");
    assert_eq!(named(&recording, "host-a")[1..], said[1..]);
    assert_eq!(Story::new(&recording).named("lb-b").map(|it| it.0), None);
}

/// Regression: the name of a frontend was that of no backend and no peer.
#[test]
fn a_frontend_is_explained_with_its_backends_and_with_the_ends_of_its_flows() {
    let refused = What::RefusalsBegun { frontend: "apiserver".to_owned(), reason: EndReason::LimitFrontend };
    let recording = recording(vec![
        (0, changed(HealthState::Ready, HealthState::Ejected, Cause::Refused)),
        (10, ended(1, EndReason::BackendEjected)),
        (20, ended(2, EndReason::ClientClosed)),
        (5_000, changed(HealthState::Ejected, HealthState::Ready, Cause::Passed)),
        (6_000, refused),
    ]);
    let said = named(&recording, "apiserver");
    assert!(said[0].ends_with("the frontend apiserver had 90 flows: cp1 60 (ready), cp2 30 (ready)."), "{said:?}");
    assert!(said[1].contains("has 2 changes of its backends' states") && said[1].contains("probes pass"), "{said:?}");
    assert!(said[2].starts_with("Before that, at ") && said[2].contains("ready → ejected"), "{said:?}");
    assert!(said[3].contains("max_connections"), "{said:?}");
    assert_eq!(said[4], "In the last 6.4 s of the record 2 flows ended (backend_ejected 1, client_closed 1).");
}

/// Regression: the name of a node was that of no backend and no peer.
#[test]
fn a_node_is_explained_with_its_connections_and_its_silences() {
    let mut end = ended(7, EndReason::ClientReset);
    let What::FlowEnded { node, .. } = &mut end else { unreachable!() };
    *node = Some("worker-7".to_owned());
    let recording = recording(vec![
        (0, end),
        (10_000, silent(&["worker-7"], SilenceKind::NoConnection, 10_000)),
        (50_000, What::NodesBack { nodes: vec!["worker-7".to_owned()], more: 0, for_ms: 50_000 }),
        (60_000, ended(8, EndReason::ClientClosed)),
    ]);
    let said = named(&recording, "worker-7");
    assert!(said[0].starts_with("The record has 1 flow of worker-7 (10.0.0.31) that ended, from "), "{said:?}");
    assert!(said[0].ends_with(": client_reset 1; with apiserver/cp2 1."), "{said:?}");
    assert!(said[1].starts_with("Flow 7 of 10.0.0.31:51234 (worker-7) to apiserver/cp2 ended at "), "{said:?}");
    assert!(
        said[3].starts_with("It was told 1 time to be silent, the last at ") && said[3].contains("event:1"),
        "{said:?}"
    );
    assert!(said[4].contains("after 50 s, longer than cluster.node_monitor_grace_period = 40 s"), "{said:?}");
    assert!(said[5].contains("`baton nodes`"), "{said:?}");
    let of_address = named(&recording, "10.0.0.31");
    assert!(of_address[0].contains("client_closed 1, client_reset 1"), "{of_address:?}");
    assert_eq!(Story::new(&recording).named("worker-8").map(|it| it.0), None);
}
