//! Requests and reports of `baton upgrade`.

use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::model::ids::{FlowId, flow_as_text};

/// The requested new process. Absent fields mean no change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

/// An upgrade under way. It completes even if this is dropped.
pub struct Upgrading {
    pub progress: watch::Receiver<UpgradeProgress>,
    pub outcome: Pin<Box<dyn Future<Output = UpgradeOutcome> + Send>>,
}

pub type UpgradeOutcome = Result<(Upgraded, ToldGuard), UpgradeFailed>;

/// Drop it once the requester has the result: the old process waits for that before it exits.
#[derive(Debug)]
#[allow(dead_code, reason = "its drop is what counts")]
pub struct ToldGuard(pub oneshot::Sender<()>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeProgress {
    /// The present step, as a clause.
    pub step: String,
    pub flows: u64,
    pub moved: u64,
    pub held_bytes: u64,
    pub longest_pause_us: u64,
}

/// The new process serves, and the old one is about to exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    pub old_pid: u32,
    pub new_pid: u32,
    pub old_version: String,
    pub new_version: String,
    /// Number of flows that moved.
    pub moved: u64,
    /// Bytes that moved with them: read from one side and not yet accepted by the other.
    pub held_bytes: u64,
    /// The longest time for which a flow was with neither process.
    pub longest_pause_us: u64,
    pub took_us: u64,
    /// Flows that could not be moved and were reset.
    pub not_moved: Vec<NotMoved>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotMoved {
    #[serde(with = "flow_as_text")]
    pub flow: FlowId,
    pub why: String,
}

/// The upgrade failed, and this process continues.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("this process goes on: {why}{}", with_others(*.moved))]
pub struct UpgradeFailed {
    pub why: String,
    /// Number of flows that the new process has imported; they stay with it until they end.
    pub moved: u64,
}

/// Whether an upgrade to another binary would begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeCheck {
    pub binary: PathBuf,
    pub config: PathBuf,
    /// `None`: it does not report one.
    pub version: Option<String>,
    /// Empty: it can.
    pub obstacles: Vec<String>,
}

/// What a check returns.
pub type Checking = Pin<Box<dyn Future<Output = UpgradeCheck> + Send>>;

fn with_others(moved: u64) -> String {
    match moved {
        0 => String::new(),
        moved => format!(" ({moved} flows were already with the new process)"),
    }
}
