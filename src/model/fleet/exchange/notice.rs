//! What the exchange tells people.

use crate::model::fleet::{InstanceName, Liveness, PortRange};

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
    /// Both connect to backends from the same ports.
    PortsOverlap {
        peer: InstanceName,
        theirs: PortRange,
        own: PortRange,
    },
    /// Why there is no link to the peer, if the reason is a new one.
    Unreachable {
        peer: InstanceName,
        why: String,
    },
}
