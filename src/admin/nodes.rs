//! Looks at the connections of the cluster's nodes once a second, for `baton nodes`, its metrics and its events.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Admin;
use super::status;
use crate::config::Config;
use crate::drain::LifePhase;
use crate::model::fleet::{Farewell, InstanceName, Liveness};
use crate::model::nodes::{
    NodeConnection, NodeFlows, NodeNews, NodeRefusal, NodeSight, NodeSilence, NodeState, NodeTimers, NodeView,
    NodeWatch,
};
use crate::sys::clock::{now_ns, thread_cpu_ns};
use crate::table::fleet::MemberView;
use crate::table::flows::FlowTable;
use crate::table::journal::What;
use crate::table::names::{ListedNodes, NodeListSource};
use crate::table::nodes::{NodeCounts, SilenceKind, SilentNode};

/// The cluster's nodes, the ones with the least budget first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodesReport {
    /// `None`: no source lists nodes.
    pub source: Option<NodeListSource>,
    /// Why this instance does not know all connections; then no node without a connection counts as silent.
    pub sees_not_all: Option<String>,
    pub lease_renew_ms: u64,
    pub grace_period_ms: u64,
    pub silent: u64,
    pub nodes: Vec<NodeRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRow {
    pub node: String,
    pub state: NodeRowState,
    /// At all instances.
    pub connections: u32,
    /// Other instances that have connections of the node.
    pub peers: Vec<InstanceName>,
    /// That of the connection here by which the last byte came.
    pub backend: Option<String>,
    /// Of the oldest connection here.
    pub age_ms: Option<u64>,
    /// Since the last byte from the node. `None`: it may have sent it to another instance.
    pub last_byte_ms: Option<u64>,
    /// Until the node is NotReady, if it renews nothing from now on.
    pub budget_ms: Option<u64>,
    /// If it has no connection, and Baton itself refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<NodeRefusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum NodeRowState {
    Connected,
    /// It has no connection, but not yet for long.
    Lost {
        for_ms: u64,
    },
    Silent {
        why: SilenceKind,
        for_ms: u64,
    },
    Unknown,
    NeverSeen,
}

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pause between two looks, as a multiple of the CPU time of the last one: with a million flows the looks take no noticeable part of
/// a core.
const PAUSE: u32 = 200;
/// Silence is told so late at most.
const LOOK_WITHIN: Duration = Duration::from_secs(3);

/// Names in one event.
const NAMED_MAX: usize = 10;

/// Looks for as long as it is polled.
pub(crate) async fn watch(admin: Arc<Admin>) {
    loop {
        let used = admin.aside(|admin| {
            let began_ns = thread_cpu_ns();
            look(admin);
            Duration::from_nanos(thread_cpu_ns().saturating_sub(began_ns))
        });
        tokio::time::sleep(pause(used.await)).await;
    }
}

/// Until the next look. `used`: CPU time of the last one; the time that it waited for a core on a busy host is none of its cost.
fn pause(used: Duration) -> Duration {
    (used * PAUSE).clamp(LOOK_EVERY, LOOK_WITHIN)
}

/// The nodes of now. It walks through all flows: call it on a blocking thread.
pub(super) fn report(admin: &Admin) -> NodesReport {
    look(admin);
    last_report(admin)
}

/// The nodes as of the last look, without a walk.
pub(super) fn last_report(admin: &Admin) -> NodesReport {
    let (config, list) = (admin.config.load(), admin.table.names.nodes());
    let (timers, now_ns) = (timers(&config), now_ns());
    let backends = admin.table.registry.backends();
    let backends: HashMap<_, _> = backends.iter().map(|entry| (entry.id, entry.label())).collect();
    let watch = admin.table.nodes.watch();
    let refused = refused(admin, &watch, &timers, now_ns);
    let row = |view: NodeView<'_>| NodeRow {
        refused: refused.get(view.name).copied(),
        ..NodeRow::of(&view, now_ns, |id| Some(backends.get(&id)?.clone().into_owned()))
    };
    // Those of an earlier process are not listed until a source does.
    let listed = watch.views(now_ns, &timers).filter(|_| list.source.is_some());
    let mut nodes: Vec<_> = listed.map(row).collect();
    nodes.sort_by_key(|row| (row.rank(), row.budget_ms));
    NodesReport {
        source: list.source,
        sees_not_all: sees_not_all(admin, &config),
        lease_renew_ms: timers.lease_renew_ns / 1_000_000,
        grace_period_ms: timers.grace_ns / 1_000_000,
        silent: nodes.iter().filter(|row| matches!(row.state, NodeRowState::Silent { .. })).count() as u64,
        nodes,
    }
}

fn timers(config: &Config) -> NodeTimers {
    let ns = |time: Duration| time.as_nanos() as u64;
    let cluster = &config.cluster;
    NodeTimers { lease_renew_ns: ns(cluster.lease_renew), grace_ns: ns(cluster.node_monitor_grace_period) }
}

/// Tells of nodes that are silent now, or no longer.
fn look(admin: &Admin) {
    let mut watch = admin.table.nodes.watch();
    let list = admin.table.names.nodes();
    if list.source.is_none() {
        watch.handle_no_list();
        admin.table.nodes.show_counts(None);
        return admin.table.nodes.show(None);
    }
    let config = admin.config.load();
    let sight = match sees_not_all(admin, &config) {
        None => NodeSight::All,
        Some(_) if has_vip(admin, &config) => NodeSight::Own,
        Some(_) => NodeSight::NotItsOwn,
    };
    let found = find(admin, &list);
    let (timers, now_ns) = (timers(&config), now_ns());
    let news = watch.handle_look(now_ns, &timers, sight, found);
    let refused = refused(admin, &watch, &timers, now_ns);
    admin.table.nodes.show_counts(Some(count(watch.views(now_ns, &timers))));
    let silent = watch.views(now_ns, &timers).filter_map(|view| {
        let NodeSilence { since_ns, kind } = view.silence?;
        Some(SilentNode { name: view.name.clone(), since_ns, kind, refused: refused.get(view.name).copied() })
    });
    let mut silent: Vec<_> = silent.collect();
    silent.sort_by_key(|node| node.since_ns);
    admin.table.nodes.show((sight == NodeSight::All).then_some(silent));
    tell(admin, news, &refused, now_ns);
}

/// The nodes without a connection that Baton itself refuses, by name.
fn refused(admin: &Admin, watch: &NodeWatch, timers: &NodeTimers, now_ns: u64) -> HashMap<Arc<str>, NodeRefusal> {
    let without = watch.views(now_ns, timers).filter(|view| !matches!(view.state, NodeState::Connected(_)));
    let without: HashSet<_> = without.map(|view| &**view.name).collect();
    admin.table.nodes.refused(|node| without.contains(node))
}

fn count<'a>(views: impl Iterator<Item = NodeView<'a>>) -> NodeCounts {
    let mut counts = ["connected", "silent", "lost", "unknown", "never_seen"].map(|state| (state, 0));
    for view in views {
        let place = match (view.silence, view.state) {
            (Some(_), _) => 1,
            (None, NodeState::Connected(_)) => 0,
            (None, NodeState::Lost(_)) => 2,
            (None, NodeState::Unknown { .. }) => 3,
            (None, NodeState::NeverSeen) => 4,
        };
        counts[place].1 += 1;
    }
    counts
}

fn tell(admin: &Admin, news: NodeNews, refused: &HashMap<Arc<str>, NodeRefusal>, now_ns: u64) {
    let longest_ms = |all: &[(Arc<str>, NodeSilence)]| {
        all.iter().map(|(_, silence)| now_ns.saturating_sub(silence.since_ns) / 1_000_000).max().unwrap_or(0)
    };
    let named = |all: &[(Arc<str>, NodeSilence)]| {
        let names = all.iter().take(NAMED_MAX).map(|(name, _)| name.to_string()).collect();
        (names, all.len().saturating_sub(NAMED_MAX))
    };
    let reason = |name: &Arc<str>| refused.get(name).map(|it| it.reason);
    let by_baton = NodeRefusal::REASONS.map(|reason| (SilenceKind::NoConnection, Some(reason)));
    for (why, refusal) in [(SilenceKind::NoConnection, None), (SilenceKind::NoByte, None)].into_iter().chain(by_baton) {
        let is_it = |(name, silence): &&(Arc<str>, NodeSilence)| silence.kind == why && reason(name) == refusal;
        let of_kind: Vec<_> = news.silent.iter().filter(is_it).cloned().collect();
        if !of_kind.is_empty() {
            let (nodes, more) = named(&of_kind);
            let times = of_kind.iter().filter_map(|(name, _)| refused.get(name)).map(|it| it.times).sum();
            let refused = refusal.map(|reason| NodeRefusal { reason, times });
            admin.table.journal.record(What::NodesSilent { nodes, more, why, for_ms: longest_ms(&of_kind), refused });
        }
    }
    if !news.back.is_empty() {
        let (nodes, more) = named(&news.back);
        admin.table.journal.record(What::NodesBack { nodes, more, for_ms: longest_ms(&news.back) });
    }
}

/// The connections of each node of the list.
fn find(admin: &Admin, list: &ListedNodes) -> HashMap<Arc<str>, NodeFlows> {
    let mut found: HashMap<_, _> = list.by_address.values().map(|name| (name.clone(), NodeFlows::default())).collect();
    let mut flows_of = |ip: IpAddr, take: &mut dyn FnMut(&mut NodeFlows)| {
        if let Some(flows) = list.by_address.get(&ip.to_canonical()).and_then(|name| found.get_mut(name)) {
            take(flows);
        }
    };
    for_each_connection(&admin.table.flows, |ip, connection| flows_of(ip, &mut |flows| flows.add(connection)));
    let members = admin.table.fleet.members();
    // Their connections went with them.
    let is_gone = |owner: &InstanceName| members.iter().any(|it| it.name == *owner && is_gone(it));
    let clients = admin.table.fleet.clients().unwrap_or_default();
    for (ip, owners) in &*clients {
        flows_of(*ip, &mut |flows| {
            for (owner, connections) in owners.iter().filter(|(owner, _)| !is_gone(owner)) {
                *flows.at_peers.entry(owner.clone()).or_default() += connections;
            }
        });
    }
    found
}

/// Connections that have a backend.
fn for_each_connection(flows: &FlowTable, mut take: impl FnMut(IpAddr, NodeConnection)) {
    for flow in flows.iter().filter(|flow| flow.state.is_served()) {
        let accepted_at_ns = flow.origin.accepted_at_ns;
        let last_byte_ns = flow.last_to_backend_ns.max(accepted_at_ns);
        take(flow.origin.client.ip(), NodeConnection { accepted_at_ns, last_byte_ns, backend: flow.backend });
    }
}

fn is_gone(member: &MemberView) -> bool {
    matches!(member.liveness, Liveness::Dead | Liveness::Left(Farewell::Stopped))
}

/// Why a node may have a connection that this instance does not know.
fn sees_not_all(admin: &Admin, config: &Config) -> Option<String> {
    if let Some(why) = serves_none(admin.phase.phase(), admin.ports.fleet.is_succeeded()) {
        return Some(why);
    }
    let has_vip = has_vip(admin, config);
    let Some(peers) = &config.peers else {
        let why = "the VIP is not on this host, and no peers tell of their connections: there is no [peers]";
        return (!has_vip).then(|| why.to_owned());
    };
    if admin.table.fleet.clients().is_none() {
        return Some("no failover runs, which keeps count of the peers' connections".to_owned());
    }
    let members = admin.table.fleet.members();
    let has_all = peers.peers.iter().all(|peer| members.iter().any(|it| it.name == peer.name));
    let unheard = members.iter().find_map(|member| match member.liveness {
        Liveness::Alive if member.synced => None,
        Liveness::Alive => Some(format!("{} has not told all its connections yet", member.name)),
        // Without the VIP this host may be the one that is cut off.
        _ if has_vip && is_gone(member) => None,
        Liveness::Unheard if has_vip && admin.ports.fleet.is_ready() => None,
        other => Some(format!("{} is {}", member.name, other.label())),
    });
    if has_all { unheard } else { Some("not all peers have been looked for yet".to_owned()) }
}

/// Why this process gets no new connections; `is_succeeded`: another one of this host does.
fn serves_none(phase: LifePhase, is_succeeded: bool) -> Option<String> {
    match (is_succeeded, phase) {
        (true, _) => Some("another process has replaced this one, and gets all new connections".to_owned()),
        (false, LifePhase::Serving) => None,
        (false, phase) => Some(format!("this instance serves no new connections ({})", phase.label())),
    }
}

/// Whether packets of new connections come to this host: one of the frontends' addresses is here, or all are fixed.
fn has_vip(admin: &Admin, config: &Config) -> bool {
    let mut listens = config.frontends.iter().flat_map(|frontend| &frontend.listen);
    listens.all(|vip| status::is_fixed(config, vip.ip())) || !status::vips(config, admin).is_empty()
}

impl NodeRow {
    fn of(view: &NodeView<'_>, now_ns: u64, backend: impl Fn(crate::model::ids::BackendId) -> Option<String>) -> Self {
        let since_ms = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
        let state = match (view.silence, view.state) {
            (Some(NodeSilence { since_ns, kind }), _) => NodeRowState::Silent { why: kind, for_ms: since_ms(since_ns) },
            (None, NodeState::Connected(_)) => NodeRowState::Connected,
            (None, NodeState::Lost(loss)) => NodeRowState::Lost { for_ms: since_ms(loss.since_ns) },
            (None, NodeState::Unknown { .. }) => NodeRowState::Unknown,
            (None, NodeState::NeverSeen) => NodeRowState::NeverSeen,
        };
        let none = NodeFlows::default();
        let flows = if let NodeState::Connected(flows) = view.state { flows } else { &none };
        let last_byte_ns = match view.state {
            NodeState::Lost(loss) => loss.last_byte_ns,
            _ => flows.last_byte_ns(),
        };
        Self {
            node: view.name.to_string(),
            state,
            connections: flows.here.map_or(0, |here| here.connections) + flows.at_peers.values().sum::<u32>(),
            peers: flows.at_peers.keys().cloned().collect(),
            backend: flows.here.and_then(|here| here.latest.backend).and_then(backend),
            age_ms: flows.here.map(|here| since_ms(here.oldest_ns)),
            last_byte_ms: last_byte_ns.map(since_ms),
            budget_ms: view.budget_ns.map(|ns| ns / 1_000_000),
            refused: None,
        }
    }

    fn rank(&self) -> u8 {
        match self.state {
            NodeRowState::Silent { .. } => 0,
            NodeRowState::Lost { .. } => 1,
            NodeRowState::NeverSeen if self.refused.is_some() => 1,
            NodeRowState::Unknown => 2,
            NodeRowState::Connected if self.budget_ms.is_some() => 3,
            NodeRowState::Connected => 4,
            NodeRowState::NeverSeen => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a look that waited 90 ms for a core was followed by 18 s without any, and 30 nodes without a connection were told late.
    #[test]
    fn the_pause_between_looks_has_an_end() {
        let ms = Duration::from_millis;
        assert_eq!([0, 4, 8, 90, 5000].map(|used| pause(ms(used)).as_millis()), [1000, 1000, 1600, 3000, 3000]);
    }

    /// Regression: during an upgrade it said "this instance serves no new connections (serving)".
    #[test]
    fn a_process_that_was_replaced_says_so_and_not_that_it_serves() {
        let said = serves_none(LifePhase::Serving, true).unwrap();
        assert!(said.contains("another process has replaced this one") && !said.contains("serving"), "{said}");
        assert_eq!(serves_none(LifePhase::Draining, true), Some(said));
        assert_eq!(serves_none(LifePhase::Serving, false), None);
        assert!(serves_none(LifePhase::Draining, false).unwrap().ends_with("(draining)"));
    }
}
