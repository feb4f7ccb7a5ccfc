//! Clients on the host that has the built-in VIP: they connect from the VIP itself, and only this host reaches them.

use super::built_in::{VIP6, fleet, has_vip, owner, places, restart, served_after};
use super::*;

/// The time in which such a client hears of a hang, and that in which the new owner serves it: docs/vip.md states them.
const TOLD_WITHIN: std::time::Duration = secs(2);
const SERVED_WITHIN: std::time::Duration = secs(3);

/// Regression: the kernel removed the hung process's address, so no packet passed any more between that process and the client, which
/// waited for its own timeout (a kubelet 45 s).
#[test]
fn a_client_of_the_host_whose_baton_hangs_is_told_at_once_and_served_by_the_new_owner_of_the_built_in_vip() {
    let Some((scene, _servers, mut all)) = fleet("own clients of a hung baton", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    for (one, other) in [(0, 1), (1, 0)] {
        all[one].wait_synced(all[other].name);
    }
    let had = owner(&all);
    let host = all[had].host.clone();
    let mut waiting = places().map(|place| host.connect(place));
    waiting.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let mut remote = scene.lab.client.connect(places()[0]);
    remote.echo(1, 1000);
    // The holder looks for its host's own clients twice a second.
    wait::throughout(secs(2), "it runs", || all[had].baton.process.exit_status().is_none());
    let watch = Stopwatch::start();
    all[had].baton.process.stop();
    let ends = waiting.each_mut().map(|conn| (conn.end(LONG), watch.unstalled()));
    for place in places() {
        eventually(LONG, "the new owner serves it", || {
            host.try_connect(place, ms(100)).is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok())
        });
    }
    let served = watch.unstalled();
    println!("clients of the own host: {ends:?}, served after {served:?}");
    let is_told = |(end, after): &(End, _)| *end != End::Open && *after < TOLD_WITHIN + ms(500);
    assert!(ends.iter().all(is_told), "{ends:?}");
    assert!(served < SERVED_WITHIN + ms(1000), "{served:?}");
    assert_ne!(remote.end(LONG), End::Open);
    // The supervisor starts it again.
    restart(&mut all[had]);
    wait::throughout(secs(2), "the VIP stays", || has_vip(&all[1 - had]) && !has_vip(&all[had]));
}

/// A pause of the whole machine must not cost what nobody else can carry on.
#[test]
fn a_baton_that_hangs_while_no_peer_can_take_its_vip_goes_on() {
    let Some((scene, _servers, mut all)) = fleet("no heir of a hung baton", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let had = owner(&all);
    let place = places()[0];
    // Nobody else has it.
    let other = all.remove(1 - had);
    other.baton.process.kill();
    let mut own = all[0].host.connect(place);
    own.echo(1, 1000);
    std::thread::sleep(secs(2));
    all[0].baton.process.stop();
    std::thread::sleep(secs(3));
    all[0].baton.process.go_on();
    assert!(all[0].baton.process.exit_status().is_none(), "it was killed");
    own.echo(2, 1000);
    eventually(LONG, "it has the VIP again", || has_vip(&all[0]) && all[0].host.has_address(VIP6));
}

/// Regression: the kernel went on accepting for a holder that hung, and acknowledged what the clients sent. No peer knew of these connections, and
/// the clients waited for as long as the process hung.
#[test]
fn clients_that_a_hung_baton_s_kernel_has_accepted_are_told_before_the_vip_leaves() {
    let Some((scene, _servers, mut all)) = fleet("accepted by the kernel of a hung baton", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    for (one, other) in [(0, 1), (1, 0)] {
        all[one].wait_synced(all[other].name);
    }
    let had = owner(&all);
    wait::throughout(secs(1), "it runs", || all[had].baton.process.exit_status().is_none());
    all[had].baton.process.stop();
    let watch = Stopwatch::start();
    let mut accepted = places().map(|place| {
        let mut conn = scene.lab.client.connect(place);
        conn.send(1, 100).unwrap();
        conn
    });
    let ends = accepted.each_mut().map(|conn| (conn.end(LONG), watch.unstalled()));
    println!("clients of the hung process's kernel: {ends:?}");
    assert!(ends.iter().all(|(end, after)| *end != End::Open && *after < TOLD_WITHIN + ms(500)), "{ends:?}");
    served_after(&scene, &watch);
    restart(&mut all[had]);
    wait::throughout(secs(2), "the VIP stays", || has_vip(&all[1 - had]) && !has_vip(&all[had]));
}
