//! Clients of all kinds while Baton itself moves the VIP: a host dies, is evacuated, or is parted from the other.

use std::sync::atomic::Ordering::Relaxed;

use super::evacuate::{Figures, empty_a_host};
use super::load::{Load, Until, whole};
use super::offloaded::watches_go_on;
use super::*;

impl Fleet {
    /// Two instances that move the VIP themselves.
    fn with_built_in_vip(test: &str, flows: Flows) -> Option<Self> {
        Self::with_built_in_vips(test, 2, flows, |config| config)
    }

    /// So many instances that move the VIP themselves.
    pub fn with_built_in_vips(
        test: &str,
        count: usize,
        flows: Flows,
        change: impl Fn(Config) -> Config,
    ) -> Option<Self> {
        let fleet = Self::new(test, count, flows, |config| {
            change(config).vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0")
        })?;
        Some(fleet.with_holder_first())
    }

    /// Waits until one has the built-in VIP, and puts that one before all others.
    pub fn with_holder_first(mut self) -> Self {
        let (had, _) =
            eventually_some(LONG, "one has the VIP", || self.all.iter().position(|it| it.host.has_address(VIP)));
        self.all[..=had].rotate_right(1);
        if !self.pinned.is_empty() {
            self.pinned[..=had].rotate_right(1);
        }
        self.wait_served();
        self
    }

    /// Clients and backends reach the VIP on this host, whatever they hear.
    fn pin(&self, hosts: &[&Host], to: &Instance) {
        let mac = to.host.mac();
        hosts
            .iter()
            .for_each(|host| _ = host.run(&format!("ip neigh replace {VIP} lladdr {mac} dev eth0 nud permanent")));
    }

    fn unpin(&self, hosts: &[&Host]) {
        hosts.iter().for_each(|host| _ = host.run(&format!("ip neigh del {VIP} dev eth0")));
    }
}

#[test]
fn a_host_dies_under_load_and_the_built_in_vip_brings_each_offloaded_flow_to_the_other() {
    let test = "a_host_dies_under_load_and_the_built_in_vip";
    let Some(fleet) = Fleet::with_built_in_vip(test, Flows::Offload) else { return };
    let (talking, streaming) = (fleet.offloaded_clients(20), fleet.clients(2));
    let mut watches = fleet.clients(40);
    (0..5).for_each(|round| watches.iter_mut().for_each(|conn| conn.echo(round, 200)));
    let load = Load::default();
    let mut talked = std::thread::scope(|scope| {
        let _until = Until(&load);
        let talks = load.ping_pongs(scope, talking);
        let streams = load.bulk(scope, streaming);
        fleet.owner().baton.wait_offloaded(62);
        fleet.wait_known(62, 62);
        load.goes_on(0, 1000);
        load.longest();
        fleet.owner().host.link_down();
        load.goes_on(0, 2000);
        load.streams_on(4_000_000);
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        load.over.store(true, Relaxed);
        whole(talks)
    });
    println!("longest pause of a ping-pong and of a burst: {:?}", load.longest());
    // The clients of watches only wait.
    watches.append(&mut talked);
    watches_go_on(&fleet, &mut watches);
    fleet.clients(5);
    assert_eq!(fleet.heir().baton.metric("baton_unknown_packets_total", &["reset"]), 0.0);
}

#[test]
fn a_host_with_the_built_in_vip_is_emptied_and_no_client_notices() {
    let test = "a_host_with_the_built_in_vip_is_emptied_and_no_client_notices";
    let Some(fleet) = Fleet::with_built_in_vip(test, Flows::Kept) else { return };
    let Figures { control, resent, lost } = empty_a_host(&fleet, 4);
    assert_eq!(lost, 0);
    assert!(resent.needed() <= control.needed() + 3, "{resent:?}, without an evacuation {control:?}");
}

/// What one instance sends does not reach the other, neither by the peer link nor by ARP, and the other direction works.
#[test]
fn when_only_one_of_two_hosts_hears_the_other_one_has_the_built_in_vip_and_no_client_waits() {
    for flows in [Flows::Kept, Flows::Offload] {
        let test = "when_only_one_of_two_hosts_hears_the_other";
        let Some(fleet) = Fleet::with_built_in_vip(test, flows) else { return };
        for is_holder_unheard in [true, false] {
            assert!((0..3).any(|_| one_way(&fleet, flows, is_holder_unheard)), "the holder was silent in three rounds");
        }
    }
}

/// Lets only one of the two hear the other for a while. Returns false if the holder was silent meanwhile, since the machine had no time for
/// it: then the other one may take the VIP, for its question to the holder does not arrive.
#[track_caller]
fn one_way(fleet: &Fleet, flows: Flows, is_holder_unheard: bool) -> bool {
    let has_vip = |instance: &Instance| instance.host.run("ip -o address show dev eth0").contains(VIP);
    eventually(LONG, "one has it", || has_vip(fleet.owner()) != has_vip(fleet.heir()));
    let at = usize::from(has_vip(fleet.heir()));
    let (holder, other) = (&fleet.all[at], &fleet.all[1 - at]);
    let mut conns = fleet.clients(20);
    (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
    other.wait_sees(holder.name, "flows", 20);
    other.wait_sees(holder.name, "offloaded", if flows == Flows::Offload { 20 } else { 0 });
    let (unheard, deaf) = if is_holder_unheard { (holder, other) } else { (other, holder) };
    deaf.host.deafen(&unheard.host, true);
    deaf.wait_sees(unheard.name, "liveness", "dead");
    // A holder that nobody hears hears of the later claim of its successor.
    eventually(LONG, "one has it", || has_vip(deaf) && !has_vip(unheard));
    unheard.wait_sees(deaf.name, "liveness", "unlinked");
    let silences = || {
        let is_of_deaf =
            |it: &Value| it["peer"] == deaf.name && (it["liveness"] == "silent" || it["liveness"] == "dead");
        unheard.baton.events_of("peer_liveness").iter().filter(|it| is_of_deaf(it)).count()
    };
    let before = silences();
    let stays = |time| {
        let watch = Stopwatch::start();
        while watch.elapsed() < time && silences() == before {
            let is_there = has_vip(deaf) && !has_vip(unheard);
            assert!(
                is_there || silences() > before,
                "it stays only for {:?}, though its holder is heard",
                watch.elapsed()
            );
            std::thread::sleep(ms(4));
        }
    };
    let mut reset = nobody_hangs(fleet, &mut conns);
    stays(secs(2));
    reset += nobody_hangs(fleet, &mut conns);
    deaf.host.deafen(&unheard.host, false);
    deaf.wait_synced(unheard.name);
    unheard.wait_synced(deaf.name);
    reset += nobody_hangs(fleet, &mut conns);
    stays(secs(1));
    reset += nobody_hangs(fleet, &mut conns);
    let was_heard = silences() == before;
    println!("the holder is unheard: {is_holder_unheard}; heard on and on: {was_heard}; {reset} of 20 were reset");
    assert!(!was_heard || reset == 0 || is_holder_unheard && flows == Flows::Kept, "{reset} were reset");
    drop(conns);
    eventually(LONG, "they end", || fleet.all.iter().all(|it| it.baton.flow_count() == 0));
    was_heard
}

/// Each flow goes on, or is reset at once and leaves the list; returns how many were reset. A new client is served.
#[track_caller]
fn nobody_hangs(fleet: &Fleet, conns: &mut Vec<Conn>) -> usize {
    let before = conns.len();
    conns.retain_mut(|conn| {
        let watch = Stopwatch::start();
        let told = conn.try_echo(7, 2000);
        assert!(watch.unstalled() < secs(5), "a client waited for {:?}: {told:?}", watch.elapsed());
        told.map_err(|error| assert_eq!(End::of_error(&error), End::Rst)).is_ok()
    });
    fleet.clients(1);
    before - conns.len()
}

/// Each half of the network has clients of its own. When the halves meet, the loser forwards the winner's flows, and the winner the loser's.
#[test]
fn flows_of_both_halves_of_a_parted_network_go_on_when_one_holder_of_the_built_in_vip_yields() {
    let test = "flows_of_both_halves_of_a_parted_network_go_on_when_one_holder_yields";
    let Some(fleet) = Fleet::with_built_in_vip(test, Flows::Offload) else { return };
    let lab = &fleet.scene.lab;
    let ends = [&lab.client, &lab.b1, &lab.b2];
    let (talking, streaming, mut watches) = (fleet.offloaded_clients(20), fleet.clients(2), fleet.clients(20));
    (0..5).for_each(|round| watches.iter_mut().for_each(|conn| conn.echo(round, 200)));
    let load = Load::default();
    let (loser, winner) = (fleet.owner(), fleet.heir());
    let isolate = |on| fleet.all.iter().for_each(|instance| instance.host.isolate(on));
    let (mut talked, mut apart) = std::thread::scope(|scope| {
        let _until = Until(&load);
        let talks = load.ping_pongs(scope, talking);
        let streams = load.bulk(scope, streaming);
        loser.baton.wait_offloaded(42);
        fleet.wait_known(42, 42);
        isolate(true);
        eventually(LONG, "both have the VIP", || winner.host.has_address(VIP));
        winner.wait_sees(loser.name, "liveness", "dead");
        load.goes_on(0, 1000);
        watches.iter_mut().for_each(|conn| conn.echo(6, 3000));
        // The other half.
        fleet.pin(&ends, loser);
        load.goes_on(0, 1000);
        let apart = fleet.clients(10);
        isolate(false);
        fleet.unpin(&ends[1..]);
        eventually(LONG, "the loser yields", || !loser.host.run("ip -o address show dev eth0").contains(VIP));
        loser.wait_synced(winner.name);
        winner.wait_synced(loser.name);
        load.goes_on(0, 2000);
        fleet.unpin(&ends[..1]);
        load.goes_on(0, 2000);
        load.streams_on(4_000_000);
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        load.over.store(true, Relaxed);
        (whole(talks), apart)
    });
    println!("longest pause of a ping-pong and of a burst: {:?}", load.longest());
    talked.iter_mut().chain(&mut watches).chain(&mut apart).for_each(|conn| conn.echo(9, 3000));
    assert!(winner.host.has_address(VIP));
    assert_eq!(fleet.resets(), 0.0);
}

/// Regression: such a host answered its peer's questions for the VIP, so that the peer did not take it and no new client was served. Its offloaded
/// flows prove nothing: the program gets their packets before the filter.
#[test]
fn a_holder_whose_packet_filter_drops_everything_but_arp_gives_the_built_in_vip_up() {
    for flows in [Flows::Offload, Flows::Kept] {
        let test = "a_holder_whose_packet_filter_drops_everything_but_arp";
        let Some(fleet) = Fleet::with_built_in_vip(test, flows) else { return };
        let mut conns = fleet.clients(20);
        (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
        let offloaded = if flows == Flows::Offload { 20 } else { 0 };
        fleet.heir().wait_sees(fleet.owner().name, "flows", 20);
        fleet.heir().wait_sees(fleet.owner().name, "offloaded", offloaded);
        let has_vip = |instance: &Instance| instance.host.has_address(VIP);
        let host = fleet.owner().host.clone();
        host.nft(
            "table inet closed {\nchain in {\ntype filter hook input priority filter; policy drop;\niif lo accept\n}\n\
             chain out {\ntype filter hook output priority filter; policy drop;\noif lo accept\n}\n}\n",
        );
        let watch = Stopwatch::start();
        eventually(secs(15), "the other host has the VIP", || has_vip(fleet.heir()) && !has_vip(fleet.owner()));
        fleet.clients(1);
        let served = watch.unstalled();
        println!("{flows:?}: served {served:?} after the filter had closed");
        assert!(served < secs(8), "{served:?}");
        let reset = nobody_hangs(&fleet, &mut conns);
        assert_eq!(reset, 20 - offloaded as usize, "{flows:?}");
        let lost = fleet.owner().baton.events_of("vip_given_up");
        let why = "another host asks for it, and no socket of this host hears a peer, a backend or a client";
        assert!(lost.iter().any(|event| event["why"] == why), "{lost:?}");
        wait::throughout(secs(4), "the host does not take it", || !has_vip(fleet.owner()) && has_vip(fleet.heir()));
        host.nft_clear();
        fleet.heir().wait_synced(fleet.owner().name);
        wait::throughout(secs(1), "it stays", || !has_vip(fleet.owner()) && has_vip(fleet.heir()));
        assert_eq!(nobody_hangs(&fleet, &mut conns), 0);
        fleet.clients(5);
    }
}

/// Regression: offloaded flows pass below the packet filter, so that the backends were taken for slow and the host kept the VIP, although
/// each new connection failed for as long as the filter dropped what Baton itself sent. And where the filter rejected it, the backends were taken
/// for dead and the flows reset.
#[test]
fn a_host_whose_filter_stops_new_connections_gives_the_built_in_vip_up_though_its_offloaded_flows_go_on() {
    let test = "a_host_whose_filter_stops_new_connections";
    for verdict in ["drop", "reject with tcp reset", "reject"] {
        let Some(fleet) = Fleet::with_built_in_vip(test, Flows::Offload) else { return };
        let mut conns = fleet.offloaded_clients(20);
        fleet.wait_known(20, 20);
        let (owner, heir) = (fleet.owner(), fleet.heir());
        owner.host.filter("output", &format!("tcp dport 6443 ct state new {verdict}"));
        let watch = Stopwatch::start();
        let mut round = 0;
        eventually(LONG, "the other has the VIP", || {
            // They must move, or the backends are dead for all that Baton can tell.
            round += 1;
            conns.iter_mut().for_each(|conn| conn.echo(round, 200));
            heir.host.has_address(VIP) && !owner.host.has_address(VIP)
        });
        println!("{verdict}: the VIP moved {:?} later", watch.unstalled());
        conns.iter_mut().for_each(|conn| conn.echo(round + 1, 200));
        fleet.clients(5);
        let said = |command: &[&str]| String::from_utf8(owner.baton.cli(command).stdout).unwrap();
        let status = said(&["status"]);
        assert!(status.contains("neither a probe nor a new flow gets a connection"), "{status}");
        assert!(status.contains("no backend: Baton resets new connections"), "{status}");
        let why = said(&["vip", "--why"]);
        assert!(why.contains("no backend can be used here"), "{why}");
        let resets = [owner, heir].map(|it| it.baton.ended().get("backend_ejected").copied().unwrap_or(0));
        assert_eq!(resets, [0, 0], "{verdict}");
    }
}
