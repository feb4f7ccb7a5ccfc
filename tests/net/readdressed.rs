//! A backend whose name gets another address: by a reload, by DNS, by a restart with another file. Its flows belong to the
//! address where they began.

mod names;
mod restarted;

use std::time::Duration;

use crate::lab::wait::throughout;
use crate::lab::*;
use crate::offloaded::Scene;

/// As for any silent backend: the promise is 2.5 s at the defaults, the rest is room for a machine under load.
const SILENT_BACKEND: Duration = secs(4);

/// Where b1 is at first, as it is shown once it is at another address.
fn old_b1(lab: &Lab) -> String {
    format!("b1 ({})", lab.b1.v4(6443))
}

/// So many connections to b1 that have moved bytes; `offloaded`: and have left the proxy.
fn at_b1(lab: &Lab, baton: &Baton, count: u64, offloaded: bool) -> Vec<Conn> {
    let mut conns: Vec<_> = (0..count).map(|_| baton.connect_to(&lab.client, "b1")).collect();
    conns.iter_mut().for_each(|conn| (0..4).for_each(|round| conn.echo(round, 100)));
    // Those that went to another backend are over, and no next process finds them.
    eventually(LONG, "there are no others", || baton.flow_count() == count);
    if offloaded {
        baton.wait_offloaded(count);
    }
    conns
}

/// Each has been reset within the budget after its silent backend's death, at `watch`.
fn all_are_reset(conns: &mut [Conn], watch: Stopwatch) {
    for conn in conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    println!("all were reset {:?} after their backend's host had died", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
}

fn the_old_host_dies_after_a_reload(lab: &Lab, config: &Config, offloaded: bool) {
    let _servers = lab.echo_everywhere();
    let config = config.clone().only(&["b1", "b2"]);
    let baton = lab.start(&config);
    let mut conns = at_b1(lab, &baton, 3, offloaded);
    baton.write_config(&config.of_backend("b1", "address", lab.b3.v4(6443).to_string()));
    baton.order(&["reload"]);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));

    lab.b1.link_down();
    all_are_reset(&mut conns, Stopwatch::start());
    baton.wait_ended("backend_ejected", 3);
    eventually(LONG, "the old address is forgotten", || baton.backend(&old_b1(lab)).is_none());
    drop(conns);
    baton.rests();
}

#[test]
fn idle_offloaded_clients_of_an_old_address_are_reset_when_its_host_dies() {
    let Some(scene) = Scene::new("readdressed") else { return };
    the_old_host_dies_after_a_reload(&scene.lab, &scene.config(), true);
}

#[test]
fn idle_proxied_clients_of_an_old_address_are_reset_when_its_host_dies() {
    let Some(lab) = Lab::new("readdressed") else { return };
    the_old_host_dies_after_a_reload(&lab, &lab.config(), false);
}

#[test]
fn an_old_address_is_shown_beside_the_new_one_with_its_own_flows() {
    let Some(lab) = Lab::new("readdressed") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().only(&["b1", "b2"]);
    let baton = lab.start(&config);
    let conns = at_b1(&lab, &baton, 3, false);
    baton.write_config(&config.of_backend("b1", "address", lab.b3.v4(6443).to_string()));
    baton.order(&["reload"]);
    let old = old_b1(&lab);
    let shown = baton.backend(&old).expect("the old address is shown");
    assert_eq!((&shown["health_state"], &shown["flows"]), (&"draining".into(), &3.into()), "{shown}");
    assert!(shown["drain_deadline_in_ms"].as_u64().is_some(), "{shown}");
    baton.wait_health("b1", "ready", LONG);
    assert_eq!(baton.flows_of("b1"), 0);
    assert_eq!(baton.metric("baton_backend_flows", &[&format!("backend=\"{old}\"")]), 3.0);
    let mut new = baton.connect_to(&lab.client, "b1");
    new.echo(1, 1000);
    let listed = baton.order(&["flows", "--backend", "b1"]);
    assert_eq!(listed.matches("10.77.0.10:").count(), 4, "a name means all of its addresses:\n{listed}");
    drop((conns, new));
    eventually(LONG, "the old address is forgotten", || baton.backend(&old).is_none());
    baton.rests();
}

#[test]
fn flows_of_an_old_address_go_on_although_the_new_one_is_dead() {
    let Some(scene) = Scene::new("readdressed") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]);
    let baton = lab.start(&config);
    let mut conns = at_b1(lab, &baton, 3, true);
    baton.write_config(&config.clone().of_backend("b1", "address", "10.77.0.99:6443"));
    baton.order(&["reload"]);
    let reset = |baton: &Baton| baton.ended().contains_key("backend_ejected");
    throughout(secs(4), "flows at the old address live", || !reset(&baton));
    assert_eq!(baton.health_state("b1"), "ejected");
    conns.iter_mut().for_each(|conn| conn.echo(9, 10_000));

    // Back where it was: as if nothing had been.
    baton.write_config(&config);
    baton.order(&["reload"]);
    assert_eq!(baton.health_state("b1"), "ready");
    assert_eq!(baton.flows_of("b1"), 3);
    assert!(baton.backend(&old_b1(lab)).is_none());
    conns.iter_mut().for_each(|conn| conn.echo(10, 10_000));
    eventually(LONG, "the dead address is forgotten", || {
        baton.status()["frontends"][0]["backends"].as_array().unwrap().len() == 2
    });
    drop(conns);
    baton.rests();
}

#[test]
fn flows_of_an_old_address_are_drained_as_those_of_a_removed_backend() {
    let Some(scene) = Scene::new("readdressed") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]).frontend("drain_timeout", "2s");
    let baton = lab.start(&config);
    let mut conns = at_b1(lab, &baton, 2, true);
    let watch = Stopwatch::start();
    baton.write_config(&config.of_backend("b1", "address", lab.b3.v4(6443).to_string()));
    baton.order(&["reload"]);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
    assert!(watch.elapsed() > ms(1500), "{:?}", watch.elapsed());
    baton.wait_ended("drain_deadline", 2);
    drop(conns);
    baton.rests();
}

/// An operator's order is for the name, whatever its address.
#[test]
fn a_drained_backend_stays_drained_at_its_new_address_and_an_eject_reaches_both() {
    let Some(lab) = Lab::new("readdressed") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().only(&["b1", "b2"]);
    let baton = lab.start(&config);
    let mut conns = at_b1(&lab, &baton, 2, false);
    baton.order(&["drain", "b1"]);
    baton.write_config(&config.of_backend("b1", "address", lab.b3.v4(6443).to_string()));
    baton.order(&["reload"]);
    eventually(LONG, "it is drained", || {
        baton.backend("b1").is_some_and(|b1| b1["order"] == "drain" && b1["health_state"] == "draining")
    });
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    baton.order(&["undrain", "b1"]);
    baton.wait_health("b1", "ready", LONG);
    let mut new = baton.connect_to(&lab.client, "b1");
    new.echo(1, 1000);
    baton.order(&["eject", "b1"]);
    conns.iter_mut().chain([&mut new]).for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
    baton.wait_ended("ejected_by_operator", 3);
    drop((conns, new));
    baton.rests();
}
