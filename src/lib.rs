//! Baton, a connection-tracking TCP load balancer for Kubernetes apiservers. ARCHITECTURE.md tells how the parts fit.
#![deny(unsafe_code)]

pub mod addr;
pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod drain;
pub mod essential;
pub mod fleet;
pub mod health;
#[cfg(feature = "lab")]
pub mod lab;
pub mod late_resets;
pub mod metrics;
pub mod model;
pub mod offload;
pub mod preflight;
pub mod proxy;
pub mod rebalance;
pub mod sys;
pub mod table;
pub mod upgrade;
pub mod vips;
