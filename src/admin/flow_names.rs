//! Flows as people see them: with names in place of ids, and with the name of the client's node.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::protocol::FlowRow;
use crate::model::ids::{BackendId, FrontendId};
use crate::model::names::NameMap;
use crate::table::backend::Registry;
use crate::table::flows::{FlowState, FlowView};
use crate::table::names::ClientNames;

/// The names for the ids and clients in flows.
pub(super) struct FlowNames {
    frontends: HashMap<FrontendId, Arc<str>>,
    backends: HashMap<BackendId, String>,
    clients: Arc<NameMap>,
    /// Of the flows that began here.
    own_tag: u16,
}

impl FlowNames {
    pub(super) fn of(registry: &Registry, clients: &ClientNames, own_tag: u16) -> Self {
        Self {
            own_tag,
            frontends: registry.frontends().iter().map(|entry| (entry.id, entry.name.clone())).collect(),
            backends: registry.backends().iter().map(|entry| (entry.id, entry.label().into_owned())).collect(),
            clients: clients.all(),
        }
    }

    pub(super) fn row(&self, flow: &FlowView, now_ns: u64) -> FlowRow {
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
            source: flow.leg.address(),
            state: flow.state,
            ending: flow.ending,
            age_ms: since_ms(flow.origin.accepted_at_ns),
            idle_ms: since_ms(flow.last_byte_ns()),
            bytes_to_backend: flow.bytes_to_backend,
            bytes_to_client: flow.bytes_to_client,
            came: ![0, self.own_tag].contains(&flow.id.tag()),
            connect_us: flow.connect_us,
            stays: flow.stays.filter(|_| flow.state == FlowState::Proxied).map(|why| why.label().to_owned()),
            worker: flow.worker,
        }
    }

    /// What a search finds `flow` by.
    pub(super) fn write(&self, flow: &FlowView, text: &mut String) {
        let client = flow.origin.client;
        let node = self.clients.get(&client.ip().to_canonical()).map_or("", |name| name);
        let frontend = self.frontends.get(&flow.origin.frontend).map_or("", |name| name);
        let backend = flow.backend.and_then(|id| self.backends.get(&id)).map_or("-", String::as_str);
        let (vip, state) = (flow.origin.vip.socket_addr(), flow.state.label());
        let ending = if flow.ending { "ending" } else { "" };
        let client = client.socket_addr();
        write!(text, "{} {client} {node} {vip} {frontend}/{backend} {state} {ending}", flow.id)
            .expect("a string takes everything");
    }
}
