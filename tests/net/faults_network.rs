//! The fault matrix where the network is bad: rows 8 and 9.

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
        let standings = baton.standings(backend);
        println!("row 8: {backend} went to {standings:?}");
        assert!(!standings.iter().any(|standing| standing == "ejected"), "{backend}: {standings:?}");
        // Ready at the start is one change.
        assert!(standings.len() <= 3, "{backend} flaps: {standings:?}");
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
    let stalled_at = stalled(&baton, "bytes_down");
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

/// What the kernel of `host` holds in TCP buffers of its namespace, summed over its sockets (proc(5) net/tcp).
fn tcp_memory_kib(host: &Host) -> u64 {
    let table = host.run("cat /proc/thread-self/net/tcp /proc/thread-self/net/tcp6");
    let queues = table.lines().filter_map(|line| line.split_whitespace().nth(4)?.split_once(':'));
    let bytes = |hex: &str| u64::from_str_radix(hex, 16).unwrap_or(0);
    // Of a listening socket these are its backlog.
    queues.map(|(send, receive)| bytes(send) + bytes(receive)).sum::<u64>() / 1024
}
