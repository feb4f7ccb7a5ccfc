//! Addresses on the loopback interface: an address that left its interface stays this host's that way.

use std::io;
use std::net::IpAddr;

use super::{NLM_F_DUMP, ask, attributes, family, ip, octets, put};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Who has added the address (include/uapi/linux/if_addr.h); since Linux 5.18.
const IFA_PROTO: u16 = 11;
const IFA_F_NODAD: u8 = 2;
const LOOPBACK: u32 = 1;
/// Baton has; the kernel's own numbers are below 4.
const BY_BATON: u8 = 0xba;

/// Adds `ip` alone (/32, /128) to `lo`; true if it was not there.
pub fn add_to_loopback(ip: IpAddr) -> io::Result<bool> {
    let mut message = message(ip);
    put(&mut message, IFA_PROTO, &[BY_BATON]);
    match ask(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, &message, |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        added => added.map(|()| true),
    }
}

/// Removes it; true if it was there.
pub fn remove_from_loopback(ip: IpAddr) -> io::Result<bool> {
    match ask(RTM_DELADDR, NLM_F_ACK, &message(ip), |_| {}) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Addresses that [`add_to_loopback`] has added, also in an earlier process.
pub fn added_to_loopback() -> io::Result<Vec<IpAddr>> {
    let mut added = Vec::new();
    ask(RTM_GETADDR, NLM_F_DUMP, &[0; 8], |message| {
        let index = message.get(4..8).and_then(|index| Some(u32::from_ne_bytes(index.try_into().ok()?)));
        let all: Vec<_> = attributes(message.get(8..).unwrap_or_default()).collect();
        let by_baton = all.iter().any(|(kind, value)| *kind == IFA_PROTO && *value == [BY_BATON]);
        if index == Some(LOOPBACK) && by_baton {
            added.extend(all.iter().find(|(kind, _)| *kind == IFA_ADDRESS).and_then(|(_, octets)| ip(octets)));
        }
    })?;
    Ok(added)
}

/// struct ifaddrmsg: family, prefixlen, flags, scope, index.
fn message(ip: IpAddr) -> Vec<u8> {
    let mut body = vec![family(ip), if ip.is_ipv4() { 32 } else { 128 }, IFA_F_NODAD, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    put(&mut body, IFA_LOCAL, &octets(ip));
    put(&mut body, IFA_ADDRESS, &octets(ip));
    body
}
