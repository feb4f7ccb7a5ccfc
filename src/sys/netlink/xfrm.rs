//! IPsec policies (include/uapi/linux/xfrm.h, net/xfrm/xfrm_user.c): whether a connection's packets may pass
//! unencrypted.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use netlink_packet_core::{Emitable, NLM_F_DUMP};
use netlink_packet_xfrm::{
    Address, UserPolicyId, UserPolicyInfo, XFRM_MSG_GETPOLICY, XFRM_POLICY_BLOCK, XFRM_POLICY_IN, XFRM_POLICY_OUT,
    XFRMA_IF_ID, XFRMA_TMPL,
};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::{ask, attributes};

/// One policy of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XfrmPolicy {
    direction: PolicyDirection,
    from: Net,
    to: Net,
    from_port: Port,
    to_port: Port,
    /// 0: any.
    protocol: u8,
    /// The lowest number wins.
    priority: u32,
    /// Packets must be transformed, or are dropped; otherwise they pass unchanged.
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

/// XFRMGRP_EXPIRE and XFRMGRP_POLICY.
const GROUPS: u32 = 2 | 8;
const IPPROTO_TCP: u8 = 6;

/// Watches policies, and keeps those that exist. Needs CAP_NET_ADMIN.
#[derive(Debug)]
pub(crate) struct Policies {
    /// `None`: this kernel has no IPsec.
    watch: Option<OwnedFd>,
    known: Vec<XfrmPolicy>,
    /// A change was notified, and has not been read yet.
    stale: bool,
}

impl Policies {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let watch = match socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::XFRM)) {
            Ok(socket) => socket,
            Err(Errno::PROTONOSUPPORT) => return Ok(Self { watch: None, known: Vec::new(), stale: false }),
            Err(error) => return Err(error.into()),
        };
        bind(&watch, &SocketAddrNetlink::new(0, GROUPS))?;
        // The watch first: changes in between are notified.
        Ok(Self { watch: Some(watch), known: read()?, stale: false })
    }

    /// Reads the policies if they have changed. Returns whether they are others than before. An error: the earlier ones
    /// still count, and the next call tries again.
    pub(crate) fn refresh(&mut self) -> io::Result<bool> {
        let Some(watch) = &self.watch else { return Ok(false) };
        let mut buffer = [0; 4096];
        loop {
            match recv(watch, &mut buffer[..], RecvFlags::TRUNC) {
                // Also if the kernel dropped notifications.
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

    /// Whether packets of a TCP connection between `own` and `far` must not pass unchanged.
    pub(crate) fn cover(&self, own: SocketAddr, far: SocketAddr) -> bool {
        let demanded = |direction, from, to| {
            let matching = || self.known.iter().filter(|it| it.direction == direction && it.matches(from, to));
            let first = matching().map(|policy| policy.priority).min();
            // The kernel does not report which of two policies of one priority came first.
            matching().any(|policy| Some(policy.priority) == first && policy.demands)
        };
        demanded(PolicyDirection::Out, own, far) || demanded(PolicyDirection::In, far, own)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

fn read() -> io::Result<Vec<XfrmPolicy>> {
    let mut policies = Vec::new();
    let all = UserPolicyId::default();
    ask(Some(netlink::XFRM), XFRM_MSG_GETPOLICY, NLM_F_DUMP, &[&all], |message| policies.extend(policy(message)))?;
    Ok(policies)
}

/// `None`: it applies to no connection of this host, or only to those by an interface of its own kind, without an
/// Ethernet header.
fn policy(message: &[u8]) -> Option<XfrmPolicy> {
    let info = UserPolicyInfo::parse(message).ok()?;
    let rest = &message[info.buffer_len()..];
    let direction = match info.direction {
        XFRM_POLICY_IN => PolicyDirection::In,
        XFRM_POLICY_OUT => PolicyDirection::Out,
        _ => return None,
    };
    if attributes(rest).any(|it| it.kind() == XFRMA_IF_ID && it.value().iter().any(|byte| *byte != 0)) {
        return None;
    }
    let selector = &info.selector;
    let is_ipv6 = i32::from(selector.family) == libc::AF_INET6;
    let ip = |ip: &Address| if is_ipv6 { ip.to_ipv6().into() } else { ip.to_ipv4().into() };
    Some(XfrmPolicy {
        direction,
        from: Net { ip: ip(&selector.saddr), bits: selector.prefixlen_s },
        to: Net { ip: ip(&selector.daddr), bits: selector.prefixlen_d },
        from_port: Port { port: selector.sport, mask: selector.sport_mask },
        to_port: Port { port: selector.dport, mask: selector.dport_mask },
        protocol: selector.proto,
        priority: info.priority,
        demands: info.action == XFRM_POLICY_BLOCK || attributes(rest).any(|it| it.kind() == XFRMA_TMPL),
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
    use netlink_packet_core::DefaultNla;

    use super::*;

    /// The kernel's notification for `ip xfrm policy add dir out src FROM dst TO priority P [tmpl ...]`.
    fn message(direction: u8, from: &str, to: &str, to_port: u16, priority: u32, template: bool) -> Vec<u8> {
        let mut info = UserPolicyInfo { direction, priority, ..UserPolicyInfo::default() };
        let [(from, from_bits), (to, to_bits)] = [from, to].map(|net| {
            let (ip, bits) = net.split_once('/').unwrap();
            (ip.parse().unwrap(), bits.parse().unwrap())
        });
        info.selector.source_prefix(&from, from_bits);
        info.selector.destination_prefix(&to, to_bits);
        (info.selector.dport, info.selector.dport_mask) = (to_port, if to_port == 0 { 0 } else { 0xffff });
        let mut raw = raw(&info);
        if template {
            raw.extend(self::raw(&DefaultNla::new(XFRMA_TMPL, vec![0; 64])));
        }
        raw
    }

    fn raw(part: &impl Emitable) -> Vec<u8> {
        let mut raw = vec![0; part.buffer_len()];
        part.emit(&mut raw);
        raw
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
        // `action` of struct xfrm_userpolicy_info.
        let mut block = message(1, "0.0.0.0/0", "0.0.0.0/0", 0, 10, false);
        block[161] = XFRM_POLICY_BLOCK;
        assert!(cover(&[block], "10.0.0.21:6443"));
    }

    #[test]
    fn what_is_cut_off_is_no_policy_and_an_interface_of_ipsec_s_own_is_left_to_itself() {
        let mut whole = message(1, "0.0.0.0/0", "0.0.0.0/0", 0, 10, true);
        // `struct xfrm_userpolicy_info`.
        for length in 0..168 {
            assert_eq!(policy(&whole[..length]), None);
        }
        assert!(!policy(&whole[..168]).unwrap().demands);
        assert!(policy(&whole).unwrap().demands);
        whole.extend(raw(&DefaultNla::new(XFRMA_IF_ID, 7u32.to_ne_bytes().to_vec())));
        assert_eq!(policy(&whole), None);
    }
}
