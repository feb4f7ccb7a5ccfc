//! The messages between the two processes.
//!
//! ```text
//!   old (source)                                   new (destination)
//!                      ◀── Hello ──                knows its file to be valid
//!   Welcome, Doors, State ──▶                      builds everything, serves nothing
//!                      ◀── Ready ──                or Refuse
//!   Begin ──▶                                      accepts, as the old one still does
//!                      ◀── Serving ──
//!   Batch 1 ──▶                                    has it, touches nothing
//!                      ◀── Received 1 ──
//!   Commit 1 ──▶       from here on they are the new one's
//!                      ◀── Imported 1 ──            serves them
//!   closes its descriptors of batch 1; batch 2 ...
//!   stops accepting, last batches, leaves its fleet
//!   Peers, PeerFlows ... ──▶                       since version 2, if it has peers
//!   Done ──▶                                       opens the admin doors
//!                      ◀── Finished ──
//!   exits
//! ```
//! The old process may send Abort at any time, and then serves the flows again that it has not committed. The new one
//! answers with Left, serves its flows, and exits after the last. `source` and `destination` state the post-condition
//! of each failure.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::addr::VipAddr;
use crate::model::fleet::{SavedPeer, SavedPeerFlows};
use crate::model::health::SavedBackend;
use crate::model::ids::FlowId;
use crate::model::nodes::SavedNode;
use crate::model::rebalance::outage::SavedOutage;
use crate::table::flow_transfer::FlowTransfer;
use crate::table::saved::{SavedCounters, SavedSource};
use crate::table::totals::Totals;

/// The lowest and the highest version of the protocol that this release supports: at least one that the release before
/// supports too, so that an upgrade can be undone.
pub(crate) const PROTOCOL: (u32, u32) = (1, 2);

/// From this version on the old process tells what it knows of its peers.
pub(crate) const SINCE_PEERS: u32 = 2;

#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Hello(Hello),
    Welcome(Welcome),
    /// Sent with one descriptor for each.
    Doors(Vec<Door>),
    State(Box<State>),
    Ready,
    Begin,
    Serving,
    /// Sent with the sockets of all flows, in order, as their transfers state.
    Batch(Batch),
    Received(BatchNumber),
    Commit(BatchNumber),
    Imported(Imported),
    Done(Box<LastWord>),
    Finished,
    Refuse(Reasons),
    Abort(Reasons),
    Left(Left),
    /// The peers, as the old process knew them when it left the fleet. Since version 2.
    Peers(Vec<SavedPeer>),
    /// Flows of one of them. Since version 2.
    PeerFlows(SavedPeerFlows),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the release.
    pub version: String,
    pub protocol_min: u32,
    pub protocol_max: u32,
    pub pid: u32,
    /// Absent: the process cannot import offloaded flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<ProgramReader>,
}

/// The offloaded flows that a process can import. They are not sent: they are in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReader {
    /// Of the kernel's map.
    pub layout: u32,
    /// The directory where they are pinned, from its configuration; absent from a process without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: String,
    /// The highest version that both support.
    pub protocol: u32,
    pub pid: u32,
    /// Number of doors that follow, over all messages.
    pub doors: usize,
}

/// The purpose of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    Frontend(VipAddr),
    /// As configured: the port may be 0.
    AdminHttp(SocketAddr),
    AdminSocket(PathBuf),
}

/// The state of an instance besides its flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The old process has given ids below this one, or may still do so.
    pub next_flow_id: u64,
    pub flows: u64,
    /// Number of flows that the new process must find in the kernel.
    pub offloaded: u64,
    pub backends: Vec<SavedBackend>,
    pub totals: Totals,
    #[serde(rename = "carried")]
    pub counters: SavedCounters,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<SavedNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<SavedOutage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub number: BatchNumber,
    pub flows: Vec<FlowTransfer>,
}

/// Begins at 1 and grows by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchNumber(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    pub number: BatchNumber,
    /// Flows that the new process could not serve and has not changed.
    pub refused: Vec<Refused>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub flow: FlowId,
    pub why: String,
}

/// The old process's last message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastWord {
    pub totals: Totals,
    /// Number of flows that moved.
    pub flows: u64,
    /// Bytes that had been read but not delivered when their flows moved.
    pub held_bytes: u64,
    /// Number of flows that the new process could not serve.
    pub refused: u64,
    /// The longest time for which a flow was with neither process.
    pub longest_pause_us: u64,
    /// Time from Welcome to this message.
    pub took_us: u64,
    /// The first flow id that no process has given.
    pub next_flow_id: u64,
    /// The state of the sources at the very end.
    pub sources: Vec<SavedSource>,
}

/// One sentence each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reasons(pub Vec<String>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Number of flows that the new process still serves.
    pub flows: u64,
}

impl Hello {
    /// The hello of this process.
    pub fn here() -> Self {
        let (protocol_min, protocol_max) = PROTOCOL;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, protocol_min, protocol_max, pid: std::process::id(), path: None }
    }

    /// The same, for a process that can import offloaded flows.
    pub fn reading(self, path: ProgramReader) -> Self {
        Self { path: Some(path), ..self }
    }

    /// The highest version that it and this release support.
    pub(crate) fn common_protocol(&self) -> Option<u32> {
        let highest = self.protocol_max.min(PROTOCOL.1);
        (highest >= self.protocol_min.max(PROTOCOL.0)).then_some(highest)
    }
}

macro_rules! kinds {
    ($($kind:ident = $number:literal $name:literal),* $(,)?) => {
        /// The kind of a message, with its number on the wire. A number is never reused for another kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($kind = $number,)* }

        impl Kind {
            /// In the order of the conversation; kinds that may replace another come last, then those of later versions.
            #[allow(dead_code, reason = "for tests of an upgrade")]
            pub const ALL: &[Kind] = &[$(Self::$kind),*];

            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$kind),)* _ => None }
            }

            /// The name in errors.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    Hello = 1 "hello", Welcome = 2 "welcome", Doors = 3 "doors", State = 4 "state", Ready = 5 "ready",
    Begin = 6 "begin", Serving = 7 "serving", Batch = 8 "batch", Received = 9 "received", Commit = 10 "commit",
    Imported = 11 "imported", Done = 12 "done", Finished = 13 "finished",
    Refuse = 14 "refuse", Abort = 15 "abort", Left = 16 "left",
    Peers = 17 "peers", PeerFlows = 18 "peer flows",
}

impl Kind {
    /// Whether it may come instead of the next message, because its sender gives up.
    #[allow(dead_code, reason = "for tests of an upgrade")]
    pub fn breaks_off(self) -> bool {
        matches!(self, Self::Refuse | Self::Abort | Self::Left)
    }

    /// Whether the old process sends it.
    #[allow(dead_code, reason = "for tests of an upgrade")]
    pub fn is_said_by_the_old(self) -> bool {
        use Kind::{Abort, Batch, Begin, Commit, Done, Doors, PeerFlows, Peers, State, Welcome};
        matches!(self, Welcome | Doors | State | Begin | Batch | Commit | Peers | PeerFlows | Done | Abort)
    }
}

impl Message {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Welcome(_) => Kind::Welcome,
            Self::Doors(_) => Kind::Doors,
            Self::State(_) => Kind::State,
            Self::Ready => Kind::Ready,
            Self::Begin => Kind::Begin,
            Self::Serving => Kind::Serving,
            Self::Batch(_) => Kind::Batch,
            Self::Received(_) => Kind::Received,
            Self::Commit(_) => Kind::Commit,
            Self::Imported(_) => Kind::Imported,
            Self::Done(_) => Kind::Done,
            Self::Finished => Kind::Finished,
            Self::Refuse(_) => Kind::Refuse,
            Self::Abort(_) => Kind::Abort,
            Self::Left(_) => Kind::Left,
            Self::Peers(_) => Kind::Peers,
            Self::PeerFlows(_) => Kind::PeerFlows,
        }
    }

    /// The name in errors.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}
