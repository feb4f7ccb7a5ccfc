//! The data plane: workers that accept, connect and relay.
//!
//! `accept` turns connections into flows, `connect` finds them a backend, `relay` moves their bytes, `ending` closes them.
//! Each flow stays with the worker that accepted it.

mod accept;
mod backlog;
mod connect;
mod context;
mod ending;
mod flow;
mod message;
mod offload;
mod parts;
mod plane;
mod recover;
mod relay;
mod resume;
mod shared;
mod sharing;
mod tell;
#[cfg(test)]
mod testing;
mod timers;
mod token;
mod upgrade;
mod verdict;
mod watch;
mod worker;
mod workers;

pub use parts::ProxyParts;
pub use sharing::{ListenError, SharingError, remove as remove_shared_ports};
pub(crate) use sharing::{SHARED_PORTS, fitting as fitting_listeners, install as install_sharing};
pub use upgrade::message::{Arriving, Departure, ImportError, MovingFlow, StuckWorker};
pub(crate) use watch::idle_walk_pause;
pub use workers::{Bindings, Proxy, ProxyError};
