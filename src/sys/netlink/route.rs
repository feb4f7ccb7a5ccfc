//! Where packets leave this host, and the link-layer address of a neighbour.

use std::io;
use std::net::IpAddr;

use super::{ask, attributes, family, ip, octets, put};

/// What the kernel's routes say of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface that packets leave through.
    pub interface: u32,
    /// The destination is this host.
    pub is_local: bool,
    /// `None`: the destination is a neighbour.
    pub gateway: Option<IpAddr>,
}

const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
/// Where `rtm_type` stands in `struct rtmsg`, and what it says of a local address.
const ROUTE_TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// Asks the routes of this thread's network namespace, whoever the packet comes from. An error: the destination cannot be
/// reached.
pub fn route(to: IpAddr) -> io::Result<Route> {
    look_up(None, to)
}

/// The interface by which a packet from `from` to `to` would leave; both are of one family. A source that is not, or not
/// now, an address of this host does not count.
pub fn leaves_by(from: IpAddr, to: IpAddr) -> io::Result<u32> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    look_up(Some(from), to).or_else(|_| look_up(None, to)).map(|route| route.interface)
}

fn look_up(from: Option<IpAddr>, to: IpAddr) -> io::Result<Route> {
    let bits = if to.is_ipv4() { 32 } else { 128 };
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let mut body = vec![0; 12];
    body[0] = family(to);
    body[1] = bits;
    put(&mut body, RTA_DST, &octets(to));
    if let Some(from) = from {
        body[2] = bits;
        put(&mut body, RTA_SRC, &octets(from));
    }
    let mut found = None;
    ask(RTM_GETROUTE, 0, &body, |message| {
        let is_local = message.get(ROUTE_TYPE) == Some(&RTN_LOCAL);
        let (mut interface, mut gateway) = (0, None);
        for (kind, value) in attributes(message.get(12..).unwrap_or_default()) {
            match (kind, <[u8; 4]>::try_from(value)) {
                (RTA_OIF, Ok(index)) => interface = u32::from_ne_bytes(index),
                (RTA_GATEWAY, _) => gateway = ip(value),
                _ => {}
            }
        }
        found = Some(Route { interface, is_local, gateway });
    })?;
    found.filter(|route| route.interface != 0).ok_or(io::ErrorKind::NetworkUnreachable.into())
}

/// The Ethernet address of a neighbour, if this host has talked with it lately.
pub fn neighbour(interface: u32, of: IpAddr) -> io::Result<Option<[u8; 6]>> {
    // struct ndmsg: family, padding, ifindex, state, flags, type.
    let mut body = vec![0; 12];
    body[0] = family(of);
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    put(&mut body, NDA_DST, &octets(of));
    let mut found = None;
    let asked = ask(RTM_GETNEIGH, 0, &body, |message| {
        let address = attributes(message.get(12..).unwrap_or_default()).find(|(kind, _)| *kind == NDA_LLADDR);
        found = address.and_then(|(_, value)| value.try_into().ok());
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        asked => asked.map(|()| found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_has_no_neighbours() {
        for ip in ["127.0.0.1", "::1"] {
            let route = route(ip.parse().unwrap()).unwrap();
            assert_eq!((route.interface, route.is_local, route.gateway), (1, true, None), "{ip}");
        }
        assert_eq!(neighbour(1, "127.0.0.2".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn loopback_is_left_by_loopback() {
        for ip in ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()) {
            assert_eq!(leaves_by(ip, ip).unwrap(), 1);
        }
        assert!(leaves_by("127.0.0.1".parse().unwrap(), "::1".parse().unwrap()).is_err());
    }
}
