//! The record of a flow that an instance sends to its peers.

use serde::{Deserialize, Serialize};

use super::FleetId;
use crate::addr::ClientAddr;
use crate::model::ends::Ends;
use crate::model::ids::FlowId;
use crate::model::splice::Rewrite;

/// One flow of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Its upper 16 bits name the instance that accepted the flow; see [`FleetId`].
    pub id: FlowId,
    /// As the kernel has them.
    pub ends: Ends,
    /// The client for status and metrics: another address than the connection's if a PROXY header said so.
    pub client: ClientAddr,
    /// `BackendEntry::hash_key`: identifies frontend and backend whatever their indices.
    pub backend_key: u64,
    /// Milliseconds since 1970, UTC: the monotonic clocks of hosts have nothing in common.
    pub accepted_unix_ms: u64,
    pub connect_us: u32,
    pub keeping: Keeping,
}

impl FlowRecord {
    pub fn fleet_id(&self) -> FleetId {
        FleetId::of(self.id, &self.ends)
    }
}

/// Why a peer's flow is not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strangeness {
    /// Its client has asked no frontend of this instance, or its backend leg comes from an address that this host alone has.
    #[default]
    Frontend,
    /// No instance connects to backends from its port.
    Port,
    /// The peer has told of more flows than an instance can have.
    Crowd,
}

/// Where a flow's bytes pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeping {
    /// In its owner's sockets: other instances forward its packets there, or reset it if the owner is dead.
    Sockets,
    /// In the BPF program: any instance with the passage can carry its packets.
    Passage(Box<Passage>),
}

/// The state that a host needs to carry an offloaded flow's packets. It is sent only after the flow's sockets are
/// closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    pub up: RewriteState,
    pub down: RewriteState,
}

/// One direction of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewriteState {
    pub rewrite: Rewrite,
    /// The largest window of its sender, as a power of two of bytes.
    pub window: u8,
    /// The position behind the last byte that was sent in this direction, as 64 bits; the low half is the sequence
    /// number.
    pub sent: u64,
    /// The highest acknowledgement that its sender sent, as a position too.
    pub acked: u64,
    /// Bytes of the flow that came before `sent`.
    pub bytes: u64,
}
