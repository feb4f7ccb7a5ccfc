//! Entries that no list names.

use ::baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use ::baton::model::ends::Ends;
use ::baton::model::ids::FlowId;
use ::baton::offload::entry::Key;

use super::Scene;
use crate::lab::*;

/// After an hour of faults two entries stayed in the map of a host at rest.
#[test]
fn entries_that_nobody_knows_go_and_those_of_flows_stay() {
    let Some(scene) = Scene::new("leftovers") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    for round in 0..10 {
        conn.echo(round, 100);
    }
    baton.wait_offloaded(1);
    let entries = || {
        let status = ::baton::offload::program::status(&scene.pinned.directory).expect("it is pinned");
        status.and_then(|status| status.entries).expect("of this layout")
    };
    assert_eq!(entries(), 2);
    let ends = Ends {
        client: ClientAddr::new("192.0.2.1:40000".parse().unwrap()),
        vip: VipAddr::new(lab.lb.v4(6443)),
        local: LocalAddr::new("192.0.2.2:33333".parse().unwrap()),
        backend: BackendAddr::new("192.0.2.3:6443".parse().unwrap()),
    };
    lab.lb.enter(|| {
        let program = scene.pinned.open(&[]).unwrap();
        program.witness(FlowId(1 << 40), &ends, false).unwrap();
        program.refuse(&Key { from: "192.0.2.4:1".parse().unwrap(), to: lab.lb.v4(6443) }).unwrap();
    });
    assert_eq!(entries(), 5);
    eventually(LONG * 4, "only the flow's are left", || entries() == 2);
    conn.echo(50, 1000);
    drop(conn);
    baton.wait_ended("client_closed", 1);
    eventually(LONG, "nothing is left", || entries() == 0);
    baton.rests();
}
