//! Raw sockets (raw(7), ipv6(7)): packets that no TCP socket of this host would send.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

use super::netlink;

/// Sends whole IP packets. It receives nothing: IPPROTO_RAW is for sending only. Needs CAP_NET_RAW.
#[derive(Debug)]
pub struct RawSender {
    v4: OwnedFd,
    /// `None`: this host has no IPv6.
    v6: Option<OwnedFd>,
    /// Below IP (packet(7)), and so below the host's firewall.
    link: OwnedFd,
}

impl RawSender {
    pub fn open() -> io::Result<Self> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            net::socket_with(family, SocketType::RAW, flags, Some(net::ipproto::RAW))
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol it receives nothing.
        let link = net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        Ok(Self { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok(), link })
    }

    /// As [`RawSender::open`]; each packet has `mark` within this host (SO_MARK, socket(7)).
    pub fn marked(mark: u32) -> io::Result<Self> {
        let sender = Self::open()?;
        for socket in std::iter::once(&sender.v4).chain(&sender.v6) {
            socket2::SockRef::from(socket).set_mark(mark)?;
        }
        Ok(sender)
    }

    /// Sends `packet`, a whole IP packet, by the route to `to`. If a firewall of this host drops packets of connections
    /// that it does not know (`ct state invalid drop`), the packet is sent below it: the firewall must not drop this
    /// host's own resets.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        match net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0)) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::PERM) => self.send_below(packet, to),
            Err(error) => Err(error.into()),
        }
    }

    fn send_below(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let route = netlink::route(to)?;
        let mac = netlink::neighbour(route.interface, route.gateway.unwrap_or(to))?;
        let mac = mac.ok_or(io::ErrorKind::HostUnreachable)?;
        let protocol = if to.is_ipv4() { libc::ETH_P_IP } else { libc::ETH_P_IPV6 } as u16;
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: route.interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: mac.len() as u8,
            sll_addr: address,
        };
        // SAFETY: the kernel reads the packet and the address, both of the lengths that are given.
        let sent = unsafe {
            libc::sendto(
                self.link.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
