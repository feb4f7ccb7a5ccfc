//! A host outside the fleet has the addresses of the built-in VIP.

use super::built_in::{VIP6, has_vip, launched, owner, served_after};
use super::*;
use crate::fleet::Scene;

/// An instance asks again once a second, six times in a row, 40 ms apart.
const TAKEN_WITHIN: std::time::Duration = ms(3000);

#[test]
fn nobody_takes_a_built_in_vip_that_a_stranger_has_and_people_see_its_ethernet_address() {
    for address in [VIP, VIP6] {
        let Some(scene) = Scene::new(&format!("stranger has {address}"), 2) else { return };
        // The stranger must be there first.
        let stranger = scene.host(2).clone();
        let prefix = if address == VIP { "32" } else { "128 nodad" };
        stranger.run(&format!("ip address add {address}/{prefix} dev eth0"));
        let (_servers, all) = launched(&scene, 2);
        all.iter().for_each(|instance| instance.baton.wait_until_ready());
        let event = || all.iter().find_map(|it| it.baton.events_of("vip_answered").pop());
        let (event, _) = eventually_some(LONG, "an instance reports the stranger", event);
        assert_eq!(event["by"], stranger.mac(), "{event}");
        let expected = format!("another host ({}) has one of the addresses", stranger.mac());
        let why = |number: usize| String::from_utf8(all[number].baton.cli(&["vip", "--why"]).stdout).unwrap();
        eventually(LONG, "people see who has it", || (0..2).any(|number| why(number).contains(&expected)));
        wait::throughout(secs(4), "nobody takes it", || !all.iter().any(has_vip));
        assert!(all.iter().all(|it| it.baton.events_of("vip_answered").len() <= 1), "it is told once");
        let prefix = prefix.trim_end_matches(" nodad");
        stranger.run(&format!("ip address del {address}/{prefix} dev eth0"));
        let watch = Stopwatch::start();
        owner(&all);
        let took = watch.unstalled();
        println!("{address}: taken {took:?} after the stranger gave it up");
        assert!(took < TAKEN_WITHIN, "{took:?}");
        served_after(&scene, &Stopwatch::start());
    }
}
