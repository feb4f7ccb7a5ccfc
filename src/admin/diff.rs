//! What a reload of a file would change, and the flows that it would end; for `baton diff`.

use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use super::control::ReloadRefused;

/// A comparison under way. It changes nothing.
pub type Diffing = Pin<Box<dyn Future<Output = Result<ReloadDiff, ReloadRefused>> + Send>>;

/// The difference between the running configuration and a valid file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadDiff {
    pub path: PathBuf,
    /// Empty: the file equals the running configuration.
    pub changes: Vec<ConfigChange>,
    /// Changes that a reload refuses, a sentence each with the command that can make them. With any, a reload changes nothing.
    pub refused: Vec<String>,
    /// The flows that the reload would end sooner or later.
    pub affected: Vec<AffectedFlows>,
}

/// One change; [`ConfigChange::words`] says all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// As in the file, with its table, such as `process.stop_timeout` or `health.interval`. `None`: a whole table came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    pub words: String,
}

/// Flows of one backend that a reload would end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedFlows {
    pub frontend: String,
    /// As `baton backends` shows it.
    pub backend: String,
    pub flows: u64,
    pub effect: FlowEffect,
    /// Time from the reload until the last of them is reset.
    pub within_ms: u64,
    /// The end reason of those that Baton resets.
    pub reason: String,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowEffect {
    /// They go on, and Baton resets those that are left at the end of the time.
    Drain,
    /// Baton resets them within the time.
    Reset,
}
