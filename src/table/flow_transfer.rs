//! A flow on its way to another process: its whole state except its sockets, which are sent beside it.
//!
//! Times are nanoseconds on the monotonic clock, which all processes of a host share.

use serde::{Deserialize, Serialize};

use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::ids::FlowId;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTransfer {
    pub id: FlowId,
    pub frontend: String,
    pub client: ClientAddr,
    pub vip: VipAddr,
    pub accepted_at_ns: u64,
    pub stage: Stage,
}

/// The phase of the flow, which determines the sockets that are sent with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The client's socket only: its PROXY header has not been read.
    Header,
    /// The client's socket only: no backend has it, and no byte of the client was read.
    Connecting,
    /// The client's socket, then the backend's.
    Relaying(Box<Relayed>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayed {
    pub backend: String,
    pub backend_addr: BackendAddr,
    /// From client to backend.
    pub up: HalfWay,
    /// From backend to client.
    pub down: HalfWay,
    pub first_fin: Option<FirstFin>,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
    pub connect_us: u64,
    /// Of the first byte to the backend since its last answer; 0: it has answered.
    pub unanswered_since_ns: u64,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfWay {
    pub progress: Progress,
    /// Bytes that were read from the source and not yet accepted by the destination.
    #[serde(with = "in_one_piece")]
    pub held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    Open,
    /// The source's EOF was read, and must be passed on after the held bytes.
    Ending,
    /// The EOF was passed on.
    Done,
}

/// The side that sent FIN first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstFin {
    Client,
    Backend,
}

impl FlowTransfer {
    /// Sockets that travel with it.
    pub(crate) fn sockets(&self) -> usize {
        match self.stage {
            Stage::Header | Stage::Connecting => 1,
            Stage::Relaying(_) => 2,
        }
    }

    /// Bytes that travel with it.
    pub fn held_bytes(&self) -> usize {
        match &self.stage {
            Stage::Header | Stage::Connecting => 0,
            Stage::Relaying(relayed) => relayed.up.held.len() + relayed.down.held.len(),
        }
    }
}

/// Serializes bytes as one string: a list would cost a call per byte.
mod in_one_piece {
    use std::fmt;

    use serde::{Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl de::Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }
}
