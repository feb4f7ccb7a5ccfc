//! Flows from one data plane to another, both on loopback and in this process: what goes along with them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use baton::model::end_reason::EndReason;
use baton::proxy::{Arriving, MovingFlow};
use baton::table::flow_transfer::{Relayed, Stage};

use crate::bench::*;

/// Two data planes before the same backends, as the old and the new process have them.
fn two(backends: &[SocketAddr], adjust: impl Fn(&mut baton::config::Frontend)) -> (Bench, Bench) {
    (Bench::with(backends, &adjust), Bench::with(backends, &adjust))
}

/// Takes all flows out of `bench`.
fn take(bench: &Bench) -> Vec<MovingFlow> {
    let whole = |worker| {
        let departure = bench.proxy.take(worker, usize::MAX, usize::MAX).unwrap();
        assert!(departure.whole_round);
        departure.moving
    };
    (0..bench.proxy.workers()).flat_map(whole).collect()
}

/// What another process would get of `moving`.
fn copies(moving: &[MovingFlow]) -> Vec<Arriving> {
    let copy = |moving_flow: &MovingFlow| Arriving {
        transfer: moving_flow.transfer.clone(),
        sockets: moving_flow.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect(),
    };
    moving.iter().map(copy).collect()
}

/// All flows of `old` go to `new`.
fn carry(old: &Bench, new: &Bench) {
    let moving = take(old);
    let refused = new.proxy.import(copies(&moving));
    assert!(refused.is_empty(), "{refused:?}");
    old.proxy.forget_moved(moving);
    wait_until("the old one to have forgotten its flows", || old.table.flows.is_empty());
}

fn relayed(moving_flow: &MovingFlow) -> &Relayed {
    match &moving_flow.transfer.stage {
        Stage::Relaying(relayed) => relayed,
        other => panic!("it is not relaying: {other:?}"),
    }
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
}

/// A backend that was found silent a moment before an upgrade was not suspected for as long again.
#[test]
fn a_flow_that_waits_for_an_answer_is_still_known_to_wait() {
    let (heard, hears) = mpsc::channel();
    let silent = server("127.0.0.1", move |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        heard.send(()).unwrap();
        // Says nothing until the client has gone.
        let _ = stream.read(&mut [0; 1]);
    });
    let (old, new) = two(&[silent], |_| {});
    let mut stream = old.connect();
    stream.write_all(b"word").unwrap();
    hears.recv_timeout(DEADLINE).unwrap();
    let moving = take(&old);
    let since_ns = relayed(&moving[0]).unanswered_since_ns;
    assert!(since_ns > 0);
    // Nothing became of it: the old one goes on.
    old.proxy.put_back(moving);
    let moving = take(&old);
    assert_eq!(relayed(&moving[0]).unanswered_since_ns, since_ns);
    new.proxy.import(copies(&moving));
    old.proxy.forget_moved(moving);
    assert_eq!(relayed(&take(&new)[0]).unanswered_since_ns, since_ns);
}

#[test]
fn caps_hold_for_both_processes_together() {
    let address = server("127.0.0.1", echo);
    let (old, new) = two(&[address], |frontend| frontend.limits.max_connections = Some(4));
    let mut held: Vec<_> = (0..3).map(|_| old.connect()).collect();
    held.iter_mut().for_each(ping);
    new.proxy.restore(&new.config, &old.proxy.save().unwrap());
    let reset = |bench: &Bench| bench.refusal() == ErrorKind::ConnectionReset;
    let mut fourth = new.connect();
    ping(&mut fourth);
    assert!(reset(&new), "three are with the old one still");
    assert_eq!(new.next_ended().reason, EndReason::LimitFrontend);
    carry(&old, &new);
    assert!(reset(&new), "all four are here");
    // The old one counts those that it gave.
    let mut fourth_there = old.connect();
    ping(&mut fourth_there);
    assert!(reset(&old));
    new.proxy.forget_other_process();
    old.proxy.forget_other_process();
    held.iter_mut().for_each(ping);
    held.pop();
    wait_until("one less", || new.table.flows.len() == 3);
    ping(&mut new.connect());
}

#[test]
fn a_backend_at_its_cap_stays_there() {
    let address = server("127.0.0.1", echo);
    let (old, new) = two(&[address], |_| {});
    for bench in [&old, &new] {
        bench.table.registry.backends()[0].configure(1, Some(2));
    }
    let mut held: Vec<_> = (0..2).map(|_| old.connect()).collect();
    held.iter_mut().for_each(ping);
    let entry = new.table.registry.backends()[0].clone();
    entry.other_process.expect(2);
    assert!(!entry.reserve());
    carry(&old, &new);
    assert_eq!((entry.load(), entry.other_process.count()), (2, 0));
    held.iter_mut().for_each(ping);
}

/// Also over IPv6, and back again.
#[test]
fn flows_of_every_kind_go_over_and_back() {
    for ip in ["127.0.0.1", "::1"] {
        let (old, new) = two(&[server(ip, echo)], |_| {});
        let mut streams: Vec<_> = (0..20).map(|_| old.connect()).collect();
        streams.iter_mut().for_each(ping);
        let mut half_closed = old.connect();
        ping(&mut half_closed);
        carry(&old, &new);
        streams.iter_mut().for_each(ping);
        carry(&new, &old);
        streams.iter_mut().for_each(ping);
        half_closed.shutdown(Shutdown::Write).unwrap();
        assert_eq!(half_closed.read(&mut [0; 1]).unwrap(), 0);
        wait_until("the half-closed one to end", || old.table.flows.len() == streams.len());
    }
}

/// The header is read only when it is whole; its first bytes stay in the socket until then.
#[test]
fn a_client_in_the_middle_of_its_proxy_header_goes_over() {
    for ip in ["127.0.0.1", "::1"] {
        let any = if ip == "::1" { "::/0" } else { "0.0.0.0/0" };
        let (old, new) = two(&[server(ip, echo)], |frontend| {
            frontend.proxy_protocol.accept_from = vec![any.parse().unwrap()];
            frontend.proxy_protocol.header_timeout = Duration::from_secs(30);
        });
        let mut stream = old.connect();
        stream.write_all(b"PROXY TCP4 192.0.2.7 198.51.").unwrap();
        wait_until("the flow", || old.table.flows.len() == 1);
        carry(&old, &new);
        stream.write_all(b"100.1 4711 6443\r\n").unwrap();
        ping(&mut stream);
        let flow = new.table.flows.iter().next().unwrap();
        assert_eq!(flow.origin.client.to_string(), "192.0.2.7:4711");
        assert_eq!(flow.origin.vip.to_string(), "198.51.100.1:6443");
        // The header's addresses are sent along next time.
        carry(&new, &old);
        ping(&mut stream);
        assert_eq!(old.table.flows.iter().next().unwrap().origin.client.to_string(), "192.0.2.7:4711");
    }
}

/// A backend gets the header that Baton sends it once, whichever process does.
#[test]
fn a_proxy_header_for_the_backend_is_sent_once() {
    let (seen, sees) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        seen.send(all).unwrap();
    });
    let (old, new) = two(&[address], |frontend| frontend.proxy_protocol.send_v2 = true);
    let mut stream = old.connect();
    wait_until("the backend", || old.table.flows.iter().any(|flow| flow.backend.is_some()));
    carry(&old, &new);
    stream.write_all(b"word").unwrap();
    let client = stream.local_addr().unwrap();
    drop(stream);
    let got = sees.recv_timeout(DEADLINE).unwrap();
    let header = baton::model::proxy_protocol::encode_v2(
        baton::addr::ClientAddr::new(client),
        baton::addr::VipAddr::new(old.vip),
    );
    assert_eq!(got, [&header[..], b"word"].concat());
}
