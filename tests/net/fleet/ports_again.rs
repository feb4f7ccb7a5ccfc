//! A client's port is used again, for a connection that another instance has than the one before.

use std::io;

use super::failover::{Fleet, Flows, VIP};
use super::*;

/// Longer than this no client waits.
const HANG: std::time::Duration = secs(3);

const PORT_AGAIN: u16 = 41_000;

fn connect(fleet: &Fleet) -> io::Result<Conn> {
    let client = &fleet.scene.lab.client;
    client.connect_by(client.v4(PORT_AGAIN), fleet.vip, HANG)
}

/// The kernel of this host keeps nothing of a connection before the client's answer, as in a flood of SYNs (tcp_syncookies of ip-sysctl).
fn begin_by_cookies(host: &Host) {
    host.sysctl("net/ipv4/tcp_syncookies", "2");
}

/// Has the backends serve otherwise.
fn serve(fleet: &mut Fleet, behaviour: &Behaviour) {
    for (number, host) in [&fleet.scene.lab.b1, &fleet.scene.lab.b2].into_iter().enumerate() {
        // The one before gives its port up first.
        fleet.servers[number] = host.serve_on(host.v4(7000), Behaviour::Sink);
        fleet.servers[number] = host.serve(behaviour.clone());
    }
    for instance in &fleet.all {
        for name in ["b1", "b2"] {
            instance.baton.wait_health(name, "ready", LONG);
        }
    }
}

/// Regression: no instance accepted an upload for half a minute, after two hosts had had one VIP for seconds.
#[test]
fn a_flow_goes_on_through_an_instance_that_has_its_client_s_port_in_time_wait() {
    let test = "a_flow_goes_on_through_an_instance_that_has_its_client_s_port_in_time_wait";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::spread) else { return };
    // Who sends the first FIN to a client keeps its port for a minute.
    serve(&mut fleet, &Behaviour::FinFirst);
    let mut before = connect(&fleet).unwrap();
    assert_eq!(before.end(LONG), End::Fin);
    drop(before);
    eventually(LONG, "it is over", || fleet.owner().baton.flow_count() == 0);
    serve(&mut fleet, &Behaviour::Echo);
    eventually(LONG, "its last packets are sent to its owner no more", || fleet.entries(1).is_empty());

    fleet.route(&[1]);
    let mut conn = connect(&fleet).unwrap();
    conn.echo(1, 100);
    fleet.owner().wait_sees("lb-b", "flows", 1);
    fleet.route(&[0]);
    let watch = Stopwatch::start();
    conn.echo(2, 100_000);
    assert!(watch.unstalled() < HANG, "{:?}", watch.elapsed());
}

/// Regression: a connect took 68 s. Packets from its port had gone, for a minute and without a record, to a host that
/// has lost the address since.
#[test]
fn a_connection_begins_where_the_address_is_though_packets_by_its_port_are_forwarded_to_another_instance() {
    for by_cookies in [false, true] {
        let test = "a_connection_begins_where_the_address_is_though_packets_by_its_port_are_forwarded";
        let Some(scene) = Scene::new(test, 2) else { return };
        let hosts = [0, 1].map(|number| scene.host(number).clone());
        // Before the instance begins: packets to an address that has just come go to its last owner in any case.
        let with_vip = |number: usize, config| {
            hosts[number].run(&format!("ip address add {VIP}/32 dev lo"));
            for key in ["ip_forward", "conf/all/rp_filter", "conf/eth0/rp_filter"] {
                hosts[number].sysctl(&format!("net/ipv4/{key}"), "0");
            }
            config
        };
        let Some(fleet) = Fleet::within(scene, VIP, test, 2, Flows::Kept, with_vip) else { return };
        fleet.route(&[0]);
        fleet.wait_served();
        fleet.all.iter().for_each(|it| it.host.drop_packets("input", &format!("tcp dport {PORT}")));
        fleet.owner().wait_sees("lb-b", "liveness", "unlinked");
        fleet.heir().wait_sees("lb-a", "liveness", "unlinked");
        fleet.route(&[1]);
        let mut before = connect(&fleet).unwrap();
        before.echo(1, 100);
        fleet.route(&[0]);
        before.echo(2, 100);
        assert!(!fleet.entries(0).is_empty(), "its packets are sent on");
        before.reset();
        eventually(LONG, "it is over", || fleet.heir().baton.flow_count() == 0);
        fleet.heir().host.run(&format!("ip address del {VIP}/32 dev lo"));
        if by_cookies {
            begin_by_cookies(&fleet.owner().host);
        }
        connect(&fleet).expect("it is let in").echo(3, 100);
    }
}

/// Regression: a connect took seconds. The last packets of the connection before still went to the instance where it
/// had ended, but the address had moved on.
#[test]
fn a_connection_begins_where_the_address_is_though_the_one_before_has_just_ended_at_another_host() {
    for by_cookies in [false, true] {
        let test = "a_connection_begins_where_the_address_is_though_the_one_before_has_just_ended";
        let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::spread) else { return };
        let mut before = connect(&fleet).unwrap();
        before.echo(1, 100);
        fleet.heir().wait_sees("lb-a", "flows", 1);
        before.reset();
        fleet.heir().wait_sees("lb-a", "flows", 0);
        assert!(!fleet.entries(1).is_empty(), "its last packets are sent on");
        fleet.owner().host.run(&format!("ip address del {VIP}/32 dev lo"));
        fleet.route(&[1]);
        if by_cookies {
            begin_by_cookies(&fleet.heir().host);
        }
        connect(&fleet).expect("it is let in").echo(2, 100);
    }
}

/// Regression: a connection waited for its hedge. Its backend took its SYN for one of a flow that began here from the
/// same port and goes on at another host.
#[test]
fn connections_do_not_begin_from_source_ports_of_flows_that_another_instance_has_inherited() {
    let test = "connections_do_not_begin_from_source_ports_of_flows_that_another_instance";
    let Some(scene) = Scene::new(test, 2) else { return };
    let hosts = [0, 1].map(|number| scene.host(number).clone());
    // Sixteen for each instance, which are used again at once.
    let with_few_ports = |number: usize, config| {
        hosts[number].sysctl("net/ipv4/ip_local_port_range", "40000 40127");
        config
    };
    let fleet = Fleet::within(scene, VIP, test, 2, Flows::Offload, with_few_ports).map(Fleet::spread);
    let Some(fleet) = fleet else { return };
    let mut conns = fleet.offloaded_clients(6);
    fleet.route(&[1]);
    fleet.serve_at(fleet.heir(), &mut conns, 200);
    super::parted::route(&fleet, 0, 1);
    // With so few ports one backend may have none left for a moment, and the next one is tried at once: no flow was met.
    let attempts = || {
        let metrics = fleet.owner().baton.metrics();
        let names = ["baton_connect_failures_total", "baton_connects_hedged_total"];
        let is_one = |line: &&str| names.iter().any(|name| line.starts_with(name)) && !line.contains("out_of_ports");
        metrics.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = attempts();
    assert!(before.iter().any(|line| line.contains("timed_out")), "{before:?}");
    for seed in 0..40 {
        let watch = Stopwatch::start();
        fleet.scene.lab.client.connect(fleet.vip).echo(seed, 1000);
        assert!(watch.unstalled() < HANG, "{:?}", watch.elapsed());
    }
    assert_eq!(attempts(), before, "no attempt met a flow that goes on, and was helped by a hedge");
    conns.iter_mut().for_each(|conn| conn.echo(3, 1000));
}

/// Whether connections stay in their sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Offloaded,
    InSockets,
}

/// While two instances take each other for dead, a client's connection begins at the second one and ends unheard, and its next one by
/// the same port begins at the first one, where it stays in its sockets. Then they hear each other again.
fn begun_again_at_the_other_host(test: &str, kept: Before) -> Option<(Fleet, Conn)> {
    let config = |config: Config| config.offload("after_round_trips", 4).offload("after", "1h");
    let fleet = Fleet::new(test, 2, Flows::Offload, config).map(Fleet::spread)?;
    let (owner, heir) = (fleet.owner(), fleet.heir());
    for (at, from) in [(owner, heir), (heir, owner)] {
        at.host.drop_packets("input", &format!("ip saddr {}", from.host.v4));
    }
    owner.wait_sees("lb-b", "liveness", "dead");
    heir.wait_sees("lb-a", "liveness", "dead");
    fleet.route(&[1]);
    let mut before = connect(&fleet).unwrap();
    before.echo(0, 200);
    if kept == Before::Offloaded {
        (1..5).for_each(|round| before.echo(round, 200));
        heir.baton.wait_offloaded(1);
    }
    let client = &fleet.scene.lab.client;
    client.drop_packets("output", "tcp flags & rst == rst");
    let watch = Stopwatch::start();
    before.reset();
    // Its next number lies beyond any window then, see net/core/secure_seq.c.
    wait::throughout(secs(2).saturating_sub(watch.elapsed()), "it is not heard of", || heir.baton.flow_count() == 1);
    fleet.route(&[0]);
    let mut conn = connect(&fleet).unwrap();
    conn.echo(7, 100);
    client.nft_clear();
    [owner, heir].iter().for_each(|it| it.host.nft_clear());
    owner.wait_synced("lb-b");
    heir.wait_synced("lb-a");
    Some((fleet, conn))
}

#[track_caller]
fn goes_on(conn: &mut Conn, seed: u64) {
    let watch = Stopwatch::start();
    conn.try_echo(seed, 1000).expect("it goes on");
    assert!(watch.unstalled() < HANG, "{:?}", watch.elapsed());
}

/// Regression: a request was answered after half a minute. Its packets went to the backend of the connection before.
#[test]
fn a_connection_goes_on_where_it_began_though_the_one_before_by_its_port_is_told_of() {
    let test = "a_connection_goes_on_where_it_began_though_the_one_before_by_its_port_is_told";
    for before in [Before::Offloaded, Before::InSockets] {
        let Some((_fleet, mut conn)) = begun_again_at_the_other_host(test, before) else { return };
        goes_on(&mut conn, 8);
    }
}

#[test]
fn a_connection_goes_on_through_an_instance_that_still_has_the_one_before_by_its_client_s_port() {
    let test = "a_connection_goes_on_through_an_instance_that_still_has_the_one_before_by_its";
    for before in [Before::Offloaded, Before::InSockets] {
        let Some((fleet, mut conn)) = begun_again_at_the_other_host(test, before) else { return };
        fleet.route(&[1]);
        goes_on(&mut conn, 8);
        fleet.route(&[0]);
        goes_on(&mut conn, 9);
    }
}

/// Regression: clients of a host that had died were refused when they connected anew by the port of a flow that the next owner was resetting.
#[test]
fn a_client_of_a_dead_host_that_connects_again_by_the_same_port_is_not_refused() {
    for by_cookies in [false, true] {
        let test = "a_client_of_a_dead_host_that_connects_again_by_the_same_port";
        let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
        let fleet = fleet.with_owner();
        let mut conns = fleet.clients(10);
        fleet.wait_known(10, 0);
        fleet.owner().host.link_down();
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        if by_cookies {
            begin_by_cookies(&fleet.heir().host);
        }
        fleet.take(fleet.heir());
        let client = &fleet.scene.lab.client;
        let mut anew: Vec<_> = (0..10)
            .map(|number| {
                let mut before = conns.pop().unwrap();
                let from = before.local();
                // Half of the clients were told; the others gave up before, and nothing has come to their ports yet.
                match number < 5 {
                    true => assert_eq!(before.end(LONG), End::Rst),
                    false => before.reset(),
                }
                let mut conn = client.connect_by(from, fleet.vip, HANG).expect("it is let in");
                conn.echo(number, 100);
                conn
            })
            .collect();
        for round in 0..5 {
            anew.iter_mut().for_each(|conn| conn.echo(round, 2000));
            std::thread::sleep(ms(200));
        }
        assert_eq!(fleet.heir().baton.flow_count(), 10);
    }
}
