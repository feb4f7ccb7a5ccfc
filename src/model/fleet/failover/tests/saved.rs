//! What one process knew of its peers, in the next.

use super::*;
use crate::model::fleet::{KnownPeers, PortRange};

/// Another process of `b`, with what the one before knew of `a`, which is told as it was then.
fn successor(known: &KnownPeers, addresses: &[&str], liveness: Liveness) -> Scene {
    let mut scene = Scene { machine: Failover::new(settings("b")), now_ns: 2_000_000 * MS };
    expect_restore(&mut scene.machine);
    scene.addresses(addresses);
    let owner = || name("a");
    scene.remote(Remote::Begin { owner: owner(), epoch: Epoch(1), slot: 0 });
    scene.remote(Remote::Addresses { owner: owner(), vips: vec![ip("10.0.0.21"), ip(VIP)] });
    scene.remote(Remote::RestoredPeer { owner: owner(), known: Box::new(known.peers[&owner()].clone()) });
    // The link looks ready at once.
    scene.machine.handle_ready();
    for flow in known.flows.get(&owner()).into_iter().flatten() {
        scene.remote(Remote::RestoredFlows { owner: owner(), flows: vec![flow.clone()] });
    }
    scene.remote(Remote::Synced { owner: owner() });
    scene.remote(Remote::Liveness { owner: owner(), liveness });
    scene.remote(Remote::Begin { owner: name("c"), epoch: Epoch(1), slot: 2 });
    scene.remote(Remote::Synced { owner: name("c") });
    scene.remote(Remote::Restored);
    scene
}

fn is_settled(actions: &[Action]) -> Option<bool> {
    actions.iter().find_map(|it| match it {
        Action::Standby(StandbyRequest::Settle { claim }) => Some(*claim),
        _ => None,
    })
}

fn old() -> (Scene, [FlowRecord; 3]) {
    let mut scene = Scene::new();
    let flows = [record(1, "10.9.0.1", false), record(2, "10.9.0.2", true), record(3, "10.9.0.3", true)];
    flows.iter().for_each(|flow| scene.told(flow));
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::NoStandby(vec![flows[2].fleet_id()]));
    scene.take();
    (scene, flows)
}

#[test]
fn a_new_process_resets_and_inherits_what_the_old_one_knew_of_a_peer_that_it_never_hears() {
    let (before, [proxied, held, crowded]) = old();
    let mut scene = successor(&save(&before.machine), &["10.0.0.22"], Liveness::Unlinked);
    let told = scene.take();
    assert!(told.contains(&Action::Standby(StandbyRequest::Confirm(vec![held.fleet_id()]))), "{told:?}");
    let forward = StandbyRequest::Forward { flows: vec![forwarded(&proxied)], to: ip("10.0.0.21") };
    assert!(told.contains(&Action::Standby(forward)), "{told:?}");
    // What is not known any more is over, and none of it is claimed: both flows are known.
    assert_eq!(is_settled(&told), Some(false));
    assert_eq!(scene.machine.known(), 3);
    scene.addresses(&["10.0.0.22", VIP]);
    scene.take();
    scene.liveness(Liveness::Dead);
    let actions = scene.take();
    assert!(actions.contains(&Action::Standby(StandbyRequest::Inherit(vec![held.fleet_id()]))), "{actions:?}");
    let over = Note::FailedOver { from: name("a"), inherited: 1, reset: 2 };
    assert!(actions.contains(&Action::Note(over)), "{actions:?}");
    let refused: HashSet<_> = actions
        .iter()
        .filter_map(|it| match it {
            Action::Standby(StandbyRequest::Refuse(keys)) => Some(keys.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(refused, [&proxied, &crowded].iter().flat_map(|flow| flow.ends.keys()).collect());
}

/// The VIP is here, and the process does not know yet that the owner of the entries lives.
#[test]
fn entries_of_a_live_peer_are_not_claimed_before_all_that_was_known_is_told() {
    let (before, [_, held, _]) = old();
    let mut scene = successor(&save(&before.machine), &["10.0.0.22", VIP], Liveness::Unlinked);
    let actions = scene.take();
    let at = |which: &dyn Fn(&Action) -> bool| actions.iter().position(which);
    let confirmed = at(&|it| *it == Action::Standby(StandbyRequest::Confirm(vec![held.fleet_id()])));
    let settled = at(&|it| *it == Action::Standby(StandbyRequest::Settle { claim: false }));
    assert!(confirmed.is_some() && confirmed < settled, "{actions:?}");
}

#[test]
fn a_snapshot_replaces_what_the_process_before_knew_and_resets_no_flow_of_a_live_peer() {
    let (before, [proxied, held, crowded]) = old();
    let mut scene = successor(&save(&before.machine), &["10.0.0.22"], Liveness::Unlinked);
    scene.take();
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(1), slot: 0 });
    scene.told(&proxied);
    scene.told(&crowded);
    scene.remote(Remote::Synced { owner: name("a") });
    let actions = scene.take();
    assert_eq!(scene.machine.known(), 2);
    assert!(actions.contains(&Action::Standby(StandbyRequest::Drop(vec![held.fleet_id()]))), "{actions:?}");
    let resets = |it: &Action| matches!(it, Action::Standby(StandbyRequest::Refuse(_)) | Action::Challenge { .. });
    assert!(!actions.iter().any(resets), "{actions:?}");
}

/// The flows of a dead peer that were being told are told anew: the old process's rounds ended with it.
#[test]
fn flows_of_a_dead_peer_that_the_old_process_was_telling_are_told_by_the_new_one() {
    let (mut before, _) = old();
    before.addresses(&["10.0.0.22", VIP]);
    before.liveness(Liveness::Dead);
    before.take();
    let known = save(&before.machine);
    // The inherited flow is this host's own.
    assert_eq!(known.flows[&name("a")].len(), 2);
    let mut scene = successor(&known, &["10.0.0.22", VIP], Liveness::Dead);
    let actions = scene.take();
    let over = Note::FailedOver { from: name("a"), inherited: 0, reset: 2 };
    assert!(actions.contains(&Action::Note(over)), "{actions:?}");
}

#[test]
fn ports_that_peers_have_told_and_addresses_that_they_keep_are_known_to_the_new_process() {
    let (mut before, _) = old();
    before.remote(Remote::Ports { owner: name("a"), ports: PortRange { first: 2000, last: 3000 } });
    before.remote(Remote::Kept { owner: name("a"), vips: vec![ip(VIP)] });
    let known = save(&before.machine);
    let scene = successor(&known, &["10.0.0.22"], Liveness::Unlinked);
    let again = save(&scene.machine);
    assert_eq!(again.peers, known.peers);
    let states = |known: &KnownPeers| {
        known.flows[&name("a")].iter().map(|flow| (flow.fleet_id(), flow.state)).collect::<HashMap<_, _>>()
    };
    assert_eq!(states(&again), states(&known));
    assert_eq!(known.peers[&name("a")].ports, [PortRange { first: 2000, last: 3000 }]);
    assert_eq!(known.peers[&name("c")].ports, []);
}
