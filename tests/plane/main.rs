//! The data plane alone, on loopback: flows that are relayed, lent, moved, and ended while other things happen.

mod bench;
mod chaos;
mod crossings;
mod lending;
mod moves;
mod relay;
