//! Where packets would leave this host, and whether that may have changed: rtnetlink(7).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::netlink::{ask, attributes};

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE. A link that goes down takes
/// its routes with it, of which nothing else is said.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// The interface by which a packet from `from` to `to` would leave; both are of one family. A source that is not, or not
/// now, an address of this host does not count.
pub fn leaves_by(from: IpAddr, to: IpAddr) -> io::Result<u32> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    look_up(to, Some(from)).or_else(|_| look_up(to, None))
}

fn look_up(to: IpAddr, from: Option<IpAddr>) -> io::Result<u32> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let bits = bytes(to).len() as u8 * 8;
    // struct rtmsg: family, length of the destination, of the source, tos, table, protocol, scope, type, flags.
    let mut body = vec![family.as_raw() as u8, bits, from.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let both = [(RTA_DST, Some(to)), (RTA_SRC, from)];
    for (kind, value) in both.into_iter().filter_map(|(kind, ip)| Some((kind, bytes(ip?)))) {
        body.extend((4 + value.len() as u16).to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
    }
    let mut interface = None;
    ask(RTM_GETROUTE, 0, &body, |message| {
        let mut all = attributes(message.get(12..).unwrap_or_default());
        let index = all.find(|(kind, _)| *kind == RTA_OIF).and_then(|(_, value)| value.first_chunk());
        interface = index.map(|index| u32::from_ne_bytes(*index));
    })?;
    interface.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Hears of changes of links, addresses and routes in the network namespace that it was made in.
#[derive(Debug)]
pub struct RouteWatch(OwnedFd);

impl RouteWatch {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Whether anything may have changed since the last time.
    pub fn has_changed(&self) -> bool {
        let (mut buffer, mut changed) = (vec![0; 16 * 1024], false);
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok(_) => changed = true,
                Err(rustix::io::Errno::AGAIN) => return changed,
                Err(rustix::io::Errno::INTR) => {}
                // More was said than there was room for.
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_left_by_loopback() {
        for ip in ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()) {
            assert_eq!(leaves_by(ip, ip).unwrap(), 1);
        }
        assert!(leaves_by("127.0.0.1".parse().unwrap(), "::1".parse().unwrap()).is_err());
        RouteWatch::open().unwrap();
    }
}
