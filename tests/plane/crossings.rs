//! The data plane alone, on loopback, when things cross: orders and other orders, a stop and a reload, a close and what
//! comes after it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use baton::addr::VipAddr;
use baton::model::end_reason::EndReason;
use baton::ports::orders::{EndOrder, Pace, Selector};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bench::*;

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
}

/// A network namespace that this thread, and those that it starts, are in. Dropped, its name goes.
struct OwnNetwork(String);

impl OwnNetwork {
    fn enter() -> Option<Self> {
        let name = format!("baton-crossings-{}", std::process::id());
        let ip =
            |arguments: &[&str]| Command::new("ip").args(arguments).output().is_ok_and(|done| done.status.success());
        if !ip(&["netns", "add", &name]) {
            return None;
        }
        let own = Self(name);
        let file = File::open(format!("/run/netns/{}", own.0)).ok()?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        ip(&["link", "set", "lo", "up"]).then_some(own)
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

#[test]
fn a_client_that_is_still_there_when_the_workers_end_is_reset() {
    let bench = Bench::new(&[server("127.0.0.1", echo)]);
    let mut stream = bench.connect();
    ping(&mut stream);
    bench.proxy.exit();
    assert_eq!(stream.read(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::Shutdown);
    assert!(bench.table.flows.is_empty());
}

#[test]
fn a_flow_that_waits_for_its_reset_is_not_spared_by_rebalancing() {
    let bench = Bench::new(&[server("127.0.0.1", echo)]);
    let mut stream = bench.connect();
    ping(&mut stream);
    let flow = bench.table.flows.iter().next().unwrap();
    let selector = Selector::Backend(flow.backend.unwrap());
    let pace = Pace { within: Duration::from_secs(2), per_second: 50_000 };
    bench.ports.orders.end(EndOrder { selector, reason: EndReason::BackendEjected, pace, only_idle_for: None });
    bench.ports.orders.end_flow(flow.ticket(), EndReason::Rebalanced, Some(DEADLINE));
    assert_eq!(stream.read(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::BackendEjected);
}

/// The ports of short flows went round, but those of flows above a second were tried in vain, one after the other.
#[test]
fn source_ports_of_flows_that_lived_for_seconds_are_used_again() {
    // Where other tests' clients leave their ports in TIME_WAIT, few can be had again.
    let Some(_network) = OwnNetwork::enter() else {
        return eprintln!("skipped: no network namespace can be made here");
    };
    let (seen, sees) = mpsc::channel();
    let address = server("127.0.0.1", move |stream| {
        seen.send(stream.peer_addr().unwrap().port()).unwrap();
        echo(stream);
    });
    // More than must wait before the oldest is used again.
    const FLOWS: usize = 600;
    baton::sys::process::raise_file_limit();
    let bench = Bench::of_workers(1, &[address], |_| {});
    // One after the other: the server's backlog is short.
    let begun = (0..FLOWS).map(|_| (bench.connect(), sees.recv_timeout(DEADLINE).unwrap()));
    let (clients, used): (Vec<_>, HashSet<_>) = begun.unzip();
    // Backend legs get their options when they are a second old.
    thread::sleep(Duration::from_millis(1300));
    for mut client in clients {
        ping(&mut client);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0; 4]).unwrap(), 0);
    }
    (0..FLOWS).for_each(|_| assert_eq!(bench.next_ended().reason, EndReason::ClientClosed));
    // A part of them belongs to the clients by now, which are on this host too; and the kernel lets a connection's port
    // be reused after a second (tcp_tw_reuse_delay, ip-sysctl.rst).
    wait_until("ports that waited are used", || {
        let later: Vec<_> = (0..10).map(|_| (bench.connect(), sees.recv_timeout(DEADLINE).unwrap())).collect();
        later.iter().filter(|(_, port)| used.contains(port)).count() >= 6
    });
}

#[test]
fn a_reload_while_draining_does_not_listen_again() {
    let bench = Bench::new(&[server("127.0.0.1", echo)]);
    let mut stream = bench.connect();
    ping(&mut stream);
    bench.proxy.stop_accepting();
    // Each worker listens for itself, and the port of a connect decides which of them is asked.
    wait_until("nobody listens", || (0..20).all(|_| TcpStream::connect(bench.vip).is_err()));
    bench.reconfigure(&bench.config);
    assert_eq!(TcpStream::connect(bench.vip).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    ping(&mut stream);
}

#[test]
fn a_reload_from_every_address_to_one_is_not_taken_for_another_process() {
    for ip in ["0.0.0.0", "127.0.0.1"] {
        let bench = Bench::with(&[server("127.0.0.1", echo)], |frontend| {
            frontend.listen = vec![VipAddr::new(format!("{ip}:{}", frontend.listen[0].port()).parse().unwrap())];
        });
        ping(&mut bench.connect());
        let mut config = bench.config.clone();
        let other = if ip == "0.0.0.0" { "127.0.0.1" } else { "0.0.0.0" };
        let mut frontend = (*config.frontends[0]).clone();
        frontend.listen = vec![VipAddr::new(format!("{other}:{}", bench.vip.port()).parse().unwrap())];
        config.frontends = vec![Arc::new(frontend)];
        bench.reconfigure(&config);
        ping(&mut bench.connect());
    }
}

/// Two workers that take the last place at once: the one that comes late must not say that no backend lives.
#[test]
fn the_cap_of_the_only_backend_is_never_called_no_backend() {
    let bench = Bench::new(&[server("127.0.0.1", echo)]);
    bench.table.registry.backends()[0].configure(1, Some(1));
    let vip = bench.vip;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                for _ in 0..500 {
                    // Served or reset; both are quick, a reset even quicker than connect(2).
                    let mut stream = match TcpStream::connect(vip) {
                        Err(error) if error.kind() == ErrorKind::ConnectionReset => continue,
                        connected => connected.unwrap(),
                    };
                    stream.set_read_timeout(Some(DEADLINE)).unwrap();
                    let _ = stream.write_all(b"ping");
                    let _ = stream.read(&mut [0; 4]);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    for _ in 0..2000 {
        let reason = bench.next_ended().reason;
        assert_ne!(reason, EndReason::NoBackend);
    }
}

/// The error of a reset is told once. Where a write heard it, the next read said EOF, and the client got a FIN: half an
/// answer that looked whole.
#[test]
fn a_reset_that_a_write_meets_first_is_no_fin() {
    let address = server("127.0.0.1", |mut stream| {
        let mut some = vec![0; 65536];
        let count = stream.read(&mut some).unwrap();
        stream.write_all(&some[..count]).unwrap();
        reset(stream);
    });
    let bench = Bench::new(&[address]);
    let sent: Arc<[u8]> = pattern(1 << 20).into();
    for _ in 0..1000 {
        let mut stream = bench.connect();
        let (mut writer, sent) = (stream.try_clone().unwrap(), sent.clone());
        let writing = thread::spawn(move || writer.write_all(&sent).and(writer.shutdown(Shutdown::Write)));
        let read = stream.read_to_end(&mut Vec::new());
        let written = writing.join().unwrap();
        let reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        // The first of the two to ask is told.
        assert!(read.as_ref().is_err_and(reset) || written.as_ref().is_err_and(reset), "{read:?} {written:?}");
        assert_eq!(bench.next_ended().reason, EndReason::BackendReset);
    }
}
