//! By DNS: a name of /etc/hosts, which the Baton of the test has to itself.

use std::os::unix::fs::MetadataExt;

use super::*;

/// A name that resolves as this says.
struct Name {
    file: std::path::PathBuf,
}

impl Name {
    /// Resolves to `hosts`, the first of them first.
    fn is(&self, hosts: &[&Host]) {
        let lines = hosts.iter().map(|host| format!("{} cp.baton.test\n", host.v4)).collect::<String>();
        // In place: it is mounted.
        std::fs::write(&self.file, format!("127.0.0.1 localhost\n{lines}")).unwrap();
    }

    /// A Baton that finds b1 by it.
    fn start(lab: &Lab, config: &Config, hosts: &[&Host]) -> (Self, Baton) {
        let name = Self { file: lab.directory().join("hosts") };
        name.is(hosts);
        let switch = lab.directory().join("nsswitch");
        std::fs::write(&switch, "hosts: files\n").unwrap();
        let config = config.clone().of_backend("b1", "address", "cp.baton.test:6443").health("resolve_interval", "1s");
        let paths = config::Paths::below(lab.directory());
        std::fs::write(&paths.config, config.text(&paths.socket)).unwrap();
        let script = format!(
            "mount --make-rprivate /; mount --bind {} /etc/hosts; mount --bind {} /etc/nsswitch.conf; exec \"$@\"",
            name.file.display(),
            switch.display()
        );
        let mut baton = Baton::start_by(&["unshare", "--mount", "sh", "-euc", &script, "sh"], &lab.lb, lab.directory());
        baton.wait_until_ready();
        baton.wait_for_backends(&["b1", "b2"]);
        assert!(name.file.metadata().unwrap().size() > 0);
        (name, baton)
    }
}

fn address(baton: &Baton) -> String {
    baton.backend("b1").map_or_else(String::new, |b1| b1["address"].as_str().unwrap_or_default().to_owned())
}

fn the_old_host_dies_after_a_change_of_dns(lab: &Lab, config: Config, offloaded: bool, at_once: bool) {
    let _servers = lab.echo_everywhere();
    let (name, baton) = Name::start(lab, &config.only(&["b1", "b2"]), &[&lab.b1]);
    let mut conns = at_b1(lab, &baton, 3, offloaded);
    name.is(&[&lab.b3]);
    if at_once {
        lab.b1.link_down();
    }
    let watch = Stopwatch::start();
    if !at_once {
        eventually(LONG, "the name's new address is used", || address(&baton) == lab.b3.v4(6443).to_string());
        baton.wait_health("b1", "ready", LONG);
        conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
        lab.b1.link_down();
        all_are_reset(&mut conns, Stopwatch::start());
    } else {
        all_are_reset(&mut conns, watch);
    }
    baton.wait_ended("backend_ejected", 3);
    baton.wait_health("b1", "ready", LONG);
    let mut new = baton.connect_to(&lab.client, "b1");
    new.echo(1, 1000);
    assert!(_servers[2].accepted() > 0);
    drop((conns, new));
    baton.rests();
}

#[test]
fn offloaded_clients_of_an_address_that_a_name_had_are_reset_when_its_host_dies() {
    let Some(scene) = Scene::new("readdressed name") else { return };
    the_old_host_dies_after_a_change_of_dns(&scene.lab, scene.config(), true, false);
}

#[test]
fn offloaded_clients_of_a_host_that_dies_as_its_name_moves_are_reset() {
    let Some(scene) = Scene::new("readdressed name") else { return };
    the_old_host_dies_after_a_change_of_dns(&scene.lab, scene.config(), true, true);
}

#[test]
fn proxied_clients_of_an_address_that_a_name_had_are_reset_when_its_host_dies() {
    let Some(lab) = Lab::new("readdressed name") else { return };
    the_old_host_dies_after_a_change_of_dns(&lab, lab.config(), false, false);
}

/// The next process need not take the address that is told first.
#[test]
fn flows_at_one_of_a_names_addresses_are_not_drained_after_a_crash() {
    let Some(scene) = Scene::new("readdressed name") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config().only(&["b1", "b2"]);
    let (_name, baton) = Name::start(lab, &config, &[&lab.b1]);
    let mut conns = at_b1(lab, &baton, 3, true);
    baton.process.kill();
    let (_name, baton) = Name::start(lab, &config, &[&lab.b3, &lab.b1]);
    baton.wait_offloaded(3);
    eventually(LONG, "b1 is where its flows are", || {
        address(&baton) == lab.b1.v4(6443).to_string() && baton.flows_of("b1") == 3
    });
    assert_eq!(baton.backend("b1").unwrap()["drain_deadline_in_ms"], serde_json::Value::Null);
    conns.iter_mut().for_each(|conn| conn.echo(9, 1000));
    baton.wait_health("b1", "ready", LONG);
    eventually(LONG, "no other entry is left", || {
        baton.status()["frontends"][0]["backends"].as_array().unwrap().len() == 2
    });
}

/// To and fro, faster than flows are drained: nothing piles up, and an address that comes back has its flows still.
#[test]
fn a_name_that_flaps_between_two_addresses_resets_no_flow_and_leaves_no_entries() {
    let Some(lab) = Lab::new("readdressed name") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().only(&["b1", "b2"]).frontend("drain_timeout", "4s");
    let (name, baton) = Name::start(&lab, &config, &[&lab.b1]);
    let mut conns = at_b1(&lab, &baton, 2, false);
    let backends = || baton.status()["frontends"][0]["backends"].as_array().unwrap().len();
    for round in 0..3 {
        for host in [&lab.b3, &lab.b1] {
            name.is(&[host]);
            eventually(LONG, "the name's address is used", || address(&baton) == host.v4(6443).to_string());
            assert!(backends() <= 3, "{}", baton.status()["frontends"][0]["backends"]);
            conns.iter_mut().for_each(|conn| conn.echo(round, 1000));
        }
    }
    // Of several addresses the one that it has stays.
    name.is(&[&lab.b3, &lab.b1]);
    throughout(secs(5), "nobody is reset", || baton.ended().keys().all(|reason| reason == "client_closed"));
    assert_eq!(address(&baton), lab.b1.v4(6443).to_string());
    eventually(LONG, "no other entry is left", || backends() == 2);
    conns.iter_mut().for_each(|conn| conn.echo(9, 10_000));
    drop(conns);
    baton.rests();
}
