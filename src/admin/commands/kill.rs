//! Ends flows by an operator's order, and waits a little for their end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::flows::{Matcher, TURN};
use super::{json, names};
use crate::admin::Admin;
use crate::admin::protocol::{BackendName, KillCheck, KillReport, KillTarget, Refusal};
use crate::model::end_reason::EndReason;
use crate::model::ids::BackendId;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::table::backend::Registry;
use crate::table::flows::{FlowTable, FlowView};
use crate::table::journal::{Journal, What};

pub(super) async fn kill(admin: &Arc<Admin>, target: &KillTarget) -> Result<Value, Refusal> {
    let table = &admin.table;
    let many = match target {
        KillTarget::Flow(id) => {
            let flow = find(&table.flows, *id).await.ok_or(Refusal::UnknownFlow { flow: *id })?;
            admin.ports.orders.end_flow(flow.ticket(), EndReason::Killed, None);
            return Ok(json(&KillReport { flows: 1, gone: gone(&table.flows, &[flow], WAIT).await }));
        }
        KillTarget::Backend(name) => Many::of_backend(&table.registry, name)?,
        KillTarget::Client(network) => Many::of_client(*network),
        KillTarget::All => Many::all(),
    };
    let flows = many.matcher.collect(&table.flows).await;
    let pace = pace(admin);
    for selector in many.selectors {
        admin.ports.orders.end(EndOrder { selector, reason: EndReason::Killed, pace, only_idle_for: None });
    }
    record(&table.registry, &table.journal, &flows);
    let gone = gone(&table.flows, &flows, pace.within + WAIT).await;
    Ok(json(&KillReport { flows: flows.len() as u64, gone }))
}

/// The effects of [`kill`]; changes nothing.
pub(super) async fn check(admin: &Arc<Admin>, target: &KillTarget) -> Result<Value, Refusal> {
    let table = &admin.table;
    let nodes = |flows: &[FlowView]| {
        let names: Option<HashSet<_>> = flows.iter().map(|flow| table.names.of(flow.origin.client.ip())).collect();
        names.filter(|names| !names.is_empty()).map(|names| names.len() as u64)
    };
    let many = match target {
        KillTarget::Flow(id) => {
            let flow = find(&table.flows, *id).await.ok_or(Refusal::UnknownFlow { flow: *id })?;
            return Ok(json(&KillCheck { flows: 1, clients: 1, nodes: nodes(&[flow]), over_ms: 0 }));
        }
        KillTarget::Backend(name) => Many::of_backend(&table.registry, name)?,
        KillTarget::Client(network) => Many::of_client(*network),
        KillTarget::All => Many::all(),
    };
    let flows = many.matcher.collect(&table.flows).await;
    let clients: HashSet<_> = flows.iter().map(|flow| flow.origin.client.ip()).collect();
    let mut by_worker = vec![0; table.workers.len()];
    flows.iter().for_each(|flow| by_worker[flow.worker] += 1);
    let over_ms = pace(admin).lasts(&by_worker).as_millis() as u64;
    let (number, nodes) = (flows.len() as u64, nodes(&flows));
    Ok(json(&KillCheck { flows: number, clients: clients.len() as u64, nodes, over_ms }))
}

/// The flows of a target that may have more than one: for the workers, and for the table.
struct Many {
    selectors: Vec<Selector>,
    matcher: Matcher,
}

impl Many {
    fn of_backend(registry: &Registry, name: &BackendName) -> Result<Self, Refusal> {
        let ids: Vec<_> = names::addresses(registry, name)?.iter().map(|entry| entry.id).collect();
        let selectors = ids.iter().map(|id| Selector::Backend(*id)).collect();
        Ok(Self { selectors, matcher: Matcher { backends: Some(ids), ..Matcher::default() } })
    }

    fn of_client(network: IpNet) -> Self {
        let matcher = Matcher { client: Some(network), ..Matcher::default() };
        Self { selectors: vec![Selector::Client(network)], matcher }
    }

    fn all() -> Self {
        Self { selectors: vec![Selector::All], matcher: Matcher::default() }
    }
}

/// Of resets by an order.
pub(super) fn pace(admin: &Admin) -> Pace {
    let config = admin.config.load();
    Pace { within: config.process.reset_within, per_second: config.process.reset_rate }
}

async fn find(flows: &FlowTable, id: crate::model::ids::FlowId) -> Option<FlowView> {
    for (seen, flow) in flows.iter().enumerate() {
        if flow.id == id {
            return Some(flow);
        }
        if seen % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
    }
    None
}

/// One event for each backend that loses flows.
fn record(registry: &Registry, journal: &Journal, flows: &[FlowView]) {
    let mut per_backend = HashMap::<BackendId, usize>::new();
    for backend in flows.iter().filter_map(|flow| flow.backend) {
        *per_backend.entry(backend).or_default() += 1;
    }
    for entry in registry.backends() {
        if let Some(&flows) = per_backend.get(&entry.id) {
            let (frontend, backend) = entry.full_name();
            journal.record(What::FlowsOrdered { frontend, backend, flows, reason: EndReason::Killed });
        }
    }
}

/// How many of `flows` have ended, once all have or after `limit`.
async fn gone(table: &FlowTable, flows: &[FlowView], limit: Duration) -> u64 {
    let deadline = tokio::time::Instant::now() + limit;
    let mut gone = 0;
    for flow in flows {
        while table.lives(flow) && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        gone += u64::from(!table.lives(flow));
    }
    gone
}

/// How long an order may take beyond its pace.
const WAIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);
