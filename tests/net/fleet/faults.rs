//! Links that are slow, cut or old: the traffic does not notice.

use std::io::{Read, Write};

use super::failover::{Fleet, Flows};
use super::*;

#[test]
fn a_cut_link_is_told_anew_as_a_whole_and_the_traffic_goes_on() {
    let test = "a_cut_link_is_told_anew_as_a_whole_and_the_traffic_goes_on";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.spread();
    let (a, b) = (fleet.owner(), fleet.heir());
    let mut conns = fleet.clients(20);
    fleet.wait_known(20, 0);
    for host in [&a.host, &b.host] {
        host.drop_packets("input", &format!("tcp dport {PORT}"));
    }
    a.wait_sees("lb-b", "liveness", "unlinked");
    b.wait_sees("lb-a", "liveness", "unlinked");
    conns.truncate(5);
    conns.append(&mut fleet.clients(10));
    conns.iter_mut().for_each(|conn| conn.echo(2, 10_000));
    assert_eq!(b.sees("lb-a")["flows"], 20);
    [&a.host, &b.host].iter().for_each(|host| host.nft_clear());
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    fleet.wait_known(15, 0);

    // The other one knows what to do with each: while its owner lives, and, which none asks about, when it dies.
    fleet.route(&[1]);
    conns.iter_mut().for_each(|conn| conn.echo(3, 1000));
    assert_eq!(b.baton.metric("baton_offload_packets_total", &["asked"]), 0.0, "it knew them");
    a.host.link_down();
    println!("{} clients reset after {:?}", conns.len(), failover::all_reset(&mut conns));
    let told = |event: &Value| event["answered"] == 15 && event["silent"] == 0;
    eventually(LONG, "they were told", || b.baton.events_of("clients_told").iter().any(told));
}

/// Answers on the port of a peer with other bytes than this release would.
fn stand_in(host: &Host, bytes: &'static [u8]) -> std::thread::JoinHandle<Vec<u8>> {
    let listener = host.enter(|| std::net::TcpListener::bind(host.v4(PORT)).unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    })
}

#[test]
fn a_peer_of_another_release_is_refused_and_both_ends_can_say_why() {
    let test = "a_peer_of_another_release_is_refused_and_both_ends_can_say_why";
    let Some(scene) = Scene::new(test, 2) else { return };
    let _servers = scene.serve();
    let other = stand_in(scene.host(1), b"BTNP\0\x07\0\x09");
    let a = scene.launch(0, &scene.config(0).peers("sync_deadline", "1s"));
    a.baton.wait_log(&["no link to ", "speaks versions 7 to 9 of the peer protocol"]);
    assert_eq!(other.join().unwrap()[..8], *b"BTNP\0\x01\0\x03", "it hears what is spoken here");
    // It serves alone, as an instance without peers.
    a.baton.wait_until_ready();
    let mut conn = scene.lab.client.connect(a.listens_at());
    conn.echo(1, 100_000);
    assert_eq!(a.sees("lb-b")["liveness"], "unheard");
}

#[test]
fn a_slow_link_and_a_storm_of_flows_do_not_disturb_each_other() {
    let test = "a_slow_link_and_a_storm_of_flows_do_not_disturb_each_other";
    let Some(scene) = Scene::new(test, 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    // Its own traffic passes a slow link; clients of the other instance do not.
    b.host.slow_inbound("256kbit");
    let mut conns: Vec<_> = (0..300).map(|_| scene.lab.client.connect(a.listens_at())).collect();
    for round in 0..3 {
        conns.iter_mut().for_each(|conn| conn.echo(round, 1000));
        // Many that live for a moment.
        (0..200).for_each(|_| scene.lab.client.connect(a.listens_at()).echo(9, 10));
    }
    b.wait_sees("lb-a", "flows", 300);
    a.wait_sees("lb-b", "behind", 0);
    conns.truncate(7);
    b.wait_sees("lb-a", "flows", 7);
    assert_eq!(a.baton.events_of("peer_lost").len(), 0, "{:?}", a.baton.events());
    conns.iter_mut().for_each(|conn| conn.echo(4, 1000));
}

#[test]
fn an_instance_that_was_stopped_for_seconds_takes_nobody_for_dead() {
    let test = "an_instance_that_was_stopped_for_seconds_takes_nobody_for_dead";
    let Some(scene) = Scene::new(test, 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    a.baton.process.stop();
    b.wait_sees("lb-a", "liveness", "dead");
    a.baton.process.go_on();
    b.wait_synced("lb-a");
    a.wait_synced("lb-b");
    let dead = a.baton.events_of("peer_liveness").iter().filter(|event| event["liveness"] == "dead").count();
    assert_eq!(dead, 0, "{:?}", a.baton.events_of("peer_liveness"));
}
