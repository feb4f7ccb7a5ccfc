//! Flows of every kind that kernels make of a connection: with and without each TCP option, small segments, no offloads,
//! loss, reordering, slow links. Before, during and after offload their bytes are whole, nobody is reset, and where
//! the network loses nothing, nothing is sent twice on Baton's account.

use std::net::SocketAddr;

use super::Scene;
use crate::lab::bytes::Tally;
use crate::lab::*;

/// How much a connection moves, for networks that differ in speed.
#[derive(Clone, Copy, Debug)]
struct Load {
    connections: u64,
    /// Of each of the two long echoes.
    stream: u64,
    /// Short ones, a millisecond apart.
    pings: u64,
}

const FULL: Load = Load { connections: 6, stream: 600_000, pings: 60 };
const LOSSY: Load = Load { connections: 6, stream: 80_000, pings: 20 };

/// Everything at once on several connections, from the first byte to a half-close each way; those that are given back
/// live on.
#[track_caller]
fn exchange(lab: &Lab, target: SocketAddr, load: Load) -> Vec<Conn> {
    let Load { connections, stream, pings } = load;
    std::thread::scope(|scope| {
        let talks = (0..connections).map(|number| {
            scope.spawn(move || {
                // The kernel measures round trips through lost packets, and then waits for seconds, doubled with each further loss.
                let mut conn = lab.client.connect(target).patient(4 * LONG);
                let seed = number * 1000;
                // A stream right away, which is under way when the flow may first leave.
                if number % 2 == 0 {
                    conn.echo(seed, stream);
                }
                for ping in 0..pings {
                    conn.echo(seed + 1 + ping, 1 + ping * 37 % 1400);
                    // The pause is what makes it ping-pong and not a stream.
                    std::thread::sleep(ms(1));
                }
                conn.echo(seed + 500, stream);
                if number % 3 > 0 {
                    return Some(conn);
                }
                conn.send(seed + 600, 50_000).unwrap();
                conn.half_close();
                // Where one packet in ten is lost, a segment may have to wait for several timers in a row.
                let (end, tally, _) = conn.read_end(4 * LONG);
                assert_eq!((end, tally), (End::Fin, Tally::of_pattern(seed + 600, 50_000)));
                None
            })
        });
        let talks: Vec<_> = talks.collect();
        talks.into_iter().filter_map(|talk| talk.join().expect("a connection failed")).collect()
    })
}

/// Segments that these hosts have sent more than once.
fn retransmitted(hosts: &[&Host]) -> u64 {
    hosts.iter().map(|host| host.counter("snmp", "Tcp:", "RetransSegs")).sum()
}

/// The load through Baton, on hosts as `prepare` made them. All flows must be offloaded, but where they stay for the reason
/// `stays`; unless the network loses packets, none may be sent again that is not sent again without Baton too.
/// Segments that may be sent again.
#[derive(Clone, Copy)]
enum Resent {
    /// The network loses some.
    Any,
    /// So many more than by the kernel's DNAT on the same host.
    MoreThanByDnat(u64),
}

const AS_DNAT: Resent = Resent::MoreThanByDnat(0);

#[track_caller]
fn mix(what: &str, load: Load, resent: Resent, stays: Option<&str>, prepare: impl Fn(&Lab)) {
    let Some(scene) = Scene::new("mixes") else { return };
    let lab = &scene.lab;
    prepare(lab);
    let _servers = lab.echo_everywhere();
    let [b1, b2, b3] = lab.backends();
    let hosts = [&lab.client, &lab.lb, b1, b2, b3];
    let by_dnat = || {
        let to = b1.v4(6443);
        lab.lb.sysctl("net/ipv4/ip_forward", "1");
        lab.lb.nft(&format!(
            "table ip control {{\nchain to {{\ntype nat hook prerouting priority dstnat;\ntcp dport 7443 dnat to {to}\n}}\n\
             chain from {{\ntype nat hook postrouting priority srcnat;\nct status dnat masquerade\n}}\n}}\n"
        ));
        let before = retransmitted(&hosts);
        exchange(lab, lab.lb.v4(7443), load);
        let again = retransmitted(&hosts) - before;
        lab.lb.nft_clear();
        again
    };
    // The default leaves no time for a second SYN, which follows after a second: one client in a thousand would have none of three.
    let baton = lab.start(&scene.config().frontend("connect_timeout", "10s"));
    // A busy machine loses packets that it has no room for, and answers late, with or without Baton: the control, by
    // the kernel's DNAT on the same host, shows how much.
    let mut tries = Vec::new();
    let conns = loop {
        let before = retransmitted(&hosts);
        let exchanged = std::panic::catch_unwind(|| exchange(lab, lab.lb.v4(6443), load));
        let conns = exchanged.unwrap_or_else(|_| {
            panic!(
                "{what}: Baton ended flows by {:?}, and backends changed: {:?}",
                baton.ended(),
                baton.events_of("backend_changed")
            )
        });
        let again = retransmitted(&hosts) - before;
        let Resent::MoreThanByDnat(most) = resent else { break conns };
        let control = if again > most { by_dnat() } else { 0 };
        tries.push((again, control));
        if again <= control + most {
            break conns;
        }
        assert!(tries.len() < 8, "{what}: sent again through Baton and by DNAT: {tries:?}");
        drop(conns);
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    };
    println!("{what}: segments sent again through Baton, and by DNAT: {tries:?}");
    let kept = conns.len() as u64;
    match stays {
        None => {
            // One that has just ended may be counted among the offloaded yet.
            let offloaded = || {
                let flows = &baton.status()["totals"]["flows"];
                flows["offloaded"] == kept && flows["proxied"].as_u64().unwrap_or(0) == 0
            };
            let watch = Stopwatch::start();
            while !offloaded() {
                let stay: Vec<_> = baton.flows().into_iter().map(|flow| flow["stays"].to_string()).collect();
                assert!(watch.elapsed() < LONG, "{what}: {kept} flows are to be offloaded, and stay: {stay:?}");
                std::thread::sleep(ms(20));
            }
        }
        Some(reason) => {
            // One that is closing is listed until its client's last acknowledgement.
            eventually(LONG, "they say why they stay", || {
                let flows = baton.flows();
                flows.len() as u64 == kept && flows.iter().all(|flow| flow["stays"] == reason)
            });
        }
    }
    let ended = baton.ended();
    assert!(ended.keys().all(|reason| reason == "client_closed"), "{what}: {ended:?}");
    assert_eq!(
        baton.status()["totals"]["flows"]["proxied"].as_u64().unwrap_or(0),
        if stays.is_some() { kept } else { 0 }
    );
    drop(conns);
    baton.rests();
}

fn everywhere(lab: &Lab, parameter: &str, value: &str) {
    for host in [&lab.client, &lab.lb, &lab.b1, &lab.b2, &lab.b3] {
        host.sysctl(parameter, value);
    }
}

#[test]
fn mixes_plain() {
    mix("as kernels are", FULL, AS_DNAT, None, |_| {});
}

#[test]
fn mixes_without_timestamps() {
    mix("no timestamps", FULL, AS_DNAT, None, |lab| everywhere(lab, "net/ipv4/tcp_timestamps", "0"));
}

#[test]
fn mixes_with_timestamps_on_one_leg_only() {
    mix("timestamps on the client's leg only", FULL, AS_DNAT, Some("timestamps"), |lab| {
        lab.backends().iter().for_each(|host| host.sysctl("net/ipv4/tcp_timestamps", "0"));
    });
}

#[test]
fn mixes_without_sack() {
    mix("no SACK", FULL, AS_DNAT, None, |lab| everywhere(lab, "net/ipv4/tcp_sack", "0"));
}

#[test]
fn mixes_without_window_scaling_at_the_client() {
    mix("no window scaling at the client", FULL, AS_DNAT, None, |lab| {
        lab.client.sysctl("net/ipv4/tcp_window_scaling", "0")
    });
}

/// Regression: flows hung during their offload, because retransmitted segments carried acknowledgements that were too
/// old for the client.
#[test]
fn mixes_without_window_scaling_at_the_client_and_five_percent_lost() {
    mix("no window scaling at the client, 5 % lost", Load { stream: 200_000, ..LOSSY }, Resent::Any, None, |lab| {
        lab.client.sysctl("net/ipv4/tcp_window_scaling", "0");
        lose(lab, 5);
    });
}

#[test]
fn mixes_without_window_scaling_at_the_backends() {
    mix("no window scaling at the backends", FULL, AS_DNAT, None, |lab| {
        lab.backends().iter().for_each(|host| host.sysctl("net/ipv4/tcp_window_scaling", "0"));
    });
}

#[test]
fn mixes_with_ecn() {
    mix("ECN", FULL, AS_DNAT, None, |lab| everywhere(lab, "net/ipv4/tcp_ecn", "1"));
}

#[test]
fn mixes_with_ecn_at_the_client_only() {
    mix("ECN on the client's leg only", FULL, AS_DNAT, None, |lab| {
        lab.backends().iter().for_each(|host| host.sysctl("net/ipv4/tcp_ecn", "0"));
        lab.client.sysctl("net/ipv4/tcp_ecn", "1");
    });
}

#[test]
fn mixes_with_small_segments_at_the_client() {
    mix("a client that takes segments of 536", FULL, AS_DNAT, None, |lab| {
        lab.client.run("ip route replace 10.77.0.0/24 dev eth0 src 10.77.0.10 advmss 536");
    });
}

#[test]
fn mixes_with_small_segments_at_the_backends() {
    mix("backends that take segments of 1000", FULL, AS_DNAT, Some("mss"), |lab| {
        for (host, last) in lab.backends().iter().zip([21, 22, 23]) {
            host.run(&format!("ip route replace 10.77.0.0/24 dev eth0 src 10.77.0.{last} advmss 1000"));
        }
    });
}

#[test]
fn mixes_without_offloads() {
    mix("no offloads", FULL, AS_DNAT, None, |lab| {
        for host in [&lab.client, &lab.lb, &lab.b1, &lab.b2, &lab.b3] {
            host.run("ethtool -K eth0 tso off gso off gro off tx off rx off sg off");
        }
    });
}

#[test]
fn mixes_with_offloads_at_the_balancer_off() {
    mix("no offloads at the load balancer", FULL, AS_DNAT, None, |lab| {
        lab.lb.run("ethtool -K eth0 tso off gso off gro off tx off rx off sg off");
    });
}

/// So many percent of what each end receives are lost.
fn lose(lab: &Lab, percent: u32) {
    for host in [&lab.client, &lab.b1, &lab.b2, &lab.b3] {
        host.drop_packets("input", &format!("numgen random mod 100 < {percent}"));
    }
}

#[test]
fn mixes_with_two_percent_lost() {
    mix("2 % lost", LOSSY, Resent::Any, None, |lab| lose(lab, 2));
}

#[test]
fn mixes_with_ten_percent_lost() {
    mix("10 % lost", Load { stream: 40_000, ..LOSSY }, Resent::Any, None, |lab| lose(lab, 10));
}

#[test]
fn mixes_with_ten_percent_lost_and_no_sack() {
    mix("10 % lost, no SACK", Load { stream: 40_000, ..LOSSY }, Resent::Any, None, |lab| {
        everywhere(lab, "net/ipv4/tcp_sack", "0");
        lose(lab, 10);
    });
}

#[test]
fn mixes_with_slow_links() {
    mix("links of 20 Mbit/s", Load { stream: 200_000, ..FULL }, Resent::Any, None, |lab| {
        for host in [&lab.client, &lab.b1, &lab.b2, &lab.b3] {
            host.slow_link("20mbit");
        }
    });
}

/// Every fourth packet that `host` sends takes a second, slower interface.
fn reorder(host: &Host) {
    host.second_link("detour");
    host.run(&format!(
        "tc qdisc add dev detour root tbf rate 50mbit burst 1600 latency 100ms\n\
         ip route add 10.77.0.0/24 dev detour src {} table 100\n\
         ip rule add fwmark 1 table 100",
        host.v4
    ));
    host.nft(
        "table ip detour {\nchain output {\ntype route hook output priority mangle;\n\
         ip protocol tcp numgen random mod 4 < 1 meta mark set 1\n}\n}\n",
    );
}

#[test]
fn mixes_with_packets_out_of_order() {
    let seen = std::sync::atomic::AtomicU64::new(0);
    mix("out of order", Load { stream: 300_000, ..FULL }, Resent::Any, None, |lab| {
        [&lab.client, &lab.b1, &lab.b2, &lab.b3].into_iter().for_each(reorder);
        // The result of a plain connection.
        let server = lab.b1.serve_on(lab.b1.v4(7000), Behaviour::Echo);
        let out_of_order = || lab.b1.counter("netstat", "TcpExt:", "TCPOFOQueue");
        // The kernel gives many bytes at once to the rule, which may then let a whole transfer pass.
        for round in 0..20 {
            lab.client.connect(lab.b1.v4(7000)).echo(round, 500_000);
            if out_of_order() > 0 {
                break;
            }
        }
        drop(server);
        seen.store(out_of_order(), std::sync::atomic::Ordering::SeqCst);
    });
    let seen = seen.into_inner();
    println!("out of order: {seen} packets of a plain connection came before their turn");
    assert!(seen > 0, "nothing was out of order");
}

#[test]
fn mixes_over_ipv6() {
    let Some(scene) = Scene::new("mixes") else { return };
    let lab = &scene.lab;
    let backends = lab.backends();
    let _servers = backends.map(|host| host.serve_on(host.v6(6443), Behaviour::Echo));
    let config =
        backends.iter().fold(scene.config().only(&[]), |config, host| config.backend(host.name, host.v6(6443)));
    let baton = lab.start(&config);
    let conns = exchange(lab, lab.lb.v6(6443), FULL);
    baton.wait_offloaded(conns.len() as u64);
    assert!(baton.ended().keys().all(|reason| reason == "client_closed"), "{:?}", baton.ended());
    drop(conns);
    baton.rests();
}

#[test]
fn a_thousand_connections_at_once_are_offloaded_whole() {
    let Some(scene) = Scene::new("mixes") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..1000).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for round in 0..5 {
        // All requests first, then all answers: every flow has one under way when others are offloaded.
        for (number, conn) in conns.iter_mut().enumerate() {
            conn.send(number as u64 * 10 + round, 64 + number as u64).unwrap();
        }
        for (number, conn) in conns.iter_mut().enumerate() {
            let bytes = 64 + number as u64;
            assert_eq!(conn.read_tally(bytes).unwrap(), Tally::of_pattern(number as u64 * 10 + round, bytes));
        }
    }
    baton.wait_offloaded(1000);
    drop(conns);
    baton.rests();
}

#[test]
fn a_watch_that_was_silent_for_a_minute_goes_on() {
    let Some(scene) = Scene::new("mixes") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("keepalive_idle", "5s").frontend("user_timeout", "10s"));
    let mut watches: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, watch) in watches.iter_mut().enumerate() {
        (0..4).for_each(|round| watch.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_offloaded(20);
    let (before, cpu) = (baton.status()["offload"].clone(), baton.process.cpu());
    watches[0].stays_open(secs(60));
    println!("twenty silent watches cost {:?} of CPU in a minute; before it {before}", baton.process.cpu() - cpu);
    for (seed, watch) in watches.iter_mut().enumerate() {
        watch.echo(seed as u64, 5000);
    }
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
    drop(watches);
    baton.rests();
}
