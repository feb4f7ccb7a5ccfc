//! What an instance says beside the link, so that a link that is cut is not taken for a host that died.
//!
//! Beats go to every address that is known of a peer, in datagrams that stand alone. They are sealed with a secret that the process
//! told on the link while there was one: so they prove that this very process lives, whatever became of the keys since.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Epoch, InstanceName};

/// What a process seals its beats with, for as long as it lives. Whoever is linked with it knows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeatKey(pub [u8; 32]);

/// One beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Higher than that of every beat before: what was recorded and comes again counts for nothing.
    pub number: u64,
    /// Whom the sender hears itself.
    pub heard: Vec<Heard>,
}

/// A third instance, as it is heard by the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// As [`InstanceName::tag`].
    pub tag: u16,
    pub epoch: Epoch,
    /// Since it was, ms.
    pub ago_ms: u16,
}

/// A beat that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub beat: Beat,
    /// To all addresses of each peer.
    pub to: Vec<(InstanceName, Vec<IpAddr>)>,
}

impl fmt::Debug for BeatKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeatKey(..)")
    }
}
