//! Whole connections through the program: client, load balancer and backend on hosts of their own.

use ::baton::model::splice::FlowDirection;
use ::baton::offload::events::{ProgramWhat, Told};
use ::baton::offload::probe::EntryChange;

use super::by_hand::Proxied;
use crate::lab::*;

#[test]
fn an_offloaded_flow_carries_every_byte_both_ways_without_a_socket() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    let mut events = program.events().unwrap().filter_map(Told::flow);
    for address in [lab.b1.v4(6443), lab.b2.v6(6443)] {
        let host = if address.is_ipv6() { &lab.b2 } else { &lab.b1 };
        let server = host.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::new(&lab, address);
        client.send(1, 5000).unwrap();
        proxied.relay(5000);
        client.read_tally(5000).unwrap();
        // The bytes in flight: sent and acknowledged to the client, and not yet with the backend.
        client.send(2, 10_000).unwrap();
        eventually(LONG, "the in_flight is here", || {
            ::baton::sys::silence::unread(&proxied.client_leg).unwrap() == 10_000
        });
        let flow = proxied.offload(&lab, &program);
        baseline::no_sockets_left(&lab.lb);
        client.read_tally(10_000).unwrap();
        for (seed, bytes) in [(3, 1), (4, 1448), (5, 1449), (6, 100_000), (7, 8_000_000), (8, 2)] {
            client.echo(seed, bytes);
        }
        let (up, down) =
            (flow.entry(&program, FlowDirection::ToBackend), flow.entry(&program, FlowDirection::ToClient));
        let total = 1 + 1448 + 1449 + 100_000 + 8_000_000 + 2;
        assert_eq!(up.bytes(), total, "{up:?}");
        assert_eq!(down.bytes(), 10_000 + total, "{down:?}");
        assert!(up.seen.packets > 100 && up.seen.last_ns > 0 && up.seen.last_data_ns > 0);
        assert!(up.committed && down.committed);
        let evidence = program.evidence(1).unwrap();
        assert!(evidence.answered_ns >= evidence.asked_ns && evidence.answered_ns > 0, "{evidence:?}");

        client.half_close();
        assert_eq!(client.end(LONG), End::Fin);
        let served = server.ended_one(0, LONG);
        assert_eq!((served.end, served.received.bytes), (End::Fin, 15_000 + total));
        let (up, down) =
            (flow.entry(&program, FlowDirection::ToBackend), flow.entry(&program, FlowDirection::ToClient));
        assert!(up.seen.fin_ns > 0 && up.seen.fin_ns <= down.seen.fin_ns, "{up:?} {down:?}");
        assert_eq!((up.bytes(), down.bytes()), (total, 10_000 + total), "FIN is no byte");
        // The last one comes with the client's last acknowledgement, which may be on its way.
        let mut told = Vec::new();
        eventually(LONG, "the ends of both are told", || {
            told.extend(events.by_ref().map(|event| (event.id, event.direction, event.what)));
            told.len() >= 4
        });
        assert_eq!(
            told,
            [
                (up.id, FlowDirection::ToBackend, ProgramWhat::Fin),
                (up.id, FlowDirection::ToClient, ProgramWhat::Finished),
                (up.id, FlowDirection::ToClient, ProgramWhat::Fin),
                (up.id, FlowDirection::ToBackend, ProgramWhat::Finished)
            ]
        );
        let removed = program.remove(&flow.ends).unwrap();
        assert_eq!((removed.up.unwrap().bytes(), removed.down.unwrap().bytes()), (total, 10_000 + total));
    }
    let counters = program.counters().unwrap();
    assert!(counters.spliced > 1000, "{counters:?}");
    let dropped = [counters.drop_error, counters.drop_short, counters.drop_ttl, counters.oversized, counters.reset];
    assert_eq!(dropped, [0; 5], "{counters:?}");
}

/// How the connection ends that is written to: while it is, or after.
fn end_of_sending(client: &mut Conn, seed: u64) -> End {
    match client.send(seed, 60_000) {
        Ok(()) => client.end(LONG),
        Err(error) => End::of_error(&error),
    }
}

#[test]
fn loss_with_sack_and_timestamps_harms_no_byte() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    for (address, host) in [(lab.b1.v4(6443), &lab.b1), (lab.b2.v6(6443), &lab.b2)] {
        let _server = host.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::new(&lab, address);
        client.send(1, 100).unwrap();
        proxied.relay(100);
        client.read_tally(100).unwrap();
        let flow = proxied.offload(&lab, &program);
        for hurt in [host, &lab.client] {
            hurt.drop_packets("input", "tcp flags & (syn | rst) == 0 numgen random mod 100 < 3");
        }
        client.echo(9, 3_000_000);
        for hurt in [host, &lab.client] {
            hurt.nft_clear();
        }
        let up = flow.entry(&program, FlowDirection::ToBackend);
        assert_eq!(up.bytes(), 3_000_000, "retransmissions count once");
    }
}

#[test]
fn a_reset_of_either_end_reaches_the_other_and_is_told() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    let mut events = program.events().unwrap().filter_map(Told::flow);
    for address in [lab.b1.v4(6443), lab.b1.v6(6443)] {
        let server = lab.b1.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::after_an_exchange(&lab, address);
        proxied.offload(&lab, &program);
        client.echo(2, 1000);
        client.reset();
        assert_eq!(server.ended_one(0, LONG).end, End::Rst);
        assert_eq!(
            events.next().map(|event| (event.direction, event.what)),
            Some((FlowDirection::ToBackend, ProgramWhat::Rst))
        );
        drop(server);

        let _server = lab.b1.serve_on(address, Behaviour::ReadThenReset { bytes: 1010 });
        let (proxied, mut client) = Proxied::new(&lab, address);
        client.send(1, 10).unwrap();
        let flow = proxied.offload(&lab, &program);
        client.send(2, 1000).unwrap();
        assert_eq!(client.end(LONG), End::Rst);
        let down = flow.entry(&program, FlowDirection::ToClient);
        assert!(down.seen.rst_ns > 0 && down.seen.fin_ns == 0);
        eventually(LONG, "the RST is told", || {
            events.any(|event| (event.direction, event.what) == (FlowDirection::ToClient, ProgramWhat::Rst))
        });
    }
}

#[test]
fn a_flow_ended_by_order_answers_both_ends_with_a_reset_at_their_next_packet() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    // Nothing of the kernel's gets out: what resets is the program, which no firewall of this host sees.
    for address in [lab.b1.v4(6443), lab.b1.v6(6443)] {
        let _server = lab.b1.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::after_an_exchange(&lab, address);
        let flow = proxied.offload(&lab, &program);
        client.echo(2, 100_000);
        lab.lb.drop_packets("output", "tcp flags & rst == rst");
        let keys = [flow.ends.key(FlowDirection::ToBackend), flow.ends.key(FlowDirection::ToClient)];
        program.change(flow.id, &keys, EntryChange::Reset).unwrap();
        assert_eq!(end_of_sending(&mut client, 3), End::Rst);
        lab.lb.nft_clear();
    }
    assert!(program.counters().unwrap().reset >= 2);
}

#[test]
fn an_interface_that_became_too_narrow_ends_both_sides_instead_of_hanging_them() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    let mut events = program.events().unwrap().filter_map(Told::flow);
    for address in [lab.b1.v4(6443), lab.b1.v6(6443)] {
        let server = lab.b1.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::after_an_exchange(&lab, address);
        let flow = proxied.offload(&lab, &program);
        client.echo(2, 10_000);
        lab.lb.run("ip link set eth0 mtu 1300");
        client.echo(3, 500);
        assert_eq!(end_of_sending(&mut client, 4), End::Rst);
        assert_eq!(server.ended_one(0, LONG).end, End::Rst);
        lab.lb.run("ip link set eth0 mtu 1500");
        assert_eq!(events.next().map(|event| event.what), Some(ProgramWhat::Oversized));
        assert!(flow.entry(&program, FlowDirection::ToBackend).seen.rst_ns > 0);
    }
    assert_eq!(program.counters().unwrap().oversized, 2);
}
