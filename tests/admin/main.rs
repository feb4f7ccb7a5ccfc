//! The admin doors on a table without a data plane: every command, both doors' manners, and promtool's verdict.

mod cli;
mod fake;
mod http;
mod metrics;
mod socket;
