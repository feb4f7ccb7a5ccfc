//! The instance's side of the admin servers' requests.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Core;
use super::diff;
use super::evacuate;
use super::reload::Reloader;
use super::upgrade::Upgrader;
use crate::admin::control::{
    ConfigState, Control, OrderRefused, Ordering, PlannedMove, RebalanceDone, RebalancePlan, Rebalancing,
    ReloadRefused, Reloading, ReturningBackend, StayingFlows,
};
use crate::admin::diff::Diffing;
use crate::admin::evacuate::{Evacuating, EvacuationCheck, EvacuationFailed, EvacuationRequest};
use crate::admin::upgrade::{Checking, UpgradeFailed, UpgradeRequest, Upgrading};
use crate::config::BudgetHost;
use crate::drain::LifePhase;
use crate::model::balance::{Balance, WHOLE_SHARE};
use crate::model::health::{Cause, Order};
use crate::model::ids::BackendId;
use crate::preflight;
use crate::rebalance::{self, RebalanceOrder};
use crate::sys::clock::now_ns;

pub(super) struct Wiring {
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    upgrader: Arc<Upgrader>,
}

impl Wiring {
    pub(super) fn new(core: Arc<Core>, reloader: Arc<Reloader>, upgrader: Arc<Upgrader>) -> Self {
        Self { core, reloader, upgrader }
    }

    /// Frontends whose source of backends has never had a list: a host with them serves nobody, and others may have one.
    fn undiscovered(&self) -> Option<String> {
        let config = self.core.config.load();
        let backends = self.core.table.registry.backends();
        let has_any = |name: &str| backends.iter().any(|it| !it.is_former() && *it.frontend.name == *name);
        let empty: Vec<_> = config
            .frontends
            .iter()
            .filter(|it| it.discover.is_some() && !has_any(&it.name))
            .map(|it| it.name.to_string())
            .collect();
        (!empty.is_empty()).then(|| format!("no list of backends has come yet for {}", empty.join(", ")))
    }
}

impl Control for Wiring {
    fn not_ready(&self) -> Vec<String> {
        let fleet = &self.core.ports.fleet;
        let evacuated = self.core.evacuation.not_ready().into_iter().chain(self.undiscovered());
        if fleet.is_ready() {
            return evacuated.collect();
        }
        let members = self.core.table.fleet.members();
        let missing: Vec<_> = members.iter().filter(|it| !it.synced).map(|it| it.name.to_string()).collect();
        evacuated.chain([format!("the flows of its peers are not known yet: {}", missing.join(", "))]).collect()
    }

    fn not_live(&self) -> Vec<String> {
        self.core.offload.unwatched().into_iter().collect()
    }

    fn order(&self, backend: BackendId, order: Order) -> Ordering {
        let core = self.core.clone();
        Box::pin(async move {
            if core.drain.watch().phase() > LifePhase::Serving {
                return Err(OrderRefused::Stopping);
            }
            if core.is_upgrading() {
                return Err(OrderRefused::Upgrading);
            }
            let entry = core.table.registry.find_backend(backend).ok_or(OrderRefused::Forgotten)?;
            if entry.is_former() || entry.health().cause == Cause::Removed {
                return Err(OrderRefused::Removed);
            }
            // The names were looked up a moment ago, so a backend that is unknown now has just been forgotten.
            core.checker.order(backend, order).await.map_err(|_| OrderRefused::Forgotten)?;
            Ok(())
        })
    }

    fn reload(&self) -> Reloading {
        let reloader = self.reloader.clone();
        Box::pin(async move { reloader.reload().await.map_err(ReloadRefused::from) })
    }

    fn diff(&self, path: PathBuf) -> Diffing {
        let core = self.core.clone();
        Box::pin(async move { diff::diff(core, path).await.map_err(ReloadRefused::from) })
    }

    fn config_state(&self) -> ConfigState {
        self.reloader.state()
    }

    fn rebalance_plan(&self) -> RebalancePlan {
        let config = self.core.config.load();
        let moves = rebalance::plan(&self.core.table.registry, &config);
        let hashed = config.frontends.iter().filter(|frontend| frontend.balance == Balance::SourceHash);
        let now_ns = now_ns();
        let entries = self.core.table.registry.backends();
        let returning = entries.iter().filter(|entry| !entry.is_former()).filter_map(|entry| {
            let whole_in_ms = entry.whole_in_ns(now_ns)? / 1_000_000;
            let (frontend, backend) = entry.full_name();
            let share_percent = entry.share(now_ns) * 100 / WHOLE_SHARE;
            Some(ReturningBackend { frontend, backend, share_percent, whole_in_ms })
        });
        RebalancePlan {
            moves: moves.into_iter().map(planned).collect(),
            returning: returning.collect(),
            hashed: hashed.map(|frontend| frontend.name.to_string()).collect(),
        }
    }

    fn rebalance(&self) -> Rebalancing {
        let orders = self.core.rebalance_orders.clone();
        Box::pin(async move {
            let (answer, done) = oneshot::channel();
            orders.send(RebalanceOrder { answer }).await.map_err(|_| OrderRefused::Stopping)?;
            let done = done.await.map_err(|_| OrderRefused::Stopping)?;
            Ok(done.into_iter().map(rebalanced).collect())
        })
    }

    fn upgrade(&self, asked: UpgradeRequest) -> Result<Upgrading, UpgradeFailed> {
        self.upgrader.upgrade(asked)
    }

    fn check_upgrade(&self, asked: UpgradeRequest) -> Checking {
        self.upgrader.check(asked)
    }

    fn evacuate(&self, asked: EvacuationRequest) -> Result<Evacuating, EvacuationFailed> {
        evacuate::begin(&self.core, &asked)
    }

    fn take_back(&self) -> Result<Evacuating, EvacuationFailed> {
        evacuate::take_back(&self.core)
    }

    fn check_evacuation(&self, asked: &EvacuationRequest) -> EvacuationCheck {
        evacuate::check(&self.core, asked)
    }

    fn budget_host(&self) -> BudgetHost {
        preflight::budget_host(None)
    }
}

fn rebalanced(done: rebalance::Rebalanced) -> RebalanceDone {
    RebalanceDone {
        frontend: done.frontend,
        moved: done.moved,
        left: done.left.into_iter().map(staying).collect(),
        took_ms: done.took.as_millis() as u64,
    }
}

fn staying(staying: rebalance::ImmobileFlows) -> StayingFlows {
    let rebalance::ImmobileFlows { planned: of, moved_before, never_quiet } = staying;
    StayingFlows { planned: planned(of), moved_before, never_quiet }
}

fn planned(planned: rebalance::Move) -> PlannedMove {
    PlannedMove {
        frontend: planned.frontend,
        backend: planned.backend,
        flows: planned.flows,
        fair_share: planned.flows.saturating_sub(planned.excess),
        moves: planned.excess,
    }
}
