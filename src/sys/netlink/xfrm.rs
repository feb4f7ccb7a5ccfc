//! IPsec policies (include/uapi/linux/xfrm.h, net/xfrm/xfrm_user.c): whether a connection's packets may go and come as they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::{NLM_F_DUMP, ask_of, attributes};

/// One policy of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XfrmPolicy {
    direction: PolicyDirection,
    from: Net,
    to: Net,
    from_port: Port,
    to_port: Port,
    /// 0: any.
    protocol: u8,
    /// The lowest number wins.
    priority: u32,
    /// Packets are to be transformed, or dropped; otherwise they pass as they are.
    demands: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyDirection {
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    ip: IpAddr,
    bits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Port {
    port: u16,
    mask: u16,
}

const XFRM_MSG_GETPOLICY: u16 = 0x15;
const XFRMA_TMPL: u16 = 5;
const XFRMA_IF_ID: u16 = 31;
const XFRM_POLICY_BLOCK: u8 = 1;
/// Of XFRMGRP_EXPIRE and XFRMGRP_POLICY.
const GROUPS: u32 = 2 | 8;
const IPPROTO_TCP: u8 = 6;

/// Of `struct xfrm_userpolicy_info`, which begins with a `struct xfrm_selector`: destination, source, their ports with masks,
/// family, prefixes, protocol.
const INFO_SIZE: usize = 168;
const DESTINATION: usize = 0;
const SOURCE: usize = 16;
const DESTINATION_PORT: usize = 32;
const SOURCE_PORT: usize = 36;
const FAMILY: usize = 40;
const DESTINATION_BITS: usize = 42;
const SOURCE_BITS: usize = 43;
const PROTOCOL: usize = 44;
const PRIORITY: usize = 152;
const DIRECTION: usize = 160;
const ACTION: usize = 161;
/// `struct xfrm_userpolicy_id`.
const ID_SIZE: usize = 64;

/// Hears of policies that come and go, and knows those that are there. Needs CAP_NET_ADMIN.
#[derive(Debug)]
pub struct Policies {
    /// `None`: this kernel has no IPsec.
    watch: Option<OwnedFd>,
    known: Vec<XfrmPolicy>,
    /// Something was heard of, and has not been read yet.
    stale: bool,
}

impl Policies {
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let watch = match socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::XFRM)) {
            Ok(socket) => socket,
            Err(Errno::PROTONOSUPPORT) => return Ok(Self { watch: None, known: Vec::new(), stale: false }),
            Err(error) => return Err(error.into()),
        };
        bind(&watch, &SocketAddrNetlink::new(0, GROUPS))?;
        // First the watch: what comes in between is heard of.
        Ok(Self { watch: Some(watch), known: read()?, stale: false })
    }

    /// Takes note of what has changed; true if there are other policies than before. An error: what was known before counts,
    /// and the next call tries again.
    pub fn refresh(&mut self) -> io::Result<bool> {
        let Some(watch) = &self.watch else { return Ok(false) };
        let mut buffer = [0; 4096];
        loop {
            match recv(watch, &mut buffer[..], RecvFlags::TRUNC) {
                // More than could be kept, too.
                Ok(_) | Err(Errno::NOBUFS) => self.stale = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if !self.stale {
            return Ok(false);
        }
        let now = read()?;
        self.stale = false;
        let changed = now != self.known;
        self.known = now;
        Ok(changed)
    }

    /// Whether a TCP connection between `own` and `far` must not go as it is.
    pub fn cover(&self, own: SocketAddr, far: SocketAddr) -> bool {
        let demanded = |direction, from, to| {
            let matching = || self.known.iter().filter(|it| it.direction == direction && it.matches(from, to));
            let first = matching().map(|policy| policy.priority).min();
            // Which of two of one priority came first is not told.
            matching().any(|policy| Some(policy.priority) == first && policy.demands)
        };
        demanded(PolicyDirection::Out, own, far) || demanded(PolicyDirection::In, far, own)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

fn read() -> io::Result<Vec<XfrmPolicy>> {
    let mut policies = Vec::new();
    ask_of(Some(netlink::XFRM), XFRM_MSG_GETPOLICY, NLM_F_DUMP, &[0; ID_SIZE], |message| {
        policies.extend(policy(message));
    })?;
    Ok(policies)
}

/// `None`: it concerns no connection of this host, or only those by an interface of its own kind, which has no Ethernet header.
fn policy(message: &[u8]) -> Option<XfrmPolicy> {
    let info = message.get(..INFO_SIZE)?;
    let rest: Vec<_> = attributes(&message[INFO_SIZE..]).collect();
    let direction = match info[DIRECTION] {
        0 => PolicyDirection::In,
        1 => PolicyDirection::Out,
        _ => return None,
    };
    if rest.iter().any(|(kind, id)| *kind == XFRMA_IF_ID && id.iter().any(|byte| *byte != 0)) {
        return None;
    }
    let is_ipv6 = i32::from(u16::from_ne_bytes([info[FAMILY], info[FAMILY + 1]])) == libc::AF_INET6;
    let net = |at: usize, bits: usize| {
        let octets: [u8; 16] = info[at..at + 16].try_into().expect("16 bytes");
        let ip = match is_ipv6 {
            true => Ipv6Addr::from_octets(octets).into(),
            false => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
        };
        Net { ip, bits: info[bits] }
    };
    let port = |at: usize| Port {
        port: u16::from_be_bytes([info[at], info[at + 1]]),
        mask: u16::from_be_bytes([info[at + 2], info[at + 3]]),
    };
    Some(XfrmPolicy {
        direction,
        from: net(SOURCE, SOURCE_BITS),
        to: net(DESTINATION, DESTINATION_BITS),
        from_port: port(SOURCE_PORT),
        to_port: port(DESTINATION_PORT),
        protocol: info[PROTOCOL],
        priority: u32::from_ne_bytes(info[PRIORITY..PRIORITY + 4].try_into().expect("4 bytes")),
        demands: info[ACTION] == XFRM_POLICY_BLOCK || rest.iter().any(|(kind, _)| *kind == XFRMA_TMPL),
    })
}

impl XfrmPolicy {
    fn matches(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let protocol = [0, IPPROTO_TCP].contains(&self.protocol);
        let nets = self.from.contains(from.ip()) && self.to.contains(to.ip());
        protocol && nets && self.from_port.is(from.port()) && self.to_port.is(to.port())
    }
}

impl Net {
    fn contains(&self, ip: IpAddr) -> bool {
        let equal = |a: u128, b: u128, width: u32| {
            let loose = width.saturating_sub(self.bits.into());
            a.checked_shr(loose).unwrap_or(0) == b.checked_shr(loose).unwrap_or(0)
        };
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => equal(net.to_bits().into(), ip.to_bits().into(), 32),
            (IpAddr::V6(net), IpAddr::V6(ip)) => equal(net.to_bits(), ip.to_bits(), 128),
            _ => false,
        }
    }
}

impl Port {
    fn is(self, port: u16) -> bool {
        (port ^ self.port) & self.mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::put;
    use super::*;

    /// As the kernel tells of `ip xfrm policy add dir out src FROM dst TO priority P [tmpl ...]`.
    fn message(direction: u8, from: &str, to: &str, to_port: u16, priority: u32, template: bool) -> Vec<u8> {
        let mut info = vec![0; INFO_SIZE];
        for (net, at, bits) in [(from, SOURCE, SOURCE_BITS), (to, DESTINATION, DESTINATION_BITS)] {
            let (ip, length) = net.split_once('/').unwrap();
            let octets = super::super::octets(ip.parse().unwrap());
            info[at..at + octets.len()].copy_from_slice(&octets);
            info[bits] = length.parse().unwrap();
            let family = if octets.len() == 4 { libc::AF_INET } else { libc::AF_INET6 };
            info[FAMILY..FAMILY + 2].copy_from_slice(&(family as u16).to_ne_bytes());
        }
        info[DESTINATION_PORT..DESTINATION_PORT + 2].copy_from_slice(&to_port.to_be_bytes());
        let mask: u16 = if to_port == 0 { 0 } else { 0xffff };
        info[DESTINATION_PORT + 2..DESTINATION_PORT + 4].copy_from_slice(&mask.to_be_bytes());
        info[PRIORITY..PRIORITY + 4].copy_from_slice(&priority.to_ne_bytes());
        info[DIRECTION] = direction;
        if template {
            put(&mut info, XFRMA_TMPL, &[0; 64]);
        }
        info
    }

    fn cover(messages: &[Vec<u8>], far: &str) -> bool {
        let known = messages.iter().filter_map(|message| policy(message)).collect();
        Policies { watch: None, known, stale: false }.cover("10.0.0.2:40000".parse().unwrap(), far.parse().unwrap())
    }

    #[test]
    fn a_policy_covers_its_network_and_port_in_either_direction() {
        let out = message(1, "0.0.0.0/0", "10.0.0.16/28", 6443, 10, true);
        assert!(cover(std::slice::from_ref(&out), "10.0.0.21:6443"));
        assert!(!cover(std::slice::from_ref(&out), "10.0.0.21:443"));
        assert!(!cover(std::slice::from_ref(&out), "10.0.0.33:6443"));
        let coming = message(0, "10.0.0.21/32", "10.0.0.2/32", 0, 10, true);
        assert!(cover(std::slice::from_ref(&coming), "10.0.0.21:6443"));
        assert!(!cover(&[message(2, "0.0.0.0/0", "0.0.0.0/0", 0, 10, true)], "10.0.0.21:6443"));
        assert!(!cover(&[message(1, "::/0", "::/0", 0, 10, true)], "10.0.0.21:6443"));
    }

    #[test]
    fn what_passes_first_wins_and_what_blocks_covers() {
        let all = message(1, "0.0.0.0/0", "0.0.0.0/0", 0, 10, true);
        let bypass = message(1, "0.0.0.0/0", "10.0.0.21/32", 0, 5, false);
        assert!(!cover(&[all.clone(), bypass.clone()], "10.0.0.21:6443"));
        assert!(cover(&[all, bypass], "10.0.0.22:6443"));
        let mut block = message(1, "0.0.0.0/0", "0.0.0.0/0", 0, 10, false);
        block[ACTION] = XFRM_POLICY_BLOCK;
        assert!(cover(&[block], "10.0.0.21:6443"));
    }

    #[test]
    fn what_is_cut_off_is_no_policy_and_an_interface_of_ipsec_s_own_is_left_to_itself() {
        let mut whole = message(1, "0.0.0.0/0", "0.0.0.0/0", 0, 10, true);
        put(&mut whole, XFRMA_IF_ID, &7u32.to_ne_bytes());
        assert_eq!(policy(&whole), None);
        for length in 0..INFO_SIZE {
            assert_eq!(policy(&whole[..length]), None);
        }
    }
}
