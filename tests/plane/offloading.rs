//! The data plane alone, on loopback, with the test in place of the offload engine: the flows that workers offer to it
//! and when, and their fate when they come back, are offloaded, or end.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use baton::model::end_reason::EndReason;
use baton::model::ids::FlowId;
use baton::ports::offload::{Answer, Candidate, Found, Progress, Record, Request, Sockets, Stays, Ticket};
use baton::ports::orders::{EndOrder, Pace, Selector};
use baton::sys::clock::now_ns;
use baton::table::flows::{FlowState, FlowView};

use crate::bench::*;

const NEVER: Duration = Duration::from_secs(3600);

/// A bench whose flows may be offloaded after `round_trips`, or at the age `after`.
fn bench(round_trips: u32, after: Duration) -> Bench {
    let bench = Bench::new(&[server("127.0.0.1", echo)]);
    let mut config = bench.config.clone();
    (config.offload.after_round_trips, config.offload.after) = (round_trips, after);
    bench.reconfigure(&config);
    bench.ports.offload.set_open(true);
    bench
}

/// A worker's next request to the offload engine.
fn request(bench: &Bench) -> Request {
    let started = std::time::SystemTime::now();
    loop {
        if let Some(request) = bench.ports.offload.next_request() {
            return request;
        }
        assert!(started.elapsed().unwrap() < DEADLINE, "no request in time");
        std::thread::yield_now();
    }
}

/// The next flow that goes to the offload engine. That it may leave soon is said before.
fn candidate(bench: &Bench) -> Candidate {
    loop {
        match request(bench) {
            Request::Offload(candidate) => return *candidate,
            Request::Witness { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn answer(bench: &Bench, ticket: Ticket, answer: Answer) {
    bench.ports.offload.answer(ticket.worker, answer);
    bench.ports.orders.wake(ticket.worker);
}

fn offload(bench: &Bench, candidate: Candidate) -> (Ticket, Sockets) {
    let Candidate { ticket, sockets, .. } = candidate;
    answer(bench, ticket, Answer::Offloaded { ticket, stays_here: false });
    wait_until("the flow is shown as offloaded", || flow(bench).state == FlowState::Offloaded);
    (ticket, sockets)
}

fn flow(bench: &Bench) -> FlowView {
    bench.table.flows.iter().next().unwrap()
}

fn progress(ticket: Ticket, bytes: u64) -> Progress {
    Progress {
        ticket,
        bytes_to_backend: bytes,
        bytes_to_client: bytes + 1,
        last_to_backend_ns: now_ns(),
        last_to_client_ns: now_ns(),
    }
}

fn kill(bench: &Bench, only_idle_for: Option<Duration>) {
    let reason = if only_idle_for.is_some() { EndReason::Rebalanced } else { EndReason::Killed };
    let order = EndOrder { selector: Selector::All, reason, pace: Pace::AT_ONCE, only_idle_for };
    bench.ports.orders.end(order);
}

/// Orders the only flow to end if it is idle, one time and when it is: an order that waits behind an answer would be
/// obeyed after it.
fn kill_once_idle(bench: &Bench) {
    wait_until("the flow is idle", || now_ns() > flow(bench).last_byte_ns() + 50_000_000);
    kill(bench, Some(Duration::from_millis(1)));
    wait_until("the flow is about to end", || flow(bench).ending);
}

fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
}

fn stream(socket: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn a_flow_leaves_with_its_third_request_in_hand_and_comes_back_with_it() {
    let bench = bench(2, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    assert!(bench.ports.offload.next_request().is_none(), "no round trip is not enough");
    ping(&mut client);
    let Request::Witness { id, ends } = request(&bench) else { panic!() };
    assert_eq!((id, ends.client.socket_addr()), (flow(&bench).id, client.local_addr().unwrap()));
    assert!(bench.ports.offload.next_request().is_none(), "one round trip is not enough");
    client.write_all(b"third").unwrap();
    let Candidate { ticket, sockets, record, bytes_to_backend, bytes_to_client, .. } = candidate(&bench);
    assert_eq!((&sockets.held_up[..], &sockets.held_down[..]), (&b"third"[..], &b""[..]));
    assert_eq!((bytes_to_backend, bytes_to_client, ticket.id), (8, 8, flow(&bench).id));
    assert_eq!(record.backend_key, bench.table.registry.backends()[0].hash_key);
    assert_eq!(record.client.socket_addr(), client.local_addr().unwrap());
    answer(&bench, ticket, Answer::Stays { ticket, sockets, why: Stays::Timestamps });
    client.read_exact(&mut [0; 5]).unwrap();
    assert_eq!((flow(&bench).state, flow(&bench).stays), (FlowState::Proxied, Some(Stays::Timestamps)));
    for _ in 0..20 {
        ping(&mut client);
    }
    assert!(bench.ports.offload.next_request().is_none(), "it stays for good");
    assert_eq!(flow(&bench).bytes_to_backend, 8 + 5 + 80);
    drop(client);
    assert_eq!(bench.next_ended().reason, EndReason::ClientClosed);
}

#[test]
fn a_silent_flow_leaves_at_its_age_and_a_busy_one_is_tried_again() {
    let bench = bench(1000, Duration::from_millis(5));
    let mut client = bench.connect();
    for _ in 0..3 {
        let Candidate { ticket, sockets, .. } = candidate(&bench);
        assert!(sockets.held_up.is_empty());
        answer(&bench, ticket, Answer::Stays { ticket, sockets, why: Stays::Busy });
    }
    ping(&mut client);
    assert_eq!(flow(&bench).stays, Some(Stays::Busy));
}

#[test]
fn a_flow_that_ends_before_it_leaves_is_not_looked_at_any_more() {
    let bench = bench(2, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    ping(&mut client);
    let Request::Witness { id, .. } = request(&bench) else { panic!() };
    drop(client);
    let Request::Forget { id: forgotten, .. } = request(&bench) else { panic!() };
    assert_eq!(id, forgotten);
    // And one that said nothing of the kind costs the offload engine nothing.
    let mut client = bench.connect();
    ping(&mut client);
    drop(client);
    assert_eq!([bench.next_ended().reason, bench.next_ended().reason], [EndReason::ClientClosed; 2]);
    assert!(bench.ports.offload.next_request().is_none());
}

#[test]
fn no_flow_is_offloaded_while_the_engine_is_shut() {
    let bench = bench(1, Duration::ZERO);
    bench.ports.offload.set_open(false);
    let mut client = bench.connect();
    for _ in 0..5 {
        ping(&mut client);
    }
    assert!(bench.ports.offload.next_request().is_none());
}

#[test]
fn a_flow_with_bytes_under_way_to_its_client_stays_until_they_are_acknowledged() {
    let source = server("127.0.0.1", |mut stream| {
        let _ = stream.write_all(&[7; 8 << 20]);
        let _ = stream.read(&mut [0; 1]);
    });
    let bench = Bench::new(&[source]);
    let mut config = bench.config.clone();
    config.offload.after = NEVER;
    bench.reconfigure(&config);
    bench.ports.offload.set_open(true);
    let mut client = bench.connect();
    // The client's window is full, and the rest is with its kernel's peer.
    wait_until("the download stalls", || {
        let bytes = || bench.table.flows.iter().next().map_or(0, |flow| flow.bytes_to_client);
        let before = bytes();
        std::thread::sleep(Duration::from_millis(50));
        before > 0 && before == bytes()
    });
    // Only now: before its first byte it has nothing under way, and may leave.
    config.offload.after = Duration::from_millis(5);
    bench.reconfigure(&config);
    std::thread::sleep(Duration::from_millis(100));
    assert!(bench.ports.offload.next_request().is_none());
    client.read_exact(&mut vec![0; 8 << 20]).unwrap();
    assert_eq!(candidate(&bench).bytes_to_client, 8 << 20);
}

#[test]
fn an_offloaded_flow_counts_shows_and_ends_as_any_other() {
    let bench = bench(1, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    client.write_all(b"next").unwrap();
    let (ticket, sockets) = offload(&bench, candidate(&bench));
    assert_eq!((bench.table.flows.len(), bench.table.flows_with_sockets()), (1, 0));
    answer(&bench, ticket, Answer::Progress(vec![progress(ticket, 1000)]));
    wait_until("its bytes are counted", || {
        flow(&bench).bytes_to_backend == 1000 && flow(&bench).bytes_to_client == 1001
    });
    let lanes = &bench.table.registry.backends()[0].lanes;
    assert_eq!(lanes.iter().map(|lane| lane.bytes_to_backend.value()).sum::<u64>(), 1000);

    kill(&bench, None);
    let Request::End { ticket: meant, unless_moved_since_ns: None } = request(&bench) else { panic!() };
    assert_eq!(meant, ticket);
    assert_eq!((flow(&bench).state, flow(&bench).ending), (FlowState::Offloaded, true));
    kill(&bench, None);
    answer(&bench, ticket, Answer::Ended { last: progress(ticket, 1500), reason: None });
    let ended = bench.next_ended();
    assert_eq!((ended.reason, ended.bytes_to_backend, ended.bytes_to_client), (EndReason::Killed, 1500, 1501));
    assert_eq!(ended.backend_addr, bench.table.registry.backends()[0].address().map(BackendAddr::socket_addr));
    assert!(bench.ports.offload.next_request().is_none(), "it was asked twice");
    assert!(bench.table.flows.is_empty() && bench.table.offload.without_sockets() == 0);
    drop(sockets);
}

#[test]
fn the_engine_says_which_end_closed_a_flow() {
    let bench = bench(1, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    client.write_all(b"next").unwrap();
    let (ticket, _sockets) = offload(&bench, candidate(&bench));
    answer(&bench, ticket, Answer::Ended { last: progress(ticket, 9), reason: Some(EndReason::BackendReset) });
    assert_eq!(bench.next_ended().reason, EndReason::BackendReset);
}

#[test]
fn an_idle_order_is_called_off_when_the_flow_moves_and_a_kill_after_it_is_not() {
    let bench = bench(1, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    client.write_all(b"next").unwrap();
    let (ticket, _sockets) = offload(&bench, candidate(&bench));
    let asked_ns = now_ns();
    kill_once_idle(&bench);
    let Request::End { unless_moved_since_ns: Some(since_ns), .. } = request(&bench) else { panic!() };
    assert!(since_ns + 1_000_000 > asked_ns);
    answer(&bench, ticket, Answer::Moves(progress(ticket, 50)));
    wait_until("the order is called off", || !flow(&bench).ending);
    assert_eq!(flow(&bench).bytes_to_backend, 50);

    kill_once_idle(&bench);
    kill(&bench, None);
    let asked: Vec<_> = [request(&bench), request(&bench)].into();
    assert!(
        matches!(
            asked[..],
            [Request::End { unless_moved_since_ns: Some(_), .. }, Request::End { unless_moved_since_ns: None, .. }]
        ),
        "{asked:?}"
    );
    answer(&bench, ticket, Answer::Moves(progress(ticket, 60)));
    answer(&bench, ticket, Answer::Ended { last: progress(ticket, 70), reason: None });
    assert_eq!(bench.next_ended().reason, EndReason::Killed);
}

#[test]
fn a_flow_that_is_killed_while_it_is_offloaded_ends_when_it_comes_back() {
    let bench = bench(1, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    client.write_all(b"next").unwrap();
    let Candidate { ticket, sockets, .. } = candidate(&bench);
    kill(&bench, None);
    assert!(matches!(request(&bench), Request::End { .. }));
    answer(&bench, ticket, Answer::Stays { ticket, sockets, why: Stays::Busy });
    assert_eq!(client.read(&mut [0; 4]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::Killed);
}

#[test]
fn offloaded_flows_go_on_when_the_workers_end() {
    let bench = bench(1, NEVER);
    let mut client = bench.connect();
    ping(&mut client);
    client.write_all(b"next").unwrap();
    let (_, sockets) = offload(&bench, candidate(&bench));
    bench.proxy.exit();
    assert!((0..bench.ports.ended.workers()).all(|worker| bench.ports.ended.next(worker).is_none()));
    stream(sockets.client).write_all(b"still").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn a_flow_of_an_earlier_process_gets_its_place_again_and_one_of_an_unknown_frontend_does_not() {
    let bench = bench(1, NEVER);
    let entry = bench.table.registry.backends()[0].clone();
    let found = |id, backend_key, vip| Found {
        stays_here: false,
        id: FlowId(id),
        record: Record {
            accepted_at_ns: 77,
            connect_us: 88,
            backend_key,
            client: ClientAddr::new("10.1.2.3:4".parse().unwrap()),
        },
        connection: ClientAddr::new("10.1.2.3:4".parse().unwrap()),
        vip: VipAddr::new(vip),
        backend: entry.address().expect("it has one"),
        local: LocalAddr::new("10.0.0.100:40000".parse().unwrap()),
        bytes_to_backend: 1,
        bytes_to_client: 2,
        last_to_backend_ns: 80,
        last_to_client_ns: 90,
    };
    let give = |found: Found| {
        bench.ports.offload.answer(1, Answer::Found(Box::new(found)));
        bench.ports.orders.wake(1);
    };
    give(found(4000, entry.hash_key, bench.vip));
    let Request::Assign { ticket, .. } = request(&bench) else { panic!() };
    assert_eq!((ticket.id, ticket.worker), (FlowId(4000), 1));
    let flow = flow(&bench);
    assert_eq!((flow.id, flow.state, flow.backend), (FlowId(4000), FlowState::Offloaded, Some(entry.id)));
    assert_eq!((flow.bytes_to_backend, flow.bytes_to_client, flow.connect_us, flow.last_byte_ns()), (1, 2, 88, 90));
    assert_eq!(flow.origin.client.to_string(), "10.1.2.3:4");
    let active = std::sync::atomic::Ordering::Relaxed;
    assert_eq!((entry.active.load(active), entry.frontend.active.load(active)), (1, 1));
    answer(&bench, ticket, Answer::Ended { last: progress(ticket, 9), reason: Some(EndReason::ClientClosed) });
    assert_eq!(bench.next_ended().id, FlowId(4000));
    let held = || (entry.active.load(active), entry.frontend.active.load(active));
    wait_until("its part of the limits is given back", || held() == (0, 0));

    give(found(4001, 12345, "10.9.9.9:6443".parse().unwrap()));
    assert!(matches!(request(&bench), Request::Refuse { id: FlowId(4001), .. }));
}
