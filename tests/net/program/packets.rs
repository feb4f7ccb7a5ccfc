//! The program on one packet at a time, run by the kernel on made-up packets (BPF_PROG_TEST_RUN), against a reference.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use ::baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use ::baton::model::ids::FlowId;
use ::baton::model::splice::{FlowDirection, Rewrite, Terms};
use ::baton::offload::entry::{Egress, Ends, Identity, Key, Splice, Start};
use ::baton::offload::moved::Mark;
use ::baton::offload::probe::EntryChange;
use ::baton::offload::program::Program;
use ::baton::sys::bpf::{self, Context};
use fastrand::Rng;

use super::reference::*;
use crate::lab::Pinned;

pub const NEXT: i32 = -1;
pub const DROP: i32 = 2;
pub const REDIRECT: i32 = 7;
const ROUNDS: usize = 4000;

/// The program, and the way to run it by hand.
pub struct Bench {
    pub program: Program,
    fd: OwnedFd,
    _pinned: Pinned,
}

impl Bench {
    pub fn load() -> Option<Self> {
        let (pinned, program) = Pinned::load("path", &[])?;
        let fd = bpf::open_pinned(&pinned.directory.join("program")).unwrap();
        Some(Self { program, fd, _pinned: pinned })
    }

    /// The verdict, and the resulting packet.
    pub fn run(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        let mut out = vec![0; 4096];
        let run = bpf::test_run(&self.fd, frame, &mut out, Context::default(), 1).unwrap();
        out.truncate(run.length);
        (run.verdict, out)
    }

    pub fn install(&self, flow: &Splice) {
        self.program.install(flow).unwrap();
    }
}

fn address(rng: &mut Rng, ipv6: bool) -> SocketAddr {
    let ip = if ipv6 {
        Ipv6Addr::from_bits(rng.u128(..) | 1 << 125).into()
    } else {
        Ipv4Addr::from_bits(rng.u32(..)).into()
    };
    SocketAddr::new(ip, rng.u16(1..))
}

/// A number that is near a wrap more often than chance would have it.
fn position(rng: &mut Rng) -> u32 {
    match rng.u8(..4) {
        0 => 0u32.wrapping_sub(rng.u32(..3000)),
        1 => rng.u32(..3000),
        2 => (1u32 << 31).wrapping_add(rng.u32(..3000)).wrapping_sub(1500),
        _ => rng.u32(..),
    }
}

fn rewrite(rng: &mut Rng) -> Rewrite {
    Rewrite {
        seq: position(rng),
        ack: position(rng),
        tsval: position(rng),
        tsecr: position(rng),
        window_shift: rng.i8(-14..=14),
        clear_ecn: rng.bool(),
    }
}

/// A flow whose two directions fit each other, as those of a real one do.
pub fn flow(rng: &mut Rng, ipv6: bool) -> Splice {
    let start = |position| Start { egress: Egress::Interface(1), bytes_before: 0, position };
    let (up_start, down_start) = (position(rng), position(rng));
    let (mut up, mut down) = (rewrite(rng), rewrite(rng));
    (up.ack, up.tsecr) = (down.seq.wrapping_neg(), down.tsval.wrapping_neg());
    (down.ack, down.tsecr) = (up.seq.wrapping_neg(), up.tsval.wrapping_neg());
    let terms = Terms {
        up,
        down,
        in_flight_to_backend: 0,
        in_flight_to_client: 0,
        backend_must_ack: up_start.wrapping_add(up.seq),
        client_must_ack: down_start.wrapping_add(down.seq),
        client_window: rng.u8(16..=30),
        backend_window: rng.u8(16..=30),
    };
    Splice {
        ends: Ends {
            client: ClientAddr::new(address(rng, ipv6)),
            vip: VipAddr::new(address(rng, ipv6)),
            local: LocalAddr::new(address(rng, ipv6)),
            backend: BackendAddr::new(address(rng, ipv6)),
        },
        terms,
        identity: Identity { id: FlowId(rng.u64(..)), accepted_at_ns: 1, connect_us: 2, backend_key: 3 },
        up: start(up_start),
        down: start(down_start),
        backend_slot: rng.u16(..64),
    }
}

/// The first packet that the sender of a direction may send: a bare ACK of all its received bytes.
pub fn first(flow: &Splice, direction: FlowDirection) -> Packet {
    let entry = flow.entry(direction);
    let mut packet = Packet::new(flow.ends.key(direction));
    (packet.seq, packet.ack) = (entry.seen.sent as u32, entry.seen.acked as u32);
    packet
}

fn options(rng: &mut Rng) -> Vec<u8> {
    let timestamps = |rng: &mut Rng| {
        let echo = if rng.u8(..8) == 0 { 0 } else { position(rng) };
        [&[8, 10][..], &position(rng).to_be_bytes(), &echo.to_be_bytes()].concat()
    };
    let sack = |rng: &mut Rng, blocks: usize| {
        let mut option = vec![5, 2 + 8 * blocks as u8];
        (0..2 * blocks).for_each(|_| option.extend(position(rng).to_be_bytes()));
        option
    };
    let mut options = match rng.u8(..9) {
        0 => Vec::new(),
        // As RFC 7323 lays them out, which is what nearly every segment has.
        1..=3 => [vec![1, 1], timestamps(rng)].concat(),
        4 => {
            let blocks = rng.usize(1..=3);
            [vec![1, 1], timestamps(rng), vec![1, 1], sack(rng, blocks)].concat()
        }
        5 => {
            let blocks = rng.usize(1..=4);
            sack(rng, blocks)
        }
        // Anywhere, also at odd places.
        6 => [vec![1; rng.usize(..4)], timestamps(rng), vec![1; rng.usize(..3)], vec![254, 5, 1, 2, 3]].concat(),
        7 => [vec![3, 3, 7], timestamps(rng), vec![0, 8, 10, 1, 2, 3, 4]].concat(),
        // Anything at all.
        _ => (0..rng.usize(..=40)).map(|_| rng.u8(..12)).collect(),
    };
    options.truncate(40);
    // The end of the list; most senders fill up with NOP instead.
    let fill = rng.u8(..2);
    options.resize(options.len().next_multiple_of(4), fill);
    options
}

pub fn packet(rng: &mut Rng, ends: Key) -> Packet {
    let ipv6 = ends.from.is_ipv6();
    let mut packet = Packet::new(ends);
    packet.seq = position(rng);
    packet.ack = position(rng);
    packet.flags = rng.u8(..) & !(SYN | RST);
    packet.window = rng.u16(..);
    packet.hops = rng.u8(2..);
    packet.id = rng.u16(..);
    packet.options = options(rng);
    let length = [0, 1, 2, 500, 1447, 1448][rng.usize(..6)];
    packet.payload = (0..length).map(|_| rng.u8(..)).collect();
    packet.traffic_class = rng.u8(..) & !1;
    if rng.u8(..6) == 0 {
        packet.between = if ipv6 {
            packet.next = 0;
            [vec![60, 1], vec![1, 12], vec![0; 12], vec![6, 0], vec![1, 4], vec![0; 4]].concat()
        } else {
            vec![1; 4 * rng.usize(1..=10)]
        };
    }
    packet.padding = if rng.u8(..5) == 0 { rng.usize(1..20) } else { 0 };
    packet
}

#[test]
fn thousands_of_packets_become_what_the_reference_makes_of_them() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(5);
    let mut spliced = 0;
    for round in 0..ROUNDS {
        let flow = flow(&mut rng, round % 2 == 1);
        bench.install(&flow);
        for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
            let entry = flow.entry(direction);
            let packet = packet(&mut rng, flow.ends.key(direction));
            let expected = packet.spliced(entry.onward, &entry.rewrite);
            let (verdict, out) = bench.run(&packet.frame());
            assert_eq!(verdict, REDIRECT, "round {round}: {packet:?}");
            assert!(out == expected.frame(), "round {round}: {packet:#?}\n{entry:#?}\n{out:?}\n{:?}", expected.frame());
            spliced += 1;
        }
        bench.program.remove(&flow.ends).unwrap();
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!(counters.spliced, spliced);
    assert!(counters.bad_options > 100, "few were malformed: {counters:?}");
}

#[test]
fn what_was_seen_follows_the_stream_and_no_retransmission() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(6);
    for _ in 0..200 {
        let ipv6 = rng.bool();
        let flow = flow(&mut rng, ipv6);
        bench.install(&flow);
        let key = flow.ends.key(FlowDirection::ToBackend);
        let start = flow.up.position;
        let entry = || bench.program.entry(&key).unwrap().unwrap();
        let acked = entry().seen.acked as u32;
        let (mut sent, mut acks) = (0u32, 0u32);
        let send = |offset: u32, bytes: usize, ack: u32, flags: u8| {
            let mut packet = Packet::new(key);
            (packet.seq, packet.ack) = (start.wrapping_add(offset), acked.wrapping_add(ack));
            packet.payload = vec![1; bytes];
            packet.flags = flags;
            assert_eq!(bench.run(&packet.frame()).0, REDIRECT);
        };
        for _ in 0..20 {
            let bytes = rng.u32(..1400);
            acks += rng.u32(..5000);
            send(sent, bytes as usize, acks, ACK);
            sent += bytes;
            // Again, and a stale one.
            send(sent - bytes, bytes as usize, acks, ACK);
            send(sent - bytes, 0, acks.saturating_sub(3000), ACK);
            let entry = entry();
            assert_eq!(entry.bytes(), u64::from(sent));
            assert_eq!(entry.seen.acked as u32, acked.wrapping_add(acks));
        }
        // A SYN, an RST from another part of the number space and an ACK without the flag say nothing.
        send(sent + (1 << 29), 0, 0, RST);
        send(sent + 5_000, 0, 0, SYN | ACK);
        send(sent, 0, acks + 9_000, 0);
        let before = entry();
        assert_eq!((before.bytes(), before.seen.rst_ns, before.seen.fin_ns), (u64::from(sent), 0, 0));
        assert_eq!(before.seen.acked as u32, acked.wrapping_add(acks));
        send(sent, 0, acks, ACK | FIN);
        let after = entry();
        assert_eq!(after.bytes(), u64::from(sent));
        assert!(after.seen.fin_ns > 0 && after.seen.packets == 61, "{after:?}");
        bench.program.remove(&flow.ends).unwrap();
    }
}

#[test]
fn a_packet_marks_its_own_flow_and_no_other() {
    let Some(bench) = Bench::load() else { return };
    let moved = bench.program.moved().unwrap();
    let taken = || {
        let mut marks = Vec::new();
        moved.take(&mut marks);
        marks
    };
    let mut rng = Rng::with_seed(8);
    let flows: Vec<_> = (0..200).map(|round| flow(&mut rng, round % 2 == 1)).collect();
    flows.iter().for_each(|flow| bench.install(flow));
    assert_eq!(taken(), []);
    for flow in &flows {
        for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
            // Its mark is set once, however many packets pass.
            (0..3).for_each(|_| assert_eq!(bench.run(&first(flow, direction).frame()).0, REDIRECT));
            assert_eq!(taken(), [Mark::of(flow.identity.id)], "{direction:?} of {:?}", flow.identity.id);
            assert_eq!(taken(), []);
        }
    }
    // A packet that passes to the kernel counts for no flow.
    let stranger = flow(&mut rng, false);
    bench.run(&Packet::new(stranger.ends.key(FlowDirection::ToBackend)).frame());
    assert_eq!(taken(), []);
    flows.iter().for_each(|flow| drop(bench.run(&first(flow, FlowDirection::ToBackend).frame())));
    let all: std::collections::BTreeSet<_> = flows.iter().map(|flow| Mark::of(flow.identity.id)).collect();
    assert_eq!(taken(), all.into_iter().collect::<Vec<_>>());
}

#[test]
fn what_is_no_packet_of_a_flow_passes_untouched() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(7);
    for ipv6 in [false, true] {
        let flow = flow(&mut rng, ipv6);
        bench.install(&flow);
        let key = flow.ends.key(FlowDirection::ToBackend);
        let mut other = key;
        other.from.set_port(key.from.port() ^ 1);
        let good = Packet::new(key).frame();
        let mut udp = good.clone();
        udp[if ipv6 { ETH + 6 } else { ETH + 9 }] = 17;
        let mut arp = good.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut other_source = good.clone();
        other_source[0] = 2;
        for frame in [Packet::new(other).frame(), Packet::new(key.reversed()).frame(), udp, arp, other_source] {
            assert_eq!(bench.run(&frame), (NEXT, frame));
        }
        assert_eq!(bench.run(&good).0, REDIRECT);
        bench.program.change(flow.identity.id, &[key], EntryChange::Pass).unwrap();
        assert_eq!(bench.run(&good), (NEXT, good));
    }
    // An IPv6 packet with mapped addresses is none of an IPv4 flow's.
    let flow = flow(&mut rng, false);
    bench.install(&flow);
    let mut mapped =
        Packet::new(Key { from: "[2001:db8::1]:1".parse().unwrap(), to: "[2001:db8::2]:2".parse().unwrap() }).frame();
    let key = flow.ends.key(FlowDirection::ToBackend).encode();
    mapped[ETH + 8..ETH + 40].copy_from_slice(&key[..32]);
    mapped[ETH + 40..ETH + 44].copy_from_slice(&key[32..36]);
    assert_eq!(bench.run(&mapped), (NEXT, mapped));
}

#[test]
fn malformed_packets_are_dropped_or_passed_and_break_nothing() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(8);
    let flows = [flow(&mut rng, false), flow(&mut rng, true)];
    flows.iter().for_each(|flow| bench.install(flow));
    for round in 0..ROUNDS {
        let flow = &flows[round % 2];
        let packet = packet(&mut rng, flow.ends.key(FlowDirection::ToBackend));
        let mut frame = packet.frame();
        match rng.u8(..5) {
            // The kernel's test run takes no frame without its IP header.
            0 => frame.truncate(rng.usize(ETH + 40..=frame.len())),
            1 => frame[packet.tcp_at() + 12] = rng.u8(..),
            2 => {
                let at = if round % 2 == 0 { ETH + 2 } else { ETH + 4 };
                frame[at..at + 2].copy_from_slice(&rng.u16(..).to_be_bytes());
            }
            _ => {
                for _ in 0..rng.usize(1..10) {
                    let at = rng.usize(ETH..frame.len());
                    frame[at] = rng.u8(..);
                }
            }
        }
        let (verdict, out) = bench.run(&frame);
        assert!([NEXT, DROP, REDIRECT].contains(&verdict), "{verdict}");
        if verdict == NEXT {
            assert_eq!(out, frame);
        }
        assert_eq!(out.len(), frame.len());
        // Whatever was changed on the way, it may have been an end.
        bench.program.remove(&flow.ends).unwrap();
        bench.install(flow);
    }
    // Headers that lie about their lengths reach no backend.
    for flow in &flows {
        let packet = Packet::new(flow.ends.key(FlowDirection::ToBackend));
        for offset in [0x00, 0x40, 0x60, 0xf0] {
            let mut frame = packet.frame();
            frame[packet.tcp_at() + 12] = offset;
            assert_eq!(bench.run(&frame).0, DROP, "data offset {offset:#x}");
        }
    }
    let counters = bench.program.counters().unwrap();
    assert!(counters.drop_short >= 8, "{counters:?}");
}

#[test]
fn a_packet_without_hops_left_or_with_a_mark_that_cannot_be_told_is_dropped_with_its_reason() {
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(9);
    for ipv6 in [false, true] {
        let mut flow = flow(&mut rng, ipv6);
        flow.terms.up.clear_ecn = true;
        flow.terms.down.clear_ecn = false;
        bench.install(&flow);
        let mut tired = Packet::new(flow.ends.key(FlowDirection::ToBackend));
        tired.hops = 1;
        assert_eq!(bench.run(&tired.frame()), (DROP, tired.frame()));
        for (direction, verdict) in [(FlowDirection::ToBackend, DROP), (FlowDirection::ToClient, REDIRECT)] {
            let mut marked = Packet::new(flow.ends.key(direction));
            marked.traffic_class = 3;
            assert_eq!(bench.run(&marked.frame()).0, verdict);
        }
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!((counters.drop_ttl, counters.drop_ecn, counters.spliced), (2, 2, 2));
}

/// By `lo` the program takes only packets of a backend on this host, and not those by which Baton tells its own sockets.
#[test]
fn by_lo_only_packets_of_a_backend_on_this_host_count() {
    const TOLD: u32 = 22867;
    let Some(bench) = Bench::load() else { return };
    let mut rng = Rng::with_seed(7);
    for (ipv6, here) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut flow = flow(&mut rng, ipv6);
        if here {
            flow.up.egress = Egress::Local;
        }
        let verdict = |direction, ingress_ifindex, mark| {
            let context = Context { mark, ingress_ifindex, ..Context::default() };
            bpf::test_run(&bench.fd, &first(&flow, direction).frame(), &mut [0; 4096], context, 1).unwrap().verdict
        };
        bench.program.witness(flow.identity.id, &flow.ends, here).unwrap();
        for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
            assert_eq!(verdict(direction, 1, 0), NEXT);
            let entry = bench.program.entry(&flow.ends.key(direction)).unwrap().unwrap();
            assert_eq!(entry.seen.packets, u64::from(here && direction == FlowDirection::ToClient), "{entry:?}");
        }
        bench.program.install_over(&flow).unwrap();
        let by_lo = if here { REDIRECT } else { NEXT };
        assert_eq!(verdict(FlowDirection::ToClient, 1, 0), by_lo);
        assert_eq!(verdict(FlowDirection::ToClient, 1, TOLD), NEXT);
        assert_eq!(verdict(FlowDirection::ToBackend, 1, 0), NEXT);
        // From the wire all count, whatever mark somebody sets there.
        assert_eq!(verdict(FlowDirection::ToClient, 2, TOLD), REDIRECT);
    }
}
