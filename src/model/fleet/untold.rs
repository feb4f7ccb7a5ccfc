//! Ends of connections that are over and that may not have heard of it: they were cut off when they were told.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// One such connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandoned {
    /// The balancer's end.
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Numbers that the far end may expect: what it last acknowledged, and the end of what was sent.
    pub seqs: [u32; 2],
    pub ack: u32,
}
