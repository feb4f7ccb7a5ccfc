//! The last bytes of a proxied flow, and its end: it is over when each end has acknowledged them, not when they were written.

use crate::lab::bytes::Tally;
use crate::lab::*;

/// As much as goes out at once, with its FIN.
const ANSWER: u64 = 10_000;

/// More than a small window and the bytes written beyond it.
const LONG_ANSWER: u64 = 1_000_000;

/// The longest until an end is told after it can be reached again.
const BACK: std::time::Duration = secs(6);

fn alone(lab: &Lab) -> Config {
    lab.config().only(&["b1"]).health("interval", "60s")
}

/// All that has bytes in it, and each FIN, is lost on its way to the client; RST and bare ACKs arrive.
fn lose_answers(client: &Host) {
    client.drop_packets("input", "tcp sport 6443 meta length > 100");
    client.drop_packets("input", "tcp sport 6443 tcp flags & fin == fin");
}

/// A client that has sent FIN and loses its answer; nothing of its own is under way.
fn half_closed(lab: &Lab) -> Conn {
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.send(1, 100).unwrap();
    conn.half_close();
    eventually(LONG, "the client has nothing to send again", || lab.client.tcp_sockets().is_empty());
    conn
}

/// Reads half, and then a little at a time until all of the answer was written, with the FIN after it; returns how much that was.
pub fn read_until_written(conn: &mut Conn, flows: impl Fn() -> Vec<serde_json::Value>) -> u64 {
    eventually(LONG, "the flow is there", || !flows().is_empty());
    // A server has it in its own buffers until then, at least.
    let mut read = conn.read_tally(LONG_ANSWER / 2).unwrap().bytes;
    let all_is_written = || flows().iter().all(|flow| flow["bytes_to_client"] == LONG_ANSWER);
    eventually(LONG, "the whole answer is written", || {
        if !all_is_written() {
            read += conn.read_tally(8192).unwrap().bytes;
            return false;
        }
        true
    });
    println!("all is written when {read} of {LONG_ANSWER} are read");
    assert!(read < LONG_ANSWER * 9 / 10, "nothing is under way: {read}");
    read
}

/// A client with a small receive buffer, which has sent FIN.
pub fn slow_client(client: &Host, vip: std::net::SocketAddr) -> Conn {
    let stream = client.enter(|| {
        let socket = socket2::Socket::new(socket2::Domain::for_address(vip), socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(32 * 1024).unwrap();
        socket.connect_timeout(&vip.into(), LONG).unwrap();
        socket.into()
    });
    let mut conn = Conn::new(stream);
    conn.send(1, 100).unwrap();
    conn.half_close();
    conn
}

pub fn long_answers() -> Behaviour {
    Behaviour::AnswerAfterFin { seed: 5, bytes: LONG_ANSWER }
}

/// Until the answer to the only client is in its socket.
#[track_caller]
fn wait_written(baton: &Baton) {
    eventually(LONG, "the answer is written", || {
        let flows = baton.flows();
        flows.len() == 1 && flows[0]["bytes_to_client"] == ANSWER
    });
}

/// Regression: flows had ended as if delivered, while their client waited for every byte of its answer.
#[test]
fn row38_a_proxied_flow_is_there_until_the_client_has_acknowledged_the_last_byte() {
    let Some(lab) = Lab::new("row38") else { return };
    let _server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: ANSWER });
    let baton = lab.start(&alone(&lab));
    lose_answers(&lab.client);
    let mut conn = half_closed(&lab);
    wait_written(&baton);
    wait::throughout(secs(4), "the flow is there", || baton.flow_count() == 1);
    assert!(baton.ended().is_empty(), "{:?}", baton.ended());
    lab.client.nft_clear();
    let (end, tally, took) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(5, ANSWER)));
    println!("row 38: the answer came {took:?} after an outage of 4 s");
    baton.wait_ended("client_closed", 1);
    drop(conn);
    baton.rests();
}

/// Regression: clients waited for ever, because the kernel gave the answer up in silence.
#[test]
fn row38_a_client_that_cannot_be_told_of_its_answer_is_told_of_the_end() {
    let Some(lab) = Lab::new("row38") else { return };
    let server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: ANSWER });
    let baton = lab.start(&alone(&lab).frontend("user_timeout", "2s"));
    // RST, too.
    lab.client.drop_packets("input", "tcp sport 6443 tcp flags & rst == rst");
    lose_answers(&lab.client);
    let mut conn = half_closed(&lab);
    baton.wait_ended("client_timed_out", 1);
    eventually(LONG, "the backend does not wait", || server.open() == 0);
    conn.stays_open(ms(10));
    lab.client.nft_clear();
    let watch = Stopwatch::start();
    assert_eq!(conn.end(BACK), End::Rst);
    println!("row 38: reset {:?} after the outage", watch.elapsed());
    drop(conn);
    baton.rests();
}

/// Its kernel says nothing more to a connection in LAST_ACK when that is closed: no RST would come.
#[test]
fn a_flow_that_is_closing_can_be_reset() {
    let Some(lab) = Lab::new("closing_reset") else { return };
    let _server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: ANSWER });
    let baton = lab.start(&alone(&lab));
    lose_answers(&lab.client);
    let mut conn = half_closed(&lab);
    wait_written(&baton);
    baton.order(&["kill", "--all", "--yes"]);
    assert_eq!(conn.end(BACK), End::Rst);
    baton.wait_ended("killed", 1);
    drop(conn);
    baton.rests();
}

/// Regression: a half-closed client was reset in the middle of its answer. Its host was alive, but Baton gave more time
/// only to open flows.
#[test]
fn a_half_closed_reader_that_pauses_gets_its_answer_though_its_backend_is_gone() {
    let Some(lab) = Lab::new("half_closed_reader") else { return };
    let server = lab.b1.serve(long_answers());
    let baton = lab.start(&alone(&lab).frontend("user_timeout", "2s").frontend("idle_timeout", "5s"));
    let mut conn = slow_client(&lab.client, lab.lb.v4(6443));
    read_until_written(&mut conn, || baton.flows());
    eventually(LONG, "the backend has done its part", || server.open() == 0);
    eventually(LONG, "it is no flow of its backend any more", || baton.flows_of("b1") == 0);
    baton.order(&["eject", "b1"]);
    lab.b1.link_down();
    for _ in 0..3 {
        wait::throughout(secs(2), "the flow is there", || baton.flow_count() == 1);
        // Until its window opens, which a merged packet of which only a part is read does not do; and no more, for the flow is over once
        // the rest fits into its buffers.
        let before = lab.lb.tcp_queued().0;
        eventually(LONG, "its window opens", || {
            conn.read_tally(8 * 1024).unwrap();
            lab.lb.tcp_queued().0 < before
        });
    }
    let (end, _, _) = conn.read_end(LONG);
    assert_eq!((end, conn.received_pattern(5)), (End::Fin, LONG_ANSWER));
    baton.wait_ended("client_closed", 1);
}

/// Regression: idle clients hung, because each reset was a single RST.
#[test]
fn a_reset_that_is_lost_is_told_again() {
    let Some(lab) = Lab::new("a_reset_that_is_lost") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&alone(&lab));
    for (vip, bytes) in [(lab.lb.v4(6443), 4321), (lab.lb.v6(6443), 4322)] {
        let before = baton.ended().get("killed").copied().unwrap_or(0);
        let mut conns: Vec<_> = (0..3).map(|_| lab.client.connect(vip)).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, bytes));
        lab.client.link_down();
        lab.b1.link_down();
        // One has bytes under way, the others have not.
        conns[0].send(2, 1000).unwrap();
        baton.order(&["kill", "--all", "--yes"]);
        baton.wait_ended("killed", before + 3);
        wait::throughout(secs(2), "they are cut off", || baton.flow_count() == 0);
        lab.client.link_up();
        lab.b1.link_up();
        let watch = Stopwatch::start();
        conns.iter_mut().for_each(|conn| assert_eq!(conn.end(BACK), End::Rst));
        println!("{vip}: reset {:?} after they were back", watch.elapsed());
        let told = || server.ended().iter().filter(|it| it.received.bytes == bytes && it.end == End::Rst).count();
        eventually(BACK, "the backend hears of all", || told() == 3);
    }
    drop(baton);
}

/// Found in a soak: the host's link went down as a flow connected, and was back after the flow had ended. The client had sent its
/// request, and had the acknowledgement of it.
#[test]
fn a_lost_reset_of_a_client_that_had_no_backend_yet_is_told_again() {
    let Some(lab) = Lab::new("a_lost_reset_without_a_backend") else { return };
    let _server = lab.b1.serve(Behaviour::Echo);
    let patient = alone(&lab).health("interval", "60s").health("timeout", "50s");
    let baton = lab.start(&patient.frontend("connect_timeout", "3s"));
    lab.b1.drop_packets("input", "tcp dport 6443 tcp flags & (syn|ack) == syn");
    for (round, vip) in [lab.lb.v4(6443), lab.lb.v6(6443)].into_iter().enumerate() {
        let mut conns: Vec<_> = (0..3).map(|_| lab.client.connect(vip)).collect();
        conns.iter_mut().for_each(|conn| conn.send(1, 100).unwrap());
        eventually(LONG, "all is acknowledged", || lab.client.tcp_queued().0 == 0);
        lab.client.link_down();
        baton.wait_ended("connect_timed_out", 3 * (round as u64 + 1));
        conns.iter_mut().for_each(|conn| conn.stays_open(ms(10)));
        lab.client.link_up();
        let watch = Stopwatch::start();
        conns.iter_mut().for_each(|conn| assert_eq!(conn.end(BACK), End::Rst));
        println!("{vip}: reset {:?} after they were back", watch.elapsed());
    }
    drop(baton);
}

/// A client that has read the end may begin anew at once: what its last acknowledgement takes is not held against it.
#[test]
fn a_client_at_its_limit_that_closes_may_connect_at_once() {
    let Some(lab) = Lab::new("closes_at_its_limit") else { return };
    let _server = lab.b1.serve(Behaviour::Echo);
    let config = alone(&lab).frontend("max_connections_per_source", 1).frontend("max_connections", 1);
    let baton = lab.start(&config);
    for seed in 0..200 {
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(seed, 100);
        conn.half_close();
        assert_eq!(conn.end(LONG), End::Fin);
    }
    baton.wait_ended("client_closed", 200);
    baton.rests();
}
