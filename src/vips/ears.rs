//! The questions and claims of one interface, in both families.

use std::io;
use std::net::IpAddr;

use crate::addr::Mac;
use crate::model::neighbour;
use crate::sys::arp::{ArpSocket, Claim, Overheard};
use crate::sys::ndisc::NdSocket;

/// Sockets for the families that an interface has addresses of.
#[derive(Debug, Default)]
pub(super) struct Ears {
    arp: Option<ArpSocket>,
    discovery: Option<NdSocket>,
    /// Whether `discovery` receives other hosts' questions.
    hears_questions: bool,
}

impl Ears {
    /// Opens missing sockets and closes those that are no longer needed or belong to an interface that has gone. Returns whether it opened
    /// any: then nobody heard the answers to earlier questions.
    pub(super) fn listen(&mut self, name: &str, ipv4: bool, ipv6: bool) -> io::Result<bool> {
        self.arp.take_if(|it| !ipv4 || !it.is_bound_to(name));
        self.discovery.take_if(|it| !ipv6 || !it.is_bound_to(name));
        self.hears_questions &= self.discovery.is_some();
        let arp = open(&mut self.arp, ipv4, || ArpSocket::open(name))?;
        let discovery = open(&mut self.discovery, ipv6, || NdSocket::open(name))?;
        Ok(arp || discovery)
    }

    /// Has the interface receive other hosts' questions for `addresses`. ARP's go to all hosts anyway.
    pub(super) fn hear_questions(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        let Some(socket) = self.discovery.as_ref().filter(|_| !self.hears_questions) else { return Ok(()) };
        for address in addresses {
            if let IpAddr::V6(address) = address {
                socket.hear_questions(*address)?;
            }
        }
        self.hears_questions = true;
        Ok(())
    }

    /// The interface's own Ethernet address.
    pub(super) fn mac(&self) -> Option<Mac> {
        let arp = self.arp.as_ref().map(ArpSocket::mac);
        arp.or_else(|| self.discovery.as_ref().map(NdSocket::mac))
    }

    /// Asks which other host has `address`, which is on this interface. An error: nobody got the question.
    pub(super) fn ask(&self, address: IpAddr) -> io::Result<()> {
        match (address, &self.arp, &self.discovery) {
            (IpAddr::V4(address), Some(arp), _) => arp.probe(address),
            (IpAddr::V6(address), _, Some(socket)) => socket.send(&neighbour::question(address, socket.mac())),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// As [`Ears::heard`], with other hosts' questions.
    pub(super) fn overheard(&self, max: usize) -> Vec<Overheard> {
        let arp = self.arp.iter().flat_map(|arp| std::iter::from_fn(|| arp.overheard()).take(max));
        let discovery = self.discovery.iter().flat_map(|it| std::iter::from_fn(|| it.overheard()).take(max));
        arp.chain(discovery).collect()
    }

    /// Up to `max` received claims of each family.
    pub(super) fn heard(&self, max: usize) -> Vec<Claim> {
        let arp = self.arp.iter().flat_map(|arp| std::iter::from_fn(|| arp.heard()).take(max));
        let discovery = self.discovery.iter().flat_map(|it| std::iter::from_fn(|| it.heard()).take(max));
        arp.chain(discovery).collect()
    }
}

/// Returns whether it opened the socket.
fn open<T>(socket: &mut Option<T>, is_wanted: bool, open: impl FnOnce() -> io::Result<T>) -> io::Result<bool> {
    let is_missing = is_wanted && socket.is_none();
    if is_missing {
        *socket = Some(open()?);
    }
    Ok(is_missing)
}
