//! Requests and reports of `baton evacuate`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use crate::model::fleet::InstanceName;
pub use crate::model::fleet::evacuate::EvacuateStep;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvacuationRequest {
    /// Absent: to any live instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<InstanceName>,
    /// Time from now until the flows that are left are reset.
    pub deadline_ms: u64,
}

/// An evacuation under way, or done. It goes on even if this is dropped.
#[derive(Clone, Debug)]
pub struct Evacuating {
    pub progress: watch::Receiver<EvacuationProgress>,
    /// `None` until the evacuation is over.
    pub report: watch::Receiver<Option<EvacuationReport>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationProgress {
    pub step: EvacuateStep,
    pub vips: Vec<IpAddr>,
    pub flows: EvacuationFlows,
    /// Time until the flows that are left are reset.
    pub deadline_in_ms: u64,
}

/// Flows of this instance. All but the first two and the last two are counted from the beginning of the evacuation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationFlows {
    pub proxied_before: u64,
    pub offloaded_before: u64,
    /// Connections that this host still accepted.
    pub accepted: u64,
    pub offloaded: u64,
    /// Offloaded flows that another instance now owns.
    pub moved: u64,
    /// Flows that ended for any other reason than the evacuation.
    pub ended: u64,
    pub reset: u64,
    /// Present number of proxied flows: they end with this process.
    pub proxied_left: u64,
    /// Present number of offloaded flows that go on at the host that gets their packets.
    pub offloaded_left: u64,
    /// Present number of flows, proxied or offloaded, to a backend on this host: they end with this host.
    #[serde(default)]
    pub to_own_backend: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationReport {
    pub outcome: EvacuationOutcome,
    pub vips: Vec<VipPlace>,
    pub flows: EvacuationFlows,
    pub took_ms: u64,
    /// Peers that had not acknowledged the last changes in time: they may not know all offloaded flows.
    pub unconfirmed: Vec<InstanceName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvacuationOutcome {
    /// An operator may switch this host off.
    Away,
    /// This host may have the VIP again, for this reason.
    Failed(String),
    /// This host may have the VIP again, because an operator cancelled the evacuation.
    Cancelled,
}

/// The hosts with an address that left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipPlace {
    pub address: IpAddr,
    /// Whether it is on this host.
    pub here: bool,
    /// Live peers that have it.
    pub at: Vec<InstanceName>,
}

/// The effects of an evacuation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationCheck {
    /// Why it would be refused; empty: it would not.
    pub obstacles: Vec<String>,
    /// Why it would begin and then fail: addresses that no program would move, as far as this host can tell.
    #[serde(default)]
    pub unmoved: Vec<String>,
    pub vips: Vec<VipPlace>,
    /// Flows that go on without this host.
    pub offloaded: u64,
    /// Flows that are offloaded, or end, or are reset at the deadline.
    pub proxied: u64,
    /// Number of flows, proxied or offloaded, to a backend on this host: they end, or are reset at the deadline.
    #[serde(default)]
    pub to_own_backend: u64,
    /// Number of the proxied ones by the reason that the last try to offload them failed; `""`: not tried yet.
    pub stays: BTreeMap<String, u64>,
}

/// Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the evacuation has not begun: {why}")]
pub struct EvacuationFailed {
    pub why: String,
}

impl EvacuationReport {
    /// Whether no client was reset, and an operator may switch the host off.
    pub(crate) fn is_clean(&self) -> bool {
        self.outcome == EvacuationOutcome::Away
            && self.flows.reset == 0
            && self.flows.proxied_left == 0
            && self.flows.to_own_backend == 0
            && self.unconfirmed.is_empty()
    }
}
