//! The data plane alone, on loopback: flows that are relayed, offloaded, moved, and ended while other things happen.

mod bench;
mod chaos;
mod crossings;
mod moves;
mod offloading;
mod relay;
