//! Connection tracking of the balancer's own host: it forgets offloaded flows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Scene;
use crate::lab::*;

/// A strict firewall: it tracks connections, and drops packets of those whose begin it has not seen, in both
/// directions.
const STRICT: &str = "nft 'table inet strict {
    chain in { type filter hook input priority 0; ct state invalid drop; }
    chain out { type filter hook output priority 0; ct state invalid drop; }
}'";

/// Connections that have ended, or that a busy backend never answered, are forgotten after seconds, so that what stays is what
/// was never seen to end.
const SHORT_LIVED: [(&str, &str); 4] = [("time_wait", "1"), ("close", "1"), ("last_ack", "1"), ("syn_sent", "5")];

fn track(host: &Host) {
    host.run(STRICT);
    for (state, seconds) in SHORT_LIVED {
        host.sysctl(&format!("net/netfilter/nf_conntrack_tcp_timeout_{state}"), seconds);
    }
}

/// Tracked TCP connections of `host` in `state` that have `port` at one end, as /proc/net/nf_conntrack lists them. Reading it
/// makes the kernel drop those whose time is over.
fn tracked(host: &Host, state: &str, port: u16) -> Vec<String> {
    let list = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").expect("a list"));
    let port = format!("dport={port} ");
    let wanted = |line: &&str| line.contains("tcp") && line.contains(state) && line.contains(&port);
    list.lines().filter(wanted).map(str::to_owned).collect()
}

#[test]
fn a_hundred_short_flows_leave_no_established_entries_in_conntrack() {
    let Some(scene) = Scene::new("conntrack") else { return };
    let lab = &scene.lab;
    track(&lab.lb);
    let backends = lab.backends();
    let _v6 = backends.map(|host| host.serve_on(host.v6(6443), Behaviour::Echo));
    let _v4 = lab.echo_everywhere();
    for ipv6 in [false, true] {
        let at = |host: &Host| if ipv6 { host.v6(6443) } else { host.v4(6443) };
        let config = backends.iter().fold(scene.config().only(&[]), |config, host| config.backend(host.name, at(host)));
        let baton = lab.start(&config);
        let mut conns: Vec<_> = (0..100).map(|_| lab.client.connect(at(&lab.lb))).collect();
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 100));
        baton.wait_offloaded(100);
        let established = || tracked(&lab.lb, "ESTABLISHED", 6443);
        eventually(LONG, &format!("live flows are out of it: {:?}", established().first()), || {
            established().is_empty()
        });
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 10_000));
        drop(conns);
        // Those of the Baton before may be among them.
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        assert_eq!(baton.ended().keys().collect::<Vec<_>>(), ["client_closed"]);
        baton.rests();
        // A probe is in it for a moment; an entry of a flow would be for days.
        eventually(LONG, "no flow is in it", || established().is_empty());
    }
}

/// Entries without any flow: of probes, and of clients that read the metrics.
const NOISE: u64 = 15;

/// Short flows, some of which are over before they are offloaded, beside `live` ones that have: the table is where it was.
fn churn(flows: u64, live: u64) {
    let Some(scene) = Scene::new("conntrack, churn") else { return };
    let lab = &scene.lab;
    track(&lab.lb);
    let _servers = lab.echo_everywhere();
    // As many connections as the machine can make: no backend is to be ejected for being busy.
    let baton = lab.start(
        &scene
            .config()
            .log("level", "error")
            .log("flows", "off")
            .health("kind", "tcp")
            .health("interval", "5s")
            .health("timeout", "5s"),
    );
    let entries = || {
        // Reading the list drops expired entries.
        tracked(&lab.lb, "", 6443);
        lab.lb.run("cat /proc/sys/net/netfilter/nf_conntrack_count").trim().parse::<u64>().expect("a number")
    };
    let mut idle: Vec<_> = (0..live).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    idle.iter_mut().for_each(|conn| conn.echo(1, 100));
    baton.wait_offloaded(live);
    // Each leaves its client in TIME_WAIT for a minute, and there are not so many ports.
    for (path, value) in
        [("tcp_max_tw_buckets", "1000000"), ("tcp_tw_reuse", "1"), ("ip_local_port_range", "10240 65535")]
    {
        lab.client.sysctl(&format!("net/ipv4/{path}"), value);
    }
    let (before, begun) = (entries(), AtomicU64::new(0));
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                lab.client.enter(|| {
                    while begun.fetch_add(1, Relaxed) < flows {
                        let mut conn = Conn::new(std::net::TcpStream::connect(lab.lb.v4(6443)).expect("it serves"));
                        (0..4).for_each(|round| conn.echo(round, 100));
                    }
                });
            });
        }
    });
    let took = watch.elapsed();
    eventually(LONG, "short flows are over", || baton.flow_count() == live);
    // What never offloaded is in TIME_WAIT for a second.
    let settled = || entries() <= before + NOISE;
    eventually(LONG, "the table is where it was", settled);
    let after = entries();
    let offloaded = baton.metric("baton_flows_offloaded_total", &[]) as u64 - live;
    println!(
        "conntrack: {flows} flows in {took:.1?}, {offloaded} of them offloaded; {before} entries before, {after} after"
    );
    assert!(offloaded > flows / 10, "{offloaded} of {flows} offloaded");
    assert_eq!(baton.metric("baton_conntrack_removals_total", &["outcome=\"failed\""]), 0.0);
    idle.iter_mut().for_each(|conn| conn.echo(2, 1000));
    // A probe is in it for a moment; an entry of a flow would be for days.
    eventually(LONG, "no flow is in it", || tracked(&lab.lb, "ESTABLISHED", 6443).is_empty());
    let shown = baton.metric("baton_conntrack_entries", &[]);
    assert!(
        shown <= (before + 2 * NOISE) as f64 && baton.metric("baton_conntrack_entries_max", &[]) > shown,
        "{shown}"
    );
}

#[test]
fn a_churn_of_flows_leaves_the_table_of_conntrack_where_it_was() {
    churn(3_000, 100);
}

/// A day's worth, at three and a half a second: cargo nextest run --release --run-ignored only --no-capture a_day_of_churn
#[test]
#[ignore = "minutes"]
fn a_day_of_churn_leaves_the_table_of_conntrack_where_it_was() {
    churn(300_000, 100);
}

/// Packets that this host sends itself would create an entry, and packets that it sends unasked belong to no connection
/// any more.
#[test]
fn idle_flows_that_are_not_tracked_any_more_are_reset_through_a_strict_firewall_and_leave_nothing() {
    let Some(scene) = Scene::new("conntrack, reset") else { return };
    let lab = &scene.lab;
    track(&lab.lb);
    let _servers = lab.echo_everywhere();
    // The legs to a backend on this host stay tracked, because their packets go by lo.
    let _here = lab.lb.serve_on(lab.lb.v4(7443), Behaviour::Echo);
    let baton = lab.start(&scene.config().backend("here", lab.lb.v4(7443)));
    baton.wait_health("here", "ready", LONG);
    for loose in ["1", "0"] {
        lab.lb.sysctl("net/netfilter/nf_conntrack_tcp_loose", loose);
        let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 100));
        baton.wait_offloaded(20);
        assert!(baton.flows_of("here") > 0);
        eventually(LONG, "none is tracked", || tracked(&lab.lb, "ESTABLISHED", 6443).is_empty());
        conns.iter_mut().for_each(|conn| conn.echo(2, 10_000));
        baton.order(&["kill", "--all", "--yes"]);
        for conn in &mut conns {
            assert_eq!(conn.end(secs(5)), End::Rst, "tcp_loose={loose}");
        }
        let left = |port| tracked(&lab.lb, "ESTABLISHED", port);
        eventually(LONG, "none is tracked", || left(6443).is_empty() && left(7443).is_empty());
    }
    baton.rests();
}

/// Killed between the end of its sockets and the removal, a process leaves that to the next.
#[test]
fn the_next_process_has_recovered_flows_forgotten() {
    let Some(scene) = Scene::new("conntrack, recovered") else { return };
    let lab = &scene.lab;
    track(&lab.lb);
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    baton.wait_offloaded(20);
    eventually(LONG, "the first process has its own forgotten", || tracked(&lab.lb, "ESTABLISHED", 6443).is_empty());
    drop(baton);
    // As if they were still there: packets of theirs that pass the stack by tcp_loose, without the program.
    let flows = conns.iter().map(|conn| conn.local().port());
    let entry = |port| {
        format!(
            "conntrack -I -p tcp -s 10.77.0.10 -d 10.77.0.2 --sport {port} --dport 6443 --state ESTABLISHED --timeout 432000"
        )
    };
    lab.lb.run(&flows.map(entry).collect::<Vec<_>>().join("\n"));
    assert_eq!(tracked(&lab.lb, "ESTABLISHED", 6443).len(), 20);
    let _baton = lab.start(&scene.config());
    eventually(LONG, "they are forgotten", || tracked(&lab.lb, "ESTABLISHED", 6443).is_empty());
    conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
}
