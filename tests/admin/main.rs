//! The admin servers on a table without a data plane: every command, the limits of both servers, and promtool's
//! verdict.

mod cli;
mod fake;
mod http;
mod live;
mod metrics;
mod page;
mod socket;
mod top;
