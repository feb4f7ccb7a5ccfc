//! Row 38: the network is down in the middle of a close. Every byte arrives afterwards, or both ends are reset; no end
//! waits for bytes that no end will send again.

use std::time::Duration;

use super::Scene;
use crate::lab::bytes::Tally;
use crate::lab::*;

/// As much as goes out at once, with its FIN: the first window of a connection is ten segments.
const ANSWER: u64 = 10_000;

/// Connections that are closed in the same way.
struct Closing<'s> {
    conns: Vec<Conn>,
    server: &'s Server,
    what: &'static str,
    /// What each is to read before it sees FIN.
    reads: Option<(u64, u64)>,
}

/// Both sides' closes in every order, some just before the link of `host` goes down and some while it is, for `outage`.
fn outage(what: &str, outage: Duration, of_client: bool, config: impl Fn(Config) -> Config) {
    let Some(scene) = Scene::new("row38") else { return };
    let lab = &scene.lab;
    // On ports of their own, each a backend that does one thing.
    let answers = lab.b1.serve_on(lab.b1.v4(6443), Behaviour::AnswerAfterFin { seed: 5, bytes: ANSWER });
    let echoes = lab.b2.serve_on(lab.b2.v4(6443), Behaviour::Echo);
    let ends = lab.b3.serve_on(lab.b3.v4(6443), Behaviour::Stall { bytes: 100 });
    // Suspended probes would add nothing: a backend that is ejected for its silence resets its flows, as it should.
    let baton = lab.start(&config(scene.config()));
    let count = 18;
    let mut by_backend = std::collections::HashMap::<_, Vec<_>>::new();
    for _ in 0..count {
        let conn = lab.client.connect(lab.lb.v4(6443));
        by_backend.entry(baton.serving(&conn)).or_default().push(conn);
    }
    let mut gather = |name: &str, seed: u64| -> Vec<Conn> {
        let mut conns = by_backend.remove(name).expect("flows go everywhere");
        conns.iter_mut().for_each(|conn| conn.send(seed, 100).unwrap());
        conns
    };
    let mut flows = [
        Closing { conns: gather("b1", 1), server: &answers, what: "the client first", reads: Some((5, ANSWER)) },
        Closing { conns: gather("b2", 2), server: &echoes, what: "the client, then the backend", reads: None },
        Closing { conns: gather("b3", 3), server: &ends, what: "both at once", reads: Some((0, 0)) },
    ];
    flows[1].conns.iter_mut().for_each(|conn| assert_eq!(conn.read_tally(100).unwrap().bytes, 100));
    eventually(LONG, "all flows are offloaded", || {
        let flows = baton.status()["totals"]["flows"].clone();
        flows["offloaded"] == count && flows["proxied"].as_u64().unwrap_or(0) == 0
    });
    // A third while the packets of one direction are lost, a third in the moment of the outage, a third after it.
    let close = |flows: &[Closing], part: usize| {
        for closing in flows {
            closing.conns.iter().skip(part).step_by(3).for_each(Conn::half_close);
        }
    };
    let hosts = if of_client { vec![&lab.client] } else { lab.backends().to_vec() };
    for host in &hosts {
        let (near, far) = if of_client { ("sport", "dport") } else { ("dport", "sport") };
        host.nft(&format!(
            "table inet lab {{\nchain input {{\ntype filter hook input priority 0;\ntcp {far} & 1 == 0 drop\n}}\n\
             chain output {{\ntype filter hook output priority 0;\ntcp {near} & 1 == 1 drop\n}}\n}}\n"
        ));
    }
    let down = |is_down: bool| {
        hosts.iter().for_each(|host| if is_down { host.link_down() } else { host.link_up() });
    };
    close(&flows[..2], 0);
    ends.resume();
    // Long enough for the answers to all packets that are not lost.
    wait::throughout(ms(100), "the flows are there", || baton.flow_count() > 0);
    close(&flows[..2], 1);
    down(true);
    hosts.iter().for_each(|host| host.nft_clear());
    let watch = Stopwatch::start();
    close(&flows, 2);
    eventually(outage + LONG, "the outage is over", || watch.elapsed() >= outage);
    down(false);
    // The ends' own timers go on from where the outage left them: up to as long again until they send something.
    let deadline = outage * 2 + LONG;
    close(&flows[2..], 0);
    close(&flows[2..], 1);
    let mut outcomes = std::collections::BTreeMap::<_, u32>::new();
    for closing in &mut flows {
        for conn in &mut closing.conns {
            let left = deadline.saturating_sub(watch.elapsed().saturating_sub(outage)).max(ms(100));
            let (end, tally, _) = conn.read_end(left);
            let whole = closing.reads.is_none_or(|(seed, bytes)| tally == Tally::of_pattern(seed, bytes));
            assert!(end == End::Rst || (end == End::Fin && whole), "{what}: {}: {end:?} after {tally:?}", closing.what);
            *outcomes.entry((closing.what, format!("{end:?}"))).or_default() += 1;
        }
    }
    println!("row 38: {what}: {outcomes:?}, {:?} after the outage", watch.elapsed().saturating_sub(outage));
    for closing in &flows {
        eventually(deadline, "no backend waits", || closing.server.open() == 0);
    }
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    println!("row 38: {what}: ended: {:?}", baton.ended());
}

fn as_is(config: Config) -> Config {
    config
}

/// Regression: half-closed clients got none of their answer and waited for ever. Their flows counted as over when both
/// FINs had been seen.
#[test]
fn row38_a_client_whose_network_is_out_for_seconds_during_a_close_gets_every_byte() {
    outage("the clients' network is out for 1 s", secs(1), true, as_is);
    outage("the clients' network is out for 3 s", secs(3), true, as_is);
}

/// The client's FIN has arrived and it waits for its answer, all of which is lost, with the backend's FIN, on its last way.
#[test]
fn row38_a_half_closed_client_gets_an_answer_that_was_lost_for_four_seconds() {
    let Some(scene) = Scene::new("row38") else { return };
    let lab = &scene.lab;
    let server = lab.b1.serve_on(lab.b1.v4(6443), Behaviour::AnswerAfterFin { seed: 5, bytes: ANSWER });
    let baton = lab.start(&scene.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.send(1, 100).unwrap();
    baton.wait_offloaded(1);
    // All but bare ACKs, which are up to 80 bytes with SACK.
    lab.client.drop_packets("input", "tcp sport 6443 meta length > 100");
    lab.client.drop_packets("input", "tcp sport 6443 tcp flags & fin == fin");
    conn.half_close();
    eventually(LONG, "the client has nothing to send again", || lab.client.tcp_sockets().is_empty());
    wait::throughout(secs(4), "it waits on", || lab.client.tcp_sockets().is_empty());
    lab.client.nft_clear();
    let (end, tally, took) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(5, ANSWER)));
    println!("row 38: the answer came {took:?} after an outage of 4 s");
    eventually(LONG, "the backend does not wait", || server.open() == 0);
    baton.wait_ended("client_closed", 1);
}

#[test]
fn row38_backends_whose_network_is_out_for_seconds_during_a_close_leave_nobody_waiting() {
    outage("the backends' network is out for 1 s", secs(1), false, as_is);
    outage("the backends' network is out for 3 s", secs(3), false, as_is);
}

#[test]
fn row38_an_outage_of_ten_seconds_during_a_close_leaves_nobody_waiting() {
    outage("the clients' network is out for 10 s", secs(10), true, as_is);
}

/// Longer than an end may be silent: both ends are reset, and told again once they can be reached.
#[test]
fn row38_an_outage_beyond_the_patience_resets_both_ends_when_it_is_over() {
    outage("the clients' network is out for 10 s, the patience is 3 s", secs(10), true, |config| {
        config.frontend("user_timeout", "3s")
    });
}

/// `cargo nextest run --test net --run-ignored only row38`
#[test]
#[ignore = "takes two minutes: the one above is its short form"]
fn row38_an_outage_of_forty_seconds_during_a_close_leaves_nobody_waiting() {
    outage("the clients' network is out for 40 s", secs(40), true, as_is);
    outage("the backends' network is out for 40 s", secs(40), false, as_is);
}

/// Connects by the port that the connection before had.
fn once_more(host: &Host, from: std::net::SocketAddr, vip: std::net::SocketAddr) -> Conn {
    let mut conn = host.connect_by(from, vip, LONG).expect("it is accepted");
    conn.echo(3, 100);
    conn
}

/// Regression: the client was refused for 1.5 s, and reset after its first bytes.
#[test]
fn a_client_whose_offloaded_flow_was_reset_may_use_its_port_again_at_once() {
    let Some(scene) = Scene::new("port-again") else { return };
    let lab = &scene.lab;
    let _server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&["b1"]));
    let vip = lab.lb.v4(6443);
    let mut conns: Vec<_> = (0..4).map(|_| lab.client.connect(vip)).collect();
    let offload = |conns: &mut Vec<Conn>| {
        conns.iter_mut().for_each(|conn| (0..5).for_each(|round| conn.echo(round, 200)));
        baton.wait_offloaded(conns.len() as u64);
    };
    offload(&mut conns);
    // By their own RST: the next SYN comes in the same moment, or when the offload engine is just resetting the other end.
    let mut ended = 0;
    let anew = conns.into_iter().enumerate().map(|(number, conn)| {
        let from = conn.local();
        conn.reset();
        ended += 1;
        if number % 2 == 1 {
            baton.wait_ended("client_reset", ended);
        }
        once_more(&lab.client, from, vip)
    });
    let mut conns: Vec<_> = anew.collect();
    // The offload engine has another word for the ends of the old ones.
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(400)));
    offload(&mut conns);
    assert!(baton.cli(&["kill", "--all", "--yes"]).status.success());
    let anew = conns.into_iter().map(|mut conn| {
        let from = conn.local();
        assert_eq!(conn.end(LONG), End::Rst);
        drop(conn);
        once_more(&lab.client, from, vip)
    });
    let mut conns: Vec<_> = anew.collect();
    conns.iter_mut().for_each(|conn| conn.stays_open(ms(400)));
    offload(&mut conns);
    drop(conns);
    baton.rests();
}
