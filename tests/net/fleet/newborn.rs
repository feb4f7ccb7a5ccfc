//! Flows so young that no other instance knows them when their packets come there.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use ::baton::sys::clock::now_ns;

use super::failover::{Fleet, Flows, VIP, VIP6};
use super::*;

/// The delay of the peer link in one direction.
const LAG: Duration = ms(80);
const DELAYED: u16 = 9472;

const BATCH: u64 = 20;

/// Passes bytes that come to `DELAYED` to the peer link of the same host, and back, each byte `LAG` later.
fn delay_line(host: &Host) {
    let (listens, to) = (host.v4(DELAYED), host.v4(PORT));
    let listener = host.enter(|| TcpListener::bind(listens).unwrap());
    let host = host.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = host.enter(|| TcpStream::connect(to)) else { continue };
            let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            delayed(near, far);
            delayed(far2, near2);
        }
    });
}

fn delayed(mut from: TcpStream, mut to: TcpStream) {
    let (line, waiting) = mpsc::channel::<(u64, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let due_ns = now_ns() + LAG.as_nanos() as u64;
            if line.send((due_ns, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due_ns, bytes) in waiting {
            // The purpose of this code is the delay.
            std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

/// Two instances behind a router, with a slow link between them.
pub fn behind_a_router(test: &str, vip: &str, flows: Flows) -> Option<Fleet> {
    let scene = Scene::new(test, 2)?;
    let second = scene.host(1).clone();
    delay_line(&second);
    let fleet = Fleet::within(scene, vip, test, 2, flows, |number, config| match number {
        0 => config.peers("peer", toml::Value::Array(Vec::new())).peer("lb-b", second.v4(DELAYED)),
        _ => config,
    })?;
    let ip: IpAddr = vip.parse().unwrap();
    for instance in &fleet.all {
        let host = &instance.host;
        host.run(&format!("ip address add {ip}/{} dev lo", if ip.is_ipv4() { 32 } else { 128 }));
        match ip {
            IpAddr::V4(_) => ["ip_forward", "conf/all/rp_filter", "conf/eth0/rp_filter"]
                .iter()
                .for_each(|key| host.sysctl(&format!("net/ipv4/{key}"), "0")),
            IpAddr::V6(_) => host.sysctl("net/ipv6/conf/all/forwarding", "0"),
        }
    }
    for host in [&fleet.scene.lab.client, &fleet.scene.lab.b1, &fleet.scene.lab.b2] {
        route(&fleet, host, 0);
    }
    fleet.wait_served();
    Some(fleet)
}

/// From now on `host` reaches the VIP by this instance.
pub fn route(fleet: &Fleet, host: &Host, number: usize) {
    let hop = &fleet.all[number].host;
    let (ip, hop) = match fleet.vip.ip() {
        IpAddr::V4(ip) => (format!("{ip}/32"), IpAddr::V4(hop.v4)),
        IpAddr::V6(ip) => (format!("{ip}/128"), IpAddr::V6(hop.v6)),
    };
    host.run(&format!("ip route replace {ip} via {hop}"));
}

/// The fate of packets of others' flows: forwarded, inherited, reset, dropped.
fn outcomes(fleet: &Fleet) -> [f64; 4] {
    ["forwarded", "inherited", "reset", "dropped"]
        .map(|outcome| fleet.all.iter().map(|it| it.baton.metric("baton_unknown_packets_total", &[outcome])).sum())
}

/// Flows that come to this instance, and by the time they say something, to the other.
pub fn rehashed(fleet: &Fleet, flows: Flows, at: usize) -> Vec<Conn> {
    let client = &fleet.scene.lab.client;
    route(fleet, client, at);
    let mut conns: Vec<_> = (0..BATCH).map(|_| client.connect(fleet.vip)).collect();
    if flows == Flows::Offload {
        // Enough to make them leave their sockets.
        conns.iter_mut().for_each(|conn| (0..4).for_each(|seed| conn.echo(seed, 50)));
    }
    route(fleet, client, 1 - at);
    conns
}

fn survive(test: &str, vip: &str, flows: Flows) {
    let Some(fleet) = behind_a_router(test, vip, flows) else { return };
    // Kept to the end: the last packets of a closed connection belong to no flow, and may be answered with RST.
    let (mut slowest, mut all) = (Duration::ZERO, Vec::new());
    for batch in 0..15 {
        let at = batch % 2;
        let mut conns = rehashed(&fleet, flows, at);
        let watch = Stopwatch::start();
        let lost = std::thread::scope(|scope| {
            let echoing: Vec<_> = conns.iter_mut().map(|conn| scope.spawn(move || conn.try_echo(1, 2000))).collect();
            echoing.into_iter().filter_map(|thread| thread.join().unwrap().err()).count()
        });
        slowest = slowest.max(watch.elapsed());
        assert_eq!(lost, 0, "of batch {batch}, by {}: {:?}", fleet.all[at].name, outcomes(&fleet));
        // The backend's packets, too, come by the other from here on.
        [&fleet.scene.lab.b1, &fleet.scene.lab.b2].iter().for_each(|host| route(&fleet, host, 1 - at));
        conns.iter_mut().for_each(|conn| conn.echo(2, 500));
        all.append(&mut conns);
    }
    // The offload engine shows its counters once a second.
    let forwards = || outcomes(&fleet)[..2].iter().sum::<f64>() > 0.0;
    eventually(LONG, "some came to the other instance", forwards);
    let outcomes = outcomes(&fleet);
    println!("{} flows rehashed at birth, the slowest went on after {slowest:?}; outcomes {outcomes:?}", all.len());
    assert!(outcomes[0] + outcomes[1] > 0.0, "none came to the other instance");
    // The reset packets are last ones of flows that have ended meanwhile.
    assert_eq!(outcomes[3], 0.0);
}

#[test]
fn flows_that_are_rehashed_at_birth_survive_though_the_peer_link_is_slow() {
    survive("flows_that_are_rehashed_at_birth_survive", VIP, Flows::Kept);
}

#[test]
fn ipv6_flows_that_are_rehashed_at_birth_survive_though_the_peer_link_is_slow() {
    survive("ipv6_flows_that_are_rehashed_at_birth_survive", VIP6, Flows::Kept);
}

#[test]
fn flows_that_are_rehashed_as_they_are_offloaded_survive_though_the_peer_link_is_slow() {
    survive("flows_that_are_rehashed_as_they_are_offloaded_survive", VIP, Flows::Offload);
}

#[test]
fn without_peers_flows_that_are_rehashed_at_birth_are_lost() {
    for vip in [VIP, VIP6] {
        let test = "without_peers_flows_that_are_rehashed_at_birth_are_lost";
        let Some(fleet) = behind_a_router(test, vip, Flows::Alone) else { return };
        let mut conns = rehashed(&fleet, Flows::Alone, 0);
        assert_eq!(failover::wait_lost(&mut conns), End::Rst);
    }
}

/// Regression: clients waited for ever. No backend had answered yet, so only the dead instance knew them, and they had
/// nothing left to repeat.
#[test]
fn clients_whose_flows_still_connect_are_reset_when_their_host_dies() {
    let test = "clients_whose_flows_still_connect_are_reset";
    let slow = |config: Config| config.frontend("connect_timeout", "20s").health("interval", "60s");
    for flows in [Flows::Proxied, Flows::Kept] {
        let Some(fleet) = Fleet::new(test, 2, flows, slow).map(Fleet::with_owner) else { return };
        for host in [&fleet.scene.lab.b1, &fleet.scene.lab.b2] {
            host.drop_packets("input", "tcp dport 6443 tcp flags & syn == syn");
        }
        let client = &fleet.scene.lab.client;
        let mut conns: Vec<_> = (0..5).map(|_| client.connect(fleet.vip)).collect();
        conns.iter_mut().for_each(|conn| conn.send(1, 100).unwrap());
        fleet.heir().wait_sees("lb-a", "flows", 5);
        eventually(LONG, "all that they say is acknowledged", || client.tcp_queued().0 == 0);
        fleet.owner().host.link_down();
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        fleet.take(fleet.heir());
        println!("reset after {:?}", failover::all_reset(&mut conns));
    }
}

/// The peers know a flow by the backend that has it, whichever was tried first.
#[test]
fn a_flow_that_was_told_of_while_it_connected_goes_on_at_another_backend_and_ends() {
    let test = "a_flow_that_was_told_of_while_it_connected";
    let slow = |config: Config| {
        config.frontend("connect_timeout", "20s").frontend("hedge_after", "2s").health("interval", "60s")
    };
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, slow).map(Fleet::with_owner) else { return };
    let [b1, _b2] = [&fleet.scene.lab.b1, &fleet.scene.lab.b2].map(|host| {
        host.drop_packets("input", "tcp dport 6443 tcp flags & syn == syn");
        host
    });
    let mut conns: Vec<_> = (0..6).map(|_| fleet.scene.lab.client.connect(fleet.vip)).collect();
    fleet.heir().wait_sees("lb-a", "flows", 6);
    // Those that tried the other one first come here by a second attempt, or by SYN again.
    b1.nft_clear();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    fleet.heir().wait_sees("lb-a", "flows", 6);
    assert!(fleet.owner().baton.flows_of("b1") == 6, "{:?}", fleet.owner().baton.flows());
    // By way of the peer's entries both ways.
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(2, 100_000));
    drop(conns);
    fleet.heir().wait_sees("lb-a", "flows", 0);
}
