//! The peers' key is changed while flows go on.

use std::sync::atomic::{AtomicBool, Ordering};

use super::failover::{Fleet, Flows};
use super::*;
use crate::lab::baton::BINARY;

/// Each instance is linked with each other one.
pub(super) fn all_linked(fleet: &Fleet) {
    for instance in &fleet.all {
        NAMES.iter().filter(|name| **name != instance.name).for_each(|name| instance.wait_synced(name));
    }
}

/// Takes `steps` while twenty flows are busy and a new one begins each round: none is lost, and no instance is taken for dead.
pub(super) fn unnoticed(fleet: &Fleet, steps: impl FnOnce()) {
    let conns = fleet.clients(20);
    let over = AtomicBool::new(false);
    let mut conns = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut conns = conns;
            let mut seed = 0;
            while !over.load(Ordering::Relaxed) {
                seed += 1;
                conns.iter_mut().for_each(|conn| conn.echo(seed, 500));
                fleet.scene.lab.client.connect(fleet.vip).echo(seed, 500);
            }
            println!("{seed} rounds of 20 flows and a new one");
            conns
        });
        let ends_load = SetsAtEnd(&over);
        steps();
        drop(ends_load);
        load.join().expect("no flow is lost and no connect fails")
    });
    conns.iter_mut().for_each(|conn| conn.echo(9, 5000));
    for instance in &fleet.all {
        assert_eq!(instance.baton.events_of("failed_over").len(), 0);
        let dead = |event: &&Value| event["liveness"] == "dead";
        assert_eq!(instance.baton.events_of("peer_liveness").iter().filter(dead).count(), 0, "never down for a second");
        assert!(!instance.baton.ended().contains_key("backend_reset"), "{:?}", instance.baton.ended());
    }
}

#[test]
fn a_new_key_for_the_fleet_costs_no_flow_and_fails_nobody_over() {
    let test = "a_new_key_for_the_fleet_costs_no_flow_and_fails_nobody_over";
    let Some(scene) = Scene::new(test, 3) else { return };
    let key = scene.lab.directory().join("peers.key");
    let previous = scene.lab.directory().join("peers.key.previous");
    let file = previous.to_str().unwrap().to_owned();
    let change = |_, config: Config| config.peers("key_file_previous", file.as_str());
    let Some(fleet) = Fleet::within(scene, failover::VIP, test, 3, Flows::Kept, change) else { return };
    let fleet = fleet.spread();
    fleet.route(&[0, 1, 2]);
    unnoticed(&fleet, || {
        let made = Command::new(BINARY).args(["genkey", "--next", key.to_str().unwrap()]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        for instance in &fleet.all {
            instance.reload();
            all_linked(&fleet);
        }
        let checked = fleet.all[0].check();
        assert!(checked.contains("key_file_previous") && checked.contains("counts as well"), "{checked}");
        std::fs::remove_file(&previous).unwrap();
        let checked = fleet.all[0].check();
        assert!(!checked.contains("counts as well"), "{checked}");
        for instance in &fleet.all {
            instance.reload();
            all_linked(&fleet);
        }
    });
    // The old one counts no more.
    let old = fleet.scene.write_key("peers.key", 7);
    assert_eq!(old, key);
    fleet.all[0].reload();
    eventually(LONG, "the one with the old key has no link", || fleet.all[1].sees("lb-a")["liveness"] == "unlinked");
}
