//! Which flow is meant, and what is known of it from its first moment.

use super::ids::{FlowId, FrontendId};
use crate::addr::{ClientAddr, VipAddr};

/// What is known of a flow when it is accepted.
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
    pub fn new(index: u32) -> Self {
        Self(index)
    }

    pub fn index(self) -> u32 {
        self.0
    }
}

/// Which flow is meant. The id tells it from a later one in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub worker: usize,
    pub key: FlowKey,
    pub id: FlowId,
}
