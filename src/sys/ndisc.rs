//! Neighbour discovery (RFC 4861) on one interface, by a packet socket (packet(7)) that sees nothing else. Needs CAP_NET_RAW.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use super::arp::{Claim, Overheard};
use super::frame::FrameSocket;
use crate::addr::Mac;

const ETH_P_IPV6: u16 = 0x86dd;
/// Lengths of an Ethernet header, an IPv6 header, and the common beginning of solicitations and advertisements.
const ETHERNET_LENGTH: usize = 14;
const IP_LENGTH: usize = 40;
const MESSAGE_LENGTH: usize = 24;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options that hold an Ethernet address.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Offsets of a frame's next header and message type.
const NEXT_HEADER_AT: u32 = 20;
const TYPE_AT: u32 = 54;

/// An open socket.
#[derive(Debug)]
pub struct NdSocket(FrameSocket);

impl NdSocket {
    /// For the interface called `name`; `Unsupported` if it is not Ethernet.
    pub fn open(name: &str) -> io::Result<Self> {
        // It must not even receive all IPv6 packets of this host.
        FrameSocket::open(name, ETH_P_IPV6, attach).map(Self)
    }

    /// The interface's own Ethernet address.
    pub fn mac(&self) -> Mac {
        self.0.mac()
    }

    /// Sends `frame` through the interface.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.0.send(frame)
    }

    /// Whether the socket still receives what comes to the interface called `name`.
    pub(crate) fn is_bound_to(&self, name: &str) -> bool {
        self.0.is_bound_to(name)
    }

    /// The next received claim; `None`: no more for now.
    pub(crate) fn heard(&self) -> Option<Claim> {
        self.0.heard(claim)
    }

    /// Has the interface receive other hosts' questions for `address`, which go to a multicast group of its own.
    pub fn hear_questions(&self, address: Ipv6Addr) -> io::Result<()> {
        let [.., one, two, three] = address.octets();
        self.0.join([0x33, 0x33, 0xff, one, two, three])
    }

    /// As [`NdSocket::heard`], with other hosts' questions.
    pub fn overheard(&self) -> Option<Overheard> {
        self.0.heard(overheard)
    }
}

/// Lets only solicitations and advertisements through to `socket`.
fn attach(socket: &OwnedFd) -> io::Result<()> {
    let load = |at: u32| step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, at);
    let equal = |value: u8, yes: u8, no: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value.into());
    let answer = |bytes: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, bytes);
    let mut steps = [
        load(NEXT_HEADER_AT),
        equal(ICMPV6, 0, 3),
        load(TYPE_AT),
        equal(SOLICITATION, 2, 0),
        equal(ADVERTISEMENT, 1, 0),
        answer(0),
        answer(u32::MAX),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: `program` and the steps that it points to are valid for their lengths and outlive the call, which copies them.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// The address that a frame claims for its sender: an advertisement's target, or a solicitation's source. A
/// solicitation from the unspecified address (RFC 4862 section 5.4.2) claims none.
fn claim(frame: &[u8]) -> Option<Claim> {
    let ip = frame.get(ETHERNET_LENGTH..ETHERNET_LENGTH + IP_LENGTH)?;
    let message = frame.get(ETHERNET_LENGTH + IP_LENGTH..)?;
    if message.len() < MESSAGE_LENGTH || ip[6] != ICMPV6 {
        return None;
    }
    let of = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from);
    let (address, option) = match message[0] {
        ADVERTISEMENT => (of(&message[8..24])?, TARGET_ADDRESS),
        SOLICITATION => (of(&ip[8..24])?, SOURCE_ADDRESS),
        _ => return None,
    };
    let sender = frame.get(6..12)?.try_into().ok()?;
    let mac = link_address(&message[MESSAGE_LENGTH..], option).unwrap_or(sender);
    (!address.is_unspecified()).then_some(Claim { address: address.into(), mac })
}

fn overheard(frame: &[u8]) -> Option<Overheard> {
    match (claim(frame), target(frame)) {
        (Some(by), Some(target)) if by.address != target => Some(Overheard::Search { by, target }),
        (Some(claim), _) => Some(Overheard::Claim(claim)),
        (None, _) => question(frame).map(Overheard::Question),
    }
}

/// The address that a solicitation from the unspecified address asks for, and the asking host.
fn question(frame: &[u8]) -> Option<Claim> {
    let address = target(frame)?;
    let ip = &frame[ETHERNET_LENGTH..];
    (ip[8..24] == [0; 16]).then_some(Claim { address, mac: frame.get(6..12)?.try_into().ok()? })
}

/// The address that a solicitation asks for.
fn target(frame: &[u8]) -> Option<IpAddr> {
    let ip = frame.get(ETHERNET_LENGTH..ETHERNET_LENGTH + IP_LENGTH)?;
    let message = frame.get(ETHERNET_LENGTH + IP_LENGTH..)?;
    let is_solicitation = ip[6] == ICMPV6 && message.first() == Some(&SOLICITATION);
    let address = <[u8; 16]>::try_from(message.get(8..24).filter(|_| is_solicitation)?).ok()?;
    Some(Ipv6Addr::from(address).into())
}

/// The Ethernet address in the option of this `kind`.
fn link_address(mut options: &[u8], kind: u8) -> Option<Mac> {
    while let [found, length, ..] = *options {
        // In units of eight bytes, and never 0 (RFC 4861 section 4.6).
        let length = usize::from(length) * 8;
        let option = options.get(..length).filter(|option| !option.is_empty())?;
        if found == kind {
            return option.get(2..8)?.try_into().ok();
        }
        options = &options[length..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const VIP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);

    /// A received frame, with `options` after its message.
    fn frame(kind: u8, source: Ipv6Addr, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
        let mut frame = [&[0x33, 0x33, 0, 0, 0, 1][..], &MAC, &ETH_P_IPV6.to_be_bytes()].concat();
        frame.extend([0x60, 0, 0, 0, 0, (MESSAGE_LENGTH + options.len()) as u8, ICMPV6, 255]);
        frame.extend(source.octets());
        frame.extend([0; 16]);
        frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(target.octets());
        frame.extend(options);
        frame
    }

    #[test]
    fn an_advertisement_claims_its_target_and_a_solicitation_its_source() {
        let other: Ipv6Addr = "fd00::1".parse().unwrap();
        let of = |kind, source, target, options: &[u8]| claim(&frame(kind, source, target, options));
        let vip = |mac| Some(Claim { address: VIP.into(), mac });
        assert_eq!(of(ADVERTISEMENT, other, VIP, &[]), vip(MAC));
        let option = [14, 1, 0, 0, 0, 0, 0, 0, TARGET_ADDRESS, 1, 2, 0, 0, 0, 0, 9];
        assert_eq!(of(ADVERTISEMENT, other, VIP, &option), vip([2, 0, 0, 0, 0, 9]), "on behalf of another interface");
        assert_eq!(of(SOLICITATION, VIP, other, &[SOURCE_ADDRESS, 1, 2, 0, 0, 0, 0, 8]), vip([2, 0, 0, 0, 0, 8]));
        assert_eq!(
            of(SOLICITATION, Ipv6Addr::UNSPECIFIED, VIP, &[]),
            None,
            "whoever asks whether it is free has it not"
        );
        assert_eq!(of(134, other, VIP, &[]), None, "a router's advertisement");
        let by = |address: Ipv6Addr| Claim { address: address.into(), mac: MAC };
        let heard = |kind, source| overheard(&frame(kind, source, VIP, &[]));
        assert_eq!(heard(SOLICITATION, other), Some(Overheard::Search { by: by(other), target: VIP.into() }));
        assert_eq!(heard(SOLICITATION, Ipv6Addr::UNSPECIFIED), Some(Overheard::Question(by(VIP))));
        assert_eq!(heard(ADVERTISEMENT, other), Some(Overheard::Claim(by(VIP))));
        let asked = |kind, source| question(&frame(kind, source, VIP, &[]));
        assert_eq!(asked(SOLICITATION, Ipv6Addr::UNSPECIFIED), vip(MAC));
        assert_eq!(asked(SOLICITATION, other), None, "it looks for a neighbour");
        assert_eq!(asked(ADVERTISEMENT, Ipv6Addr::UNSPECIFIED), None);
        let whole = frame(SOLICITATION, Ipv6Addr::UNSPECIFIED, VIP, &[]);
        assert!((0..78).all(|length| question(&whole[..length]).is_none()));
    }

    #[test]
    fn what_is_cut_off_or_malformed_claims_nothing_or_the_senders_own_address() {
        let whole = frame(ADVERTISEMENT, VIP, VIP, &[TARGET_ADDRESS, 1, 2, 0, 0, 0, 0, 9]);
        assert!((0..78).all(|length| claim(&whole[..length]).is_none()));
        for options in [&[TARGET_ADDRESS, 0, 2, 0, 0, 0, 0, 9][..], &[TARGET_ADDRESS, 9, 2, 0], &[TARGET_ADDRESS]] {
            let claim = claim(&frame(ADVERTISEMENT, VIP, VIP, options));
            assert_eq!(claim, Some(Claim { address: VIP.into(), mac: MAC }), "{options:?}");
        }
    }

    #[test]
    fn the_loopback_interface_has_no_neighbours() {
        assert_eq!(NdSocket::open("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
