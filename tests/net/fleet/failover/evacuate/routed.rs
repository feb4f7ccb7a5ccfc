//! Routers spread flows over instances: they come one by one, and one of them is emptied.

use super::*;
use crate::ecmp::{self, Announcer, Router};

/// Instances come and the first is emptied, beneath clients of every kind; returns those that are left. `comes`: routers send to
/// this instance, too. `leaves` returns when they do not send to the first any more.
fn come_and_empty(fleet: &Fleet, mut comes: impl FnMut(usize), leaves: impl FnOnce()) -> Vec<Conn> {
    comes(0);
    fleet.wait_served();
    let (mut idle, mut staying) = idle_clients(fleet);
    let (talking, streaming) = (fleet.clients(10), fleet.clients(2));
    let open = locals(idle.iter().chain(&talking));
    let load = Load::default();
    let mut talked = std::thread::scope(|scope| {
        let _until = Until(&load);
        let talks = load.ping_pongs(scope, talking);
        let streams = load.bulk(scope, streaming);
        let storm = load.storm(scope, &fleet.scene.lab.client, fleet.vip, 1);
        load.goes_on(50, 1000);
        for number in 1..fleet.all.len() {
            comes(number);
            load.goes_on(50, 1000);
        }
        let owner = fleet.owner();
        let evacuation = scope.spawn(|| owner.baton.cli(&["evacuate", "--deadline", "50s", "--json"]));
        eventually(LONG, "it is not ready", || owner.baton.http("/readyz").is_some_and(|(status, _)| status == 503));
        leaves();
        load.goes_on(200, 4000);
        staying.iter_mut().for_each(|conn| conn.echo(3, 5000));
        drop(staying);
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        load.over.store(true, Relaxed);
        storm.into_iter().for_each(|thread| thread.join().unwrap());
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        println!("{report}");
        assert!(output.status.success(), "{report}");
        assert_eq!(report["flows"]["reset"], 0, "{report}");
        whole(talks)
    });
    // At most one with each change of the routes, for there is one client of short connections at a time.
    assert!(fleet.met_no_connection(&open) <= fleet.all.len() as u64);
    let Load { connects, round_trips, bulk_bytes, .. } = &load;
    println!("{connects:?} connects, {round_trips:?} round trips, {bulk_bytes:?} bytes of bulk, no reset");
    talked.append(&mut idle);
    talked
}

/// The first host is off, and all go on.
fn switch_off(fleet: &Fleet, conns: &mut [Conn]) {
    fleet.owner().host.link_down();
    let mut fresh = fleet.clients(10);
    conns.iter_mut().chain(&mut fresh).for_each(|conn| conn.echo(9, 3000));
}

#[test]
fn behind_a_router_instances_come_and_one_is_emptied_and_no_client_notices() {
    let test = "behind_a_router_instances_come_and_one_is_emptied_and_no_client_notices";
    let Some(fleet) = Fleet::new(test, 3, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    let mut conns = come_and_empty(&fleet, |number| fleet.route(&[0, 1, 2][..=number]), || fleet.route(&[1, 2]));
    switch_off(&fleet, &mut conns);
}

#[test]
fn a_host_is_emptied_behind_a_router_that_real_bird_tells_of_it_and_no_client_notices() {
    let test = "a_host_is_emptied_behind_a_router_that_real_bird_tells_of_it_and_no_client_notices";
    let Some(fleet) = Fleet::new(test, 3, Flows::Kept, |config| config) else { return };
    if !ecmp::is_installed(test) {
        return;
    }
    let fleet = fleet.with_vip_on_lo();
    let lab = &fleet.scene.lab;
    let hosts: Vec<_> = fleet.all.iter().map(|instance| &instance.host).collect();
    let router = Router::start(lab, &lab.another("router", 1), VIP, &hosts);
    [&lab.client, &lab.b1, &lab.b2].iter().for_each(|host| router.lead(host));
    let mut announcers = Vec::new();
    let announce = |number: usize| {
        let Instance { host, baton, directory, .. } = &fleet.all[number];
        announcers.push(Announcer::start(host, &router.host, VIP, baton, directory));
        eventually(secs(30), "the router sends to it, too", || router.paths().len() == number + 1);
    };
    let first = fleet.owner().host.v4.to_string();
    // Both at one moment: the kernel's route is removed and made anew.
    let is_withdrawn = || {
        let paths = router.paths();
        paths.len() == 2 && !paths.contains(&first)
    };
    let mut conns = come_and_empty(&fleet, announce, || {
        let watch = Stopwatch::start();
        eventually(secs(30), "its route is withdrawn", is_withdrawn);
        println!("BIRD: the route is withdrawn {:?} after readiness failed", watch.elapsed());
    });
    // It may come back, and leave once more.
    fleet.owner().baton.order(&["evacuate", "--cancel"]);
    eventually(secs(30), "its route is announced again", || router.paths().len() == 3);
    conns.iter_mut().for_each(|conn| conn.echo(8, 3000));
    fleet.owner().baton.order(&["evacuate"]);
    eventually(secs(30), "its route is withdrawn once more", is_withdrawn);
    switch_off(&fleet, &mut conns);
}
