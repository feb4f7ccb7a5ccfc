//! Raw sockets (raw(7), ipv6(7)): packets that no socket of this host's TCP would send.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

/// Sends whole IP packets. It receives nothing: IPPROTO_RAW is for sending only. Needs CAP_NET_RAW.
#[derive(Debug)]
pub struct RawSender {
    v4: OwnedFd,
    /// `None`: this host has no IPv6.
    v6: Option<OwnedFd>,
}

impl RawSender {
    pub fn open() -> io::Result<Self> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            net::socket_with(family, SocketType::RAW, flags, Some(net::ipproto::RAW))
        };
        Ok(Self { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }

    /// As [`RawSender::open`]; each packet carries `mark` within this host (SO_MARK, socket(7)).
    pub fn marked(mark: u32) -> io::Result<Self> {
        let sender = Self::open()?;
        for socket in std::iter::once(&sender.v4).chain(&sender.v6) {
            socket2::SockRef::from(socket).set_mark(mark)?;
        }
        Ok(sender)
    }

    /// Sends `packet`, a whole IP packet, by the route to `to`.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }
}
