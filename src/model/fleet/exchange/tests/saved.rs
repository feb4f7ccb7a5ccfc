//! The peers of one process, in the next.

use super::*;
use crate::model::fleet::{KnownPeers, SavedFleet, SavedFlowState, SavedPeerFlow};

/// The next process of the instance at `at`, which begins `later_ms` after the one before has left. Its failover knew all flows.
fn succeed(fleet: &mut Fleet, at: usize, later_ms: u64, flows: &[SavedPeerFlow]) {
    let saved = fleet.instances[at].save(fleet.now_ns);
    assert!(std::iter::from_fn(|| fleet.instances[at].poll_remote()).any(|it| it == Remote::Save));
    fleet.instances[at].farewell(Farewell::Succeeded);
    let owner = saved[0].name.clone();
    let known = KnownPeers { flows: [(owner, flows.to_vec())].into(), ..KnownPeers::default() };
    fleet.now_ns += later_ms * MS;
    let mut next = Fleet::of(&["a", "b"]).instances.remove(at);
    next.looked_ns = fleet.now_ns;
    next.restore(SavedFleet::join(saved, known, 2), fleet.now_ns);
    fleet.instances[at] = next;
    fleet.told[at].clear();
}

fn flow(id: u64, state: SavedFlowState) -> SavedPeerFlow {
    let record = record(id);
    let client = record.client.ip();
    SavedPeerFlow { id: record.id, ends: record.ends, client, accepted_unix_ms: 1, state, told: true }
}

fn flows() -> Vec<SavedPeerFlow> {
    (1..=5).map(|id| flow(id, if id < 4 { SavedFlowState::Proxied } else { SavedFlowState::Held })).collect()
}

/// Time in which neither process listened is no silence of the peer.
#[test]
fn a_peer_that_the_new_process_never_hears_is_dead_a_second_after_its_start() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    succeed(&mut fleet, 1, 3000, &flows());
    let seen = fleet.view(1, "a");
    assert_eq!((seen.liveness, seen.synced, seen.flows, seen.offloaded), (Liveness::Unlinked, true, 5, 2));
    assert!(fleet.instances[1].is_ready(), "as the process before it was");
    fleet.pass(200);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Unlinked);
    fleet.pass(100);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Silent);
    let vip = fleet.instances[1].vip_peers(&[], fleet.now_ns);
    assert_eq!(vip[0].silence_ns, Some(300 * MS));
    fleet.pass(600);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Silent);
    fleet.pass(150);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
    let dead = Remote::Liveness { owner: name("a"), liveness: Liveness::Dead };
    assert_eq!(fleet.told[1].iter().filter(|it| **it == dead).count(), 1);
    let restored = fleet.told[1].iter().position(|it| *it == Remote::Restored);
    assert!(restored < fleet.told[1].iter().position(|it| *it == dead));
}

#[test]
fn a_link_replaces_what_the_process_before_knew() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.establish(0, 1..=2);
    fleet.talk();
    succeed(&mut fleet, 1, 10, &flows());
    assert_eq!(fleet.view(1, "a").flows, 5);
    fleet.instances[0].handle_loss(&name("b"), "closed", fleet.now_ns);
    fleet.link(0, 1);
    fleet.talk();
    let seen = fleet.view(1, "a");
    assert_eq!((seen.liveness, seen.synced, seen.flows, seen.offloaded), (Liveness::Alive, true, 2, 0));
}

#[test]
fn a_peer_of_which_not_all_flows_were_told_is_waited_for() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let saved = fleet.instances[1].save(fleet.now_ns);
    let known = KnownPeers { flows: [(name("a"), flows())].into(), ..KnownPeers::default() };
    let mut whole = SavedFleet::join(saved, known, 2);
    whole.flows.pop();
    let mut next = Fleet::of(&["a", "b"]).instances.remove(1);
    next.restore(whole, fleet.now_ns);
    fleet.instances[1] = next;
    let seen = fleet.view(1, "a");
    assert_eq!((seen.synced, seen.flows, fleet.instances[1].is_ready()), (false, 3, false));
    let synced = |it: Remote| matches!(it, Remote::Synced { .. });
    assert!(!std::iter::from_fn(|| fleet.instances[1].poll_remote()).any(synced));
}

/// The new file may name other hosts.
#[test]
fn a_peer_that_is_at_another_host_by_now_is_not_the_one_that_was_known() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let mut saved = fleet.instances[1].save(fleet.now_ns);
    saved[0].link = "10.0.0.9".parse().unwrap();
    let known = KnownPeers { flows: [(name("a"), flows())].into(), ..KnownPeers::default() };
    let mut next = Fleet::of(&["a", "b"]).instances.remove(1);
    next.restore(SavedFleet::join(saved, known, 2), fleet.now_ns);
    fleet.instances[1] = next;
    let seen = fleet.view(1, "a");
    assert_eq!((seen.liveness, seen.synced, seen.flows), (Liveness::Unheard, false, 0));
}

/// Regression: an upgrade that failed after the farewell took all peers for dead, if it had lasted for more than a second.
#[test]
fn an_instance_that_comes_back_takes_no_peer_for_dead_that_it_could_not_hear() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.instances[1].farewell(Farewell::Succeeded);
    fleet.instances[1].handle_loss(&name("a"), "this process is being replaced", fleet.now_ns);
    fleet.pass(3000);
    fleet.told[1].clear();
    let now_ns = fleet.now_ns;
    fleet.instances[1].begin_again(Epoch(2), now_ns);
    fleet.pass(100);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Unlinked);
    fleet.pass(1000);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
}
