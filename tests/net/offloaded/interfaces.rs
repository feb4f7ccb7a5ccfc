//! Interfaces of other kinds than the wire itself. A kind that the kernel was built without is skipped, with a word.

use std::net::{IpAddr, SocketAddr};

use super::Scene;
use crate::lab::*;

/// Whether the kernel makes such interfaces; else it is said that `test` was skipped.
pub(super) fn knows(test: &str, host: &Host, kind: &str) -> bool {
    let tried = host.run(&format!("ip link add name probe type {kind} 2>&1 && ip link del probe || true"));
    let unknown = tried.contains("Unknown device type");
    if unknown {
        network::skip(
            test,
            &format!("this kernel has no interfaces of type {}", kind.split(' ').next().unwrap_or(kind)),
        );
    }
    !unknown
}

fn talk(conns: &mut [Conn], bytes: u64) {
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, bytes));
}

/// The balancer's only interface is `over`, which `make` makes of eth0.
fn in_place_of_eth0(test: &str, kind: &str, over: &str, make: &str) {
    let Some(scene) = Scene::new(test) else { return };
    let lab = &scene.lab;
    if !knows(test, &lab.lb, kind) {
        return;
    }
    lab.lb.run(&format!(
        "ip address flush dev eth0\n{make}\nip link set {over} up\nip address add 10.77.0.2/24 dev {over}"
    ));
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("listen", vec![lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(5);
    talk(&mut conns, 500_000);
    assert!(baton.status()["offload"]["interfaces"].as_array().unwrap().iter().any(|name| name == over));
    drop(conns);
    baton.wait_ended("client_closed", 5);
}

/// Everybody has one more interface, `over`, and an address on it; all goes by these.
fn beside_eth0(test: &str, kind: &str, over: &str, make: impl Fn(&Host, u8) -> String) {
    let Some(scene) = Scene::new(test) else { return };
    let lab = &scene.lab;
    if !knows(test, &lab.lb, kind) {
        return;
    }
    for (host, last) in [(&lab.lb, 2), (&lab.client, 10), (&lab.b1, 21)] {
        host.run(&format!(
            "{}\nip link set {over} up\nip address add 10.55.0.{last}/24 dev {over}\n\
             ip address add 2001:db8:55::{last}/64 dev {over} nodad",
            make(host, last)
        ));
    }
    for [vip, backend] in [["10.55.0.2", "10.55.0.21"], ["2001:db8:55::2", "2001:db8:55::21"]] {
        let [vip, backend] = [vip, backend].map(|ip| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 6443));
        let _server = lab.b1.serve_on(backend, Behaviour::Echo);
        let config = scene.config().only(&[]).backend("over", backend).frontend("listen", vec![vip.to_string()]);
        let baton = lab.start(&config);
        let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(vip)).collect();
        talk(&mut conns, 50_000);
        baton.wait_offloaded(5);
        talk(&mut conns, 500_000);
        drop(conns);
        // Those of the Baton before may be among them.
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        assert_eq!(baton.ended().keys().collect::<Vec<_>>(), ["client_closed"]);
        baton.rests();
    }
}

#[test]
fn a_macvlan_has_its_flows_offloaded() {
    in_place_of_eth0("macvlan", "macvlan", "own", "ip link add own link eth0 type macvlan mode bridge");
}

#[test]
fn a_bond_has_its_flows_offloaded() {
    let make = "ip link add bonded type bond mode active-backup\nip link set eth0 down\n\
                ip link set eth0 master bonded\nip link set eth0 up";
    in_place_of_eth0("bond", "bond", "bonded", make);
}

#[test]
fn a_vlan_has_its_flows_offloaded() {
    beside_eth0("vlan", "vlan id 9", "eth0.5", |_, _| "ip link add eth0.5 link eth0 type vlan id 5".to_owned());
}

/// `before`: of each host's wire.
fn vxlan(test: &str, before: &str) {
    beside_eth0(test, "vxlan id 9 dstport 4790", "tunnel", |host, _| {
        let others = ["10.77.0.2", "10.77.0.10", "10.77.0.21"];
        let own = host.v4.to_string();
        let entries = others.iter().filter(|other| **other != own);
        let entries: Vec<_> =
            entries.map(|other| format!("bridge fdb append 00:00:00:00:00:00 dev tunnel dst {other}")).collect();
        format!(
            "{before}\nip link add tunnel mtu 1450 type vxlan id 7 dstport 4789 local {own} udpcsum udp6zerocsumrx\n{}",
            entries.join("\n")
        )
    });
}

#[test]
fn a_vxlan_tunnel_has_its_flows_offloaded() {
    vxlan("vxlan", "true");
}

/// Each host computes the checksums of received packets itself, those of the outer packets too: packets from the tunnel
/// were summed in another way than packets from a wire.
#[test]
fn a_vxlan_tunnel_without_offloads_has_its_flows_offloaded() {
    vxlan("vxlan without offloads", "ethtool -K eth0 tso off gso off gro off tx off rx off sg off");
}

/// As `networkctl reconfigure`, a driver that is loaded anew or a hot-plugged card does.
#[test]
fn offloaded_flows_go_on_when_their_interface_is_made_anew() {
    let Some(scene) = Scene::new("interface made anew") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("listen", vec![lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(20);
    for round in 0..3 {
        lab.lb.make_link_anew();
        let watch = Stopwatch::start();
        talk(&mut conns, 50_000);
        println!("round {round}: all have answered {:?} after the interface came", watch.elapsed());
    }
    let mut born = lab.client.connect(lab.lb.v4(6443));
    born.echo(1, 1000);
    drop((conns, born));
    baton.wait_ended("client_closed", 21);
}
