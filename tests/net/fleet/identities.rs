//! Instances that know each other by keys of their own.

use std::path::Path;

use toml::{Table, Value as Toml};

use super::failover::{Fleet, Flows};
use super::rotation::{all_linked, unnoticed};
use super::*;
use crate::lab::baton::BINARY;
use crate::lab::wait;

/// Makes the key of an instance; returns its public half.
fn make(file: &Path) -> String {
    let made = Command::new(BINARY).args(["genkey", "--identity", file.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    let public = said.trim().strip_prefix("public_key = \"").and_then(|rest| rest.strip_suffix('"'));
    public.expect("a line for the files of the others").to_owned()
}

/// Changes `[peers]` in the file of `instance`.
fn write(instance: &Instance, change: impl FnOnce(&mut Table)) {
    let path = &instance.baton.paths.config;
    let mut file: Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    change(file["peers"].as_table_mut().unwrap());
    std::fs::write(path, file.to_string()).unwrap();
}

/// Changes `[peers]` in the file of `instance`, and reloads it.
fn edit(instance: &Instance, change: impl FnOnce(&mut Table)) {
    write(instance, change);
    instance.reload();
}

/// The table of the peer `name`.
fn of<'a>(peers: &'a mut Table, name: &str) -> &'a mut Table {
    let all = peers["peer"].as_array_mut().unwrap().iter_mut().map(|peer| peer.as_table_mut().unwrap());
    all.into_iter().find(|peer| peer["name"].as_str() == Some(name)).expect("a peer of this name")
}

fn text(path: &Path) -> Toml {
    path.to_str().unwrap().into()
}

#[test]
fn a_fleet_gets_keys_of_its_instances_and_changes_one_and_no_flow_notices() {
    let test = "a_fleet_gets_keys_of_its_instances_and_changes_one_and_no_flow_notices";
    let Some(scene) = Scene::new(test, 3) else { return };
    let file = |name: &str| scene.lab.directory().join(format!("{name}.key"));
    let public = NAMES.map(|name| make(&file(name)));
    let next = make(&file("next"));
    let files = NAMES.map(file);
    let next_file = file("next");
    let Some(fleet) = Fleet::within(scene, failover::VIP, test, 3, Flows::Kept, |_, config| config) else { return };
    let fleet = fleet.spread();
    fleet.route(&[0, 1, 2]);
    unnoticed(&fleet, || {
        // Beside the shared key, one host after the other.
        for (number, instance) in fleet.all.iter().enumerate() {
            edit(instance, |peers| {
                peers.insert("private_key_file".to_owned(), text(&files[number]));
                for other in (0..3).filter(|other| *other != number) {
                    of(peers, NAMES[other]).insert("public_key".to_owned(), public[other].as_str().into());
                }
            });
            all_linked(&fleet);
        }
        let checked = fleet.all[0].check();
        assert!(checked.contains("counts beside the instances' own keys"), "{checked}");
        for instance in &fleet.all {
            edit(instance, |peers| drop(peers.remove("key_file")));
            all_linked(&fleet);
        }
        let checked = fleet.all[0].check();
        assert!(!checked.contains("counts beside"), "{checked}");
        // A new key for the first.
        for instance in &fleet.all[1..] {
            edit(instance, |peers| {
                of(peers, NAMES[0]).insert("public_key_next".to_owned(), next.as_str().into());
            });
        }
        edit(&fleet.all[0], |peers| drop(peers.insert("private_key_file".to_owned(), text(&next_file))));
        all_linked(&fleet);
        for instance in &fleet.all[1..] {
            edit(instance, |peers| {
                of(peers, NAMES[0]).remove("public_key_next");
                of(peers, NAMES[0]).insert("public_key".to_owned(), next.as_str().into());
            });
            all_linked(&fleet);
        }
    });
    // Somebody has the key of the last one: a reload of another instance ends what he can do there.
    let stranger = make(&fleet.scene.lab.directory().join("stranger.key"));
    edit(&fleet.all[0], |peers| {
        of(peers, NAMES[2]).insert("public_key".to_owned(), stranger.as_str().into());
    });
    // Its beats count no more either: the instance has not heard the peer that its file names now.
    eventually(LONG, "the stolen key counts for nothing", || fleet.all[0].sees("lb-c")["liveness"] == "unheard");
    let why = || fleet.all[0].sees("lb-c")["why_not"].to_string();
    eventually(LONG, "it says why", || why().contains("it does not know this instance's key, or has another than"));
    fleet.all[0].wait_synced("lb-b");
}

#[test]
fn an_instance_cannot_speak_for_another() {
    let Some(scene) = Scene::new("an_instance_cannot_speak_for_another", 3) else { return };
    let _servers = scene.serve();
    let file = |name: &str| scene.lab.directory().join(format!("{name}.key"));
    let public = NAMES.map(|name| make(&file(name)));
    let launch = |number: usize, own: usize, pinned: [&str; 3]| {
        let mut config = scene.config(number).without_peers("key_file");
        config = config.peers("private_key_file", file(NAMES[own]).to_str().unwrap()).peers("sync_deadline", "1s");
        for other in (0..3).filter(|other| *other != number) {
            config = config.peer_key(NAMES[other], "public_key", pinned[other]);
        }
        scene.launch(number, &config)
    };
    let all = [0, 1, 2].map(|number| public[number].as_str());
    let (b, c) = (launch(1, 1, all), launch(2, 2, all));
    b.wait_synced("lb-c");
    // It has the key of the third, and says that it is the first.
    let impostor = launch(0, 2, [all[0], all[1], all[0]]);
    let says = |it: &Instance, of: &str| it.sees(of)["why_not"].as_str().unwrap_or_default().to_owned();
    eventually(LONG, "it is refused, and it is said as whom", || {
        says(&b, "lb-a") == "its key is that of lb-c, and it says that it is lb-a"
    });
    let refused = "it does not know this instance's key, or has another than";
    eventually(LONG, "so does the third", || says(&impostor, "lb-c").contains(refused));
    b.wait_synced("lb-c");
    c.wait_synced("lb-b");
    assert_eq!(b.sees("lb-a")["flows"], 0);
}

/// Two instances that have proven themselves to each other by keys of their own.
fn pair(test: &str) -> Option<(Scene, [Instance; 2])> {
    let scene = Scene::new(test, 2)?;
    let file = |name: &str| scene.lab.directory().join(format!("{name}.key"));
    let public = NAMES.map(|name| make(&file(name)));
    let launch = |number: usize| {
        let other = 1 - number;
        let mut config = scene.config(number).without_peers("key_file");
        config = config.peers("private_key_file", file(NAMES[number]).to_str().unwrap()).peers("sync_deadline", "1s");
        scene.launch(number, &config.peer_key(NAMES[other], "public_key", public[other].as_str()))
    };
    let all = [launch(0), launch(1)];
    all[0].wait_synced(NAMES[1]);
    Some((scene, all))
}

/// Regression: the new process went on with what the old one knew of the holder of a key that its own file no longer names, as long as
/// that one sent beats.
#[test]
fn a_stolen_key_counts_for_nothing_after_an_upgrade_that_removes_it() {
    let Some((scene, [it, _thief])) = pair("a_stolen_key_and_an_upgrade_that_removes_it") else { return };
    let stranger = make(&scene.lab.directory().join("stranger.key"));
    write(&it, |peers| drop(of(peers, NAMES[1]).insert("public_key".to_owned(), stranger.as_str().into())));
    it.baton.order(&["upgrade"]);
    wait::throughout(secs(2), "it is not heard", || it.sees(NAMES[1])["liveness"] == "unheard");
}

/// Regression: the new process knew no longer by which key the peer had proven itself, before a link.
#[test]
fn a_stolen_key_counts_for_nothing_after_a_reload_of_a_process_that_has_had_no_link_since_its_upgrade() {
    let Some((scene, [it, thief])) = pair("a_stolen_key_without_a_link_since_an_upgrade") else { return };
    for port in ["dport", "sport"] {
        thief.host.drop_packets("input", &format!("tcp {port} 9471"));
    }
    for _ in 0..2 {
        it.baton.order(&["upgrade"]);
        wait::throughout(secs(1), "its beats count", || it.sees(NAMES[1])["liveness"] == "unlinked");
    }
    let stranger = make(&scene.lab.directory().join("stranger.key"));
    edit(&it, |peers| drop(of(peers, NAMES[1]).insert("public_key".to_owned(), stranger.as_str().into())));
    eventually(LONG, "they count no more", || it.sees(NAMES[1])["liveness"] == "unheard");
    wait::throughout(secs(1), "it is not heard", || it.sees(NAMES[1])["liveness"] == "unheard");
}
