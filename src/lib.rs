//! Baton, a connection-tracking TCP load balancer for Kubernetes apiservers: a client never waits on a dead connection.
//!
//! Begin with [`app::build`], which wires an instance and gives an [`app::Bound`], and with [`proxy::Proxy`], whose workers move the
//! bytes. A flow is a client's connection together with the connection to a backend that serves it:
//!
//! ```text
//!   client                          one worker, one core                         backend
//!     │   SYN                                                                       │
//!     ├──────────▶ proxy::accept ──▶ table::flows      limits, lists                │
//!     │            proxy::connect ──▶ model::balance   pick, retry, hedge ─────────▶│
//!     │◀═════════▶ proxy::relay                        bytes, FIN, RST ◀═══════════▶│
//!     │                  │ quiet for a moment                                       │
//!     │                  ▼                                                          │
//!     │            offload::OffloadEngine              both sockets close in silence│
//!     │◀═══════════════ the program in the kernel passes packets on ═══════════════▶│
//!     │                  │ the process is killed: the next one recovers the flow    │
//!     │                  │ the host dies: fleet::failover of a peer carries it on   │
//!     │                  ▼                                                          │
//!     │            proxy::ending ──▶ model::end_reason one reason, told to both     │
//! ```
//! Orders from outside (a dead backend, an operator, a reload) reach flows only through [`ports::orders`].
//! ARCHITECTURE.md describes the layers and the threads, docs/glossary.md the words.
#![deny(unsafe_code)]
#![warn(unreachable_pub)]
// Whoever changes Baton reads this documentation, so `.ci/run` makes it with the private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod addr;
pub mod admin;
pub(crate) mod app;
pub mod cli;
pub mod config;
pub(crate) mod discover;
pub mod drain;
pub(crate) mod essential;
pub mod fleet;
#[cfg(fuzzing)]
pub mod fuzzing;
pub(crate) mod health;
#[cfg(feature = "lab")]
pub mod lab;
pub(crate) mod late_resets;
pub mod metrics;
pub mod model;
pub mod offload;
pub(crate) mod part;
pub mod ports;
pub mod preflight;
pub mod proxy;
pub(crate) mod rebalance;
pub(crate) mod recorder;
pub mod sys;
pub mod table;
pub(crate) mod translate;
pub mod upgrade;
pub(crate) mod vips;
