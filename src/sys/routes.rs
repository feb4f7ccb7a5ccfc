//! Where packets would leave this host, and whether that may have changed: rtnetlink(7).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::netlink::{ask, attributes};

const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE. A link that goes down takes
/// its routes with it, of which nothing else is said.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

/// The interface by which a packet from `from` to `to` would leave; both are of one family. A source that is not, or not
/// now, an address of this host does not count.
pub fn leaves_by(from: IpAddr, to: IpAddr) -> io::Result<u32> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    look_up(to, Some(from)).or_else(|_| look_up(to, None)).map(|hop| hop.interface)
}

/// Who takes the packets to some place next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub interface: u32,
    /// The router's address, or the place's own.
    pub address: IpAddr,
}

/// Where packets to `to` go, whoever they come from.
pub fn next_hop(to: IpAddr) -> io::Result<NextHop> {
    look_up(to, None)
}

/// The link-layer address of a neighbour, if the kernel knows it now.
pub fn neighbour(hop: NextHop) -> io::Result<Option<[u8; 6]>> {
    // struct ndmsg: family, padding, interface, state, flags, type.
    let mut body = vec![family(hop.address), 0, 0, 0];
    body.extend(hop.interface.to_ne_bytes());
    body.extend([0; 4]);
    put(&mut body, NDA_DST, &bytes(hop.address));
    let mut found = None;
    ask(RTM_GETNEIGH, 0, &body, |message| {
        let mut all = attributes(message.get(12..).unwrap_or_default());
        found = all.find(|(kind, _)| *kind == NDA_LLADDR).and_then(|(_, value)| value.try_into().ok());
    })?;
    Ok(found)
}

fn bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}

fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

fn look_up(to: IpAddr, from: Option<IpAddr>) -> io::Result<NextHop> {
    let bits = bytes(to).len() as u8 * 8;
    // struct rtmsg: family, length of the destination, of the source, tos, table, protocol, scope, type, flags.
    let mut body = vec![family(to), bits, from.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    put(&mut body, RTA_DST, &bytes(to));
    if let Some(from) = from {
        put(&mut body, RTA_SRC, &bytes(from));
    }
    let (mut interface, mut router) = (None, None);
    ask(RTM_GETROUTE, 0, &body, |message| {
        for (kind, value) in attributes(message.get(12..).unwrap_or_default()) {
            match kind {
                RTA_OIF => interface = value.first_chunk().map(|index| u32::from_ne_bytes(*index)),
                RTA_GATEWAY => {
                    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
                    router = v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok();
                }
                _ => {}
            }
        }
    })?;
    let interface = interface.ok_or(io::ErrorKind::NotFound)?;
    Ok(NextHop { interface, address: router.unwrap_or(to) })
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
