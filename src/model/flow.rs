//! A flow's identity, and its properties at the accept.

use super::ids::{FlowId, FrontendId};
use crate::addr::{ClientAddr, VipAddr};

/// The properties of a flow when it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOrigin {
    /// Nanoseconds on the monotonic clock.
    pub accepted_at_ns: u64,
    pub client: ClientAddr,
    pub vip: VipAddr,
    pub frontend: FrontendId,
}

/// A place in its owner's shard of the flow table; the owner keeps the flow's sockets at the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey(u32);

impl FlowKey {
    pub(crate) fn new(index: u32) -> Self {
        Self(index)
    }

    pub(crate) fn index(self) -> u32 {
        self.0
    }
}

/// Identifies a flow: the id distinguishes it from a later flow in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub worker: usize,
    pub key: FlowKey,
    pub id: FlowId,
}
