//! The target of an epoll event, packed into its 64 bits.
//!
//! ```text
//!   63..60 kind   59..52 attempt   51..32 generation   31..0 flow key or listener
//! ```
//! The generation distinguishes a flow from an earlier one in the same place, and the attempt distinguishes the backend
//! sockets of one flow. So an event that was on its way when its socket closed is dropped.

use crate::table::flows::FlowKey;

const GENERATION_BITS: u32 = 20;

/// A flow of this worker, valid until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowRef {
    pub index: u32,
    /// Low bits only.
    pub generation: u32,
}

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Wake,
    Listener(u32),
    Client(FlowRef),
    /// One of the flow's attempts to reach a backend; the one that won becomes its backend leg.
    Backend {
        flow: FlowRef,
        attempt: u8,
    },
}

impl FlowRef {
    pub(super) fn new(key: FlowKey, generation: u32) -> Self {
        Self { index: key.index(), generation: generation & ((1 << GENERATION_BITS) - 1) }
    }

    pub(super) fn key(self) -> FlowKey {
        FlowKey::new(self.index)
    }
}

impl Token {
    pub(super) fn pack(self) -> u64 {
        let flow_bits = |flow: FlowRef| u64::from(flow.generation) << 32 | u64::from(flow.index);
        match self {
            Self::Wake => 0,
            Self::Listener(index) => 1 << 60 | u64::from(index),
            Self::Client(flow) => 2 << 60 | flow_bits(flow),
            Self::Backend { flow, attempt } => 3 << 60 | u64::from(attempt) << 52 | flow_bits(flow),
        }
    }

    /// The inverse of [`Token::pack`].
    pub(super) fn unpack(bits: u64) -> Self {
        let index = bits as u32;
        let flow = FlowRef { index, generation: (bits >> 32) as u32 & ((1 << GENERATION_BITS) - 1) };
        match bits >> 60 {
            0 => Self::Wake,
            1 => Self::Listener(index),
            2 => Self::Client(flow),
            _ => Self::Backend { flow, attempt: (bits >> 52) as u8 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_token_reads_back(index: u32, generation: u32, attempt: u8) {
            let flow = FlowRef::new(FlowKey::new(index), generation);
            for token in [Token::Wake, Token::Listener(index), Token::Client(flow), Token::Backend { flow, attempt }] {
                assert_eq!(Token::unpack(token.pack()), token);
            }
        }
    }
}
