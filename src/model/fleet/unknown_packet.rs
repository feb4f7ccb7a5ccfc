//! Packets of flows that this host does not know.

use crate::model::ends::Key;
use crate::model::segment::{Flags, Segment};

/// The rule for packets that match neither an entry nor a socket. SYN and RST always pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Until then, on the monotonic clock, they get no answer, so that TCP repeats them: the records of their flows are
    /// on their way. 0: no such time.
    pub guard_until_ns: u64,
    pub then: Then,
}

/// The rule after that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// The kernel gets the packets.
    #[default]
    Pass,
    /// Baton answers them with RST.
    Reset,
    /// The program drops the packets, and reports a limited number of them, so that the failover can ask the peers.
    /// `all_told`: all live peers have told their flows and go on telling, so the program may answer a packet that was
    /// unknown for seconds with RST without asking.
    Ask { all_told: bool },
}

/// An unknown packet.
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
    /// The RST that its sender must accept (RFC 9293 section 3.5.2).
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
