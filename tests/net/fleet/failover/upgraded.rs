//! A host dies while its peers are upgraded: the new processes have no link to it yet, and never will.

use super::*;
use crate::lab::wait;

/// Flows whose clients have said little stay in sockets.
fn fleet_of(test: &str, count: usize) -> Option<Fleet> {
    let change = |config: Config| config.offload("after_round_trips", 4).offload("after", "1h");
    Fleet::with_built_in_vips(test, count, Flows::Offload, change)
}

/// Idle clients of its proxied flows, and clients of its offloaded ones.
struct Waiting {
    idle: Vec<Conn>,
    offloaded: Vec<Conn>,
}

fn waiting(fleet: &Fleet) -> Waiting {
    let offloaded = fleet.offloaded_clients(10);
    let idle = fleet.clients(20);
    for peer in &fleet.all[1..] {
        peer.wait_sees(fleet.owner().name, "flows", 30);
        peer.wait_sees(fleet.owner().name, "offloaded", 10);
    }
    Waiting { idle, offloaded }
}

/// All peers of the owner are upgraded, and it dies `after` they have begun.
fn dies_while_peers_are_upgraded(fleet: &Fleet, after: std::time::Duration) {
    let Waiting { mut idle, mut offloaded } = waiting(fleet);
    let watch = std::thread::scope(|scope| {
        let upgrades: Vec<_> =
            fleet.all[1..].iter().map(|peer| scope.spawn(|| peer.baton.order(&["upgrade"]))).collect();
        std::thread::sleep(after);
        fleet.owner().host.link_down();
        let watch = Stopwatch::start();
        upgrades.into_iter().for_each(|upgrade| drop(upgrade.join().expect("it is upgraded")));
        watch
    });
    let idle_reset = all_reset(&mut idle);
    let reset = watch.unstalled();
    offloaded.iter_mut().for_each(|conn| conn.echo(90, 200));
    let (served, other) = (watch.unstalled(), &fleet.all[1..]);
    fleet.clients(3);
    println!(
        "dead {after:?} after the upgrades began: reset {idle_reset:?} later, {reset:?} after the death; served {served:?} after it"
    );
    assert!(reset < secs(5), "{reset:?}");
    assert_eq!(other.iter().filter(|it| it.host.has_address(VIP)).count(), 1);
    let told: f64 = other.iter().map(|it| it.baton.metric("baton_failover_challenged_total", &[])).sum();
    assert!(told >= 20.0, "{told}");
    // Of a dead instance nothing is kept.
    let is_clean = |it: &Instance| it.baton.flow_count() <= 10;
    assert!(other.iter().all(is_clean), "{:?}", other.iter().map(|it| it.baton.flow_count()).collect::<Vec<_>>());
}

/// Regression: what the old process knew of the owner's proxied flows ended with it, so that clients which said nothing waited for ever,
/// and nobody took the VIP for seconds.
#[test]
fn idle_clients_of_a_host_that_dies_while_its_peer_is_upgraded_are_reset() {
    for after in [ms(20), ms(300), ms(900)] {
        let test = "idle_clients_of_a_host_that_dies_while_its_peer_is_upgraded";
        let Some(fleet) = fleet_of(test, 2) else { return };
        dies_while_peers_are_upgraded(&fleet, after);
    }
}

#[test]
fn idle_clients_of_a_host_that_dies_while_both_its_peers_are_upgraded_are_reset() {
    let test = "idle_clients_of_a_host_that_dies_while_both_its_peers_are_upgraded";
    let Some(fleet) = fleet_of(test, 3) else { return };
    dies_while_peers_are_upgraded(&fleet, ms(300));
}

/// The new process gets no link to the owner, whose flows all go on; then it gets one. Nothing of what it was told is doubled, and nothing
/// stays.
#[test]
fn a_new_process_knows_its_peers_flows_without_a_link_resets_none_and_forgets_them_when_they_end() {
    let test = "a_new_process_knows_its_peers_flows_without_a_link";
    let Some(fleet) = fleet_of(test, 2) else { return };
    let Waiting { mut idle, mut offloaded } = waiting(&fleet);
    let (owner, heir) = (fleet.owner(), fleet.heir());
    for port in ["dport", "sport"] {
        heir.host.drop_packets("input", &format!("tcp {port} 9471"));
    }
    heir.wait_sees(owner.name, "liveness", "unlinked");
    heir.baton.order(&["upgrade"]);
    fleet.wait_known(30, 10);
    heir.wait_sees(owner.name, "liveness", "unlinked");
    idle.iter_mut().chain(&mut offloaded).for_each(|conn| conn.echo(7, 200));
    wait::throughout(secs(3), "its beats are heard", || heir.sees(owner.name)["liveness"] == "unlinked");
    assert!(!heir.host.has_address(VIP));
    heir.host.nft_clear();
    heir.wait_synced(owner.name);
    fleet.wait_known(30, 10);
    idle.iter_mut().chain(&mut offloaded).for_each(|conn| conn.echo(8, 200));
    drop(idle.split_off(5));
    fleet.wait_known(15, 10);
    drop((idle, offloaded));
    fleet.wait_known(0, 0);
    assert_eq!(fleet.resets(), 0.0);
    let failovers: f64 = fleet.all.iter().map(|it| it.baton.metric("baton_failovers_total", &[])).sum();
    assert_eq!(failovers, 0.0);
}
