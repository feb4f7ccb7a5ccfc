//! A client that still reads its answer when its VIP moves: all of it was written, and not much of it has arrived.

use super::*;
use crate::closing::{long_answers, read_until_written, slow_client};

const ANSWERS: u16 = 7443;

/// A fleet whose backends answer at length, and the server that does.
fn fleet(test: &str) -> Option<(Fleet, [Server; 2])> {
    let scene = Scene::new(test, 2)?;
    let at = [&scene.lab.b1, &scene.lab.b2].map(|host| host.v4(ANSWERS));
    let servers = [scene.lab.b1.serve_on(at[0], long_answers()), scene.lab.b2.serve_on(at[1], long_answers())];
    let config = |_, config: Config| config.only(&[]).backend("b1", at[0]).backend("b2", at[1]);
    let fleet = Fleet::within(scene, VIP, test, 2, Flows::Kept, config)?;
    fleet.owner().host.add_address(fleet.vip.ip());
    Some((fleet, servers))
}

#[track_caller]
fn reads_all(mut conn: Conn) {
    let (end, _, _) = conn.read_end(LONG);
    assert_eq!((end, conn.received_pattern(5)), (End::Fin, 1_000_000));
}

/// Regression: a client waited for ever, because the address was removed before its answer was complete.
#[test]
fn a_slow_reader_whose_vip_moves_gets_all_that_was_written() {
    let Some((fleet, _servers)) = fleet("a_slow_reader_whose_vip_moves") else { return };
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let mut conn = slow_client(&fleet.scene.lab.client, fleet.vip);
    read_until_written(&mut conn, || owner.baton.flows());
    fleet.remove_vip(owner);
    fleet.take(heir);
    wait::throughout(secs(1), "the flow is there", || owner.baton.flow_count() == 1);
    reads_all(conn);
    owner.baton.wait_ended("client_closed", 1);
    eventually(LONG, "the address is kept no longer", || !owner.host.has_on_lo(VIP));
}

/// Regression: "this host may be switched off" although half of an answer was still on it.
#[test]
fn an_evacuation_waits_for_a_slow_reader() {
    let Some((fleet, _servers)) = fleet("an_evacuation_waits_for_a_slow_reader") else { return };
    let fleet = fleet.with_track_file();
    let owner = fleet.owner();
    let mut conn = slow_client(&fleet.scene.lab.client, fleet.vip);
    read_until_written(&mut conn, || owner.baton.flows());
    std::thread::scope(|scope| {
        let evacuation = scope.spawn(|| owner.baton.cli(&["evacuate", "--to", "lb-b", "--deadline", "30s", "--json"]));
        fleet.move_when_not_ready();
        wait::throughout(secs(1), "it waits", || !evacuation.is_finished());
        reads_all(conn);
        let output = evacuation.join().unwrap();
        let report = Instance::report(&output);
        assert!(output.status.success(), "{report}");
        assert_eq!((&report["flows"]["reset"], &report["flows"]["proxied_left"]), (&0.into(), &0.into()), "{report}");
    });
}
