//! Addresses on the loopback interface: one that has left its interface stays this host's in this way.
//! Also adds addresses with a short lifetime, which the kernel removes unless their process renews them.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Parseable};
use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressHeaderFlags, AddressProtocol, CacheInfo};

use super::{ask, attributes};

const LOOPBACK: u32 = 1;
/// In the block whose packets every router discards (RFC 6666).
const NOBODYS: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0xba);
/// The origin of the address (IFA_PROTO, since Linux 5.18): Baton. The kernel's own numbers are below 4.
const BY_BATON: AddressProtocol = AddressProtocol::Other(0xba);
/// The metric of the routes that belong to the address (IFA_RT_PRIORITY, since Linux 4.18): none belongs to a single address of `lo` but
/// the one of IPv6 to that very address, which the table of local routes answers before. So the number can say, also on a kernel without
/// IFA_PROTO, who has added the address: nobody would choose it.
const BATONS_METRIC: u32 = 0xba70_0ba7;
const MARKS: [AddressAttribute; 2] =
    [AddressAttribute::Protocol(BY_BATON), AddressAttribute::RoutePriority(BATONS_METRIC)];

/// Adds `ip` alone (/32, /128) to `lo`, or keeps it there: the kernel removes it after `seconds`, unless the caller renews it by another call.
/// An address that somebody else has added there stays as it is.
pub(crate) fn lease_on_loopback(ip: IpAddr, seconds: u32) -> io::Result<()> {
    let (header, attributes) = alone(ip);
    let lives = lives(ip, seconds);
    let request: &[&dyn Emitable] = &[&header, &attributes.as_slice(), &lives, &MARKS.as_slice()];
    let add = |flags| ask(None, libc::RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | flags, request, |_| {});
    match add(0) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            if added_to_loopback()?.contains(&ip) {
                add(NLM_F_REPLACE)
            } else {
                Ok(())
            }
        }
        added => added,
    }
}

/// Removes it. Returns whether it was there.
pub(crate) fn remove_from_loopback(ip: IpAddr) -> io::Result<bool> {
    let (header, attributes) = alone(ip);
    match ask(None, libc::RTM_DELADDR, NLM_F_ACK, &[&header, &attributes.as_slice()], |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Makes every IPv6 socket of this network namespace look for its route again before it sends the next packet: the kernel
/// forgets all routes that sockets know when an address goes (net/ipv6/addrconf.c, __ipv6_ifa_notify; rt_genid_bump_ipv6), so
/// one that nobody uses comes and goes.
pub(crate) fn renew_ipv6_routes() -> io::Result<()> {
    lease_on_loopback(NOBODYS.into(), 1)?;
    remove_from_loopback(NOBODYS.into()).map(drop)
}

/// Addresses that [`lease_on_loopback`] has added, also in an earlier process.
pub(crate) fn added_to_loopback() -> io::Result<Vec<IpAddr>> {
    let mut added = Vec::new();
    ask(None, libc::RTM_GETADDR, NLM_F_DUMP, &[&AddressHeader::default()], |message| {
        let Some((interface, all)) = read(message) else { return };
        if interface == LOOPBACK && is_marked(&all) {
            added.extend(
                all.iter().find_map(|it| if let AddressAttribute::Address(ip) = it { Some(*ip) } else { None }),
            );
        }
    })?;
    Ok(added)
}

/// Adds `ip` alone to the interface with this index, or keeps it there: the kernel removes it after `seconds`, unless the caller renews it by
/// another call. Needs CAP_NET_ADMIN.
pub(crate) fn lease(interface: u32, ip: IpAddr, seconds: u32) -> io::Result<()> {
    let (mut header, attributes) = alone(ip);
    header.index = interface;
    let lives = lives(ip, seconds);
    let request: &[&dyn Emitable] = &[&header, &attributes.as_slice(), &lives, &AddressAttribute::Protocol(BY_BATON)];
    ask(None, libc::RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, request, |_| {})
}

/// Removes the address with this length of its prefix; true if the interface had it.
pub(crate) fn end_lease(interface: u32, network: IpNet) -> io::Result<bool> {
    let (mut header, attributes) = alone(network.addr());
    (header.index, header.prefix_len) = (interface, network.prefix_len());
    match ask(None, libc::RTM_DELADDR, NLM_F_ACK, &[&header, &attributes.as_slice()], |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// The other IPv4 addresses of the interface that the kernel removes together with this one, unless `promote_secondaries` is set: the
/// secondary addresses of its network.
pub(crate) fn secondaries(interface: u32, network: IpNet) -> io::Result<Vec<IpAddr>> {
    let (mut others, mut is_primary) = (Vec::new(), false);
    ask(None, libc::RTM_GETADDR, NLM_F_DUMP, &[&AddressHeader::default()], |message| {
        let (Ok(header), Some((index, all))) = (AddressHeader::parse(message), read(message)) else { return };
        let ip = all.iter().find_map(|it| if let AddressAttribute::Local(ip) = it { Some(*ip) } else { None });
        let Some(ip) = ip.filter(|ip| ip.is_ipv4() && index == interface && network.contains(ip)) else { return };
        let is_secondary = header.flags.contains(AddressHeaderFlags::Secondary);
        if header.prefix_len == network.prefix_len() {
            is_primary |= ip == network.addr() && !is_secondary;
            others.extend(Some(ip).filter(|ip| *ip != network.addr() && is_secondary));
        }
    })?;
    Ok(if is_primary { others } else { Vec::new() })
}

/// Interface and attributes of an address.
pub(super) fn read(message: &[u8]) -> Option<(u32, Vec<AddressAttribute>)> {
    let header = AddressHeader::parse(message).ok()?;
    Some((
        header.index,
        attributes(&message[header.buffer_len()..]).filter_map(|it| AddressAttribute::parse(&it).ok()).collect(),
    ))
}

/// Whether [`lease_on_loopback`] has added the address. A kernel tells of the marks that it knows; a version before the metric set one.
fn is_marked(attributes: &[AddressAttribute]) -> bool {
    MARKS.iter().any(|mark| attributes.contains(mark))
}

/// The lifetime of an address. IPv6 addresses are deprecated from the start, so the kernel chooses none as the source of a connection.
fn lives(ip: IpAddr, seconds: u32) -> AddressAttribute {
    let mut lives = CacheInfo::default();
    (lives.ifa_preferred, lives.ifa_valid) = (if ip.is_ipv4() { seconds } else { 0 }, seconds);
    AddressAttribute::CacheInfo(lives)
}

/// `ip` on the loopback interface, with the longest prefix.
fn alone(ip: IpAddr) -> (AddressHeader, [AddressAttribute; 2]) {
    let header = AddressHeader {
        family: ip.into(),
        prefix_len: if ip.is_ipv4() { 32 } else { 128 },
        flags: AddressHeaderFlags::Nodad,
        index: LOOPBACK,
        ..AddressHeader::default()
    };
    (header, [AddressAttribute::Local(ip), AddressAttribute::Address(ip)])
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;

    /// The bytes that an earlier Baton with its own code sent, and that `ip address add 10.0.0.1/32 dev lo nodad proto
    /// 0xba` sends.
    #[test]
    fn the_kernel_is_asked_for_one_address_that_bears_baton_s_number() {
        let ip = "10.0.0.1".parse().unwrap();
        let (header, attributes) = alone(ip);
        let parts: &[&dyn Emitable] = &[&header, &attributes.as_slice(), &AddressAttribute::Protocol(BY_BATON)];
        let sent = bytes(libc::RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, 0, parts);
        // struct nlmsghdr, with RTM_NEWADDR; struct ifaddrmsg; IFA_LOCAL, IFA_ADDRESS, IFA_PROTO.
        let header = [48, 0, 0, 0, 20, 0, 5, 4, 0, 0, 0, 0, 0, 0, 0, 0, libc::AF_INET as u8, 32, 2, 0, 1, 0, 0, 0];
        let attributes = [8, 0, 2, 0, 10, 0, 0, 1, 8, 0, 1, 0, 10, 0, 0, 1, 5, 0, 11, 0, 0xba, 0, 0, 0];
        assert_eq!(sent, [&header[..], &attributes].concat());
        let (interface, all) = read(&sent[16..]).unwrap();
        let [local, address] = [AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        assert_eq!((interface, all), (LOOPBACK, vec![local, address, AddressAttribute::Protocol(BY_BATON)]));
    }

    #[test]
    fn an_address_is_baton_s_by_either_mark_and_another_one_s_is_not() {
        let [origin, metric] = MARKS;
        let ip = AddressAttribute::Local("10.0.0.1".parse().unwrap());
        assert!(is_marked(&[ip.clone(), origin]) && is_marked(&[metric, ip.clone()]));
        let others = [AddressAttribute::Protocol(AddressProtocol::Other(3)), AddressAttribute::RoutePriority(256)];
        assert!(
            !is_marked(std::slice::from_ref(&ip))
                && others.iter().all(|other| !is_marked(&[ip.clone(), other.clone()]))
        );
    }

    #[test]
    fn an_attribute_of_a_form_that_the_library_does_not_know_is_left_out_and_the_others_count() {
        let mut message = [0; 8].to_vec();
        // IFA_FLAGS of two bytes, IFA_ADDRESS.
        message.extend([6, 0, 8, 0, 1, 2, 0, 0, 8, 0, 1, 0, 10, 0, 0, 1]);
        let address = AddressAttribute::Address("10.0.0.1".parse().unwrap());
        assert_eq!(read(&message), Some((0, vec![address])));
        for length in 0..message.len() {
            read(&message[..length]);
        }
    }
}
