//! Each instance on a host that also runs an apiserver of its own: a host's death takes one of each.

use std::io::ErrorKind;
use std::time::Duration;

use rustix::process::Signal;

use super::failover::{self, Fleet, Flows, VIP, VIP6};
use super::*;

const APISERVER: u16 = 6444;
const BACKENDS: [&str; 3] = ["b1", "b2", "b3"];

/// The first has the VIP; backend `bN` is on the host of instance N.
struct Cluster {
    fleet: Fleet,
    apiservers: Vec<Server>,
}

impl Cluster {
    /// All three instances know each other's flows, and have found each apiserver ready, each within `deadline`.
    fn wait_settled(&self, deadline: Duration) {
        let all = &self.fleet.all;
        for (one, other) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            all[one].wait_synced(all[other].name);
            BACKENDS.iter().for_each(|name| _ = all[one].baton.wait_health(name, "ready", deadline));
        }
    }

    fn new(test: &str, count: usize, flows: Flows, change: impl Fn(Config) -> Config) -> Option<Self> {
        Self::at(VIP, test, count, flows, change)
    }

    fn at(vip: &str, test: &str, count: usize, flows: Flows, change: impl Fn(Config) -> Config) -> Option<Self> {
        let scene = Scene::new(test, count)?;
        let hosts: Vec<_> = (0..count).map(|number| scene.host(number).clone()).collect();
        let at = |host: &Host| if vip == VIP6 { host.v6(APISERVER) } else { host.v4(APISERVER) };
        let apiservers = hosts.iter().map(|host| host.serve_on(at(host), Behaviour::Echo)).collect();
        let fleet = Fleet::within(scene, vip, test, count, flows, |_, config| {
            let backends = hosts.iter().zip(BACKENDS);
            change(backends.fold(config.only(&[]), |config, (host, name)| config.backend(name, at(host))))
        })?;
        Some(Self { fleet, apiservers })
    }

    /// The first instance has the VIP.
    fn with_owner(self) -> Self {
        Self { fleet: self.fleet.with_owner(), ..self }
    }

    /// A pair whose first instance was killed with 20 offloaded flows, and whose host has the VIP no more. The flows to the apiserver of
    /// that host, and the others.
    fn with_killed_owner(test: &str) -> Option<(Self, [Vec<Conn>; 2])> {
        let mut cluster = Self::new(test, 2, Flows::Offload, |config| config)?.with_owner();
        let [own, others, _] = cluster.clients(20);
        let fleet = &mut cluster.fleet;
        fleet.owner().baton.wait_offloaded(20);
        fleet.wait_known(20, others.len() as u64);
        fleet.all[0].baton.process.kill();
        fleet.remove_vip(fleet.owner());
        Some((cluster, [own, others]))
    }

    /// So many clients that have been served, by backend.
    fn clients(&self, count: u64) -> [Vec<Conn>; 3] {
        let baton = &self.fleet.owner().baton;
        let mut by_backend = [const { Vec::new() }; 3];
        // Each is served before the next one begins: workers that choose at once do not see each other's choice.
        let mut conns: Vec<_> = (0..count).flat_map(|_| self.fleet.clients(1)).collect();
        for round in 0..5 {
            conns.iter_mut().for_each(|conn| conn.echo(round, 200));
        }
        for conn in conns {
            let backend = baton.serving(&conn);
            by_backend[BACKENDS.iter().position(|name| *name == backend).unwrap()].push(conn);
        }
        by_backend
    }
}

#[test]
fn a_host_that_dies_with_its_apiserver_costs_only_what_was_proxied_there() {
    let test = "a_host_that_dies_with_its_apiserver_costs_only_what_was_proxied_there";
    dies(test, |_| {});
}

#[test]
fn a_host_that_checks_its_sources_carries_the_flows_of_its_own_apiserver_on() {
    dies("a_host_that_checks_its_sources_carries_the_flows_of_its_own_apiserver_on", |host| checks_sources(host, "1"));
}

#[test]
fn a_host_that_checks_its_sources_loosely_carries_the_flows_of_its_own_apiserver_on() {
    dies("a_host_that_checks_its_sources_loosely", |host| checks_sources(host, "2"));
}

/// `how`: 1 is strict, 2 loose (RFC 3704).
fn checks_sources(host: &Host, how: &str) {
    for interface in ["all", "lo", "eth0"] {
        host.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), how);
        host.sysctl(&format!("net/ipv4/conf/{interface}/accept_local"), "0");
    }
}

/// The kernel of the new owner's host keeps the routes of connected sockets, without Baton for 3 s.
#[test]
fn over_ipv6_a_host_that_dies_with_its_apiserver_costs_only_its_own_flows() {
    let test = "over_ipv6_a_host_that_dies_with_its_apiserver";
    let Some(cluster) = Cluster::at(VIP6, test, 3, Flows::Offload, |config| config) else { return };
    let cluster = cluster.with_owner();
    let fleet = &cluster.fleet;
    let [mut own, mut heirs, mut others] = cluster.clients(30);
    assert!(own.len() > 2 && heirs.len() > 2 && others.len() > 2);
    let offloaded = (heirs.len() + others.len()) as u64;
    fleet.owner().baton.wait_offloaded(30);
    fleet.wait_known(30, offloaded);
    own.iter_mut().for_each(|conn| conn.echo(5, 300_000));
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    let watch = Stopwatch::start();
    others.iter_mut().for_each(|conn| conn.echo(6, 3000));
    heirs.iter_mut().for_each(|conn| conn.echo(7, 3000));
    let went_on = watch.unstalled();
    println!(
        "{offloaded} went on after {went_on:?}; {} were reset after {:?}",
        own.len(),
        failover::all_reset(&mut own)
    );
    assert!(went_on < secs(2), "sockets of the own apiserver still send to the dead host: {went_on:?}");
    heirs.iter_mut().for_each(|conn| conn.echo(8, 300_000));
}

fn dies(test: &str, prepare: impl Fn(&Host)) {
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, |config| config) else { return };
    let mut cluster = cluster.with_owner();
    let fleet = &cluster.fleet;
    [fleet.owner(), fleet.heir()].into_iter().for_each(|instance| prepare(&instance.host));
    let [mut own, mut heirs, mut others] = cluster.clients(60);
    // Kubelet and controllers of the next owner's host reach the apiservers by the VIP, too.
    let mut locals: Vec<_> = (0..9).map(|_| fleet.heir().host.connect(fleet.vip)).collect();
    for round in 0..5 {
        locals.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    let (mut doomed, mut locals): (Vec<_>, Vec<_>) =
        locals.into_iter().partition(|conn| fleet.owner().baton.serving(conn) == BACKENDS[0]);
    let (ending, going_on) = ((own.len() + doomed.len()) as u64, (heirs.len() + others.len() + locals.len()) as u64);
    assert!(ending > 5 && locals.len() > 2 && heirs.len() > 5 && others.len() > 5);
    fleet.owner().baton.wait_offloaded(ending + going_on);
    // No other host can carry those to the owner's own apiserver.
    fleet.wait_known(ending + going_on, going_on);
    own.iter_mut().for_each(|conn| conn.echo(5, 300_000));
    fleet.owner().host.link_down();
    fleet.take(fleet.heir());
    let idle = failover::all_reset(&mut own);
    let watch = Stopwatch::start();
    others.iter_mut().for_each(|conn| conn.echo(6, 3000));
    let went_on = watch.elapsed();
    // The backend is on the new owner's own host.
    let watch = Stopwatch::start();
    heirs.iter_mut().for_each(|conn| conn.echo(7, 3000));
    println!(
        "{ending} idle ones of the dead apiserver reset after {idle:?}, {} of another host went on after {went_on:?}, \
         {} of the new owner's own apiserver after {:?}",
        others.len(),
        heirs.len(),
        watch.elapsed()
    );
    heirs.iter_mut().for_each(|conn| conn.echo(8, 300_000));
    locals.iter_mut().for_each(|conn| conn.echo(8, 300_000));
    doomed.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
    // New ones find a backend that lives.
    let mut fresh = fleet.clients(10);
    fresh.iter_mut().for_each(|conn| conn.echo(8, 3000));
    others.iter_mut().for_each(|conn| conn.echo(9, 30_000));
    // An order reaches both ends of such a flow, also the one on this host.
    let heir = &fleet.heir().baton;
    let mut killed = heirs.pop().unwrap();
    let local = killed.local().to_string();
    let id = heir.flows().into_iter().find(|flow| flow["client"] == *local).unwrap()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let open = cluster.apiservers[1].open();
    heir.order(&["kill", &id]);
    assert_eq!(killed.end(LONG), End::Rst);
    eventually(LONG, "its apiserver hears of it", || cluster.apiservers[1].open() == open - 1);
    // And so does the end of the apiserver.
    drop(cluster.apiservers.remove(1));
    heirs.iter_mut().for_each(|conn| assert!(matches!(conn.end(LONG), End::Fin | End::Rst)));
    let fleet = &cluster.fleet;
    assert!(fleet.is_on(1, "lo"));
    drop((heirs, locals, fresh, others));
    eventually(4 * LONG, "the program leaves lo", || !fleet.is_on(1, "lo"));
}

/// Its apiserver goes with it, so the flows to that end here: they are waited for, and all others go on at the peer.
#[test]
fn an_evacuated_host_waits_for_the_flows_of_its_own_apiserver_alone() {
    let test = "an_evacuated_host_waits_for_the_flows_of_its_own_apiserver_alone";
    let Some(cluster) = Cluster::new(test, 2, Flows::Offload, |config| config) else { return };
    let mut cluster = cluster.with_owner();
    let [mut own, mut others, _] = cluster.clients(20);
    let mut talk = |own: &mut [Conn]| own.iter_mut().chain(&mut others).for_each(|conn| conn.echo(1, 3000));
    let fleet = &mut cluster.fleet;
    fleet.owner().baton.wait_offloaded(20);
    // A process that dies meanwhile costs none of them.
    fleet.all[0].baton.process.kill();
    talk(&mut own);
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory);
    fleet.owner().baton.wait_until_ready();
    fleet.owner().baton.wait_offloaded(20);
    fleet.owner().wait_synced("lb-b");
    fleet.heir().wait_synced("lb-a");
    talk(&mut own);
    // Nor does a move of the VIP: this host keeps it on lo for them.
    let fleet = &cluster.fleet;
    for (from, to) in [(fleet.owner(), fleet.heir()), (fleet.heir(), fleet.owner())] {
        fleet.remove_vip(from);
        fleet.take(to);
        own.iter_mut().for_each(|conn| conn.echo(2, 30_000));
    }
    let check = fleet.owner().baton.cli(&["--json", "evacuate", "--check"]).stdout;
    let check: serde_json::Value = serde_json::from_slice(&check).expect("a document");
    assert_eq!((&check["to_own_backend"], &check["offloaded"]), (&own.len().into(), &others.len().into()), "{check}");
    std::thread::scope(|scope| {
        let evacuation =
            scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--to", "lb-b", "--deadline", "50s", "--json"]));
        eventually(LONG, "it should not have the VIP", || {
            fleet.owner().baton.http("/readyz").is_some_and(|(status, _)| status == 503)
        });
        fleet.remove_vip(fleet.owner());
        fleet.take(fleet.heir());
        fleet.serve_at(fleet.heir(), &mut others, 3000);
        // By the new owner of the VIP, and from there to this host.
        (0..3).for_each(|round| own.iter_mut().for_each(|conn| conn.echo(round, 30_000)));
        assert!(!evacuation.is_finished(), "flows are left that end with this host");
        own.drain(..).for_each(drop);
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        assert!(output.status.success(), "{report}");
        assert_eq!((&report["flows"]["to_own_backend"], &report["flows"]["reset"]), (&0.into(), &0.into()), "{report}");
        let progress = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(progress.contains("\"proxied_left\":0,\"offloaded_left\":0,\"to_own_backend\":"), "{progress}");
    });
    fleet.owner().host.link_down();
    others.iter_mut().for_each(|conn| conn.echo(9, 3000));
}

/// Regression: the new process put the VIP on lo for the flows that it had recovered. From then on its kernel dropped the packets by
/// which the VIP's new owner reached the apiserver of this host, and their clients waited for half a minute.
#[test]
fn flows_of_the_vip_s_new_owner_to_the_apiserver_of_a_restarted_instance_go_on() {
    let test = "flows_of_the_vip_s_new_owner_to_the_apiserver_of_a_restarted_instance_go_on";
    let Some((mut cluster, [mut own, mut others])) = Cluster::with_killed_owner(test) else { return };
    let fleet = &mut cluster.fleet;
    fleet.take(fleet.heir());
    // Until the client has heard where the VIP is now, the host without it refuses its connections.
    let client = &fleet.scene.lab.client;
    eventually(LONG, "clients reach the new owner", || client.try_connect(fleet.vip, secs(1)).is_ok());
    let mut fresh = fleet.clients(20);
    // The new process recovers its flows before a peer tells it that they are over.
    let block = format!(
        "nft 'add table ip link; add chain ip link in {{ type filter hook input priority 0; }}; \
                         add rule ip link in tcp dport {PORT} drop; add rule ip link in tcp sport {PORT} drop'"
    );
    fleet.owner().host.run(&block);
    fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory);
    fleet.owner().baton.wait_log(&["Baton recovered "]);
    let watch = Stopwatch::start();
    while watch.elapsed() < secs(2) {
        fresh.iter_mut().chain(&mut others).for_each(|conn| conn.echo(3, 3000));
    }
    // Those of the apiserver of the killed process were reset meanwhile, or go on.
    for conn in &mut own {
        let told = conn.try_echo(5, 3000).err().map(|error| error.kind());
        assert!(!matches!(told, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{told:?}");
    }
    fleet.owner().host.run("nft delete table ip link");
    fleet.owner().wait_synced("lb-b");
    fresh.iter_mut().chain(&mut others).for_each(|conn| conn.echo(4, 3000));
    let on_lo = fleet.owner().host.run("ip -o address show dev lo");
    assert!(!on_lo.contains(&fleet.vip.ip().to_string()), "{on_lo}");
}

/// Regression: the peer had not found this instance dead, and reset nothing; the new process did not put the VIP on lo. So the apiserver of this
/// host answered to the VIP's new owner, and clients waited for their own timeout: watches for ever.
#[test]
fn flows_to_the_apiserver_of_an_instance_that_starts_again_as_the_vip_leaves_are_reset_at_once() {
    let test = "flows_to_the_apiserver_of_an_instance_that_starts_again_as_the_vip_leaves";
    let Some((mut cluster, [mut own, mut others])) = Cluster::with_killed_owner(test) else { return };
    let fleet = &mut cluster.fleet;
    fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory);
    fleet.owner().baton.wait_log(&["Baton recovered "]);
    fleet.owner().wait_synced("lb-b");
    fleet.heir().wait_synced("lb-a");
    let fleet = &cluster.fleet;
    assert_eq!(fleet.owner().baton.flow_count(), 20, "while no host has the VIP, it may come back");
    fleet.take(fleet.heir());
    let watch = Stopwatch::start();
    println!("{} were reset after {:?}", own.len(), failover::all_reset(&mut own));
    assert!(watch.unstalled() < secs(2), "they waited for {:?}", watch.elapsed());
    others.iter_mut().for_each(|conn| conn.echo(3, 3000));
    fleet.owner().baton.wait_ended("peer_has_vip", own.len() as u64);
    let ordered = fleet.owner().baton.events_of("flows_ordered");
    let of_own = |event: &&serde_json::Value| event["backend"] == "b1" && event["reason"] == "peer_has_vip";
    let flows = ordered.iter().filter(of_own).filter_map(|event| event["flows"].as_u64()).sum::<u64>();
    assert_eq!(flows, own.len() as u64, "{ordered:?}");
    // The apiserver hears of it, and serves clients of the VIP's new owner.
    let open = || cluster.apiservers[0].open();
    eventually(LONG, "the apiserver has none of them any more", || open() < own.len());
    let mut fresh = fleet.clients(20);
    fresh.iter_mut().for_each(|conn| conn.echo(4, 3000));
    assert!(fresh.iter().any(|conn| fleet.heir().baton.serving(conn) == BACKENDS[0]));
    assert!(!fleet.owner().host.has_on_lo(VIP));
}

#[test]
fn in_a_pair_a_host_that_dies_with_its_apiserver_costs_the_idle_flows_of_that_at_once() {
    let test = "in_a_pair_a_host_that_dies_with_its_apiserver";
    let Some(cluster) = Cluster::new(test, 2, Flows::Offload, |config| config) else { return };
    let cluster = cluster.with_owner();
    let fleet = &cluster.fleet;
    let [mut own, mut dead, _] = cluster.clients(40);
    fleet.owner().baton.wait_offloaded(40);
    fleet.heir().host.link_down();
    // The instance that is left hears neither its peer nor that apiserver; its own one proves nothing.
    println!("{} idle flows of the dead apiserver were reset after {:?}", dead.len(), failover::all_reset(&mut dead));
    own.iter_mut().for_each(|conn| conn.echo(7, 3000));
    fleet.owner().baton.wait_ended("backend_ejected", dead.len() as u64);
}

#[test]
fn without_waking_them_idle_clients_of_a_host_that_died_with_its_apiserver_wait_on() {
    let test = "without_waking_them_idle_clients_of_a_host_that_died_with_its_apiserver_wait_on";
    let quiet = |config: Config| config.failover("challenge", false);
    let Some(cluster) = Cluster::new(test, 2, Flows::Offload, quiet) else { return };
    let cluster = cluster.with_owner();
    let fleet = &cluster.fleet;
    let [mut own, others, _] = cluster.clients(20);
    fleet.owner().baton.wait_offloaded((own.len() + others.len()) as u64);
    fleet.wait_known((own.len() + others.len()) as u64, others.len() as u64);
    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    fleet.take(fleet.heir());
    assert_eq!(own[0].end(secs(3)), End::Open);
}

/// The flows to its own apiserver are the hardest to carry on for a new holder.
#[test]
fn the_host_whose_apiserver_has_the_fewest_of_a_dead_holder_s_flows_takes_the_built_in_vip() {
    let test = "the_host_whose_apiserver_has_the_fewest_flows_takes_the_built_in_vip";
    let own = |config: Config| config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0");
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    let mut by_backend = cluster.clients(30);
    // The name of the last comes after the second's, and its apiserver has fewer flows.
    let of = |number: usize| NAMES.iter().position(|name| *name == fleet.all[number].name).unwrap();
    by_backend[of(2)].truncate(2);
    let mut others: Vec<_> = by_backend[of(1)].drain(..).collect();
    others.append(&mut by_backend[of(2)]);
    let count = others.len() as u64;
    fleet.owner().baton.wait_offloaded(count + by_backend[of(0)].len() as u64);
    let why = || String::from_utf8(fleet.owner().baton.cli(&["vip", "--why"]).stdout).unwrap();
    let expected = format!("own host takes it: {} {}, {} 2", fleet.all[1].name, count - 2, fleet.all[2].name);
    eventually(LONG, "the holder knows the counts", || why().contains(&expected));
    fleet.owner().host.link_down();
    eventually(LONG, "the last has the VIP", || fleet.all[2].host.has_address(VIP));
    others.iter_mut().for_each(|conn| conn.echo(7, 3000));
    assert!(!fleet.all[1].host.has_address(VIP));
}

/// Three control-plane nodes with the built-in VIP, and clients that stay: of 30 connections 20 go on.
#[test]
fn an_evacuated_host_of_three_costs_at_the_deadline_the_flows_of_its_own_apiserver_alone() {
    let test = "an_evacuated_host_of_three_costs_at_the_deadline";
    let own = |config: Config| config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0");
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    cluster.wait_settled(LONG);
    let mut by_backend = cluster.clients(30);
    let host = NAMES.iter().position(|name| *name == fleet.owner().name).unwrap();
    let mut ending = std::mem::take(&mut by_backend[host]);
    let mut others: Vec<_> = by_backend.into_iter().flatten().collect();
    assert_eq!((ending.len(), others.len()), (10, 20));
    fleet.owner().baton.wait_offloaded(30);
    fleet.wait_known(30, 20);
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--deadline", "8s", "--json"]));
        let others_host = || fleet.all[1..].iter().any(|it| it.host.has_address(VIP));
        eventually(LONG, "another has the VIP", || others_host() && !fleet.owner().host.has_address(VIP));
        // By the new owner, and from there to the host that is emptied.
        while watch.elapsed() < secs(5) {
            ending.iter_mut().chain(&mut others).for_each(|conn| conn.echo(6, 3000));
        }
        failover::all_reset(&mut ending);
        assert!(watch.elapsed() > secs(8), "nobody is reset before");
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        println!("{report}");
        assert_eq!(output.status.code(), Some(1), "{report}");
        assert_eq!((&report["flows"]["reset"], &report["outcome"]), (&10.into(), &"away".into()), "{report}");
    });
    fleet.owner().baton.wait_ended("evacuation_deadline", 10);
    others.iter_mut().for_each(|conn| conn.echo(7, 3000));
    fleet.owner().host.link_down();
    others.iter_mut().for_each(|conn| conn.echo(8, 3000));
}

/// Regression: the kernel of the new holder's host drops what the evacuated host sends there from the VIP, and the RST of the new holder does not
/// reach clients of a host that has the VIP on `lo`. They waited for the deadline.
#[test]
fn clients_of_an_evacuated_host_whose_apiserver_is_beside_the_new_holder_do_not_wait_for_the_deadline() {
    let test = "clients_of_an_evacuated_host_whose_apiserver_is_beside_the_new_holder";
    let own = |config: Config| config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0");
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    let of = |number: usize| NAMES.iter().position(|name| *name == fleet.all[number].name).unwrap();
    cluster.wait_settled(LONG);
    let mut locals: Vec<_> = (0..12).map(|_| fleet.owner().host.connect(fleet.vip)).collect();
    locals.iter_mut().for_each(|conn| conn.echo(1, 200));
    let beside = |conn: &Conn| fleet.owner().baton.serving(conn) == BACKENDS[of(1)];
    let (mut ending, mut others): (Vec<_>, Vec<_>) = locals.into_iter().partition(beside);
    assert!(ending.len() > 2 && others.len() > 4);
    let to = fleet.all[1].name;
    std::thread::scope(|scope| {
        scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--to", to, "--deadline", "8s"]));
        eventually(LONG, "the heir has the VIP", || fleet.heir().host.has_address(VIP));
        let watch = Stopwatch::start();
        let after = failover::all_reset(&mut ending);
        println!("{} clients were reset after {after:?}", ending.len());
        assert!(watch.unstalled() < secs(3), "they waited for {after:?}");
        others.iter_mut().for_each(|conn| conn.echo(2, 3000));
        // They come again, and are served although one apiserver is beyond reach from here.
        let mut fresh: Vec<_> = (0..6).map(|_| fleet.owner().host.connect(fleet.vip)).collect();
        fresh.iter_mut().for_each(|conn| conn.echo(3, 3000));
        fleet.owner().baton.wait_ended("backend_has_vip", ending.len() as u64);
    });
}

/// Regression: the VIP on `lo` leads them to this instance, which had closed its listeners: a kubelet had no apiserver for `stop_timeout`.
#[test]
fn a_host_that_keeps_the_vip_while_its_baton_stops_serves_its_own_clients_until_then() {
    let test = "a_host_that_keeps_the_vip_while_its_baton_stops";
    let own = |config: Config| {
        let config = config.process("stop_timeout", "12s").process("shutdown_delay", "300ms");
        config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0")
    };
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    cluster.wait_settled(LONG);
    // A client of this host stays proxied, so that the VIP stays on lo.
    let own = NAMES.iter().position(|name| *name == fleet.owner().name).unwrap();
    let mut locals: Vec<_> = (0..12).map(|_| fleet.owner().host.connect(fleet.vip)).collect();
    locals.iter_mut().for_each(|conn| conn.echo(0, 300));
    locals.retain(|conn| fleet.owner().baton.serving(conn) == BACKENDS[own]);
    let mut kubelet = locals.pop().expect("one of twelve");
    let process = &fleet.owner().baton.process;
    process.signal(Signal::TERM);
    let at_other = || [1, 2].iter().any(|it| fleet.all[*it].host.has_address(VIP));
    eventually(LONG, "another has the VIP", || at_other() && !fleet.owner().host.has_address(VIP));
    let holder = [1, 2].into_iter().find(|it| fleet.all[*it].host.has_address(VIP)).expect("just seen");
    // The apiserver beside the former holder is beyond reach from the new one, and a connection to it is hedged.
    let hedged = || fleet.all[holder].baton.metric("baton_connects_hedged_total", &[]);
    let mut before = hedged();
    let watch = Stopwatch::start();
    let mut fresh = Vec::new();
    while watch.elapsed() < secs(4) {
        kubelet.echo(1, 300);
        fleet.owner().host.connect(fleet.vip).echo(2, 300);
        if watch.elapsed() < secs(1) {
            before = hedged();
        } else if fresh.len() < 15 {
            let mut conn = fleet.scene.lab.client.connect(fleet.vip);
            conn.echo(2, 300);
            fresh.push(conn);
        }
    }
    let slow = hedged() - before;
    println!("{slow} of {} new connections of another host were hedged", fresh.len());
    assert!(
        fresh.len() > 5 && slow * 3.0 < fresh.len() as f64,
        "new connections of other hosts do not avoid that apiserver: {slow} of {}",
        fresh.len()
    );
    eventually(LONG, "it ends", || process.exit_status().is_some());
    assert_eq!(kubelet.end(secs(1)), End::Rst);
    eventually(LONG, "the new holder serves them", || {
        fleet.owner().host.try_connect(fleet.vip, secs(1)).is_ok_and(|mut conn| conn.try_echo(3, 300).is_ok())
    });
}

/// Clients of an apiserver whose host neither has the VIP nor loses it, while the VIP moves again and again under their traffic.
#[test]
fn clients_of_a_third_host_s_apiserver_go_on_each_time_that_the_vip_s_host_loses_its_link() {
    let test = "clients_of_a_third_host_s_apiserver_go_on";
    let own = |config: Config| {
        let config = config.rebalance("when", "ordered");
        config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0")
    };
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    let of = |number: usize| NAMES.iter().position(|name| *name == fleet.all[number].name).unwrap();
    let synced = || cluster.wait_settled(secs(60));
    let holder = || (0..3).find(|it| fleet.all[*it].host.has_address(VIP));
    synced();
    for round in 0..3 {
        let mut from = None;
        eventually(LONG, "an instance has the VIP", || {
            from = holder();
            from.is_some()
        });
        let from = from.expect("just seen");
        let mut conns: Vec<_> = fleet.clients(18);
        (0..5).for_each(|number| conns.iter_mut().for_each(|conn| conn.echo(number, 200)));
        let mut by_host = conns
            .into_iter()
            .map(|conn| (BACKENDS.iter().position(|name| *name == fleet.all[from].baton.serving(&conn)).unwrap(), conn))
            .collect::<Vec<_>>();
        fleet.all[from].baton.wait_offloaded(by_host.len() as u64);
        // No other host can carry those to the holder's own apiserver.
        let going_on = by_host.iter().filter(|(host, _)| *host != of(from)).count();
        let others = (0..3).filter(|it| *it != from);
        others.for_each(|it| fleet.all[it].wait_sees(fleet.all[from].name, "offloaded", going_on));
        fleet.all[from].host.link_down();
        // Under traffic from the first moment on, so that no host learns of the move in silence.
        let watch = Stopwatch::start();
        by_host.retain(|(host, _)| *host != of(from));
        while watch.elapsed() < secs(6) {
            for (host, conn) in &mut by_host {
                let echo = Stopwatch::start();
                conn.echo(9, 100);
                assert!(
                    echo.unstalled() < secs(3),
                    "round {round}: a client of the apiserver at {host} waited for {:?}",
                    echo.elapsed()
                );
            }
        }
        fleet.all[from].host.link_up();
        synced();
    }
}

/// Regression: the VIP's new holder carries such flows, and the host that is emptied keeps the VIP on `lo`, so that its kernel drops the holder's
/// packets. Kubelets had no heartbeat until the deadline had passed and TCP had sent its segment again.
#[test]
fn clients_of_flows_that_a_host_has_from_a_dead_one_do_not_wait_while_that_host_is_evacuated() {
    let test = "clients_of_flows_that_a_host_has_from_a_dead_one";
    let own = |config: Config| {
        let config = config.rebalance("when", "ordered");
        config.vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0")
    };
    let Some(cluster) = Cluster::new(test, 3, Flows::Offload, own) else { return };
    let cluster = Cluster { fleet: cluster.fleet.with_holder_first(), ..cluster };
    let fleet = &cluster.fleet;
    let of = |number: usize| NAMES.iter().position(|name| *name == fleet.all[number].name).unwrap();
    let synced = || cluster.wait_settled(LONG);
    synced();
    let mut by_backend = cluster.clients(30);
    // Kubelets of each host that may take the VIP, at the apiserver of the other.
    let mut locals = [1, 2].map(|it| {
        let mut locals: Vec<_> = (0..9).map(|_| fleet.all[it].host.connect(fleet.vip)).collect();
        (0..5).for_each(|round| locals.iter_mut().for_each(|conn| conn.echo(round, 200)));
        locals.retain(|conn| fleet.owner().baton.serving(conn) == BACKENDS[of(3 - it)]);
        locals
    });
    let mut doomed = std::mem::take(&mut by_backend[of(0)]);
    let offloaded = (doomed.len() + by_backend.iter().chain(&locals).map(Vec::len).sum::<usize>()) as u64;
    fleet.owner().baton.wait_offloaded(offloaded);
    for it in [1, 2] {
        fleet.all[it].wait_sees(fleet.owner().name, "flows", offloaded);
        fleet.all[it].wait_sees(fleet.owner().name, "offloaded", offloaded - doomed.len() as u64);
    }
    fleet.owner().host.link_down();
    let holder = || [1, 2].into_iter().find(|it| fleet.all[*it].host.has_address(VIP));
    let (next, _) = eventually_some(LONG, "the next has the VIP", holder);
    let (heir, third) = (&fleet.all[next], 3 - next);
    let mut locals = std::mem::take(&mut locals[next - 1]);
    let mut beside = std::mem::take(&mut by_backend[of(next)]);
    let mut others = std::mem::take(&mut by_backend[of(third)]);
    let mut reader = beside.pop().unwrap();
    failover::all_reset(&mut doomed);
    beside.iter_mut().chain(&mut others).chain(&mut locals).for_each(|conn| conn.echo(5, 3000));
    fleet.owner().host.link_up();
    synced();
    beside.iter_mut().chain(&mut others).chain(&mut locals).for_each(|conn| conn.echo(6, 3000));
    // One that begins now keeps the VIP on lo: its apiserver is on the same host.
    let mut fresh: Vec<_> = fleet.clients(12);
    (0..5).for_each(|round| fresh.iter_mut().for_each(|conn| conn.echo(round, 200)));
    fresh.retain(|conn| heir.baton.serving(conn) == BACKENDS[of(next)]);
    assert!(fresh.len() > 1);
    let mut longest = Duration::ZERO;
    let mut reset = [0, 0];
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| heir.baton.cli(&["evacuate", "--deadline", "8s", "--json"]));
        let at_other = || [0, third].iter().any(|it| fleet.all[*it].host.has_address(VIP));
        eventually(LONG, "another has the VIP", || at_other() && !heir.host.has_address(VIP));
        let watch = Stopwatch::start();
        while watch.elapsed() < secs(5) {
            others.iter_mut().chain(&mut fresh).for_each(|conn| conn.echo(7, 3000));
            for (conns, count) in [&mut beside, &mut locals].into_iter().zip(&mut reset) {
                conns.retain_mut(|conn| {
                    let echo = Stopwatch::start();
                    let told = conn.try_echo(7, 3000);
                    longest = longest.max(echo.unstalled());
                    let error = told.err().map(|error| error.kind());
                    let is_told = matches!(error, None | Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
                    assert!(is_told, "{error:?} after {:?}", echo.elapsed());
                    *count += usize::from(error.is_some());
                    error.is_none()
                });
            }
        }
        // It sends nothing, and what its apiserver sends stays on that host.
        assert_eq!(reader.end(secs(1)), End::Rst);
        let output = evacuation.join().unwrap();
        println!("{}", Instance::report(&output));
    });
    println!("the longest wait: {longest:?}; reset: {reset:?}");
    assert!(longest < secs(4), "a client waited for {longest:?}");
    others.iter_mut().for_each(|conn| conn.echo(8, 3000));
}
