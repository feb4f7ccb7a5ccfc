//! The ends of a flow's two connections, and the addresses of its packets.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::splice::FlowDirection;
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};

/// The addresses of one direction's packets when they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// The four ends of a flow's two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ends {
    pub client: ClientAddr,
    pub vip: VipAddr,
    /// The source of the backend leg.
    pub local: LocalAddr,
    pub backend: BackendAddr,
}

impl Ends {
    /// The key of one direction's packets.
    pub fn key(&self, direction: FlowDirection) -> Key {
        match direction {
            FlowDirection::ToBackend => Key { from: self.client.socket_addr(), to: self.vip.socket_addr() },
            FlowDirection::ToClient => Key { from: self.backend.socket_addr(), to: self.local.socket_addr() },
        }
    }

    /// The keys of both directions' packets, first those to the backend.
    pub fn keys(&self) -> [Key; 2] {
        [self.key(FlowDirection::ToBackend), self.key(FlowDirection::ToClient)]
    }

    /// The addresses of one direction's packets when they leave.
    pub(crate) fn onward(&self, direction: FlowDirection) -> Key {
        match direction {
            FlowDirection::ToBackend => self.key(FlowDirection::ToClient).reversed(),
            FlowDirection::ToClient => self.key(FlowDirection::ToBackend).reversed(),
        }
    }
}

impl Key {
    /// The same two ends, exchanged.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}
