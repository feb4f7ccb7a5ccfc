//! The cluster's nodes as their connections show them: whether each of them still reaches an apiserver, and how long it has until the
//! controller-manager takes it for dead.
//!
//! ```text
//!              a connection                 no connection at any instance
//!   NeverSeen ─────────────▶ Connected ◀───────────────────────────────▶ Lost
//!                                ▲                                         │ an instance that may have one is not heard
//!                                └──────────────── Unknown ◀───────────────┘ (and back)
//! ```
//! A lost node is silent once a renewal of its lease was due: a kubelet whose connection ended connects again at once, and tries
//! again at its next renewal at the latest. A connected node is silent once it has sent nothing for two renewals, but only if it has
//! sent something in each renewal before: of a node without a kubelet here (kube-proxy alone) no rhythm is known.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::end_reason::EndReason;
use super::fleet::InstanceName;
use super::humane::plural;
use super::ids::BackendId;

/// The cluster's timers, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeTimers {
    /// Between two renewals of a node's lease.
    pub lease_renew_ns: u64,
    /// A node without a renewal for longer is NotReady.
    pub grace_ns: u64,
}

/// One connection of a node at this instance. Times are monotonic ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeConnection {
    pub accepted_at_ns: u64,
    /// Of the last byte from the client, or of the accept.
    pub last_byte_ns: u64,
    pub backend: Option<BackendId>,
}

/// The connections of a node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFlows {
    /// Those at this instance.
    pub here: Option<NodeFlowsHere>,
    /// Number of those that other instances have told of.
    pub at_peers: BTreeMap<InstanceName, u32>,
}

/// The connections of a node at this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeFlowsHere {
    pub connections: u32,
    pub oldest_ns: u64,
    /// The one of them with the last byte from the node.
    pub latest: NodeConnection,
    /// When the node sent its last byte, be it by a connection that has ended since.
    last_byte_ns: u64,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// It has had no connection since the process began. Its kubelet may have another way to the apiservers.
    NeverSeen,
    Connected(NodeFlows),
    /// It has no connection at any instance.
    Lost(NodeLoss),
    /// It has no connection here, and perhaps one at an instance that this one does not hear.
    Unknown {
        since_ns: u64,
        /// What is true again if it has had none. `None`: its last connection may have been at that instance.
        before: Option<NodeLoss>,
    },
}

/// Since when a node has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeLoss {
    pub since_ns: u64,
    /// `None`: its last connection was at another instance.
    pub last_byte_ns: Option<u64>,
}

/// A node that is silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeSilence {
    pub since_ns: u64,
    pub kind: SilenceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilenceKind {
    NoConnection,
    /// It sent nothing while it had a connection.
    NoByte,
}

/// Baton itself refuses the connections of a node that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRefusal {
    /// Why it refused the last one: one of [`NodeRefusal::REASONS`].
    pub reason: EndReason,
    /// Since the node's last connection.
    pub times: u64,
}

/// Whether a connected node has sent something in each renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRhythm {
    Unproven,
    Steady { since_ns: u64 },
    Proven,
}

#[derive(Clone, Debug)]
struct NodeMemory {
    state: NodeState,
    rhythm: NodeRhythm,
    /// The beginning of the silence that was told last, until its end.
    told: Option<NodeSilence>,
}

/// What a look has changed, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeNews {
    pub silent: Vec<(Arc<str>, NodeSilence)>,
    /// Nodes that are no longer silent, with their silence.
    pub back: Vec<(Arc<str>, NodeSilence)>,
}

/// Which of the nodes' connections an instance sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeSight {
    /// No instance has a connection that this one does not know.
    All,
    /// Its own, and not all of its peers.
    Own,
    /// Another host may have the VIP, and carry on this instance's connections.
    NotItsOwn,
}

/// All nodes of the cluster.
#[derive(Debug, Default)]
pub(crate) struct NodeWatch {
    nodes: BTreeMap<Arc<str>, NodeMemory>,
    /// The nodes are those of an earlier process, and the cluster's list has not come yet.
    awaits_list: bool,
    looked_ns: Option<u64>,
}

/// What another process of the same host needs to know of a node that has had a connection. Times are monotonic ns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedNode {
    name: String,
    /// `None`: it has a connection, or may have one.
    lost: Option<NodeLoss>,
    told: Option<NodeSilence>,
    /// Whether it has a kubelet's rhythm.
    proven: bool,
}

/// One node at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeView<'a> {
    pub name: &'a Arc<str>,
    pub state: &'a NodeState,
    pub silence: Option<NodeSilence>,
    /// Time until the node is NotReady, if it renews nothing from now on. `None`: this instance does not see its bytes.
    pub budget_ns: Option<u64>,
}

/// Looks come every few seconds.
const SLEPT_NS: u64 = 10_000_000_000;

/// A node has a rhythm once it has kept it for so many renewals.
const RHYTHM_RENEWALS: u64 = 6;

impl NodeTimers {
    fn lost_max_ns(&self) -> u64 {
        self.lease_renew_ns
    }

    fn mute_max_ns(&self) -> u64 {
        2 * self.lease_renew_ns
    }

    /// The longest time between two bytes of a node that renews its lease, jitter and a retry included.
    fn steady_max_ns(&self) -> u64 {
        self.lease_renew_ns + self.lease_renew_ns / 2
    }
}

impl NodeFlows {
    pub(crate) fn add(&mut self, connection: NodeConnection) {
        let NodeConnection { accepted_at_ns: oldest_ns, last_byte_ns, .. } = connection;
        let here =
            self.here.get_or_insert(NodeFlowsHere { connections: 0, oldest_ns, latest: connection, last_byte_ns });
        here.connections += 1;
        here.last_byte_ns = here.last_byte_ns.max(last_byte_ns);
        here.oldest_ns = here.oldest_ns.min(connection.accepted_at_ns);
        if connection.last_byte_ns > here.latest.last_byte_ns {
            here.latest = connection;
        }
    }

    fn is_connected(&self) -> bool {
        self.here.is_some() || !self.at_peers.is_empty()
    }

    /// When the node sent its last byte. `None`: it may have sent another one to another instance.
    pub(crate) fn last_byte_ns(&self) -> Option<u64> {
        self.here.filter(|_| self.at_peers.is_empty()).map(|here| here.last_byte_ns)
    }

    /// The node has not been silent since a byte of `before`, though its connection has ended: another one, which is quiet, is left.
    fn go_on_from(&mut self, before: &Self) {
        if let (Some(here), Some(before)) = (&mut self.here, before.here) {
            here.last_byte_ns = here.last_byte_ns.max(before.last_byte_ns);
        }
    }
}

impl NodeWatch {
    /// Takes the connections of each node of the cluster, and forgets all other nodes.
    pub(crate) fn handle_look(
        &mut self,
        now_ns: u64,
        timers: &NodeTimers,
        sight: NodeSight,
        mut found: HashMap<Arc<str>, NodeFlows>,
    ) -> NodeNews {
        self.awaits_list = false;
        // Of the time for which this process did not run it knows nothing yet.
        let has_slept = self.looked_ns.replace(now_ns).is_some_and(|at_ns| now_ns.saturating_sub(at_ns) >= SLEPT_NS);
        let sight = if has_slept { NodeSight::NotItsOwn } else { sight };
        self.nodes.retain(|name, _| found.contains_key(name));
        let mut news = NodeNews::default();
        for (name, memory) in &mut self.nodes {
            let flows = found.remove(name).unwrap_or_default();
            memory.take(now_ns, timers, sight, flows);
            memory.tell(now_ns, timers, name, &mut news);
        }
        for (name, flows) in found {
            let mut memory = NodeMemory { state: NodeState::NeverSeen, rhythm: NodeRhythm::Unproven, told: None };
            memory.take(now_ns, timers, sight, flows);
            self.nodes.insert(name, memory);
        }
        news
    }

    /// No source lists nodes.
    pub(crate) fn handle_no_list(&mut self) {
        if !self.awaits_list {
            self.nodes.clear();
        }
    }

    pub(crate) fn save(&self) -> Vec<SavedNode> {
        let seen = self.nodes.iter().filter(|(_, memory)| memory.state != NodeState::NeverSeen);
        let saved = seen.map(|(name, memory)| SavedNode {
            name: name.to_string(),
            lost: match memory.state {
                NodeState::Lost(loss) => Some(loss),
                NodeState::Unknown { before, .. } => before,
                NodeState::NeverSeen | NodeState::Connected(_) => None,
            },
            told: memory.told,
            proven: memory.rhythm == NodeRhythm::Proven,
        });
        saved.collect()
    }

    /// Begins with the nodes of another process, until the next look.
    pub(crate) fn restore(&mut self, now_ns: u64, saved: Vec<SavedNode>) {
        self.awaits_list = true;
        self.nodes.extend(saved.into_iter().map(|SavedNode { name, lost, told, proven }| {
            let rhythm = if proven { NodeRhythm::Proven } else { NodeRhythm::Unproven };
            let state = lost.map_or(NodeState::Unknown { since_ns: now_ns, before: None }, NodeState::Lost);
            (name.into(), NodeMemory { state, rhythm, told })
        }));
    }

    /// All nodes, by name.
    pub(crate) fn views(&self, now_ns: u64, timers: &NodeTimers) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.iter().map(move |(name, memory)| NodeView {
            name,
            state: &memory.state,
            silence: memory.silence(now_ns, timers),
            budget_ns: memory.heard_ns(timers).map(|at_ns| (at_ns + timers.grace_ns).saturating_sub(now_ns)),
        })
    }
}

impl NodeMemory {
    fn take(&mut self, now_ns: u64, timers: &NodeTimers, sight: NodeSight, mut flows: NodeFlows) {
        let sees_all = sight == NodeSight::All;
        if flows.is_connected() {
            let was_mute = matches!(self.silence(now_ns, timers), Some(NodeSilence { kind: SilenceKind::NoByte, .. }));
            if sight == NodeSight::NotItsOwn && flows.at_peers.is_empty() && self.told.is_none() {
                self.rhythm = NodeRhythm::Unproven;
                if !matches!(self.state, NodeState::Unknown { .. }) {
                    self.state = NodeState::Unknown { since_ns: now_ns, before: None };
                }
                return;
            }
            if let NodeState::Connected(before) = &self.state {
                flows.go_on_from(before);
            }
            self.state = NodeState::Connected(flows);
            self.keep_rhythm(now_ns, timers, was_mute);
            return;
        }
        let is_told = self.told.is_some();
        let lost_now = |last_byte_ns| NodeLoss { since_ns: now_ns, last_byte_ns };
        self.state = match &self.state {
            NodeState::NeverSeen => NodeState::NeverSeen,
            unknown @ NodeState::Unknown { .. } if !sees_all => unknown.clone(),
            NodeState::Lost(loss) if !sees_all => NodeState::Unknown { since_ns: now_ns, before: Some(*loss) },
            NodeState::Connected(flows) if !sees_all => {
                let was_here = flows.at_peers.is_empty();
                NodeState::Unknown { since_ns: now_ns, before: was_here.then(|| lost_now(flows.last_byte_ns())) }
            }
            NodeState::Lost(loss) => NodeState::Lost(*loss),
            NodeState::Connected(flows) => NodeState::Lost(lost_now(flows.last_byte_ns())),
            // A node that lives had time to connect to that instance, but would not have left it at once.
            NodeState::Unknown { since_ns, before: Some(loss) }
                if is_told || now_ns - since_ns <= timers.lease_renew_ns =>
            {
                NodeState::Lost(*loss)
            }
            NodeState::Unknown { .. } => NodeState::Lost(lost_now(None)),
        };
        if let NodeRhythm::Steady { .. } = self.rhythm {
            self.rhythm = NodeRhythm::Unproven;
        }
    }

    /// A node that speaks again after such a silence may have no rhythm, so it has to prove it again.
    fn keep_rhythm(&mut self, now_ns: u64, timers: &NodeTimers, was_mute: bool) {
        let NodeState::Connected(flows) = &self.state else { return };
        let age_ns = flows.last_byte_ns().map(|at_ns| now_ns.saturating_sub(at_ns));
        let is_mute = age_ns.is_some_and(|age_ns| age_ns >= timers.mute_max_ns());
        let is_steady = age_ns.is_some_and(|age_ns| age_ns <= timers.steady_max_ns());
        self.rhythm = match self.rhythm {
            NodeRhythm::Proven if was_mute && !is_mute => NodeRhythm::Unproven,
            NodeRhythm::Proven => NodeRhythm::Proven,
            _ if !is_steady => NodeRhythm::Unproven,
            NodeRhythm::Unproven => NodeRhythm::Steady { since_ns: now_ns },
            NodeRhythm::Steady { since_ns } if now_ns - since_ns >= RHYTHM_RENEWALS * timers.lease_renew_ns => {
                NodeRhythm::Proven
            }
            steady => steady,
        };
    }

    fn silence(&self, now_ns: u64, timers: &NodeTimers) -> Option<NodeSilence> {
        let lasts = |since_ns: u64, max_ns: u64| now_ns.saturating_sub(since_ns) >= max_ns;
        match &self.state {
            // Its connection ended after all: the silence began before that.
            NodeState::Lost(_) if self.told.is_some_and(|told| told.kind == SilenceKind::NoByte) => self.told,
            NodeState::Lost(loss) if lasts(loss.since_ns, timers.lost_max_ns()) => {
                Some(NodeSilence { since_ns: loss.since_ns, kind: SilenceKind::NoConnection })
            }
            NodeState::Connected(flows) if self.rhythm == NodeRhythm::Proven => {
                let since_ns = flows.last_byte_ns().filter(|at_ns| lasts(*at_ns, timers.mute_max_ns()))?;
                Some(NodeSilence { since_ns, kind: SilenceKind::NoByte })
            }
            _ => None,
        }
    }

    /// A silence ends with a connection or a byte, and not while nothing is known.
    fn tell(&mut self, now_ns: u64, timers: &NodeTimers, name: &Arc<str>, news: &mut NodeNews) {
        match (self.silence(now_ns, timers), self.told) {
            (Some(silence), None) => {
                self.told = Some(silence);
                news.silent.push((name.clone(), silence));
            }
            (None, Some(silence)) if matches!(self.state, NodeState::Connected(_)) => {
                self.told = None;
                news.back.push((name.clone(), silence));
            }
            _ => {}
        }
    }

    /// When the node has renewed its lease last: at the latest, unless another instance alone saw its last byte; then at the earliest.
    fn heard_ns(&self, timers: &NodeTimers) -> Option<u64> {
        match &self.state {
            NodeState::Connected(flows) => flows.last_byte_ns(),
            NodeState::Lost(loss) => {
                Some(loss.last_byte_ns.unwrap_or(loss.since_ns.saturating_sub(timers.lease_renew_ns)))
            }
            NodeState::NeverSeen | NodeState::Unknown { .. } => None,
        }
    }
}

impl NodeRefusal {
    /// Those that depend on who connects.
    pub(crate) const REASONS: [EndReason; 4] =
        [EndReason::Denied, EndReason::LimitSource, EndReason::RateSource, EndReason::BadProxyHeader];

    /// `denied: allow, deny`, with the keys that decide it.
    pub(crate) fn why(self) -> String {
        let keys = match self.reason {
            EndReason::Denied => "allow, deny",
            EndReason::LimitSource => "max_connections_per_source",
            EndReason::RateSource => "accept_rate_per_source",
            _ => "accept_proxy_from",
        };
        format!("{}: {keys}", self.reason.label())
    }

    /// `Baton refuses it (denied: allow, deny), 30 times since`.
    pub(crate) fn in_words(self, is_one: bool) -> String {
        let whom = if is_one { "it" } else { "them" };
        format!("Baton refuses {whom} ({}), {} since", self.why(), plural(self.times, "time"))
    }
}

impl SilenceKind {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NoConnection => "no_connection",
            Self::NoByte => "no_byte",
        }
    }

    /// What a node has, as in "worker-17 has had no connection for 38 s".
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::NoConnection => "had no connection",
            Self::NoByte => "sent no byte",
        }
    }
}

#[cfg(test)]
mod tests;
