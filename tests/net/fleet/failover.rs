//! What clients see when an instance dies or lets its address go: for offloaded flows nothing, for the others at most a
//! reset at once.

mod addresses;
mod again;
mod built_in;
mod crossing;
mod drills;
mod evacuate;
mod half_closed;
mod load;
mod named;
mod offloaded;
mod proofs;
mod records;
mod reload;
mod room;
mod second;
mod upgraded;
mod what_if;
mod wildcard;

use super::*;
use crate::lab::baton::BINARY;
use ::baton::offload::entry::{Entry, Key};
use ::baton::sys::bpf::Map;

use crate::lab::bytes::Tally;
use crate::lab::process::Process;

pub const VIP: &str = "10.77.0.100";
pub const VIP6: &str = "fd77::100";

/// A fleet before a VIP that the first instance has.
pub struct Fleet {
    pub vip: SocketAddr,
    /// They go before the directory with their logs, of which a test that fails shows the end.
    pub all: Vec<Instance>,
    pub scene: Scene,
    pub servers: [Server; 2],
    pinned: Vec<Pinned>,
}

/// The fate of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// There are no peers either: the control without a fleet.
    Alone,
    /// There is no offload engine.
    Proxied,
    /// There is one, but they stay in their sockets.
    Kept,
    Offload,
}

impl Fleet {
    pub fn new(test: &str, count: usize, flows: Flows, change: impl Fn(Config) -> Config) -> Option<Self> {
        Self::at(VIP, test, count, flows, change)
    }

    pub fn at(vip: &str, test: &str, count: usize, flows: Flows, change: impl Fn(Config) -> Config) -> Option<Self> {
        Self::within(Scene::new(test, count)?, vip, test, count, flows, |_, config| change(config))
    }

    /// `change` is told which instance the configuration is of.
    pub fn within(
        scene: Scene,
        vip: &str,
        test: &str,
        count: usize,
        flows: Flows,
        change: impl Fn(usize, Config) -> Config,
    ) -> Option<Self> {
        let vip = SocketAddr::new(vip.parse().unwrap(), 6443);
        let hosts = [&scene.lab.b1, &scene.lab.b2];
        let serving = hosts.map(|host| if vip.is_ipv6() { host.v6(6443) } else { host.v4(6443) });
        let servers = [0, 1].map(|number| hosts[number].serve_on(serving[number], Behaviour::Echo));
        let mut pinned = Vec::new();
        let mut all = Vec::new();
        let mut alone = false;
        for number in 0..count {
            let mut config =
                scene.config(number).frontend("listen", vec![vip.to_string()]).peers("sync_deadline", "2s");
            config = config.only(&[]).backend("b1", serving[0]).backend("b2", serving[1]);
            if matches!(flows, Flows::Kept | Flows::Offload) {
                let pins = Pinned::unused(test)?;
                config = config.offloading(&pins.directory);
                pinned.push(pins);
            }
            if flows == Flows::Kept {
                config = config.offload("after_round_trips", 1000).offload("after", "1h");
            }
            let config = change(number, config);
            let config = if flows == Flows::Alone { config.alone() } else { config };
            alone = config.is_alone();
            all.push(scene.launch(number, &config));
        }
        for instance in &all {
            instance.baton.wait_until_ready();
            let others = NAMES[..count].iter().filter(|name| **name != instance.name);
            others.filter(|_| !alone).for_each(|name| instance.wait_synced(name));
            instance.baton.wait_health("b1", "ready", LONG);
            instance.baton.wait_health("b2", "ready", LONG);
        }
        Some(Self { scene, vip, all, servers, pinned })
    }

    /// The first has the VIP.
    pub fn with_owner(self) -> Self {
        self.owner().host.add_address(self.vip.ip());
        self.wait_served();
        self
    }

    /// All have the VIP, and routers spread flows over some of them.
    pub fn spread(self) -> Self {
        let fleet = self.with_vip_on_lo();
        fleet.route(&[0]);
        fleet.wait_served();
        fleet
    }

    /// As [`Fleet::spread`], and the caller must set the routes.
    fn with_vip_on_lo(self) -> Self {
        for instance in &self.all {
            instance.host.run(&format!("ip address add {VIP}/32 dev lo"));
            for key in ["ip_forward", "conf/all/rp_filter", "conf/eth0/rp_filter"] {
                instance.host.sysctl(&format!("net/ipv4/{key}"), "0");
            }
        }
        self
    }

    /// Clients and backends reach the VIP by these instances, each flow's two directions by whichever comes.
    pub fn route(&self, numbers: &[usize]) {
        let hops = numbers.iter().map(|number| format!("nexthop via {} ", self.all[*number].host.v4));
        let hops = hops.collect::<String>();
        for host in [&self.scene.lab.client, &self.scene.lab.b1, &self.scene.lab.b2] {
            host.sysctl("net/ipv4/fib_multipath_hash_policy", "1");
            host.run(&format!("ip route replace {VIP}/32 {hops}"));
        }
    }

    pub fn wait_served(&self) {
        eventually(LONG, "the VIP is served", || {
            let conn = self.scene.lab.client.try_connect(self.vip, secs(1));
            conn.is_ok_and(|mut conn| conn.try_echo(1, 100).is_ok())
        });
    }

    /// Real keepalived gives the VIP to the first.
    pub fn kept_alive(&self) -> Vec<Process> {
        self.kept_alive_by(100, "0.1")
    }

    /// As [`Fleet::kept_alive`], with an interval that a keepalived survives which a busy machine keeps waiting for a second.
    pub fn kept_alive_slowly(&self) -> Vec<Process> {
        self.kept_alive_by(100, "0.5")
    }

    /// As [`Fleet::kept_alive`], with the first one's priority, and so many seconds between two advertisements.
    fn kept_alive_by(&self, priority: u8, interval: &str) -> Vec<Process> {
        let pair = [(0, 1, priority), (1, 0, priority - 10)];
        let all = pair.map(|(number, peer, priority)| {
            let (own, peer) = (&self.all[number], &self.all[peer]);
            let hosts = [&own.host, &peer.host];
            let process = crate::vip::keepalived_every(interval, hosts, &own.directory, &own.baton, (priority, &[]));
            if number == 0 {
                eventually(LONG, "the first has the VIP", || own.host.has_address(VIP));
            }
            process
        });
        self.wait_served();
        all.into()
    }

    pub fn resets(&self) -> f64 {
        self.all.iter().map(|it| it.baton.metric("baton_unknown_packets_total", &["reset"])).sum()
    }

    /// Fails if an RST for an unknown packet met a connection. One that both ends have closed may have its last acknowledgement
    /// come where it is not known any more, and the RST then finds nobody. `open`: the clients of connections that are not closed.
    /// Returns the number of such acknowledgements.
    #[track_caller]
    pub fn met_no_connection(&self, open: &[SocketAddr]) -> u64 {
        // Each is in the log before it is counted.
        let counted = self.resets();
        let logs: Vec<_> = self.all.iter().map(|it| it.baton.process.log_text()).collect();
        let resets: Vec<_> = logs
            .iter()
            .flat_map(|log| log.lines())
            .filter(|line| line.contains("no instance knows this packet's flow: RST"))
            .collect();
        assert!(resets.len() as f64 >= counted, "{} of {counted} are in the logs", resets.len());
        println!("{} late acknowledgements", resets.len());
        let late = |line: &&str| {
            line.ends_with("flags=16 length=0") && !open.iter().any(|client| line.contains(&format!("={client} ")))
        };
        assert!(resets.iter().all(late), "{resets:#?}");
        resets.len() as u64
    }

    /// So many clients that have been served.
    pub fn clients(&self, count: u64) -> Vec<Conn> {
        let mut conns: Vec<_> = (0..count).map(|_| self.scene.lab.client.connect(self.vip)).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 100));
        conns
    }

    /// As [`Fleet::clients`], and the owner has been offloaded their flows.
    pub fn offloaded_clients(&self, count: u64) -> Vec<Conn> {
        let mut conns = self.clients(count);
        for round in 0..5 {
            conns.iter_mut().for_each(|conn| conn.echo(round, 200));
        }
        self.owner().baton.wait_offloaded(count);
        conns
    }

    pub fn owner(&self) -> &Instance {
        &self.all[0]
    }

    pub fn heir(&self) -> &Instance {
        &self.all[1]
    }

    /// The heir knows of so many flows of the owner, of which so many have no sockets.
    pub fn wait_known(&self, flows: u64, offloaded: u64) {
        self.heir().wait_sees(self.owner().name, "flows", flows);
        self.heir().wait_sees(self.owner().name, "offloaded", offloaded);
    }

    /// Exchanges bytes on each until all are flows of `instance`: until the client has heard where the VIP is now, its packets go
    /// to the old host, which carries them as well.
    pub fn serve_at(&self, instance: &Instance, conns: &mut [Conn], bytes: u64) {
        let mut seed = 0;
        eventually(LONG, &format!("{} lists all", instance.name), || {
            seed += 1;
            conns.iter_mut().for_each(|conn| conn.echo(seed, bytes));
            instance.baton.status()["totals"]["flows"]["offloaded"] == conns.len()
        });
    }

    /// Whether the program of instance `number` runs on this interface of its host.
    pub fn is_on(&self, number: usize, interface: &str) -> bool {
        let status = ::baton::offload::program::status(&self.pinned[number].directory).expect("it can be read");
        status.expect("it is pinned").links.iter().any(|link| link.interface == interface)
    }

    /// What instance `number` has pinned goes, as in a reboot.
    pub fn empty_map(&self, number: usize) {
        ::baton::offload::program::remove(&self.pinned[number].directory).expect("pins of a process that has ended");
    }

    /// What instance `number` has in its map.
    pub fn entries(&self, number: usize) -> Vec<(Key, Entry)> {
        let map = Map::open(&self.pinned[number].directory.join("flows")).expect("it is pinned");
        let room = map.max_entries() as usize;
        let (mut keys, mut values) = (vec![0; room * map.key_size()], vec![0; room * map.value_size()]);
        let (count, _) = map.look_up_batch(None, &mut keys, &mut values).expect("it is read");
        let all = keys.as_chunks().0.iter().zip(values.as_chunks().0).take(count);
        all.map(|(key, entry)| (Key::decode(key), Entry::decode(entry))).collect()
    }

    pub fn remove_vip(&self, instance: &Instance) {
        let bits = if self.vip.is_ipv6() { 64 } else { 24 };
        instance.host.run(&format!("ip address del {}/{bits} dev eth0", self.vip.ip()));
    }

    pub fn take(&self, instance: &Instance) {
        instance.host.add_address(self.vip.ip());
    }
}

/// Waits until a client loses the flow that it uses, and fails if none does; how it is lost. [`End::Open`]: it had no answer for as
/// long as it would wait.
#[track_caller]
pub fn wait_lost(conns: &mut [Conn]) -> End {
    let mut seed = 100;
    let (error, after) = eventually_some(LONG, "a flow is lost", || {
        seed += 1;
        conns.iter_mut().find_map(|conn| conn.try_echo(seed, 2000).err())
    });
    println!("without peers a flow is lost after {after:?}: {error}");
    End::of_error(&error)
}

/// How long it takes from now until each of them has seen RST; panics if one sees anything else.
pub fn all_reset(conns: &mut [Conn]) -> std::time::Duration {
    let watch = Stopwatch::start();
    for conn in conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    watch.elapsed()
}

/// A firewall, as many hosts have it, that lets nothing pass of a connection that began at another host.
pub fn drop_untracked(host: &Host) {
    let chain = |hook| format!("chain {hook} {{\ntype filter hook {hook} priority 0\nct state invalid drop\n}}\n");
    host.nft(&format!("table inet strict {{\n{}{}}}\n", chain("input"), chain("output")));
    host.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
}

#[test]
fn idle_clients_of_a_host_that_died_are_reset_although_the_new_owner_drops_what_it_has_not_tracked() {
    for firewall in [false, true] {
        let test = "idle_clients_of_a_host_that_died_are_reset";
        let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config) else { return };
        let fleet = fleet.with_owner();
        let mut conns = fleet.clients(300);
        fleet.wait_known(300, 0);
        let heir = &fleet.heir().host;
        if firewall {
            drop_untracked(heir);
        }
        fleet.owner().host.link_down();
        fleet.heir().wait_sees("lb-a", "liveness", "dead");
        fleet.take(fleet.heir());
        println!("firewall {firewall}: {} clients reset after {:?}", conns.len(), all_reset(&mut conns));
        eventually(LONG, "backends are told, too", || {
            fleet.heir().baton.metric("baton_failover_challenged_total", &[]) >= 600.0
        });
    }
}

#[test]
fn without_waking_them_idle_clients_of_a_host_that_died_wait_on() {
    let test = "without_waking_them_idle_clients_of_a_host_that_died_wait_on";
    let Some(fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config.failover("challenge", false)) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.clients(5);
    fleet.wait_known(5, 0);
    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    fleet.take(fleet.heir());
    assert_eq!(conns[0].end(secs(3)), End::Open);
}

#[test]
fn idle_clients_of_a_host_that_died_are_reset_by_the_packet_path() {
    let test = "idle_clients_of_a_host_that_died_are_reset_by_the_packet_path";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.clients(300);
    fleet.wait_known(300, 0);
    let silences = || {
        let all = fleet.heir().baton.events_of("peer_liveness");
        all.iter().filter(|it| it["peer"] == "lb-a" && it["liveness"] == "silent").count()
    };
    let before = silences();
    fleet.owner().host.link_down();
    // While it is only silent: that the VIP comes here is what makes it dead.
    eventually(LONG, "it falls silent", || silences() > before);
    fleet.take(fleet.heir());
    println!("{} clients reset after {:?}", conns.len(), all_reset(&mut conns));
    eventually(LONG, "all have answered", || {
        let told = fleet.heir().baton.events_of("clients_told");
        told.iter().any(|event| event["answered"] == 300 && event["silent"] == 0)
    });
    eventually(LONG, "the backends' halves are gone", || fleet.scene.lab.b1.tcp_sockets().len() < 10);
}

#[test]
fn offloaded_flows_outlive_the_host_that_offloaded_them() {
    let test = "offloaded_flows_outlive_the_host_that_offloaded_them";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(100);
    fleet.wait_known(100, 100);
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| conn.echo(7, 300));
    println!("100 flows went on after {:?}", watch.elapsed());
    fleet.heir().baton.wait_offloaded(100);
    conns.iter_mut().for_each(|conn| conn.echo(8, 100_000));
    drop(conns);
    fleet.heir().baton.wait_ended("client_closed", 100);
}

#[test]
fn proxied_flows_are_served_by_their_owner_after_the_vip_has_moved() {
    let test = "proxied_flows_are_served_by_their_owner_after_the_vip_has_moved";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.clients(100);
    fleet.wait_known(100, 0);
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(0, 2000));
    // Neighbours send to it from here on: it announces the address before it says that it has come.
    eventually(LONG, "the address has come", || !fleet.heir().baton.events_of("address_came").is_empty());
    for round in 1..6 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 2000));
    }
    let mut fresh = fleet.scene.lab.client.connect(fleet.vip);
    fresh.echo(9, 100);
    assert_eq!(fleet.heir().baton.flow_count(), 1, "new ones are served by the new owner");
    assert_eq!(fleet.owner().baton.flow_count(), 100);
    let untracked = |outcome| fleet.heir().baton.metric("baton_unknown_packets_total", &[outcome]);
    eventually(LONG, "what was forwarded is counted", || untracked("forwarded") >= 500.0);
    assert_eq!(untracked("reset"), 0.0);
    drop(conns);
    eventually(LONG, "they end at their owner", || fleet.owner().baton.flow_count() == 0);
    eventually(LONG, "the address is not kept any longer", || !fleet.owner().host.has_on_lo(VIP));
}

#[test]
fn offloaded_flows_follow_the_vip_to_and_fro() {
    let test = "offloaded_flows_follow_the_vip_to_and_fro";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(50);
    fleet.wait_known(50, 50);
    let (mut from, mut to) = (fleet.owner(), fleet.heir());
    for round in 0..4 {
        fleet.remove_vip(from);
        fleet.take(to);
        fleet.serve_at(to, &mut conns, 20_000);
        from.baton.wait_ended("moved", 50 * (round / 2 + 1));
        eventually(LONG, "it lists them no more", || from.baton.flow_count() == 0);
        std::mem::swap(&mut from, &mut to);
    }
}

#[test]
fn instances_join_and_leave_behind_a_router_and_no_flow_notices() {
    for flows in [Flows::Kept, Flows::Offload] {
        let test = "instances_join_and_leave_behind_a_router_and_no_flow_notices";
        let Some(fleet) = Fleet::new(test, 3, flows, |config| config) else { return };
        let fleet = fleet.spread();
        let mut conns = match flows {
            Flows::Offload => fleet.offloaded_clients(60),
            _ => fleet.clients(60),
        };
        for (round, routed) in [&[0][..], &[0, 1], &[0, 1, 2], &[1, 2], &[2], &[0, 2]].into_iter().enumerate() {
            fleet.route(routed);
            for seed in 0..5 {
                conns.iter_mut().for_each(|conn| conn.echo(seed + round as u64, 3000));
                conns.push(fleet.scene.lab.client.connect(fleet.vip));
                conns.last_mut().unwrap().echo(seed, 5000);
            }
        }
        println!("{} flows went on, {} packets reset", conns.len(), fleet.resets());
        conns.iter_mut().for_each(|conn| conn.echo(9, 100_000));
    }
}

#[test]
fn without_peers_flows_that_come_to_another_instance_are_reset() {
    let test = "without_peers_flows_that_come_to_another_instance_are_reset";
    let Some(fleet) = Fleet::new(test, 2, Flows::Alone, |config| config) else { return };
    let fleet = fleet.spread();
    let mut conns = fleet.clients(5);
    fleet.route(&[1]);
    assert!(conns.iter_mut().all(|conn| conn.try_echo(2, 100).is_err()));
}

#[test]
fn behind_a_router_only_proxied_flows_of_an_instance_that_dies_are_reset_and_at_once() {
    let test = "behind_a_router_only_proxied_flows_of_an_instance_that_dies_are_reset_and_at_once";
    for flows in [Flows::Kept, Flows::Offload] {
        let Some(fleet) = Fleet::new(test, 3, flows, |config| config) else { return };
        let fleet = fleet.spread();
        let mut conns = match flows {
            Flows::Offload => fleet.offloaded_clients(60),
            _ => fleet.clients(60),
        };
        for other in &fleet.all[1..] {
            other.wait_sees("lb-a", "flows", 60);
            other.wait_sees("lb-a", "offloaded", if flows == Flows::Offload { 60 } else { 0 });
        }
        fleet.owner().host.link_down();
        let watch = Stopwatch::start();
        fleet.route(&[1, 2]);
        match flows {
            Flows::Offload => conns.iter_mut().for_each(|conn| conn.echo(7, 3000)),
            _ => drop(all_reset(&mut conns)),
        }
        println!("after {:?}", watch.elapsed());
        let mut fresh = fleet.clients(20);
        fresh.iter_mut().for_each(|conn| conn.echo(8, 3000));
    }
}

#[test]
fn ipv6_flows_are_offloaded_forwarded_and_reset_as_those_of_ipv4() {
    let test = "ipv6_flows_are_offloaded_forwarded_and_reset_as_those_of_ipv4";
    for flows in [Flows::Kept, Flows::Offload] {
        let Some(fleet) = Fleet::at(VIP6, test, 2, flows, |config| config) else { return };
        let fleet = fleet.with_owner();
        let mut conns = fleet.clients(50);
        let offloaded = if flows == Flows::Offload { 50 } else { 0 };
        for round in 0..5 {
            conns.iter_mut().for_each(|conn| conn.echo(round, 200));
        }
        fleet.owner().baton.wait_offloaded(offloaded);
        fleet.wait_known(50, offloaded);
        fleet.remove_vip(fleet.owner());
        fleet.take(fleet.heir());
        match flows {
            Flows::Offload => fleet.serve_at(fleet.heir(), &mut conns, 20_000),
            _ => conns.iter_mut().for_each(|conn| conn.echo(5, 20_000)),
        }
        assert_eq!(fleet.resets(), 0.0);
        fleet.owner().host.link_down();
        match flows {
            Flows::Offload => conns.iter_mut().for_each(|conn| conn.echo(6, 3000)),
            _ => drop(all_reset(&mut conns)),
        }
    }
}

#[test]
fn a_host_that_dies_under_thousands_of_flows_costs_what_keepalived_takes() {
    let test = "a_host_that_dies_under_thousands_of_flows_costs_what_keepalived_takes";
    for (flows, count) in [(Flows::Offload, 2000), (Flows::Proxied, 5000)] {
        let Some(fleet) = Fleet::new(test, 2, flows, |config| config) else { return };
        let _keepalived = fleet.kept_alive();
        let mut conns = fleet.clients(count);
        let offloaded = if flows == Flows::Offload { count } else { 0 };
        for round in 0..4 {
            conns.iter_mut().for_each(|conn| conn.echo(round, 100));
        }
        fleet.owner().baton.wait_offloaded(offloaded);
        fleet.wait_known(count, offloaded);
        let watch = Stopwatch::start();
        fleet.owner().host.link_down();
        match flows {
            Flows::Offload => {
                conns[0].echo(5, 100);
                let first = watch.elapsed();
                conns.iter_mut().for_each(|conn| conn.echo(6, 100));
                println!("{count} offloaded: the first went on after {first:?}, the last after {:?}", watch.elapsed());
            }
            _ => {
                all_reset(&mut conns);
                println!("{count} proxied and idle: the last was reset after {:?}", watch.elapsed());
            }
        }
    }
}

#[test]
fn a_host_that_comes_back_from_the_dead_gives_up_the_flows_that_went_on_without_it() {
    let test = "a_host_that_comes_back_from_the_dead_gives_up_the_flows_that_went_on_without_it";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.with_owner();
    let mut conns = fleet.offloaded_clients(40);
    fleet.wait_known(40, 40);
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(6, 300));
    fleet.heir().baton.wait_offloaded(40);
    fleet.remove_vip(fleet.owner());
    fleet.owner().host.link_up();
    eventually(LONG, "the old owner lists none of them", || fleet.owner().baton.flow_count() == 0);
    // Cut off from its backends it may have given some of them up by itself, which must not reach those who went on.
    let mine = |reason: &str| ["moved", "backend_ejected", "client_closed"].contains(&reason);
    assert!(fleet.owner().baton.ended().keys().all(|reason| mine(reason)), "{:?}", fleet.owner().baton.ended());
    fleet.owner().wait_sees("lb-b", "offloaded", 40);
    assert_eq!(fleet.heir().baton.flow_count(), 40);
    conns.iter_mut().for_each(|conn| conn.echo(7, 30_000));
    // And all of it back again.
    fleet.remove_vip(fleet.heir());
    fleet.take(fleet.owner());
    fleet.serve_at(fleet.owner(), &mut conns, 30_000);
}
