//! Connecting a flow to a backend.

mod failure;

pub use failure::ConnectFailure;
