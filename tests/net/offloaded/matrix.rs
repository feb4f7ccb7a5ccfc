//! More of the fault matrix with offloaded flows: rows 9, 15, 20, 31 and 32.

use super::Scene;
use crate::lab::bytes::Tally;
use crate::lab::*;

/// A connection that has been offloaded, whatever its server does.
fn offloaded(scene: &Scene, baton: &Baton) -> Conn {
    let conn = scene.lab.client.connect(scene.lab.lb.v4(6443));
    baton.wait_offloaded(1);
    conn
}

#[test]
fn row09_a_backend_that_does_not_read_stalls_its_client_and_the_balancer_holds_nothing() {
    let Some(scene) = Scene::new("row09") else { return };
    let lab = &scene.lab;
    let stall = lab.b1.serve(Behaviour::Stall { bytes: 1000 });
    let baton = lab.start(&scene.config().only(&["b1"]));
    let probes = stall.accepted();
    let mut conn = offloaded(&scene, &baton);
    let before_kib = baton.process.rss_kib();
    let sent = conn.send_until_stalled(5, ms(500), 512 << 20).unwrap();
    let (rss, queued) = (baton.process.rss_kib().saturating_sub(before_kib), lab.lb.tcp_queued());
    println!(
        "row 9: the client stalled after {sent} bytes; Baton grew by {rss} KiB, its kernel holds {queued:?} bytes"
    );
    assert!(sent < 64 << 20, "{sent} bytes");
    assert!(rss < 4096, "{rss} KiB");
    // A probe's SYN may be in it for a moment.
    eventually(LONG, "its kernel holds nothing", || lab.lb.tcp_queued() == (0, 0));
    stall.resume();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    let whole = |served: &server::Served| served.received == Tally::of_pattern(5, sent);
    eventually(LONG, "the backend got every byte", || stall.ended().iter().skip(probes.saturating_sub(1)).any(whole));
    drop(conn);
    baton.rests();
}

#[test]
fn row09_a_client_that_does_not_read_over_a_slow_link_gets_every_byte_in_the_end() {
    let Some(scene) = Scene::new("row09") else { return };
    let lab = &scene.lab;
    const BYTES: u64 = 16 << 20;
    let _server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 9, bytes: BYTES });
    let baton = lab.start(&scene.config().only(&["b1"]));
    lab.client.slow_link("50mbit");
    let mut conn = offloaded(&scene, &baton);
    conn.half_close();
    // It reads nothing until no more comes.
    let mut last = 0;
    eventually(LONG, "the backend stalls", || {
        std::thread::sleep(ms(300));
        let (_, waiting) = lab.client.tcp_queued();
        std::mem::replace(&mut last, waiting) == waiting && waiting > 0
    });
    println!("row 9: a client that does not read has {last} bytes waiting, the balancer {:?}", lab.lb.tcp_queued());
    assert!(last < BYTES);
    assert_eq!(conn.read_tally(BYTES).unwrap(), Tally::of_pattern(9, BYTES));
    assert_eq!(conn.end(LONG), End::Fin);
    drop(conn);
    baton.rests();
}

#[test]
fn row15_with_its_process_killed_flows_go_on_and_new_ones_are_refused_at_once() {
    let Some(scene) = Scene::new("row15") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let baton = lab.start(&config);
    let mut conns: Vec<_> = (0..10).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    baton.wait_offloaded(10);
    baton.process.kill();
    wait::meets(secs(1), "row 15: a new flow was refused after", || {
        let watch = Stopwatch::start();
        let refused = lab.client.try_connect(lab.lb.v4(6443), LONG).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        watch.unstalled()
    });
    for round in 0..20 {
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64 + round, 20_000));
    }
    let baton = lab.start(&config);
    baton.wait_offloaded(10);
    lab.client.connect(lab.lb.v4(6443)).echo(1, 1000);
    drop(conns);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
}

#[test]
fn row20_bytes_that_come_at_the_very_offload_are_neither_lost_nor_doubled() {
    let Some(scene) = Scene::new("row20") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().offload("after_round_trips", 1));
    const FLOWS: u64 = 24;
    let talk = |number: u64| {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        let mut writer = conn.twin();
        let sizes = || (0..400u64).map(move |turn| 1 + (number * 31 + turn * 97) % 700);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (turn, bytes) in sizes().enumerate() {
                    writer.send(number * 1000 + turn as u64, bytes).unwrap();
                    // Never waiting for an answer: some segment is always on its way, when the flow leaves too.
                    std::thread::sleep(std::time::Duration::from_micros(300 * (turn as u64 % 3)));
                }
            });
            for (turn, bytes) in sizes().enumerate() {
                assert_eq!(conn.read_tally(bytes).unwrap(), Tally::of_pattern(number * 1000 + turn as u64, bytes));
            }
        });
        conn
    };
    let conns: Vec<_> = std::thread::scope(|scope| {
        let talks: Vec<_> = (0..FLOWS).map(|number| scope.spawn(move || talk(number))).collect();
        talks.into_iter().map(|talk| talk.join().expect("its bytes came back")).collect()
    });
    baton.wait_offloaded(FLOWS);
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
    drop(conns);
    baton.rests();
}

#[test]
fn row31_after_a_return_the_excess_of_offloaded_flows_is_moved_and_only_from_idle_ones() {
    let Some(scene) = Scene::new("row31") else { return };
    let lab = &scene.lab;
    let b1 = lab.b1.serve(Behaviour::Echo);
    let _b2 = lab.b2.serve(Behaviour::Echo);
    let config = scene.config().only(&["b1", "b2"]);
    let config = config.rebalance("when", "always").rebalance("per_minute", 600).rebalance("min_idle", "500ms");
    let baton = lab.start(&config);
    drop(b1);
    baton.wait_health("b1", "ejected", LONG);
    let mut busy = lab.client.connect(lab.lb.v4(6443));
    let mut idle: Vec<_> = (0..19).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    baton.wait_offloaded(20);
    let _b1 = lab.b1.serve(Behaviour::Echo);
    baton.wait_health("b1", "ready", LONG);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                busy.echo(1, 100);
                std::thread::sleep(ms(50));
            }
        });
        eventually(secs(30), "some have moved", || baton.ended().get("rebalanced").is_some_and(|count| *count >= 5));
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    let told = idle.iter_mut().filter_map(|conn| match conn.end(ms(20)) {
        End::Rst => Some(()),
        End::Open => None,
        other => panic!("it ended strangely: {other:?}"),
    });
    assert!(told.count() >= 5);
    busy.echo(2, 1000);
}

#[test]
fn row32_a_firewall_that_drops_what_it_has_not_tracked_neither_stops_flows_nor_their_resets() {
    let Some(scene) = Scene::new("row32") else { return };
    let lab = &scene.lab;
    let servers = lab.echo_everywhere();
    lab.lb.nft(
        "table inet firewall {\n\
         chain in { type filter hook input priority 0; ct state invalid drop; }\n\
         chain through { type filter hook forward priority 0; ct state invalid drop; }\n\
         chain out { type filter hook output priority 0; ct state invalid drop; }\n}\n",
    );
    lab.lb.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
    let config = scene.config();
    let baton = lab.start(&config);
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    baton.wait_offloaded(6);
    // Far beyond the window in which the firewall has seen them.
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 1_500_000));
    baton.process.kill();
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 100_000));
    let baton = lab.start(&config);
    baton.wait_offloaded(6);
    for conn in &mut conns {
        let local = conn.local().to_string();
        let id = baton.flows().into_iter().find(|flow| flow["client"] == local).unwrap()["id"]
            .as_str()
            .expect("an id")
            .to_owned();
        baton.order(&["kill", &id]);
        assert_eq!(conn.end(LONG), End::Rst, "an idle client hears of its end");
    }
    eventually(LONG, "the backends are rid of them", || servers.iter().all(|server| server.open() == 0));
}
