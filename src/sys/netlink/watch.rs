//! Hearing of addresses that come and go, and of routes that move.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::unix::AsyncFd;

use super::{attributes, ip};

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// An interface has an address, which may not be new.
    Came {
        interface: u32,
        ip: IpAddr,
    },
    Went {
        interface: u32,
        ip: IpAddr,
    },
    /// A route, or an interface went up or down.
    Routes,
    /// More happened than could be kept: look at everything.
    Lost,
}

/// A socket that is told of changes in its network namespace; readable when there are some.
#[derive(Debug)]
pub struct Watch(OwnedFd);

/// A link that goes down takes its routes with it, of which nothing else is said.
const GROUPS: u32 = LINK | IPV4_ADDRESS | IPV4_ROUTE | IPV6_ADDRESS | IPV6_ROUTE;
const LINK: u32 = 0x1;
const IPV4_ADDRESS: u32 = 0x10;
const IPV4_ROUTE: u32 = 0x40;
const IPV6_ADDRESS: u32 = 0x100;
const IPV6_ROUTE: u32 = 0x400;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

impl Watch {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self(socket))
    }

    /// Has the runtime tell when it is readable.
    pub fn register(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: `as_fd` and `as_raw_fd` give the one descriptor that `self` owns, and nothing takes it out of `self`.
        unsafe { AsyncFd::register(self) }.map_err(io::Error::from)
    }

    /// Whether anything may have changed since the last time.
    pub fn has_changed(&self) -> bool {
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

    /// What has come. `WouldBlock`: nothing.
    pub fn take(&self) -> io::Result<Vec<Changed>> {
        let mut buffer = vec![0; 32 * 1024];
        let length = match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::NOBUFS) => return Ok(vec![Changed::Lost]),
            Err(error) => return Err(error.into()),
        };
        Ok(decode(&buffer[..length]))
    }
}

fn decode(mut rest: &[u8]) -> Vec<Changed> {
    let mut changes = Vec::new();
    while let Some((head, _)) = rest.split_first_chunk::<16>() {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(message) = rest.get(16..length) else { break };
        let change = match u16::from_ne_bytes([head[4], head[5]]) {
            RTM_NEWADDR => address(message).map(|(interface, ip)| Changed::Came { interface, ip }),
            RTM_DELADDR => address(message).map(|(interface, ip)| Changed::Went { interface, ip }),
            _ => Some(Changed::Routes).filter(|routes| changes.last() != Some(routes)),
        };
        changes.extend(change);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    changes
}

/// From `struct ifaddrmsg` and what follows it. IFA_ADDRESS is the far end's on a point-to-point interface.
fn address(message: &[u8]) -> Option<(u32, IpAddr)> {
    let index = u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?);
    let of = |wanted| attributes(message.get(8..)?).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| ip(value));
    of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS)).map(|ip| (index, ip))
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
    use super::super::put;
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    #[test]
    fn changes_can_be_heard_of() {
        Watch::open().unwrap();
    }

    #[test]
    fn addresses_of_both_families_are_told_and_what_is_cut_off_is_not() {
        let ips: [IpAddr; 2] = ["10.0.0.100".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let mut raw = Vec::new();
        for (kind, ip) in [(RTM_NEWADDR, ips[0]), (RTM_DELADDR, ips[1])] {
            let mut body = vec![super::super::family(ip), 32, 0, 0, 7, 0, 0, 0];
            put(&mut body, IFA_ADDRESS, &super::super::octets(ip));
            raw.extend(message(kind, &body));
        }
        raw.extend(message(24, &[0; 12]));
        raw.extend(message(24, &[0; 12]));
        let [came, went] = [Changed::Came { interface: 7, ip: ips[0] }, Changed::Went { interface: 7, ip: ips[1] }];
        assert_eq!(decode(&raw), [came, went, Changed::Routes]);
        assert_eq!(decode(&raw[..50]), [came]);
        for length in 0..raw.len() {
            decode(&raw[..length]);
        }
    }
}
