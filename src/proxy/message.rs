//! What the control side asks of a worker.

use std::sync::Arc;

use super::accept::listeners::Listener;
use super::plane::Plane;
use super::upgrade::message::Message as UpgradeMessage;

/// What the control side asks of a worker.
#[derive(Debug)]
pub(super) enum Message {
    /// Serve this plane; listen also on these sockets.
    Reconfigure { plane: Arc<Plane>, open: Vec<Listener> },
    /// Take what the listeners hold, then close them.
    StopAccepting,
    /// Take what the listeners hold, then reset whoever comes: somebody else keeps the sockets open.
    TurnAway,
    /// Flows leave for another process, or come from one.
    Upgrade(UpgradeMessage),
    /// Try all flows again that may be offloaded now.
    Hurry,
    /// Leave the loop.
    Exit,
}
