//! Beats beside the link: independent datagrams, so that no peer mistakes a cut link for a dead host.
//!
//! ```text
//!   "BTNB" | version | sender's tag | number | heard instances, standing to the VIP, sealed
//!                                                                          4 + 1 + 2 + 8 + at most 200 + 16 bytes
//! ```
//! Numbers are big-endian; the sealed part is encoded in postcard. The seal is ChaCha20-Poly1305 with a key that the
//! sender has for this one receiver, the number as the nonce, and the preceding bytes as associated data. No number is
//! used twice with a key: it only rises while the process uses its secret.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, UdpSocket};

use snow::params::CipherChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Cipher;

use super::wire::SEAL_BYTES;
use crate::model::fleet::vip::VipStanding;
use crate::model::fleet::{Beat, BeatKey, BeatSecret, BeatTo, HeardOf, InstanceName};
use crate::sys::socket::receive_datagrams;

/// Between two tries to bind the port: the process before this one may still have it.
pub(super) const AGAIN_NS: u64 = 250_000_000;

/// How long beats also go to the ports from before a reload, unless another reload follows: all instances are reloaded
/// within this time.
const FORMER_NS: u64 = 3600 * 1_000_000_000;

const MAGIC: [u8; 4] = *b"BTNB";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 15;
const BEAT_MAX: usize = 256;
/// Datagrams that one turn reads: a flood of them must not delay the other work.
const TURN_MAX: usize = 128;

/// The socket that sends and receives beats.
#[derive(Debug)]
pub(super) struct Beats {
    socket: UdpSocket,
}

impl Beats {
    pub(super) fn open(place: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: receive_datagrams(place)? })
    }

    /// Sends a beat to all its destinations, at each peer's port. A beat that cannot be sent is lost, as any datagram
    /// may be.
    pub(super) fn send(
        &self,
        secret: &BeatSecret,
        own: &InstanceName,
        beat: &BeatTo,
        ports: &HashMap<InstanceName, u16>,
    ) {
        let is_ipv4 = self.socket.local_addr().is_ok_and(|local| local.is_ipv4());
        for (name, places) in &beat.to {
            let Some(port) = ports.get(name) else { continue };
            let Some(bytes) = seal(&secret.toward(name), own, &beat.beat) else { continue };
            for ip in places.iter().filter(|ip| ip.is_ipv4() == is_ipv4) {
                let _ = self.socket.send_to(&bytes, (*ip, *port));
            }
        }
    }

    /// Returns the received beats, each with the instance that sealed it. `keys`: the instances that may have.
    pub(super) fn receive<'a>(
        &self,
        keys: impl Iterator<Item = (&'a InstanceName, &'a BeatKey)>,
    ) -> Vec<(InstanceName, Beat)> {
        let keys: HashMap<_, _> = keys.map(|(name, key)| (name.tag(), (name, key))).collect();
        let mut beats = Vec::new();
        let mut bytes = [0; BEAT_MAX];
        for _ in 0..TURN_MAX {
            // The kernel also reports an ICMP error for an earlier beat here.
            let length = match self.socket.recv(&mut bytes) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => continue,
            };
            let sender = tag(&bytes[..length]).and_then(|tag| keys.get(&tag));
            let opened = sender.and_then(|(name, key)| Some(((*name).clone(), open(key, &bytes[..length])?)));
            beats.extend(opened);
        }
        beats
    }
}

/// The ports of beats from before a reload moved them. A peer that has not been reloaded yet knows only these.
#[derive(Debug)]
pub(super) struct FormerBeats {
    /// The old socket, until every peer was heard at the new port. `None`: this instance's port has not moved.
    beats: Option<Beats>,
    unheard: HashSet<InstanceName>,
    ports: HashMap<InstanceName, u16>,
    over_ns: u64,
}

impl FormerBeats {
    /// `ports`: the old ports of the peers whose port has moved. `peers`: those that must first be heard at this
    /// instance's new port.
    pub(super) fn new(
        beats: Option<Beats>,
        ports: HashMap<InstanceName, u16>,
        peers: HashSet<InstanceName>,
        now_ns: u64,
    ) -> Self {
        Self { beats, unheard: peers, ports, over_ns: now_ns + FORMER_NS }
    }

    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.over_ns
    }

    /// This instance heard `peer` at the new port.
    pub(super) fn handle_moved(&mut self, peer: &InstanceName) {
        self.unheard.remove(peer);
        if self.unheard.is_empty() {
            self.beats = None;
        }
    }

    /// As [`Beats::receive`], at the old port.
    pub(super) fn receive<'a>(
        &self,
        keys: impl Iterator<Item = (&'a InstanceName, &'a BeatKey)>,
    ) -> Vec<(InstanceName, Beat)> {
        self.beats.as_ref().map(|beats| beats.receive(keys)).unwrap_or_default()
    }

    /// The socket of the old port, until every peer was heard at the new one.
    pub(super) fn beats(&self) -> Option<&Beats> {
        self.beats.as_ref()
    }

    pub(super) fn ports(&self) -> &HashMap<InstanceName, u16> {
        &self.ports
    }
}

fn cipher(key: &BeatKey) -> Option<Box<dyn Cipher>> {
    let mut cipher = DefaultResolver.resolve_cipher(&CipherChoice::ChaChaPoly)?;
    cipher.set(&key.0);
    Some(cipher)
}

fn seal(key: &BeatKey, own: &InstanceName, beat: &Beat) -> Option<Vec<u8>> {
    let plain = postcard::to_stdvec(&(&beat.heard, beat.vip)).ok()?;
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    bytes.extend(own.tag().to_be_bytes());
    bytes.extend(beat.number.to_be_bytes());
    let mut sealed = vec![0; plain.len() + SEAL_BYTES];
    let length = cipher(key)?.encrypt(beat.number, &bytes, &plain, &mut sealed);
    bytes.extend(&sealed[..length]);
    (bytes.len() <= BEAT_MAX).then_some(bytes)
}

/// The sender that the datagram states.
fn tag(bytes: &[u8]) -> Option<u16> {
    let head = bytes.get(..HEAD_BYTES)?;
    (head[..4] == MAGIC && head[4] == VERSION).then(|| u16::from_be_bytes([head[5], head[6]]))
}

/// `None`: the datagram is not sealed with `key`, or was altered.
fn open(key: &BeatKey, bytes: &[u8]) -> Option<Beat> {
    // snow subtracts the seal's length before it checks the length.
    let (head, sealed) = bytes.split_at_checked(HEAD_BYTES).filter(|(_, sealed)| sealed.len() >= SEAL_BYTES)?;
    let number = u64::from_be_bytes(head[7..].try_into().ok()?);
    let mut plain = vec![0; sealed.len()];
    let length = cipher(key)?.decrypt(number, head, sealed, &mut plain).ok()?;
    let (heard, rest): (Vec<HeardOf>, _) = postcard::take_from_bytes(&plain[..length]).ok()?;
    Some(Beat { number, heard, vip: vip(rest) })
}

/// Reads the standing. A beat of a later release may have more bytes behind it; a standing that cannot be read counts as none.
fn vip(rest: &[u8]) -> Option<VipStanding> {
    postcard::from_bytes::<Option<VipStanding>>(rest).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::Epoch;
    use crate::model::fleet::vip::VipPart;

    fn name(text: &str) -> InstanceName {
        InstanceName(text.into())
    }

    fn largest() -> Beat {
        let heard = HeardOf { tag: u16::MAX, epoch: Epoch(u64::MAX), ago_ms: u16::MAX };
        let vip = VipStanding {
            part: VipPart::Holds,
            claim: u64::MAX,
            holder: Some(u16::MAX),
            addresses: u32::MAX,
            flows_here: u32::MAX,
            heir: Some(u16::MAX),
            ..VipStanding::default()
        };
        Beat { number: u64::MAX - 1, heard: vec![heard; 7], vip: Some(vip) }
    }

    #[test]
    fn a_beat_of_a_later_release_may_have_more_bytes_behind_what_this_one_reads() {
        let Beat { heard, vip: said, .. } = largest();
        let mut plain = postcard::to_stdvec(&(&heard, said)).unwrap();
        plain.extend([7; 20]);
        let (read, rest) = postcard::take_from_bytes::<Vec<HeardOf>>(&plain).unwrap();
        assert_eq!((read, vip(rest)), (heard, said));
        assert_eq!(vip(&rest[..3]), None, "cut off");
    }

    #[test]
    fn a_beat_opens_with_its_senders_secret_and_no_other_and_not_if_a_bit_of_it_was_altered() {
        let (key, other) = (BeatKey([3; 32]), BeatKey([4; 32]));
        let beat = largest();
        let bytes = seal(&key, &name("lb-a"), &beat).unwrap();
        assert_eq!(tag(&bytes), Some(name("lb-a").tag()));
        assert_eq!(open(&key, &bytes), Some(beat));
        assert_eq!(open(&other, &bytes), None);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(open(&key, &altered), None, "byte {at}");
            assert_eq!(open(&key, &bytes[..at]), None, "cut to {at}");
        }
    }

    #[test]
    fn beats_come_by_the_socket_with_who_sent_them_and_strangers_do_not() {
        let [here, there] = [0, 1].map(|_| Beats::open("0.0.0.0:0".parse().unwrap()).unwrap());
        let (secret, stranger) = (BeatSecret([5; 32]), BeatSecret([6; 32]));
        let to = BeatTo { beat: largest(), to: vec![(name("lb-b"), vec!["127.0.0.1".parse().unwrap()])] };
        let ports = [(name("lb-b"), there.socket.local_addr().unwrap().port())].into();
        here.send(&stranger, &name("lb-a"), &to, &ports);
        here.send(&secret, &name("lb-a"), &to, &ports);
        there.socket.set_nonblocking(false).unwrap();
        there.socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let knows = [(name("lb-a"), secret.toward(&name("lb-b")))];
        let heard = there.receive(knows.iter().map(|(name, key)| (name, key)).take(1));
        assert_eq!(heard, [(name("lb-a"), largest())]);
    }
}
