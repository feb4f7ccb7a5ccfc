//! Encoding of keys and entries in the map: `struct key` and `struct entry` of `bpf/entry.h`, in the host's byte order,
//! except for ports and addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Action, Egress, Entry, Key, Seen, Share, Windows};
use crate::model::ids::FlowId;
use crate::model::splice::{FlowDirection, Rewrite};

/// Bytes of a key in the map.
pub const KEY_SIZE: usize = 40;
/// Bytes of an entry in the map: with its key and the kernel's own header, 256.
pub const ENTRY_SIZE: usize = 160;

pub type RawKey = [u8; KEY_SIZE];
pub type RawEntry = [u8; ENTRY_SIZE];

const FLAG_DOWN: u16 = 1;
const FLAG_CLEAR_ECN: u16 = 2;
const FLAG_LOCAL: u16 = 4;
/// The sockets are closed.
pub(crate) const FLAG_COMMITTED: u16 = 8;
const FLAG_STANDBY: u16 = 16;
const FLAG_BY_LO: u16 = 64;
const FLAG_STAYS_HERE: u16 = 128;

const MARK_REUSED: u16 = 1;

/// The unit of the time of the last demand, as a power of two of nanoseconds.
const ASKED_SHIFT: u32 = 20;

const FAMILY_IPV4: u8 = 4;
const FAMILY_IPV6: u8 = 6;

impl Key {
    pub fn encode(&self) -> RawKey {
        let mut raw = Writer { bytes: [0; KEY_SIZE], at: 0 };
        raw.ends(self);
        raw.put(&[if self.from.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 }]);
        raw.bytes
    }

    pub fn decode(raw: &RawKey) -> Self {
        let mut raw = Reader { bytes: raw, at: 0 };
        raw.ends()
    }
}

impl Entry {
    pub(crate) fn encode(&self) -> RawEntry {
        let mut raw = Writer { bytes: [0; ENTRY_SIZE], at: 0 };
        raw.ends(&self.onward);
        for word in [self.rewrite.seq, self.rewrite.ack, self.rewrite.tsval, self.rewrite.tsecr] {
            raw.put(&word.to_ne_bytes());
        }
        raw.put(&[self.action as u8, self.rewrite.window_shift as u8]);
        let (interface, local) = match self.egress {
            Egress::Interface(index) => (index, false),
            Egress::Local => (0, true),
        };
        let mut flags = 0;
        for (flag, set) in [
            (FLAG_DOWN, self.direction == FlowDirection::ToClient),
            (FLAG_CLEAR_ECN, self.rewrite.clear_ecn),
            (FLAG_LOCAL, local),
            (FLAG_COMMITTED, self.committed),
            (FLAG_STANDBY, self.held),
            (FLAG_BY_LO, self.by_lo),
            (FLAG_STAYS_HERE, self.stays_here),
        ] {
            flags |= if set { flag } else { 0 };
        }
        raw.put(&flags.to_ne_bytes());
        raw.put(&interface.to_ne_bytes());
        raw.put(&self.backend_slot.to_ne_bytes());
        raw.put(&[self.windows.own, self.windows.far]);
        let (share, connect_us) = match self.share {
            Share::Up { accepted_at_ns, connect_us } => (accepted_at_ns, connect_us),
            Share::Down { backend_key } => (backend_key, 0),
        };
        for word in [self.id.0, share, self.bytes_before] {
            raw.put(&word.to_ne_bytes());
        }
        raw.put(&connect_us.to_ne_bytes());
        raw.put(&self.start_position.to_ne_bytes());
        let seen = &self.seen;
        for word in [seen.sent, seen.acked, seen.packets, seen.last_ns, seen.last_data_ns, seen.fin_ns, seen.rst_ns] {
            raw.put(&word.to_ne_bytes());
        }
        raw.put(&(if seen.reused { MARK_REUSED } else { 0 }).to_ne_bytes());
        raw.put(&[0; 2]);
        raw.put(&((seen.asked_ns >> ASKED_SHIFT) as u32).to_ne_bytes());
        raw.bytes
    }

    pub fn decode(raw: &RawEntry) -> Self {
        let mut raw = Reader { bytes: raw, at: 0 };
        let onward = raw.ends();
        let [seq, ack, tsval, tsecr] = [raw.u32(), raw.u32(), raw.u32(), raw.u32()];
        let [action, window_shift] = raw.take();
        let flags = u16::from_ne_bytes(raw.take());
        let interface = raw.u32();
        let backend_slot = u16::from_ne_bytes(raw.take());
        let [own, far] = raw.take();
        let [id, share, bytes_before] = [raw.u64(), raw.u64(), raw.u64()];
        let [connect_us, start_position] = [raw.u32(), raw.u32()];
        let clear_ecn = flags & FLAG_CLEAR_ECN != 0;
        let direction = if flags & FLAG_DOWN != 0 { FlowDirection::ToClient } else { FlowDirection::ToBackend };
        let share = match direction {
            FlowDirection::ToBackend => Share::Up { accepted_at_ns: share, connect_us },
            FlowDirection::ToClient => Share::Down { backend_key: share },
        };
        let [sent, acked, packets, last_ns] = [raw.u64(), raw.u64(), raw.u64(), raw.u64()];
        let [last_data_ns, fin_ns, rst_ns] = [raw.u64(), raw.u64(), raw.u64()];
        let marks = u16::from_ne_bytes(raw.take());
        let _: [u8; 2] = raw.take();
        let asked = raw.u32();
        Self {
            action: Action::decode(action),
            direction,
            onward,
            rewrite: Rewrite { seq, ack, tsval, tsecr, window_shift: window_shift as i8, clear_ecn },
            egress: if flags & FLAG_LOCAL != 0 { Egress::Local } else { Egress::Interface(interface) },
            by_lo: flags & FLAG_BY_LO != 0,
            stays_here: flags & FLAG_STAYS_HERE != 0,
            committed: flags & FLAG_COMMITTED != 0,
            held: flags & FLAG_STANDBY != 0,
            backend_slot,
            windows: Windows { own, far },
            id: FlowId(id),
            share,
            start_position,
            bytes_before,
            seen: Seen {
                sent,
                acked,
                packets,
                last_ns,
                last_data_ns,
                asked_ns: asked_ns(asked, last_ns),
                fin_ns,
                rst_ns,
                reused: marks & MARK_REUSED != 0,
            },
        }
    }
}

/// The time of the last packet that demanded an answer: the latest one up to `last_ns` with these low bits.
fn asked_ns(asked: u32, last_ns: u64) -> u64 {
    if asked == 0 {
        return 0;
    }
    let last = last_ns >> ASKED_SHIFT;
    last.saturating_sub(u64::from((last as u32).wrapping_sub(asked))) << ASKED_SHIFT
}

impl Action {
    /// The program's action for `number`: it leaves packets with an unknown one to the kernel.
    fn decode(number: u8) -> Self {
        [Self::Splice, Self::Forward, Self::Guard, Self::Reset, Self::Witness]
            .into_iter()
            .find(|action| *action as u8 == number)
            .unwrap_or(Self::Pass)
    }
}

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Both addresses, IPv4 ones mapped into IPv6 (RFC 4291 section 2.5.5.2), then both ports.
    fn ends(&mut self, ends: &Key) {
        for end in [ends.from, ends.to] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            self.put(&ip.octets());
        }
        self.put(&ends.from.port().to_be_bytes());
        self.put(&ends.to.port().to_be_bytes());
    }
}

struct Reader<'r> {
    bytes: &'r [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes[self.at..][..N].try_into().expect("it is a slice of that length");
        self.at += N;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn ends(&mut self) -> Key {
        let ips: [IpAddr; 2] = [self.take(), self.take()].map(|octets| Ipv6Addr::from_octets(octets).to_canonical());
        let [from, to] = [u16::from_be_bytes(self.take()), u16::from_be_bytes(self.take())];
        Key { from: SocketAddr::new(ips[0], from), to: SocketAddr::new(ips[1], to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_demand_is_told_from_its_low_bits_and_never_too_late() {
        for last in [5 << 40, (7 << 52) + 12_345_678, (7 << 52) - 1] {
            for before in [0, 1, 999_999, 1 << 20, 3_000_000_000, 40 * 24 * 3_600_000_000_000] {
                let Some(at) = u64::checked_sub(last, before) else { continue };
                let told = asked_ns((at >> ASKED_SHIFT) as u32, last);
                assert!(told <= at && at - told < 1 << ASKED_SHIFT, "{at} {told} {last}");
            }
        }
        assert_eq!(asked_ns(0, 5 << 40), 0);
    }
}
