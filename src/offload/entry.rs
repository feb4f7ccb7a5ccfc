//! One direction of an offloaded flow, as the map holds it: the action on its packets, its identity, and its counters.
//!
//! `bpf/entry.h` has the same layout in C; a test of the program fails if the two differ.

mod codec;

pub use crate::model::ends::{Ends, Key};
pub use codec::{ENTRY_SIZE, KEY_SIZE, RawEntry, RawKey};

use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::ids::FlowId;
use crate::model::splice::{FlowDirection, LegState, Rewrite, Terms};

/// A flow to offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice {
    pub ends: Ends,
    pub terms: Terms,
    pub identity: Identity,
    pub up: Start,
    pub down: Start,
    /// The index of its backend's evidence; see `Program::evidence`.
    pub backend_slot: u16,
}

/// The identity of a flow that must survive the process, so that the next one can list the flow in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub id: FlowId,
    /// Nanoseconds on the monotonic clock.
    pub accepted_at_ns: u64,
    pub connect_us: u32,
    /// Identifies its frontend and its backend, whatever their indices.
    pub backend_key: u64,
}

/// The part of the identity that one of the two entries holds: they share the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Up { accepted_at_ns: u64, connect_us: u32 },
    Down { backend_key: u64 },
}

/// The start of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The interface or socket that its packets leave to.
    pub egress: Egress,
    /// Bytes that the relay has moved, the bytes in flight of this direction included.
    pub bytes_before: u64,
    /// The position behind the sender's last byte of `bytes_before`: `rcv_nxt` of its leg.
    pub position: u32,
}

/// The way that packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Through this interface, to the next hop of the route on it.
    Interface(u32),
    /// To a socket on this host.
    Local,
}

/// The program's action on a packet of the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// Leave it to the kernel, as if there were no entry.
    Pass = 0,
    /// Rewrite it and send it on.
    Splice = 1,
    /// Send it unchanged to another host.
    Forward = 2,
    /// Drop it; TCP repeats it.
    Guard = 3,
    /// Answer it with RST.
    Reset = 4,
    /// Leave it to the kernel as if there were no entry, and record its numbers: the flow has sockets, and may be
    /// offloaded.
    Witness = 5,
}

/// One direction of an offloaded flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub action: Action,
    pub direction: FlowDirection,
    /// The addresses of the packet when it leaves; for [`Action::Forward`], `to` is the next hop.
    pub onward: Key,
    pub rewrite: Rewrite,
    pub egress: Egress,
    /// Whether a socket on this host sends the packets: they arrive on `lo` once the VIP is here, too.
    pub by_lo: bool,
    /// Whether the flow was offloaded here, and its backend is on this host: it ends with this host.
    pub stays_here: bool,
    /// Whether the sockets are closed, so that the entries alone carry the flow.
    pub committed: bool,
    /// Whether another instance owns the flow.
    pub held: bool,
    pub backend_slot: u16,
    pub windows: Windows,
    pub id: FlowId,
    pub share: Share,
    pub start_position: u32,
    pub bytes_before: u64,
    pub seen: Seen,
}

/// The largest windows of the two ends, as powers of two of bytes, up to 30: the limits for jumps of their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Of the sender: the most that it acknowledges at once.
    pub own: u8,
    /// Of the receiver: the most that is sent to it at once.
    pub far: u8,
}

/// What the program counted of one direction: only segments that their receiver would accept. Times are in nanoseconds
/// on the monotonic clock; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The position behind the last sent byte, as 64 bits: the low half is the sequence number.
    pub sent: u64,
    /// The highest acknowledgement, as a position too, in the sender's own numbers.
    pub acked: u64,
    /// Segments.
    pub packets: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// Time of the last packet with payload.
    pub last_data_ns: u64,
    /// Time of the last packet that demands an answer: one with payload or FIN, or a probe. At most 1.1 ms too early;
    /// exact only if at most 52 days lie between it and the last packet.
    pub asked_ns: u64,
    /// Time of the first FIN with nothing sent beyond it. A forged or damaged FIN is never acknowledged.
    pub fin_ns: u64,
    /// Time of the first RST that its receiver must accept.
    pub rst_ns: u64,
    /// Whether its ends have begun another connection, whose packets pass to the kernel.
    pub reused: bool,
}

impl Identity {
    /// The identity from both entries of a flow; `None`: they belong to different flows.
    pub(crate) fn of(up: &Entry, down: &Entry) -> Option<Self> {
        match (up.share, down.share) {
            (Share::Up { accepted_at_ns, connect_us }, Share::Down { backend_key }) if up.id == down.id => {
                Some(Self { id: up.id, accepted_at_ns, connect_us, backend_key })
            }
            _ => None,
        }
    }

    fn share(&self, direction: FlowDirection) -> Share {
        match direction {
            FlowDirection::ToBackend => Share::Up { accepted_at_ns: self.accepted_at_ns, connect_us: self.connect_us },
            FlowDirection::ToClient => Share::Down { backend_key: self.backend_key },
        }
    }
}

impl Entry {
    /// The four ends of the flow with this entry at `key`.
    pub fn ends(&self, key: Key) -> Ends {
        let (near, far) = match self.direction {
            FlowDirection::ToBackend => (key, self.onward),
            FlowDirection::ToClient => (self.onward.reversed(), key.reversed()),
        };
        Ends {
            client: ClientAddr::new(near.from),
            vip: VipAddr::new(near.to),
            local: LocalAddr::new(far.from),
            backend: BackendAddr::new(far.to),
        }
    }

    /// Bytes of the sender's stream, including those before the offload. Retransmissions count once.
    pub fn bytes(&self) -> u64 {
        let fin = u64::from(self.seen.fin_ns != 0);
        self.bytes_before + self.seen.sent.saturating_sub(u64::from(self.start_position)).saturating_sub(fin)
    }

    /// The sender's acknowledgement of the other direction, in the numbers of the other leg.
    pub fn taken(&self) -> u32 {
        (self.seen.acked as u32).wrapping_add(self.rewrite.ack)
    }
}

impl Entry {
    /// A witness entry of a proxied flow, which shows the addresses that its packets have on the wire.
    ///
    /// `to_here`: its backend is on this host.
    pub(crate) fn witness(id: FlowId, ends: &Ends, direction: FlowDirection, to_here: bool) -> Self {
        Self {
            action: Action::Witness,
            direction,
            onward: ends.onward(direction),
            rewrite: Rewrite::default(),
            egress: Egress::Interface(0),
            by_lo: to_here && direction == FlowDirection::ToClient,
            stays_here: false,
            committed: false,
            held: false,
            backend_slot: 0,
            windows: Windows::default(),
            id,
            share: match direction {
                FlowDirection::ToBackend => Share::Up { accepted_at_ns: 0, connect_us: 0 },
                FlowDirection::ToClient => Share::Down { backend_key: 0 },
            },
            start_position: 0,
            bytes_before: 0,
            seen: Seen::default(),
        }
    }

    /// Whether the entry is only a witness of flow `id`.
    pub(crate) fn is_witness_of(&self, id: FlowId) -> bool {
        self.action == Action::Witness && self.id == id
    }

    /// Whether the program saw a segment with the numbers that the socket of its leg knows, up to the segments that are
    /// on their way. A SYNPROXY on this host may put other numbers on the wire, though the addresses are the same.
    pub(crate) fn shows(&self, leg: &LegState) -> bool {
        let near = |seen: u64, known: u32| (seen as u32).wrapping_sub(known).wrapping_add(UNDER_WAY) <= 2 * UNDER_WAY;
        self.seen.packets > 0 && near(self.seen.sent, leg.rcv_nxt) && near(self.seen.acked, leg.snd_una)
    }
}

/// How far, in bytes, the last segment may differ from its socket's state of a moment ago.
const UNDER_WAY: u32 = 1 << 20;

impl Splice {
    /// The entry of one direction, as it is installed.
    pub fn entry(&self, direction: FlowDirection) -> Entry {
        let terms = &self.terms;
        // All bytes that this host sent are acknowledged: otherwise the flow would have no terms.
        let (rewrite, start, back, acked, own, far) = match direction {
            FlowDirection::ToBackend => {
                let acked = terms.client_must_ack.wrapping_sub(terms.in_flight_to_client);
                (terms.up, self.up, self.down, acked, terms.client_window, terms.backend_window)
            }
            FlowDirection::ToClient => {
                let acked = terms.backend_must_ack.wrapping_sub(terms.in_flight_to_backend);
                (terms.down, self.down, self.up, acked, terms.backend_window, terms.client_window)
            }
        };
        Entry {
            action: Action::Splice,
            direction,
            onward: self.ends.onward(direction),
            rewrite,
            egress: start.egress,
            by_lo: back.egress == Egress::Local,
            stays_here: self.up.egress == Egress::Local,
            committed: false,
            held: false,
            backend_slot: self.backend_slot,
            windows: Windows { own, far },
            id: self.identity.id,
            share: self.identity.share(direction),
            start_position: start.position,
            bytes_before: start.bytes_before,
            seen: Seen { sent: start.position.into(), acked: acked.into(), ..Seen::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        Ends {
            client: ClientAddr::new("10.0.0.7:40000".parse().unwrap()),
            vip: VipAddr::new("10.0.0.100:6443".parse().unwrap()),
            local: LocalAddr::new("10.0.0.100:33333".parse().unwrap()),
            backend: BackendAddr::new("10.0.0.11:6443".parse().unwrap()),
        }
    }

    fn splice() -> Splice {
        let rewrite = |from: u32, window_shift| Rewrite {
            seq: from,
            ack: from + 1,
            tsval: from + 2,
            tsecr: from + 3,
            window_shift,
            clear_ecn: window_shift < 0,
        };
        Splice {
            ends: ends(),
            terms: Terms {
                up: rewrite(100, 3),
                down: rewrite(200, -3),
                in_flight_to_backend: 5,
                in_flight_to_client: 7,
                backend_must_ack: 1005,
                client_must_ack: 2007,
                client_window: 23,
                backend_window: 16,
            },
            identity: Identity { id: FlowId(9), accepted_at_ns: 1 << 40, connect_us: 250, backend_key: 77 },
            up: Start { egress: Egress::Interface(4), bytes_before: 1 << 33, position: u32::MAX - 1 },
            down: Start { egress: Egress::Local, bytes_before: 11, position: 17 },
            backend_slot: 3,
        }
    }

    #[test]
    fn keys_and_entries_survive_the_map() {
        for direction in [FlowDirection::ToBackend, FlowDirection::ToClient] {
            let mut entry = splice().entry(direction);
            entry.seen.fin_ns = 5;
            entry.seen.reused = true;
            (entry.seen.last_ns, entry.seen.asked_ns) = (9 << 40, 7 << 40);
            assert_eq!(Entry::decode(&entry.encode()), entry);
            let key = ends().key(direction);
            assert_eq!(Key::decode(&key.encode()), key);
            assert_eq!(entry.ends(key), ends());
        }
        let six = Key { from: "[2001:db8::7]:1".parse().unwrap(), to: "[2001:db8::1]:2".parse().unwrap() };
        assert_eq!(Key::decode(&six.encode()), six);
    }

    #[test]
    fn the_two_entries_hold_the_identity_together() {
        let [up, down] = [FlowDirection::ToBackend, FlowDirection::ToClient].map(|direction| splice().entry(direction));
        assert_eq!(Identity::of(&up, &down), Some(splice().identity));
        assert_eq!(Identity::of(&up, &Entry { id: FlowId(1), ..down }), None);
        assert_eq!(Identity::of(&down, &up), None);
    }

    #[test]
    fn the_sockets_acknowledgements_count_before_the_bytes_in_flight_does() {
        let up = splice().entry(FlowDirection::ToBackend);
        let down = splice().entry(FlowDirection::ToClient);
        let acked = |entry: &Entry, position: u32| (entry.seen.acked as u32).wrapping_sub(position) < 1 << 31;
        assert!(acked(&up, 2000) && !acked(&up, 2007));
        assert!(acked(&down, 1000) && !acked(&down, 1005));
    }

    #[test]
    fn bytes_go_on_from_the_relays_past_4_gib_and_without_the_fin() {
        let mut up = splice().entry(FlowDirection::ToBackend);
        assert_eq!(up.bytes(), 1 << 33);
        up.seen.sent += 5_000_000_001;
        up.seen.fin_ns = 1;
        assert_eq!(up.bytes(), (1 << 33) + 5_000_000_000);
    }
}
