//! What the exchange tells people.

use crate::model::fleet::{InstanceName, Liveness};

/// Events for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Linked {
        peer: InstanceName,
        version: String,
    },
    Lost {
        peer: InstanceName,
        why: String,
    },
    Synced {
        peer: InstanceName,
        flows: u64,
    },
    /// A change of the peer is missing: it must send its flows again.
    Gap {
        peer: InstanceName,
    },
    Liveness {
        peer: InstanceName,
        liveness: Liveness,
    },
    /// Why there is no link to the peer, if the reason is a new one.
    Unreachable {
        peer: InstanceName,
        why: String,
    },
}
