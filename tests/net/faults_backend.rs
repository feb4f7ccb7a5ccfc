//! The fault matrix where a backend fails: rows 1 to 7, 10, 11 and 31.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::lab::*;

/// A silent backend's clients see RST this soon after its death. The promise is 2.5 s at the defaults; the rest is
/// room for a machine under load. The figure is printed.
const SILENT_BACKEND: std::time::Duration = secs(4);

#[test]
fn row01_a_killed_server_s_fin_reaches_an_idle_client_within_100_ms_and_new_flows_go_to_the_other() {
    let Some(lab) = Lab::new("row01") else { return };
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let mut killed = ServerProcess::echo(&lab, &lab.b1);
    let baton = lab.start(&lab.config().only(&["b1", "b2"]));
    let mut other = baton.connect_to(&lab.client, "b2");

    wait::meets(ms(100), "row 1: the FIN of a killed server reached the client after", || {
        baton.wait_health("b1", "ready", LONG);
        let mut conn = baton.connect_to(&lab.client, "b1");
        conn.echo(1, 1_000_000);
        let watch = Stopwatch::start();
        killed.process.kill();
        assert_eq!(conn.end(LONG), End::Fin, "the killed process had read everything, so its kernel sends FIN");
        let figure = watch.unstalled();
        for seed in 0..10 {
            lab.client.connect(lab.lb.v4(6443)).echo(seed, 10_000);
        }
        killed = ServerProcess::echo(&lab, &lab.b1);
        figure
    });
    other.echo(2, 1_000_000);
    drop(other);
    baton.rests();
}

#[test]
fn row01_a_killed_server_s_rst_reaches_the_client_as_rst() {
    let Some(lab) = Lab::new("row01") else { return };
    let mut killed = ServerProcess::echo(&lab, &lab.b1);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut resets = 0;
    wait::meets(ms(100), "row 1: the RST of a killed server reached the client after", || {
        baton.wait_health("b1", "ready", LONG);
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(1, 100_000);
        // Bytes that it has not read when it dies make its kernel send RST (RFC 2525 section 2.17).
        killed.process.stop();
        conn.send(2, 10_000).unwrap();
        eventually(LONG, "the bytes wait to be read", || lab.b1.tcp_queued().1 >= 10_000);
        let watch = Stopwatch::start();
        killed.process.kill();
        assert_eq!(conn.end(LONG), End::Rst);
        let figure = watch.unstalled();
        resets += 1;
        baton.wait_ended("backend_reset", resets);
        killed = ServerProcess::echo(&lab, &lab.b1);
        figure
    });
    baton.rests();
}

/// Its last bytes are no sign that it lives.
#[test]
fn row01_a_killed_server_that_streams_until_then_is_ejected_as_soon_as_any_other() {
    let Some(lab) = Lab::new("row01 ejected") else { return };
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let mut killed = ServerProcess::source(&lab, &lab.b1);
    let baton = lab.start(&lab.config().only(&["b1", "b2"]));
    wait::meets(ms(1500), "row 1: a killed server that streamed was ejected after", || {
        baton.wait_health("b1", "ready", LONG);
        let conns: Vec<_> = (0..4).map(|_| baton.connect_to(&lab.client, "b1")).collect();
        let took = std::thread::scope(|scope| {
            let read_on = |mut conn: Conn| while conn.read_tally(60_000).is_ok_and(|tally| tally.bytes > 0) {};
            conns.into_iter().for_each(|conn| drop(scope.spawn(move || read_on(conn))));
            let moved = || baton.flows().iter().filter(|it| it["bytes_to_client"].as_u64() > Some(1_000_000)).count();
            eventually(LONG, "they stream", || moved() == 4);
            killed.process.kill();
            baton.wait_health("b1", "ejected", LONG)
        });
        killed = ServerProcess::source(&lab, &lab.b1);
        took
    });
}

#[test]
fn row01_what_a_killed_server_had_sent_arrives_unharmed() {
    let Some(lab) = Lab::new("row01") else { return };
    let killed = ServerProcess::source(&lab, &lab.b1);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.read_tally(20_000_000).unwrap();
    let killing = std::thread::spawn(move || killed.process.kill());
    let end = conn.end(LONG);
    killing.join().unwrap();
    assert_eq!(end, End::Fin);
    assert!(conn.received_pattern(1) > 20_000_000);
    drop(conn);
    baton.rests();
}

#[test]
fn row02_a_hung_server_that_still_accepts_is_ejected_by_https_probes_and_its_flows_are_reset() {
    let Some(lab) = Lab::new("row02") else { return };
    let certificates = Certificates::make(&lab);
    let hung = StandIn::start(&lab, &certificates, &lab.b1);
    let _b2 = StandIn::start(&lab, &certificates, &lab.b2);
    let baton = lab.start(&lab.config().only(&["b1", "b2"]).https(&certificates.ca()));
    let mut conn = baton.connect_to(&lab.client, "b1");
    let kubelets: Vec<_> =
        ["node-1", "node-2"].map(|name| Kubelet::start(&lab, &certificates, &lab.client2, &lab.lb, name)).into();
    kubelets.iter().for_each(|kubelet| kubelet.wait_renewals(kubelet.now(), 2, LONG));

    let before: Vec<_> = kubelets.iter().map(Kubelet::now).collect();
    let watch = Stopwatch::start();
    hung.process.stop();
    assert_eq!(conn.end(LONG), End::Rst);
    println!("row 2: the clients of a hung server saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    for (kubelet, before) in kubelets.iter().zip(before) {
        kubelet.wait_renewals(before, 4, LONG);
        assert!(kubelet.longest_gap(before) < secs(10), "{:?}", kubelet.longest_gap(before));
        eventually(LONG, "the kubelets are at b2", || kubelet.served_by().as_deref() == Some("b2"));
    }
    assert_eq!(baton.health_state("b1"), "ejected");
    assert_eq!(baton.flows_of("b1"), 0);

    hung.process.go_on();
    baton.wait_health("b1", "ready", LONG);
    drop((conn, kubelets));
    baton.rests();
}

#[test]
fn row02_a_server_that_accepts_and_says_nothing_never_becomes_ready() {
    let Some(lab) = Lab::new("row02") else { return };
    let certificates = Certificates::make(&lab);
    let silent = lab.b1.serve(Behaviour::Silent);
    let _b2 = StandIn::start(&lab, &certificates, &lab.b2);
    let baton = lab.baton(&lab.config().only(&["b1", "b2"]).https(&certificates.ca()));
    baton.wait_health("b2", "ready", LONG);
    let timed_out = || baton.backend("b1").is_some_and(|b1| b1["cause"]["kind"] == "timed_out");
    eventually(LONG, "its probes time out", timed_out);
    let probed = silent.accepted();
    eventually(LONG, "it is probed again and again", || silent.accepted() > probed + 3);
    assert_eq!(baton.states("b1").iter().filter(|health_state| *health_state == "ready").count(), 0);
    assert_eq!(baton.serving(&lab.client.connect(lab.lb.v4(6443))), "b2");
}

#[test]
fn row03_a_server_that_says_it_is_not_ready_keeps_its_flows_until_the_drain_timer() {
    let Some(lab) = Lab::new("row03") else { return };
    let certificates = Certificates::make(&lab);
    let leaving = StandIn::start(&lab, &certificates, &lab.b1);
    let _b2 = StandIn::start(&lab, &certificates, &lab.b2);
    let config = lab.config().only(&["b1", "b2"]).https(&certificates.ca()).frontend("drain_timeout", "3s");
    let baton = lab.start(&config);
    let mut old = baton.connect_to(&lab.client, "b1");

    let said = Stopwatch::start();
    leaving.set_ready(false);
    baton.wait_health("b1", "draining", secs(4));
    let watch = Stopwatch::start();
    assert_eq!(baton.backend("b1").unwrap()["cause"]["kind"], "not_ready");
    let new: Vec<_> = (0..10).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    assert!(new.iter().all(|conn| baton.serving(conn) == "b2"), "no new flow goes to a draining backend");
    old.stays_open(ms(1000));
    assert_eq!(old.end(LONG), End::Rst);
    println!("row 3: the drain timer of 3 s reset its flow after {:?}", watch.elapsed());
    assert!(said.elapsed() > secs(3) && watch.unstalled() < ms(4500), "{:?}", watch.elapsed());
    baton.wait_ended("drain_deadline", 1);
    assert_eq!(baton.flows_of("b2"), 10, "the others live on");

    leaving.set_ready(true);
    baton.wait_health("b1", "ready", LONG);
    drop((old, new));
    baton.rests();
}

#[test]
fn row04_clients_of_a_silently_dead_host_see_rst_within_the_budget() {
    let Some(lab) = Lab::new("row04") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let conns = served_in_turn(&lab, 60, 10_000);
    let (mut dead, mut alive) = (Vec::new(), Vec::new());
    for conn in conns {
        let of = if baton.serving(&conn) == "b1" { &mut dead } else { &mut alive };
        of.push(conn);
    }
    assert_eq!((dead.len(), alive.len()), (20, 40), "least_conn spreads evenly");

    lab.b1.link_down();
    let watch = Stopwatch::start();
    // Half of them have bytes in flight when the host is gone, half are idle.
    dead.iter_mut().step_by(2).for_each(|conn| conn.send(99, 5_000).unwrap());
    let ends: Vec<_> = std::thread::scope(|scope| {
        let ending: Vec<_> = dead.iter_mut().map(|conn| scope.spawn(|| (conn.end(LONG), watch.unstalled()))).collect();
        ending.into_iter().map(|end| end.join().unwrap()).collect()
    });
    let last = ends.iter().map(|(_, at)| *at).max().unwrap();
    println!("row 4: the last of 20 clients of a dead host saw RST after {last:?}");
    assert!(ends.iter().all(|(end, _)| *end == End::Rst), "{ends:?}");
    assert!(last < SILENT_BACKEND, "{last:?}");
    baton.wait_ended("backend_ejected", 20);
    for (seed, conn) in alive.iter_mut().enumerate() {
        conn.echo(seed as u64, 10_000);
    }

    lab.b1.link_up();
    baton.wait_health("b1", "ready", LONG);
    drop((dead, alive));
    baton.rests();
}

/// Regression: Baton drained a backend as "slow, not dead" as long as a client took bytes that had come before the
/// backend's host was gone, while each of its other clients waited.
#[test]
fn row04_a_host_that_dies_is_noticed_though_a_slow_client_still_takes_what_it_had_sent() {
    let Some(lab) = Lab::new("row04") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 3, bytes: 2_000_000_000 });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut idle = lab.client.connect(lab.lb.v4(6443));
    let mut slow = lab.client.connect(lab.lb.v4(6443));
    idle.read_tally(1000).unwrap();
    // The kernel gives room to who reads much.
    slow.read_tally(100_000_000).unwrap();
    let reads = Arc::new(AtomicU64::new(0));
    let counted = reads.clone();
    let reading = std::thread::spawn(move || {
        // For 20 s at most.
        while slow.read_tally(100_000).is_ok() && counted.fetch_add(1, SeqCst) < 800 {
            std::thread::sleep(ms(25));
        }
    });
    eventually(LONG, "it reads slowly", || reads.load(SeqCst) > 40);
    eventually(LONG, "both flows are open, and no probe", || server.open() == 2);

    lab.b1.link_down();
    let watch = Stopwatch::start();
    baton.wait_health("b1", "ejected", LONG);
    let noticed = watch.unstalled();
    assert_eq!(idle.end(LONG), End::Rst);
    reading.join().unwrap();
    println!("row 4: a host whose bytes a slow client still took was found dead after {noticed:?}");
    assert!(noticed < SILENT_BACKEND, "{noticed:?}");
    lab.b1.link_up();
    baton.wait_health("b1", "ready", LONG);
    drop(idle);
    baton.rests();
}

#[test]
fn row04_over_ipv6_clients_of_a_silently_dead_host_see_rst_within_the_budget_too() {
    let Some(lab) = Lab::new("row04") else { return };
    let _servers = lab.backends().map(|host| host.serve_on(host.v6(6443), Behaviour::Echo));
    let config = lab.config().only(&[]);
    let config = lab.backends().iter().fold(config, |config, host| config.backend(host.name, host.v6(6443)));
    let baton = lab.start(&config);
    let mut dead = lab.client.connect(lab.lb.v6(6443));
    let of = baton.serving(&dead);
    dead.echo(1, 100_000);
    let host = *lab.backends().iter().find(|host| host.name == of).unwrap();
    host.link_down();
    let watch = Stopwatch::start();
    assert_eq!(dead.end(LONG), End::Rst);
    println!("row 4: over IPv6 the client of a dead host saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    host.link_up();
    baton.wait_health(&of, "ready", LONG);
    drop(dead);
    baton.rests();
}

#[test]
fn row05_a_backend_that_drops_syn_costs_the_client_latency_only() {
    let Some(lab) = Lab::new("row05") else { return };
    let _servers = lab.echo_everywhere();
    // Its probes go to another port, so that it stays ready and every third flow is tried there first.
    let _probed = lab.b1.serve_on(lab.b1.v4(6444), Behaviour::Echo);
    let config = lab.config().frontend("balance", "round_robin");
    let baton = lab.start(&config.of_backend("b1", "health_address", lab.b1.v4(6444).to_string()));
    lab.b1.drop_packets("input", "tcp dport 6443");

    let mut slowest = ms(0);
    for seed in 0..12 {
        let watch = Stopwatch::start();
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(seed, 50_000);
        slowest = slowest.max(watch.unstalled());
        assert_ne!(baton.serving(&conn), "b1");
    }
    println!("row 5: with one of three backends dropping SYN the slowest connect and echo took {slowest:?}");
    assert!(slowest < ms(1000), "{slowest:?}");
    assert!(slowest > ms(150), "b1 was tried: {slowest:?}");
    let hedged = ["b1", "b2", "b3"].map(|name| baton.backend(name).unwrap()["hedged_total"].as_u64().unwrap());
    assert!(hedged.iter().sum::<u64>() >= 4, "every fourth flow needed a second attempt: {hedged:?}");
    baton.rests();
}

#[test]
fn row06_a_backend_that_refuses_is_skipped_at_once_and_no_client_notices() {
    let Some(lab) = Lab::new("row06") else { return };
    let _servers = lab.echo_everywhere();
    let _probed = lab.b1.serve_on(lab.b1.v4(6444), Behaviour::Echo);
    let config = lab.config().frontend("balance", "round_robin");
    let baton = lab.start(&config.of_backend("b1", "health_address", lab.b1.v4(6444).to_string()));
    lab.b1.nft(
        "table inet lab {\nchain input {\ntype filter hook input priority 0;\n\
         tcp dport 6443 reject with tcp reset\n}\n}\n",
    );

    wait::meets(ms(150), "row 6: with one of three backends refusing the slowest connect and echo took", || {
        let took = (0..12).map(|seed| {
            let watch = Stopwatch::start();
            let mut conn = lab.client.connect(lab.lb.v4(6443));
            conn.echo(seed, 50_000);
            let figure = watch.unstalled();
            assert_ne!(baton.serving(&conn), "b1");
            figure
        });
        took.max().expect("twelve figures")
    });
    let refused = baton.backend("b1").unwrap()["connect_failures_total"]["refused"].as_u64().unwrap_or(0);
    assert!(refused >= 4, "every third flow was tried there: {refused}");
    baton.rests();
}

#[test]
fn row07_one_way_loss_towards_the_backend_ends_in_rst_on_both_sides() {
    let Some(lab) = Lab::new("row07") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 4, bytes: u64::MAX });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.read_tally(1_000_000).unwrap();
    let probes_ended = server.ended().len();

    lab.b1.drop_packets("input", &format!("ip saddr {}", lab.lb.v4));
    let watch = Stopwatch::start();
    let end = conn.end(LONG);
    println!("row 7: with packets to the backend lost, the client saw {end:?} after {:?}", watch.elapsed());
    assert_eq!(end, End::Rst);
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    conn.received_pattern(4);

    lab.b1.nft_clear();
    let reset = || server.ended().iter().skip(probes_ended).any(|served| served.end == End::Rst && served.sent > 0);
    eventually(LONG, "what the backend retransmits is answered by RST", reset);
    drop(conn);
    baton.rests();
}

#[test]
fn row07_one_way_loss_from_the_backend_ends_in_rst_on_both_sides_too() {
    let Some(lab) = Lab::new("row07") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(4, 123_456);

    lab.b1.drop_packets("output", &format!("ip daddr {}", lab.lb.v4));
    let watch = Stopwatch::start();
    conn.send(5, 1000).unwrap();
    assert_eq!(conn.end(LONG), End::Rst);
    println!("row 7: with packets from the backend lost, the client saw RST after {:?}", watch.elapsed());
    assert!(watch.unstalled() < SILENT_BACKEND, "{:?}", watch.elapsed());
    // Its way to the backend was open all the time.
    let reset = || server.ended().iter().any(|served| served.received.bytes == 124_456 && served.end == End::Rst);
    eventually(LONG, "the backend saw RST", reset);
    lab.b1.nft_clear();
    drop(conn);
    baton.rests();
}

/// Regression: Baton drained a backend as "slow, not dead" as long as each of its flows had bytes to send for the first
/// time, though the backend received nothing.
#[test]
fn row07_a_backend_that_hears_nobody_is_ejected_though_it_goes_on_sending() {
    let Some(lab) = Lab::new("row07") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&lab.config().only(&["b1"]));
    hears_nobody(&lab, &baton, &server, 0);
}

#[test]
fn row10_with_all_backends_down_new_flows_are_reset_at_once() {
    let Some(lab) = Lab::new("row10") else { return };
    let servers = lab.echo_everywhere();
    let mut baton = lab.start(&lab.config());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 100_000);
    drop(servers);
    assert_eq!(conn.end(LONG), End::Fin, "their kernel closed what they had");

    // Before the probes have noticed, and after: never held.
    let reset_after = |what: &str| {
        wait::meets(ms(250), &format!("row 10: {what}, a new flow was reset after"), || {
            let watch = Stopwatch::start();
            match lab.client.try_connect(lab.lb.v4(6443), LONG) {
                Ok(mut conn) => assert_eq!(conn.end(LONG), End::Rst, "{what}"),
                Err(error) => assert_eq!(End::of_error(&error), End::Rst, "{what}"),
            }
            watch.unstalled()
        });
    };
    reset_after("before the probes noticed");
    for backend in ["b1", "b2", "b3"] {
        baton.wait_health(backend, "ejected", LONG);
    }
    reset_after("with all ejected");
    eventually(LONG, "the reason is no_backend", || baton.ended().contains_key("no_backend"));
    assert_eq!(baton.http("/readyz").unwrap().0, 200, "Baton itself serves");

    let _servers = lab.echo_everywhere();
    baton.wait_for_backends(&["b1", "b2", "b3"]);
    lab.client.connect(lab.lb.v4(6443)).echo(2, 100_000);
    drop(conn);
    baton.rests();
}

#[test]
fn row11_a_flapping_backend_is_held_back_until_it_is_stable() {
    let Some(lab) = Lab::new("row11") else { return };
    let certificates = Certificates::make(&lab);
    let flapping = StandIn::start(&lab, &certificates, &lab.b1);
    let _b2 = StandIn::start(&lab, &certificates, &lab.b2);
    let config = lab.config().only(&["b1", "b2"]).https(&certificates.ca());
    let config = config.health("interval", "400ms").health("fast_interval", "50ms").health("timeout", "400ms");
    let config = config.damping("half_life", "3s").damping("suppress", 3.0).damping("reuse", 1.5);
    let baton = lab.start(&config);

    let damped = || baton.backend("b1").is_some_and(|b1| b1["cause"]["kind"] == "damped");
    let mut flaps = 0;
    while !damped() {
        assert!(flaps < 10, "10 flaps, and it was never held back: {:?}", baton.states("b1"));
        flaps += 1;
        flapping.set_ready(false);
        eventually(LONG, "it drains", || baton.health_state("b1") == "draining");
        flapping.set_ready(true);
        eventually(LONG, "it is ready or held back", || baton.health_state("b1") == "ready" || damped());
    }
    println!("row 11: held back after {flaps} flaps");
    assert!(flaps >= 2, "one loss of readiness is no flapping");
    let new: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    if damped() {
        assert!(new.iter().all(|conn| baton.serving(conn) == "b2"), "a held back backend takes no flows");
    }
    let held = baton.wait_health("b1", "ready", LONG);
    println!("row 11: ready again after another {held:?}");
    drop(new);
    baton.rests();
}

#[test]
fn row31_a_backend_that_returns_starts_slowly_and_the_skew_can_be_seen() {
    let Some(lab) = Lab::new("row31") else { return };
    let b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let config = lab.config().only(&["b1", "b2"]).health("slow_start", "3s").rebalance("when", "ordered");
    let baton = lab.start(&config);
    drop(b1);
    baton.wait_health("b1", "ejected", LONG);
    let stayed: Vec<_> = (0..30).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    eventually(LONG, "30 flows on b2", || baton.flows_of("b2") == 30);

    let _b1 = lab.b1.serve(Behaviour::Echo);
    baton.wait_health("b1", "ready", LONG);
    let watch = Stopwatch::start();
    let share = || baton.backend("b1").unwrap()["share_percent"].as_u64().unwrap();
    let first = share();
    assert!(first < 60, "its share begins small: {first} %");
    let said = |command: &str| String::from_utf8(baton.cli(&[command]).stdout).unwrap();
    for command in ["status", "backends"] {
        let said = said(command);
        let (_, share) = said.split_once("; returning slowly, at ").unwrap_or_else(|| panic!("{command}: {said}"));
        assert!(share.contains(" % of its share, whole in "), "{said}");
    }
    let mut last = first;
    eventually(LONG, "its share grows to the whole", || {
        let now = share();
        assert!(now >= last, "from {last} % to {now} %");
        last = now;
        now == 100
    });
    println!("row 31: the share of a backend that returned grew from {first} % to 100 % in {:?}", watch.elapsed());
    assert!(watch.elapsed() > ms(1500), "{:?}", watch.elapsed());
    assert!(["status", "backends"].iter().all(|command| !said(command).contains("slowly")), "{}", said("status"));
    assert_eq!((baton.flows_of("b1"), baton.flows_of("b2")), (0, 30), "the skew stands in the status");
    drop(stayed);
    baton.rests();
}

/// So many clients, each of which has been served before the next one begins: workers that choose at once do not see each other's choice.
fn served_in_turn(lab: &Lab, clients: u64, bytes: u64) -> Vec<Conn> {
    let served = |seed| {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(seed, bytes);
        conn
    };
    (0..clients).map(served).collect()
}

/// Ten flows on b1 and b2, then b1 goes, and ten more begin on b2. Then b1 is back. `moves` is called with b1 ready, while
/// each client that hears FIN connects again.
fn b1_goes_and_returns(name: &str, when: &str, moves: impl FnOnce(&Baton) + Send) {
    let Some(lab) = Lab::new(name) else { return };
    let b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let baton = lab.start(&lab.config().only(&["b1", "b2"]).rebalance("when", when));
    let connect = || lab.client.connect(lab.lb.v4(6443));
    let before = served_in_turn(&lab, 10, 100);
    eventually(LONG, "five flows on b1", || baton.flows_of("b1") == 5);
    drop(b1);
    baton.wait_health("b1", "ejected", LONG);
    let mut older = before;
    eventually(LONG, "those of b1 were reset", || {
        older.retain_mut(|conn| conn.end(ms(1)) == End::Open);
        older.len() <= 5
    });
    let mut younger: Vec<_> = (0..10).map(|_| connect()).collect();
    eventually(LONG, "all flows on b2", || baton.flows_of("b2") == 15 && baton.flows_of("b1") == 0);
    older.retain_mut(|conn| conn.end(ms(1)) == End::Open);
    assert_eq!(older.len(), 5, "those of b2 were not");

    let _b1 = lab.b1.serve(Behaviour::Echo);
    baton.wait_health("b1", "ready", LONG);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut again = 0;
            while !done.load(SeqCst) {
                for conn in older.iter_mut().chain(&mut younger) {
                    if conn.end(ms(1)) == End::Fin {
                        (*conn, again) = (connect(), again + 1);
                    }
                }
            }
            again
        });
        let ends = SetsAtEnd(&done);
        moves(&baton);
        drop(ends);
        assert_eq!(clients.join().unwrap(), 7, "no client moves twice");
    });
    assert_eq!((baton.flows_of("b1"), baton.flows_of("b2")), (7, 8));
    if when == "after_outage" {
        older.iter_mut().for_each(|conn| conn.echo(1, 100));
    }
    drop((older, younger));
    baton.rests();
}

#[test]
fn row31_after_an_outage_flows_that_began_in_it_are_spread_and_older_ones_stay() {
    b1_goes_and_returns("row31 after", "after_outage", |baton| {
        eventually(LONG, "seven flows on b1", || baton.flows_of("b1") == 7);
        eventually(LONG, "it is told", || !baton.events_of("rebalance_planned").is_empty());
        wait::throughout(ms(1500), "no more than that", || baton.flows_of("b1") <= 7);
        assert_eq!(baton.ended().get("rebalanced"), Some(&7));
    });
}

/// Regression: clients that connected again at once, before enough probes had failed, counted as older than the outage: the backend
/// that came back had no flow for good.
#[test]
fn row31_clients_that_left_before_the_outage_was_noticed_come_back() {
    let Some(lab) = Lab::new("row31 at once") else { return };
    let b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let config = lab.config().only(&["b1", "b2"]).health("interval", "1s").health("fast_interval", "1s");
    let baton = lab.start(&config.health("fall", 3).health("slow_start", "0s"));
    let mut clients = served_in_turn(&lab, 10, 100);
    eventually(LONG, "five flows on b1", || baton.flows_of("b1") == 5);
    drop(b1);
    baton.order(&["kill", "--backend", "b1"]);
    let mut come_back = |on_b1: u64| {
        eventually(LONG, "each is connected", || {
            for conn in clients.iter_mut() {
                if conn.end(ms(1)) != End::Open {
                    *conn = lab.client.connect(lab.lb.v4(6443));
                }
            }
            baton.flows_of("b1") == on_b1 && baton.flows_of("b2") == 10 - on_b1
        });
    };
    come_back(0);
    assert_eq!(baton.health_state("b1"), "ready", "nobody has noticed");
    baton.wait_health("b1", "ejected", LONG);
    let _b1 = lab.b1.serve(Behaviour::Echo);
    baton.wait_health("b1", "ready", LONG);
    come_back(5);
}

/// Regression: an upgrade ended the outage, and the backend that had come back stayed without flows.
#[test]
fn row31_an_upgrade_within_an_outage_does_not_end_it() {
    b1_goes_and_returns("row31 upgrade", "after_outage", |baton| {
        baton.order(&["upgrade"]);
        eventually(LONG, "seven flows on b1", || baton.flows_of("b1") == 7);
    });
}

#[test]
fn row31_an_ordered_rebalance_says_how_many_flows_moved() {
    b1_goes_and_returns("row31 order", "ordered", |baton| {
        wait::throughout(ms(1500), "nobody asked for it", || baton.flows_of("b1") == 0);
        let said = baton.order(&["rebalance"]);
        assert!(said.contains("7 of 7 flows moved in "), "{said}");
        eventually(LONG, "seven flows on b1", || baton.flows_of("b1") == 7);
        let again = baton.order(&["rebalance"]);
        assert!(again.contains("balanced: no backend has more than its share"), "{again}");
    });
}

#[test]
fn row31_after_a_return_the_excess_is_moved_at_a_pace_and_only_from_idle_flows() {
    let Some(lab) = Lab::new("row31") else { return };
    let b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let config = lab.config().only(&["b1", "b2"]);
    let config = config.rebalance("when", "always").rebalance("per_minute", 600).rebalance("min_idle", "5s");
    let baton = lab.start(&config);
    drop(b1);
    baton.wait_health("b1", "ejected", LONG);
    let mut busy = lab.client.connect(lab.lb.v4(6443));
    let mut idle: Vec<_> = (0..19).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    eventually(LONG, "20 flows on b2", || baton.flows_of("b2") == 20);

    // It talks before there is a place to go to: the longest idle go first.
    busy.echo(0, 1000);
    let done = AtomicBool::new(false);
    let _b1 = std::thread::scope(|scope| {
        let talking = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(SeqCst) {
                busy.echo(rounds, 1000);
                rounds += 1;
            }
            rounds
        });
        let ends = SetsAtEnd(&done);
        let b1 = lab.b1.serve(Behaviour::Echo);
        baton.wait_health("b1", "ready", LONG);
        let plan = baton.order(&["rebalance", "--dry-run"]);
        println!("row 31: the plan: {}", plan.lines().collect::<Vec<_>>().join("; "));
        eventually(LONG, "flows were moved", || baton.ended().get("rebalanced").is_some_and(|moved| *moved >= 5));
        drop(ends);
        println!("row 31: meanwhile a busy flow made {} round trips", talking.join().unwrap());
        b1
    });
    let moved = idle.iter_mut().map(|conn| conn.end(ms(1))).filter(|end| *end == End::Fin).count();
    assert!(moved >= 5, "whoever is moved sees FIN: {moved}");
    drop((busy, idle));
    baton.rests();
}

/// Each of 40 flows to `lab.b1` gets its first bytes at a time of its own, while `b1` receives nothing and one client
/// waits for an answer. So many of them are offloaded by then.
pub fn hears_nobody(lab: &Lab, baton: &Baton, server: &Server, offloaded: u64) {
    let probes = server.accepted();
    let mut talker = lab.client.connect(lab.lb.v4(6443));
    let watchers: Vec<_> = (0..40).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talker.echo(1, 1000);
    eventually(LONG, "all are open", || server.open() >= 41);
    let numbers = probes..server.accepted();
    baton.wait_offloaded(offloaded);

    lab.b1.drop_packets("input", &format!("ip saddr {}", lab.lb.v4));
    let watch = Stopwatch::start();
    talker.send(2, 1000).unwrap();
    let (end, ends) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || end.send((talker.end(LONG), watch.unstalled())));
    // For 12 s at most; those that were probes are gone.
    let speaks = numbers.cycle().take(80).find_map(|number| {
        server.say_to(number, 3, 100);
        ends.recv_timeout(ms(150)).ok()
    });
    let (end, after) = speaks.expect("the client of a backend that hears nobody sees its end");
    waiting.join().unwrap().unwrap();
    println!("row 7: with packets to a backend lost that goes on sending, the client saw {end:?} after {after:?}");
    assert_eq!(end, End::Rst);
    assert!(after < SILENT_BACKEND, "{after:?}");
    lab.b1.nft_clear();
    drop(watchers);
    baton.rests();
}
