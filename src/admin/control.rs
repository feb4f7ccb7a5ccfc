//! The admin servers' requests to the rest of the instance. `app` implements them, so that this part knows neither the
//! health checker nor the loader of the configuration.

use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::diff::Diffing;
use super::evacuate::{Evacuating, EvacuationCheck, EvacuationFailed, EvacuationRequest};
use super::protocol::Reloaded;
use super::upgrade::{Checking, UpgradeFailed, UpgradeRequest, Upgrading};
use crate::config::{BudgetHost, Diagnostic};
use crate::model::health::Order;
use crate::model::ids::BackendId;

/// The instance as the admin servers see it. No method may wait, only the futures that it returns.
pub trait Control: Send + Sync + 'static {
    /// Why clients should not be sent here, one sentence each; empty: ready. The phase of a stop is left out.
    fn not_ready(&self) -> Vec<String>;

    /// Why this process should be restarted, one sentence each; empty: no reason. Workers that hang are left out.
    fn not_live(&self) -> Vec<String>;

    /// Carries out an operator's order for one backend; when the future is done, the backend's state shows it.
    fn order(&self, backend: BackendId, order: Order) -> Ordering;

    /// Reads the configuration again and applies it: the changes, or every error if nothing changed.
    fn reload(&self) -> Reloading;

    /// Compares the file at `path` with the running configuration; changes nothing.
    fn diff(&self, path: PathBuf) -> Diffing;

    fn config_state(&self) -> ConfigState;

    /// The moves that a rebalance would make now.
    fn rebalance_plan(&self) -> RebalancePlan;

    /// Moves flows once until all backends are even, or for three quarters of a minute.
    fn rebalance(&self) -> Rebalancing;

    /// Begins to replace this process by a new one that gets its flows.
    fn upgrade(&self, asked: UpgradeRequest) -> Result<Upgrading, UpgradeFailed>;

    /// Whether an upgrade is possible; changes nothing.
    fn check_upgrade(&self, asked: UpgradeRequest) -> Checking;

    /// Begins to give this host's VIP and flows to another instance, or joins an evacuation that is under way or done.
    fn evacuate(&self, asked: EvacuationRequest) -> Result<Evacuating, EvacuationFailed>;

    /// Lets this host have the VIP again; ends an evacuation that is under way.
    fn take_back(&self) -> Result<Evacuating, EvacuationFailed>;

    /// The effects of an evacuation; changes nothing. It looks at every flow.
    fn check_evacuation(&self, asked: &EvacuationRequest) -> EvacuationCheck;

    /// What this host adds to the heartbeat budget of the file. It reads keepalived's file.
    fn budget_host(&self) -> BudgetHost;
}

/// An order under way. It is carried out even if this is dropped.
pub type Ordering = Pin<Box<dyn Future<Output = Result<(), OrderRefused>> + Send>>;

/// A reload under way. It completes even if this is dropped.
pub type Reloading = Pin<Box<dyn Future<Output = Result<Reloaded, ReloadRefused>> + Send>>;

/// A rebalance under way: what it came to at each frontend. It goes on even if this is dropped.
pub type Rebalancing = Pin<Box<dyn Future<Output = Result<Vec<RebalanceDone>, OrderRefused>> + Send>>;

/// Why a reload changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadRefused {
    Invalid {
        /// A line for each error.
        errors: Vec<String>,
        /// The same with its place, if it is an error of the file.
        findings: Vec<Diagnostic>,
    },
    /// A file was not read, which may be well.
    Unread { why: String },
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

/// The running configuration, and the result of the last attempt to change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    pub path: PathBuf,
    pub last_reload: LastReload,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum LastReload {
    /// The configuration from the start still runs.
    None,
    /// It was applied. Milliseconds since 1970, UTC.
    Taken { at_unix_ms: u64, changes: Vec<String> },
    /// It was refused and changed nothing.
    Refused { at_unix_ms: u64, errors: Vec<String> },
}

/// One backend's flows above its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    pub frontend: String,
    /// The backend that gives flows away.
    pub backend: String,
    pub flows: u32,
    /// The number that it would have if all had their share.
    pub fair_share: u32,
    /// Number of flows to close, so that their clients connect anew.
    pub moves: u32,
}

/// What a rebalance would do now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalancePlan {
    pub moves: Vec<PlannedMove>,
    /// Backends that return slowly: the moves are for their share of now.
    pub returning: Vec<ReturningBackend>,
    /// Frontends whose flows never move, as hashing would send their clients to the same backends again.
    #[serde(default)]
    pub hashed: Vec<String>,
}

/// A backend in its slow start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningBackend {
    pub frontend: String,
    pub backend: String,
    /// Its share now, in percent of its weight.
    pub share_percent: u32,
    /// Time until its share is whole.
    pub whole_in_ms: u64,
}

/// What a rebalance came to at one frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalanceDone {
    pub frontend: String,
    /// Flows that were closed; their clients connect again.
    pub moved: u32,
    /// Flows above the share that stayed.
    pub left: Vec<StayingFlows>,
    pub took_ms: u64,
}

/// One backend's flows that stayed above its share, and why none of its flows could go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StayingFlows {
    #[serde(flatten)]
    pub planned: PlannedMove,
    /// Number of the backend's flows whose clients had moved already.
    #[serde(default)]
    pub moved_before: u32,
    /// Number of its other flows: they were never quiet.
    #[serde(default)]
    pub never_quiet: u32,
}
