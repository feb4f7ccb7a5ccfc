//! A TCP segment, whole with its IP header: resets or challenges a connection without a socket here, or gives a socket
//! the acknowledgement of its far end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The flags of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// Makes the far end answer with its own numbers, if `seq` is one below what it expects (RFC 9293 section 3.8.4).
    Ack,
    /// Makes the far end answer with its own numbers, whatever `seq` is (RFC 5961 section 4.2). A firewall that tracks
    /// connections lets it pass towards the end that began the connection, as a retransmission.
    SynAck,
    /// Ends the connection, if `seq` is exactly what the far end expects (RFC 5961 section 3.2).
    RstAck,
}

/// One segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    /// As in the header, before any scaling.
    pub window: u16,
}

const TCP_LENGTH: u16 = 20;
const TCP: u8 = 6;
const HOPS: u8 = 64;

impl Segment {
    /// The packet. `None`: the two ends are of different families.
    pub fn packet(&self) -> Option<Vec<u8>> {
        self.packet_of_zeros(0)
    }

    /// The packet with so many zeros as payload, at most 65,000.
    pub(crate) fn packet_of_zeros(&self, count: u16) -> Option<Vec<u8>> {
        let mut packet = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.over_v4(from, to, count),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.over_v6(from, to, count),
            _ => return None,
        };
        packet.resize(packet.len() + usize::from(count), 0);
        Some(packet)
    }

    fn over_v4(&self, from: Ipv4Addr, to: Ipv4Addr, payload: u16) -> Vec<u8> {
        let length = TCP_LENGTH + payload;
        let mut header = Vec::with_capacity(40 + usize::from(payload));
        header.extend([0x45, 0]);
        header.extend((20 + length).to_be_bytes());
        // Never a fragment, so its identification has no meaning (RFC 6864).
        header.extend([0, 0, 0x40, 0, HOPS, TCP, 0, 0]);
        header.extend(from.octets());
        header.extend(to.octets());
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let pseudo = [&from.octets()[..], &to.octets(), &[0, TCP], &length.to_be_bytes()].concat();
        header.extend(self.tcp(&pseudo));
        header
    }

    fn over_v6(&self, from: Ipv6Addr, to: Ipv6Addr, payload: u16) -> Vec<u8> {
        let length = TCP_LENGTH + payload;
        let mut header = Vec::with_capacity(60 + usize::from(payload));
        header.extend([0x60, 0, 0, 0]);
        header.extend(length.to_be_bytes());
        header.extend([TCP, HOPS]);
        header.extend(from.octets());
        header.extend(to.octets());
        let length = u32::from(length).to_be_bytes();
        let pseudo = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, TCP]].concat();
        header.extend(self.tcp(&pseudo));
        header
    }

    /// The header; zeros after it add only their number to the checksum, which is in `pseudo`.
    fn tcp(&self, pseudo: &[u8]) -> Vec<u8> {
        let flags = match self.flags {
            Flags::Ack => 0x10,
            Flags::SynAck => 0x12,
            Flags::RstAck => 0x14,
        };
        let mut tcp = Vec::with_capacity(TCP_LENGTH.into());
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([0x50, flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0, 0, 0]);
        let sum = checksum(&[pseudo, &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }
}

/// The checksum of the parts one after the other, each of an even length (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let pairs = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: &str, to: &str) -> Segment {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Segment { from, to, seq: 0x0102_0304, ack: 0xfffe_fdfc, flags: Flags::RstAck, window: 7 }
    }

    #[test]
    fn checksums_cover_header_and_segment() {
        let v4 = segment("10.0.0.100:6443", "10.0.0.7:40000").packet().unwrap();
        assert_eq!((v4.len(), checksum(&[&v4[..20]])), (40, 0));
        let pseudo = [&v4[12..20], &[0, TCP, 0, 20]].concat();
        assert_eq!(checksum(&[&pseudo, &v4[20..]]), 0);
        let v6 = segment("[2001:db8::1]:6443", "[2001:db8::7]:40000").packet().unwrap();
        let pseudo = [&v6[8..40], &[0, 0, 0, 20, 0, 0, 0, TCP]].concat();
        assert_eq!((v6.len(), checksum(&[&pseudo, &v6[40..]])), (60, 0));
        assert_eq!(segment("10.0.0.1:1", "[::1]:1").packet(), None);
        let filled = segment("10.0.0.100:6443", "10.0.0.7:40000").packet_of_zeros(1001).unwrap();
        let pseudo = [&filled[12..20], &[0, TCP], &1021u16.to_be_bytes()].concat();
        assert_eq!((filled.len(), checksum(&[&filled[..20]])), (1041, 0));
        assert_eq!((checksum(&[&pseudo, &filled[20..1040]]), filled[1040]), (0, 0));
    }

    #[test]
    fn numbers_stand_where_they_belong() {
        let packet = segment("10.0.0.100:6443", "10.0.0.7:40000").packet().unwrap();
        assert_eq!(&packet[20..34], [0x19, 0x2b, 0x9c, 0x40, 1, 2, 3, 4, 0xff, 0xfe, 0xfd, 0xfc, 0x50, 0x14]);
    }
}
