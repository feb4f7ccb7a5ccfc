//! The last host of a fleet, which hears neither a router nor a backend nor a peer.

use super::built_in::{fleet, has_vip, owner, places, served_after};
use super::*;

/// Regression: the last one of three hosts took the VIP at no time, though clients asked for it: it took itself for cut off.
#[test]
fn the_last_one_of_three_hosts_takes_the_built_in_vip_when_a_client_asks_for_its_address() {
    for place in places() {
        let Some((scene, _servers, all)) = fleet(&format!("alone, {}", place.ip()), 3) else { return };
        served_after(&scene, &Stopwatch::start());
        let last = (owner(&all) + 1) % 3;
        // The client then asks at once, not when its entries have expired.
        scene.lab.client.run("ip neigh flush dev eth0");
        let dead = (0..3).filter(|number| *number != last).map(|number| &all[number].host);
        dead.chain([&scene.lab.b1, &scene.lab.b2]).for_each(Host::link_down);
        let why = || String::from_utf8(all[last].baton.cli(&["vip", "--why"]).stdout).unwrap();
        eventually(LONG, "it hears nobody", || {
            why().contains("this host hears neither its gateway nor a backend nor a client")
        });
        wait::throughout(secs(3), "a host that hears nobody does not take it", || !has_vip(&all[last]));
        let watch = Stopwatch::start();
        eventually(LONG, "it takes the VIP", || {
            let _ = scene.lab.client.try_connect(place, ms(100));
            has_vip(&all[last])
        });
        println!("{}: taken {:?} after a client had begun to ask", place.ip(), watch.unstalled());
    }
}
