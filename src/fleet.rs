//! An instance among its peers: the messages that instances exchange, and their reaction when one of them dies. The two
//! parts meet only through the channels that `app` makes.

pub(crate) mod failover;
pub mod link;
