//! What clients see when an instance dies or lets its address go: for graduated flows nothing, for the others at most a
//! reset at once.

use std::net::IpAddr;

use super::*;

const VIP: &str = "10.77.0.100";

fn vip() -> SocketAddr {
    SocketAddr::new(VIP.parse().unwrap(), 6443)
}

/// A fleet before a VIP that the first instance has.
struct Fleet {
    scene: Scene,
    all: Vec<Instance>,
    _servers: [Server; 2],
    _pinned: Vec<Pinned>,
}

/// What becomes of flows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flows {
    /// There is no packet path.
    Proxied,
    /// There is one, but they stay in their sockets.
    Kept,
    Graduate,
}

impl Fleet {
    fn new(test: &str, count: usize, flows: Flows, change: impl Fn(Config) -> Config) -> Option<Self> {
        let scene = Scene::new(test, count)?;
        let servers = scene.serve();
        let mut pinned = Vec::new();
        let mut all = Vec::new();
        for number in 0..count {
            let mut config =
                scene.config(number).frontend("listen", vec![vip().to_string()]).peers("sync_deadline", "2s");
            if flows != Flows::Proxied {
                let pins = Pinned::new();
                if let Err(error) = pins.open(&[]) {
                    network::skip(test, &error.to_string());
                    return None;
                }
                config = config.graduating(&pins.directory);
                pinned.push(pins);
            }
            if flows == Flows::Kept {
                config = config.path("after_round_trips", 1000).path("after", "1h");
            }
            all.push(scene.launch(number, &change(config)));
        }
        for instance in &all {
            instance.baton.wait_until_ready();
            let others = NAMES[..count].iter().filter(|name| **name != instance.name);
            others.for_each(|name| instance.wait_synced(name));
            instance.baton.wait_standing("b1", "ready", LONG);
            instance.baton.wait_standing("b2", "ready", LONG);
        }
        all[0].host.add_address(vip().ip());
        eventually(LONG, "the VIP is served", || {
            let conn = scene.lab.client.try_connect(vip(), secs(1));
            conn.is_ok_and(|mut conn| conn.try_echo(1, 100).is_ok())
        });
        Some(Self { scene, all, _servers: servers, _pinned: pinned })
    }

    /// So many clients that have been served.
    fn clients(&self, count: u64) -> Vec<Conn> {
        let mut conns: Vec<_> = (0..count).map(|_| self.scene.lab.client.connect(vip())).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 100));
        conns
    }

    fn owner(&self) -> &Instance {
        &self.all[0]
    }

    fn heir(&self) -> &Instance {
        &self.all[1]
    }

    /// The heir knows of so many flows of the owner, of which so many have no sockets.
    fn wait_known(&self, flows: u64, graduated: u64) {
        self.heir().wait_sees("lb-a", "flows", flows);
        self.heir().wait_sees("lb-a", "graduated", graduated);
    }

    fn let_go(&self, instance: &Instance) {
        instance.host.run(&format!("ip address del {VIP}/24 dev eth0"));
    }

    fn take(&self, instance: &Instance) {
        instance.host.add_address(VIP.parse::<IpAddr>().unwrap());
    }
}

/// How long it takes from now until each of them has seen RST; panics if one sees anything else.
fn all_reset(conns: &mut [Conn]) -> std::time::Duration {
    let watch = Stopwatch::start();
    for conn in conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    watch.elapsed()
}

#[test]
fn idle_clients_of_a_host_that_died_are_reset_although_the_new_owner_drops_what_it_has_not_tracked() {
    for firewall in [false, true] {
        let test = "idle_clients_of_a_host_that_died_are_reset";
        let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
        let mut conns = fleet.clients(300);
        fleet.wait_known(300, 0);
        let heir = &fleet.heir().host;
        if firewall {
            let chain =
                |hook| format!("chain {hook} {{\ntype filter hook {hook} priority 0\nct state invalid drop\n}}\n");
            heir.nft(&format!("table inet strict {{\n{}{}}}\n", chain("input"), chain("output")));
            heir.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
        }
        fleet.owner().host.link_down();
        fleet.heir().wait_sees("lb-a", "pulse", "dead");
        fleet.take(fleet.heir());
        println!("firewall {firewall}: {} clients reset after {:?}", conns.len(), all_reset(&mut conns));
        eventually(LONG, "backends are told, too", || {
            fleet.heir().baton.metric("baton_takeover_tickled_total", &[]) >= 600.0
        });
    }
}

#[test]
fn without_waking_them_idle_clients_of_a_host_that_died_wait_on() {
    let test = "without_waking_them_idle_clients_of_a_host_that_died_wait_on";
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config.takeover("tickle", false)) else { return };
    let mut conns = fleet.clients(5);
    fleet.wait_known(5, 0);
    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "pulse", "dead");
    fleet.take(fleet.heir());
    assert_eq!(conns[0].end(secs(3)), End::Open);
}

#[test]
fn idle_clients_of_a_host_that_died_are_reset_by_the_packet_path() {
    let test = "idle_clients_of_a_host_that_died_are_reset_by_the_packet_path";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let mut conns = fleet.clients(300);
    fleet.wait_known(300, 0);
    fleet.owner().host.link_down();
    // While it is only silent: that the VIP comes here is what makes it dead.
    fleet.heir().wait_sees("lb-a", "pulse", "silent");
    fleet.take(fleet.heir());
    println!("{} clients reset after {:?}", conns.len(), all_reset(&mut conns));
    eventually(LONG, "all have answered", || {
        let told = fleet.heir().baton.events_of("clients_told");
        told.iter().any(|event| event["answered"] == 300 && event["silent"] == 0)
    });
    eventually(LONG, "the backends' halves are gone", || fleet.scene.lab.b1.tcp_sockets().len() < 10);
}

#[test]
fn graduated_flows_outlive_the_host_that_graduated_them() {
    let test = "graduated_flows_outlive_the_host_that_graduated_them";
    let Some(fleet) = Fleet::new(test, 2, Flows::Graduate, |config| config) else { return };
    let mut conns = fleet.clients(100);
    for round in 0..5 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    fleet.owner().baton.wait_graduated(100);
    fleet.wait_known(100, 100);
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| conn.echo(7, 300));
    println!("100 flows went on after {:?}", watch.elapsed());
    fleet.heir().baton.wait_graduated(100);
    conns.iter_mut().for_each(|conn| conn.echo(8, 100_000));
    drop(conns);
    fleet.heir().baton.wait_ended("client_closed", 100);
}

#[test]
fn proxied_flows_are_served_by_their_owner_after_the_vip_has_moved() {
    let test = "proxied_flows_are_served_by_their_owner_after_the_vip_has_moved";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let mut conns = fleet.clients(100);
    fleet.wait_known(100, 0);
    fleet.let_go(fleet.owner());
    fleet.take(fleet.heir());
    for round in 0..5 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 2000));
    }
    let mut fresh = fleet.scene.lab.client.connect(vip());
    fresh.echo(9, 100);
    assert_eq!(fleet.heir().baton.flow_count(), 1, "new ones are served by the new owner");
    assert_eq!(fleet.owner().baton.flow_count(), 100);
    let untracked = |outcome| fleet.heir().baton.metric("baton_untracked_packets_total", &[outcome]);
    eventually(LONG, "what was forwarded is counted", || untracked("forwarded") >= 500.0);
    assert_eq!(untracked("reset"), 0.0);
    drop(conns);
    eventually(LONG, "they end at their owner", || fleet.owner().baton.flow_count() == 0);
    eventually(LONG, "the address is not kept any longer", || {
        !fleet.owner().host.run("ip -4 -o address show dev lo").contains(VIP)
    });
}

#[test]
fn graduated_flows_follow_the_vip_to_and_fro() {
    let test = "graduated_flows_follow_the_vip_to_and_fro";
    let Some(fleet) = Fleet::new(test, 2, Flows::Graduate, |config| config) else { return };
    let mut conns = fleet.clients(50);
    for round in 0..5 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    fleet.owner().baton.wait_graduated(50);
    fleet.wait_known(50, 50);
    let (mut from, mut to) = (fleet.owner(), fleet.heir());
    for round in 0..4 {
        fleet.let_go(from);
        fleet.take(to);
        conns.iter_mut().for_each(|conn| conn.echo(round, 20_000));
        to.baton.wait_graduated(50);
        from.baton.wait_ended("moved", 50 * (round / 2 + 1));
        eventually(LONG, "it lists them no more", || from.baton.flow_count() == 0);
        std::mem::swap(&mut from, &mut to);
    }
}
