//! What connection tracking remembers (ctnetlink: include/uapi/linux/netfilter/nfnetlink_conntrack.h, net/netfilter/
//! nf_conntrack_netlink.c), taken out by name, and how full its table is.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with};

use super::{NLM_F_REQUEST, NLMSG_ERROR, family, octets, put};

/// How full the table of this thread's network namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoad {
    pub entries: u64,
    /// Of the whole host.
    pub entries_max: u64,
}

/// What became of what was to be forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub removed: u64,
    /// They were not tracked.
    pub unknown: u64,
    /// An error number, of those that were refused.
    pub refused: Option<i32>,
}

/// A socket for removals. Needs CAP_NET_ADMIN.
#[derive(Debug)]
pub struct Tracking(OwnedFd);

/// Connections of one call: their answers fit into any receive buffer.
pub const BATCH: usize = 64;

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// Source and destination; those of IPv6 follow those of IPv4.
const CTA_IP_V4: [u16; 2] = [1, 2];
const CTA_IP_V6: [u16; 2] = [3, 4];
const IPPROTO_TCP: u8 = 6;

/// `None`: this host tracks no connections.
pub fn load() -> io::Result<Option<TableLoad>> {
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

/// Whether connections may be tracked here. Asking ctnetlink would load it where it is not.
pub fn is_there() -> bool {
    std::path::Path::new(COUNT).exists()
}

impl Tracking {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))
            .map(Self)
            .map_err(Into::into)
    }

    /// Removes TCP connections, at most [`BATCH`], by source and destination as either direction's packets have them, in the
    /// zone that has no number. The kernel has done it when this returns, and the next packet of one is that of a stranger.
    pub fn forget(&self, connections: &[(SocketAddr, SocketAddr)]) -> io::Result<Forgotten> {
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
                // All answers that there will be are there already.
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                // Some did not fit; what they tell of is done nevertheless.
                Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(forgotten)
    }
}

/// One message. It must have its tuple: without one it would empty the table.
fn removal(number: u32, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let kinds = if from.is_ipv4() { CTA_IP_V4 } else { CTA_IP_V6 };
    let (mut ips, mut ports, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
    put(&mut ips, kinds[0], &octets(from.ip()));
    put(&mut ips, kinds[1], &octets(to.ip()));
    put(&mut ports, CTA_PROTO_NUM, &[IPPROTO_TCP]);
    put(&mut ports, CTA_PROTO_SRC_PORT, &from.port().to_be_bytes());
    put(&mut ports, CTA_PROTO_DST_PORT, &to.port().to_be_bytes());
    put(&mut tuple, CTA_TUPLE_IP | NLA_F_NESTED, &ips);
    put(&mut tuple, CTA_TUPLE_PROTO | NLA_F_NESTED, &ports);
    // struct nfgenmsg: family, version, resource.
    let mut body = vec![family(from.ip()), 0, 0, 0];
    put(&mut body, CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple);
    // struct nlmsghdr: length, type, flags, number, port.
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend((NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE).to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend(number.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    message
}

/// Counts the answers in `messages`; each is a `struct nlmsgerr`.
fn count(mut messages: &[u8], forgotten: &mut Forgotten) -> usize {
    let mut answers = 0;
    while let Some((head, _)) = messages.split_first_chunk::<16>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(message) = messages.get(16..length) else { break };
        if u16::from_ne_bytes([head[4], head[5]]) == NLMSG_ERROR {
            answers += 1;
            match message.first_chunk().map_or(-libc::EBADMSG, |code| i32::from_ne_bytes(*code)) {
                0 => forgotten.removed += 1,
                code if code == -libc::ENOENT => forgotten.unknown += 1,
                code => forgotten.refused = Some(-code),
            }
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::super::attributes;
    use super::*;

    /// As `conntrack -D -p tcp -s 10.0.0.1 -d 10.0.0.2 --sport 1000 --dport 6443` names it, and never without a tuple.
    #[test]
    fn a_removal_names_one_connection() {
        for (from, to, octets) in [("10.0.0.1:1000", "10.0.0.2:6443", 4), ("[fd77::1]:1000", "[fd77::2]:6443", 16)] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let message = removal(7, from, to);
            assert_eq!(message.len() as u32, u32::from_ne_bytes(message[..4].try_into().unwrap()));
            assert_eq!(u16::from_ne_bytes([message[4], message[5]]), 0x102);
            let [(CTA_TUPLE_ORIG, tuple)] = attributes(&message[20..]).collect::<Vec<_>>()[..] else {
                panic!("{message:?}")
            };
            let [(1, ips), (2, ports)] = attributes(tuple).collect::<Vec<_>>()[..] else { panic!("{tuple:?}") };
            let ips: Vec<_> = attributes(ips).map(|(kind, ip)| (kind, ip.len())).collect();
            let kinds = if from.is_ipv4() { CTA_IP_V4 } else { CTA_IP_V6 };
            assert_eq!(ips, kinds.map(|kind| (kind, octets)));
            let ports: Vec<_> = attributes(ports).collect();
            assert_eq!(ports, [(1, &[6][..]), (2, &1000u16.to_be_bytes()[..]), (3, &6443u16.to_be_bytes()[..])]);
        }
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
