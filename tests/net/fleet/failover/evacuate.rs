//! A host that is emptied before it is switched off: no client notices.

use std::process::Output;
use std::sync::atomic::Ordering::Relaxed;

use super::load::{Load, Resent, Until, whole};
use super::*;

mod own_clients;
mod routed;
mod slow;

impl Fleet {
    /// A track file shows which instances may not have the VIP.
    pub fn with_track_file(self) -> Self {
        for instance in &self.all {
            instance.add_setting("failover", "track_file", instance.away().to_str().unwrap());
        }
        self
    }

    /// Moves the VIP, when the first instance says that it should not have it, as something would that asks nothing else.
    fn move_when_not_ready(&self) {
        eventually(LONG, "it should not have the VIP", || {
            self.owner().baton.http("/readyz").is_some_and(|(status, _)| status == 503)
        });
        assert_eq!(self.owner().baton.cli(&["ready"]).status.code(), Some(1));
        self.remove_vip(self.owner());
        self.take(self.heir());
    }

    /// Clients whose flows the first instance has and cannot offload, served once; its track file contains 0.
    fn with_clients_that_stay(&self, count: u64) -> Vec<Conn> {
        let conns = clients_that_stay(self, count);
        self.heir().wait_sees("lb-a", "flows", count);
        conns
    }
}

impl Instance {
    fn away(&self) -> PathBuf {
        self.directory.join("away")
    }

    fn add_setting(&self, table: &str, key: &str, value: &str) {
        let text = std::fs::read_to_string(&self.baton.paths.config).unwrap();
        let mut file: toml::Table = text.parse().unwrap();
        let table = file.entry(table).or_insert_with(|| toml::Table::new().into());
        table.as_table_mut().unwrap().insert(key.to_owned(), value.into());
        std::fs::write(&self.baton.paths.config, toml::to_string(&file).unwrap()).unwrap();
        self.baton.order(&["reload"]);
    }

    /// What `baton evacuate` reported at its end.
    pub fn report(output: &Output) -> Value {
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// 100 that may be offloaded and 100 that cannot, for only one of their ends has timestamps; all idle.
fn idle_clients(fleet: &Fleet) -> (Vec<Conn>, Vec<Conn>) {
    let graduable = fleet.clients(100);
    (graduable, clients_that_stay(fleet, 100))
}

/// Their flows cannot be offloaded.
pub fn clients_that_stay(fleet: &Fleet, count: u64) -> Vec<Conn> {
    fleet.scene.lab.client.sysctl("net/ipv4/tcp_timestamps", "0");
    let conns = fleet.clients(count);
    fleet.scene.lab.client.sysctl("net/ipv4/tcp_timestamps", "1");
    conns
}

fn locals<'a>(conns: impl Iterator<Item = &'a Conn>) -> Vec<SocketAddr> {
    conns.map(Conn::local).collect()
}

/// The results of a run of clients, about the network and about Baton.
#[derive(Debug)]
pub struct Figures {
    /// The segments that the ends sent again in the same time without an evacuation.
    pub control: Resent,
    pub resent: Resent,
    /// The packets that the instances dropped, except for late acknowledgements of connections that were closed.
    pub lost: u64,
}

#[test]
fn a_host_is_emptied_by_real_keepalived_and_no_client_notices() {
    let test = "a_host_is_emptied_by_real_keepalived_and_no_client_notices";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_track_file();
    let _keepalived = fleet.kept_alive();
    let Figures { control, resent, lost } = empty_a_host(&fleet, 1);
    assert_eq!(lost, 0);
    assert!(resent.needed() <= control.needed() + 3, "{resent:?}, without an evacuation {control:?}");
}

/// Evacuates the first host while clients of all kinds are busy. `share`: with this part of the usual round trips.
pub fn empty_a_host(fleet: &Fleet, share: u64) -> Figures {
    let (mut idle, mut staying) = idle_clients(fleet);
    let (talking, streaming) = (fleet.clients(20), fleet.clients(2));
    let talking_on = clients_that_stay(fleet, 5);
    let open = locals(idle.iter().chain(&talking).chain(&talking_on));
    let load = Load::default();
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let (mut talked, figures) = std::thread::scope(|scope| {
        let _until = Until(&load);
        let talks = load.ping_pongs(scope, talking);
        let stayed = load.ping_pongs(scope, talking_on);
        let streams = load.bulk(scope, streaming);
        let storm = load.storm(scope, &fleet.scene.lab.client, fleet.vip, 4);
        load.goes_on(100, 2000);
        // As long as the evacuation below, without one.
        let before = fleet.resent();
        load.goes_on(400 / share, 10_000 / share);
        let control = fleet.resent() - before;
        let (before, lost) = (fleet.resent(), fleet.lost());
        let evacuation =
            scope.spawn(|| owner.baton.cli(&["evacuate", "--to", heir.name, "--deadline", "50s", "--json"]));
        eventually(LONG, "the VIP has come", || !heir.baton.events_of("address_came").is_empty());
        load.goes_on(400 / share, 10_000 / share);
        let resent = fleet.resent() - before;
        let figures = Figures { control, resent, lost: fleet.lost() - lost };
        assert!(!evacuation.is_finished(), "flows are left that cannot be offloaded");
        staying.iter_mut().for_each(|conn| conn.echo(3, 5000));
        idle.iter_mut().for_each(|conn| conn.echo(3, 5000));
        drop(staying);
        load.bulk_over.store(true, Relaxed);
        whole(streams);
        let late = fleet.met_no_connection(&open);
        let figures = Figures { lost: figures.lost.saturating_sub(late), ..figures };
        load.over.store(true, Relaxed);
        storm.into_iter().for_each(|thread| thread.join().unwrap());
        whole(stayed);
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        println!("{report}\n{figures:?}");
        assert!(output.status.success(), "{report}");
        assert_eq!(report["vips"][0]["at"], serde_json::json!([heir.name]));
        assert_eq!(report["flows"]["proxied_left"], 0);
        (whole(talks), figures)
    });
    let reset = fleet.heir().baton.metric("baton_unknown_packets_total", &["reset"]);
    let Load { connects, round_trips, bulk_bytes, .. } = &load;
    println!("{connects:?} connects, {round_trips:?} round trips, {bulk_bytes:?} bytes of bulk, no reset");
    // The host may be switched off.
    owner.host.link_down();
    let mut fresh = fleet.clients(20);
    for conn in talked.iter_mut().chain(&mut idle).chain(&mut fresh) {
        conn.echo(9, 3000);
    }
    assert_eq!(fleet.heir().baton.metric("baton_unknown_packets_total", &["reset"]), reset);
    figures
}

#[test]
fn a_host_is_emptied_of_ipv6_flows_by_something_that_asks_only_whether_it_is_ready() {
    let test = "a_host_is_emptied_of_ipv6_flows_by_something_that_asks_only_whether_it_is_ready";
    let Some(fleet) = Fleet::at(VIP6, test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner();
    let (mut idle, mut staying) = idle_clients(&fleet);
    let talking = fleet.clients(10);
    let open = locals(idle.iter().chain(&talking));
    let load = Load::default();
    let mut talked = std::thread::scope(|scope| {
        let _until = Until(&load);
        let talks = load.ping_pongs(scope, talking);
        let storm = load.storm(scope, &fleet.scene.lab.client, fleet.vip, 1);
        load.goes_on(50, 1000);
        let evacuation = scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--deadline", "50s", "--json"]));
        fleet.move_when_not_ready();
        load.goes_on(100, 2000);
        staying.iter_mut().for_each(|conn| conn.echo(3, 5000));
        drop(staying);
        load.over.store(true, Relaxed);
        storm.into_iter().for_each(|thread| thread.join().unwrap());
        let output = evacuation.join().unwrap();
        assert!(output.status.success(), "{}", Instance::report(&output));
        fleet.met_no_connection(&open);
        whole(talks)
    });
    fleet.owner().host.link_down();
    let mut fresh = fleet.clients(5);
    talked.iter_mut().chain(&mut idle).chain(&mut fresh).for_each(|conn| conn.echo(9, 3000));
}

#[test]
fn flows_that_are_left_at_the_deadline_are_reset_and_the_command_says_so() {
    let test = "flows_that_are_left_at_the_deadline_are_reset_and_the_command_says_so";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner();
    let (mut idle, mut staying) = idle_clients(&fleet);
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| fleet.owner().baton.cli(&["evacuate", "--deadline", "8s", "--json"]));
        fleet.move_when_not_ready();
        staying.iter_mut().for_each(|conn| conn.echo(3, 5000));
        all_reset(&mut staying);
        assert!(watch.elapsed() > secs(8), "nobody is reset before");
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        assert_eq!(output.status.code(), Some(1), "{report}");
        assert_eq!((&report["flows"]["reset"], &report["outcome"]), (&100.into(), &"away".into()), "{report}");
    });
    fleet.owner().baton.wait_ended("evacuation_deadline", 100);
    idle.iter_mut().for_each(|conn| conn.echo(3, 5000));
}

#[test]
fn an_evacuation_that_cannot_begin_or_that_nobody_follows_leaves_everything_as_it_was() {
    let test = "an_evacuation_that_cannot_begin_or_that_nobody_follows_leaves_everything_as_it_was";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner().with_track_file();
    let (owner, mut conns) = (fleet.owner(), fleet.with_clients_that_stay(20));
    let refused = |arguments: &[&str], why: &str| {
        let output = owner.baton.cli(&[&["evacuate"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && text.contains(why), "{text}");
    };
    let as_it_was = |conns: &mut [Conn]| {
        conns.iter_mut().for_each(|conn| conn.echo(3, 1000));
        assert_eq!(owner.baton.flow_count(), 20);
        assert_eq!(owner.baton.http("/readyz").unwrap().0, 200);
        assert_eq!(std::fs::read_to_string(owner.away()).unwrap_or_default().trim_matches(['0', '\n']), "");
        eventually(LONG, "the address is where it was", || !owner.host.has_on_lo(VIP));
        assert!(owner.host.has_address(VIP));
    };
    refused(&["--check"], "20 flows are proxied");
    refused(&["--check"], "no program that moves 10.77.0.100 was found");
    refused(&["--cancel"], "no evacuation is under way");
    refused(&["--to", "lb-c"], "there is no peer lb-c; there is lb-b");
    refused(&["--to", "lb-c", "--check"], "there is no peer lb-c; there is lb-b");
    as_it_was(&mut conns);
    // Nothing moves the VIP.
    let deadline = ["--deadline", "2s"];
    refused(&deadline, "is still on this host");
    as_it_was(&mut conns);
    assert_eq!(owner.baton.events_of("evacuation_cancelled").len(), 1);
    // The address leaves, and no host takes it.
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| refused(&deadline, "no live peer has taken 10.77.0.100"));
        eventually(LONG, "it is to go", || std::fs::read_to_string(owner.away()).is_ok_and(|text| text == "1\n"));
        fleet.remove_vip(owner);
        evacuation.join().unwrap();
    });
    fleet.take(owner);
    as_it_was(&mut conns);
    // There is no peer.
    fleet.heir().baton.process.kill();
    owner.wait_sees("lb-b", "liveness", "dead");
    refused(&[], "no peer is alive: lb-b is dead");
    refused(&["--to", "lb-b"], "lb-b is dead");
    as_it_was(&mut conns);
}

#[test]
fn an_evacuation_goes_on_without_its_command_and_another_one_cancels_it() {
    let test = "an_evacuation_goes_on_without_its_command_and_another_one_cancels_it";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_owner().with_track_file();
    let (owner, mut conns) = (fleet.owner(), fleet.with_clients_that_stay(20));
    let away = || std::fs::read_to_string(owner.away()).unwrap_or_default();
    let log = owner.directory.join("evacuation.log");
    let socket = owner.baton.paths.socket.to_str().unwrap();
    let command = owner.host.spawn(&[baton::BINARY, "evacuate", "--deadline", "10m", "--socket", socket], &log);
    fleet.move_when_not_ready();
    let said = |words: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words));
    eventually(LONG, "flows are waited for", || said("waiting for 20 flows to be offloaded or to end"));
    command.signal(rustix::process::Signal::INT);
    eventually(LONG, "it ends", || command.exit_status().is_some());
    assert_eq!(command.exit_status().unwrap().code(), Some(130));
    assert!(said("goes on without this command: waiting for 20 flows"), "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(away(), "1\n");
    let upgrade = owner.baton.cli(&["upgrade"]);
    assert!(String::from_utf8_lossy(&upgrade.stderr).contains("an evacuation is under way or done"), "{upgrade:?}");
    conns.iter_mut().for_each(|conn| conn.echo(3, 1000));
    // A second request shows the evacuation under way; another order ends it for both.
    let log = owner.directory.join("again.log");
    let again = owner.host.spawn(&[baton::BINARY, "evacuate", "--socket", socket], &log);
    let said = |words: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words));
    eventually(LONG, "it is shown what is under way", || said("waiting for 20 flows to be offloaded or to end"));
    let cancelled = owner.baton.order(&["evacuate", "--cancel"]);
    assert!(cancelled.contains("this host may have the VIP again"), "{cancelled}");
    eventually(LONG, "it ends", || again.exit_status().is_some());
    assert!(again.exit_status().unwrap().code() == Some(1) && said("cancelled"));
    eventually(LONG, "this host may have the VIP again", || {
        away() == "0\n" && owner.baton.http("/readyz").unwrap().0 == 200
    });
    conns.iter_mut().for_each(|conn| conn.echo(4, 1000));
    drop(conns);
    // An evacuation that is done can be cancelled as well, and Baton cancels one itself if no host has the VIP.
    eventually(LONG, "they end", || owner.baton.flow_count() == 0);
    owner.baton.order(&["evacuate"]);
    assert_eq!(away(), "1\n");
    owner.baton.order(&["evacuate", "--cancel"]);
    assert_eq!(away(), "0\n");
    owner.baton.order(&["evacuate"]);
    fleet.remove_vip(fleet.heir());
    eventually(LONG, "nobody has it", || away() == "0\n" && owner.baton.http("/readyz").unwrap().0 == 200);
}

#[test]
fn a_fresh_start_may_have_the_vip_whatever_was_given_up_before() {
    let test = "a_fresh_start_may_have_the_vip_whatever_was_given_up_before";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Proxied, |config| config).map(Fleet::with_track_file) else {
        return;
    };
    std::fs::write(fleet.owner().away(), "1\n").unwrap();
    fleet.all[0].baton.process.kill();
    fleet.all[0].baton = Baton::start_with(&fleet.owner().host, &fleet.owner().directory);
    fleet.owner().baton.wait_until_ready();
    assert_eq!(std::fs::read_to_string(fleet.owner().away()).unwrap(), "0\n");
}

#[test]
fn an_address_that_a_killed_process_kept_is_given_up_by_the_next_and_kept_on_in_an_upgrade() {
    let test = "an_address_that_a_killed_process_kept_is_given_up_by_the_next_and_kept_on_in_an_upgrade";
    let Some(mut fleet) = Fleet::new(test, 2, Flows::Kept, |config| config).map(Fleet::with_owner) else { return };
    let mut conns = fleet.with_clients_that_stay(5);
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let host = fleet.owner().host.clone();
    let kept = || host.has_on_lo(VIP);
    assert!(kept());
    fleet.owner().baton.order(&["upgrade"]);
    fleet.heir().wait_synced("lb-a");
    conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
    assert!(kept());
    let vips = fleet.heir().sees("lb-a")["vips"].to_string();
    assert!(!vips.contains(VIP), "it has no VIP: {vips}");
    let pid = fleet.owner().baton.ask(serde_json::json!({"command": "version"})).unwrap().1["pid"].as_i64().unwrap();
    Stranger::new(pid).kill();
    // The process before it keeps its objects for some moments more, among them the lock of the offload engine.
    eventually(LONG, "the first is gone, too", || fleet.owner().baton.process.exit_status().is_some());
    drop(conns);
    fleet.all[0].baton = Baton::start_with(&host, &fleet.owner().directory);
    fleet.owner().baton.wait_until_ready();
    eventually(LONG, "it is given up", || !kept());
    fleet.clients(5);
}
