//! Whether the kernel translates the addresses of a connection (ctnetlink: include/uapi/linux/netfilter/
//! nfnetlink_conntrack.h).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::NETFILTER;

use super::{ask_of, attributes, conntrack, family, ip, octets, put};

/// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET.
const CT_GET: u16 = 1 << 8 | 1;
const NLA_F_NESTED: u16 = 0x8000;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Of IPv4; those of IPv6 are two above.
const CTA_IP_SRC: u16 = 1;
const CTA_IP_DST: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPPROTO_TCP: u8 = 6;
/// struct nfgenmsg: family, version, res_id.
const HEAD_BYTES: usize = 4;

/// Whether packets from `from` to `to`, of one family, belong to a TCP connection that the kernel translates: what comes
/// back goes elsewhere than to `from`, or comes from elsewhere than `to`. Needs CAP_NET_ADMIN; without connection tracking
/// it is an error, or false.
pub fn is_translated(from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
    if !conntrack::is_there() {
        return Ok(false);
    }
    let mut body = vec![family(from.ip()), 0, 0, 0];
    put(&mut body, CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple(from, to));
    let (mut there, mut back) = (None, None);
    let asked = ask_of(Some(NETFILTER), CT_GET, 0, &body, |message| {
        for (kind, value) in attributes(message.get(HEAD_BYTES..).unwrap_or_default()) {
            match kind {
                CTA_TUPLE_ORIG => there = ends(value),
                CTA_TUPLE_REPLY => back = ends(value),
                _ => {}
            }
        }
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        asked => asked?,
    }
    Ok(matches!((there, back), (Some((from, to)), Some(back)) if back != (to, from)))
}

fn tuple(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let v6 = if from.is_ipv6() { 2 } else { 0 };
    let (mut addresses, mut ports, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
    put(&mut addresses, CTA_IP_SRC + v6, &octets(from.ip()));
    put(&mut addresses, CTA_IP_DST + v6, &octets(to.ip()));
    put(&mut ports, CTA_PROTO_NUM, &[IPPROTO_TCP]);
    put(&mut ports, CTA_PROTO_SRC_PORT, &from.port().to_be_bytes());
    put(&mut ports, CTA_PROTO_DST_PORT, &to.port().to_be_bytes());
    put(&mut tuple, CTA_TUPLE_IP | NLA_F_NESTED, &addresses);
    put(&mut tuple, CTA_TUPLE_PROTO | NLA_F_NESTED, &ports);
    tuple
}

/// Source and destination of a tuple.
fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (mut addresses, mut ports) = ([None::<IpAddr>; 2], [0u16; 2]);
    for (kind, value) in attributes(tuple) {
        for (inner, value) in attributes(value) {
            match (kind, inner) {
                (CTA_TUPLE_IP, CTA_IP_SRC | 3) => addresses[0] = ip(value),
                (CTA_TUPLE_IP, CTA_IP_DST | 4) => addresses[1] = ip(value),
                (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => ports[0] = u16::from_be_bytes(value.try_into().ok()?),
                (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => ports[1] = u16::from_be_bytes(value.try_into().ok()?),
                _ => {}
            }
        }
    }
    let [src, dst] = addresses;
    Some((SocketAddr::new(src?, ports[0]), SocketAddr::new(dst?, ports[1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_is_read_as_it_is_written() {
        for [from, to] in [["10.0.0.7:40000", "10.0.0.100:30080"], ["[fd77::7]:40000", "[fd77::100]:30080"]] {
            let [from, to]: [SocketAddr; 2] = [from, to].map(|end| end.parse().unwrap());
            assert_eq!(ends(&tuple(from, to)), Some((from, to)));
            assert!(!is_translated(from, to).unwrap_or(false), "nobody knows it");
        }
    }
}
