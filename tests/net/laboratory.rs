//! The laboratory itself, without Baton: the properties that the other tests rely on.

use crate::lab::bytes::Tally;
use crate::lab::*;

#[test]
fn a_pulled_plug_loses_packets_in_silence_and_heals() {
    let Some(lab) = Lab::new("laboratory") else { return };
    let _server = lab.b1.serve(Behaviour::Echo);
    let mut conn = lab.client.connect(lab.b1.v4(6443));
    conn.echo(1, 100_000);
    lab.b1.link_down();
    conn.send_bytes(b"into the void").unwrap();
    conn.stays_open(ms(300));
    assert_eq!(lab.client.try_connect(lab.b1.v4(6443), ms(300)).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    lab.b1.link_up();
    assert_eq!(conn.read_tally(13).unwrap().bytes, 13, "retransmission brings it");
}

#[test]
fn servers_and_clients_tell_fin_from_rst_and_count_bytes() {
    let Some(lab) = Lab::new("laboratory") else { return };
    let sink = lab.b1.serve(Behaviour::Sink);
    let mut conn = lab.client.connect(lab.b1.v4(6443));
    conn.send(7, 1_000_000).unwrap();
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    let served = sink.ended_one(0, LONG);
    assert_eq!((served.end, served.received), (End::Fin, Tally::of_pattern(7, 1_000_000)));

    let mut conn = lab.client.connect(lab.b1.v4(6443));
    conn.send(7, 10).unwrap();
    eventually(LONG, "the server has it", || sink.open() == 1);
    conn.reset();
    assert_eq!(sink.ended_one(1, LONG).end, End::Rst);

    let _reset = lab.b2.serve_on(lab.b2.v6(6443), Behaviour::ReadThenReset { bytes: 10 });
    let mut conn = lab.client.connect(lab.b2.v6(6443));
    conn.send(7, 10).unwrap();
    assert_eq!(conn.end(LONG), End::Rst);

    let source = lab.b3.serve(Behaviour::Source { seed: 3, bytes: 500_000 });
    let mut conn = lab.client.connect(lab.b3.v4(6443));
    let (end, tally, _) = conn.read_end(LONG);
    assert_eq!((end, tally), (End::Fin, Tally::of_pattern(3, 500_000)));
    drop(conn);
    assert_eq!(source.ended_one(0, LONG).sent, 500_000);
}

#[test]
fn dropped_packets_refusals_and_limits_of_a_link_are_as_asked_for() {
    let Some(lab) = Lab::new("laboratory") else { return };
    let _server = lab.b1.serve(Behaviour::Echo);
    lab.b1.drop_packets("input", "tcp dport 6443");
    assert!(lab.client.try_connect(lab.b1.v4(6443), ms(200)).is_err());
    lab.b1.nft_clear();
    let refused = lab.client.try_connect(lab.b1.v4(1), LONG).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    lab.b1.slow_link("8mbit");
    let watch = Stopwatch::start();
    lab.client.connect(lab.b1.v4(6443)).echo(5, 500_000);
    assert!(watch.elapsed() > ms(300), "half a megabyte at 8 Mbit/s took {:?}", watch.elapsed());
}

#[test]
fn a_stopped_process_dies_with_its_handle_and_its_namespace_with_the_lab() {
    let Some(lab) = Lab::new("laboratory") else { return };
    let log = lab.directory().join("sleep.log");
    let process = lab.b1.spawn(&["sleep", "1000"], &log);
    let pid = process.pid().as_raw_nonzero();
    process.stop();
    assert!(process.fds() > 0);
    drop(process);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let namespaces = lab.backends().map(|host| format!("/run/netns/{}", host.namespace()));
    assert!(namespaces.iter().all(|path| std::path::Path::new(path).exists()));
    drop(lab);
    assert!(!namespaces.iter().any(|path| std::path::Path::new(path).exists()));
}

/// Found as a new process of an upgrade that ran for an hour in a namespace without a name: its test had failed.
#[test]
fn a_process_that_nobody_holds_dies_with_the_lab() {
    let Some(lab) = Lab::new("laboratory") else { return };
    let into = lab.directory().join("pid");
    // A daemon: no child of this process, and no signal of its parent's death.
    let daemon = format!("setsid setpriv --pdeathsig clear sleep 1000 & echo $! >{}", into.display());
    let ran =
        std::process::Command::new("ip").args(["netns", "exec", lab.b1.namespace(), "sh", "-c", &daemon]).status();
    assert!(ran.unwrap().success());
    let pid = std::fs::read_to_string(&into).unwrap().trim().to_owned();
    let lives = move || std::path::Path::new(&format!("/proc/{pid}/cmdline")).exists();
    assert!(lives());
    drop(lab);
    eventually(LONG, "it is dead", || !lives());
}

/// Run again by itself as the server; see `lab::server_process`.
#[test]
fn a_server_process_serves_until_it_is_killed() {
    server_process::serve_if_asked();
    let Some(lab) = Lab::new("laboratory") else { return };
    let server = ServerProcess::echo(&lab, &lab.b1);
    let mut conn = lab.client.connect(lab.b1.v4(6443));
    conn.echo(1, 1_000_000);
    server.process.kill();
    assert_eq!(conn.end(LONG), End::Fin);
}
