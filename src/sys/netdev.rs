//! Network interfaces of this thread's namespace: netdevice(7).
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use ipnet::IpNet;
use rustix::net::netdevice;

/// Ethernet and compatible hardware (ARPHRD_ETHER, include/uapi/linux/if_arp.h).
pub(crate) const HARDWARE_ETHERNET: u16 = 1;
/// The loopback interface, whose frames have an Ethernet header too.
pub(crate) const HARDWARE_LOOPBACK: u16 = 772;

/// The properties of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    /// An ARPHRD number.
    pub hardware: u16,
    /// In bytes of the IP packet.
    pub mtu: u32,
}

/// This thread's network namespace, and its inode.
pub(crate) fn namespace() -> io::Result<(File, u64)> {
    let file = File::open("/proc/thread-self/ns/net")?;
    let inode = file.metadata()?.ino();
    Ok((file, inode))
}

/// Looks up interface `name`; `NotFound` or ENODEV if there is none.
pub fn interface(name: &str) -> io::Result<Interface> {
    let socket = socket()?;
    let index = netdevice::name_to_index(&socket, name)?;
    let mut request = named(name)?;
    ioctl(&socket, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled in this member of the union, and all its bits are plain integers.
    let hardware = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    ioctl(&socket, libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: SIOCGIFMTU has filled in this member of the union, an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(Interface { index, hardware, mtu: mtu.max(0) as u32 })
}

/// The Ethernet address of interface `name`.
pub(crate) fn hardware_address(name: &str) -> io::Result<[u8; 6]> {
    let socket = socket()?;
    let mut request = named(name)?;
    ioctl(&socket, libc::SIOCGIFHWADDR, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled in this member of the union, an array of plain bytes.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|at| data[at] as u8))
}

/// The Ethernet addresses of the interfaces that have an IP address.
pub(crate) fn hardware_addresses() -> io::Result<Vec<[u8; 6]>> {
    let names: BTreeSet<_> = addresses()?.into_iter().map(|(name, _)| name).collect();
    Ok(names.iter().filter_map(|name| hardware_address(name).ok()).collect())
}

/// The name of the interface with this index.
pub(crate) fn name(index: u32) -> io::Result<String> {
    let name = netdevice::index_to_name(socket()?, index)?;
    Ok(name.to_string())
}

/// Whether interface `name` has a carrier (IFF_RUNNING, netdevice(7)).
pub(crate) fn has_carrier(name: &str) -> io::Result<bool> {
    let socket = socket()?;
    let mut request = named(name)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member of the union, an integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_RUNNING != 0)
}

/// Every address of every interface of this namespace.
pub(crate) fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    Ok(networks()?.into_iter().map(|(name, network)| (name, network.addr())).collect())
}

/// As [`addresses`], each with the length of its network's prefix.
pub(crate) fn networks() -> io::Result<Vec<(String, IpNet)>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs(3) writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut networks = Vec::new();
    let mut at = first;
    // SAFETY: each entry of the list, whose end is null, is alive until the list is freed.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: the name ends in NUL and belongs to the entry.
        let label = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
        // An IPv4 address may have a label: the interface's name, and a suffix after a colon (ip-address(8)).
        let name = label.split(':').next().unwrap_or_default().to_owned();
        // SAFETY: both are null or point to an address that belongs to the entry.
        let (address, mask) = unsafe { (ip(entry.ifa_addr), ip(entry.ifa_netmask)) };
        if let Some(address) = address {
            let bits = match mask {
                Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
                None => u32::from(IpNet::from(address).prefix_len()),
            };
            networks.extend(IpNet::new(address, bits as u8).ok().map(|network| (name, network)));
        }
        at = entry.ifa_next;
    }
    // SAFETY: it is the list that getifaddrs made, and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(first) };
    Ok(networks)
}

/// The IP address at `address`, if it is one.
///
/// # Safety
/// `address` is null or points to a `sockaddr` as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise: it is null, or at least a family.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is this structure.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is this structure.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from_octets(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The source address of a packet from this host to `to`.
pub(crate) fn source_towards(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a UDP socket looks up the route and sends nothing. The port is that of the discard service.
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether the interface merges segments in a way that cannot be undone (large receive offload, ETHTOOL_GFLAGS).
pub(crate) fn merges_for_good(name: &str) -> io::Result<bool> {
    let socket = socket()?;
    let mut value = EthtoolValue { command: ETHTOOL_GFLAGS, data: 0 };
    let mut request = named(name)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    ioctl(&socket, SIOCETHTOOL, &mut request)?;
    Ok(value.data & ETH_FLAG_LRO != 0)
}

/// `struct ethtool_value` (include/uapi/linux/ethtool.h).
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_LRO: u32 = 1 << 15;

fn socket() -> io::Result<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero is a valid `ifreq`: an array of characters and a union of plain integers and addresses.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ioctl(socket: &impl AsRawFd, command: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the command reads and writes one `ifreq`, and `request` is one that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command as _, request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_one_and_a_stranger_is_none() {
        let lo = interface("lo").unwrap();
        assert_eq!((lo.index, lo.hardware), (1, HARDWARE_LOOPBACK));
        assert!(lo.mtu >= 1500);
        assert_eq!(name(1).unwrap(), "lo");
        assert!(addresses().unwrap().contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST.into())));
        assert!(networks().unwrap().contains(&("lo".to_owned(), "127.0.0.1/8".parse().unwrap())));
        assert_eq!(source_towards(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
        assert!(!merges_for_good("lo").unwrap());
        assert!(has_carrier("lo").unwrap());
        assert!(interface("no-such").is_err());
        assert!(interface("a-name-that-is-too-long").is_err());
    }
}
