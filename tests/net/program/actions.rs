//! The program's actions besides splicing, one packet at a time.

use ::baton::addr::VipAddr;
use ::baton::model::fleet::{PortRange, Then, Unknown, UnknownPacket};
use ::baton::model::splice::FlowDirection;
use ::baton::offload::entry::{Action, Key};
use ::baton::offload::events::{ProgramWhat, Told};
use ::baton::offload::probe::EntryChange;
use ::baton::offload::program::Owner;
use ::baton::sys::clock::now_ns;
use ::baton::sys::sequence::sequence_numbers;
use fastrand::Rng;

use super::packets::{Bench, DROP, NEXT, REDIRECT, first, flow, packet};
use super::reference::*;

/// The RST that a sender of `packet` must get.
fn reset_for(packet: &Packet) -> Vec<u8> {
    let mut rst = Packet::new(packet.ends.reversed());
    let acknowledges = packet.flags & ACK != 0;
    let length = packet.payload.len() as u32 + u32::from(packet.flags & FIN != 0) + u32::from(packet.flags & SYN != 0);
    rst.seq = if acknowledges { packet.ack } else { 0 };
    rst.ack = if acknowledges { 0 } else { packet.seq.wrapping_add(length) };
    rst.flags = if acknowledges { RST } else { RST | ACK };
    (rst.window, rst.id, rst.between, rst.next) = (0, 0, packet.between.clone(), packet.next);
    let mut frame = rst.frame();
    if packet.ends.from.is_ipv6() {
        frame[ETH..ETH + 4].copy_from_slice(&[0x60, 0, 0, 0]);
    }
    frame[..6].copy_from_slice(&[6, 5, 4, 3, 2, 1]);
    frame
}

/// A frame whose sender has a name.
fn from_somebody(packet: &Packet) -> Vec<u8> {
    let mut frame = packet.frame();
    frame[6..12].copy_from_slice(&[6, 5, 4, 3, 2, 1]);
    frame
}

#[test]
fn a_reset_entry_answers_with_the_rst_that_its_sender_must_take() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(1);
    for round in 0..500 {
        let flow = flow(&mut rng, round % 2 == 1);
        bench.install(&flow);
        let key = flow.ends.key(FlowDirection::ToClient);
        bench.program.change(flow.identity.id, &[key], EntryChange::Reset).unwrap();
        let mut packet = packet(&mut rng, key);
        if round % 7 == 0 {
            packet.flags |= SYN;
        }
        let (verdict, out) = bench.run(&from_somebody(&packet));
        assert_eq!((verdict, &out), (REDIRECT, &reset_for(&packet)), "{packet:?}");
        packet.flags |= RST;
        assert_eq!(bench.run(&packet.frame()).0, DROP, "an RST has no answer");
        bench.program.remove(&flow.ends).unwrap();
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!((counters.reset, counters.drop_rst), (500, 500));
}

#[test]
fn what_nobody_knows_is_held_off_then_reset_but_a_new_connection_passes() {
    let Some(bench) = Bench::load() else { return };
    bench.program.set_port_ranges(&[(PortRange { first: 40000, last: 40999 }, Vec::new())]).unwrap();
    for (vip, client) in [("192.0.2.5:40443", "198.51.100.1:7"), ("[2001:db8::5]:40443", "[2001:db8::9]:7")] {
        let vip = VipAddr::new(vip.parse().unwrap());
        let unknown_packet = Packet::new(Key { from: client.parse().unwrap(), to: vip.socket_addr() });
        let run = || bench.run(&from_somebody(&unknown_packet));
        assert_eq!(run().0, NEXT);
        let any_port = VipAddr::new((vip.ip(), 0).into());
        for place in [vip, any_port] {
            let guard = Unknown { guard_until_ns: now_ns() + 3_600_000_000_000, then: Then::Reset };
            bench.program.set_unknown(place, Some(guard)).unwrap();
            assert_eq!(run().0, DROP);
            bench.program.set_unknown(place, Some(Unknown { guard_until_ns: now_ns(), ..guard })).unwrap();
            // The program's clock is exact to a tick.
            crate::lab::eventually(crate::lab::LONG, "the guard ends", || {
                run() == (REDIRECT, reset_for(&unknown_packet))
            });
            for flags in [RST, RST | ACK, SYN] {
                let mut passing = unknown_packet.clone();
                passing.flags = flags;
                assert_eq!(bench.run(&passing.frame()).0, NEXT);
            }
            bench.program.set_unknown(place, None).unwrap();
            assert_eq!(run().0, NEXT);
        }
    }
    // A connection that the kernel has passes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let vip = VipAddr::new(listener.local_addr().unwrap());
    let client = std::net::TcpStream::connect(vip.socket_addr()).unwrap();
    bench.program.set_unknown(vip, Some(Unknown { guard_until_ns: 0, then: Then::Reset })).unwrap();
    let mut key = Key { from: client.local_addr().unwrap(), to: vip.socket_addr() };
    assert_eq!(bench.run(&Packet::new(key).frame()).0, NEXT);
    key.from.set_port(1);
    assert_eq!(bench.run(&Packet::new(key).frame()).0, REDIRECT);
}

#[test]
fn a_flow_of_another_instance_goes_there_and_not_back() {
    let Some(bench) = Bench::load() else { return };
    let owner = Owner { ip: "192.0.2.9".parse().unwrap(), mac: Some([6, 5, 4, 3, 2, 1]), interface: 1 };
    for (from, to) in [("198.51.100.1:7", "192.0.2.5:6443"), ("[2001:db8::9]:7", "[2001:db8::5]:6443")] {
        let key = Key { from: from.parse().unwrap(), to: to.parse().unwrap() };
        bench.program.forward(&key, &owner, false).unwrap();
        let packet = Packet::new(key);
        let mut expected = packet.clone();
        expected.hops -= 1;
        assert_eq!(bench.run(&packet.frame()), (REDIRECT, expected.frame()));
        let looping = from_somebody(&packet);
        assert_eq!(bench.run(&looping), (NEXT, looping));
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!((counters.forwarded, counters.loops), (2, 2));
}

/// A SYN could be forged, and its owner challenges it; but if no record names a flow, there may be none.
#[test]
fn a_syn_goes_to_the_owner_of_a_flow_and_begins_another_where_none_is_told_of() {
    let Some(bench) = Bench::load() else { return };
    let owner = Owner { ip: "192.0.2.9".parse().unwrap(), mac: Some([6, 5, 4, 3, 2, 1]), interface: 1 };
    for (from, to) in [("198.51.100.1:7", "192.0.2.5:6443"), ("[2001:db8::9]:7", "[2001:db8::5]:6443")] {
        let key = Key { from: from.parse().unwrap(), to: to.parse().unwrap() };
        for except_syn in [false, true, false] {
            bench.program.forward(&key, &owner, except_syn).unwrap();
            for flags in [SYN, SYN | ACK, SYN | RST, ACK, RST, FIN | ACK] {
                let packet = Packet { flags, ..Packet::new(key) };
                let passes = except_syn && flags == SYN;
                assert_eq!(
                    bench.run(&packet.frame()).0,
                    if passes { NEXT } else { REDIRECT },
                    "{flags:#x}, {except_syn}"
                );
            }
        }
    }
}

/// Regression: no instance accepted an upload for half a minute. The client's port had been another connection's
/// before, with the instance that got its packets then, and that connection's TIME_WAIT answered them.
#[test]
fn what_is_over_in_this_host_s_sockets_keeps_no_flow_of_another_instance() {
    let Some(bench) = Bench::load() else { return };
    let owner = Owner { ip: "192.0.2.9".parse().unwrap(), mac: Some([6, 5, 4, 3, 2, 1]), interface: 1 };
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = std::net::TcpListener::bind(any).unwrap();
        let vip = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(vip).unwrap();
        let (own, from) = listener.accept().unwrap();
        let key = Key { from, to: vip };
        bench.program.forward(&key, &owner, false).unwrap();
        let mut packet = Packet::new(key);
        packet.seq = sequence_numbers(&own).unwrap().received;
        assert_eq!(bench.run(&packet.frame()).0, NEXT, "it lives here");
        packet.seq = packet.seq.wrapping_add(1 << 25);
        assert_eq!(
            bench.run(&packet.frame()).0,
            REDIRECT,
            "it is of the next connection by this port, at another instance"
        );
        // Who closes first has the TIME_WAIT; before the other does, it is FIN_WAIT2 that no process has.
        drop(own);
        crate::lab::eventually(crate::lab::LONG, "no process has it", || {
            bench.run(&Packet::new(key).frame()).0 == REDIRECT
        });
        drop(client);
        assert_eq!(bench.run(&Packet::new(key).frame()).0, REDIRECT);
        // Nothing of it was known here when its packets were forwarded: it began here since.
        bench.program.forward(&key, &owner, true).unwrap();
        assert_eq!(bench.run(&Packet::new(key).frame()).0, NEXT);
        bench.program.forward(&key, &owner, false).unwrap();
        assert_eq!(bench.run(&Packet::new(key).frame()).0, REDIRECT);
    }
}

#[test]
fn a_client_that_uses_its_port_again_gets_a_new_connection() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(2);
    let mut events = bench.program.events().unwrap();
    for (round, over) in [RST, FIN].into_iter().enumerate() {
        let flow = flow(&mut rng, round == 1);
        bench.install(&flow);
        let [up, down] = [FlowDirection::ToBackend, FlowDirection::ToClient].map(|direction| flow.ends.key(direction));
        let mut syn = Packet::new(up);
        syn.flags = SYN;
        assert_eq!(bench.run(&syn.frame()).0, REDIRECT, "while it lives, its backend challenges the SYN");
        for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
            let mut end = first(&flow, direction);
            end.flags = ACK | over;
            assert_eq!(bench.run(&end.frame()).0, REDIRECT);
        }
        if over == FIN {
            assert_eq!(bench.run(&syn.frame()).0, REDIRECT, "no FIN is acknowledged");
            for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
                let mut last = first(&flow, direction);
                (last.seq, last.ack) = (last.seq.wrapping_add(1), last.ack.wrapping_add(1));
                assert_eq!(bench.run(&last.frame()).0, REDIRECT);
            }
        }
        assert_eq!(bench.run(&syn.frame()), (NEXT, syn.frame()));
        let entry = bench.program.entry(&up).unwrap().unwrap();
        assert_eq!((entry.action, entry.seen.reused), (Action::Pass, true));
        assert_eq!(bench.program.entry(&down).unwrap().unwrap().action, Action::Reset);
        assert_eq!(bench.run(&Packet::new(up).frame()).0, NEXT, "the new connection's packets pass");
        let told: Vec<_> = events.by_ref().filter_map(Told::flow).map(|event| event.what).collect();
        let end = if over == RST { ProgramWhat::Rst } else { ProgramWhat::Fin };
        let finished = if over == FIN { vec![ProgramWhat::Finished; 2] } else { Vec::new() };
        assert_eq!(told, [vec![end, end], finished, vec![ProgramWhat::Reused]].concat());
    }
}

#[test]
fn a_client_whose_flow_is_being_reset_gets_a_new_connection() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(3);
    let mut events = bench.program.events().unwrap();
    for six in [false, true] {
        let flow = flow(&mut rng, six);
        bench.install(&flow);
        let keys = [FlowDirection::ToBackend, FlowDirection::ToClient].map(|direction| flow.ends.key(direction));
        bench.program.change(flow.identity.id, &keys, EntryChange::Reset).unwrap();
        let [syn, back] = keys.map(|key| Packet { flags: SYN, ..Packet::new(key) });
        let syn_ack = Packet { flags: SYN | ACK, ..syn.clone() };
        for packet in [&syn_ack, &back] {
            assert_ne!(bench.run(&packet.frame()), (NEXT, packet.frame()));
        }
        assert_eq!(bench.run(&syn.frame()), (NEXT, syn.frame()));
        bench.program.change(flow.identity.id, &keys, EntryChange::Reset).unwrap();
        assert_eq!(bench.run(&Packet::new(keys[0]).frame()).0, NEXT, "the new connection's packets pass");
        let actions = keys.map(|key| bench.program.entry(&key).unwrap().unwrap().action);
        assert_eq!(actions, [Action::Pass, Action::Reset]);
        let told: Vec<_> = events.by_ref().filter_map(Told::flow).map(|event| event.what).collect();
        assert_eq!(told, [ProgramWhat::Reused]);
        // Of a dead instance's flow, too. Its entry stays for what the ends still send to it.
        let key = Key { from: ([10, 9, 8, 7], 6).into(), to: ([10, 9, 8, 6], 5).into() };
        bench.program.refuse(&key).unwrap();
        let [syn, syn_ack, late] = [SYN, SYN | ACK, ACK].map(|flags| Packet { flags, ..Packet::new(key) });
        for packet in [&late, &syn_ack] {
            assert_ne!(bench.run(&packet.frame()), (NEXT, packet.frame()));
        }
        assert_eq!(bench.run(&syn.frame()), (NEXT, syn.frame()));
        let entry = bench.program.entry(&key).unwrap().unwrap();
        assert!(entry.action == Action::Reset && entry.seen.last_ns != 0, "its client need not be told");
    }
}

#[test]
fn an_unknown_packet_is_shown_whole_and_a_flood_of_them_is_dropped() {
    let Some(bench) = Bench::load() else { return };
    let mut events = bench.program.events().unwrap();
    for (vip, client) in [("192.0.2.5:6443", "198.51.100.1:7"), ("[2001:db8::5]:6443", "[2001:db8::9]:7")] {
        let vip = VipAddr::new(vip.parse().unwrap());
        let key = Key { from: client.parse().unwrap(), to: vip.socket_addr() };
        let unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told: false } };
        bench.program.set_unknown(vip, Some(unknown)).unwrap();
        let mut packet = Packet::new(key);
        (packet.seq, packet.ack, packet.flags) = (0xffff_fff0, 77, ACK | FIN);
        packet.payload = vec![1; 300];
        assert_eq!(bench.run(&packet.frame()).0, DROP);
        let Some(Told::UnknownPacket(unknown_packet)) = events.next() else { panic!("it is not told") };
        assert_eq!(unknown_packet, UnknownPacket { key, seq: 0xffff_fff0, ack: 77, length: 300, flags: ACK | FIN });
        let reset = unknown_packet.reset();
        assert_eq!((reset.seq, reset.ack), (77, 0xffff_fff0u32.wrapping_add(301)));
        let verdicts: Vec<_> = (0..300).map(|_| bench.run(&packet.frame()).0).collect();
        assert!(verdicts.iter().all(|verdict| *verdict == DROP), "{verdicts:?}");
        let asked = events.by_ref().count();
        assert!((20..=199).contains(&asked), "{asked} of 300");
    }
}

#[test]
fn what_comes_to_a_peers_port_goes_to_the_peer_and_not_back() {
    let Some(bench) = Bench::load() else { return };
    let mac = Some([6, 5, 4, 3, 2, 1]);
    let owners = ["192.0.2.9", "2001:db8::99"].map(|ip| Owner { ip: ip.parse().unwrap(), mac, interface: 1 });
    let ports = PortRange { first: 33000, last: 33999 };
    let dead = PortRange { first: 34000, last: 34999 };
    bench.program.set_port_ranges(&[(ports, owners.to_vec()), (dead, Vec::new())]).unwrap();
    for (backend, vip) in [("198.51.100.1:6443", "192.0.2.5"), ("[2001:db8::9]:6443", "2001:db8::5")] {
        let vip: std::net::IpAddr = vip.parse().unwrap();
        let key = |port| Key { from: backend.parse().unwrap(), to: (vip, port).into() };
        let mut packet = Packet::new(key(33500));
        packet.flags = SYN | ACK;
        assert_eq!(bench.run(&packet.frame()).0, NEXT, "the address is nobody's VIP");
        let any_port = VipAddr::new((vip, 0).into());
        bench.program.set_unknown(any_port, Some(Unknown { guard_until_ns: 0, then: Then::Reset })).unwrap();
        for flags in [SYN | ACK, ACK, RST | ACK] {
            packet.flags = flags;
            let mut expected = packet.clone();
            expected.hops -= 1;
            assert_eq!(bench.run(&packet.frame()), (REDIRECT, expected.frame()));
        }
        packet.flags = ACK;
        assert_eq!(bench.run(&from_somebody(&packet)), (REDIRECT, reset_for(&packet)), "the peer sent it here");
        let of_the_dead = Packet::new(key(34000));
        assert_eq!(bench.run(&from_somebody(&of_the_dead)), (REDIRECT, reset_for(&of_the_dead)));
        let outside = Packet::new(key(35000));
        assert_eq!(bench.run(&from_somebody(&outside)).0, NEXT, "a port that is none of Baton's");
    }
    bench.program.set_port_ranges(&[]).unwrap();
    let counters = bench.program.counters().unwrap();
    assert_eq!((counters.forwarded_by_port, counters.reset), (6, 4));
}

/// Regression: connections to a NodePort were reset from their first packet on.
#[test]
fn a_connection_that_somebody_else_has_by_a_port_of_a_range_passes() {
    let Some(bench) = Bench::load() else { return };
    let mut events = bench.program.events().unwrap();
    let ports = PortRange { first: 30000, last: 30999 };
    bench.program.set_port_ranges(&[(ports, Vec::new())]).unwrap();
    for (client, vip) in [("198.51.100.1:7", "192.0.2.5:30080"), ("[2001:db8::9]:7", "[2001:db8::5]:30080")] {
        let key = Key { from: client.parse().unwrap(), to: vip.parse().unwrap() };
        let any_port = VipAddr::new((key.to.ip(), 0).into());
        let unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told: false } };
        bench.program.set_unknown(any_port, Some(unknown)).unwrap();
        let mut packet = Packet::new(key);
        assert_eq!(bench.run(&packet.frame()).0, DROP, "nobody has begun it");
        assert!(matches!(events.next(), Some(Told::UnknownPacket(unknown_packet)) if unknown_packet.key == key));
        packet.flags = SYN;
        assert_eq!(bench.run(&packet.frame()).0, NEXT);
        assert!(events.next().is_none());
        for flags in [ACK, ACK | FIN, RST] {
            packet.flags = flags;
            assert_eq!(bench.run(&packet.frame()), (NEXT, packet.frame()));
        }
        assert_eq!(events.next(), Some(Told::Foreign(key)), "conntrack is to be asked");
        assert!(events.next().is_none(), "but not of each packet");
        packet.flags = ACK;
        bench.program.leave_alone(&key, now_ns() + 60_000_000_000).unwrap();
        assert_eq!(bench.run(&packet.frame()).0, NEXT);
        assert!(events.next().is_none(), "it has said so");
        bench.program.leave_alone(&key, 1).unwrap();
        assert_eq!(bench.run(&packet.frame()).0, DROP, "that was a while ago");
        assert!(matches!(events.next(), Some(Told::UnknownPacket(_))));
    }
}

#[test]
fn fragments_follow_their_first_one() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(3);
    for round in 0..100 {
        let ipv6 = round % 2 == 1;
        let flow = flow(&mut rng, ipv6);
        bench.install(&flow);
        let mut whole = packet(&mut rng, flow.ends.key(FlowDirection::ToBackend));
        (whole.between, whole.next, whole.padding, whole.fragment) = (Vec::new(), 6, 0, 0);
        whole.traffic_class &= !3;
        whole.payload = (0..1440).map(|_| rng.u8(..)).collect();
        (whole.seq, whole.ack) =
            (first(&flow, FlowDirection::ToBackend).seq, first(&flow, FlowDirection::ToBackend).ack);
        whole.flags = ACK;
        let pieces = cut(&whole, 720, rng.u32(..));
        let lost = bench.run(&pieces[1]);
        assert_eq!(lost, (NEXT, pieces[1].clone()), "its first one was not seen");
        let out: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let (verdict, out) = bench.run(piece);
                assert_eq!(verdict, REDIRECT);
                out
            })
            .collect();
        let entry = flow.entry(FlowDirection::ToBackend);
        let expected = whole.spliced(entry.onward, &entry.rewrite);
        let frame = expected.frame();
        let (at, head) = (expected.tcp_at(), out[0].len() - 720);
        let payload = [&out[0][head..], &out[1][head..]].concat();
        assert_eq!(payload[..720], frame[at..at + 720], "the first piece of round {round}");
        assert_eq!(payload[720..], frame[at + 720..]);
        for piece in &out {
            if !ipv6 {
                assert_eq!(checksum(&[&piece[ETH..ETH + 20]]), 0);
            }
            let addresses = if ipv6 { ETH + 8..ETH + 40 } else { ETH + 12..ETH + 20 };
            assert_eq!(piece[addresses.clone()], frame[addresses]);
        }
        bench.program.remove(&flow.ends).unwrap();
    }
    assert_eq!(bench.program.counters().unwrap().fragments, 100);
}

/// The packet as two IP fragments, the first with `first` bytes of its TCP segment.
fn cut(whole: &Packet, first: usize, id: u32) -> [Vec<u8>; 2] {
    let frame = whole.frame();
    let segment = &frame[whole.tcp_at()..];
    let piece = |from: usize, to: usize, more: bool| {
        let mut head = frame[..whole.tcp_at()].to_vec();
        let offset = (from / 8) as u16;
        if whole.ends.from.is_ipv6() {
            head[ETH + 6] = 44;
            head[ETH + 4..ETH + 6].copy_from_slice(&((to - from + 8) as u16).to_be_bytes());
            head.extend([6, 0]);
            head.extend((offset << 3 | u16::from(more)).to_be_bytes());
            head.extend(id.to_be_bytes());
        } else {
            head[ETH + 2..ETH + 4].copy_from_slice(&((to - from + 20) as u16).to_be_bytes());
            head[ETH + 4..ETH + 6].copy_from_slice(&(id as u16).to_be_bytes());
            head[ETH + 6..ETH + 8].copy_from_slice(&(offset | u16::from(more) << 13).to_be_bytes());
            head[ETH + 10..ETH + 12].fill(0);
            let check = checksum(&[&head[ETH..ETH + 20]]);
            head[ETH + 10..ETH + 12].copy_from_slice(&check.to_be_bytes());
        }
        head.extend(&segment[from..to]);
        head
    };
    [piece(0, first, true), piece(first, segment.len(), false)]
}

#[test]
fn too_big_is_told_to_the_sender_in_its_own_numbers() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(4);
    for round in 0..200 {
        let ipv6 = round % 2 == 1;
        let flow = flow(&mut rng, ipv6);
        bench.install(&flow);
        // The client sends; what leaves here is too big for a router, which quotes it.
        let mut sent = packet(&mut rng, flow.ends.key(FlowDirection::ToBackend));
        (sent.between, sent.next, sent.padding) = (Vec::new(), 6, 0);
        sent.traffic_class &= !3;
        let entry = flow.entry(FlowDirection::ToBackend);
        let left = sent.spliced(entry.onward, &entry.rewrite);
        let router = if ipv6 { "[2001:db8::77]:0" } else { "203.0.113.1:0" }.parse().unwrap();
        let error = too_big(Key { from: router, to: entry.onward.from }, &left.frame());
        let (verdict, out) = bench.run(&error);
        assert_eq!(verdict, REDIRECT);

        let vip = flow.ends.vip.socket_addr();
        let head = ETH + if ipv6 { 40 } else { 20 };
        let addresses = out[if ipv6 { ETH + 8..ETH + 40 } else { ETH + 12..ETH + 20 }].to_vec();
        let outer = Key { from: vip, to: flow.ends.client.socket_addr() };
        assert_eq!(addresses, outer_addresses(&outer));
        // It quotes the packet that the client sent, in the fields that TCP checks: addresses, ports, sequence number.
        let quoted = &out[head + 8..];
        let original = sent.frame();
        let ip = if ipv6 { 8..40 } else { 12..20 };
        assert_eq!(quoted[ip.clone()], original[ETH..][ip]);
        let tcp = if ipv6 { 40 } else { 20 };
        assert_eq!(quoted[tcp..tcp + 8], original[ETH + tcp..][..8]);
        assert_eq!(out[head + 4..head + 8], error[head + 4..head + 8], "the MTU");
        if ipv6 {
            assert_eq!(checksum(&[&pseudo(&outer, 58, out.len() - head), &out[head..]]), 0);
        } else {
            assert_eq!(checksum(&[&out[ETH..head]]), 0);
            assert_eq!(checksum(&[&quoted[..20]]), 0, "the quoted header");
            assert_eq!(checksum(&[&out[head..]]), 0);
        }
        bench.program.remove(&flow.ends).unwrap();
        assert_eq!(bench.run(&error), (NEXT, error), "nobody's: for the kernel");
    }
    assert_eq!(bench.program.counters().unwrap().icmp, 200);
}

/// Regression: a client got none of 100,000 bytes once its path's MTU had fallen. Its address had moved, its flow had
/// not.
#[test]
fn errors_about_a_flow_of_another_instance_go_there_and_not_back() {
    let Some(bench) = Bench::load() else { return };
    let mac = Some([6, 5, 4, 3, 2, 1]);
    let owners = ["192.0.2.9", "2001:db8::99"].map(|ip| Owner { ip: ip.parse().unwrap(), mac, interface: 1 });
    let ports = PortRange { first: 33000, last: 33999 };
    bench.program.set_port_ranges(&[(ports, owners.to_vec())]).unwrap();
    let cases = [
        ("198.51.100.1:40000", "192.0.2.5", "203.0.113.1:0", [(3, 4), (3, 1), (11, 0), (12, 0)], [(0, 0), (5, 1)]),
        (
            "[2001:db8::9]:40000",
            "2001:db8::5",
            "[2001:db8::77]:0",
            [(2, 0), (1, 0), (3, 0), (4, 1)],
            [(128, 0), (137, 0)],
        ),
    ];
    for ((far, vip, router, errors, others), owner) in cases.into_iter().zip(owners) {
        let [far, router]: [std::net::SocketAddr; 2] = [far, router].map(|end| end.parse().unwrap());
        let vip: std::net::IpAddr = vip.parse().unwrap();
        // To the client of a known flow, and to a backend from a port of the other instance, of which nothing is known
        // yet.
        let sent = [6443, 33500].map(|port| Key { from: (vip, port).into(), to: far });
        let about = |key: Key, (kind, code): (u8, u8)| {
            let mut error = too_big(Key { from: router, to: key.from }, &Packet::new(key).frame());
            let at = if vip.is_ipv6() { ETH + 40 } else { ETH + 20 };
            error[at..at + 2].copy_from_slice(&[kind, code]);
            error
        };
        for key in sent {
            assert_eq!(bench.run(&about(key, errors[0])).0, NEXT, "{key:?} is nobody's");
        }
        bench.program.forward(&sent[0].reversed(), &owner, false).unwrap();
        let any_port = VipAddr::new((vip, 0).into());
        bench
            .program
            .set_unknown(any_port, Some(Unknown { guard_until_ns: 0, then: Then::Ask { all_told: false } }))
            .unwrap();
        for key in sent {
            for error in errors {
                let error = about(key, error);
                let (verdict, out) = bench.run(&error);
                assert_eq!(verdict, REDIRECT, "{key:?} {error:?}");
                let mut expected = error.clone();
                if vip.is_ipv6() {
                    expected[ETH + 7] -= 1;
                } else {
                    expected[ETH + 8] -= 1;
                    expected[ETH + 10..ETH + 12].fill(0);
                    let check = checksum(&[&expected[ETH..ETH + 20]]);
                    expected[ETH + 10..ETH + 12].copy_from_slice(&check.to_be_bytes());
                }
                assert_eq!(out, expected, "unchanged but for its hops");
                let mut back = error.clone();
                back[6..12].copy_from_slice(&[6, 5, 4, 3, 2, 1]);
                assert_eq!(bench.run(&back).0, NEXT, "the owner sent it here");
            }
            for other in others {
                assert_eq!(bench.run(&about(key, other)).0, NEXT, "no error");
            }
        }
        // Somebody else's, by the same port.
        bench.program.leave_alone(&sent[1].reversed(), now_ns() + 60_000_000_000).unwrap();
        assert_eq!(bench.run(&about(sent[1], errors[0])).0, NEXT);
        let mut later = about(sent[0], errors[0]);
        if !vip.is_ipv6() {
            later[ETH + 20 + 8 + 7] = 1;
            assert_eq!(bench.run(&later).0, NEXT, "it quotes a later fragment, which has no ports");
        }
    }
    assert_eq!(bench.program.counters().unwrap().forwarded, 16);
}

fn outer_addresses(ends: &Key) -> Vec<u8> {
    let pseudo = pseudo(ends, 0, 0);
    pseudo[..pseudo.len() - 8].to_vec()
}

/// A router's "packet too big" that quotes `frame`'s IP packet.
fn too_big(ends: Key, frame: &[u8]) -> Vec<u8> {
    let ipv6 = ends.from.is_ipv6();
    let quoted = &frame[ETH..frame.len().min(ETH + if ipv6 { 40 } else { 20 } + 28)];
    let mut icmp = if ipv6 { vec![2, 0, 0, 0, 0, 0, 5, 0] } else { vec![3, 4, 0, 0, 0, 0, 5, 0] };
    icmp.extend(quoted);
    let check = if ipv6 { checksum(&[&pseudo(&ends, 58, icmp.len()), &icmp]) } else { checksum(&[&icmp]) };
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    // A frame of these ends, with another payload under the header.
    let mut outer = Packet::new(ends);
    outer.next = 58;
    let mut out = outer.frame();
    out.truncate(outer.tcp_at());
    let length = icmp.len() as u16;
    if ipv6 {
        out[ETH + 4..ETH + 6].copy_from_slice(&length.to_be_bytes());
    } else {
        out[ETH + 2..ETH + 4].copy_from_slice(&(length + 20).to_be_bytes());
        out[ETH + 9] = 1;
        out[ETH + 10..ETH + 12].fill(0);
        let check = checksum(&[&out[ETH..ETH + 20]]);
        out[ETH + 10..ETH + 12].copy_from_slice(&check.to_be_bytes());
    }
    out.extend(icmp);
    out
}
