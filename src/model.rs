//! Pure logic: no socket, no runtime, no clock, no randomness. Time and seeds are arguments, so every rule here
//! can be tested at any instant.

pub mod balance;
pub mod breaker;
pub mod budget;
pub mod connect;
pub mod duration;
pub mod end_reason;
pub mod ends;
pub mod finding;
pub mod fleet;
pub mod flow;
pub mod health;
pub mod histogram;
pub mod humane;
pub mod ids;
pub mod neighbour;
pub mod offload;
pub mod pacing;
pub mod proxy_protocol;
pub mod rebalance;
pub mod segment;
pub mod splice;
pub mod stays;
pub mod untracked;
pub mod weight;
