//! Lists any number of flows, in pieces.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use super::{json, names};
use crate::admin::Admin;
use crate::admin::protocol::{FlowFilter, FlowRow, Listed, Refusal};
use crate::admin::session::Replies;
use crate::model::ids::{BackendId, FrontendId};
use crate::model::leg::LegKey;
use crate::model::names::NameMap;
use crate::sys::clock::now_ns;
use crate::table::backend::Registry;
use crate::table::flows::{FlowState, FlowTable, FlowView};
use crate::table::names::ClientNames;

/// Flows looked at before other tasks of the control runtime have their turn: well under a millisecond.
pub(super) const TURN: usize = 2048;

pub(super) async fn list(
    admin: &Arc<Admin>,
    filter: &FlowFilter,
    replies: &mut Replies,
) -> io::Result<Result<Value, Refusal>> {
    let matcher = match Matcher::new(&admin.table.registry, filter) {
        Ok(matcher) => matcher,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let names = Names::of(&admin.table.registry, &admin.table.names);
    let limit = filter.limit.unwrap_or(u64::MAX);
    let mut end = Listed { listed: 0, more: 0 };
    for (seen, flow) in admin.table.flows.iter().enumerate() {
        if matcher.matches(&flow) {
            if end.listed < limit {
                replies.item(&names.row(&flow, now_ns()));
                end.listed += 1;
            } else {
                end.more += 1;
            }
        }
        if replies.is_full() {
            replies.flush().await?;
        }
        if seen % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
    }
    Ok(Ok(json(&end)))
}

/// A filter with its names looked up.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    pub frontend: Option<FrontendId>,
    /// Matches a flow of any of these.
    pub backends: Option<Vec<BackendId>>,
    pub client: Option<IpNet>,
    pub state: Option<FlowState>,
    pub ending: bool,
    pub leg: Option<LegKey>,
}

impl Matcher {
    fn new(registry: &Registry, filter: &FlowFilter) -> Result<Self, Refusal> {
        let frontend = filter.frontend.as_deref().map(|name| names::frontend(registry, name)).transpose()?;
        let backends = filter.backend.as_ref().map(|name| names::addresses(registry, name)).transpose()?;
        Ok(Self {
            frontend: frontend.map(|entry| entry.id),
            backends: backends.map(|all| all.iter().map(|entry| entry.id).collect()),
            client: filter.client,
            state: filter.state,
            ending: filter.ending,
            leg: filter.source.map(LegKey::of),
        })
    }

    pub(super) fn matches(&self, flow: &FlowView) -> bool {
        self.frontend.is_none_or(|frontend| flow.origin.frontend == frontend)
            && self.backends.as_ref().is_none_or(|all| flow.backend.is_some_and(|it| all.contains(&it)))
            && self.client.is_none_or(|network| network.contains(&flow.origin.client.ip()))
            && self.state.is_none_or(|state| flow.state == state)
            && (flow.ending || !self.ending)
            && self.leg.is_none_or(|leg| flow.leg == leg)
    }

    /// All flows that match now.
    pub(super) async fn collect(&self, flows: &FlowTable) -> Vec<FlowView> {
        let mut found = Vec::new();
        for (seen, flow) in flows.iter().enumerate() {
            if self.matches(&flow) {
                found.push(flow);
            }
            if seen % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        found
    }
}

/// The names for the ids and clients in flows.
struct Names {
    frontends: HashMap<FrontendId, Arc<str>>,
    backends: HashMap<BackendId, String>,
    clients: Arc<NameMap>,
}

impl Names {
    fn of(registry: &Registry, clients: &ClientNames) -> Self {
        Self {
            frontends: registry.frontends().iter().map(|entry| (entry.id, entry.name.clone())).collect(),
            backends: registry.backends().iter().map(|entry| (entry.id, entry.label().into_owned())).collect(),
            clients: clients.all(),
        }
    }

    fn row(&self, flow: &FlowView, now_ns: u64) -> FlowRow {
        let since_ms = |then: u64| now_ns.saturating_sub(then) / 1_000_000;
        let frontend = self.frontends.get(&flow.origin.frontend);
        FlowRow {
            id: flow.id,
            frontend: frontend.map_or_else(|| format!("#{}", flow.origin.frontend), |name| name.to_string()),
            backend: flow.backend.map(|id| match self.backends.get(&id) {
                Some(name) => name.to_string(),
                None => format!("#{id}"),
            }),
            client: flow.origin.client.socket_addr(),
            node: self.clients.get(&flow.origin.client.ip().to_canonical()).map(|name| name.to_string()),
            vip: flow.origin.vip.socket_addr(),
            state: flow.state,
            ending: flow.ending,
            age_ms: since_ms(flow.origin.accepted_at_ns),
            idle_ms: since_ms(flow.last_byte_ns()),
            bytes_to_backend: flow.bytes_to_backend,
            bytes_to_client: flow.bytes_to_client,
            connect_us: flow.connect_us,
            stays: flow.stays.filter(|_| flow.state == FlowState::Proxied).map(|why| why.label().to_owned()),
            worker: flow.worker,
        }
    }
}
