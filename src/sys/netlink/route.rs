//! The route of packets that leave this host, and the link-layer address of a neighbour.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{Emitable, NLM_F_DUMP, ParseableParametrized};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourHeader};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteType};

use super::{ask, attributes};

/// The kernel's route to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Index of the interface that packets leave through.
    pub interface: u32,
    /// Whether the destination is this host.
    pub is_local: bool,
    /// `None`: the destination is a neighbour.
    pub gateway: Option<IpAddr>,
}

/// Looks up the route in this thread's network namespace, for any source. An error: the destination cannot be reached.
pub(crate) fn route(to: IpAddr) -> io::Result<Route> {
    look_up(None, to)
}

/// [`Route::is_local`] of the route to `ip`: whether the kernel delivers packets to `ip` on this host. An error: as of [`route`].
pub(crate) fn is_local(ip: IpAddr) -> io::Result<bool> {
    route(ip).map(|route| route.is_local)
}

/// The interface by which a packet from `from` to `to` would leave; both are of one family. If `from` is not an address
/// of this host, it is ignored.
pub(crate) fn leaves_by(from: IpAddr, to: IpAddr) -> io::Result<u32> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    look_up(Some(from), to).or_else(|_| look_up(None, to)).map(|route| route.interface)
}

fn look_up(from: Option<IpAddr>, to: IpAddr) -> io::Result<Route> {
    let bits = if to.is_ipv4() { 32 } else { 128 };
    let mut header =
        RouteHeader { address_family: to.into(), destination_prefix_length: bits, ..RouteHeader::default() };
    let mut ends = vec![RouteAttribute::Destination(to.into())];
    if let Some(from) = from {
        header.source_prefix_length = bits;
        ends.push(RouteAttribute::Source(from.into()));
    }
    let mut found = None;
    ask(None, libc::RTM_GETROUTE, 0, &[&header, &ends.as_slice()], |message| found = read(message))?;
    found.filter(|route| route.interface != 0).ok_or(io::ErrorKind::NetworkUnreachable.into())
}

/// `None`: the message is truncated.
pub(super) fn read(message: &[u8]) -> Option<Route> {
    let header = RouteHeader::parse(message).ok()?;
    let mut route = Route { interface: 0, is_local: header.kind == RouteType::Local, gateway: None };
    let of = (header.address_family, header.kind, RouteLwEnCapType::None);
    let all = attributes(&message[header.buffer_len()..]);
    for attribute in all.filter_map(|it| RouteAttribute::parse_with_param(&it, of).ok()) {
        match attribute {
            RouteAttribute::Oif(index) => route.interface = index,
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => route.gateway = Some(ip.into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => route.gateway = Some(ip.into()),
            _ => {}
        }
    }
    Some(route)
}

/// The Ethernet address of a neighbour, if the kernel has one.
pub(crate) fn neighbour(interface: u32, of: IpAddr) -> io::Result<Option<[u8; 6]>> {
    let header = NeighbourHeader { family: of.into(), ifindex: interface, ..NeighbourHeader::default() };
    let destination = NeighbourAttribute::Destination(of.into());
    let mut found = None;
    match ask(None, libc::RTM_GETNEIGH, 0, &[&header, &destination], |message| found = link_layer_address(message)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// The addresses of all neighbours on this interface with this Ethernet address, as far as the kernel knows them.
pub(crate) fn neighbours(interface: u32, mac: [u8; 6]) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    ask(None, libc::RTM_GETNEIGH, NLM_F_DUMP, &[&NeighbourHeader::default()], |message| {
        // `ndm_ifindex` of `struct ndmsg` (include/uapi/linux/neighbour.h).
        let is_there = message.get(4..8).is_some_and(|index| index == interface.to_ne_bytes());
        if is_there && link_layer_address(message) == Some(mac) {
            found.extend(neighbour_address(message));
        }
    })?;
    Ok(found)
}

fn neighbour_address(message: &[u8]) -> Option<IpAddr> {
    let family = match i32::from(*message.first()?) {
        libc::AF_INET => AddressFamily::Inet,
        libc::AF_INET6 => AddressFamily::Inet6,
        _ => return None,
    };
    let rest = message.get(NeighbourHeader::default().buffer_len()..)?;
    let mut all = attributes(rest).filter_map(|it| NeighbourAttribute::parse_with_param(&it, family).ok());
    all.find_map(|it| match it {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(ip.into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(ip.into()),
        _ => None,
    })
}

/// `None`: the neighbour has none yet, or is not on Ethernet.
fn link_layer_address(message: &[u8]) -> Option<[u8; 6]> {
    let rest = message.get(NeighbourHeader::default().buffer_len()..)?;
    let mut all =
        attributes(rest).filter_map(|it| NeighbourAttribute::parse_with_param(&it, AddressFamily::Unspec).ok());
    all.find_map(|it| if let NeighbourAttribute::LinkLayerAddress(bytes) = it { bytes.try_into().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_has_no_neighbours() {
        for ip in ["127.0.0.1", "::1"].map(|ip| ip.parse().unwrap()) {
            let route = route(ip).unwrap();
            assert_eq!((route.interface, route.is_local, route.gateway), (1, true, None), "{ip}");
            assert!(is_local(ip).unwrap(), "{ip}");
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

    #[test]
    fn a_route_is_read_also_if_the_library_does_not_know_the_form_of_an_attribute() {
        // struct rtmsg; RTA_OIF, RTA_PRIORITY of two bytes, RTA_GATEWAY.
        let mut message = [libc::AF_INET as u8, 32, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0].to_vec();
        message.extend([8, 0, 4, 0, 7, 0, 0, 0, 6, 0, 6, 0, 1, 0, 0, 0, 8, 0, 5, 0, 10, 0, 0, 1]);
        let gateway = Some("10.0.0.1".parse().unwrap());
        assert_eq!(read(&message), Some(Route { interface: 7, is_local: false, gateway }));
        message[7] = libc::RTN_LOCAL;
        assert!(read(&message).unwrap().is_local);
        for length in 0..message.len() {
            read(&message[..length]);
        }
    }

    #[test]
    fn an_address_of_another_length_is_none_of_ethernet() {
        // struct ndmsg; NDA_DST, NDA_LLADDR.
        let mut message = [libc::AF_INET as u8, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 1].to_vec();
        message.extend([8, 0, 1, 0, 10, 0, 0, 1, 10, 0, 2, 0, 2, 0, 0, 0, 0, 9, 0, 0]);
        assert_eq!(link_layer_address(&message), Some([2, 0, 0, 0, 0, 9]));
        for length in 0..message.len() - 2 {
            assert_eq!(link_layer_address(&message[..length]), None);
        }
        message[20] = 8;
        assert_eq!(link_layer_address(&message), None);
    }
}
