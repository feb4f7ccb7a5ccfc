//! Who moves the VIP changes: keepalived, Baton, nobody.

use super::built_in::{fleet, has_vip, places, served_after, settled, vip_of};
use super::*;
use crate::fleet::Scene;

/// Goes through both procedures of docs/vip.md, host by host.
#[test]
fn a_fleet_is_moved_from_keepalived_to_the_built_in_vip_and_back_without_a_reset() {
    let Some(scene) = Scene::new("keepalived to built-in", 2) else { return };
    let _servers = scene.serve();
    let own = |number: usize| {
        let config = scene.config(number).peers("sync_deadline", "2s");
        config.frontend("listen", vec![format!("{VIP}:6443")])
    };
    let all: Vec<_> = (0..2).map(|number| scene.launch(number, &own(number))).collect();
    let mover = |number: usize, priority: u8| {
        let (here, there) = (&all[number], &all[1 - number]);
        // Nothing here depends on its interval, and a busy machine may keep it waiting.
        keepalived_every("1", [&here.host, &there.host], &here.directory, &here.baton, (priority, &[]))
    };
    let first = mover(0, 100);
    eventually(LONG, "the first has the VIP", || has_vip(&all[0]));
    let second = mover(1, 90);
    all[0].wait_synced("lb-b");
    all[1].wait_synced("lb-a");
    let place = places()[0];
    let mut conns: Vec<_> = (0..20).map(|_| scene.lab.client.connect(place)).collect();
    let mut seed = 0;
    let mut all_answer = || {
        seed += 1;
        conns.iter_mut().for_each(|conn| conn.echo(seed, 1000));
    };
    all_answer();
    let turn_over = |number: usize| {
        let config = own(number).vip("addresses", vec![format!("{VIP}/32")]).vip("interface", "eth0");
        all[number].baton.write_config(&config);
        all[number].reload();
    };
    let part_of = |number: usize| vip_of(&all[number])["view"]["part"].as_str().unwrap_or_default().to_owned();

    second.signal(Signal::TERM);
    second.wait(LONG);
    turn_over(1);
    eventually(LONG, "the second stands by", || part_of(1) == "stands");
    all_answer();
    turn_over(0);
    eventually(LONG, "the first has found it", || part_of(0) == "holds");
    all_answer();
    first.signal(Signal::TERM);
    first.wait(LONG);
    eventually(LONG, "the first has added it again", || has_vip(&all[0]));
    wait::throughout(secs(3), "it stays", || has_vip(&all[0]) && !has_vip(&all[1]));
    all_answer();

    // And back: a keepalived that hears no other one takes the VIP, so the holder's comes first.
    let give_back = |number: usize| {
        all[number].baton.write_config(&own(number));
        all[number].reload();
    };
    let _first = mover(0, 100);
    // keepalived removes the address as it starts, and Baton adds it again.
    wait::throughout(secs(2), "the other does not take it", || !has_vip(&all[1]));
    eventually(secs(5), "it has the VIP", || has_vip(&all[0]));
    all_answer();
    give_back(0);
    let says = || String::from_utf8(all[1].baton.cli(&["vip"]).stdout).unwrap();
    eventually(secs(5), "the other host knows who moves it", || says().contains("another program moves its VIP"));
    wait::throughout(secs(3), "the other does not take it", || !has_vip(&all[1]));
    eventually(secs(5), "keepalived has added it again", || has_vip(&all[0]));
    all_answer();
    give_back(1);
    let _second = mover(1, 90);
    wait::throughout(secs(3), "it stays", || has_vip(&all[0]) && !has_vip(&all[1]));
    all_answer();
    // keepalived alone moves the VIP from here on.
    all[0].host.link_down();
    eventually(LONG, "the second has the VIP", || has_vip(&all[1]));
    let served = || scene.lab.client.try_connect(place, ms(100)).is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok());
    eventually(LONG, "the VIP is served", served);
}

/// Regression: the peers believed the last word of an instance whose file had lost `[vip]`, so that nobody took the VIP.
#[test]
fn a_holder_whose_file_loses_the_vip_gives_it_to_a_peer() {
    let Some((scene, _servers, all)) = fleet("built-in vip removed by a reload", 2) else { return };
    let (had, other) = settled(&scene, &all);
    all[had].baton.write_config(&super::built_in::config(&scene, had).vip("mode", "external"));
    all[had].reload();
    let watch = Stopwatch::start();
    eventually(secs(5), "the other host has it", || has_vip(&all[other]) && !has_vip(&all[had]));
    println!("served {:?} after the reload", served_after(&scene, &watch));
}

/// Regression: neighbours sent to the old Ethernet address until they asked anew, IPv6 for nearly a minute.
#[test]
fn clients_find_the_holder_s_new_ethernet_address_at_once() {
    let Some((scene, _servers, all)) = fleet("built-in vip with another ethernet address", 2) else { return };
    let (had, other) = settled(&scene, &all);
    let mut conns: Vec<_> = (0..10).map(|number| scene.lab.client.connect(places()[number % 2])).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    all[had].host.run("ip link set eth0 address 02:00:00:00:77:01");
    let watch = Stopwatch::start();
    conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
    println!("all clients have an answer {:?} after the change", watch.unstalled());
    assert!(watch.unstalled() < secs(5), "{:?}", watch.elapsed());
    wait::throughout(secs(2), "it stays", || has_vip(&all[had]) && !has_vip(&all[other]));
}

/// Regression: a global IPv6 address counted, and the host reached no backend and no peer by IPv4.
#[test]
fn a_host_that_loses_its_other_ipv4_addresses_alone_gives_the_built_in_vip_up() {
    let Some((scene, _servers, all)) = fleet("built-in vip without ipv4", 2) else { return };
    let (had, other) = settled(&scene, &all);
    let host = all[had].host.clone();
    host.run(&format!("ip address del {}/24 dev eth0", host.v4));
    eventually(secs(5), "the other host has the VIP", || has_vip(&all[other]) && !has_vip(&all[had]));
    let given_up = all[had].baton.events_of("vip_given_up");
    let why = "the interface has lost all its other addresses, or those of IPv4";
    assert!(given_up.iter().any(|event| event["why"] == why), "{given_up:?}");
}

/// Regression: the program of the gain went on after the stop, and that of the loss never ran, so that a late gain could take the route back.
#[test]
fn a_stop_ends_the_program_of_a_gain_and_runs_that_of_the_loss() {
    let Some(scene) = Scene::new("built-in vip hooks at a stop", 1) else { return };
    let _servers = scene.serve();
    let said = scene.lab.directory().join("said");
    let command =
        |text: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), text.replace("FILE", &said.display().to_string())];
    let gain = command("echo gain begins >> FILE; sleep 20; echo gain ends >> FILE");
    let loss = command("sleep 1; echo loss >> FILE");
    let config = super::built_in::config(&scene, 0).alone().vip("on_gain", gain).vip("on_loss", loss);
    let instance = scene.launch(0, &config);
    let lines = || std::fs::read_to_string(&said).unwrap_or_default();
    eventually(LONG, "the first program runs", || lines() == "gain begins\n");
    instance.baton.process.signal(Signal::TERM);
    eventually(LONG, "it has stopped", || instance.baton.process.exit_status().is_some());
    assert_eq!(lines(), "gain begins\nloss\n");
}
