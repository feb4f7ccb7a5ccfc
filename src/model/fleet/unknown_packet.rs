//! Packets of flows that nobody here knows.

use crate::model::ends::Key;
use crate::model::segment::{Flags, Segment};

/// What becomes of packets that neither an entry nor a socket knows. SYN and RST always pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Until then they are not answered, so that TCP sends them again: the records of their flows are on their way. On the
    /// monotonic clock; 0: not at all.
    pub guard_until_ns: u64,
    pub then: Then,
}

/// What becomes of them after that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// The kernel gets them.
    #[default]
    Pass,
    /// They are answered with RST.
    Reset,
    /// They are dropped, and shown to whoever can ask the other instances, up to a bound. `all_told`: all that live have told
    /// of their flows and tell on, so what has been unknown for seconds may be answered with RST unasked.
    Ask { all_told: bool },
}

/// Such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPacket {
    pub key: Key,
    pub seq: u32,
    pub ack: u32,
    /// Bytes of payload.
    pub length: u16,
    /// As in its header.
    pub flags: u8,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

impl UnknownPacket {
    /// The RST that its sender must take (RFC 9293 section 3.5.2).
    pub fn reset(&self) -> Segment {
        let behind = u32::from(self.length) + u32::from(self.flags & FIN != 0) + u32::from(self.flags & SYN != 0);
        Segment {
            from: self.key.to,
            to: self.key.from,
            seq: if self.flags & ACK != 0 { self.ack } else { 0 },
            ack: self.seq.wrapping_add(behind),
            flags: Flags::RstAck,
            window: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_stands_where_the_sender_expects_the_next_byte() {
        let key = Key { from: "10.0.0.7:40000".parse().unwrap(), to: "10.0.0.100:6443".parse().unwrap() };
        let packet = UnknownPacket { key, seq: u32::MAX, ack: 77, length: 10, flags: ACK | FIN };
        let reset = packet.reset();
        assert_eq!((reset.from, reset.to, reset.seq, reset.ack), (key.to, key.from, 77, 10));
        assert_eq!(UnknownPacket { flags: 0, ..packet }.reset().seq, 0);
    }
}
