//! Notifications of changed addresses and routes.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use netlink_packet_route::address::AddressAttribute;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::unix::AsyncFd;

use super::{address, messages};

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// An interface has an address, which may not be new.
    Came {
        interface: u32,
        ip: IpAddr,
    },
    Went {
        interface: u32,
        ip: IpAddr,
    },
    /// A route has changed, or an interface went up or down.
    Routes,
    /// The kernel dropped notifications: look at everything.
    Lost,
}

/// A socket for notifications of changes in its network namespace; readable while there are some.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

/// An interface that goes down takes its routes with it, without further notifications.
const GROUPS: u32 = LINK | IPV4_ADDRESS | IPV4_ROUTE | IPV6_ADDRESS | IPV6_ROUTE;
const LINK: u32 = 0x1;
const IPV4_ADDRESS: u32 = 0x10;
const IPV4_ROUTE: u32 = 0x40;
const IPV6_ADDRESS: u32 = 0x100;
const IPV6_ROUTE: u32 = 0x400;

impl Watch {
    pub(crate) fn open() -> io::Result<Self> {
        Self::of_groups(GROUPS)
    }

    /// Only of interfaces that come, go or change: a host with a full routing table gets many notifications of routes.
    pub(crate) fn open_for_links() -> io::Result<Self> {
        Self::of_groups(LINK)
    }

    fn of_groups(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(socket))
    }

    /// Has the runtime watch the socket.
    pub(crate) fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: `as_fd` and `as_raw_fd` give the one descriptor that `self` owns, and nothing takes it out of `self`.
        unsafe { AsyncFd::register(self) }.map_err(io::Error::from)
    }

    /// Whether anything may have changed since the last time.
    pub(crate) fn has_changed(&self) -> bool {
        let mut changed = false;
        loop {
            match self.take() {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return changed,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }

    /// The changes that have arrived. `WouldBlock`: none.
    pub(crate) fn take(&self) -> io::Result<Vec<Changed>> {
        let mut buffer = vec![0; 32 * 1024];
        let length = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::NOBUFS) => return Ok(vec![Changed::Lost]),
            Err(error) => return Err(error.into()),
        };
        Ok(decode(&buffer[..length]))
    }
}

/// Reads only addresses; a host with a full routing table gets many other notifications.
fn decode(raw: &[u8]) -> Vec<Changed> {
    let mut changes = Vec::new();
    for message in messages(raw).map_while(Result::ok) {
        let change = match message.message_type() {
            libc::RTM_NEWADDR => own(message.payload()).map(|(interface, ip)| Changed::Came { interface, ip }),
            libc::RTM_DELADDR => own(message.payload()).map(|(interface, ip)| Changed::Went { interface, ip }),
            _ => Some(Changed::Routes).filter(|routes| changes.last() != Some(routes)),
        };
        changes.extend(change);
    }
    changes
}

/// On a point-to-point interface IFA_ADDRESS is the far end's address, and IFA_LOCAL its own.
fn own(message: &[u8]) -> Option<(u32, IpAddr)> {
    let (interface, all) = address::read(message)?;
    let local = all.iter().find_map(|it| if let AddressAttribute::Local(ip) = it { Some(*ip) } else { None });
    let address = all.iter().find_map(|it| if let AddressAttribute::Address(ip) = it { Some(*ip) } else { None });
    local.or(address).map(|ip| (interface, ip))
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressHeader;
    use netlink_packet_route::route::RouteHeader;

    use super::super::bytes;
    use super::*;

    #[test]
    fn changes_can_be_heard_of() {
        Watch::open().unwrap();
        Watch::open_for_links().unwrap();
    }

    #[test]
    fn addresses_of_both_families_are_told_and_what_is_cut_off_is_not() {
        let ips: [IpAddr; 2] = ["10.0.0.100".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let header = AddressHeader { index: 7, ..AddressHeader::default() };
        let message = |kind, ip| bytes(kind, 0, 0, &[&header, &AddressAttribute::Address(ip)]);
        let mut raw = [message(libc::RTM_NEWADDR, ips[0]), message(libc::RTM_DELADDR, ips[1])].concat();
        for _ in 0..2 {
            raw.extend(bytes(24, 0, 0, &[&RouteHeader::default()]));
        }
        let [came, went] = [Changed::Came { interface: 7, ip: ips[0] }, Changed::Went { interface: 7, ip: ips[1] }];
        assert_eq!(decode(&raw), [came, went, Changed::Routes]);
        assert_eq!(decode(&raw[..50]), [came]);
        for length in 0..raw.len() {
            decode(&raw[..length]);
        }
    }

    #[test]
    fn the_own_address_of_a_point_to_point_interface_is_told_and_not_the_far_end_s() {
        let [own, far]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let ends = [AddressAttribute::Address(far), AddressAttribute::Local(own)];
        let raw = bytes(libc::RTM_NEWADDR, 0, 0, &[&AddressHeader::default(), &ends.as_slice()]);
        assert_eq!(decode(&raw), [Changed::Came { interface: 0, ip: own }]);
    }
}
