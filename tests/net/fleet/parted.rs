//! Two hosts serve one VIP behind a router, both live, and something is between their instances: the link is cut, both ways or
//! one, or one of them has another key.

use super::failover::{Fleet, Flows};
use super::*;

/// Longer than this no client waits.
const HANG: std::time::Duration = secs(2);

/// What keeps them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// A firewall rule on both against the link's port, whatever the protocol below was meant.
    Link,
    /// The first hears nothing of the second's link.
    LinkFrom(usize),
    /// The link lives, the beats beside it do not.
    Beats,
    /// This one hears nothing that comes from the other's own address; packets that are forwarded come from clients.
    All(usize),
    /// The first one's key is changed, and read again.
    Key,
}

impl Cause {
    fn come_about(self, fleet: &Fleet) {
        let [a, b] = [&fleet.all[0].host, &fleet.all[1].host];
        match self {
            Self::Link => [a, b].iter().for_each(|host| host.drop_packets("input", &format!("tcp dport {PORT}"))),
            Self::LinkFrom(number) => {
                let (at, from) = if number == 0 { (b, a) } else { (a, b) };
                at.drop_packets("input", &format!("ip saddr {} meta l4proto tcp", from.v4));
            }
            Self::Beats => {
                [a, b].iter().for_each(|host| host.drop_packets("input", &format!("udp dport {PORT}")));
            }
            Self::All(number) => {
                let (at, from) = if number == 0 { (b, a) } else { (a, b) };
                at.drop_packets("input", &format!("ip saddr {}", from.v4));
            }
            Self::Key => {
                let instance = &fleet.all[0];
                let key = fleet.scene.write_key("other.key", 9);
                let old = fleet.scene.lab.directory().join("peers.key");
                instance.reload_with(old.to_str().unwrap(), key.to_str().unwrap());
            }
        }
    }

    fn fix(self, fleet: &Fleet) {
        match self {
            Self::Key => {
                let instance = &fleet.all[0];
                let key = fleet.scene.lab.directory().join("other.key");
                let old = fleet.scene.lab.directory().join("peers.key");
                instance.reload_with(key.to_str().unwrap(), old.to_str().unwrap());
            }
            _ => fleet.all.iter().for_each(|instance| instance.host.nft_clear()),
        }
    }
}

/// For longer than each is given to say that the address has not come to the other because of its death.
#[track_caller]
fn both_have_lived(a: &Instance, b: &Instance) {
    let mut since = Stopwatch::start();
    eventually(LONG, "both live", || {
        if a.sees("lb-b")["liveness"] != "alive" || b.sees("lb-a")["liveness"] != "alive" {
            since = Stopwatch::start();
        }
        since.elapsed() > ms(500)
    });
}

/// Every flow goes on within moments, and so does every new one.
#[track_caller]
pub fn all_go_on(fleet: &Fleet, conns: &mut [Conn], seed: u64) {
    let slowest = std::thread::scope(|scope| {
        let each = conns.iter_mut().map(|conn| {
            scope.spawn(move || {
                let watch = Stopwatch::start();
                conn.try_echo(seed, 2000).map(|()| watch.unstalled())
            })
        });
        let each: Vec<_> = each.collect();
        let each = each.into_iter().map(|thread| thread.join().expect("no panic").expect("it goes on"));
        each.max().expect("some")
    });
    assert!(slowest < HANG, "one waited for {slowest:?}");
    for _ in 0..4 {
        let watch = Stopwatch::start();
        fleet.scene.lab.client.connect(fleet.vip).echo(seed, 1000);
        let waited = watch.unstalled();
        assert!(waited < HANG, "a new one waited for {waited:?}");
    }
}

fn failed_over(fleet: &Fleet) -> usize {
    fleet.all.iter().map(|instance| instance.baton.events_of("failed_over").len()).sum()
}

#[test]
fn a_fleet_whose_ports_are_moved_by_one_reload_after_the_other_fails_nobody_over() {
    let test = "a_fleet_whose_ports_are_moved_by_one_reload_after_the_other_fails_nobody_over";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    fleet.route(&[0, 1]);
    let mut conns = fleet.clients(20);
    for instance in &fleet.all {
        instance.reload_with(&format!(":{PORT}\""), ":9571\"");
        // Longer than it takes until a silent peer counts as dead.
        let watch = Stopwatch::start();
        while watch.elapsed() < secs(3) {
            all_go_on(&fleet, &mut conns, 3);
        }
    }
    fleet.all[0].wait_synced("lb-b");
    fleet.all[1].wait_synced("lb-a");
    all_go_on(&fleet, &mut conns, 4);
    assert_eq!(failed_over(&fleet), 0);
}

#[test]
fn beats_go_on_at_the_port_before_where_another_process_has_the_new_one() {
    let test = "beats_go_on_at_the_port_before_where_another_process_has_the_new_one";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    fleet.route(&[0, 1]);
    let mut conns = fleet.clients(10);
    let held = fleet.all[0].host.enter(|| std::net::UdpSocket::bind("0.0.0.0:9571").unwrap());
    for instance in &fleet.all {
        instance.reload_with("[peers]\n", "[peers]\nbeat_port = 9571\n");
    }
    both_live_through(Cause::Link, &fleet, &mut conns);
    fleet.all[0].baton.wait_log(&["cannot bind the port for beats", "9571"]);
    drop(held);
    both_live_through(Cause::Link, &fleet, &mut conns);
}

/// What clients send comes to the first, what backends send to the second.
pub fn crossed(test: &str, count: usize, flows: Flows) -> Option<(Fleet, Vec<Conn>)> {
    let fleet = Fleet::new(test, count, flows, |config| config)?.spread();
    route(&fleet, 0, 1);
    let conns = match flows {
        Flows::Offload => {
            let mut conns = fleet.clients(20);
            (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
            eventually(LONG, "all have been offloaded somewhere", || {
                let offloaded = |it: &Instance| it.baton.status()["totals"]["flows"]["offloaded"].as_u64();
                fleet.all.iter().filter_map(offloaded).sum::<u64>() == 20
            });
            conns
        }
        _ => fleet.clients(20),
    };
    Some((fleet, conns))
}

/// Clients reach the VIP by one instance, backends by the other.
pub fn route(fleet: &Fleet, clients: usize, backends: usize) {
    let lab = &fleet.scene.lab;
    for (host, number) in [(&lab.client, clients), (&lab.b1, backends), (&lab.b2, backends)] {
        host.run(&format!("ip route replace {}/32 via {}", fleet.vip.ip(), fleet.all[number].host.v4));
    }
}

/// One after the other.
fn both_live_on(test: &str, count: usize, flows: Flows, causes: &[Cause]) {
    let Some((fleet, mut conns)) = crossed(test, count, flows) else { return };
    for cause in causes {
        println!("{cause:?}");
        route(&fleet, 0, 1);
        both_live_through(*cause, &fleet, &mut conns);
    }
    drop(conns);
    eventually(secs(20), "no flow is left", || fleet.all.iter().all(|it| it.baton.flow_count() == 0));
}

fn both_live_through(cause: Cause, fleet: &Fleet, conns: &mut [Conn]) {
    let (a, b) = (&fleet.all[0], &fleet.all[1]);
    cause.come_about(fleet);
    if cause == Cause::Beats {
        let lost = a.baton.events_of("peer_lost").len();
        wait::throughout(secs(2), "the link is enough", || {
            let liveness = a.sees("lb-b")["liveness"].clone();
            // Silent: 0.25 s without a beat, where the machine has no time for it.
            liveness == "alive" || liveness == "silent"
        });
        a.wait_sees("lb-b", "liveness", "alive");
        assert_eq!(a.baton.events_of("peer_lost").len(), lost);
    } else {
        eventually(LONG, "the link is down", || {
            a.sees("lb-b")["liveness"] != "alive" && b.sees("lb-a")["liveness"] != "alive"
        });
        let watch = Stopwatch::start();
        // Longer than an instance that dies is waited for.
        while watch.elapsed() < ms(1500) {
            all_go_on(fleet, conns, 3);
        }
    }
    all_go_on(fleet, conns, 4);
    // Routers choose anew.
    route(fleet, 1, 0);
    all_go_on(fleet, conns, 5);
    route(fleet, 1, 1);
    all_go_on(fleet, conns, 6);
    assert_eq!(failed_over(fleet), 0, "nobody is dead");
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(1)));
    cause.fix(fleet);
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    all_go_on(fleet, conns, 7);
}

#[test]
fn offloaded_flows_behind_a_router_go_on_while_a_firewall_keeps_the_instances_from_each_other() {
    let test = "offloaded_flows_behind_a_router_go_on_while_a_firewall_keeps_the_instances";
    both_live_on(test, 2, Flows::Offload, &[Cause::Link]);
}

#[test]
fn flows_behind_a_router_go_on_while_the_link_is_cut_one_way_or_both() {
    let test = "flows_behind_a_router_go_on_while_the_link_is_cut_one_way_or_both";
    both_live_on(test, 2, Flows::Kept, &[Cause::LinkFrom(0), Cause::LinkFrom(1), Cause::Link]);
}

#[test]
fn flows_behind_a_router_go_on_while_only_the_beats_beside_the_link_are_lost() {
    both_live_on("flows_behind_a_router_go_on_while_only_the_beats_are_lost", 2, Flows::Kept, &[Cause::Beats]);
}

#[test]
fn flows_behind_a_router_go_on_while_one_instance_has_another_key() {
    both_live_on("flows_behind_a_router_go_on_while_one_has_another_key", 2, Flows::Kept, &[Cause::Key]);
}

#[test]
fn flows_behind_a_router_go_on_while_one_hears_nothing_of_another_but_a_third_does() {
    let test = "flows_behind_a_router_go_on_while_one_hears_nothing_of_another";
    both_live_on(test, 3, Flows::Kept, &[Cause::All(0), Cause::All(1)]);
}

/// Where there is no third, and no IP between the two.
#[test]
fn an_owner_that_is_taken_for_dead_still_hears_that_its_clients_reset_their_flows() {
    let test = "an_owner_that_is_taken_for_dead_still_hears_that_its_clients_reset";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    let conns = fleet.clients(10);
    fleet.wait_known(10, 0);
    Cause::All(0).come_about(&fleet);
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    eventually(LONG, "its flows are refused", || failed_over(&fleet) == 1);
    assert_eq!(fleet.owner().baton.flow_count(), 10, "its packets still come to it");
    route(&fleet, 1, 1);
    let watch = Stopwatch::start();
    conns.into_iter().for_each(Conn::reset);
    fleet.owner().baton.wait_ended("client_reset", 10);
    assert!(watch.unstalled() < HANG, "{:?}", watch.elapsed());
}

/// Regression: a watch got one beat and then none. Its backend's packets came to the instance that took the owner for
/// dead, which answered them with RST, and no instance told its client.
#[test]
fn flows_that_are_born_while_two_instances_take_each_other_for_dead_go_on() {
    let test = "flows_that_are_born_while_two_instances_take_each_other_for_dead_go_on";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config).map(Fleet::spread) else { return };
    route(&fleet, 0, 1);
    let [a, b] = [&fleet.all[0], &fleet.all[1]];
    both_have_lived(a, b);
    [Cause::All(0), Cause::All(1)].iter().for_each(|cause| cause.come_about(&fleet));
    // The other does not hear of any of them.
    let mut conns = fleet.clients(10);
    (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
    a.wait_sees("lb-b", "liveness", "dead");
    b.wait_sees("lb-a", "liveness", "dead");
    all_go_on(&fleet, &mut conns, 6);
    fleet.all.iter().for_each(|instance| instance.host.nft_clear());
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    all_go_on(&fleet, &mut conns, 7);
    // Clients come to the other, too, what backends send to neither's own.
    route(&fleet, 1, 0);
    all_go_on(&fleet, &mut conns, 8);
}

/// Regression: a watch waited 10 s for the keepalive of its instance. Its backend's packets came to another one that
/// took the owner for dead, which answered them with RST.
#[test]
fn clients_whose_backends_another_instance_has_reset_do_not_wait_for_a_keepalive() {
    let test = "clients_whose_backends_another_instance_has_reset_do_not_wait";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::spread) else { return };
    route(&fleet, 0, 1);
    let [a, b] = [&fleet.all[0], &fleet.all[1]];
    both_have_lived(a, b);
    let conns = fleet.clients(10);
    fleet.wait_known(10, 0);
    [Cause::All(0), Cause::All(1)].iter().for_each(|cause| cause.come_about(&fleet));
    b.wait_sees("lb-a", "liveness", "dead");
    eventually(LONG, "its flows are refused", || failed_over(&fleet) >= 1);
    let watch = Stopwatch::start();
    fleet.servers.iter().for_each(|server| server.say(7, 100));
    eventually(LONG, "the backends are reset", || fleet.servers.iter().all(|server| server.open() == 0));
    fleet.all.iter().for_each(|instance| instance.host.nft_clear());
    for mut conn in conns {
        assert_eq!(conn.end(secs(20)), End::Rst);
    }
    println!("clients waited for {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(7), "keepalive_idle is 10 s");
}

/// One knows them by their sockets, and resets flows that it takes for a dead peer's. Of its packets to the backends,
/// only RSTs reach the other, which carries these flows by now; and those are lost.
#[test]
fn idle_flows_that_are_offloaded_just_before_another_instance_resets_them_are_reset_at_both_ends() {
    let test = "idle_flows_that_are_offloaded_just_before_another_instance_resets_them";
    let fleet =
        Fleet::new(test, 2, Flows::Offload, |config| config.offload("after_round_trips", 4).offload("after", "1h"));
    let Some(fleet) = fleet.map(Fleet::spread) else { return };
    route(&fleet, 0, 1);
    let [a, b] = [&fleet.all[0], &fleet.all[1]];
    both_have_lived(a, b);
    let mut conns = fleet.clients(10);
    fleet.wait_known(10, 0);
    // The backends' answers when they are challenged a second time, and no longer know the connections.
    let lab = &fleet.scene.lab;
    [&lab.b1, &lab.b2].iter().for_each(|host| host.drop_packets("output", "tcp flags & rst == rst"));
    // Without the link the other is not told of the offload; by the beats it knows that their owner lives.
    Cause::Link.come_about(&fleet);
    b.wait_sees("lb-a", "liveness", "unlinked");
    (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
    let offloaded = || a.baton.status()["totals"]["flows"]["offloaded"].as_u64();
    eventually(LONG, "all have been offloaded", || offloaded() == Some(10));
    assert_eq!(b.sees("lb-a")["offloaded"], 0, "the other has not heard of it");
    [Cause::All(0), Cause::All(1)].iter().for_each(|cause| cause.come_about(&fleet));
    eventually(LONG, "the other resets them", || failed_over(&fleet) >= 1);
    eventually(LONG, "it has told their ends", || !b.baton.events_of("clients_told").is_empty());
    [&lab.b1, &lab.b2].iter().for_each(|host| host.nft_clear());
    // user_timeout is 30 s.
    let watch = Stopwatch::start();
    for mut conn in conns {
        assert_eq!(conn.end(secs(10)), End::Rst);
    }
    assert!(watch.elapsed() < secs(10), "{:?}", watch.elapsed());
}
