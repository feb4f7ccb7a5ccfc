//! The wire format of the link.
//!
//! ```text
//!   both, in the clear     | "BTNP" | lowest version | highest version |              4 + 2 + 2 bytes
//!   handshake              | length | Noise message |, once each way                  2 + 48, or first 2 + 96 by own keys
//!                          | 0 |  the other's key is another one
//!   then, each way         | length | one message, sealed |                           2 + length, at most 65,535
//! ```
//! Numbers are big-endian. Each frame holds one message, encoded as the negotiated version demands: the highest version
//! that both ends support. The handshake covers the unencrypted preamble, so nobody on the path can force an older
//! version.

use crate::model::fleet::Message;

pub(crate) const PREAMBLE_BYTES: usize = 8;

/// Bytes of a frame behind its length.
pub(crate) const FRAME_MAX: usize = u16::MAX as usize;
/// Bytes that sealing adds.
pub(crate) const SEAL_BYTES: usize = 16;

/// The lowest and the highest version that this release supports.
pub(crate) const VERSIONS: Versions = Versions { lowest: Version::One as u16, highest: Version::Three as u16 };

/// The version of one link. Each has its own arm in [`encode`] and [`decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Messages in postcard.
    One = 1,
    /// The same, and summaries of the instances.
    Two = 2,
    /// The same, and their source ports.
    Three = 3,
}

const MAGIC: [u8; 4] = *b"BTNP";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub lowest: u16,
    pub highest: u16,
}

/// Why bytes could not be decoded as a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("this release does not know it: {0}")]
    Body(String),
    #[error("{0} bytes are left over")]
    Rest(usize),
    #[error("the link's version does not have it")]
    Later,
}

/// The message is longer than a frame can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message has {0} bytes, more than fit into a frame")]
pub struct FrameTooLong(pub usize);

impl Version {
    /// Whether instances tell each other their summaries.
    pub(crate) fn has_summaries(self) -> bool {
        self >= Self::Two
    }

    /// Whether instances tell each other their source ports.
    pub(crate) fn has_ports(self) -> bool {
        self >= Self::Three
    }

    fn has(self, message: &Message) -> bool {
        match message {
            Message::Summary(_) => self.has_summaries(),
            Message::Ports(_) => self.has_ports(),
            _ => true,
        }
    }
}

impl Versions {
    pub(crate) fn preamble(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.lowest.to_be_bytes());
        bytes[6..].copy_from_slice(&self.highest.to_be_bytes());
        bytes
    }

    /// `None`: the sender is not Baton.
    pub fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        (bytes[..4] == MAGIC).then(|| Self { lowest: number(4), highest: number(6) })
    }

    /// The version to use with an end that supports `self`. `None`: no common version.
    pub fn spoken(self) -> Option<Version> {
        match VERSIONS.common(self)? {
            1 => Some(Version::One),
            2 => Some(Version::Two),
            3 => Some(Version::Three),
            _ => None,
        }
    }

    /// The highest version that both support, if there is one.
    fn common(self, other: Self) -> Option<u16> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lowest == self.highest {
            true => write!(f, "version {}", self.lowest),
            false => write!(f, "versions {} to {}", self.lowest, self.highest),
        }
    }
}

pub fn encode(message: &Message, version: Version) -> Result<Vec<u8>, FrameTooLong> {
    debug_assert!(version.has(message), "a version-{} link has no {message:?}", version as u16);
    let bytes = match version {
        Version::One | Version::Two | Version::Three => {
            postcard::to_stdvec(message).expect("a vector takes everything")
        }
    };
    if bytes.len() > FRAME_MAX - SEAL_BYTES { Err(FrameTooLong(bytes.len())) } else { Ok(bytes) }
}

pub fn decode(bytes: &[u8], version: Version) -> Result<Message, FrameError> {
    let read = match version {
        Version::One | Version::Two | Version::Three => postcard::take_from_bytes(bytes),
    };
    match read {
        Ok((message, _)) if !version.has(&message) => Err(FrameError::Later),
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(FrameError::Rest(rest.len())),
        Err(error) => Err(FrameError::Body(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::testing::{passage, record};
    use crate::model::fleet::vip::VipStanding;
    use crate::model::fleet::{
        Abandoned, Asked, Change, Epoch, Farewell, FleetId, FlowRecord, Hello, InstanceName, Keeping, PortRange,
        summary,
    };
    use crate::model::ids::FlowId;

    /// Each message at its largest.
    fn all() -> Vec<Message> {
        let six = |port: u16| format!("[fd00:1234:5678:9abc:def0:1234:5678:{port:x}]:{port}").parse().unwrap();
        let mut flow = record(u64::MAX);
        flow.ends.client = crate::addr::ClientAddr::new(six(65535));
        flow.ends.vip = crate::addr::VipAddr::new(six(65534));
        flow.ends.local = crate::addr::LocalAddr::new(six(65533));
        flow.ends.backend = crate::addr::BackendAddr::new(six(65532));
        flow.client = flow.ends.client;
        (flow.backend_key, flow.accepted_unix_ms, flow.connect_us) = (u64::MAX, u64::MAX, u32::MAX);
        let mut largest = passage(u32::MAX - 9);
        for way in [&mut largest.up, &mut largest.down] {
            (way.sent, way.acked, way.bytes) = (u64::MAX, u64::MAX, u64::MAX);
        }
        let offloaded = FlowRecord { keeping: Keeping::Passage(Box::new(largest)), ..flow };
        let packet = Asked { from: six(1), to: six(2) };
        vec![
            Message::Hello(Hello {
                name: InstanceName("n".repeat(63).into()),
                epoch: Epoch(u64::MAX),
                slot: 7,
                version: "1.0.0".to_owned(),
            }),
            Message::Refuse("no".to_owned()),
            Message::Begin { next: u64::MAX },
            Message::Records(vec![offloaded.clone(); 64]),
            Message::Changes { first: u64::MAX, changes: vec![Change::Flow(Box::new(offloaded)); 64] },
            Message::Whole,
            Message::Ack { next: 5 },
            Message::Again,
            Message::Beat { number: 7, echo: true },
            Message::Echo { number: 7 },
            Message::Claim(vec![FleetId { flow: FlowId(u64::MAX), ends: u64::MAX }; 1024]),
            Message::Ask { number: 1, packet },
            Message::Answer { number: 1, known: true },
            Message::Addresses(vec![packet.from.ip(); 1024]),
            Message::Farewell(Farewell::Succeeded),
            Message::Untold(vec![
                Abandoned { from: packet.from, to: packet.to, seqs: [u32::MAX; 2], ack: u32::MAX };
                256
            ]),
            Message::Vip(VipStanding { claim: u64::MAX, holder: Some(u16::MAX), ..VipStanding::default() }),
            Message::Summary(Box::new(summary::tests::largest())),
            Message::Ports(PortRange { first: 61440, last: u16::MAX }),
        ]
    }

    #[test]
    fn every_message_survives_the_wire_and_fits_into_a_frame() {
        let version = Version::Three;
        for message in all() {
            let bytes = encode(&message, version).unwrap();
            assert_eq!(decode(&bytes, version).as_ref(), Ok(&message));
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(decode(&longer, version), Err(FrameError::Rest(1)));
            for length in 0..bytes.len().min(300) {
                assert!(decode(&bytes[..length], version).is_err(), "{message:?} cut to {length}");
            }
        }
        // A frame that took longer would delay a beat.
        let summary = Message::Summary(Box::new(summary::tests::largest()));
        assert!(encode(&summary, version).unwrap().len() <= 16 * 1024);
        let long = Message::Claim(vec![FleetId { flow: FlowId(u64::MAX), ends: u64::MAX }; 10_000]);
        assert!(encode(&long, version).is_err());
    }

    #[test]
    fn the_highest_version_that_both_know_is_spoken() {
        let versions = |lowest, highest| Versions { lowest, highest };
        assert_eq!(versions(1, 3).common(versions(2, 5)), Some(3));
        assert_eq!(versions(2, 5).common(versions(1, 3)), Some(3));
        assert_eq!(versions(1, 1).common(versions(2, 2)), None);
        assert_eq!(versions(4, 4).common(versions(1, 9)), Some(4));
        // A release that advertises a version has an arm for it.
        for version in VERSIONS.lowest..=VERSIONS.highest {
            assert_eq!(versions(version, version).spoken().map(|spoken| spoken as u16), Some(version));
        }
        assert_eq!(versions(VERSIONS.highest + 1, u16::MAX).spoken(), None);
        assert_eq!(versions(9, 0).spoken(), None, "upside down");
        assert_eq!(Versions::parse(&versions(3, 700).preamble()), Some(versions(3, 700)));
        assert_eq!(Versions::parse(b"GET / HT"), None);
    }
}
