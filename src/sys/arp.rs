//! ARP (RFC 826) on one interface, by a packet socket (packet(7)) that sees nothing else. Needs CAP_NET_RAW.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use super::netdev::{self, HARDWARE_ETHERNET};

/// An Ethernet address.
pub type Mac = [u8; 6];

const ETH_P_ARP: u16 = 0x0806;
const BROADCAST: Mac = [0xff; 6];
const REQUEST: u16 = 1;
/// Header of an Ethernet frame, and an ARP packet for IPv4 in it.
const ETHERNET_LENGTH: usize = 14;
const FRAME_LENGTH: usize = ETHERNET_LENGTH + 28;
/// Hardware type Ethernet, protocol IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// An open socket.
#[derive(Debug)]
pub struct ArpSocket {
    socket: OwnedFd,
    index: u32,
    mac: Mac,
}

/// Somebody said that it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: IpAddr,
    pub mac: Mac,
}

impl ArpSocket {
    /// For the interface called `name`; `Unsupported` if it is not Ethernet.
    pub fn open(name: &str) -> io::Result<Self> {
        let interface = netdev::interface(name)?;
        if interface.hardware != HARDWARE_ETHERNET {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Without a protocol until it is bound: else it would see every interface's in between.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None::<Protocol>)?;
        let mut at = link_address(interface.index);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `at` is a `sockaddr_ll` of this length that outlives the call.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel writes at most `length` bytes into `at`, and how many it wrote into `length`.
        if unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut at).cast(), &raw mut length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mac = std::array::from_fn(|byte| at.sll_addr[byte]);
        Ok(Self { socket, index: interface.index, mac })
    }

    /// The interface's own Ethernet address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Asks who has `address`, in nobody's name, so that no neighbour learns anything from it (RFC 5227, section 2.1.1).
    pub fn probe(&self, address: Ipv4Addr) -> io::Result<()> {
        let frame = frame(self.mac, address);
        let to = link_address(self.index);
        // SAFETY: `frame` and `to` are valid for their lengths and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next claim that has come, if any; `None`: no more for now.
    pub fn heard(&self) -> Option<Claim> {
        let mut buffer = [0; 128];
        loop {
            let (length, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty()).ok()?;
            if let Some(claim) = buffer.get(..length).and_then(claim) {
                return Some(claim);
            }
        }
    }
}

fn link_address(index: u32) -> libc::sockaddr_ll {
    // SAFETY: all-zero is a valid `sockaddr_ll`: plain integers and an array of them.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = ETH_P_ARP.to_be();
    at.sll_ifindex = index as i32;
    at
}

fn frame(mac: Mac, address: Ipv4Addr) -> [u8; FRAME_LENGTH] {
    let mut frame = [0; FRAME_LENGTH];
    frame[..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ETH_P_ARP.to_be_bytes());
    frame[14..20].copy_from_slice(&KIND);
    frame[20..22].copy_from_slice(&REQUEST.to_be_bytes());
    frame[22..28].copy_from_slice(&mac);
    frame[38..].copy_from_slice(&address.octets());
    frame
}

/// What a frame says of its sender. Probes, which come in nobody's name, say nothing.
fn claim(frame: &[u8]) -> Option<Claim> {
    let arp = frame.get(ETHERNET_LENGTH..FRAME_LENGTH)?;
    if arp[..6] != KIND {
        return None;
    }
    let address = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
    let mac = std::array::from_fn(|byte| arp[8 + byte]);
    (!address.is_unspecified()).then_some(Claim { address: address.into(), mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_claims_nothing_and_an_answer_does() {
        let address = Ipv4Addr::new(10, 0, 0, 100);
        let mut frame = frame([2, 0, 0, 0, 0, 7], address);
        assert_eq!(claim(&frame), None);
        frame[28..32].copy_from_slice(&address.octets());
        assert_eq!(claim(&frame), Some(Claim { address: address.into(), mac: [2, 0, 0, 0, 0, 7] }));
        assert_eq!(claim(&frame[..41]), None, "cut off");
        frame[14] = 9;
        assert_eq!(claim(&frame), None, "not of Ethernet");
    }

    #[test]
    fn the_loopback_interface_has_no_arp() {
        assert_eq!(ArpSocket::open("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
