//! An instance among its peers: what they tell each other, and what they do when one of them dies. The two parts meet only through
//! the channels that `app` makes.

pub mod failover;
pub mod link;
