//! The status of an instance: served as `/status.json`, shown by the page, and printed by `baton status --json`.
//!
//! Fields may be added within one major version; none is renamed or removed.

mod build;
mod matrix;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::control::ConfigState;
use crate::model::fleet::vip::VipView;
use crate::model::fleet::{Disagreement, InstanceName, InstanceSummary};
use crate::model::health::{Cause, HealthState};
use crate::table::backend::Service;
use crate::table::fleet::MemberView;
use crate::table::flows::{FlowState, FlowView};
use crate::table::journal::Event;
use crate::table::nodes::{NodeRefusal, SilenceKind};

pub(crate) use matrix::{FleetMatrix, MatrixColumn};

pub(crate) use build::{backend_status, peers_report, vip_report};
pub(super) use build::{is_fixed, nodes, vips};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Milliseconds since 1970, UTC, of this status.
    pub at_unix_ms: u64,
    pub instance: Instance,
    pub totals: StatusTotals,
    #[serde(default)]
    pub offload: OffloadStatus,
    #[serde(default)]
    pub fleet: PeersReport,
    /// `None`: Baton does not move the VIP.
    #[serde(default)]
    pub vip: Option<VipStatus>,
    #[serde(default)]
    pub recorder: RecorderStatus,
    #[serde(default)]
    pub nodes: NodesStatus,
    /// In the order of the configuration; removed ones that still have flows come last.
    pub frontends: Vec<FrontendStatus>,
    /// The last events, oldest first, ended flows left out.
    pub events: Vec<Event>,
}

/// The process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    pub version: String,
    /// Of this host.
    pub host: String,
    pub pid: u32,
    pub uptime_ms: u64,
    /// `starting`, `serving`, `leaving`, `draining` or `forced`.
    pub phase: String,
    /// The frontends' addresses on this host, which bring their packets here.
    #[serde(default)]
    pub vips: Vec<IpAddr>,
    /// Why `/readyz` fails, and this host should not have the VIP; empty: it does not.
    pub not_ready: Vec<String>,
    /// Why `/livez` fails; empty: it does not.
    pub not_live: Vec<String>,
    /// Why Baton's own filter of system calls is not on this process; `None`: it is.
    #[serde(default)]
    pub unfiltered: Option<String>,
    /// A sentence if the broker, the process that keeps Baton's rights, is not there as it should be.
    #[serde(default)]
    pub rights: Option<String>,
    pub workers: Vec<WorkerStatus>,
    pub config: ConfigState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub state: WorkerCondition,
    pub accepted_total: u64,
    pub accept_errors_total: u64,
    /// Connections reset unserved because accepting had been paused for too long.
    pub accept_shed_total: u64,
}

/// The present state of a worker thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum WorkerCondition {
    Serving,
    /// It accepts nothing for want of file descriptors; its flows go on.
    AcceptPaused,
    /// One turn of its loop lasts too long.
    Stuck {
        for_ms: u64,
    },
    /// Its thread does not serve: not yet, or no longer.
    Gone,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StatusTotals {
    pub flows: FlowCounts,
    pub accepted_total: u64,
    pub bytes_to_backend_total: u64,
    pub bytes_to_client_total: u64,
    /// By end reason; those that never occurred are left out.
    pub ended_total: BTreeMap<String, u64>,
    pub rates: Rate,
}

/// The state of offload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadStatus {
    /// Why flows stay proxied; `None`: they are offloaded.
    pub why_not: Option<String>,
    /// No flow is offloaded, because flows were reset right after it.
    #[serde(default)]
    pub stopped: bool,
    /// Interfaces with the program.
    pub interfaces: Vec<String>,
    /// Flows in the map, with those that ended a moment ago; and its limit.
    pub flows_held: u64,
    pub flows_max: u64,
    pub offloaded_total: u64,
    /// Flows of an earlier process that were recovered.
    pub recovered_total: u64,
    /// Failed tries to offload a flow, by reason; reasons that never occurred are left out.
    pub stayed_total: BTreeMap<String, u64>,
    /// Packets by the program's action, since it was loaded.
    pub packets_total: BTreeMap<String, u64>,
}

/// The fleet as this instance sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersReport {
    /// This instance's name; `None`: it has no peers.
    pub name: Option<InstanceName>,
    /// The part of the source ports that is its own.
    pub slot: Option<u8>,
    /// Whether it knows enough of its peers to take a VIP.
    pub ready: bool,
    /// Why this instance cannot have the VIP that Baton moves at present; `None`: it can, or Baton moves none.
    #[serde(default)]
    pub barred: Option<String>,
    /// The frontends' addresses that are on this host.
    #[serde(default)]
    pub vips: Vec<IpAddr>,
    /// What this instance says of itself, in the form of its peers' `summary`. `None`: it has no peers, or just began.
    #[serde(default)]
    pub own: Option<Arc<InstanceSummary>>,
    pub peers: Vec<MemberView>,
    /// Backends that instances see in different states, for longer than an instance takes to notice: three times
    /// `interval` times the larger of `rise` and `fall`. Peers that this instance does not hear are left out.
    #[serde(default)]
    pub disagreements: Vec<Disagreement>,
}

/// The VIP that Baton itself moves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VipReport {
    /// This instance's name; `None`: it has none.
    pub name: Option<InstanceName>,
    /// Empty: Baton does not move the VIP.
    pub addresses: Vec<IpAddr>,
    pub interface: String,
    pub view: Option<VipView>,
    /// The latest moves, with their reasons.
    pub moves: Vec<Event>,
}

/// The flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderStatus {
    /// `None`: nothing is recorded.
    pub directory: Option<PathBuf>,
    pub written_bytes_total: u64,
    /// Events that could not be written.
    pub dropped_total: u64,
    /// Why nothing is written at present.
    pub fault: Option<String>,
}

/// The cluster's nodes by their connections, as of the last look; `baton nodes` lists them all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesStatus {
    /// `None`: no source lists nodes, or this instance does not know all connections.
    pub silent_total: Option<u64>,
    /// Some of them, those that have been silent for the longest time first.
    pub silent: Vec<SilentNodeStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilentNodeStatus {
    pub node: String,
    pub why: SilenceKind,
    pub for_ms: u64,
    /// If Baton itself refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<NodeRefusal>,
}

/// The place of the VIP that Baton itself moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipStatus {
    pub addresses: Vec<IpAddr>,
    /// The instance that has it, as far as this one hears.
    pub holder: Option<InstanceName>,
    /// Why this instance has the VIP or does not have it.
    pub why: String,
    /// Why this instance cannot have the VIP at present, whoever has it; `None`: it can.
    #[serde(default)]
    pub barred: Option<String>,
}

/// Flows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCounts {
    pub accepted: u64,
    pub connecting: u64,
    pub proxied: u64,
    /// Flows whose packets the BPF program carries.
    #[serde(default)]
    pub offloaded: u64,
    /// Of all these: flows with an order to end, which wait for their time.
    pub ending: u64,
}

/// Averages over the last ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Flows that an instance or frontend accepted, or that were connected to a backend.
    pub flows_per_s: f64,
    pub bytes_to_backend_per_s: f64,
    pub bytes_to_client_per_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FrontendStatus {
    pub name: String,
    /// A reload removed it.
    pub removed: bool,
    pub listen: Vec<SocketAddr>,
    /// Those of `listen` whose port other processes of this host may have, too: a BPF program gives Baton its connections.
    #[serde(default)]
    pub shared_ports: Vec<SocketAddr>,
    pub balance: Option<String>,
    /// The service of new connections, whatever `instance.not_ready` says.
    #[serde(default)]
    pub service: ServiceStatus,
    pub flows: u32,
    pub states: FlowCounts,
    pub max_connections: Option<u32>,
    pub accepted_total: u64,
    pub ended_total: BTreeMap<String, u64>,
    pub rates: Rate,
    pub backends: Vec<BackendStatus>,
}

/// Whether clients are served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub state: Service,
    pub since_ms: u64,
    /// In plain words.
    pub in_words: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    pub frontend: String,
    pub name: String,
    /// `None`: its name has not been resolved.
    pub address: Option<SocketAddr>,
    pub health_state: HealthState,
    pub cause: Cause,
    /// `cause` in words.
    pub why: String,
    /// Duration of this health state. `None`: since the start.
    pub since_ms: Option<u64>,
    /// An operator's order or the configuration's, if one is in force.
    pub order: Option<String>,
    /// Time until its remaining flows are reset. `None`: no deadline.
    pub drain_deadline_in_ms: Option<u64>,
    pub weight: u32,
    /// The part of its weight that counts now: less than 100 while it comes back slowly.
    pub share_percent: u32,
    /// Time until its share is whole; `None`: it is.
    #[serde(default)]
    pub whole_in_ms: Option<u64>,
    pub flows: u32,
    pub max_connections: Option<u32>,
    pub connected_total: u64,
    pub hedged_total: u64,
    /// By kind; those that never occurred are left out.
    pub connect_failures_total: BTreeMap<String, u64>,
    /// Mean of all connects. `None`: none yet.
    pub connect_mean_us: Option<u64>,
    pub bytes_to_backend_total: u64,
    pub bytes_to_client_total: u64,
    pub rates: Rate,
    /// The last probe's result in words. `None`: none has ended.
    pub last_probe: Option<String>,
    pub last_probe_us: u64,
}

impl FlowCounts {
    pub fn sum(&self) -> u64 {
        self.accepted + self.connecting + self.proxied + self.offloaded
    }

    pub(crate) fn add(&mut self, flow: &FlowView) {
        *self.of_mut(flow.state) += 1;
        self.ending += u64::from(flow.ending);
    }

    pub(crate) fn of(&self, state: FlowState) -> u64 {
        match state {
            FlowState::Accepted => self.accepted,
            FlowState::Connecting => self.connecting,
            FlowState::Proxied => self.proxied,
            FlowState::Offloaded => self.offloaded,
        }
    }

    fn of_mut(&mut self, state: FlowState) -> &mut u64 {
        match state {
            FlowState::Accepted => &mut self.accepted,
            FlowState::Connecting => &mut self.connecting,
            FlowState::Proxied => &mut self.proxied,
            FlowState::Offloaded => &mut self.offloaded,
        }
    }

    pub(super) fn merge(&mut self, other: &FlowCounts) {
        for state in FlowState::ALL {
            *self.of_mut(state) += other.of(state);
        }
        self.ending += other.ending;
    }
}

impl Status {
    /// All backends of all frontends.
    pub fn backends(&self) -> impl Iterator<Item = &BackendStatus> {
        self.frontends.iter().flat_map(|frontend| &frontend.backends)
    }
}
