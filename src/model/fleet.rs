//! A fleet: several instances that act as one. The messages about their flows, and the decisions that follow from these.

mod beat;
mod disagreement;
pub(crate) mod evacuate;
mod events;
mod exchange;
pub(crate) mod failover;
mod fleet_id;
mod message;
mod mirror;
mod port_range;
mod record;
mod saved;
mod session;
#[cfg(test)]
mod simulation;
mod standby;
pub(crate) mod summary;
#[cfg(test)]
pub(crate) mod testing;
mod unknown_packet;
mod untold;
pub(crate) mod vip;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use beat::Wanted as BeatTo;
pub use beat::{Beat, BeatKey, BeatSecret, Heard as HeardOf};
pub(crate) use disagreement::disagreements;
pub use disagreement::{Disagreement, Opinion};
pub use events::{Asked, LastHeard, Local, MemberView, PeerCommand, Remote, Said};
pub(crate) use exchange::Notice;
pub use exchange::{Exchange, KnowsQuery, Member, Own};
pub(crate) use fleet_id::FleetId;
pub use message::{Change, Hello, Message};
pub use port_range::PortRange;
pub(crate) use port_range::port_range;
pub(crate) use record::{FlowRecord, Keeping, Passage, RewriteState, Strangeness};
pub(crate) use saved::{KnownPeers, SavedFleet};
pub use saved::{PeerVitals, SavedFlowState, SavedPeer, SavedPeerFlow, SavedPeerFlows, SavedTraits};
pub(crate) use session::PEER_FLOWS_MAX;
pub(crate) use standby::{AcceptedFlow, PeerPortRange, StandbyAnswer, StandbyRequest};
pub(crate) use summary::STUCK_FOR;
pub use summary::{BackendSummary, InstanceSummary, OffloadBrief, PeerSummary, WorstEvent};
pub use unknown_packet::{Then, Unknown, UnknownPacket};
pub(crate) use untold::{Abandoned, Remembered};

/// `instance.name`: how operators call an instance. The same in every file that names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceName(pub Arc<str>);

/// One process of an instance: a process that starts anew, or that follows another in an upgrade, has a higher epoch.
/// The time when it began, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Whether another instance lives, as far as this one knows from the peer link and from the beats beside it.
///
/// ```text
///            heard            silent for a few beats        silent for longer
///   Unheard ──────▶ Alive ─────────────────────────▶ Silent ─────────────────▶ Dead
///                   ▲  ▲ │ it said so                   │ heard                  │ heard
///                   │  │ └──────────▶ Left              │                        │
///                   │  └────────────────────────────────┴────────────────────────┘
///                   ▼ only beside the link, or by others
///                 Unlinked ──▶ Silent ──▶ Dead
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// This process has not heard it yet.
    #[default]
    Unheard,
    Alive,
    /// It lives, but the link is down: its beats come beside the link, or another instance hears it. It keeps its
    /// flows, and this instance does not learn what it does with them.
    Unlinked,
    /// Nothing came for a few beats. Only an instance that just got a VIP takes it for dead.
    Silent,
    /// Nothing came for so long that every instance takes it for dead.
    Dead,
    /// It restarts or stops, and has said what becomes of its flows.
    Left(Farewell),
}

/// Why there is no link, if a host lives and no process listens there.
pub(crate) const NOT_LISTENING: &str = "it refuses the connection";

/// The farewell of an instance before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Farewell {
    /// Another process of the same host goes on with all its flows, and will be heard soon.
    Succeeded,
    /// It stopped: its proxied flows are closed; each offloaded flow goes on with the instance that gets its packets.
    Stopped,
}

/// Number of ranges that the source ports are cut into, one for each instance; so also the highest number of instances.
pub(crate) const SLOTS: u8 = 8;

impl InstanceName {
    /// The upper 16 bits of the ids of its flows; never 0.
    pub(crate) fn tag(&self) -> u16 {
        // FNV-1a, folded: the same in every release, because two releases may run beside each other.
        let hash = self
            .0
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let folded = (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) as u16;
        folded.max(1)
    }
}

impl Liveness {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unheard => "unheard",
            Self::Alive => "alive",
            Self::Unlinked => "unlinked",
            Self::Silent => "silent",
            Self::Dead => "dead",
            Self::Left(Farewell::Succeeded) => "replaced",
            Self::Left(Farewell::Stopped) => "stopped",
        }
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
