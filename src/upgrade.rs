//! Replaces the process without a change for its flows: the old process gives its listeners, its state and its flows to
//! the new one, which it has started, over a socket pair that no other process can reach.
//!
//! ```text
//!   message  the messages and their order            codec    their wire format
//!   channel  one message, with descriptors           source   the old process      destination  the new one
//! ```
//! Post-condition, whatever happens to either process at any step: each flow is served by exactly one of them, or was
//! reset. The new process keeps the flows that it has imported; the old one keeps all others.

pub mod channel;
pub mod codec;
pub(crate) mod destination;
pub mod message;
pub mod source;
