//! A flow on its way to another process: all that is known of it, but for its sockets, which travel beside it.
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

/// How far the flow has come. It says which sockets travel with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The client's socket only: its PROXY header is to be read still.
    Header,
    /// The client's socket only: no backend has it, and none of the client's bytes were read.
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
    /// Of the first byte to the backend that nothing came back after; 0 if something did.
    pub unanswered_since_ns: u64,
}

/// One direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfWay {
    pub progress: Progress,
    /// Read from the source and not yet taken by the destination.
    #[serde(with = "in_one_piece")]
    pub held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    Open,
    /// The source's EOF was read; it is to be passed on after what is held.
    Ending,
    /// The EOF was passed on.
    Done,
}

/// Who sent FIN first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstFin {
    Client,
    Backend,
}

impl FlowTransfer {
    /// Sockets that travel with it.
    pub fn sockets(&self) -> usize {
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

/// Bytes as one string of bytes: a list of them would cost a call each.
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
