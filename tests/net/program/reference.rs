//! The expected result for a packet of an offloaded flow, written for clarity: it sets fields and computes checksums
//! anew.

use std::net::{IpAddr, SocketAddr};

use ::baton::model::splice::Rewrite;
use ::baton::offload::entry::{Entry, Key};

pub const ETH: usize = 14;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// A TCP packet to be built.
#[derive(Clone, Debug)]
pub struct Packet {
    pub ends: Key,
    /// What stands between the fixed IP header and the TCP header: options (IPv4, in fours) or extension headers (IPv6,
    /// in eights, with their own chaining; the first is named by `next`).
    pub between: Vec<u8>,
    pub next: u8,
    pub traffic_class: u8,
    pub hops: u8,
    pub id: u16,
    /// IPv4: flags and offset.
    pub fragment: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    /// Behind the IP packet: short frames are filled up.
    pub padding: usize,
}

impl Packet {
    pub fn new(ends: Key) -> Self {
        Self {
            ends,
            between: Vec::new(),
            next: 6,
            traffic_class: 0,
            hops: 64,
            id: 7,
            fragment: 0x4000,
            seq: 1,
            ack: 1,
            flags: ACK,
            window: 500,
            options: Vec::new(),
            payload: Vec::new(),
            padding: 0,
        }
    }

    /// Where the TCP header begins.
    pub fn tcp_at(&self) -> usize {
        ETH + if self.ends.from.is_ipv6() { 40 } else { 20 } + self.between.len()
    }

    /// The frame, checksums valid.
    pub fn frame(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.ends.from.port().to_be_bytes());
        tcp.extend(self.ends.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(((20 + self.options.len()) / 4) << 4) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let check = checksum(&[&pseudo(&self.ends, 6, tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());

        let mut frame = vec![0; 12];
        match (self.ends.from.ip(), self.ends.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00]);
                let length = 20 + self.between.len();
                let mut ip = vec![0x40 | (length / 4) as u8, self.traffic_class];
                ip.extend(((length + tcp.len()) as u16).to_be_bytes());
                ip.extend(self.id.to_be_bytes());
                ip.extend(self.fragment.to_be_bytes());
                ip.extend([self.hops, 6, 0, 0]);
                ip.extend(from.octets());
                ip.extend(to.octets());
                ip.extend(&self.between);
                let check = checksum(&[&ip]);
                ip[10..12].copy_from_slice(&check.to_be_bytes());
                frame.extend(ip);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                frame.extend([0x60 | self.traffic_class >> 4, self.traffic_class << 4 | 0x3, 0x21, 0x43]);
                frame.extend(((self.between.len() + tcp.len()) as u16).to_be_bytes());
                frame.extend([self.next, self.hops]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                frame.extend(&self.between);
            }
            _ => unreachable!("one family"),
        }
        frame.extend(tcp);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// Whether `frame`, which is this packet with whatever sum, has no payload, and a right sum or the unfinished one of a sender on the host.
    pub fn is_whole(&self, frame: &[u8]) -> bool {
        let tcp = &frame[self.tcp_at()..][..20 + self.options.len()];
        let pseudo = pseudo(&self.ends, 6, tcp.len());
        let is_unfinished = tcp[16..18] == (!checksum(&[&pseudo])).to_be_bytes();
        self.payload.is_empty() && (is_unfinished || checksum(&[&pseudo, tcp]) == 0)
    }

    /// The packet that the program must make of it.
    pub fn spliced(&self, onward: Key, rewrite: &Rewrite) -> Self {
        let mut packet = self.clone();
        packet.ends = onward;
        packet.hops -= 1;
        packet.seq = self.seq.wrapping_add(rewrite.seq);
        if self.flags & ACK != 0 {
            packet.ack = self.ack.wrapping_add(rewrite.ack);
        }
        let window = if rewrite.window_shift >= 0 {
            u64::from(self.window) << rewrite.window_shift
        } else {
            u64::from(self.window) >> -rewrite.window_shift
        };
        packet.window = window.min(65_535) as u16;
        if rewrite.clear_ecn {
            packet.traffic_class &= !3;
            packet.flags &= !0xc0;
        }
        rewrite_options(&mut packet.options, rewrite);
        packet
    }
}

/// Option after option, until the end of the list or one that does not fit.
fn rewrite_options(options: &mut [u8], rewrite: &Rewrite) {
    let mut rest = options;
    while let [kind, ..] = rest {
        let length = match (*kind, rest.get(1)) {
            (0, _) => return,
            (1, _) => 1,
            (_, Some(length)) if *length >= 2 && usize::from(*length) <= rest.len() => usize::from(*length),
            _ => return,
        };
        let (option, behind) = rest.split_at_mut(length);
        match (option[0], length) {
            (8, 10) => {
                add(&mut option[2..6], rewrite.tsval);
                if option[6..10] != [0; 4] {
                    add(&mut option[6..10], rewrite.tsecr);
                }
            }
            (5, _) => option[2..].chunks_exact_mut(8).for_each(|block| {
                add(&mut block[..4], rewrite.ack);
                add(&mut block[4..], rewrite.ack);
            }),
            _ => {}
        }
        rest = behind;
    }
}

fn add(field: &mut [u8], delta: u32) {
    let value = u32::from_be_bytes(field.try_into().expect("four bytes"));
    field.copy_from_slice(&value.wrapping_add(delta).to_be_bytes());
}

/// The pseudo header of RFC 9293 section 3.1 and RFC 8200 section 8.1.
pub fn pseudo(ends: &Key, protocol: u8, length: usize) -> Vec<u8> {
    let octets = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut header = [octets(ends.from), octets(ends.to)].concat();
    header.extend((length as u32).to_be_bytes());
    header.extend([0, 0, 0, protocol]);
    header
}

/// The Internet checksum (RFC 1071) of parts, all but the last of even length.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The counts that the program may make of a segment of a flow without SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    Nothing,
    /// It moves positions.
    Segment,
    Rst,
}

/// How much a segment at its place may acknowledge at once without being compared with the other side.
const ORDINARY: i64 = 1 << 17;

/// Whether the receiver would take `packet`, as far as `of` (its direction) and `other` tell. In 64 bits around the positions,
/// so that nothing wraps.
pub fn counts(of: &Entry, other: &Entry, packet: &Packet) -> Counts {
    let away = |number: u32, position: u64| i64::from(number.wrapping_sub(position as u32) as i32);
    let (seq, ack) = (away(packet.seq, of.seen.sent), away(packet.ack, of.seen.acked));
    let length = packet.payload.len() as i64 + i64::from(packet.flags & FIN);
    if packet.flags & SYN != 0 {
        return Counts::Nothing;
    }
    if packet.flags & RST != 0 {
        return if seq == 0 || packet.seq == other.taken() { Counts::Rst } else { Counts::Nothing };
    }
    let (own, far) = (1i64 << of.windows.own, 1i64 << of.windows.far);
    let ordinary = seq == 0 && (0..=ORDINARY).contains(&ack);
    let in_windows = (-far..=far).contains(&seq) && seq + length <= far && (-own..=own).contains(&ack);
    // Only as far as the other direction is known to have come.
    let beyond_sent = away(of.taken(), other.seen.sent);
    let acks_unsent = beyond_sent <= 0 && beyond_sent + ack > 0;
    let untaken = away(of.seen.sent as u32, other.taken().into());
    let overfills = (0..=far).contains(&untaken) && untaken + seq + length > far;
    let both_seen = of.seen.packets > 0 && other.seen.packets > 0;
    match packet.flags & ACK != 0 && (ordinary || in_windows && !(both_seen && (acks_unsent || overfills))) {
        true => Counts::Segment,
        false => Counts::Nothing,
    }
}

/// The entry after the segment; times are 1 where they are set.
pub fn counted(of: &Entry, packet: &Packet, counts: Counts) -> Entry {
    let (mut entry, seen) = (*of, of.seen);
    entry.seen.packets += 1;
    if counts == Counts::Rst {
        entry.seen.rst_ns = 1;
        return entry;
    }
    let end = packet.seq.wrapping_add(packet.payload.len() as u32).wrapping_add(u32::from(packet.flags & FIN));
    let ahead = |number: u32, position: u64| {
        u64::from(number.wrapping_sub(position as u32).cast_signed().max(0).unsigned_abs())
    };
    entry.seen.sent += ahead(end, seen.sent);
    entry.seen.acked += ahead(packet.ack, seen.acked);
    // Bytes beyond a FIN prove that it was none.
    let has_fin = packet.flags & FIN != 0 && end == entry.seen.sent as u32;
    let keeps = seen.fin_ns != 0 && entry.seen.sent == seen.sent;
    entry.seen.fin_ns = u64::from(has_fin || keeps);
    entry
}
