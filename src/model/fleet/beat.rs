//! Beats: datagrams beside the link, so that no instance mistakes a cut link for a dead host.
//!
//! Beats go to every known address of a peer, in independent datagrams. The sender seals them with a secret that its
//! process sent on the link while there was one. So a beat proves that this very process lives, even if the link's keys
//! have changed since.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use zeroize::ZeroizeOnDrop;

use super::vip::VipStanding;
use super::{Epoch, InstanceName};

/// The secret that a process seals its beats with, as long as it runs. Every instance that was linked with it knows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ZeroizeOnDrop)]
pub struct BeatKey(pub [u8; 32]);

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

impl fmt::Debug for BeatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeatKey(..)")
    }
}
