//! A laboratory for integration tests: hosts that are real network namespaces on a bridge of their own, the real
//! binary on one of them, and TCP peers on the others that count and hash every byte.
//!
//! ```text
//!   client  client2   lb    b1   b2   b3        10.77.0.0/24, fd77::/64
//!      │       │      │     │    │    │
//!   ───┴───────┴──────┴─────┴────┴────┴───      a bridge in a namespace of its own
//! ```
//! Everything a test makes is gone when its [`Lab`] is dropped, also after a panic; what a killed test process left
//! behind is swept by the next one. Nothing sleeps to wait: see [`wait`].

pub mod bare_host;
pub mod baseline;
pub mod baton;
pub mod browser;
pub mod bytes;
pub mod client;
pub mod cluster;
pub mod config;
pub mod drill;
pub mod host;
pub mod memory;
pub mod name_server;
pub mod namespace;
pub mod network;
pub mod pinned;
pub mod process;
pub mod server;
pub mod server_process;
pub mod stand_in;
pub mod systemd;
pub mod timestamps;
pub mod tracer;
pub mod wait;

pub use bare_host::{BareHost, command_of};
pub use baton::Baton;
pub use browser::Browser;
pub use client::{Conn, End};
pub use cluster::{ApiServer, Cluster};
pub use config::Config;
pub use drill::Drill;
pub use host::Host;
pub use memory::MemoryLimit;
pub use name_server::{Answer, NameServer};
pub use network::Lab;
pub use pinned::Pinned;
pub use process::Stranger;
pub use server::{Behaviour, Server};
pub use server_process::ServerProcess;
pub use stand_in::{Certificates, Kubelet, StandIn};
pub use systemd::Systemd;
pub use tracer::{Call, Halted, Tracer};
pub use wait::{SetsAtEnd, Stopwatch, eventually, eventually_some};

use std::time::Duration;

/// The deadline of waits that have no figure to meet: long enough for a machine under load.
pub const LONG: Duration = Duration::from_secs(15);

/// Milliseconds as a [`Duration`].
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Seconds as a [`Duration`].
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
