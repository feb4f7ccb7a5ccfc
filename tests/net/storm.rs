//! As many connects as the machine makes, a tenth of them malformed: the others are served, and nothing is left behind.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::lab::*;
use crate::offloaded::Scene;

const STORM: Duration = secs(12);

/// Threads of each of the two hosts that connect again and again.
const THREADS: u64 = 3;

/// What Baton may hold more after the storm than after the first seconds of it: what the allocator keeps, and tables that have grown.
const GROWTH_MAX_KIB: u64 = 32 * 1024;

/// Threads of the runtime for blocking work, of which it keeps as many as it once had at a time.
const BLOCKING_MAX: usize = 8;

/// A client that is silent is held so long, in connects of its thread.
const HELD: usize = 100;

#[derive(Default)]
struct Made {
    served: AtomicU64,
    malformed: AtomicU64,
    stop: AtomicBool,
}

/// A host's way to begin a connection.
#[derive(Clone, Copy)]
enum Begin {
    AtOnce,
    /// Baton trusts its headers.
    Header,
}

impl Begin {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::AtOnce => b"",
            Self::Header => b"PROXY TCP4 192.0.2.7 10.77.0.2 51234 6443\r\n",
        }
    }
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, wait::patient(LONG))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(wait::patient(LONG)))?;
    Ok(stream)
}

/// Sends and reads back, so many times, with pauses, and closes.
fn talk(to: SocketAddr, begin: Begin, rounds: u64, pause: Duration) -> io::Result<()> {
    let mut stream = connect(to)?;
    stream.write_all(begin.bytes())?;
    for round in 0..rounds {
        let sent = [round as u8 ^ 0x5a; 64];
        stream.write_all(&sent)?;
        let mut came = [0; 64];
        stream.read_exact(&mut came)?;
        assert_eq!(came, sent);
        std::thread::sleep(pause);
    }
    Ok(())
}

/// One of the ways in which a client is none. What it may be told is nobody's concern.
fn be_strange(to: SocketAddr, begin: Begin, kind: u64, held: &mut Vec<TcpStream>) {
    let Ok(mut stream) = connect(to) else { return };
    let reset = |stream: &TcpStream| socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    let (garbage, signature) = ([0xa5; 300], b"\r\n\r\n\0\r\nQUIT\n");
    let _ = match (begin, kind % 6) {
        (_, 0) => {
            reset(&stream);
            Ok(())
        }
        (_, 1) => Ok(()),
        // Half open for its client, and for Baton a client that is silent.
        (_, 2) => {
            held.push(stream);
            if held.len() > HELD {
                held.remove(0);
            }
            return;
        }
        (_, 3) => stream.write_all(&garbage),
        (Begin::AtOnce, 4) => stream.write_all(&garbage).map(|()| reset(&stream)),
        (Begin::AtOnce, _) => stream.write_all(b"G").and_then(|()| stream.shutdown(std::net::Shutdown::Write)),
        // The beginning of a header, and one whose length is no header's.
        (Begin::Header, 4) => stream.write_all(b"PROXY TCP4 192.0.2.7 10.77"),
        (Begin::Header, _) => stream.write_all(&[&signature[..], b"\x21\x11\xff\xff", &garbage].concat()),
    };
}

#[test]
fn as_many_connects_as_the_machine_makes_with_a_tenth_malformed_leave_nothing_behind_and_serve_the_others() {
    let Some(scene) = Scene::new("storm") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let proxy = lab.another("proxy", 12);
    for host in [&lab.client, &proxy, &lab.lb] {
        // So many connections within a minute have more ports than there are, if each rests for that minute.
        host.sysctl("net/ipv4/ip_local_port_range", "10000 60999");
        host.sysctl("net/ipv4/tcp_tw_reuse", "1");
    }
    let config = scene.config().frontend("accept_proxy_from", vec![format!("{}/32", proxy.v4)]);
    // A whole second for a probe, and a backend's backlog for all: what is tried here is Baton.
    let config =
        config.frontend("proxy_header_timeout", "500ms").health("timeout", "1s").offload("after_round_trips", 1);
    let baton = lab.start(&config.log("level", "info").log("flows", "errors"));
    let to = lab.lb.v4(6443);
    let threads = baton.process.threads();
    let made = Made::default();
    let watch = Stopwatch::start();
    let warm_kib = std::thread::scope(|scope| {
        for (host, begin) in [(&lab.client, Begin::AtOnce), (&proxy, Begin::Header)] {
            for thread in 0..THREADS {
                let made = &made;
                scope.spawn(move || {
                    host.enter(|| {
                        let mut held = Vec::new();
                        for number in thread.. {
                            if made.stop.load(Relaxed) {
                                return;
                            }
                            if number % 10 == 9 {
                                be_strange(to, begin, number / 10, &mut held);
                                made.malformed.fetch_add(1, Relaxed);
                                continue;
                            }
                            // Some live long enough to be offloaded.
                            let (rounds, pause) = if number % 500 == 0 { (4, ms(100)) } else { (1, ms(0)) };
                            talk(to, begin, rounds, pause).unwrap_or_else(|error| panic!("{number}: {error}"));
                            made.served.fetch_add(1, Relaxed);
                        }
                    });
                });
            }
        }
        let _stops = SetsAtEnd(&made.stop);
        // Handshakes that are never completed, beside all that.
        lab.client2.drop_packets("output", "tcp flags & (ack | rst) != 0");
        let half_open = lab.client2.enter(|| {
            let begin = || {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&to.into());
                socket
            };
            (0..500).map(|_| begin()).collect::<Vec<_>>()
        });
        wait::throughout(STORM / 3, "it runs", || baton.process.exit_status().is_none());
        let warm_kib = baton.process.rss_kib();
        wait::throughout(STORM * 2 / 3, "it runs", || baton.process.exit_status().is_none());
        let enough = || made.served.load(Relaxed) > 1000 && made.malformed.load(Relaxed) > 100;
        eventually(LONG * 4, "there were enough to tell anything", enough);
        drop(half_open);
        warm_kib
    });
    let (served, malformed) = (made.served.load(Relaxed), made.malformed.load(Relaxed));
    let rate = (served + malformed) as f64 / watch.elapsed().as_secs_f64();
    println!("storm: {served} clients were served, {malformed} were malformed: {rate:.0} a second");
    println!("storm: they ended as {:?}", baton.ended());
    baton.rests();
    let offloaded = baton.status()["offload"]["offloaded_total"].as_u64().expect("a count");
    assert!(offloaded > 0, "none lived long enough");
    eventually(LONG, "the map is empty", || baton.metric("baton_offload_flows", &[]) == 0.0);
    println!("storm: {threads} threads became {}", baton.process.threads());
    assert!(baton.process.threads() <= threads + BLOCKING_MAX, "{threads} became {}", baton.process.threads());
    let rested_kib = baton.process.rss_kib();
    println!("storm: {warm_kib} KiB after a third of it, {rested_kib} KiB at rest; {offloaded} were offloaded");
    assert!(rested_kib < warm_kib + GROWTH_MAX_KIB, "{warm_kib} KiB became {rested_kib} KiB");
    assert_eq!(baton.metric("baton_accept_errors_total", &[]), 0.0);
}
