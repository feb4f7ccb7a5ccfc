//! Lists any number of flows, in pieces.

use std::io;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use super::{json, names};
use crate::admin::Admin;
use crate::admin::flow_names::FlowNames;
use crate::admin::protocol::{FlowFilter, Listed, Refusal};
use crate::admin::session::Replies;
use crate::model::ids::{BackendId, FrontendId};
use crate::model::leg::LegKey;
use crate::sys::clock::now_ns;
use crate::table::backend::Registry;
use crate::table::flows::{FlowState, FlowTable, FlowView};

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
    let names = FlowNames::of(&admin.table.registry, &admin.table.names, admin.table.flows.tag());
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
