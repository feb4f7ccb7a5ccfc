//! Where clients and backends may stand: behind routers, behind a bridge of the balancer's own, on a backend's host, on
//! this one; and routes that move.

use std::net::IpAddr;

use super::Scene;
use crate::lab::*;

/// An address behind `host`, by way of which the balancer reaches it.
fn behind(scene: &Scene, host: &Host, address: &str) -> IpAddr {
    host.run(&format!("ip address add {address}/32 dev lo"));
    scene.lab.lb.run(&format!("ip route add {address}/32 via {}", host.v4));
    address.parse().unwrap()
}

fn talk(conns: &mut [Conn]) {
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 50_000));
}

/// Whether the program looks at all that the balancer's host sends to itself.
fn is_on_lo(scene: &Scene) -> bool {
    let status = ::baton::offload::program::status(&scene.pinned.directory).expect("it is pinned");
    status.expect("it is pinned").links.iter().any(|link| link.interface == "lo")
}

#[test]
fn clients_and_backends_behind_routers_are_reached_by_the_next_hop() {
    let Some(scene) = Scene::new("layouts") else { return };
    let lab = &scene.lab;
    let backend = behind(&scene, &lab.b1, "10.88.0.1");
    let client = behind(&scene, &lab.client, "10.99.0.1");
    let _server = lab.b1.serve_on((backend, 6443).into(), Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&[]).backend("far", (backend, 6443).into()));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect_from(client, lab.lb.v4(6443)).unwrap()).collect();
    talk(&mut conns);
    baton.wait_offloaded(5);
    talk(&mut conns);
    assert!(!is_on_lo(&scene), "no flow needs the program there");
    drop(conns);
    baton.rests();
}

#[test]
fn flows_follow_routes_to_another_next_hop_and_to_another_interface() {
    let Some(scene) = Scene::new("layouts") else { return };
    let lab = &scene.lab;
    let backend = behind(&scene, &lab.b1, "10.88.0.1");
    let _server = lab.b1.serve_on((backend, 6443).into(), Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&[]).backend("far", (backend, 6443).into()));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns);
    baton.wait_offloaded(5);
    // By a router in between.
    lab.b2.run("ip route add 10.88.0.1/32 via 10.77.0.21; echo 1 > /proc/sys/net/ipv4/ip_forward");
    lab.lb.run("ip route replace 10.88.0.1/32 via 10.77.0.22");
    talk(&mut conns);
    // By another interface of both, in both directions. All are plugged into one switch: if a host answered for
    // addresses of its other interface, its neighbours would learn an Ethernet address that vanishes with that
    // interface.
    for host in [&lab.lb, &lab.b1] {
        host.sysctl("net/ipv4/conf/all/arp_ignore", "1");
        host.sysctl("net/ipv4/conf/all/arp_announce", "2");
    }
    for (host, address) in [(&lab.lb, "10.66.0.2"), (&lab.b1, "10.66.0.21")] {
        host.second_link("other");
        host.run(&format!("ip address add {address}/24 dev other"));
    }
    eventually(LONG, "the offload engine looks there", || {
        baton.status()["offload"]["interfaces"].as_array().unwrap().iter().any(|name| name == "other")
    });
    lab.lb.run("ip route replace 10.88.0.1/32 via 10.66.0.21 src 10.77.0.2");
    lab.b1.run("ip route add 10.77.0.2/32 via 10.66.0.2");
    lab.b1.drop_packets("input", "iifname eth0 ip daddr 10.88.0.1");
    talk(&mut conns);
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
    // And by the reserve route when that one is gone. The kernel notifies nobody of a lost route, only of the link.
    // Without a route no probe would get an answer until the next command has added one, however long a busy machine
    // takes.
    lab.b1.nft_clear();
    lab.b1.run("ip route del 10.77.0.2/32");
    lab.lb.run("ip route add 10.88.0.1/32 via 10.77.0.21 metric 100; ip link del other");
    talk(&mut conns);
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
}

#[test]
fn an_interface_that_is_a_bridge_of_the_balancer_s_own_has_its_flows_offloaded() {
    let Some(scene) = Scene::new("layouts") else { return };
    let lab = &scene.lab;
    lab.lb.run(
        "ip link add name br-host type bridge forward_delay 0 stp_state 0; ip link set br-host up\n\
         ip address del 10.77.0.2/24 dev eth0; ip link set eth0 master br-host; ip address add 10.77.0.2/24 dev br-host",
    );
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns);
    baton.wait_offloaded(5);
    talk(&mut conns);
    assert_eq!(baton.status()["offload"]["interfaces"][0], "br-host");
    drop(conns);
    baton.wait_ended("client_closed", 5);
}

#[test]
fn a_backend_s_host_that_is_a_client_itself_reaches_its_own_backend_and_others() {
    let Some(scene) = Scene::new("layouts") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..9).map(|_| lab.b1.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns);
    baton.wait_offloaded(9);
    assert!(baton.flows_of("b1") > 0, "some come back to where they came from");
    talk(&mut conns);
    drop(conns);
    baton.rests();
}

#[test]
fn flows_to_a_backend_on_the_balancer_s_own_host_are_offloaded_and_outlive_a_kill() {
    let Some(scene) = Scene::new("layouts") else { return };
    let lab = &scene.lab;
    for interface in ["all", "lo", "eth0"] {
        lab.lb.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "1");
    }
    let local = lab.lb.serve_on(lab.lb.v4(7443), Behaviour::Echo);
    let _far = lab.b1.serve(Behaviour::Echo);
    let loopback = "127.0.0.1:7444".parse().unwrap();
    let _loopback = lab.lb.serve_on(loopback, Behaviour::Echo);
    let config = scene.config().only(&["b1"]).backend("here", lab.lb.v4(7443)).backend("loopback", loopback);
    let mut baton = lab.start(&config);
    baton.wait_health("here", "ready", LONG);
    baton.wait_health("b1", "ready", LONG);
    baton.wait_health("loopback", "ready", LONG);
    assert!(!is_on_lo(&scene));
    let mut conns: Vec<_> = ["b1", "loopback"].iter().map(|name| baton.connect_to(&lab.client, name)).collect();
    conns.extend((0..3).map(|_| baton.connect_to(&lab.client, "here")));
    // A client on this host stays proxied, wherever its backend is.
    let mut locals: Vec<_> = (0..4).map(|_| lab.lb.connect(lab.lb.v4(6443))).collect();
    (0..3).for_each(|_| talk(&mut conns));
    (0..3).for_each(|_| talk(&mut locals));
    baton.wait_offloaded(5);
    assert!(is_on_lo(&scene));
    eventually(LONG, "those of this host say why they stay", || {
        let proxied: Vec<_> = baton.flows().into_iter().filter(|flow| flow["state"] == "proxied").collect();
        proxied.len() == 4 && proxied.iter().all(|flow| flow["stays"] == "local")
    });
    conns.iter_mut().for_each(|conn| conn.echo(9, 3_000_000));
    for _ in 0..2 {
        baton.process.kill();
        talk(&mut conns);
        baton = lab.start(&config);
        baton.wait_offloaded(5);
        talk(&mut conns);
    }
    assert!(locals.iter_mut().all(|conn| conn.end(LONG) != End::Open), "sockets died with their process");
    // Ends and orders reach both ends.
    let id = |conn: &Conn| {
        let client = conn.local().to_string();
        baton.flows().into_iter().find(|flow| flow["client"] == *client).unwrap()["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let mut killed = conns.pop().unwrap();
    baton.order(&["kill", &id(&killed)]);
    assert_eq!(killed.end(LONG), End::Rst);
    drop(conns.pop());
    // Of its three one is left; a probe may be beside it for a moment.
    eventually(LONG, "the backend hears of both", || local.open() == 1);
    drop(local);
    assert!(conns.drain(2..).all(|mut conn| matches!(conn.end(LONG), End::Fin | End::Rst)));
    talk(&mut conns);
}
