//! Whether the kernel translates the addresses of a connection (ctnetlink: include/uapi/linux/netfilter/
//! nfnetlink_conntrack.h).

use std::io;
use std::net::SocketAddr;

use netlink_packet_core::Parseable;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, IPTuple, ProtoTuple, Tuple};
use rustix::net::netlink::NETFILTER;

use super::{ask, attributes, conntrack};

/// Source and destination.
type TupleEnds = (SocketAddr, SocketAddr);

/// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET.
const CT_GET: u16 = 1 << 8 | 1;
/// struct nfgenmsg.
const NETFILTER_HEADER_BYTES: usize = 4;

/// Whether packets from `from` to `to`, of one family, belong to a TCP connection that the kernel translates: its
/// replies do not go to `from`, or do not come from `to`. Needs CAP_NET_ADMIN; without connection tracking it is an
/// error, or false.
pub(crate) fn is_translated(from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
    if !conntrack::is_there() {
        return Ok(false);
    }
    let (header, tuple) = (conntrack::header(from), conntrack::tuple(from, to));
    let (mut there, mut back) = (None, None);
    let asked = ask(Some(NETFILTER), CT_GET, 0, &[&header, &tuple], |message| (there, back) = both(message));
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        asked => asked?,
    }
    Ok(matches!((there, back), (Some((from, to)), Some(back)) if back != (to, from)))
}

/// Source and destination of the connection's packets, and of the replies.
fn both(message: &[u8]) -> (Option<TupleEnds>, Option<TupleEnds>) {
    let (mut there, mut back) = (None, None);
    let rest = message.get(NETFILTER_HEADER_BYTES..).unwrap_or_default();
    for attribute in attributes(rest).filter_map(|it| ConntrackAttribute::parse(&it).ok()) {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => there = ends(&tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => back = ends(&tuple),
            _ => {}
        }
    }
    (there, back)
}

/// Source and destination of a tuple.
fn ends(tuple: &[Tuple]) -> Option<TupleEnds> {
    let ips = tuple.iter().filter_map(|it| if let Tuple::Ip(ips) = it { Some(ips) } else { None }).flatten();
    let ports = tuple.iter().filter_map(|it| if let Tuple::Proto(ports) = it { Some(ports) } else { None }).flatten();
    let (mut from, mut to) = ((None, 0), (None, 0));
    ips.for_each(|ip| match ip {
        IPTuple::SourceAddress(ip) => from.0 = Some(*ip),
        IPTuple::DestinationAddress(ip) => to.0 = Some(*ip),
        _ => {}
    });
    ports.for_each(|port| match port {
        ProtoTuple::SourcePort(port) => from.1 = *port,
        ProtoTuple::DestinationPort(port) => to.1 = *port,
        _ => {}
    });
    Some((SocketAddr::new(from.0?, from.1), SocketAddr::new(to.0?, to.1)))
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;

    #[test]
    fn a_tuple_is_read_as_it_is_written() {
        for [from, to] in [["10.0.0.7:40000", "10.0.0.100:30080"], ["[fd77::7]:40000", "[fd77::100]:30080"]] {
            let [from, to]: [SocketAddr; 2] = [from, to].map(|end| end.parse().unwrap());
            let sent = bytes(CT_GET, 0, 0, &[&conntrack::header(from), &conntrack::tuple(from, to)]);
            assert_eq!(both(&sent[16..]), (Some((from, to)), None));
            for length in 16..sent.len() {
                assert_eq!(both(&sent[16..length]), (None, None));
            }
            assert!(!is_translated(from, to).unwrap_or(false), "nobody knows it");
        }
    }
}
