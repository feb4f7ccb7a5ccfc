//! What `baton evacuate` asks for and is told.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use crate::model::fleet::InstanceName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvacuationRequest {
    /// Absent: any instance that lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<InstanceName>,
    /// From now until flows that are left are reset.
    pub deadline_ms: u64,
}

/// An evacuation under way, or done. It goes on even if this is dropped.
#[derive(Clone, Debug)]
pub struct Evacuating {
    pub progress: watch::Receiver<EvacuationProgress>,
    /// `None` until it is over.
    pub report: watch::Receiver<Option<EvacuationReport>>,
}

/// Where an evacuation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvacuationStep {
    /// The peers acknowledge what they have been told.
    #[default]
    Telling,
    /// The VIP leaves this host and is seen at a peer.
    LettingGo,
    /// Flows are offloaded, or end by themselves.
    Emptying,
    /// The deadline has passed.
    Resetting,
    /// The peers acknowledge the last changes.
    Confirming,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationProgress {
    pub step: EvacuationStep,
    pub vips: Vec<IpAddr>,
    pub flows: EvacuationFlows,
    /// Until what is left is reset.
    pub deadline_in_ms: u64,
}

/// Flows of this instance. All but the first two and the last two are counted from the beginning of the evacuation on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationFlows {
    pub proxied_before: u64,
    pub offloaded_before: u64,
    /// Connections that still came here.
    pub accepted: u64,
    pub offloaded: u64,
    /// Offloaded ones that another instance looks after by now.
    pub moved: u64,
    /// By themselves, for any other reason than the evacuation.
    pub ended: u64,
    pub reset: u64,
    /// In sockets now: they end with this process.
    pub proxied_left: u64,
    /// Without sockets now: they go on wherever their packets come.
    pub offloaded_left: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationReport {
    pub outcome: EvacuationOutcome,
    pub vips: Vec<VipPlace>,
    pub flows: EvacuationFlows,
    pub took_ms: u64,
    /// Peers that had not acknowledged the last changes in time: flows without sockets may be unknown there.
    pub unconfirmed: Vec<InstanceName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvacuationOutcome {
    /// This host may be switched off.
    Away,
    /// This host may have the VIP again, because of this.
    TakenBack(String),
    /// This host may have the VIP again, as an operator wanted.
    Cancelled,
}

/// Who has an address that left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipPlace {
    pub address: IpAddr,
    /// On this host.
    pub here: bool,
    /// Live peers.
    pub at: Vec<InstanceName>,
}

/// What an evacuation would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationCheck {
    /// Why it would be refused; empty: it would not.
    pub obstacles: Vec<String>,
    /// Why it would begin, and then come to nothing: addresses that nothing would move, as far as this host can tell.
    #[serde(default)]
    pub unmoved: Vec<String>,
    pub vips: Vec<VipPlace>,
    /// They go on without this host.
    pub offloaded: u64,
    /// They are offloaded, or end, or are reset at the deadline.
    pub proxied: u64,
    /// Of them by why they had not offloaded when it was last tried; `""`: it was not tried yet.
    pub stays: BTreeMap<String, u64>,
}

/// Nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the evacuation has not begun: {why}")]
pub struct EvacuationFailed {
    pub why: String,
}

impl EvacuationReport {
    /// No client was reset, and the host may be switched off.
    pub fn is_clean(&self) -> bool {
        self.outcome == EvacuationOutcome::Away
            && self.flows.reset == 0
            && self.flows.proxied_left == 0
            && self.unconfirmed.is_empty()
    }
}
