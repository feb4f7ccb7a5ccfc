//! Row 44: a map without room for all of the fleet's flows.

use super::*;

#[test]
fn flows_that_a_peers_map_has_no_room_for_are_known_and_their_idle_clients_reset_when_the_owner_dies() {
    let test = "flows_that_a_peers_map_has_no_room_for_are_known";
    let Some(scene) = Scene::new(test, 2) else { return };
    let small = |number, config: Config| if number == 1 { config.offload("max_flows", 3) } else { config };
    let Some(fleet) = Fleet::within(scene, VIP, test, 2, Flows::Offload, small) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(10);
    fleet.wait_known(10, 10);
    let no_standby = || fleet.heir().baton.metric("baton_peer_flows_not_held", &[]);
    eventually(LONG, "what finds no room is counted", || no_standby() == 7.0);
    fleet.heir().baton.wait_log(&["the map has no room for flows of other instances"]);
    let (host, config) = (&fleet.heir().host, fleet.heir().baton.paths.config.display());
    let said = host.run(&format!("{} check -c {config} --host || true", crate::lab::baton::BINARY));
    let fault = "fault    offload.max_flows: the fleet has 10 flows now, and the map of this host has room for 3";
    assert!(said.contains(fault) && said.contains("fix: offload.max_flows = 32"), "{said}");
    // Room that comes free is used.
    conns.truncate(5);
    fleet.wait_known(5, 5);
    eventually(LONG, "as many as fit are held", || no_standby() == 2.0);

    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    fleet.take(fleet.heir());
    // Held flows go on at once; the others are reset where the address is.
    let sum = |what: &str| {
        let events = fleet.heir().baton.events_of("failed_over");
        events.iter().filter_map(|event| event[what].as_u64()).sum::<u64>()
    };
    eventually(LONG, "three go on and two are reset", || (sum("inherited"), sum("reset")) == (3, 2));
    // None of them sends anything.
    let watch = Stopwatch::start();
    let mut reset = 0;
    while reset < 2 && watch.elapsed() < LONG {
        let before = conns.len();
        conns.retain_mut(|conn| conn.end(ms(50)) == End::Open);
        reset += before - conns.len();
    }
    println!("row 44: {reset} idle clients of flows that were not held reset after {:?}", watch.elapsed());
    assert_eq!((reset, conns.len()), (2, 3));
    conns.iter_mut().for_each(|conn| conn.echo(8, 1000));
}
