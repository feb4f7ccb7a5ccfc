//! Flows of this instance with an end that is beyond reach: the packets to that end come from a VIP that its host has, and a kernel
//! drops packets from one of its own addresses.
//!
//! | where the VIP is | the end | who resets the client |
//! |---|---|---|
//! | on the backend's host, which is not this one; this host keeps it on `lo` | the backend of a client of this host | this instance |
//! | on another host; this host keeps it on `lo` | a client of this host, of an offloaded flow | this instance |
//! | here, and kept on `lo` by the backend's host | the backend of an offloaded flow | this instance, after a moment |
//! | on the host of a peer; not on `lo` here | the backend of an offloaded flow, on this host | this instance |
//!
//! New flows avoid such backends as long as there are others.
//!
//! The VIP's new owner resets the other clients of the first kind, because a reset from there would not reach a client of a host that
//! keeps the VIP. In the third case the backend is within reach again once its host needs the VIP no more. Until then a client that
//! sends waits, and so does one that only reads, which nothing here shows: what the backend sends to the VIP stays on its host.
//!
//! The fourth kind comes about when the VIP leaves while no process runs here, and the next one recovers the flow. The backend answers to the VIP's new
//! owner, which knows the flow as this instance's and sends nothing back to where it came from. On `lo` the VIP would cost the new owner its own flows
//! to backends here. As long as no host has the VIP, it may come back, and the flow goes on.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

use super::FailoverParts;
use super::addresses::is_local;
use crate::addr::VipAddr;
use crate::config::{Config, Source};
use crate::model::end_reason::EndReason;
use crate::model::fleet::evacuate::Places;
use crate::model::fleet::failover::Members;
use crate::model::ids::{BackendId, FlowId};
use crate::model::leg::LegKey;
use crate::table::flows::{FlowState, FlowView};
use crate::table::journal::What;

/// A client that has waited for so long for a backend beyond reach has sent its segment again (TCP_RTO_MIN is 200 ms,
/// include/net/tcp.h): other packets are not only late.
const WAIT_NS: u64 = 300_000_000;

/// For so long a backend may be beyond reach although its client seems not to wait.
const SILENT_NS: u64 = 2_000_000_000;

/// Ends flows with an end beyond reach.
#[derive(Debug, Default)]
pub(super) struct BeyondReach {
    /// Flows whose backend's host keeps the VIP.
    unreached: HashMap<FlowId, Unreached>,
}

/// Since when, ns.
#[derive(Clone, Copy, Debug)]
struct Unreached {
    seen_ns: u64,
    /// The client has sent last.
    waits_ns: Option<u64>,
}

impl Unreached {
    fn is_over(self, now_ns: u64) -> bool {
        let is_past = |since_ns: u64, ns: u64| now_ns.saturating_sub(since_ns) >= ns;
        is_past(self.seen_ns, SILENT_NS) || self.waits_ns.is_some_and(|since_ns| is_past(since_ns, WAIT_NS))
    }
}

/// New flows avoid a backend whose host keeps a VIP of this host on `lo`.
fn mark_backends(table: &FailoverParts, members: &Members, config: &Config, places: &Places) {
    for entry in table.registry.backends() {
        let is_beyond = |backend: IpAddr| {
            let frontend = config.frontends.iter().find(|it| *it.name == *entry.frontend.name);
            let frontend = frontend.filter(|frontend| frontend.source == Source::Auto);
            let vips = frontend.iter().flat_map(|frontend| &frontend.listen).map(|vip| vip.ip());
            let mut here = vips.filter(|vip| vip.is_ipv4() == backend.is_ipv4() && places.here.contains(vip));
            here.any(|vip| members.is_kept_beside(vip, backend))
        };
        let is_beyond = entry.address().is_some_and(|backend| is_beyond(backend.ip()));
        if entry.beyond_reach.load(Relaxed) != is_beyond {
            entry.beyond_reach.store(is_beyond, Relaxed);
        }
    }
}

impl BeyondReach {
    /// Ends them; returns how many there are. `places`: of the VIPs on this host.
    pub(super) fn end(
        &mut self,
        table: &FailoverParts,
        members: &Members,
        config: &Config,
        places: &Places,
        now_ns: u64,
    ) -> usize {
        let kept: Vec<_> = places.kept_alone().collect();
        mark_backends(table, members, config, places);
        let is_kept_by_peer = places.here.iter().any(|vip| members.is_kept_by_peer(*vip));
        if kept.is_empty() && !is_kept_by_peer {
            self.unreached.clear();
            return 0;
        }
        let comes_from_vip = |vip: VipAddr| {
            let mut serving = config.frontends.iter().filter(|frontend| frontend.listen.contains(&vip));
            serving.any(|frontend| frontend.source == Source::Auto)
        };
        let backends = table.registry.backends();
        let backend_of = |flow: &FlowView| {
            let backend = backends.iter().find(|it| Some(it.id) == flow.backend).and_then(|it| it.address());
            let backend = backend.filter(|_| comes_from_vip(flow.origin.vip)).map(|backend| backend.ip());
            // A leg of the other family has another source.
            backend.filter(|backend| backend.is_ipv4() == flow.origin.vip.ip().is_ipv4())
        };
        let mut ended = 0;
        let before = std::mem::take(&mut self.unreached);
        for flow in table.flows.iter().filter(|flow| !flow.ending) {
            let vip = flow.origin.vip.ip();
            let (is_offloaded, is_proxied) = (flow.state == FlowState::Offloaded, flow.state == FlowState::Proxied);
            let reason = if kept.contains(&vip) {
                let has_leg = is_proxied || is_offloaded && flow.stays_here;
                if has_leg && backend_of(&flow).is_some_and(|backend| members.are_together(vip, backend)) {
                    Some(EndReason::BackendHasVip)
                } else if is_offloaded && members.has_own(flow.origin.client.ip()) {
                    Some(EndReason::ClientHasVip)
                } else {
                    None
                }
            } else if is_kept_by_peer
                && is_offloaded
                && places.here.contains(&vip)
                && backend_of(&flow).is_some_and(|backend| members.is_kept_beside(vip, backend))
            {
                let waits = flow.last_to_backend_ns > flow.last_to_client_ns;
                let mut it = before.get(&flow.id).copied().unwrap_or(Unreached { seen_ns: now_ns, waits_ns: None });
                it.waits_ns = waits.then(|| it.waits_ns.unwrap_or(now_ns));
                self.unreached.insert(flow.id, it);
                it.is_over(now_ns).then_some(EndReason::BackendHasVip)
            } else {
                None
            };
            if let Some(reason) = reason {
                table.orders.end_flow(flow.ticket(), reason, None);
                ended += 1;
            }
        }
        ended
    }
}

/// Ends offloaded flows whose backend is on this host, and answers to a VIP that a peer has.
pub(super) fn end_answers_to_peers(table: &FailoverParts, members: &Members) {
    if !members.lacks_vip() {
        return;
    }
    let mut at_peers: HashMap<IpAddr, bool> = HashMap::new();
    let mut ended: HashMap<BackendId, usize> = HashMap::new();
    for flow in table.flows.iter().filter(|flow| flow.stays_here && !flow.ending) {
        let vip = flow.origin.vip.ip();
        // Where the leg has another source, the backend answers to that.
        let answers_to_vip = flow.leg == LegKey::of(SocketAddr::new(vip, flow.leg.port()));
        // On `lo`, or by a local route, it is this host's all the same.
        let is_at_peer_alone = || members.is_at_peer_alone(vip) && !is_local(vip);
        if answers_to_vip && *at_peers.entry(vip).or_insert_with(is_at_peer_alone) {
            table.orders.end_flow(flow.ticket(), EndReason::PeerHasVip, None);
            flow.backend.into_iter().for_each(|id| *ended.entry(id).or_default() += 1);
        }
    }
    for (entry, flows) in ended.into_iter().filter_map(|(id, flows)| Some((table.registry.find_backend(id)?, flows))) {
        let (frontend, backend) = entry.full_name();
        table.journal.record(What::FlowsOrdered { frontend, backend, flows, reason: EndReason::PeerHasVip });
    }
}
