//! An instance that loses its own network must neither eject its backends nor inherit a peer's flows.

use super::failover::{Fleet, Flows};
use super::*;

/// Every backend is taken for dead there, and what follows has had its time.
fn wait_ejected(baton: &Baton) {
    for backend in ["b1", "b2"] {
        baton.wait_health(backend, "ejected", LONG);
    }
    wait::throughout(secs(2), "no offloaded flow is given up", || {
        baton.ended().keys().all(|reason| reason != "backend_ejected")
    });
}

/// The first has the VIP and 40 clients, loses its network, and the second gets the VIP.
fn cut_off_and_followed(test: &str, flows: Flows) -> Option<(Fleet, Vec<Conn>)> {
    let fleet = Fleet::new(test, 2, flows, |config| config)?.with_owner();
    let conns = match flows {
        Flows::Alone => fleet.clients(40),
        _ => fleet.offloaded_clients(40),
    };
    if flows != Flows::Alone {
        fleet.wait_known(40, 40);
    }
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    Some((fleet, conns))
}

#[test]
fn offloaded_flows_are_not_reset_by_the_host_that_lost_its_network_while_they_went_on_at_the_other() {
    let test = "offloaded_flows_are_not_reset_by_the_host_that_lost_its_network";
    let Some((fleet, mut conns)) = cut_off_and_followed(test, Flows::Offload) else { return };
    let owner = fleet.owner();
    conns.iter_mut().for_each(|conn| conn.echo(6, 300));
    fleet.heir().baton.wait_offloaded(40);
    wait_ejected(&owner.baton);
    assert_eq!(owner.baton.events_of("flows_ordered"), Vec::<Value>::new(), "nor is it said that they are");
    assert_eq!(owner.baton.flow_count(), 40);
    fleet.remove_vip(owner);
    owner.host.link_up();
    owner.baton.wait_ended("moved", 40);
    // The other one only showed that the VIP is served.
    assert_eq!(owner.baton.ended(), [("client_closed".to_owned(), 1), ("moved".to_owned(), 40)].into());
    owner.wait_sees("lb-b", "offloaded", 40);
    assert_eq!(fleet.heir().baton.flow_count(), 40);
    conns.iter_mut().for_each(|conn| conn.echo(7, 30_000));
    // It judges again.
    for backend in ["b1", "b2"] {
        owner.baton.wait_health(backend, "ready", LONG);
    }
}

#[test]
fn without_peers_flows_of_the_host_that_lost_its_network_are_lost() {
    let test = "without_peers_flows_of_the_host_that_lost_its_network_are_lost";
    let Some((_fleet, mut conns)) = cut_off_and_followed(test, Flows::Alone) else { return };
    failover::wait_lost(&mut conns);
}

/// The reason for which an instance without peers does not hear its backends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// Its own link has no carrier.
    Link,
    /// The link is there, but nothing of what backends answer comes.
    Silence,
}

/// An instance without peers, and 20 clients that wait until it takes its backends for dead.
fn lone(test: &str, flows: Flows, outage: Outage) {
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    let Some(pins) = Pinned::unused(test) else { return };
    let mut config = lab.config().only(&["b1", "b2"]).offloading(&pins.directory);
    if flows == Flows::Kept {
        config = config.offload("after_round_trips", 1000).offload("after", "1h");
    }
    let baton = lab.start(&config);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for round in 0..5 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    baton.wait_offloaded(if flows == Flows::Offload { 20 } else { 0 });
    match outage {
        Outage::Link => lab.lb.link_down(),
        Outage::Silence => {
            lab.lb.drop_packets("input", &format!("ip saddr {{ {}, {} }}", lab.b1.v4, lab.b2.v4));
            baton.wait_ended("backend_ejected", 20);
            failover::all_reset(&mut conns);
            return;
        }
    }
    wait_ejected(&baton);
    assert_eq!(baton.flow_count(), 20);
    lab.lb.link_up();
    conns.iter_mut().for_each(|conn| conn.echo(6, 3000));
    assert_eq!(baton.ended().len(), 0, "{:?}", baton.ended());
    baton.wait_health("b1", "ready", LONG);
    lab.client.connect(lab.lb.v4(6443)).echo(7, 100);
}

#[test]
fn a_lone_instance_resets_nobody_because_its_link_was_down_for_seconds() {
    let test = "a_lone_instance_resets_nobody_because_its_link_was_down_for_seconds";
    [Flows::Offload, Flows::Kept].into_iter().for_each(|flows| lone(test, flows, Outage::Link));
}

#[test]
fn a_lone_instance_resets_all_that_wait_for_backends_which_fall_silent_while_its_link_is_up() {
    let test = "a_lone_instance_resets_all_that_wait_for_backends_which_fall_silent";
    [Flows::Offload, Flows::Kept].into_iter().for_each(|flows| lone(test, flows, Outage::Silence));
}

/// While its only peer is dead, so that it cannot be sure of its own network at once.
#[test]
fn a_backend_that_really_died_is_told_from_a_lost_network_by_who_else_is_heard() {
    let test = "a_backend_that_really_died_is_told_from_a_lost_network";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(20);
    fleet.heir().host.link_down();
    fleet.owner().wait_sees("lb-b", "liveness", "dead");
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
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(20);
    let lab = &fleet.scene.lab;
    let watch = Stopwatch::start();
    [&fleet.heir().host, &lab.b1, &lab.b2].iter().for_each(|host| host.link_down());
    failover::all_reset(&mut conns);
    println!("all reset after {:?}", watch.elapsed());
    fleet.owner().baton.wait_ended("backend_ejected", 20);
}

/// Probes that end well before a neighbour is asked for again, which it is once in a second.
fn with_short_timers(config: Config) -> Config {
    [("interval", "400ms"), ("timeout", "300ms"), ("fast_interval", "50ms")]
        .iter()
        .fold(config, |config, (key, value)| config.health(key, *value))
}

/// Takes the link away for moments, within which probes begin and after which they end.
fn blink(host: &Host, baton: &Baton, down: std::time::Duration) {
    // Two probes take 650 ms, and whatever is heard again is known to be 150 ms later. Whoever is in the dark for longer may eject.
    const DARK_MAX: std::time::Duration = ms(500);
    const BACKENDS: [&str; 2] = ["b1", "b2"];
    let ejected = || BACKENDS.map(|backend| baton.states(backend).iter().filter(|to| *to == "ejected").count());
    let mut moments = 0;
    for _ in 0..20 {
        let (before, dark) = (ejected(), Stopwatch::start());
        host.link_down();
        std::thread::sleep(down);
        host.link_up();
        let dark = dark.elapsed();
        wait::throughout(ms(1200), "no flow is given up", || !baton.ended().contains_key("backend_ejected"));
        if dark < DARK_MAX {
            assert_eq!(ejected(), before, "what was asked in the dark is no evidence");
            moments += 1;
            if moments == 3 {
                return;
            }
        } else {
            // A busy machine kept the link away for longer.
            BACKENDS.iter().for_each(|backend| _ = baton.wait_health(backend, "ready", LONG));
        }
    }
    panic!("{moments} moments of twenty were short enough");
}

#[test]
fn a_host_that_hears_its_peer_again_takes_no_backend_for_dead_that_it_asked_in_the_dark() {
    let test = "a_host_that_hears_its_peer_again_takes_no_backend_for_dead";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, with_short_timers) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(20);
    blink(&fleet.owner().host, &fleet.owner().baton, ms(400));
    conns.iter_mut().for_each(|conn| conn.echo(6, 3000));
}

#[test]
fn a_lone_instance_takes_no_backend_for_dead_because_its_link_was_down_for_a_moment() {
    let test = "a_lone_instance_takes_no_backend_for_dead_because_its_link_was_down";
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&with_short_timers(lab.config().only(&["b1", "b2"])));
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(5, 200));
    blink(&lab.lb, &baton, ms(200));
    conns.iter_mut().for_each(|conn| conn.echo(6, 3000));
}
