//! What the admin doors ask of the rest of the instance. The wiring implements it, so that this part needs to know
//! neither the health checker nor the loader of the configuration.

use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::evacuate::{Evacuating, EvacuationCheck, EvacuationFailed, EvacuationRequest};
use super::upgrade::{Checking, UpgradeFailed, UpgradeRequest, Upgrading};
use crate::config::Diagnostic;
use crate::model::health::Order;
use crate::model::ids::BackendId;

/// The instance as the admin doors see it. No method may wait, but for the futures it returns.
pub trait Control: Send + Sync + 'static {
    /// Why clients should not be sent here, one sentence each; empty: ready. The phase of a stop needs no mention.
    fn not_ready(&self) -> Vec<String>;

    /// Why this process should be restarted, one sentence each; empty: fine. Stuck workers need no mention.
    fn not_live(&self) -> Vec<String>;

    /// Carries out an operator's order for one backend; when the future is done, it shows.
    fn order(&self, backend: BackendId, order: Order) -> Ordering;

    /// Reads the configuration again and takes it over: what changed, or every error while nothing changed.
    fn reload(&self) -> Reloading;

    fn config_state(&self) -> ConfigState;

    /// What a rebalance would move now.
    fn rebalance_plan(&self) -> Vec<PlannedMove>;

    /// Begins to move what the plan says, at the configured pace, and returns the plan.
    fn rebalance(&self) -> Vec<PlannedMove>;

    /// Begins to replace this process by a new one that takes over its flows.
    fn upgrade(&self, asked: UpgradeRequest) -> Result<Upgrading, UpgradeFailed>;

    /// Whether that could be done; changes nothing.
    fn check_upgrade(&self, asked: UpgradeRequest) -> Checking;

    /// Begins to give this host's VIP and flows to another instance, or shows that it is under way or done.
    fn evacuate(&self, asked: EvacuationRequest) -> Result<Evacuating, EvacuationFailed>;

    /// Lets this host have the VIP again; what was under way ends.
    fn take_back(&self) -> Result<Evacuating, EvacuationFailed>;

    /// What an evacuation would do; changes nothing. It looks at every flow.
    fn check_evacuation(&self, asked: &EvacuationRequest) -> EvacuationCheck;
}

/// An order on its way. It is carried out even if this is dropped.
pub type Ordering = Pin<Box<dyn Future<Output = Result<(), OrderRefused>> + Send>>;

/// A reload under way. It goes on to its end even if it is dropped.
pub type Reloading = Pin<Box<dyn Future<Output = Result<Vec<String>, ReloadRefused>> + Send>>;

/// Why a reload changed nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadRefused {
    /// A line for each thing that is wrong.
    pub errors: Vec<String>,
    /// The same with its place in the file, if it is the file that is wrong.
    pub findings: Vec<Diagnostic>,
}

/// Why an order for a backend is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OrderRefused {
    #[error("the backend was removed in the meantime, and its flows have ended")]
    Forgotten,
    #[error("the backend is no longer in the configuration: it drains until its flows have ended")]
    Removed,
    #[error("this instance is stopping")]
    Stopping,
    #[error("an upgrade is under way; repeat the command in a moment")]
    Upgrading,
}

/// The configuration that runs, and what became of the last attempt to change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    pub path: PathBuf,
    pub last_reload: LastReload,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LastReload {
    /// What was read at the start still runs.
    None,
    /// It was taken over. Milliseconds since 1970, UTC.
    Taken { at_unix_ms: u64, changes: Vec<String> },
    /// It was refused and changed nothing.
    Refused { at_unix_ms: u64, errors: Vec<String> },
}

/// Flows that are too many on one backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    pub frontend: String,
    /// Gives flows away.
    pub backend: String,
    pub flows: u32,
    /// What it would have if all had their share.
    pub fair_share: u32,
    /// How many are to be closed, so that their clients connect anew.
    pub moves: u32,
}
