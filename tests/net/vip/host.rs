//! What else happens to a host with the built-in VIP: its interface is made anew, somebody else adds the address, the kernel refuses it.

use super::built_in::{VIP6, fleet, has_vip, restart, served_after, settled};
use super::*;
use crate::fleet::Instance;

fn why(instance: &Instance) -> String {
    String::from_utf8(instance.baton.cli(&["vip", "--why"]).stdout).unwrap()
}

/// The holder answers ARP, and IP between the two is cut.
#[test]
fn a_host_whose_interface_is_made_anew_asks_there_before_it_takes_the_built_in_vip() {
    let Some((scene, _servers, all)) = fleet("built-in vip made anew", 2) else { return };
    let (had, other) = settled(&scene, &all);
    all[other].host.make_link_anew();
    all[other].wait_synced(all[had].name);
    all[other].host.drop_packets("input", &format!("ip saddr {}", all[had].host.v4));
    let mac = all[had].host.mac().to_string();
    let answered = |why: &str| why.contains(&mac) && why.contains(") answers for ");
    eventually(LONG, "it asks and hears the holder", || answered(&why(&all[other])));
    wait::throughout(secs(3), "it leaves the VIP to the holder", || has_vip(&all[had]) && !has_vip(&all[other]));
    all[other].host.nft_clear();
    all[other].wait_synced(all[had].name);
    all[had].host.link_down();
    eventually(LONG, "it takes the VIP of a host that is cut off", || has_vip(&all[other]));
    served_after(&scene, &Stopwatch::start());
}

fn has_entry(instance: &Instance, entry: &str) -> bool {
    instance.host.run("ip -o address show dev eth0").contains(&format!(" {entry} "))
}

/// Regression: the standby had hundreds of events in seconds, and the holder lost the VIP.
#[test]
fn the_built_in_vip_with_another_mask_goes_from_a_host_that_stands_by() {
    let Some((scene, _servers, all)) = fleet("built-in vip mask", 2) else { return };
    let (had, other) = settled(&scene, &all);
    let count = || all[other].baton.events_of("vip_given_up").len();
    let entries = [format!("{VIP}/24"), format!("{VIP6}/64")];
    for (number, entry) in entries.iter().enumerate() {
        all[other].host.run(&format!("ip address add {entry} dev eth0"));
        eventually(LONG, "Baton removes it", || !has_entry(&all[other], entry));
        eventually(LONG, "it is an event", || count() == number + 1);
        wait::throughout(secs(6), "it is one event, and the VIP stays", || count() == number + 1 && has_vip(&all[had]));
    }
    // Its own address is secondary to this one, and would go with it.
    let own = format!("{}/24", all[other].host.v4);
    // Baton is too quick for three commands.
    all[other].baton.process.stop();
    all[other].host.run(&format!(
        "ip address del {own} dev eth0; ip address add {0} dev eth0; ip address add {own} dev eth0",
        entries[0]
    ));
    all[other].baton.process.go_on();
    eventually(secs(5), "it says what to do", || !all[other].baton.events_of("vip_not_removed").is_empty());
    wait::throughout(secs(3), "the host keeps its own address", || has_entry(&all[other], &own));
    assert_eq!(all[other].baton.events_of("vip_not_removed").len(), 1);
    assert!(has_vip(&all[had]));
    all[other].host.sysctl("net/ipv4/conf/all/promote_secondaries", "1");
    eventually(secs(5), "Baton removes it", || !has_entry(&all[other], &entries[0]) && has_entry(&all[other], &own));
}

/// Whether the kernel removes each address of the VIP when its time is over. `replace` may take the time away until the next renewal.
fn is_leased(instance: &Instance) -> bool {
    let has_end =
        |ip: &str| !instance.host.run(&format!("ip -o address show dev eth0 to {ip}")).contains("valid_lft forever");
    has_end(VIP) && has_end(VIP6)
}

/// Regression: the entry stayed when Baton was killed, so nobody else could take the VIP.
#[test]
fn the_built_in_vip_with_another_mask_does_not_stay_on_a_holder_that_is_killed() {
    let Some((scene, _servers, mut all)) = fleet("built-in vip mask killed", 2) else { return };
    let (had, other) = settled(&scene, &all);
    for entry in [format!("{VIP}/24"), format!("{VIP6}/64")] {
        all[had].host.run(&format!("ip address replace {entry} dev eth0"));
        eventually(LONG, "only Baton's own is left", || {
            let own = [format!("{VIP}/32"), format!("{VIP6}/128")];
            !has_entry(&all[had], &entry) && own.iter().all(|own| has_entry(&all[had], own)) && is_leased(&all[had])
        });
    }
    assert!(!all[had].baton.events_of("vip_other_mask").is_empty());
    all[had].baton.process.kill();
    eventually(secs(5), "the other has the VIP", || has_vip(&all[other]) && !has_vip(&all[had]));
    restart(&mut all[had]);
    settled(&scene, &all);
    // What is added after the kill is taken back by the next process.
    all[other].baton.process.kill();
    all[other].host.run(&format!("ip address add {VIP}/24 dev eth0"));
    restart(&mut all[other]);
    eventually(LONG, "one has it, by Baton's own entry", || {
        !has_entry(&all[other], &format!("{VIP}/24")) && has_vip(&all[had]) != has_vip(&all[other])
    });
    served_after(&scene, &Stopwatch::start());
}

/// The other instance has the whole VIP then, and nobody says that this one has it.
#[test]
fn a_host_that_may_not_add_one_address_has_none_of_the_built_in_vip_and_says_why() {
    let Some((scene, _servers, all)) = fleet("built-in vip without ipv6", 2) else { return };
    let (had, other) = settled(&scene, &all);
    all[had].host.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1");
    eventually(secs(5), "the other has it", || has_vip(&all[other]) && !has_vip(&all[had]));
    let refused = all[had].baton.events_of("vip_refused");
    let error = refused.first().expect("an event")["error"].as_str().unwrap().to_owned();
    assert!(error.contains("os error 13") && error.contains("net.ipv6.conf.eth0.disable_ipv6=0"), "{error}");
    // With nobody else, it tries in vain.
    let gains = |instance: &Instance| instance.baton.events_of("vip_gained").len();
    let before = gains(&all[had]);
    all[other].host.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1");
    eventually(secs(5), "neither has it", || !has_vip(&all[other]));
    eventually(LONG, "people see why", || why(&all[had]).contains("cannot add fd77::100 to eth0"));
    std::thread::sleep(secs(7));
    assert_eq!(gains(&all[had]), before, "it has gained nothing");
    assert_eq!(all[had].baton.metric("baton_vip_held", &[VIP]), 0.0);
    assert_eq!(all[had].baton.events_of("vip_refused").len(), 1, "once, not at each attempt");
    all[had].host.sysctl("net/ipv6/conf/eth0/disable_ipv6", "0");
    eventually(LONG, "it has it again", || has_vip(&all[had]) && gains(&all[had]) == before + 1);
}

/// Regression: such a host was called ready for the VIP.
#[test]
fn a_host_without_carrier_says_that_it_cannot_have_the_built_in_vip_and_why() {
    let Some((scene, _servers, all)) = fleet("built-in vip without carrier", 2) else { return };
    let (had, other) = settled(&scene, &all);
    let all_say = |instance: &Instance, words: &str, yes: bool| {
        ["status", "peers"].iter().all(|command| instance.baton.order(&[command]).contains(words) == yes)
    };
    for number in [other, had] {
        all[number].host.link_down();
        let why = "cannot have the VIP: the interface has no carrier";
        eventually(LONG, "it says so", || all_say(&all[number], why, true));
        all[number].host.link_up();
        eventually(LONG, "it can have it again", || all_say(&all[number], "cannot have the VIP", false));
    }
}

/// Regression: it said that the interface has no carrier.
#[test]
fn a_host_whose_interface_got_another_name_says_that_it_is_not_there() {
    let Some((scene, _servers, all)) = fleet("built-in vip renamed", 2) else { return };
    let (had, other) = settled(&scene, &all);
    all[had].host.run("ip link set eth0 name net7");
    let missing = "interface eth0 is not there";
    eventually(LONG, "it says why", || why(&all[had]).contains(missing));
    eventually(LONG, "the other host has the VIP", || has_vip(&all[other]));
    let given_up = all[had].baton.events_of("vip_given_up");
    let whys: Vec<_> = given_up.iter().map(|it| it["why"].to_string()).collect();
    assert!(
        !whys.is_empty() && whys.iter().all(|it| it.contains("interface eth0") && !it.contains("carrier")),
        "{whys:?}"
    );
    // It kept the address until its lease ended.
    let answered = all[other].baton.events_of("vip_answered");
    let name = all[had].name;
    assert!(answered.iter().all(|it| it["by"].as_str().is_some_and(|by| by.starts_with(name))), "{answered:?}");
}

/// Regression: the holder's kernel went on answering ARP for the VIP, which Baton had added again, so that no peer took it and nobody served.
#[test]
fn a_host_that_loses_all_its_addresses_gives_the_built_in_vip_up() {
    let Some((scene, _servers, all)) = fleet("built-in vip flushed", 2) else { return };
    let (had, other) = settled(&scene, &all);
    let host = all[had].host.clone();
    host.run("ip address flush dev eth0");
    let watch = Stopwatch::start();
    eventually(secs(5), "the other host has the VIP", || has_vip(&all[other]));
    let served = served_after(&scene, &watch);
    println!("served {served:?} after the addresses had gone");
    assert!(served < secs(4), "{served:?}");
    let reason = "the interface has lost all its other addresses";
    eventually(LONG, "the host says why", || why(&all[had]).contains(reason));
    wait::throughout(secs(2), "the host does not take it", || !has_vip(&all[had]));
    host.run(&format!("ip address add {}/24 dev eth0; ip address add {}/64 dev eth0 nodad", host.v4, host.v6));
    all[other].wait_synced(all[had].name);
    assert!(has_vip(&all[other]) && !has_vip(&all[had]));
}
