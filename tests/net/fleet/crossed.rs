//! Behind a router the two directions of a flow may pass different instances for good: neither sees all of how it ends.

use ::baton::offload::entry::Entry;
use ::baton::sys::raw::RawSender;

use super::failover::{Fleet, Flows};
use super::*;
use crate::program::reference::{ACK, Packet};

/// Silence after which an end is given up. Questions go out within a part of it.
const PATIENCE: &str = "4s";

/// Clients reach the VIP by the first, backends by the second; flows have been offloaded.
fn crossed(test: &str, count: u64) -> Option<(Fleet, Vec<Conn>)> {
    let short = |config: Config| {
        let config = config.frontend("user_timeout", PATIENCE);
        config.frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s")
    };
    let fleet = Fleet::new(test, 2, Flows::Offload, short)?.spread();
    small_windows(&fleet);
    super::parted::route(&fleet, 0, 1);
    let mut conns = fleet.clients(count);
    (0..5).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 200)));
    eventually(LONG, "all have been offloaded somewhere", || {
        let offloaded = |it: &Instance| it.baton.status()["totals"]["flows"]["offloaded"].as_u64();
        fleet.all.iter().filter_map(offloaded).sum::<u64>() == count
    });
    // Only then is it the entries that they pass, the backends' at the instance that does not list them.
    conns.iter_mut().for_each(|conn| conn.echo(6, 3000));
    Some((fleet, conns))
}

/// None is beyond 512 KiB, whatever this machine's sockets may have: further numbers are soon reached, and most lie outside.
fn small_windows(fleet: &Fleet) {
    let lab = &fleet.scene.lab;
    for host in fleet.all.iter().map(|it| &it.host).chain([&lab.client, &lab.b1, &lab.b2]) {
        host.sysctl("net/ipv4/tcp_rmem", "4096 131072 262144");
    }
}

/// No instance lists a flow.
#[track_caller]
fn wait_rest(fleet: &Fleet) {
    let left = || fleet.all.iter().map(|it| it.baton.flow_count()).sum::<u64>();
    eventually(secs(20), "no flow is left", || left() == 0);
}

/// Regression: hundreds of offloaded flows were listed for ever after an hour of clients that connected and closed.
#[test]
fn flows_whose_directions_pass_different_instances_are_over_when_both_ends_have_closed() {
    let test = "flows_whose_directions_pass_different_instances_are_over";
    let Some((fleet, mut conns)) = crossed(test, 20) else { return };
    // Some half-close and wait for the other half, some are closed.
    for conn in conns.drain(..10) {
        conn.half_close();
        drop(conn);
    }
    for mut conn in conns {
        conn.half_close();
        assert_eq!(conn.end(LONG), End::Fin);
    }
    wait_rest(&fleet);
}

/// Closes both ends of each flow. Neither kernel knows the connections any more, but neither tells anybody.
#[track_caller]
fn end_unheard(fleet: &Fleet, conns: Vec<Conn>) {
    let lab = &fleet.scene.lab;
    for host in [&lab.client, &lab.b1, &lab.b2] {
        host.sysctl("net/ipv4/tcp_max_tw_buckets", "0");
        host.drop_packets("output", "tcp flags & rst == rst");
    }
    for mut conn in conns {
        conn.half_close();
        assert_eq!(conn.end(LONG), End::Fin);
    }
    let is_its = |line: &String| line.contains(&format!(":{:04X}", fleet.vip.port()));
    let left = || [&lab.client, &lab.b1, &lab.b2].iter().any(|host| host.tcp_sockets().iter().any(is_its));
    eventually(LONG, "both ends have closed", || !left());
}

/// Routers send all to the second instance, and what ends answer is heard again.
fn route_all_to_the_other(fleet: &Fleet) {
    let lab = &fleet.scene.lab;
    super::parted::route(fleet, 1, 1);
    [&lab.client, &lab.b1, &lab.b2].iter().for_each(|host| host.nft_clear());
}

/// Regression: flows were listed for ever after reloads that made the link anew. With it all flows are told anew, and
/// an instance that had seen a FIN of one forgot it.
#[test]
fn flows_that_ended_by_halves_go_when_the_link_is_made_anew_and_the_router_chooses_again() {
    let test = "flows_that_ended_by_halves_go_when_the_link_is_made_anew";
    let Some((fleet, conns)) = crossed(test, 10) else { return };
    end_unheard(&fleet, conns);
    let [a, b] = [&fleet.all[0], &fleet.all[1]];
    let refuse = format!("tcp dport {PORT} reject with tcp reset");
    b.host.nft(&format!("table inet lab {{\nchain input {{\ntype filter hook input priority 0;\n{refuse}\n}}\n}}\n"));
    eventually(LONG, "the link is down", || {
        a.sees("lb-b")["liveness"] != "alive" && b.sees("lb-a")["liveness"] != "alive"
    });
    b.host.nft_clear();
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    assert_eq!(a.baton.flow_count(), 10);
    route_all_to_the_other(&fleet);
    wait_rest(&fleet);
}

/// As above, but the second instance never knew how far they had come: an end that is gone answers with a number that is known only
/// to the first.
#[test]
fn flows_whose_ends_are_gone_go_though_they_answer_where_nobody_knows_how_far_they_had_come() {
    let test = "flows_whose_ends_are_gone_go_though_they_answer_where_nobody_knows";
    let Some((fleet, mut conns)) = crossed(test, 3) else { return };
    super::parted::route(&fleet, 0, 0);
    // More than any window.
    conns.iter_mut().for_each(|conn| conn.echo(7, 20_000_000));
    super::parted::route(&fleet, 0, 1);
    end_unheard(&fleet, conns);
    assert_eq!(fleet.all[0].baton.flow_count(), 3);
    route_all_to_the_other(&fleet);
    wait_rest(&fleet);
}

/// Regression: flows counted 2^64 bytes while somebody sent segments with random numbers for them. Baton believed each
/// segment whose challenge was not answered in time.
#[test]
fn spoofed_segments_move_no_position_where_several_instances_have_the_address() {
    let test = "spoofed_segments_move_no_position_where_several_have_the_address";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config).map(Fleet::spread) else { return };
    small_windows(&fleet);
    let lab = &fleet.scene.lab;
    let mut conn = lab.client.connect(fleet.vip);
    (0..5).for_each(|round| conn.echo(round, 100));
    fleet.owner().baton.wait_offloaded(1);
    let bytes = || ["bytes_to_backend", "bytes_to_client"].map(|key| fleet.owner().baton.flows()[0][key].as_u64());
    // What went by the entries is counted when they are looked at next.
    eventually(LONG, "all bytes are counted", || bytes() == [Some(500); 2]);
    let entries = fleet.entries(0);
    assert_eq!(entries.len(), 2);
    // Neither end answers as soon as it should.
    let question = "tcp flags & (ack | psh) == ack";
    [&lab.client, &lab.b1, &lab.b2].iter().for_each(|host| host.drop_packets("input", question));
    lab.b3.run(&format!("ip route replace {}/32 via {}", fleet.vip.ip(), fleet.owner().host.v4));
    // Far from where they are: what lies within the windows may be believed, and a random number does now and then.
    for far in (1..7).map(|number: u32| number << 29) {
        lab.b3.enter(|| {
            let raw = RawSender::open().unwrap();
            for (key, Entry { seen, .. }) in &entries {
                let [seq, ack] = [seen.sent, seen.acked].map(|position| (position as u32).wrapping_add(far));
                let packet = Packet { seq, ack, flags: ACK, payload: vec![7], ..Packet::new(*key) };
                raw.send(&packet.frame()[14..], key.to.ip()).unwrap();
            }
        });
        wait::throughout(ms(700), "no byte is counted", || bytes() == [Some(500); 2]);
    }
    [&lab.client, &lab.b1, &lab.b2].iter().for_each(|host| host.nft_clear());
    conn.echo(9, 5000);
    eventually(LONG, "its own are", || bytes() == [Some(5500); 2]);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    eventually(LONG, "it is over", || fleet.all.iter().all(|it| it.baton.flow_count() == 0));
}

/// Regression: the program answered by way of the peer that had sent the packet on, whose kernel drops what comes from an address of
/// its own.
#[test]
fn a_client_that_heard_nothing_of_its_flows_end_is_reset_though_its_packets_come_by_another_instance() {
    let test = "a_client_that_heard_nothing_of_its_flows_end_is_reset";
    let Some(fleet) = Fleet::new(test, 2, Flows::Offload, |config| config) else { return };
    let fleet = fleet.spread();
    let client = &fleet.scene.lab.client;
    let mut conns = fleet.offloaded_clients(5);
    client.drop_packets("input", &format!("ip saddr {}", fleet.vip.ip()));
    let ordered = Stopwatch::start();
    fleet.owner().baton.order(&["kill", "--all", "--yes"]);
    wait_rest(&fleet);
    // It resets them again after 0.7 s and 1.4 s, and then not for 5 s: what ends them here is an answer.
    eventually(LONG, "the engine has reset them again", || ordered.elapsed() > ms(2500));
    fleet.route(&[1]);
    client.nft_clear();
    let timeouts = || client.counter("netstat", "TcpExt:", "TCPTimeouts");
    let before = timeouts();
    conns.iter_mut().for_each(|conn| conn.send(1, 100).expect("its kernel takes it"));
    println!("{} clients were reset after {:?}", conns.len(), super::failover::all_reset(&mut conns));
    // The engine repeats its resets for some seconds, which would end them as well.
    assert_eq!(timeouts(), before, "the first packet of each is answered");
}
