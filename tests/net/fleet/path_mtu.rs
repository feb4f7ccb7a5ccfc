//! A router's MTU falls under flows whose VIP has moved: its errors must reach the end that sends too large packets.

use super::failover::{Fleet, Flows, VIP, VIP6};
use super::*;

/// Clients and backends each behind a router's leg of their own; the router is one host.
struct Routed {
    fleet: Fleet,
    _servers: [Server; 2],
    router: Host,
}

/// Networks behind the router: the clients', the backends'. The router is their first host.
const NETWORKS: [[&str; 2]; 2] = [["192.0.2.", "fdc1::"], ["198.51.100.", "fdb1::"]];
const FAR: u16 = 10;

fn bits(vip: &str) -> u8 {
    if vip.contains(':') { 64 } else { 24 }
}

/// Host `number` of one of [`NETWORKS`], in the family of `vip`.
fn at(network: usize, vip: &str, number: u16) -> std::net::IpAddr {
    let prefix = NETWORKS[network][usize::from(vip.contains(':'))];
    format!("{prefix}{number}").parse().unwrap()
}

impl Routed {
    fn new(test: &str, vip: &str, flows: Flows) -> Option<Self> {
        let scene = Scene::new(test, 2)?;
        let (bits, v6) = (bits(vip), vip.contains(':'));
        let router = scene.lab.another("router", 9);
        router.sysctl("net/ipv4/ip_forward", "1");
        router.sysctl("net/ipv6/conf/all/forwarding", "1");
        let own = if v6 { router.v6(0).ip() } else { router.v4(0).ip() };
        for (network, host) in [(0, &scene.lab.client), (1, &scene.lab.b1)] {
            let (gateway, far) = (at(network, vip, 1), at(network, vip, FAR));
            let (leg, nodad) = (format!("leg{network}"), if v6 { "nodad" } else { "" });
            router.second_link(&leg);
            router.run(&format!("ip address add {gateway}/{bits} dev {leg} {nodad}"));
            host.run(&format!("ip address add {far}/{bits} dev eth0 {nodad}"));
            host.run(&format!("ip route replace {vip} via {gateway} dev eth0 src {far}"));
            for instance in [scene.host(0), scene.host(1)] {
                instance.run(&format!("ip route add {far} via {own}"));
                // The VIP's packets come by whatever way the router has, and no shorter one is ever told.
                router.sysctl("net/ipv4/conf/all/send_redirects", "0");
            }
        }
        let backends = [6443, 6444].map(|port| SocketAddr::new(at(1, vip, FAR), port));
        let servers = backends.map(|backend| scene.lab.b1.serve_on(backend, Behaviour::Echo));
        let change = |_, config: Config| config.only(&[]).backend("b1", backends[0]).backend("b2", backends[1]);
        let fleet = Fleet::within(scene, vip, test, 2, flows, change)?.with_owner();
        Some(Self { fleet, _servers: servers, router })
    }

    /// So many bytes fit each way through the router from now on.
    fn narrow(&self, mtu: u16) {
        let vip = self.fleet.vip.ip().to_string();
        for network in [0, 1] {
            self.router.run(&format!("ip route replace {} dev leg{network} mtu {mtu}", at(network, &vip, FAR)));
        }
        self.router.run(&format!("ip route replace {vip} dev eth0 mtu {mtu}"));
    }

    fn move_vip(&self) {
        self.fleet.remove_vip(self.fleet.owner());
        self.fleet.take(self.fleet.heir());
    }
}

fn all_bytes_arrive(test: &str, flows: Flows, moves: bool) {
    for vip in [VIP, VIP6] {
        let Some(routed) = Routed::new(test, vip, flows) else { return };
        let fleet = &routed.fleet;
        let mut old = match flows {
            Flows::Offload => fleet.offloaded_clients(1),
            _ => fleet.clients(1),
        };
        fleet.wait_known(1, u64::from(flows == Flows::Offload));
        if moves {
            routed.move_vip();
            old[0].echo(1, 3000);
        }
        let mut new = fleet.clients(1);
        routed.narrow(1300);
        for (name, conn) in [("old", &mut old[0]), ("new", &mut new[0])] {
            let watch = Stopwatch::start();
            conn.try_echo(2, 100_000).unwrap_or_else(|error| panic!("{name} flow by {vip}: {error}"));
            println!("{name} flow by {vip}: all bytes there and back after {:?}", watch.elapsed());
        }
    }
}

#[test]
fn a_forwarded_flow_delivers_all_bytes_when_the_path_mtu_falls() {
    all_bytes_arrive("a_forwarded_flow_delivers_all_bytes_when_the_path_mtu_falls", Flows::Kept, true);
}

#[test]
fn an_offloaded_flow_delivers_all_bytes_when_the_path_mtu_falls() {
    all_bytes_arrive("an_offloaded_flow_delivers_all_bytes_when_the_path_mtu_falls", Flows::Offload, false);
}

#[test]
fn an_offloaded_flow_whose_vip_has_moved_delivers_all_bytes_when_the_path_mtu_falls() {
    let test = "an_offloaded_flow_whose_vip_has_moved_delivers_all_bytes_when_the_path_mtu_falls";
    all_bytes_arrive(test, Flows::Offload, true);
}
