//! Moves flows from backends with too many to those with too few: after an apiserver returns, its watches would otherwise
//! stay on the others for days. To move a flow, Baton closes it while it is quiet; its client connects again, and
//! balancing chooses the backend.

mod round;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Config, Frontend};
use crate::drain::{DrainWatch, LifePhase};
use crate::model::balance::{Balance, WHOLE_SHARE};
use crate::model::health::{Cause, HealthState};
use crate::model::ids::BackendId;
use crate::model::rebalance::outage::SavedOutage;
use crate::model::rebalance::{self, BackendLoad};
use crate::ports::orders::Orders;
use crate::sys::clock::now_ns;
use crate::table::Part;
use crate::table::backend::{BackendEntry, Registry};
use crate::table::flows::FlowTable;
use crate::table::journal::Journal;
use round::Rebalancer;

/// Time between two looks while nothing has to move, and while something has.
const STEP: Duration = Duration::from_secs(1);
const STEP_WHILE_MOVING: Duration = Duration::from_millis(250);

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

/// What an ordered rebalance has come to at one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rebalanced {
    pub frontend: String,
    /// Flows that were closed, so that their clients connected again.
    pub moved: u32,
    /// What is above its share still.
    pub left: Vec<ImmobileFlows>,
    pub took: Duration,
}

/// The flows of a backend above its share that an order has not moved, and why none of the backend's flows can take their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImmobileFlows {
    pub planned: Move,
    /// Number of the backend's flows whose clients this order has moved already.
    pub moved_before: u32,
    /// Number of its other flows: at no look were they quiet, with each byte acknowledged.
    pub never_quiet: u32,
}

/// An operator's order to rebalance all frontends once.
#[derive(Debug)]
pub(crate) struct RebalanceOrder {
    /// Gets the result of each frontend when the last one is done.
    pub answer: oneshot::Sender<Vec<Rebalanced>>,
}

/// The parts of the table that rebalancing may touch.
#[derive(Clone, Debug)]
pub(crate) struct RebalanceParts {
    pub registry: Part<Registry>,
    pub flows: Part<FlowTable>,
    pub orders: Part<Orders>,
    pub journal: Part<Journal>,
}

/// The moves that rebalancing would make now, for every frontend, whatever its `[frontend.rebalance]` says.
pub(crate) fn plan(registry: &Registry, config: &Config) -> Vec<Move> {
    let moves = |frontend: &Arc<Frontend>| {
        plan_frontend(&entries(registry, frontend), frontend, frontend.rebalance.tolerance_percent, 0, now_ns())
    };
    config.frontends.iter().flat_map(moves).collect()
}

/// The outages, for the process after this one.
pub(crate) fn save_outages(registry: &Registry) -> Vec<SavedOutage> {
    registry.frontends().iter().filter_map(|entry| entry.outage.get()).collect()
}

/// Takes the outages that the process before has seen, of frontends that are still there.
pub(crate) fn restore_outages(registry: &Registry, saved: Vec<SavedOutage>) {
    let frontends = registry.frontends();
    for outage in saved {
        if let Some(entry) = frontends.iter().find(|entry| *entry.name == *outage.frontend) {
            entry.outage.set(Some(outage));
        }
    }
}

/// Carries plans out until the instance leaves: what each frontend's `[frontend.rebalance]` asks for, and each of
/// `orders` once.
pub(crate) async fn run(
    table: RebalanceParts,
    mut config: watch::Receiver<Arc<Config>>,
    mut drain: DrainWatch,
    mut orders: mpsc::Receiver<RebalanceOrder>,
) {
    let mut movers: HashMap<Arc<str>, Rebalancer> = HashMap::new();
    let mut waiting: Vec<RebalanceOrder> = Vec::new();
    let mut done: Vec<Rebalanced> = Vec::new();
    let mut step = STEP;
    loop {
        let mut begins = false;
        tokio::select! {
            left = drain.reached_within(LifePhase::Leaving, step) => if left { return },
            Some(order) = orders.recv() => {
                begins = waiting.is_empty();
                waiting.push(order);
            }
        }
        let config = config.borrow_and_update().clone();
        movers.retain(|name, _| config.frontends.iter().any(|frontend| frontend.name == *name));
        let mut moving = false;
        for frontend in &config.frontends {
            let mover = movers
                .entry(frontend.name.clone())
                .or_insert_with(|| Rebalancer::resume(table.registry.frontend(&frontend.name).outage.get(), now_ns()));
            if begins {
                mover.order(now_ns());
            }
            done.extend(mover.step(&table, frontend, now_ns()).await);
            moving |= mover.is_moving();
        }
        if !movers.values().any(Rebalancer::is_ordered) {
            for order in waiting.drain(..) {
                // Whoever asked may be gone.
                let _ = order.answer.send(done.clone());
            }
            done.clear();
        }
        step = if moving { STEP_WHILE_MOVING } else { STEP };
    }
}

/// The frontend's backends that are in its configuration.
fn entries(registry: &Registry, frontend: &Frontend) -> Vec<Arc<BackendEntry>> {
    let configured = |entry: &BackendEntry| {
        *entry.frontend.name == *frontend.name
            && !entry.is_former()
            && frontend.backends.iter().any(|backend| backend.name == entry.name)
    };
    registry.backends().into_iter().filter(|entry| configured(entry)).collect()
}

fn plan_frontend(
    entries: &[Arc<BackendEntry>],
    frontend: &Frontend,
    tolerance_percent: u32,
    returning: u32,
    now_ns: u64,
) -> Vec<Move> {
    // A hashed client would return to the same backend, and be moved again, for ever.
    if frontend.balance == Balance::SourceHash {
        return Vec::new();
    }
    let loads: Vec<_> = entries.iter().map(|entry| load(entry, now_ns)).collect();
    let planned = rebalance::plan(&loads, returning, tolerance_percent).into_iter().map(|excess| {
        let entry = &entries[excess.backend];
        let (frontend, backend) = entry.full_name();
        Move { frontend, backend, id: entry.id, flows: loads[excess.backend].flows, excess: excess.flows }
    });
    planned.collect()
}

fn load(entry: &BackendEntry, now_ns: u64) -> BackendLoad {
    BackendLoad {
        ready: is_ready(entry),
        // While its share still grows, moving more flows there would undo the slow start.
        weight: entry.weight() * entry.share(now_ns),
        whole_weight: entry.weight() * WHOLE_SHARE,
        flows: entry.active.load(Relaxed),
        max_connections: entry.max_connections(),
    }
}

fn is_ready(entry: &BackendEntry) -> bool {
    let health = entry.health();
    health.health_state == HealthState::Ready && health.cause == Cause::Passed
}

fn has_whole_share(entry: &BackendEntry, now_ns: u64) -> bool {
    entry.share(now_ns) == WHOLE_SHARE
}

#[cfg(test)]
mod tests;
