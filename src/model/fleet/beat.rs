//! Beats: datagrams beside the link, so that no instance mistakes a cut link for a dead host.
//!
//! Beats go to every known address of a peer, in independent datagrams. The sender seals them with a secret that its
//! process sent on the link while there was one. So a beat proves that this very process lives, even if the link's keys
//! have changed since.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::ZeroizeOnDrop;

use super::vip::VipStanding;
use super::{Epoch, InstanceName};

/// The secret that a process seals its beats to one instance with, as long as it runs. Only these two know it, so that
/// no third instance can speak for either.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
pub struct BeatKey(pub [u8; 32]);

/// The secret of a process from which it derives the [`BeatKey`] for each other instance. It tells nobody.
#[derive(Clone, ZeroizeOnDrop)]
pub struct BeatSecret(pub [u8; 32]);

/// One beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Higher than that of every earlier beat: the receiver drops a replayed one.
    pub number: u64,
    /// The instances that the sender itself hears.
    pub heard: Vec<Heard>,
    /// The sender's standing to the VIP, if its file has one.
    pub vip: Option<VipStanding>,
}

/// What the sender of a beat says of a third instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// As [`InstanceName::tag`].
    pub tag: u16,
    pub epoch: Epoch,
    /// Milliseconds since the sender last heard it.
    pub ago_ms: u16,
}

/// A beat that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub beat: Beat,
    /// To all addresses of each peer.
    pub to: Vec<(InstanceName, Vec<IpAddr>)>,
}

impl BeatSecret {
    /// HMAC (RFC 2104) with BLAKE2s over the name.
    pub(crate) fn toward(&self, peer: &InstanceName) -> BeatKey {
        let mut key = [0; 32];
        let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("BLAKE2s is compiled in");
        hash.hmac(&self.0, peer.0.as_bytes(), &mut key);
        BeatKey(key)
    }
}

impl fmt::Debug for BeatSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeatSecret(..)")
    }
}

impl fmt::Debug for BeatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeatKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise one instance could tell a second one that a dead third one lives.
    #[test]
    fn no_two_instances_are_told_the_same_key() {
        let secret = BeatSecret([1; 32]);
        let [b, c] = ["lb-b", "lb-c"].map(|name| secret.toward(&InstanceName(name.into())));
        assert!(b != c && b.0 != secret.0 && c.0 != secret.0);
        assert_eq!(b, secret.toward(&InstanceName("lb-b".into())));
        assert_ne!(b, BeatSecret([2; 32]).toward(&InstanceName("lb-b".into())));
    }
}
