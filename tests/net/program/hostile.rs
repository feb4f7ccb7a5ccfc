//! Malicious packets, compared with a model of an endpoint: a packet that an endpoint would reject must change nothing
//! that decides anything. The fuzzer runs the same with its own inputs (fuzz/fuzz_targets/program.rs).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ::baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use ::baton::model::ids::FlowId;
use ::baton::model::splice::{FlowDirection, Rewrite, Terms};
use ::baton::offload::entry::{Action, Egress, Ends, Entry, Identity, Key, Splice, Start};
use ::baton::offload::program::Program;
use ::baton::sys::bpf::{self, Context};

use super::reference::*;

const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// Packets of one input at most.
const PACKETS: usize = 64;

/// Of the last first fragment: the program remembers those of earlier inputs.
static FRAGMENT_ID: AtomicU32 = AtomicU32::new(1);

/// The program, and the way to run it by hand.
pub struct Hostile<'p> {
    pub program: &'p Program,
    pub fd: &'p OwnedFd,
}

/// An input, read as choices; zeros come after its end.
struct Choices<'b>(&'b [u8]);

impl Choices<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let count = N.min(self.0.len());
        taken[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// A number that has to do with one of `near`, or none.
    fn number(&mut self, near: [u32; 5]) -> u32 {
        let choice = self.byte();
        let small = i32::from(self.byte().cast_signed());
        match usize::from(choice & 7) {
            at @ 0..=4 => near[at].wrapping_add_signed(small >> (choice >> 5)),
            5 => near[0].wrapping_add(1 << (choice >> 3)).wrapping_add_signed(small),
            6 => near[0].wrapping_sub(1 << (choice >> 3)).wrapping_add_signed(small),
            _ => u32::from_le_bytes(self.take()),
        }
    }
}

impl<'p> Hostile<'p> {
    pub fn new(program: &'p Program, fd: &'p OwnedFd) -> Self {
        Self { program, fd }
    }

    /// Packets as `bytes` has it, towards a flow of its own, until it is over; how many of them an endpoint would take, and
    /// how many not.
    pub fn run(&self, bytes: &[u8]) -> [usize; 2] {
        let mut choices = Choices(bytes);
        let flow = flow(&mut choices);
        self.program.install(&flow).expect("room");
        let mut count = [0; 2];
        for _ in 0..PACKETS {
            if choices.0.is_empty() || !self.packet(&flow, &mut choices, &mut count) {
                break;
            }
        }
        self.program.remove(&flow.ends).expect("its entries");
        count
    }

    /// One packet; false if the flow is over.
    fn packet(&self, flow: &Splice, choices: &mut Choices, count: &mut [usize; 2]) -> bool {
        let shape = choices.byte();
        let direction = if shape & 1 == 0 { FlowDirection::ToBackend } else { FlowDirection::ToClient };
        let before = self.entries(flow);
        let [of, other] = in_order(direction, before);
        let [own, far] = [of.windows.own, of.windows.far].map(|window| 1u32 << window);
        let (sent, acked) = (of.seen.sent as u32, of.seen.acked as u32);
        let unacked = (other.seen.sent as u32).wrapping_sub(of.rewrite.ack);
        let mut packet = Packet::new(flow.ends.key(direction));
        packet.seq = choices.number([sent, other.taken(), sent.wrapping_add(far), sent.wrapping_sub(far), sent]);
        packet.ack = choices.number([acked, unacked, acked.wrapping_add(own), acked.wrapping_sub(own), acked]);
        // Most have an ACK, or nothing would ever count.
        packet.flags = choices.byte() ^ ACK;
        packet.payload = vec![1; [0, 0, 1, 100, 1448][usize::from(shape >> 1) % 5]];
        if shape & 0x40 != 0 {
            packet.options = [vec![1, 1, 8, 10], choices.take::<8>().to_vec()].concat();
        }
        let is_oversized = shape & 0x80 != 0 && choices.byte() & 3 == 0;
        let is_fragment = !is_oversized && shape & 0x20 != 0 && flow.ends.client.ip().is_ipv6();
        if is_fragment {
            let id = FRAGMENT_ID.fetch_add(1, Relaxed) + 1;
            packet.next = 44;
            packet.between = [&[6, 0, 0, 1][..], &id.to_be_bytes()].concat();
        }
        let mut frame = packet.frame();
        // Nobody checks sums here but that of an RST: a damaged or forged packet may have wrong ones.
        let is_sound = packet.flags & RST != 0 && shape & 0x10 == 0;
        frame[packet.tcp_at() + 16] ^= if is_sound { 0 } else { shape };
        let evidence = self.program.evidence(flow.backend_slot).expect("evidence");
        let context = match is_oversized {
            // More than any interface takes.
            true => Context { gso_size: 65_535, gso_segs: 2, ..Context::default() },
            false => Context::default(),
        };
        let mut out = vec![0; 4096];
        let verdict = bpf::test_run(self.fd, &frame, &mut out, context, 1).expect("a run").verdict;
        let after = self.entries(flow);
        let what = || format!("{direction:?} {packet:?}\n{before:#?}\n{after:#?}");

        if packet.flags & (SYN | ACK) == SYN && direction == FlowDirection::ToBackend && is_over(&of, &other) {
            assert_eq!((verdict, after[0].action, after[0].seen.reused), (NEXT, Action::Pass, true), "{}", what());
            return false;
        }
        let counts = match counts(&of, &other, &packet) {
            Counts::Rst if !packet.is_whole(&frame) => Counts::Nothing,
            counts => counts,
        };
        count[usize::from(counts == Counts::Nothing)] += 1;
        if counts == Counts::Nothing {
            assert_eq!(verdict, if is_oversized { DROP } else { REDIRECT }, "{}", what());
            assert_eq!(after, before, "{}", what());
            let evident = self.program.evidence(flow.backend_slot).expect("evidence");
            assert_eq!(evident, evidence, "{}", what());
            if is_fragment {
                assert_eq!(self.later_fragment(&packet), NEXT, "its later fragments would follow it: {}", what());
            }
            return true;
        }
        if is_oversized {
            assert_eq!(after.map(|entry| entry.action), [Action::Reset; 2], "{}", what());
            return false;
        }
        assert_eq!(verdict, REDIRECT, "{}", what());
        let mut expected = in_order(direction, before);
        expected[0] = counted(&expected[0], &packet, counts);
        assert_eq!(in_order(direction, after).map(timeless), expected.map(timeless), "{}", what());
        if is_fragment {
            assert_eq!(self.later_fragment(&packet), REDIRECT, "{}", what());
        }
        true
    }

    /// The verdict on a later fragment of `first`.
    fn later_fragment(&self, first: &Packet) -> i32 {
        let mut later = first.clone();
        later.between[3] = 8;
        let mut out = vec![0; 4096];
        bpf::test_run(self.fd, &later.frame(), &mut out, Context::default(), 1).expect("a run").verdict
    }

    fn entries(&self, flow: &Splice) -> [Entry; 2] {
        let entry = |key: Key| self.program.entry(&key).expect("the map").expect("an entry");
        [FlowDirection::ToBackend, FlowDirection::ToClient].map(|direction| entry(flow.ends.key(direction)))
    }
}

/// That of `direction` first.
fn in_order(direction: FlowDirection, [up, down]: [Entry; 2]) -> [Entry; 2] {
    if direction == FlowDirection::ToBackend { [up, down] } else { [down, up] }
}

fn is_over(of: &Entry, other: &Entry) -> bool {
    let finished =
        |of: &Entry, other: &Entry| of.seen.fin_ns != 0 && other.taken().wrapping_sub(of.seen.sent as u32) < 1 << 31;
    of.seen.rst_ns != 0 || other.seen.rst_ns != 0 || (finished(of, other) && finished(other, of))
}

/// Times are 1 where they are set.
fn timeless(mut entry: Entry) -> Entry {
    entry.seen.fin_ns = entry.seen.fin_ns.min(1);
    entry.seen.rst_ns = entry.seen.rst_ns.min(1);
    (entry.seen.last_ns, entry.seen.last_data_ns, entry.seen.asked_ns) = (0, 0, 0);
    entry
}

/// A flow whose two directions fit each other.
fn flow(choices: &mut Choices) -> Splice {
    let [kind, windows] = choices.take();
    let word = |choices: &mut Choices| u32::from_le_bytes(choices.take());
    let (up, down) = (word(choices), word(choices));
    let (seq_up, seq_down) = (word(choices), word(choices));
    let rewrite = |seq: u32, ack: u32| Rewrite { seq, ack: ack.wrapping_neg(), ..Rewrite::default() };
    let at = |last: u8, port: u16| match kind & 1 {
        0 => SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), port)),
        _ => SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()), port)),
    };
    let start = |position| Start { egress: Egress::Interface(1), bytes_before: 0, position };
    Splice {
        ends: Ends {
            client: ClientAddr::new(at(1, 40_000)),
            vip: VipAddr::new(at(2, 6443)),
            local: LocalAddr::new(at(2, 33_000)),
            backend: BackendAddr::new(at(3, 6443)),
        },
        terms: Terms {
            up: rewrite(seq_up, seq_down),
            down: rewrite(seq_down, seq_up),
            in_flight_to_backend: 0,
            in_flight_to_client: 0,
            backend_must_ack: up.wrapping_add(seq_up),
            client_must_ack: down.wrapping_add(seq_down),
            client_window: 16 + windows % 15,
            backend_window: 16 + (windows >> 4) % 15,
        },
        identity: Identity { id: FlowId(7), accepted_at_ns: 1, connect_us: 2, backend_key: 3 },
        up: start(up),
        down: start(down),
        backend_slot: 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Pinned;

    #[test]
    fn no_packet_that_an_endpoint_would_not_take_changes_anything_that_decides() {
        let Some((pinned, program)) = Pinned::load("hostile", &[]) else { return };
        let fd = bpf::open_pinned(&pinned.directory.join("program")).unwrap();
        let hostile = Hostile::new(&program, &fd);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut total = [0; 2];
        for _ in 0..1000 {
            let bytes: Vec<_> = (0..500).map(|_| rng.u8(..)).collect();
            let count = hostile.run(&bytes);
            total = [total[0] + count[0], total[1] + count[1]];
        }
        println!("packets that counted and that did not: {total:?}");
        assert!(total.iter().all(|count| *count > 1_000), "{total:?}");
    }
}
