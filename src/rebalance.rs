//! Moves flows slowly from backends with too many to those with too few: after an apiserver returns, its watches would
//! otherwise stay on the others for days. To move a flow, Baton closes it while it is idle; its client connects again,
//! and balancing chooses the backend.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::config::{Config, Frontend};
use crate::drain::{DrainWatch, LifePhase};
use crate::model::balance::Balance;
use crate::model::end_reason::EndReason;
use crate::model::health::{Cause, HealthState};
use crate::model::ids::{BackendId, FlowId};
use crate::model::rebalance::{self, Allowance, BackendLoad};
use crate::ports::orders::Orders;
use crate::sys::clock::now_ns;
use crate::table::Part;
use crate::table::backend::{BackendEntry, Registry};
use crate::table::flows::{FlowTable, FlowView};
use crate::table::journal::{Journal, What};

const STEP: Duration = Duration::from_secs(1);
/// Limit for the list of flows that were asked to end and were not idle after all: asking them first again would delay
/// the others. Beyond it the list is cleared.
const REFUSALS_KEPT: usize = 10_000;
const WHOLE_SHARE: u32 = 1024;

/// The flows of one backend above its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Move {
    pub frontend: String,
    pub backend: String,
    pub id: BackendId,
    /// Number of its flows, and how many of them should go.
    pub flows: u32,
    pub excess: u32,
}

/// The parts of the table that rebalancing may touch.
#[derive(Clone, Debug)]
pub(crate) struct RebalanceParts {
    pub registry: Part<Registry>,
    pub flows: Part<FlowTable>,
    pub orders: Part<Orders>,
    pub journal: Part<Journal>,
}

/// The moves that rebalancing would make now, for every frontend, also for those without `balance_existing`.
pub(crate) fn plan(registry: &Registry, config: &Config) -> Vec<Move> {
    config.frontends.iter().flat_map(|frontend| plan_frontend(registry, frontend, now_ns())).collect()
}

/// Carries plans out until the instance leaves: always for each frontend with `balance_existing`, and once after
/// `ordered` for all others, until they are even. Always at the frontend's pace.
pub(crate) async fn run(
    table: RebalanceParts,
    mut config: watch::Receiver<Arc<Config>>,
    mut drain: DrainWatch,
    ordered: Arc<Notify>,
) {
    let mut movers: HashMap<Arc<str>, Rebalancer> = HashMap::new();
    let mut once: HashSet<Arc<str>> = HashSet::new();
    loop {
        tokio::select! {
            left = drain.reached_within(LifePhase::Leaving, STEP) => if left { return },
            () = ordered.notified() => once.extend(config.borrow().frontends.iter().map(|f| f.name.clone())),
        }
        let config = config.borrow_and_update().clone();
        let wanted = |frontend: &Frontend| frontend.rebalance.balance_existing || once.contains(&frontend.name);
        movers.retain(|name, _| config.frontends.iter().any(|f| f.name == *name && wanted(f)));
        let mut even = Vec::new();
        for frontend in config.frontends.iter().filter(|frontend| wanted(frontend)) {
            let mover = movers.entry(frontend.name.clone()).or_insert_with(|| Rebalancer::new(now_ns()));
            mover.step(&table, frontend, now_ns()).await;
            if !mover.moving {
                even.push(frontend.name.clone());
            }
        }
        once.retain(|name| !even.contains(name) && config.frontends.iter().any(|f| f.name == *name));
    }
}

/// The state of one frontend between steps.
#[derive(Debug)]
struct Rebalancer {
    allowance: Allowance,
    asked: HashSet<FlowId>,
    moving: bool,
}

impl Rebalancer {
    fn new(now_ns: u64) -> Self {
        Self { allowance: Allowance::new(now_ns), asked: HashSet::new(), moving: false }
    }

    async fn step(&mut self, table: &RebalanceParts, frontend: &Frontend, now_ns: u64) {
        let settings = frontend.rebalance;
        let allowed = self.allowance.take(settings.per_minute, now_ns);
        let moves = plan_frontend(&table.registry, frontend, now_ns);
        let begins = !moves.is_empty() && !self.moving;
        self.moving = !moves.is_empty();
        if begins {
            let excess = moves.iter().map(|planned| planned.excess as usize).sum();
            table.journal.record(What::RebalancePlanned { frontend: frontend.name.to_string(), moves: excess });
        }
        if !self.moving || self.asked.len() > REFUSALS_KEPT {
            self.asked.clear();
        }
        if allowed == 0 || !self.moving {
            return;
        }
        let idle_since_ns = now_ns.saturating_sub(settings.min_idle.as_nanos() as u64);
        let (flows, asked) = (table.flows.clone(), std::mem::take(&mut self.asked));
        // A walk over a million flows takes milliseconds, for which this runtime must not wait.
        let pick = move || (pick(&flows, &moves, allowed, idle_since_ns, &asked), asked);
        let (picked, asked) = match tokio::task::spawn_blocking(pick).await {
            Ok(picked) => picked,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => return,
            },
        };
        self.asked = asked;
        for flow in picked {
            self.asked.insert(flow.id);
            // The worker checks again: a byte may have come since.
            table.orders.end_flow(flow.ticket(), EndReason::Rebalanced, Some(settings.min_idle));
        }
    }
}

fn plan_frontend(registry: &Registry, frontend: &Frontend, now_ns: u64) -> Vec<Move> {
    // A hashed client would return to the same backend, and be moved again, for ever.
    if frontend.balance == Balance::SourceHash {
        return Vec::new();
    }
    let configured = |entry: &BackendEntry| {
        *entry.frontend.name == *frontend.name
            && !entry.is_former()
            && frontend.backends.iter().any(|backend| backend.name == entry.name)
    };
    let entries: Vec<_> = registry.backends().into_iter().filter(|entry| configured(entry)).collect();
    let loads: Vec<_> = entries.iter().map(|entry| load(entry)).collect();
    // While a share still grows, it limits new flows; moving flows there would undo the slow start.
    let starting = |(entry, load): (&Arc<BackendEntry>, &BackendLoad)| load.ready && entry.share(now_ns) < WHOLE_SHARE;
    if entries.iter().zip(&loads).any(starting) {
        return Vec::new();
    }
    let planned = rebalance::plan(&loads, frontend.rebalance.tolerance_percent).into_iter().map(|excess| {
        let entry = &entries[excess.backend];
        let (frontend, backend) = entry.full_name();
        Move { frontend, backend, id: entry.id, flows: loads[excess.backend].flows, excess: excess.flows }
    });
    planned.collect()
}

fn load(entry: &BackendEntry) -> BackendLoad {
    let health = entry.health();
    BackendLoad {
        ready: health.health_state == HealthState::Ready && health.cause == Cause::Passed,
        weight: entry.weight(),
        flows: entry.active.load(Relaxed),
        max_connections: entry.max_connections(),
    }
}

/// Up to `most` flows of the overfull backends without a byte since `idle_since_ns`, longest idle first.
fn pick(flows: &FlowTable, moves: &[Move], most: u32, idle_since_ns: u64, asked: &HashSet<FlowId>) -> Vec<FlowView> {
    let cap = |excess: u32| excess.min(most) as usize;
    let mut idle: HashMap<BackendId, (usize, BinaryHeap<Idle>)> =
        moves.iter().map(|planned| (planned.id, (cap(planned.excess), BinaryHeap::new()))).collect();
    for flow in flows.iter() {
        let Some((cap, heap)) = flow.backend.and_then(|id| idle.get_mut(&id)) else { continue };
        if flow.state.is_served() && !flow.ending && flow.last_byte_ns() <= idle_since_ns && !asked.contains(&flow.id) {
            heap.push(Idle(flow));
            if heap.len() > *cap {
                heap.pop();
            }
        }
    }
    let mut picked: Vec<_> = idle.into_values().flat_map(|(_, heap)| heap.into_iter()).collect();
    picked.sort_unstable();
    picked.into_iter().take(most as usize).map(|idle| idle.0).collect()
}

/// Ordered by the last byte: the greatest was idle for the shortest time.
#[derive(Debug)]
struct Idle(FlowView);

impl Idle {
    fn key(&self) -> (u64, FlowId) {
        (self.0.last_byte_ns(), self.0.id)
    }
}

impl PartialEq for Idle {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Idle {}

impl PartialOrd for Idle {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Idle {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests;
