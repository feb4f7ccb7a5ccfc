//! The PROXY protocol, versions 1 and 2 (HAProxy's doc/proxy-protocol.txt): a proxy states the client's address before
//! the client's own bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;

use crate::addr::{ClientAddr, VipAddr};

/// Limit for the length of a header. Version 2 allows 64 KiB, but no proxy sends nearly as much.
pub(crate) const HEADER_LENGTH_MAX: usize = 4096;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parse {
    /// The beginning of a header, or nothing yet.
    Incomplete,
    Header {
        /// In bytes; the bytes after it are the client's.
        length: usize,
        /// The client, and the address that it connected to. `None`: the connection is the proxy's own (LOCAL), or the
        /// header does not state them (UNKNOWN, UNSPEC); then the connection's own addresses apply.
        source: Option<(ClientAddr, VipAddr)>,
    },
    /// Not a valid header, whatever follows.
    Invalid(HeaderError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("the connection does not begin with a PROXY protocol header")]
    NoHeader,
    #[error("a PROXY protocol v1 header without its end of line within 107 bytes")]
    V1TooLong,
    #[error("a PROXY protocol v1 header whose protocol is not TCP4, TCP6 or UNKNOWN")]
    V1Protocol,
    #[error("a PROXY protocol v1 header with a malformed address or port")]
    V1Address,
    #[error("a binary PROXY protocol header of version {0}, not 2")]
    Version(u8),
    #[error("a PROXY protocol v2 header with the unknown command {0}")]
    Command(u8),
    #[error("a PROXY protocol v2 header of the family and protocol {0:#04x}, not TCP over IPv4 or IPv6")]
    Family(u8),
    #[error("a PROXY protocol v2 header too short for its addresses: {length} bytes")]
    TooShort { length: usize },
    #[error("a PROXY protocol v2 header of {length} bytes, above 4096")]
    TooLong { length: usize },
}

/// An encoded version 2 header; derefs to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeaderV2 {
    bytes: [u8; V2_FIXED_LENGTH + IPV6_LENGTH],
    length: usize,
}

impl Deref for HeaderV2 {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Parses all bytes received so far.
pub(crate) fn parse(bytes: &[u8]) -> Parse {
    let parsed = if begins(bytes, V1_START) {
        parse_v1(bytes)
    } else if begins(bytes, V2_SIGNATURE) {
        parse_v2(bytes)
    } else {
        Err(HeaderError::NoHeader)
    };
    match parsed {
        Ok(Some((length, source))) => Parse::Header { length, source },
        Ok(None) => Parse::Incomplete,
        Err(error) => Parse::Invalid(error),
    }
}

/// A version 2 header with the command PROXY. If the two families differ, both addresses are written as IPv6, the IPv4
/// one mapped (RFC 4291 section 2.5.5.2).
pub fn encode_v2(client: ClientAddr, vip: VipAddr) -> HeaderV2 {
    let mut bytes = [0; V2_FIXED_LENGTH + IPV6_LENGTH];
    let (fixed, addresses) = bytes.split_at_mut(V2_FIXED_LENGTH);
    let (family, length) = match (client.ip(), vip.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            addresses[..4].copy_from_slice(&source.octets());
            addresses[4..8].copy_from_slice(&destination.octets());
            (TCP_OVER_IPV4, IPV4_LENGTH)
        }
        (source, destination) => {
            addresses[..16].copy_from_slice(&as_ipv6(source).octets());
            addresses[16..32].copy_from_slice(&as_ipv6(destination).octets());
            (TCP_OVER_IPV6, IPV6_LENGTH)
        }
    };
    addresses[length - 4..length - 2].copy_from_slice(&client.port().to_be_bytes());
    addresses[length - 2..length].copy_from_slice(&vip.port().to_be_bytes());
    fixed[..12].copy_from_slice(V2_SIGNATURE);
    fixed[12] = VERSION_2 | COMMAND_PROXY;
    fixed[13] = family;
    fixed[14..].copy_from_slice(&(length as u16).to_be_bytes());
    HeaderV2 { bytes, length: V2_FIXED_LENGTH + length }
}

/// Length and source; `None`: more bytes are needed.
type Parsed = Result<Option<(usize, Option<(ClientAddr, VipAddr)>)>, HeaderError>;

/// Whether `bytes` begin with `start`, as far as both go.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(byte, expected)| byte == expected)
}

fn parse_v1(bytes: &[u8]) -> Parsed {
    let head = &bytes[..bytes.len().min(V1_LENGTH_MAX)];
    let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") else {
        return if head.len() == V1_LENGTH_MAX { Err(HeaderError::V1TooLong) } else { Ok(None) };
    };
    let fields = head[V1_START.len()..end].split(|byte| *byte == b' ').collect::<Vec<_>>();
    let source = match fields[..] {
        [b"UNKNOWN", ..] => None,
        [b"TCP4", ref rest @ ..] => Some(v1_addresses::<Ipv4Addr>(rest).ok_or(HeaderError::V1Address)?),
        [b"TCP6", ref rest @ ..] => Some(v1_addresses::<Ipv6Addr>(rest).ok_or(HeaderError::V1Address)?),
        _ => return Err(HeaderError::V1Protocol),
    };
    Ok(Some((end + 2, source)))
}

fn v1_addresses<Ip: std::str::FromStr + Into<IpAddr>>(fields: &[&[u8]]) -> Option<(ClientAddr, VipAddr)> {
    let &[source, destination, source_port, destination_port] = fields else { return None };
    let ip = |field| std::str::from_utf8(field).ok()?.parse::<Ip>().ok().map(Into::into);
    let source = SocketAddr::new(ip(source)?, v1_port(source_port)?);
    let destination = SocketAddr::new(ip(destination)?, v1_port(destination_port)?);
    Some((ClientAddr::new(source), VipAddr::new(destination)))
}

/// Decimal, without a sign or leading zeros.
fn v1_port(field: &[u8]) -> Option<u16> {
    let plain = field.iter().all(u8::is_ascii_digit) && (field.len() == 1 || field.first() != Some(&b'0'));
    std::str::from_utf8(field).ok().filter(|_| plain)?.parse().ok()
}

fn parse_v2(bytes: &[u8]) -> Parsed {
    let Some(fixed) = bytes.first_chunk::<V2_FIXED_LENGTH>() else { return Ok(None) };
    let [.., version_command, family, length_high, length_low] = *fixed;
    if version_command & 0xf0 != VERSION_2 {
        return Err(HeaderError::Version(version_command >> 4));
    }
    let length = V2_FIXED_LENGTH + usize::from(u16::from_be_bytes([length_high, length_low]));
    if length > HEADER_LENGTH_MAX {
        return Err(HeaderError::TooLong { length });
    }
    let addresses_length = match (version_command & 0x0f, family) {
        // The family of a LOCAL connection must be ignored.
        (COMMAND_LOCAL, _) | (COMMAND_PROXY, UNSPECIFIED) => 0,
        (COMMAND_PROXY, TCP_OVER_IPV4) => IPV4_LENGTH,
        (COMMAND_PROXY, TCP_OVER_IPV6) => IPV6_LENGTH,
        (COMMAND_PROXY, family) => return Err(HeaderError::Family(family)),
        (command, _) => return Err(HeaderError::Command(command)),
    };
    if length < V2_FIXED_LENGTH + addresses_length {
        return Err(HeaderError::TooShort { length });
    }
    // Type-length-values may follow the addresses; they are skipped.
    let Some(rest) = bytes.get(V2_FIXED_LENGTH..length) else { return Ok(None) };
    let source = match addresses_length {
        IPV4_LENGTH => v2_addresses::<4>(rest),
        IPV6_LENGTH => v2_addresses::<16>(rest),
        _ => None,
    };
    Ok(Some((length, source)))
}

/// Source, destination, source port, destination port, all big-endian; `WIDTH` is an address's.
fn v2_addresses<const WIDTH: usize>(bytes: &[u8]) -> Option<(ClientAddr, VipAddr)>
where
    IpAddr: From<[u8; WIDTH]>,
{
    let (source, rest) = bytes.split_first_chunk::<WIDTH>()?;
    let (destination, rest) = rest.split_first_chunk::<WIDTH>()?;
    let (source_port, rest) = rest.split_first_chunk::<2>()?;
    let destination_port = rest.first_chunk::<2>()?;
    let source = SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes(*source_port));
    let destination = SocketAddr::new(IpAddr::from(*destination), u16::from_be_bytes(*destination_port));
    Some((ClientAddr::new(source), VipAddr::new(destination)))
}

fn as_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

const V1_START: &[u8] = b"PROXY ";
/// Including the end of line.
const V1_LENGTH_MAX: usize = 107;
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and protocol, length of the rest.
const V2_FIXED_LENGTH: usize = 16;
const VERSION_2: u8 = 0x20;
const COMMAND_LOCAL: u8 = 0x0;
const COMMAND_PROXY: u8 = 0x1;
const UNSPECIFIED: u8 = 0x00;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
/// Two addresses and two ports.
const IPV4_LENGTH: usize = 12;
const IPV6_LENGTH: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(client: &str, vip: &str) -> (ClientAddr, VipAddr) {
        (ClientAddr::new(client.parse().unwrap()), VipAddr::new(vip.parse().unwrap()))
    }

    fn v2(version_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [&V2_SIGNATURE[..], &[version_command, family], &length, rest].concat()
    }

    #[test]
    fn a_v1_header_names_the_client() {
        let text = b"PROXY TCP4 192.0.2.7 10.0.0.100 51234 6443\r\n\x16\x03\x01";
        let source = Some(pair("192.0.2.7:51234", "10.0.0.100:6443"));
        assert_eq!(parse(text), Parse::Header { length: text.len() - 3, source });
        let text = b"PROXY TCP6 2001:db8::7 2001:db8::100 0 65535\r\n";
        let source = Some(pair("[2001:db8::7]:0", "[2001:db8::100]:65535"));
        assert_eq!(parse(text), Parse::Header { length: text.len(), source });
        for text in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN ffff::1 x 1 2\r\n"] {
            assert_eq!(parse(text), Parse::Header { length: text.len(), source: None });
        }
    }

    #[test]
    fn a_malformed_v1_header_is_invalid() {
        let wrong = [
            "TCP4 192.0.2.7 10.0.0.100 51234",
            "TCP4 192.0.2.7 10.0.0.100 51234 6443 1",
            "TCP4 192.0.2.7 10.0.0.100 51234 65536",
            "TCP4 192.0.2.7 10.0.0.100 +1 6443",
            "TCP4 192.0.2.7 10.0.0.100 01 6443",
            "TCP4 192.0.2.7  10.0.0.100 1 6443",
            "TCP4 2001:db8::7 2001:db8::1 1 2",
            "TCP6 192.0.2.7 10.0.0.1 1 2",
            "TCP4 192.0.2.007 10.0.0.1 1 2",
            "TCP4",
            "TCP4 192.0.2.7 10.0.0.1 1 ",
            "TCP4 192.0.2.7 10.0.0.1 1 2\n",
        ];
        for fields in wrong {
            let text = format!("PROXY {fields}\r\n");
            assert_eq!(parse(text.as_bytes()), Parse::Invalid(HeaderError::V1Address), "{fields}");
        }
        for fields in ["", "UDP4 192.0.2.7 10.0.0.1 1 2", "tcp4 192.0.2.7 10.0.0.1 1 2", "UNKNOWN2"] {
            let text = format!("PROXY {fields}\r\n");
            assert_eq!(parse(text.as_bytes()), Parse::Invalid(HeaderError::V1Protocol), "{fields}");
        }
    }

    #[test]
    fn a_v1_header_ends_within_107_bytes() {
        let filler = "x".repeat(V1_LENGTH_MAX - b"PROXY UNKNOWN \r\n".len());
        let longest = format!("PROXY UNKNOWN {filler}\r\n");
        assert_eq!(parse(longest.as_bytes()), Parse::Header { length: 107, source: None });
        let longer = format!("PROXY UNKNOWN {filler}x\r\n");
        assert_eq!(parse(longer.as_bytes()), Parse::Invalid(HeaderError::V1TooLong));
    }

    #[test]
    fn a_client_without_a_header_is_told_from_its_first_byte() {
        for bytes in [&b"\x16\x03\x01"[..], b"GET / HTTP/1.1\r\n", b"PROXX", b"\r\n\r\n\0\r\nQUIT\r", b"\n"] {
            assert_eq!(parse(bytes), Parse::Invalid(HeaderError::NoHeader));
        }
    }

    #[test]
    fn values_after_the_addresses_are_skipped() {
        let (client, vip) = pair("192.0.2.7:51234", "10.0.0.100:6443");
        let addresses = &encode_v2(client, vip)[V2_FIXED_LENGTH..];
        let header = v2(0x21, TCP_OVER_IPV4, &[addresses, &[0x03, 0, 4, 1, 2, 3, 4]].concat());
        let sent = [&header[..], b"hello"].concat();
        assert_eq!(parse(&sent), Parse::Header { length: header.len(), source: Some((client, vip)) });
    }

    #[test]
    fn a_proxy_that_speaks_for_itself_has_no_source() {
        for (command, family) in [(0x20, 0x00), (0x20, 0x11), (0x20, 0x77), (0x21, 0x00)] {
            let header = v2(command, family, &[9; 12]);
            assert_eq!(parse(&header), Parse::Header { length: 28, source: None });
        }
    }

    #[test]
    fn other_v2_headers_are_invalid_before_their_end() {
        let cases = [
            (v2(0x11, 0x11, &[0; 12]), HeaderError::Version(1)),
            (v2(0x22, 0x11, &[0; 12]), HeaderError::Command(2)),
            (v2(0x21, 0x12, &[0; 12]), HeaderError::Family(0x12)),
            (v2(0x21, 0x31, &[0; 216]), HeaderError::Family(0x31)),
            (v2(0x21, 0x11, &[0; 11]), HeaderError::TooShort { length: 27 }),
            (v2(0x21, 0x21, &[0; 35]), HeaderError::TooShort { length: 51 }),
            (v2(0x20, 0x00, &[0; 4081]), HeaderError::TooLong { length: 4097 }),
        ];
        for (header, error) in cases {
            assert_eq!(parse(&header[..V2_FIXED_LENGTH]), Parse::Invalid(error));
            assert_eq!(parse(&header), Parse::Invalid(error));
        }
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    fn v1_text(client: SocketAddr, vip: SocketAddr) -> Option<String> {
        let protocol = match (client.ip(), vip.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => "TCP4",
            (IpAddr::V6(_), IpAddr::V6(_)) => "TCP6",
            _ => return None,
        };
        Some(format!("PROXY {protocol} {} {} {} {}\r\n", client.ip(), vip.ip(), client.port(), vip.port()))
    }

    proptest! {
        #[test]
        fn what_is_encoded_reads_back(client in address(), vip in address(), more: Vec<u8>) {
            let (client, vip) = (ClientAddr::new(client), VipAddr::new(vip));
            let header = encode_v2(client, vip);
            let sent = [&header[..], &more].concat();
            prop_assert_eq!(parse(&sent), Parse::Header { length: header.len(), source: Some((client, vip)) });
        }

        #[test]
        fn every_prefix_of_a_header_is_incomplete(client in address(), vip in address()) {
            let source = Some((ClientAddr::new(client), VipAddr::new(vip)));
            let binary = encode_v2(ClientAddr::new(client), VipAddr::new(vip)).to_vec();
            let text = v1_text(client, vip).map(String::into_bytes);
            for header in [Some(binary), text].into_iter().flatten() {
                prop_assert_eq!(parse(&header), Parse::Header { length: header.len(), source });
                for end in 0..header.len() {
                    prop_assert_eq!(parse(&header[..end]), Parse::Incomplete);
                }
            }
        }

        #[test]
        fn random_bytes_never_take_more_than_there_is(
            start in prop::sample::select(vec![&b""[..], V1_START, b"PROXY TCP4 ", V2_SIGNATURE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"]),
            more: Vec<u8>,
        ) {
            let bytes = [start, &more].concat();
            if let Parse::Header { length, .. } = parse(&bytes) {
                prop_assert!(length <= bytes.len() && length <= HEADER_LENGTH_MAX);
                prop_assert_eq!(parse(&bytes[..length - 1]), Parse::Incomplete);
            }
        }

        /// A result is final: later bytes do not change it.
        #[test]
        fn a_refused_start_stays_refused(bytes: Vec<u8>, more: Vec<u8>) {
            if let Parse::Invalid(error) = parse(&bytes) {
                prop_assert_eq!(parse(&[bytes, more].concat()), Parse::Invalid(error));
            }
        }
    }
}
