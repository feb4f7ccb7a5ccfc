//! Source addresses of this host's connections, and its ports for outgoing connections.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use super::int_option;
use crate::addr::BackendAddr;

/// The kernel's default (Documentation/networking/ip-sysctl.rst).
pub(crate) const DEFAULT_RANGE: RangeInclusive<u16> = 32768..=60999;

/// Ports for outgoing connections in this network namespace, without those that an administrator has reserved.
pub(crate) fn local_ports() -> Vec<u16> {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    free_ports(&read("ip_local_port_range"), &read("ip_local_reserved_ports"))
}

/// The first and the last of those ports.
pub(crate) fn local_port_range() -> RangeInclusive<u16> {
    parse_ends(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default())
}

/// The source address that the kernel's routes choose towards `backend`. Sends nothing.
pub(crate) fn by_route(backend: BackendAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match backend.ip() {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(backend.socket_addr())?;
    Ok(socket.local_addr()?.ip())
}

/// Lets bind(2) choose an address and leave the port to connect(2), which can use one for many destinations:
/// IP_BIND_ADDRESS_NO_PORT (ip(7)).
pub(crate) fn leave_port_to_connect(socket: impl AsFd) -> io::Result<()> {
    int_option::set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// `range` as "32768 60999", `reserved` as "40000,50000-50010".
fn free_ports(range: &str, reserved: &str) -> Vec<u16> {
    let range = parse_ends(range);
    let kept: Vec<_> = reserved.trim().split(',').filter_map(parse_range).collect();
    range.filter(|port| !kept.iter().any(|kept| kept.contains(port))).collect()
}

fn parse_ends(range: &str) -> RangeInclusive<u16> {
    let mut ends = range.split_whitespace().filter_map(|end| end.parse().ok());
    ends.next().zip(ends.next()).map_or(DEFAULT_RANGE, |(first, last)| first..=last)
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_an_administrator_keeps_are_left_out() {
        assert_eq!(free_ports("10 15\n", "11,13-14\n"), [10, 12, 15]);
        assert_eq!(free_ports("10\t11\n", "\n"), [10, 11]);
        assert_eq!(free_ports("", "").len(), 28232);
    }

    #[test]
    fn the_route_to_loopback_comes_from_loopback() {
        let ip = by_route(BackendAddr::new("127.0.0.1:9".parse().unwrap())).unwrap();
        assert_eq!(ip, IpAddr::from([127, 0, 0, 1]));
    }
}
