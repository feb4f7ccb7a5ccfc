//! ARP (RFC 826) on one interface, by a packet socket (packet(7)) that sees nothing else. Needs CAP_NET_RAW.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::frame::FrameSocket;
use crate::addr::Mac;

const ETH_P_ARP: u16 = 0x0806;
const BROADCAST: Mac = [0xff; 6];
const REQUEST: u16 = 1;
/// Header of an Ethernet frame, and an ARP packet for IPv4 in it.
const ETHERNET_LENGTH: usize = 14;
const FRAME_LENGTH: usize = ETHERNET_LENGTH + 28;
/// Hardware type Ethernet, protocol IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// An open socket.
#[derive(Debug)]
pub(crate) struct ArpSocket(FrameSocket);

/// Another host's claim to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: IpAddr,
    pub mac: Mac,
}

/// Another host's message about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overheard {
    Claim(Claim),
    /// The host probes for the address (RFC 5227): it has the address or wants it.
    Question(Claim),
    /// The host looks for `target`, to which it sends packets, as a client does. It claims its own address with this.
    Search {
        by: Claim,
        target: IpAddr,
    },
}

impl Overheard {
    /// The host that has sent it, with the address that it claims or probes for.
    pub(crate) fn by(&self) -> Claim {
        let (Self::Claim(by) | Self::Question(by) | Self::Search { by, .. }) = self;
        *by
    }
}

impl ArpSocket {
    /// For the interface called `name`; `Unsupported` if it is not Ethernet.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        FrameSocket::open(name, ETH_P_ARP, |_| Ok(())).map(Self)
    }

    /// The interface's own Ethernet address.
    pub(crate) fn mac(&self) -> Mac {
        self.0.mac()
    }

    /// Asks which host has `address`, with sender address 0, so that no neighbour learns anything from it (RFC 5227,
    /// section 2.1.1).
    pub(crate) fn probe(&self, address: Ipv4Addr) -> io::Result<()> {
        self.0.send(&frame(self.mac(), address))
    }

    /// Whether the socket still receives what comes to the interface called `name`.
    pub(crate) fn is_bound_to(&self, name: &str) -> bool {
        self.0.is_bound_to(name)
    }

    /// The next received claim; `None`: no more for now.
    pub(crate) fn heard(&self) -> Option<Claim> {
        self.0.heard(claim)
    }

    /// As [`ArpSocket::heard`], with other hosts' questions.
    pub(crate) fn overheard(&self) -> Option<Overheard> {
        self.0.heard(overheard)
    }
}

fn frame(mac: Mac, address: Ipv4Addr) -> [u8; FRAME_LENGTH] {
    let mut frame = [0; FRAME_LENGTH];
    frame[..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ETH_P_ARP.to_be_bytes());
    frame[14..20].copy_from_slice(&KIND);
    frame[20..22].copy_from_slice(&REQUEST.to_be_bytes());
    frame[22..28].copy_from_slice(&mac);
    frame[38..].copy_from_slice(&address.octets());
    frame
}

/// The address that a frame claims for its sender. Probes, with sender address 0, claim none.
fn claim(frame: &[u8]) -> Option<Claim> {
    let arp = frame.get(ETHERNET_LENGTH..FRAME_LENGTH)?;
    if arp[..6] != KIND {
        return None;
    }
    let address = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
    let mac = std::array::from_fn(|byte| arp[8 + byte]);
    (!address.is_unspecified()).then_some(Claim { address: address.into(), mac })
}

fn overheard(frame: &[u8]) -> Option<Overheard> {
    match (claim(frame), target(frame)) {
        // A host that asks for its own address announces it.
        (Some(by), Some(target)) if by.address != target => Some(Overheard::Search { by, target }),
        (Some(claim), _) => Some(Overheard::Claim(claim)),
        (None, _) => question(frame).map(Overheard::Question),
    }
}

/// The address that a probe asks for, and the asking host.
fn question(frame: &[u8]) -> Option<Claim> {
    let address = target(frame)?;
    let arp = &frame[ETHERNET_LENGTH..];
    (arp[14..18] == [0; 4]).then(|| Claim { address, mac: std::array::from_fn(|byte| arp[8 + byte]) })
}

/// The address that a request asks for.
fn target(frame: &[u8]) -> Option<IpAddr> {
    let arp = frame.get(ETHERNET_LENGTH..FRAME_LENGTH)?;
    let is_request = arp[..6] == KIND && arp[6..8] == REQUEST.to_be_bytes();
    is_request.then(|| Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_claims_nothing_and_an_answer_does() {
        let address = Ipv4Addr::new(10, 0, 0, 100);
        let mut frame = frame([2, 0, 0, 0, 0, 7], address);
        assert_eq!(claim(&frame), None);
        assert_eq!(question(&frame), Some(Claim { address: address.into(), mac: [2, 0, 0, 0, 0, 7] }));
        frame[28..32].copy_from_slice(&address.octets());
        assert_eq!(claim(&frame), Some(Claim { address: address.into(), mac: [2, 0, 0, 0, 0, 7] }));
        assert_eq!(question(&frame), None, "it says whose it is");
        assert_eq!(claim(&frame[..41]), None, "cut off");
        frame[14] = 9;
        assert_eq!(claim(&frame), None, "not of Ethernet");
    }

    #[test]
    fn a_client_that_looks_for_an_address_is_neither_a_probe_nor_an_announcement_nor_an_answer() {
        let (address, own) = (Ipv4Addr::new(10, 0, 0, 100), Ipv4Addr::new(10, 0, 0, 9));
        let mac = [2, 0, 0, 0, 0, 7];
        let claim = |ip: Ipv4Addr| Claim { address: ip.into(), mac };
        let mut frame = frame(mac, address);
        assert_eq!(overheard(&frame), Some(Overheard::Question(claim(address))));
        frame[28..32].copy_from_slice(&own.octets());
        assert_eq!(overheard(&frame), Some(Overheard::Search { by: claim(own), target: address.into() }));
        frame[28..32].copy_from_slice(&address.octets());
        assert_eq!(overheard(&frame), Some(Overheard::Claim(claim(address))));
        frame[21] = 2;
        frame[28..32].copy_from_slice(&own.octets());
        assert_eq!(overheard(&frame), Some(Overheard::Claim(claim(own))), "an answer to that address");
    }

    #[test]
    fn the_loopback_interface_has_no_arp() {
        assert_eq!(ArpSocket::open("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
