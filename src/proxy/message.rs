//! Messages of the control side to a worker.

use std::sync::Arc;

use super::accept::listeners::Listener;
use super::plane::Plane;
use super::upgrade::message::Message as UpgradeMessage;
use crate::model::end_reason::EndReason;

/// A message of the control side to a worker.
#[derive(Debug)]
pub(super) enum Message {
    /// Serve this plane; listen also on these sockets.
    Reconfigure { plane: Arc<Plane>, open: Vec<Listener> },
    /// Take the connections in the backlogs, then close the listeners.
    StopAccepting,
    /// Take the connections in the backlogs, then reset every new one: another process keeps the sockets open.
    TurnAway,
    /// Reset every new connection for this reason; `None`: serve them again.
    Refuse(Option<EndReason>),
    /// Flows leave for another process, or come from one.
    Upgrade(UpgradeMessage),
    /// Try all flows again that may be offloaded now.
    OffloadAtOnce,
    /// Leave the loop.
    Exit,
}
