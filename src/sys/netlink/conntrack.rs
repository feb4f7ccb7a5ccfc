//! Removes single entries from connection tracking, and reads how full its table is (ctnetlink:
//! include/uapi/linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_conntrack_netlink.c).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use netlink_packet_core::{ErrorBuffer, NLM_F_ACK, NLMSG_ERROR};
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, IPTuple, ProtoTuple, Protocol, Tuple};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterProtoFamily};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with};

use super::{bytes, messages};

/// The load of the table of this thread's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLoad {
    pub entries: u64,
    /// Of the whole host.
    pub entries_max: u64,
}

/// The results of removals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub removed: u64,
    /// Connections that were not tracked.
    pub unknown: u64,
    /// An errno of the connections whose removal the kernel refused.
    pub refused: Option<i32>,
}

/// A socket for removals. Needs CAP_NET_ADMIN.
#[derive(Debug)]
pub(crate) struct Tracking(OwnedFd);

/// Connections of one call: their answers fit into any receive buffer.
pub(crate) const BATCH: usize = 64;

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE.
const CT_DELETE: u16 = 1 << 8 | 2;

/// `None`: this host tracks no connections.
pub(crate) fn load() -> io::Result<Option<TableLoad>> {
    let number = |path| {
        let text = std::fs::read_to_string(path)?;
        text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    match (number(COUNT), number(MAX)) {
        (Ok(entries), Ok(entries_max)) => Ok(Some(TableLoad { entries, entries_max })),
        (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Whether connections may be tracked here. A request to ctnetlink would load conntrack where it is not loaded.
pub(crate) fn is_there() -> bool {
    std::path::Path::new(COUNT).exists()
}

impl Tracking {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))
            .map(Self)
            .map_err(Into::into)
    }

    /// Removes at most [`BATCH`] TCP connections, given by source and destination of either direction's packets, in
    /// zone 0. When this returns, the kernel has removed them, and treats the next packet of each as untracked.
    pub(crate) fn forget(&self, connections: &[(SocketAddr, SocketAddr)]) -> io::Result<Forgotten> {
        let wanted = connections.len().min(BATCH);
        let mut request = Vec::new();
        for (number, (from, to)) in connections[..wanted].iter().enumerate() {
            request.extend(removal(number as u32, *from, *to));
        }
        sendto(&self.0, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut forgotten = Forgotten::default();
        let (mut buffer, mut answers) = (vec![0; 32 * 1024], 0);
        while answers < wanted {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => answers += count(&buffer[..length], &mut forgotten),
                // All answers have arrived.
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                // Some answers did not fit; their removals are done nevertheless.
                Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(forgotten)
    }
}

/// One message. It must contain its tuple: without one it would empty the table.
fn removal(number: u32, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    bytes(CT_DELETE, NLM_F_ACK, number, &[&header(from), &tuple(from, to)])
}

/// The header of a message about a connection of the family of `end`.
pub(super) fn header(end: SocketAddr) -> NetfilterHeader {
    let family = if end.is_ipv4() { NetfilterProtoFamily::IPv4 } else { NetfilterProtoFamily::IPv6 };
    NetfilterHeader::new(family, 0, 0)
}

/// The TCP connection that packets from `from` to `to` belong to.
pub(super) fn tuple(from: SocketAddr, to: SocketAddr) -> ConntrackAttribute {
    let ips = vec![IPTuple::SourceAddress(from.ip()), IPTuple::DestinationAddress(to.ip())];
    let ports = [ProtoTuple::SourcePort(from.port()), ProtoTuple::DestinationPort(to.port())];
    let ports = [ProtoTuple::Protocol(Protocol::Tcp)].into_iter().chain(ports).collect();
    ConntrackAttribute::CtaTupleOrig(vec![Tuple::Ip(ips), Tuple::Proto(ports)])
}

/// Counts the answers in `messages`; each is a `struct nlmsgerr`.
fn count(raw: &[u8], forgotten: &mut Forgotten) -> usize {
    let mut answers = 0;
    for message in messages(raw).map_while(Result::ok).filter(|it| it.message_type() == NLMSG_ERROR) {
        answers += 1;
        match ErrorBuffer::new_checked(message.payload()).map(|error| error.code().map_or(0, |code| -code.get())) {
            Ok(0) => forgotten.removed += 1,
            Ok(libc::ENOENT) => forgotten.unknown += 1,
            Ok(errno) => forgotten.refused = Some(errno),
            Err(_) => forgotten.refused = Some(libc::EBADMSG),
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that an earlier Baton with its own code sent, and that `conntrack -D -p tcp -s 10.0.0.1 -d 10.0.0.2
    /// --sport 1000 --dport 6443` sends; never without a tuple.
    #[test]
    fn a_removal_names_one_connection() {
        // struct nlmsghdr with IPCTNL_MSG_CT_DELETE and number 7, struct nfgenmsg.
        let header = |length, family: i32| [length, 0, 0, 0, 2, 1, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, family as u8, 0, 0, 0];
        // CTA_TUPLE_PROTO: protocol and both ports.
        let proto = [28, 0, 2, 128, 5, 0, 1, 0, 6, 0, 0, 0, 6, 0, 2, 0, 3, 232, 0, 0, 6, 0, 3, 0, 25, 43, 0, 0];
        let ips = [20, 0, 1, 128, 8, 0, 1, 0, 10, 0, 0, 1, 8, 0, 2, 0, 10, 0, 0, 2];
        let wanted = [&header(72, libc::AF_INET)[..], &[52, 0, 1, 128], &ips, &proto].concat();
        assert_eq!(removal(7, "10.0.0.1:1000".parse().unwrap(), "10.0.0.2:6443".parse().unwrap()), wanted);

        let ip = |last| [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let ips = [&[44, 0, 1, 128, 20, 0, 3, 0][..], &ip(1), &[20, 0, 4, 0], &ip(2)].concat();
        let wanted = [&header(96, libc::AF_INET6)[..], &[76, 0, 1, 128], &ips, &proto].concat();
        assert_eq!(removal(7, "[fd77::1]:1000".parse().unwrap(), "[fd77::2]:6443".parse().unwrap()), wanted);
    }

    #[test]
    fn answers_are_counted_and_what_is_cut_off_is_not() {
        let mut raw = Vec::new();
        for code in [0, -libc::ENOENT, -libc::EPERM] {
            raw.extend(36u32.to_ne_bytes());
            raw.extend(NLMSG_ERROR.to_ne_bytes());
            raw.extend([0; 10]);
            raw.extend(code.to_ne_bytes());
            raw.extend([0; 16]);
        }
        let mut forgotten = Forgotten::default();
        assert_eq!(count(&raw, &mut forgotten), 3);
        assert_eq!(forgotten, Forgotten { removed: 1, unknown: 1, refused: Some(libc::EPERM) });
        for length in 0..raw.len() {
            count(&raw[..length], &mut Forgotten::default());
        }
    }

    #[test]
    fn a_connection_that_nobody_tracks_is_unknown_and_the_table_is_counted() {
        let Some(load) = load().unwrap() else { return };
        assert!(is_there() && load.entries_max > 0);
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let stranger = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
        let forgotten = Tracking::open().unwrap().forget(&[stranger; BATCH]).unwrap();
        assert_eq!(forgotten, Forgotten { unknown: BATCH as u64, ..Forgotten::default() });
    }
}
