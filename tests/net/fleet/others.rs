//! Others that use the VIP's address: ports of it that the host's kernel translates, as kube-proxy has it do for NodePorts
//! and hostPorts.

use super::failover::{Fleet, Flows, VIP, VIP6};
use super::*;

/// What port ranges are cut from: 6,912 ports for each of eight instances.
const RANGE: &str = "10240 65535";

/// In no port range; in the first instance's; in the second's; beside all of them.
const PORTS: [u16; 4] = [30080, 12000, 20000, 8443];

/// What every instance's host does with [`PORTS`] of the VIP: they are a pod's.
fn translate(scene: &Scene, vip: &str) {
    let lab = &scene.lab;
    let (word, pod) = if vip.contains(':') { ("ip6", lab.b1.v6(8080)) } else { ("ip", lab.b1.v4(8080)) };
    let ports = PORTS.map(|port| port.to_string()).join(", ");
    for host in [scene.host(0), scene.host(1)] {
        host.sysctl("net/ipv4/ip_local_port_range", RANGE);
        host.sysctl("net/ipv4/ip_forward", "1");
        host.sysctl("net/ipv6/conf/all/forwarding", "1");
        host.nft(&format!(
            "table inet nodeports {{
             chain before {{ type nat hook prerouting priority dstnat; {word} daddr {vip} tcp dport {{ {ports} }} dnat {word} to {pod}; }}
             chain behind {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}
             }}\n"
        ));
    }
}

/// A pair, the first of which has the VIP; ports are translated before any of them runs.
fn fleet(test: &str, vip: &str) -> Option<(Fleet, Server)> {
    let scene = Scene::new(test, 2)?;
    translate(&scene, vip);
    let pod = if vip.contains(':') { scene.lab.b1.v6(8080) } else { scene.lab.b1.v4(8080) };
    let pod = scene.lab.b1.serve_on(pod, Behaviour::Echo);
    Some((Fleet::within(scene, vip, test, 2, Flows::Kept, |_, config| config)?, pod))
}

fn connect(fleet: &Fleet, port: u16) -> Conn {
    fleet.scene.lab.client.connect(SocketAddr::new(fleet.vip.ip(), port))
}

/// Short sessions by every port, one after the other.
#[track_caller]
fn short_sessions(fleet: &Fleet) {
    for round in 0..3 {
        for port in PORTS {
            let done = connect(fleet, port).try_echo(round, 300);
            done.unwrap_or_else(|error| panic!("port {port}, session {round}: {error}"));
        }
    }
}

fn sessions_by_translated_ports_live(vip: &str) {
    let Some((fleet, _pod)) = fleet("sessions_by_translated_ports_live", vip) else { return };
    let fleet = fleet.with_owner();
    short_sessions(&fleet);
    let mut long = PORTS.map(|port| connect(&fleet, port));
    long.iter_mut().for_each(|conn| conn.echo(1, 5000));
    // Longer than a SYN alone shows that its connection is not Baton's.
    let idle = Stopwatch::start();
    fleet.heir().host.link_down();
    fleet.owner().wait_sees("lb-b", "liveness", "dead");
    short_sessions(&fleet);
    eventually(LONG, "they were idle for a while", || idle.elapsed() > ms(2500));
    long.iter_mut().for_each(|conn| conn.echo(2, 100_000));
    fleet.heir().host.link_up();
    fleet.owner().wait_synced("lb-b");
    fleet.heir().wait_synced("lb-a");
    long.iter_mut().for_each(|conn| conn.echo(3, 5000));
    assert_eq!(fleet.resets(), 0.0, "nobody was taken for a flow of Baton's");
    // The next owner's kernel translates new ones, and has never heard of the others: they go on at the old one, or end.
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    // What begins at the old one is none that the new one has seen begin.
    let (client, new) = (&fleet.scene.lab.client, fleet.heir().host.mac());
    eventually(LONG, "the client knows where the VIP is", || {
        let known = client.neighbour(fleet.vip.ip());
        if known.is_none() {
            let _ = client.try_connect(SocketAddr::new(fleet.vip.ip(), 8443), secs(1));
        }
        known.as_ref() == Some(&new)
    });
    short_sessions(&fleet);
    for conn in &mut long {
        let error = conn.try_echo(4, 5000).err();
        assert!(error.as_ref().is_none_or(|error| End::of_error(error) == End::Rst), "{error:?}");
    }
}

#[test]
fn sessions_by_translated_ports_of_the_vip_live_beside_a_fleet() {
    sessions_by_translated_ports_live(VIP);
}

#[test]
fn sessions_by_translated_ports_of_the_vip_live_beside_a_fleet_by_ipv6() {
    sessions_by_translated_ports_live(VIP6);
}

/// Masquerading may choose the VIP, and does so by IPv6 where it came last. What answers then comes for a port of a range.
#[test]
fn sessions_that_the_host_sends_on_in_the_vips_name_live_beside_a_fleet() {
    let test = "sessions_that_the_host_sends_on_in_the_vips_name_live_beside_a_fleet";
    let Some((fleet, _pod)) = fleet(test, VIP) else { return };
    let fleet = fleet.with_owner();
    let owner = &fleet.owner().host;
    owner.nft(&format!("table inet nodeports {{ chain first {{ type nat hook postrouting priority 90; ct status dnat snat ip to {VIP}; }}\n}}\n"));
    // The port stays as it is: in no port range, in the first instance's, in the second's.
    for range in ["45000 50000", "10300 17000", "17300 24000"] {
        fleet.scene.lab.client.sysctl("net/ipv4/ip_local_port_range", range);
        let mut conns = [30080, 8443].map(|port| connect(&fleet, port));
        for conn in &mut conns {
            conn.try_echo(1, 5000).unwrap_or_else(|error| panic!("from {range}: {error}"));
        }
        let idle = Stopwatch::start();
        eventually(LONG, "they were idle for a while", || idle.elapsed() > ms(2200));
        conns.iter_mut().for_each(|conn| conn.echo(2, 100_000));
    }
    assert_eq!(fleet.resets(), 0.0);
}

/// No instance has seen it begin, so conntrack is asked.
#[test]
fn a_session_by_a_translated_port_that_is_older_than_baton_lives() {
    let test = "a_session_by_a_translated_port_that_is_older_than_baton_lives";
    let Some(scene) = Scene::new(test, 2) else { return };
    translate(&scene, VIP);
    let _pod = scene.lab.b1.serve_on(scene.lab.b1.v4(8080), Behaviour::Echo);
    scene.host(0).add_address(VIP.parse().unwrap());
    let vip = |port| SocketAddr::new(VIP.parse().unwrap(), port);
    // The second instance's port is not among them: unknown packets to it go to that instance.
    let mut old = [30080, 12000, 8443].map(|port| scene.lab.client.connect(vip(port)));
    old.iter_mut().for_each(|conn| conn.echo(1, 100));
    let Some(fleet) = Fleet::within(scene, VIP, test, 2, Flows::Kept, |_, config| config) else { return };
    fleet.wait_served();
    old.iter_mut().for_each(|conn| conn.echo(2, 100_000));
    assert_eq!(fleet.resets(), 0.0);
}
