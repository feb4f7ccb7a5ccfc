//! Addresses on the loopback interface: an address that left its interface stays this host's that way.

use std::io;
use std::net::IpAddr;

use super::{ask, family, octets, put};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const LOOPBACK: u32 = 1;

/// Adds `ip` alone (/32, /128) to `lo`; true if it was not there.
pub fn add_to_loopback(ip: IpAddr) -> io::Result<bool> {
    match ask(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, &message(ip), |_| {}) {
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

/// struct ifaddrmsg: family, prefixlen, flags, scope, index.
fn message(ip: IpAddr) -> Vec<u8> {
    let mut body = vec![family(ip), if ip.is_ipv4() { 32 } else { 128 }, IFA_F_NODAD, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    put(&mut body, IFA_LOCAL, &octets(ip));
    put(&mut body, IFA_ADDRESS, &octets(ip));
    body
}
