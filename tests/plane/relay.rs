//! The data plane alone, on loopback: each side sees the other side's actions.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use baton::model::balance::Preference;
use baton::model::end_reason::EndReason;

use crate::bench::*;

#[test]
fn small_and_large_messages_come_back_whole() {
    // It takes a while, in which a server would end a connection.
    let pattern = pattern(64 << 20);
    for ip in ["127.0.0.1", "::1"] {
        let bench = Bench::new(&[server(ip, echo), server(ip, echo)]);
        let mut stream = bench.connect();
        for _ in 0..100 {
            stream.write_all(b"ping").unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"ping");
        }
        let mut writer = stream.try_clone().unwrap();
        let sent = pattern.clone();
        let writing = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == pattern, "{} of {} bytes came back", received.len(), pattern.len());
        let ended = bench.next_ended();
        assert_eq!(ended.reason, EndReason::ClientClosed);
        assert_eq!((ended.bytes_to_backend, ended.bytes_to_client), ((64 << 20) + 400, (64 << 20) + 400));
    }
}

#[test]
fn a_client_that_only_half_closed_still_gets_its_answer() {
    let address = server("127.0.0.1", |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"question").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "question");
    assert_eq!(bench.next_ended().reason, EndReason::ClientClosed);
}

#[test]
fn a_backend_that_only_half_closed_still_hears_the_client() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        stream.write_all(b"greeting").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        heard.send(rest).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "greeting");
    stream.write_all(b"late words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), "late words");
    assert_eq!(bench.next_ended().reason, EndReason::BackendClosed);
}

#[test]
fn a_reset_by_the_backend_is_a_reset_for_the_client() {
    let address = server("127.0.0.1", |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        reset(stream);
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::BackendReset);
}

#[test]
fn a_reset_by_the_client_is_a_reset_for_the_backend() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        heard.send(None).unwrap();
        heard.send(stream.read(&mut [0; 8]).err().map(|error| error.kind())).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), None);
    reset(stream);
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), Some(std::io::ErrorKind::ConnectionReset));
    assert_eq!(bench.next_ended().reason, EndReason::ClientReset);
}

#[test]
fn a_client_that_resets_after_its_fin_is_noticed() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        heard.send(()).unwrap();
        // The FIN alone must not end the flow: writing works until the reset comes.
        while stream.write_all(b"still here").is_ok() {
            thread::yield_now();
        }
        heard.send(()).unwrap();
    });
    let bench = Bench::new(&[address]);
    let stream = bench.connect();
    stream.shutdown(Shutdown::Write).unwrap();
    hears.recv_timeout(DEADLINE).unwrap();
    reset(stream);
    hears.recv_timeout(DEADLINE).unwrap();
    assert_eq!(bench.next_ended().reason, EndReason::ClientReset);
}

/// All of a client's bytes may come in one segment with its PROXY header and its FIN: there is no second event for them.
#[test]
fn a_fin_that_came_with_the_proxy_header_is_not_missed() {
    let address = server("127.0.0.1", |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    });
    let bench = Bench::with(&[address], |frontend| {
        frontend.proxy_protocol.accept_from = vec!["127.0.0.0/8".parse().unwrap()];
        frontend.proxy_protocol.header_timeout = DEADLINE;
    });
    for _ in 0..50 {
        let mut stream = bench.connect();
        stream.write_all(b"PROXY TCP4 192.0.2.7 10.0.0.100 4711 6443\r\nquestion").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "question");
        let ended = bench.next_ended();
        assert_eq!(ended.origin.client.to_string(), "192.0.2.7:4711");
        assert_eq!(ended.origin.vip.to_string(), "10.0.0.100:6443");
    }
}

#[test]
fn an_idle_flow_is_reset_and_a_busy_one_is_not() {
    let bench = Bench::with(&[server("127.0.0.1", echo)], |frontend| {
        frontend.idle_timeout = Some(Duration::from_secs(3));
    });
    let (mut busy, mut idle) = (bench.connect(), bench.connect());
    idle.set_nonblocking(true).unwrap();
    let ended = loop {
        busy.write_all(b"ping").unwrap();
        busy.read_exact(&mut [0; 4]).unwrap();
        match idle.read(&mut [0; 4]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(10)),
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::IdleTimeout);
    busy.write_all(b"ping").unwrap();
    busy.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn a_refused_connect_goes_to_another_backend() {
    let dead = free_address(false);
    let bench = Bench::new(&[dead, dead, server("127.0.0.1", echo)]);
    for _ in 0..10 {
        let mut stream = bench.connect();
        stream.write_all(b"early").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"early");
    }
}

#[test]
fn a_client_is_reset_at_once_when_no_backend_answers() {
    let bench = Bench::new(&[free_address(false)]);
    assert_eq!(bench.refusal(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::ConnectFailed);
    bench.table.registry.backends()[0].set_preference(Preference::Never);
    assert_eq!(bench.refusal(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::NoBackend);
}

#[test]
fn a_stalled_reader_stops_the_sender() {
    let address = server("127.0.0.1", |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        let piece = pattern(1 << 20);
        for _ in 0..256 {
            stream.write_all(&piece).unwrap();
        }
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    // Until the counter stands still for a while, the kernel's buffers are filling.
    let moved = || bench.table.flows.iter().map(|flow| flow.bytes_to_client).sum::<u64>();
    let mut seen = u64::MAX;
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        let now = moved();
        if now == seen && now > 0 {
            break;
        }
        seen = now;
    }
    assert_eq!(moved(), seen);
    assert!(seen < 64 << 20, "{seen} bytes were taken for a reader that reads nothing");
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received += count;
    }
    assert_eq!(received, 256 << 20);
}
