//! Ends flows by an operator's order, and waits a little for their end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::flows::{Matcher, TURN};
use super::{json, names};
use crate::admin::Admin;
use crate::admin::protocol::{KillReport, KillTarget, Refusal};
use crate::model::end_reason::EndReason;
use crate::model::ids::BackendId;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::table::backend::Registry;
use crate::table::flows::{FlowTable, FlowView};
use crate::table::journal::{Journal, What};

pub(super) async fn kill(admin: &Arc<Admin>, target: &KillTarget) -> Result<Value, Refusal> {
    let table = &admin.table;
    let process = admin.config.load().process.clone();
    let paced = Pace { within: process.reset_within, per_second: process.reset_rate };
    let (selectors, matcher) = match target {
        KillTarget::Flow(id) => {
            let flow = find(&table.flows, *id).await.ok_or(Refusal::UnknownFlow { flow: *id })?;
            admin.ports.orders.end_flow(flow.ticket(), EndReason::Killed, None);
            return Ok(json(&KillReport { flows: 1, gone: gone(&table.flows, &[flow], WAIT).await }));
        }
        KillTarget::Backend(name) => {
            let ids: Vec<_> = names::addresses(&table.registry, name)?.iter().map(|entry| entry.id).collect();
            let selectors = ids.iter().map(|id| Selector::Backend(*id)).collect();
            (selectors, Matcher { backends: Some(ids), ..Matcher::default() })
        }
        KillTarget::Client(network) => {
            (vec![Selector::Client(*network)], Matcher { client: Some(*network), ..Matcher::default() })
        }
        KillTarget::All => (vec![Selector::All], Matcher::default()),
    };
    let flows = matcher.collect(&table.flows).await;
    for selector in selectors {
        admin.ports.orders.end(EndOrder { selector, reason: EndReason::Killed, pace: paced, only_idle_for: None });
    }
    record(&table.registry, &table.journal, &flows);
    let gone = gone(&table.flows, &flows, process.reset_within + WAIT).await;
    Ok(json(&KillReport { flows: flows.len() as u64, gone }))
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
