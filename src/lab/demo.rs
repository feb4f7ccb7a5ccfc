//! `baton demo`: Baton between stand-ins and kubelet-like clients, and faults.
//!
//! ```text
//! command   the arguments and the end          live, log, tour   the three ways to show it
//! stage     all that runs                      view, screen      the content of the display, and its drawing
//! baton     Baton as a child                   process, guard    stand-ins as children, and who cleans up
//! fleet     the same with hosts of their own   space, chronicle  network namespaces; the order of events
//! ```

mod baton;
mod chronicle;
pub(crate) mod command;
mod fleet;
mod guard;
mod live;
mod log;
pub mod process;
mod screen;
mod space;
mod stage;
mod tour;
mod view;

use std::time::Duration;

/// A longer time without a renewal counts as a failure: one interval of a real kubelet, which renews every 10 s and is
/// lost 40 s after the last renewal.
const BUDGET: Duration = Duration::from_secs(10);
