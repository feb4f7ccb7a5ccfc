//! The fault matrix where the network is bad: rows 8 and 9.

use std::net::{IpAddr, SocketAddr};

use ::baton::model::untracked;

use crate::lab::bytes::Tally;
use crate::lab::*;

#[test]
fn row08_a_fifth_of_the_packets_lost_corrupts_nothing_and_ejects_nobody() {
    let Some(lab) = Lab::new("row08") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    for host in lab.backends() {
        host.drop_packets("input", "numgen random mod 100 < 20");
    }

    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        for (seed, conn) in conns.iter_mut().enumerate() {
            scope.spawn(move || {
                for round in 0..10 {
                    conn.echo(seed as u64 * 100 + round, 8_000);
                }
            });
        }
    });
    println!("row 8: 6 × 80 kB there and back with 20 % loss took {:?}", watch.elapsed());
    // Long enough for a dozen probes of each backend to lose a packet.
    wait::throughout(secs(6), "no flow was reset", || baton.ended().is_empty());
    for backend in ["b1", "b2", "b3"] {
        let states = baton.states(backend);
        println!("row 8: {backend} went to {states:?}");
        assert!(!states.iter().any(|health_state| health_state == "ejected"), "{backend}: {states:?}");
        // Ready at the start is one change.
        assert!(states.len() <= 3, "{backend} flaps: {states:?}");
    }
    lab.backends().iter().for_each(|host| host.nft_clear());
    drop(conns);
    baton.rests();
}

#[test]
fn row09_a_client_that_does_not_read_stalls_its_backend_and_memory_stays_bounded() {
    let Some(lab) = Lab::new("row09") else { return };
    const BYTES: u64 = 256 << 20;
    let _source = lab.b1.serve(Behaviour::Source { seed: 9, bytes: BYTES });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let before_kib = baton.process.rss_kib();
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    let stalled_at = stalled(&baton, "bytes_to_client");
    let (rss, kernel) = (baton.process.rss_kib() - before_kib, tcp_memory_kib(&lab.lb));
    println!("row 9: stalled after {stalled_at} bytes; Baton grew by {rss} KiB, its kernel holds {kernel} KiB");
    assert!(stalled_at < 64 << 20, "backpressure reached the backend only after {stalled_at} bytes");
    assert!(rss < 4096, "{rss} KiB");
    assert!(kernel < 32 << 10, "{kernel} KiB");

    assert_eq!(conn.read_tally(BYTES).unwrap(), Tally::of_pattern(9, BYTES));
    assert_eq!(conn.end(LONG), End::Fin);
    drop(conn);
    baton.rests();
}

#[test]
fn row09_a_backend_that_does_not_read_stalls_its_client_and_nothing_is_lost() {
    let Some(lab) = Lab::new("row09") else { return };
    let stall = lab.b1.serve(Behaviour::Stall { bytes: 1000 });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let probes = stall.accepted();
    let before_kib = baton.process.rss_kib();
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    let sent = conn.send_until_stalled(5, ms(500), 512 << 20).unwrap();
    let (rss, kernel) = (baton.process.rss_kib() - before_kib, tcp_memory_kib(&lab.lb));
    println!("row 9: the client stalled after {sent} bytes; Baton grew by {rss} KiB, its kernel holds {kernel} KiB");
    assert!(sent < 64 << 20, "{sent} bytes");
    assert!(rss < 4096, "{rss} KiB");

    stall.resume();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    let whole = |served: &server::Served| served.received == Tally::of_pattern(5, sent);
    eventually(LONG, "the backend got every byte", || stall.ended().iter().skip(probes.saturating_sub(1)).any(whole));
    drop(conn);
    baton.rests();
}

#[test]
fn row09_a_slow_link_slows_its_own_flow_only() {
    let Some(lab) = Lab::new("row09") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    lab.client2.slow_link("8mbit");
    let mut slow = lab.client2.connect(lab.lb.v4(6443));
    let mut fast = lab.client.connect(lab.lb.v4(6443));
    std::thread::scope(|scope| {
        let watch = Stopwatch::start();
        let slow = scope.spawn(move || {
            slow.echo(1, 2_000_000);
            watch.elapsed()
        });
        let mut slowest = ms(0);
        let mut rounds = 0;
        while !slow.is_finished() {
            let round = Stopwatch::start();
            fast.echo(rounds, 10_000);
            slowest = slowest.max(round.unstalled());
            rounds += 1;
        }
        let took = slow.join().unwrap();
        println!("row 9: 2 MB over 8 Mbit/s took {took:?}; beside it {rounds} echoes, the slowest {slowest:?}");
        assert!(took > ms(1500), "the link was slow: {took:?}");
        assert!(slowest < ms(500), "{slowest:?}");
    });
    drop(fast);
    baton.rests();
}

const NOTRACK: &str = include_str!("../../deploy/nftables/baton.nft");

/// A host that exempts the service from tracking, by `rules`, and drops untracked packets; and a router that sends "too
/// big" about packets that are larger than the MTU of the path to the client behind it.
fn hears_of_the_path_mtu(client: IpAddr, lb: impl Fn(&Lab) -> SocketAddr, rules: impl Fn(&Lab) -> String) {
    const BYTES: u64 = 100_000;
    let Some(lab) = Lab::new("mtu") else { return };
    let (bits, family, router) =
        if client.is_ipv4() { (32, "", lab.client2.v4(0).ip()) } else { (128, "-6", lab.client2.v6(0).ip()) };
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        lab.client2.sysctl(&format!("net/{key}"), "1");
    }
    let behind = if client.is_ipv4() { lab.client.v4(0).ip() } else { lab.client.v6(0).ip() };
    lab.client.run(&format!("ip address add {client}/{bits} dev lo"));
    lab.client2.run(&format!("ip {family} route add {client}/{bits} via {behind} mtu lock 1300"));
    lab.lb.run(&format!("ip {family} route add {client}/{bits} via {router}"));
    lab.lb.nft(&rules(&lab));
    lab.lb.nft("table inet f {\nchain in {\ntype filter hook input priority 0;\nct state invalid drop\n}\n}\n");
    lab.lb.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
    let _source = lab.b1.serve(Behaviour::Source { seed: 9, bytes: BYTES });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect_from(client, lb(&lab)).unwrap();
    assert_eq!(conn.read_tally(BYTES).unwrap(), Tally::of_pattern(9, BYTES));
    assert_eq!(conn.end(LONG), End::Fin);
    drop(conn);
    baton.rests();
}

#[test]
fn a_path_mtu_is_heard_of_where_the_service_is_not_tracked_and_a_firewall_drops_what_is_invalid() {
    let address = |lab: &Lab| lab.lb.v4(6443);
    let client = "10.99.0.1".parse().unwrap();
    hears_of_the_path_mtu(client, address, |lab| NOTRACK.replace("10.0.0.100", &lab.lb.v4.to_string()));
    let address = |lab: &Lab| lab.lb.v6(6443);
    let client = "fd99::1".parse().unwrap();
    hears_of_the_path_mtu(client, address, |lab| {
        let (coming, going) = (untracked::coming(lab.lb.v6(6443)).join("\n"), untracked::going(lab.lb.v6(6443)));
        format!(
            "table inet n {{\nchain in {{\ntype filter hook prerouting priority raw;\n{coming}\n}}\n\
             chain out {{\ntype filter hook output priority raw;\n{going}\n}}\n}}\n"
        )
    });
}

/// Waits until a counter of the only flow has stood still; returns it.
fn stalled(baton: &Baton, counter: &str) -> u64 {
    let mut last = (0, Stopwatch::start());
    eventually_some(LONG, "the flow stalls", || {
        let now = baton.flows().first()?[counter].as_u64()?;
        if now != last.0 {
            last = (now, Stopwatch::start());
        }
        (now > 0 && last.1.elapsed() > ms(500)).then_some(now)
    })
    .0
}

/// The bytes in the TCP queues of the kernel of `host`.
fn tcp_memory_kib(host: &Host) -> u64 {
    let (send, receive) = host.tcp_queued();
    (send + receive) / 1024
}
