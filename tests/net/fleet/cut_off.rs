//! An instance that loses its own network is not its backends' judge, and nobody's heir.

use super::takeover::{Fleet, Flows};
use super::*;

/// Every backend is taken for dead there, and what follows has had its time.
fn wait_ejected(baton: &Baton) {
    for backend in ["b1", "b2"] {
        baton.wait_standing(backend, "ejected", LONG);
    }
    wait::throughout(secs(2), "no graduated flow is given up", || {
        baton.ended().keys().all(|reason| reason != "backend_ejected")
    });
}

#[test]
fn graduated_flows_are_not_reset_by_the_host_that_lost_its_network_while_they_went_on_elsewhere() {
    let test = "graduated_flows_are_not_reset_by_the_host_that_lost_its_network";
    let Some(fleet) = Fleet::new(test, 2, Flows::Graduate, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.graduated_clients(40);
    fleet.wait_known(40, 40);
    let owner = fleet.owner();
    owner.host.link_down();
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(6, 300));
    fleet.heir().baton.wait_graduated(40);
    wait_ejected(&owner.baton);
    assert_eq!(owner.baton.flow_count(), 40);
    fleet.let_go(owner);
    owner.host.link_up();
    owner.baton.wait_ended("moved", 40);
    // The other one only showed that the VIP is served.
    assert_eq!(owner.baton.ended(), [("client_closed".to_owned(), 1), ("moved".to_owned(), 40)].into());
    owner.wait_sees("lb-b", "graduated", 40);
    assert_eq!(fleet.heir().baton.flow_count(), 40);
    conns.iter_mut().for_each(|conn| conn.echo(7, 30_000));
    // It judges again.
    for backend in ["b1", "b2"] {
        owner.baton.wait_standing(backend, "ready", LONG);
    }
}

#[test]
fn a_lone_instance_resets_nobody_because_its_link_was_down_for_seconds() {
    for flows in [Flows::Graduate, Flows::Kept] {
        let test = "a_lone_instance_resets_nobody_because_its_link_was_down_for_seconds";
        let Some(lab) = Lab::new(test) else { return };
        let _servers = lab.echo_everywhere();
        let Some(pins) = Pinned::unused(test) else { return };
        let mut config = lab.config().only(&["b1", "b2"]).graduating(&pins.directory);
        if flows == Flows::Kept {
            config = config.path("after_round_trips", 1000).path("after", "1h");
        }
        let baton = lab.start(&config);
        let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
        for round in 0..5 {
            conns.iter_mut().for_each(|conn| conn.echo(round, 200));
        }
        baton.wait_graduated(if flows == Flows::Graduate { 20 } else { 0 });
        lab.lb.link_down();
        wait_ejected(&baton);
        assert_eq!(baton.flow_count(), 20);
        lab.lb.link_up();
        conns.iter_mut().for_each(|conn| conn.echo(6, 3000));
        assert_eq!(baton.ended().len(), 0, "{:?}", baton.ended());
        baton.wait_standing("b1", "ready", LONG);
        lab.client.connect(lab.lb.v4(6443)).echo(7, 100);
    }
}

/// While its only peer is dead, so that it cannot be sure of its own network at once.
#[test]
fn a_backend_that_really_died_is_told_from_a_lost_network_by_who_else_is_heard() {
    let test = "a_backend_that_really_died_is_told_from_a_lost_network";
    let Some(fleet) = Fleet::new(test, 2, Flows::Graduate, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.graduated_clients(20);
    fleet.heir().host.link_down();
    fleet.owner().wait_sees("lb-b", "pulse", "dead");
    let watch = Stopwatch::start();
    fleet.scene.lab.b1.link_down();
    // Idle all the while.
    eventually(LONG, "the flows of the dead one are reset", || {
        fleet.owner().baton.ended().get("backend_ejected").is_some_and(|count| *count > 0)
            && fleet.owner().baton.flows_of("b1") == 0
    });
    println!("reset after {:?}", watch.elapsed());
    let ended = fleet.owner().baton.ended()["backend_ejected"];
    let reset = conns.iter_mut().filter_map(|conn| (conn.end(ms(100)) == End::Rst).then_some(())).count();
    assert_eq!(reset as u64, ended);
    assert!(ended < 20, "those of the other go on");
    assert_eq!(fleet.owner().baton.flow_count(), 20 - ended);
}

#[test]
fn when_all_backends_and_the_peer_die_idle_clients_are_reset_because_they_can_still_be_heard() {
    let test = "when_all_backends_and_the_peer_die_idle_clients_are_reset";
    let Some(fleet) = Fleet::new(test, 2, Flows::Graduate, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.graduated_clients(20);
    let lab = &fleet.scene.lab;
    let watch = Stopwatch::start();
    [&fleet.heir().host, &lab.b1, &lab.b2].iter().for_each(|host| host.link_down());
    takeover::all_reset(&mut conns);
    println!("all reset after {:?}", watch.elapsed());
    fleet.owner().baton.wait_ended("backend_ejected", 20);
}
