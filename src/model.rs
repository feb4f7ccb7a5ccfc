//! Pure logic: no socket, no runtime, no clock, no randomness. Time and seeds are arguments, so every rule here
//! can be tested at any instant.

pub(crate) mod axis;
pub mod balance;
pub(crate) mod breaker;
pub(crate) mod budget;
pub(crate) mod connect;
pub(crate) mod damping;
pub(crate) mod discover;
pub(crate) mod duration;
pub mod end_reason;
pub mod ends;
pub(crate) mod entries;
pub mod finding;
pub mod fleet;
pub(crate) mod flow;
pub mod health;
pub(crate) mod histogram;
pub(crate) mod humane;
pub mod ids;
pub(crate) mod keepalived;
pub mod leg;
pub(crate) mod moment;
pub mod names;
pub mod neighbour;
pub mod nodes;
pub(crate) mod offload;
pub(crate) mod pacing;
pub mod proxy_protocol;
pub(crate) mod rebalance;
pub(crate) mod recorder_file;
pub mod segment;
pub mod splice;
pub(crate) mod stays;
pub mod untracked;
pub(crate) mod weight;
pub mod what_if;
