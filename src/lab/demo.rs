//! `baton demo`: Baton between stand-ins and kubelet-like clients, and faults.
//!
//! ```text
//! command   the arguments and the end          live, log, tour   the three ways to show it
//! stage     all that runs                      view, screen      the content of the display, and its drawing
//! baton     Baton as a child                   process, guard    stand-ins as children, and who cleans up
//! ```

mod baton;
pub(crate) mod command;
mod guard;
mod live;
mod log;
pub mod process;
mod screen;
mod stage;
mod tour;
mod view;

use std::time::Duration;

/// A longer time without a renewal counts as a failure: one interval of a real kubelet, which renews every 10 s and is
/// lost 40 s after the last renewal.
const BUDGET: Duration = Duration::from_secs(10);
