//! A frontend's moves: which flows, when, and how many at a time.

use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{ImmobileFlows, Move, RebalanceParts, Rebalanced, entries, has_whole_share, is_ready, plan_frontend};
use crate::config::{Frontend, RebalanceWhen};
use crate::essential;
use crate::model::end_reason::EndReason;
use crate::model::health::Cause;
use crate::model::ids::{BackendId, FlowId};
use crate::model::rebalance::Allowance;
use crate::model::rebalance::outage::{BackendSeen, Outage, SavedOutage};
use crate::table::backend::BackendEntry;
use crate::table::flows::{FlowTable, FlowView};
use crate::table::journal::What;

/// Limit for the list of flows that were asked to end and were not idle after all: asking them first again would delay
/// the others. Beyond it the list is cleared.
const REFUSALS_KEPT: usize = 10_000;
/// A flow that is still there after this time has not been quiet.
const REFUSED_AFTER_NS: u64 = 1_000_000_000;
/// Time in which a client connects again, and no backend has its flow.
const RETURNS_WITHIN_NS: u64 = 5_000_000_000;
/// Limit for an operator's wait.
const ORDER_LIMIT: Duration = Duration::from_secs(45);
/// After an outage, and by order, what is too much moves within about this time.
const SPREAD_WITHIN_S: u32 = 20;
const PER_SECOND_MIN: u32 = 5;
/// How long a flow must be quiet to be moved after an outage or by order, from this time on.
const BOLDNESS: [(Duration, Duration); 5] = [
    (Duration::from_secs(35), Duration::from_millis(10)),
    (Duration::from_secs(25), Duration::from_millis(20)),
    (Duration::from_secs(15), Duration::from_millis(50)),
    (Duration::from_secs(5), Duration::from_millis(100)),
    (Duration::ZERO, Duration::from_millis(200)),
];

/// The flows that may move now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    None,
    /// All, at the configured pace.
    Always,
    /// Those that began since then.
    AfterOutage {
        since_ns: u64,
    },
    /// All: an operator waits for it.
    Ordered,
}

/// The state of one frontend between steps.
#[derive(Debug)]
pub(super) struct Rebalancer {
    allowance: Allowance,
    outage: Outage,
    /// Those that were gone at the last look. `None`: there was none.
    gone: Option<HashSet<BackendId>>,
    ordered_at_ns: Option<u64>,
    goal: Goal,
    /// Since when some backend has had too many; `None` while all are even.
    uneven_since_ns: Option<u64>,
    /// Whether an event has said that flows move since then.
    is_announced: bool,
    /// Flows that should have moved at that time.
    planned: u32,
    asked: HashMap<FlowId, AskedFlow>,
    refused: HashSet<FlowId>,
    /// Flows that have moved for this goal, in all and by client: no client is moved more often than it has flows.
    moved: u32,
    moved_of: HashMap<IpAddr, u32>,
    /// Those that had moved after an outage when an order came, in all and by client: the rest of the outage does not move them again.
    moved_before: u32,
    moved_before_order: HashMap<IpAddr, u32>,
    /// When the last ones moved.
    returning: VecDeque<u64>,
    /// Flows of all backends before these moved.
    flows_before: u32,
}

/// A flow that its worker was asked to end.
#[derive(Clone, Copy, Debug)]
struct AskedFlow {
    at_ns: u64,
    client: IpAddr,
    backend: BackendId,
}

impl Rebalancer {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            allowance: Allowance::new(now_ns),
            outage: Outage::None,
            gone: None,
            ordered_at_ns: None,
            goal: Goal::None,
            uneven_since_ns: None,
            is_announced: false,
            planned: 0,
            asked: HashMap::new(),
            refused: HashSet::new(),
            moved: 0,
            moved_of: HashMap::new(),
            moved_before: 0,
            moved_before_order: HashMap::new(),
            returning: VecDeque::new(),
            flows_before: 0,
        }
    }

    /// Goes on with the outage that the process before this one has seen.
    pub(super) fn resume(saved: Option<SavedOutage>, now_ns: u64) -> Self {
        let new = Self::new(now_ns);
        let Some(SavedOutage { outage, moved_of, .. }) = saved else { return new };
        let goal = outage.since_ns().map_or(Goal::None, |since_ns| Goal::AfterOutage { since_ns });
        Self { outage, goal, moved_of, ..new }
    }

    /// The outage, for the process after this one.
    fn save(&self, frontend: &Frontend) -> Option<SavedOutage> {
        self.outage.since_ns()?;
        let moved_of = if self.is_ordered() { &self.moved_before_order } else { &self.moved_of };
        Some(SavedOutage { frontend: frontend.name.to_string(), outage: self.outage, moved_of: moved_of.clone() })
    }

    /// Moves everything that is too much once, as soon as it is quiet.
    pub(super) fn order(&mut self, now_ns: u64) {
        self.ordered_at_ns = Some(now_ns);
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.ordered_at_ns.is_some()
    }

    /// Whether it should be looked at again soon.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.goal, Goal::AfterOutage { .. } | Goal::Ordered)
            && (self.uneven_since_ns.is_some() || !self.asked.is_empty() || self.is_ordered())
    }

    /// Looks at all backends and asks flows to end. Returns what an order has come to once that is done.
    pub(super) async fn step(
        &mut self,
        table: &RebalanceParts,
        frontend: &Frontend,
        now_ns: u64,
    ) -> Option<Rebalanced> {
        let backends = entries(&table.registry, frontend);
        let seen = backends.iter().filter(|entry| entry.weight() > 0).map(|entry| BackendSeen {
            ready: is_ready(entry),
            probed: is_probed(entry),
            served_until_ns: entry.health().served_until_ns,
            has_whole_share: has_whole_share(entry, now_ns),
        });
        let seen: Vec<_> = seen.collect();
        self.outage = self.outage.observe(&seen, now_ns);
        let gone = backends.iter().filter(|entry| entry.weight() > 0 && has_gone(entry)).map(|entry| entry.id);
        self.note_gone(gone.collect());
        self.pursue(self.goal(frontend), table, frontend);
        while self.returning.front().is_some_and(|at_ns| now_ns >= at_ns + RETURNS_WITHIN_NS) {
            self.returning.pop_front();
        }
        let flows = backends.iter().map(|entry| entry.active.load(Relaxed)).sum();
        if self.returning.is_empty() && self.asked.is_empty() {
            self.flows_before = flows;
        }
        // Those that have connected again are in the backends' numbers.
        let returning = (self.returning.len() as u32).min(self.flows_before.saturating_sub(flows));
        let mut moves = match self.goal {
            Goal::None => Vec::new(),
            _ => plan_frontend(&backends, frontend, self.tolerance_percent(frontend), returning, now_ns),
        };
        self.note(&moves, now_ns);
        let left = moves.clone();
        // Also when there is nothing to move: moves that nobody needed do not add up.
        let allowed = self.allowance.take(self.per_minute(frontend), now_ns);
        if !moves.is_empty() || !self.asked.is_empty() {
            self.move_some(&mut moves, allowed, table, frontend, now_ns).await;
        }
        if let Some(entry) = backends.first() {
            entry.frontend.outage.set(self.save(frontend));
        }
        let grows = seen.iter().any(|backend| backend.ready && !backend.has_whole_share);
        let ordered_at_ns = self.ordered_at_ns?;
        let took = Duration::from_nanos(now_ns.saturating_sub(ordered_at_ns));
        let is_late = took >= ORDER_LIMIT;
        if !is_late && (grows || returning > 0 || !self.asked.is_empty()) {
            return None;
        }
        // Those whose clients have moved already stay, however long they are waited for.
        let left = self.explain(left, table).await;
        if !is_late && left.iter().any(|it| it.never_quiet > 0) {
            return None;
        }
        self.ordered_at_ns = None;
        Some(Rebalanced { frontend: frontend.name.to_string(), moved: self.moved, left, took })
    }

    /// Each loss is an outage for the clients, also if the one before is not over: they may move again.
    fn note_gone(&mut self, gone: HashSet<BackendId>) {
        let before = self.gone.replace(gone);
        let (Some(before), Some(gone)) = (before, &self.gone) else { return };
        if gone.is_subset(&before) {
            return;
        }
        let moved_of = if self.is_ordered() { &mut self.moved_before_order } else { &mut self.moved_of };
        moved_of.clear();
    }

    fn goal(&self, frontend: &Frontend) -> Goal {
        let when = frontend.rebalance.when;
        match self.outage.since_ns() {
            _ if self.is_ordered() => Goal::Ordered,
            _ if when == RebalanceWhen::Always => Goal::Always,
            Some(since_ns) if when == RebalanceWhen::AfterOutage => Goal::AfterOutage { since_ns },
            _ => Goal::None,
        }
    }

    /// Goes over to `goal`.
    fn pursue(&mut self, goal: Goal, table: &RebalanceParts, frontend: &Frontend) {
        let is_same = std::mem::discriminant(&goal) == std::mem::discriminant(&self.goal);
        if !is_same {
            let is_suspended = matches!((self.goal, goal), (Goal::AfterOutage { .. }, Goal::Ordered));
            if self.moved > 0 && self.goal != Goal::Always && !is_suspended {
                let (frontend, flows) = (frontend.name.to_string(), self.moved as usize);
                table.journal.record(What::Rebalanced { frontend, flows });
            }
            let moved = std::mem::take(&mut self.moved);
            self.uneven_since_ns = None;
            let moved_of = std::mem::take(&mut self.moved_of);
            match (self.goal, goal) {
                (Goal::AfterOutage { .. }, Goal::Ordered) => {
                    (self.moved_before, self.moved_before_order) = (moved, moved_of)
                }
                (Goal::Ordered, Goal::AfterOutage { .. }) => {
                    self.moved = std::mem::take(&mut self.moved_before);
                    self.moved_of = std::mem::take(&mut self.moved_before_order);
                    moved_of.into_iter().for_each(|(client, moved)| *self.moved_of.entry(client).or_default() += moved);
                }
                _ => {
                    self.moved_before = 0;
                    self.moved_before_order.clear();
                }
            }
            self.asked.clear();
            self.refused.clear();
        }
        self.goal = goal;
    }

    /// Notes whether the backends are even.
    fn note(&mut self, moves: &[Move], now_ns: u64) {
        let excess = moves.iter().map(|planned| planned.excess).sum();
        if moves.is_empty() {
            self.uneven_since_ns = None;
        } else if self.uneven_since_ns.is_none() {
            self.uneven_since_ns = Some(now_ns);
            self.planned = excess;
            self.is_announced = false;
        }
        // While shares grow, so does what has to move.
        self.planned = self.planned.max(excess);
        if moves.is_empty() || self.refused.len() > REFUSALS_KEPT {
            self.refused.clear();
        }
    }

    async fn move_some(
        &mut self,
        moves: &mut [Move],
        allowed: u32,
        table: &RebalanceParts,
        frontend: &Frontend,
        now_ns: u64,
    ) {
        for planned in moves.iter_mut() {
            let under_way = self.asked.values().filter(|asked| asked.backend == planned.id).count() as u32;
            planned.excess = planned.excess.saturating_sub(under_way);
        }
        let quiet = self.quiet(frontend, now_ns);
        let search = QuietSearch {
            moves: moves.to_vec(),
            most: allowed,
            quiet_since_ns: now_ns.saturating_sub(quiet.as_nanos() as u64),
            began_since_ns: if let Goal::AfterOutage { since_ns } = self.goal { since_ns } else { 0 },
            asked: std::mem::take(&mut self.asked),
            refused: std::mem::take(&mut self.refused),
            moved_of: std::mem::take(&mut self.moved_of),
            is_once: self.goal != Goal::Always,
        };
        let flows = table.flows.clone();
        // A walk over a million flows takes milliseconds, for which this runtime must not wait.
        let Some(found) = essential::aside(move || search.look(&flows)).await else { return };
        let FoundFlows { search, picked, still_there } = found;
        (self.refused, self.moved_of) = (search.refused, search.moved_of);
        for (id, asked) in search.asked {
            if !still_there.contains(&id) {
                self.moved += 1;
                *self.moved_of.entry(asked.client).or_default() += 1;
                self.returning.push_back(now_ns);
            } else if now_ns < asked.at_ns + REFUSED_AFTER_NS {
                self.asked.insert(id, asked);
            } else if self.goal == Goal::Always {
                self.refused.insert(id);
            }
        }
        // Not before one can move: those of before the outage stay.
        if !picked.is_empty() && !std::mem::replace(&mut self.is_announced, true) {
            let (frontend, moves) = (frontend.name.to_string(), self.planned as usize);
            table.journal.record(What::RebalancePlanned { frontend, moves });
        }
        for flow in picked {
            let Some(backend) = flow.backend else { continue };
            self.asked.insert(flow.id, AskedFlow { at_ns: now_ns, client: client_of(&flow), backend });
            // The worker checks again: a byte may have come since.
            table.orders.end_flow(flow.ticket(), EndReason::Rebalanced, Some(quiet));
        }
    }

    /// Counts why the flows of the backends in `left` stay.
    async fn explain(&self, left: Vec<Move>, table: &RebalanceParts) -> Vec<ImmobileFlows> {
        if left.is_empty() {
            return Vec::new();
        }
        let (flows, moved_of) = (table.flows.clone(), self.moved_of.clone());
        essential::aside(move || staying(left, &moved_of, &flows)).await.unwrap_or_default()
    }

    fn per_minute(&self, frontend: &Frontend) -> u32 {
        let configured = frontend.rebalance.per_minute;
        match self.goal {
            Goal::Always | Goal::None => configured,
            _ => configured.max(60 * PER_SECOND_MIN.max(self.planned / SPREAD_WITHIN_S)),
        }
    }

    fn tolerance_percent(&self, frontend: &Frontend) -> u32 {
        let configured = frontend.rebalance.tolerance_percent;
        match self.goal {
            Goal::AfterOutage { .. } => configured.min(AFTER_OUTAGE_PERCENT),
            _ => configured,
        }
    }

    /// How long a flow must be quiet now.
    fn quiet(&self, frontend: &Frontend, now_ns: u64) -> Duration {
        let uneven_for = Duration::from_nanos(now_ns.saturating_sub(self.uneven_since_ns.unwrap_or(now_ns)));
        let bold = BOLDNESS.iter().find(|(after, _)| uneven_for >= *after).map_or(Duration::ZERO, |(_, quiet)| *quiet);
        match self.goal {
            Goal::Always | Goal::None => frontend.rebalance.min_idle,
            _ => bold.min(frontend.rebalance.min_idle),
        }
    }
}

/// Until then nobody knows whether it is ready.
fn is_probed(entry: &BackendEntry) -> bool {
    entry.health().cause != Cause::NotProbed
}

fn has_gone(entry: &BackendEntry) -> bool {
    is_probed(entry) && !is_ready(entry)
}

/// Each backend but one may keep so much more than its share after an outage: of three, the last one then has 10 percent less.
const AFTER_OUTAGE_PERCENT: u32 = 5;

/// One walk over all flows.
#[derive(Debug)]
struct QuietSearch {
    moves: Vec<Move>,
    /// Limit for all backends together.
    most: u32,
    /// Only flows without a byte since then, and only those that began since then.
    quiet_since_ns: u64,
    began_since_ns: u64,
    asked: HashMap<FlowId, AskedFlow>,
    refused: HashSet<FlowId>,
    moved_of: HashMap<IpAddr, u32>,
    /// Whether a client moves once at most for each of its flows.
    is_once: bool,
}

#[derive(Debug)]
struct FoundFlows {
    search: QuietSearch,
    /// Longest quiet first.
    picked: Vec<FlowView>,
    /// Those of `asked` that have not ended.
    still_there: HashSet<FlowId>,
}

impl QuietSearch {
    fn look(self, flows: &FlowTable) -> FoundFlows {
        let cap = |excess: u32| excess.min(self.most) as usize;
        let mut quiet: HashMap<BackendId, (usize, BinaryHeap<QuietFlow>)> =
            self.moves.iter().map(|planned| (planned.id, (cap(planned.excess), BinaryHeap::new()))).collect();
        // An asked flow may be about to end: its client has no more left to move than if it had.
        let mut moved_of = self.moved_of.clone();
        self.asked.values().for_each(|asked| *moved_of.entry(asked.client).or_default() += 1);
        let flows_of = flows_of_moved(&moved_of, flows);
        let mut still_there = HashSet::new();
        for flow in flows.iter() {
            if self.asked.contains_key(&flow.id) {
                still_there.insert(flow.id);
                continue;
            }
            let Some((cap, heap)) = flow.backend.and_then(|id| quiet.get_mut(&id)) else { continue };
            if self.may_move(&flow) && !self.is_spent(&flow, &moved_of, &flows_of) {
                heap.push(QuietFlow(flow));
                if heap.len() > *cap {
                    heap.pop();
                }
            }
        }
        let mut picked: Vec<_> = quiet.into_values().flat_map(|(_, heap)| heap.into_iter()).collect();
        picked.sort_unstable();
        let mut picked: Vec<_> = picked.into_iter().map(|quiet| quiet.0).collect();
        picked.retain(|flow| {
            let is_spent = self.is_spent(flow, &moved_of, &flows_of);
            // A client that is not in there has as many flows at least as it has among these.
            moved_of.entry(client_of(flow)).and_modify(|moved| *moved += 1);
            !is_spent
        });
        picked.truncate(self.most as usize);
        FoundFlows { search: self, picked, still_there }
    }

    fn may_move(&self, flow: &FlowView) -> bool {
        flow.state.is_served()
            && !flow.ending
            && flow.last_byte_ns() <= self.quiet_since_ns
            && flow.origin.accepted_at_ns >= self.began_since_ns
            && !self.refused.contains(&flow.id)
    }

    fn is_spent(&self, flow: &FlowView, moved_of: &HashMap<IpAddr, u32>, flows_of: &HashMap<IpAddr, u32>) -> bool {
        self.is_once && has_moved(flow, moved_of, flows_of)
    }
}

/// Number of flows of each client that has moved.
fn flows_of_moved(moved_of: &HashMap<IpAddr, u32>, flows: &FlowTable) -> HashMap<IpAddr, u32> {
    let mut flows_of = HashMap::new();
    if !moved_of.is_empty() {
        let clients = flows.iter().map(|flow| client_of(&flow));
        clients
            .filter(|client| moved_of.contains_key(client))
            .for_each(|client| *flows_of.entry(client).or_default() += 1);
    }
    flows_of
}

/// Whether the flow's client has moved as often as it has flows.
fn has_moved(flow: &FlowView, moved_of: &HashMap<IpAddr, u32>, flows_of: &HashMap<IpAddr, u32>) -> bool {
    let client = client_of(flow);
    let moved = moved_of.get(&client).copied().unwrap_or(0);
    moved > 0 && moved >= flows_of.get(&client).copied().unwrap_or(0)
}

fn staying(left: Vec<Move>, moved_of: &HashMap<IpAddr, u32>, flows: &FlowTable) -> Vec<ImmobileFlows> {
    let flows_of = flows_of_moved(moved_of, flows);
    let mut staying: Vec<_> =
        left.into_iter().map(|planned| ImmobileFlows { planned, moved_before: 0, never_quiet: 0 }).collect();
    for flow in flows.iter() {
        let Some(of) = staying.iter_mut().find(|it| Some(it.planned.id) == flow.backend) else { continue };
        let count = match has_moved(&flow, moved_of, &flows_of) {
            true => &mut of.moved_before,
            false => &mut of.never_quiet,
        };
        *count += 1;
    }
    staying
}

fn client_of(flow: &FlowView) -> IpAddr {
    flow.origin.client.socket_addr().ip()
}

/// Ordered by the last byte: the greatest was quiet for the shortest time.
#[derive(Debug)]
struct QuietFlow(FlowView);

impl QuietFlow {
    fn key(&self) -> (u64, FlowId) {
        (self.0.last_byte_ns(), self.0.id)
    }
}

impl PartialEq for QuietFlow {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for QuietFlow {}

impl PartialOrd for QuietFlow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QuietFlow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
