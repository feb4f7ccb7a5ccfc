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
        let mac = stranger.mac().to_string();
        let is_named = |why: &str| why.contains(&mac) && why.contains(") answers for ");
        let why = |number: usize| String::from_utf8(all[number].baton.cli(&["vip", "--why"]).stdout).unwrap();
        eventually(LONG, "people see who has it", || (0..2).any(|number| is_named(&why(number))));
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

/// Regression: one announcement of a host that does not even have the VIP led its neighbours to that host for ten seconds and more.
#[test]
fn clients_find_the_built_in_vip_again_after_a_stranger_s_single_announcement() {
    use ::baton::model::neighbour;
    use ::baton::sys::frame::FrameSender;
    use ::baton::sys::netdev;
    let Some((scene, _servers, all)) = super::built_in::fleet("built-in vip announced", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let had = owner(&all);
    for (number, address) in [VIP, VIP6].into_iter().enumerate() {
        let vip = address.parse().unwrap();
        let stranger = scene.host(2).clone();
        // Neighbours do not believe a change for a second after the last one (neigh/default: locktime).
        let before = &all[had].host.mac();
        served_after(&scene, &Stopwatch::start());
        eventually(LONG, "the client knows the holder", || scene.lab.client.neighbour(vip).as_ref() == Some(before));
        wait::throughout(ms(1500), "and nobody else", || scene.lab.client.neighbour(vip).as_ref() == Some(before));
        let mac = stranger.mac().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>();
        let mac = mac.try_into().unwrap();
        let (sends, index) =
            stranger.enter(|| (FrameSender::open().unwrap(), netdev::interface("eth0").unwrap().index));
        neighbour::announcement(vip, mac).iter().for_each(|frame| sends.send(index, frame).unwrap());
        let watch = Stopwatch::start();
        eventually(LONG, "it is an event", || all[had].baton.events_of("vip_defended").len() == number + 1);
        eventually(secs(3), "the client knows the holder again", || {
            scene.lab.client.neighbour(vip).as_ref() == Some(before)
        });
        println!("{address}: the client knew the holder again after {:?}", watch.elapsed());
        // A second one would not be answered at once.
        wait::throughout(secs(11), "the VIP stays", || has_vip(&all[had]));
    }
    assert_eq!(all[had].baton.events_of("vip_defended")[0]["by"], scene.host(2).mac());
    served_after(&scene, &Stopwatch::start());
}
