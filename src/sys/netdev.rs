//! Network interfaces of this thread's namespace: netdevice(7).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::netdevice;

/// Ethernet, and what looks like it (ARPHRD_ETHER, include/uapi/linux/if_arp.h).
pub const HARDWARE_ETHERNET: u16 = 1;
/// The loopback interface, whose frames have an Ethernet header too.
pub const HARDWARE_LOOPBACK: u16 = 772;

/// What one interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    /// An ARPHRD number.
    pub hardware: u16,
    /// In bytes of the IP packet.
    pub mtu: u32,
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

/// The name of the interface with this index.
pub fn name(index: u32) -> io::Result<String> {
    let name = netdevice::index_to_name(socket()?, index)?;
    Ok(name.to_string())
}

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
        assert!(interface("no-such").is_err());
        assert!(interface("a-name-that-is-too-long").is_err());
    }
}
