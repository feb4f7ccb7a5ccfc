//! rtnetlink(7): who else looks at packets, where packets go, and which addresses this host has.

mod address;
pub mod conntrack;
mod link;
mod route;
mod translated;
mod watch;
pub mod xfrm;

pub use address::{add_to_loopback, added_to_loopback, remove_from_loopback};
pub use link::{carrier_changes, merging};
pub use route::{Route, leaves_by, neighbour, route};
pub use translated::is_translated;
pub use watch::{Changed, Watch};

use std::io;
use std::net::IpAddr;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const RTM_GETLINK: u16 = 18;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_TYPE_MASK: u16 = 0x3fff;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;
const TCA_KIND: u16 = 1;
/// TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
const CLSACT_INGRESS: u32 = 0xffff_fff2;

/// The id of the XDP program of an interface.
pub fn xdp_program(ifindex: u32) -> io::Result<Option<u32>> {
    // struct ifinfomsg: family, padding, type, index, flags, change.
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let mut program = None;
    ask(RTM_GETLINK, 0, &body, |message| {
        for (kind, value) in attributes(message.get(16..).unwrap_or_default()) {
            if kind == IFLA_XDP {
                let inner: Vec<_> = attributes(value).collect();
                let attached = inner.iter().any(|(kind, value)| *kind == IFLA_XDP_ATTACHED && value.first() > Some(&0));
                let id = inner.iter().find(|(kind, _)| *kind == IFLA_XDP_PROG_ID);
                let id = id.and_then(|(_, value)| Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?)));
                program = program.or(id.filter(|_| attached));
            }
        }
    })?;
    Ok(program)
}

/// Kinds of the classifiers at the ingress of an interface, attached through netlink: `bpf`, `flower` ...
pub fn ingress_filters(ifindex: u32) -> io::Result<Vec<String>> {
    // struct tcmsg: family, padding, ifindex, handle, parent, info.
    let mut body = [0; 20];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&CLSACT_INGRESS.to_ne_bytes());
    let mut kinds = Vec::new();
    ask(RTM_GETTFILTER, NLM_F_DUMP, &body, |message| {
        let kind = attributes(message.get(20..).unwrap_or_default()).find(|(kind, _)| *kind == TCA_KIND);
        kinds.extend(kind.map(|(_, name)| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
    })?;
    kinds.dedup();
    Ok(kinds)
}

/// Sends one request and hands over the body of each answer.
fn ask(kind: u16, flags: u16, body: &[u8], answer: impl FnMut(&[u8])) -> io::Result<()> {
    ask_of(None, kind, flags, body, answer)
}

/// As [`ask`], of another protocol than that of links and routes.
fn ask_of(
    protocol: Option<Protocol>,
    kind: u16,
    flags: u16,
    body: &[u8],
    mut answer: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut request = Vec::new();
    request.extend((16 + body.len() as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((head, _)) = rest.split_first_chunk::<16>() {
            let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let message = rest.get(16..length).ok_or(io::ErrorKind::InvalidData)?;
            match u16::from_ne_bytes([head[4], head[5]]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = message.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => answer(message),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(());
        }
    }
}

/// Adds an attribute to a request.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets).map(IpAddr::from).ok().or_else(|| <[u8; 16]>::try_from(octets).map(IpAddr::from).ok())
}

/// Type and value of each attribute; ends where they do not fit.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & NLA_TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_program_and_a_stranger_is_told() {
        assert_eq!(xdp_program(1).unwrap(), None);
        assert_eq!(ingress_filters(1).unwrap(), [""; 0]);
        assert!(xdp_program(1 << 30).is_err());
    }
}
