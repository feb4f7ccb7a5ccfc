//! The fault matrix where a client fails: rows 12 to 14.

use crate::lab::bytes::Tally;
use crate::lab::server::Served;
use crate::lab::*;

/// The end of the one flow that carried `bytes` from the client; probes carry none.
#[track_caller]
fn served(server: &Server, bytes: u64) -> Served {
    let of_flow = || server.ended().into_iter().find(|served| served.received.bytes == bytes);
    eventually_some(LONG, &format!("the backend saw the end of a flow of {bytes} bytes"), of_flow).0
}

#[test]
fn row12_an_idle_client_s_rst_reaches_the_backend_as_rst() {
    let Some(lab) = Lab::new("row12") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut resets = 0;
    wait::meets(ms(100), "row 12: the backend saw the client's RST after", || {
        resets += 1;
        let bytes = 12_345 + resets;
        let mut conn = lab.client.connect(lab.lb.v4(6443));
        conn.echo(1, bytes);
        let watch = Stopwatch::start();
        conn.reset();
        assert_eq!(served(&server, bytes).end, End::Rst);
        watch.unstalled()
    });
    baton.wait_ended("client_reset", resets);
    baton.rests();
}

#[test]
fn row12_a_client_that_resets_amid_a_download_frees_both_legs() {
    let Some(lab) = Lab::new("row12") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 2, bytes: u64::MAX });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.read_tally(5_000_000).unwrap();
    assert_eq!(conn.received_pattern(2), 5_000_000);
    conn.reset();
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|s| s.sent > 5_000_000 && s.end == End::Rst));
    baton.wait_ended("client_reset", 1);
    baton.rests();
}

#[test]
fn row13_a_client_that_half_closes_still_gets_the_whole_answer() {
    let Some(lab) = Lab::new("row13") else { return };
    let server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 31, bytes: 30_000_000 });
    let baton = lab.start(&lab.config().only(&["b1"]).health("interval", "60s"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.send(30, 3_000_000).unwrap();
    conn.half_close();
    let (end, tally, _) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(31, 30_000_000)));
    let served = served(&server, 3_000_000);
    assert_eq!((served.end, served.received), (End::Fin, Tally::of_pattern(30, 3_000_000)));
    baton.wait_ended("client_closed", 1);
    drop(conn);
    baton.rests();
}

#[test]
fn row13_a_backend_that_half_closes_still_gets_the_whole_upload() {
    let Some(lab) = Lab::new("row13") else { return };
    let server = lab.b1.serve(Behaviour::FinFirst);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    assert_eq!(conn.end(LONG), End::Fin);
    conn.send(32, 3_000_000).unwrap();
    eventually(LONG, "it goes through", || baton.flows()[0]["bytes_to_backend"] == 3_000_000);
    conn.half_close();
    let served = served(&server, 3_000_000);
    assert_eq!((served.end, served.received), (End::Fin, Tally::of_pattern(32, 3_000_000)));
    baton.wait_ended("backend_closed", 1);
    drop(conn);
    baton.rests();
}

#[test]
fn row13_a_half_closed_flow_lives_as_long_as_the_other_side_wants() {
    let Some(lab) = Lab::new("row13") else { return };
    let server = lab.b1.serve(Behaviour::FinFirst);
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    assert_eq!(conn.end(LONG), End::Fin);
    wait::throughout(secs(3), "the flow lives on", || baton.flow_count() == 1);
    conn.send(33, 1000).unwrap();
    conn.half_close();
    assert_eq!(served(&server, 1000).received, Tally::of_pattern(33, 1000));
    drop(conn);
    baton.rests();
}

#[test]
fn row13_a_reset_after_a_half_close_is_still_a_reset() {
    let Some(lab) = Lab::new("row13") else { return };
    let server = lab.b1.serve(Behaviour::FinFirst);
    let _reset = lab.b2.serve(Behaviour::ReadThenReset { bytes: 1000 });
    let baton = lab.start(&lab.config().only(&["b1"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    assert_eq!(conn.end(LONG), End::Fin);
    conn.send(1, 777).unwrap();
    eventually(LONG, "it goes through", || baton.flows()[0]["bytes_to_backend"] == 777);
    conn.reset();
    assert_eq!(served(&server, 777).end, End::Rst);
    drop(baton);

    let baton = lab.start(&lab.config().only(&["b2"]));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.send(1, 1000).unwrap();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Rst);
    drop(conn);
    baton.rests();
}

/// Keepalive and TCP_USER_TIMEOUT as short as they can be.
fn impatient(config: Config) -> Config {
    let config = config.frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s");
    config.frontend("keepalive_count", 2).frontend("user_timeout", "2s")
}

/// A client without room for another byte, as the server's kernel knows.
fn full(lab: &Lab, baton: &Baton) -> Conn {
    let before = window_probes(lab);
    let conn = lab.client.connect(lab.lb.v4(6443));
    eventually(LONG, "its window is closed", || window_probes(lab) > before && baton.flow_count() == 1);
    conn
}

/// Probes that Baton's kernel has sent to closed windows.
fn window_probes(lab: &Lab) -> u64 {
    let counters = lab.lb.run("nstat -asz TcpExtTCPWinProbe");
    counters.lines().find_map(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn patient_for(config: Config, user_timeout: &str) -> Config {
    config.frontend("keepalive_idle", "1s").frontend("keepalive_interval", "1s").frontend("user_timeout", user_timeout)
}

/// Its host answers every window probe; TCP_USER_TIMEOUT alone ends it.
#[test]
fn a_reader_that_pauses_for_longer_than_user_timeout_was_reset() {
    let Some(lab) = Lab::new("pauses") else { return };
    const BYTES: u64 = 40_000_000;
    let _server = lab.b1.serve(Behaviour::Source { seed: 5, bytes: BYTES });
    let baton = lab.start(&patient_for(lab.config().only(&["b1"]), "6s"));
    let mut conn = full(&lab, &baton);
    wait::throughout(secs(14), "the flow lives on", || baton.flow_count() == 1);
    let (end, tally, _) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(5, BYTES)));
    drop(conn);
    baton.wait_ended("backend_closed", 1);
    baton.rests();
}

/// With TCP_USER_TIMEOUT, the kernel counts on from a pause that ended by small reads, though everything is acknowledged, and ends the
/// connection when the next window stays closed for a moment.
#[test]
fn a_reader_that_had_paused_once_was_reset_at_its_next_short_pause() {
    let Some(lab) = Lab::new("pauses again") else { return };
    const BYTES: u64 = 2_000_000;
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&patient_for(lab.config().only(&["b1"]), "2s"));
    let mut conn = lab.client.enter(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        // Few openings of so small a window have room for all that the sender has put into its next segment.
        socket.set_recv_buffer_size(8192).unwrap();
        socket.connect(&lab.lb.v4(6443).into()).unwrap();
        Conn::new(socket.into())
    });
    conn.echo(1, 100);
    let closes_window = |seed| {
        let before = window_probes(&lab);
        server.say(seed, BYTES);
        eventually(LONG, "its window is closed", || window_probes(&lab) > before);
    };
    closes_window(2);
    for _ in 0..BYTES / 1000 {
        conn.read_tally(1000).unwrap();
    }
    wait::throughout(secs(3), "an idle flow lives on", || baton.flow_count() == 1);
    closes_window(3);
    wait::throughout(secs(1), "the flow lives on", || baton.flow_count() == 1);
    assert_eq!(conn.read_tally(BYTES).unwrap(), Tally::of_pattern(3, BYTES));
    drop(conn);
    baton.rests();
}

#[test]
fn a_backend_that_pauses_for_longer_than_user_timeout_was_reset() {
    let Some(lab) = Lab::new("pauses") else { return };
    let server = lab.b1.serve(Behaviour::Stall { bytes: 1000 });
    let baton = lab.start(&patient_for(lab.config().only(&["b1"]), "6s"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    let sent = conn.send_until_stalled(6, secs(1), 400_000_000).unwrap();
    wait::throughout(secs(14), "the flow lives on", || baton.flow_count() == 1);
    server.resume();
    conn.half_close();
    assert_eq!(served(&server, sent).received, Tally::of_pattern(6, sent));
    drop(conn);
    baton.rests();
}

#[test]
fn row14_a_client_that_vanished_during_a_pause_is_reaped_and_its_backend_leg_freed() {
    let Some(lab) = Lab::new("row14") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 5, bytes: u64::MAX });
    let baton = lab.start(&patient_for(lab.config().only(&["b1"]), "2s"));
    let _conn = full(&lab, &baton);
    wait::throughout(secs(5), "the flow lives on", || baton.flow_count() == 1);
    lab.client.link_down();
    let watch = Stopwatch::start();
    // An older kernel asks ever more rarely: three times within seven times the pause.
    let is_asked_often = std::path::Path::new("/proc/sys/net/ipv4/tcp_rto_max_ms").exists();
    let at_most = if is_asked_often { secs(8) } else { secs(90) };
    let is_reset = || server.ended().iter().any(|s| s.sent > 1_000_000 && s.end == End::Rst);
    eventually(at_most + LONG, "the backend saw RST", is_reset);
    println!("row 14: a client that vanished during a pause was reaped after {:?}", watch.elapsed());
    assert!(watch.unstalled() < at_most, "{:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    baton.rests();
}

#[test]
fn row14_an_idle_client_that_vanished_is_reaped_and_its_backend_leg_freed() {
    let Some(lab) = Lab::new("row14") else { return };
    let server = lab.b1.serve(Behaviour::Echo);
    let baton = lab.start(&impatient(lab.config().only(&["b1"])));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 4321);
    lab.client.link_down();
    let watch = Stopwatch::start();
    assert_eq!(served(&server, 4321).end, End::Rst);
    println!("row 14: an idle client that vanished was reaped after {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(6), "{:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    baton.rests();
}

#[test]
fn row14_a_client_that_vanished_amid_a_download_is_reaped_and_its_backend_leg_freed() {
    let Some(lab) = Lab::new("row14") else { return };
    let server = lab.b1.serve(Behaviour::Source { seed: 5, bytes: u64::MAX });
    let baton = lab.start(&impatient(lab.config().only(&["b1"])));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.read_tally(1_000_000).unwrap();
    assert_eq!(conn.received_pattern(5), 1_000_000);
    lab.client.link_down();
    let watch = Stopwatch::start();
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|s| s.sent > 1_000_000 && s.end == End::Rst));
    println!("row 14: a client that vanished amid a download was reaped after {:?}", watch.elapsed());
    assert!(watch.unstalled() < secs(6), "{:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    baton.rests();
}
