//! The host that has the built-in VIP can use no backend, and the other one can.

use std::time::Duration;

use super::built_in::{self, fleet, has_vip, owner, places, served_after};
use super::*;
use crate::fleet::{Instance, Scene};

/// docs/vip.md states 4 s for a host whose network to all backends is cut: its probes need up to 2.5 s.
const CUT_WITHIN: Duration = ms(5000);
/// Without a probe, by an operator's order.
const ORDERED_WITHIN: Duration = ms(3000);

/// Waits until both have the state of the other and of their backends, and returns the holder.
fn settled(scene: &Scene, all: &[Instance]) -> usize {
    served_after(scene, &Stopwatch::start());
    for (one, other) in [(0, 1), (1, 0)] {
        all[one].baton.wait_until_ready();
        all[one].wait_synced(all[other].name);
        ["b1", "b2"].iter().for_each(|name| _ = all[one].baton.wait_health(name, "ready", LONG));
    }
    owner(all)
}

fn why(instance: &Instance) -> String {
    String::from_utf8(instance.baton.cli(&["vip", "--why"]).stdout).unwrap()
}

/// The VIP goes from `had` to the other within `most`, and clients are served there.
#[track_caller]
fn goes(scene: &Scene, all: &[Instance], had: usize, most: Duration) {
    let watch = Stopwatch::start();
    let gets = 1 - had;
    eventually(LONG, "the other has the VIP", || has_vip(&all[gets]) && !has_vip(&all[had]));
    served_after(scene, &watch);
    let took = watch.unstalled();
    println!("the other one served {took:?} later");
    assert!(took < most, "{took:?}");
    let expected = format!("no backend can be used here, and {} can use one", all[gets].name);
    let said = why(&all[had]);
    assert!(said.contains(&expected), "{said}");
}

/// Regression: the VIP stayed, and new connections were reset for as long as the cut lasted.
#[test]
fn a_host_that_reaches_no_backend_gives_the_built_in_vip_to_one_that_does() {
    let Some((scene, _servers, all)) = fleet("built-in vip, no backend", 2) else { return };
    let had = settled(&scene, &all);
    let gets = 1 - had;
    let mut conns: Vec<_> = (0..5).map(|_| scene.lab.client.connect(places()[0])).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let backends = format!("{}, {}", scene.lab.b1.v4(0).ip(), scene.lab.b2.v4(0).ip());
    all[had].host.drop_packets("output", &format!("ip daddr {{ {backends} }}"));
    goes(&scene, &all, had, CUT_WITHIN);
    // Their backends count as dead at their instance: nobody is left waiting.
    conns.iter_mut().for_each(|conn| assert_ne!(conn.end(LONG), End::Open));
    let mut kept = scene.lab.client.connect(places()[0]);
    kept.echo(1, 1000);
    // When the path is whole again, the VIP stays.
    all[had].host.nft_clear();
    ["b1", "b2"].iter().for_each(|name| _ = all[had].baton.wait_health(name, "ready", LONG));
    wait::throughout(secs(2), "it stays", || has_vip(&all[gets]) && !has_vip(&all[had]));
    kept.echo(2, 1000);
}

#[test]
fn an_instance_whose_operator_ejects_all_backends_gives_the_built_in_vip_up_and_without_a_backend_anywhere_it_stays() {
    let Some((scene, servers, all)) = fleet("built-in vip, ejected", 2) else { return };
    let had = settled(&scene, &all);
    let gets = 1 - had;
    ["b1", "b2"].iter().for_each(|name| _ = all[had].baton.order(&["eject", name]));
    goes(&scene, &all, had, ORDERED_WITHIN);
    // Now no instance can use one, which moves nothing.
    drop(servers);
    ["b1", "b2"].iter().for_each(|name| _ = all[gets].baton.wait_health(name, "ejected", LONG));
    let says = format!("no backend can be used here or at {}", all[had].name);
    eventually(LONG, "people see why", || why(&all[gets]).contains(&says));
    wait::throughout(secs(3), "it stays", || has_vip(&all[gets]) && !has_vip(&all[had]));
}

/// Regression: where no router and no client is heard, a host whose apiservers all hung took itself for cut off, though their kernels answered.
/// Nobody took a VIP that was free, and clients waited instead of being reset.
#[test]
fn a_built_in_vip_is_taken_while_every_apiserver_hangs_and_clients_are_reset() {
    let Some(scene) = Scene::new("built-in vip, all hang", 2) else { return };
    let _silent = [&scene.lab.b1, &scene.lab.b2].map(|host| host.serve(Behaviour::Silent));
    let all = [0, 1].map(|number| {
        let http = built_in::config(&scene, number).health("kind", "http").health("path", "/readyz");
        scene.launch(number, &http.health("timeout", "500ms"))
    });
    let owner = &all[owner(&all)];
    ["b1", "b2"].iter().for_each(|name| _ = owner.baton.wait_health(name, "ejected", LONG));
    match scene.lab.client.try_connect(places()[0], LONG) {
        Ok(mut conn) => assert_eq!(conn.end(LONG), End::Rst),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}
