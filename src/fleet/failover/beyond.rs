//! Flows of this instance whose backend is beyond reach: their packets come from a VIP that is on the backend's host now, and a kernel
//! drops packets from one of its own addresses. The VIP's new owner resets their clients, except for clients of this host: that
//! owner's segments would come from the VIP, too, which this host keeps on `lo` for these flows.

use std::net::IpAddr;

use super::FailoverParts;
use crate::config::{Config, Source};
use crate::model::end_reason::EndReason;
use crate::model::fleet::evacuate::Places;
use crate::model::fleet::failover::Failover;
use crate::table::flows::FlowState;

/// Ends them; returns how many there are. `places`: of the VIPs on this host.
pub(super) fn end(table: &FailoverParts, machine: &Failover, config: &Config, places: &Places) -> usize {
    let is_kept = |ip: &IpAddr| places.kept.contains(ip) && !places.here.contains(ip);
    if !places.kept.iter().any(is_kept) {
        return 0;
    }
    let comes_from_vip = |vip| {
        let mut serving = config.frontends.iter().filter(|frontend| frontend.listen.contains(&vip));
        serving.any(|frontend| frontend.source == Source::Auto)
    };
    let backends = table.registry.backends();
    let mut ended = 0;
    for flow in table.flows.iter() {
        let has_leg = flow.state == FlowState::Proxied || flow.state == FlowState::Offloaded && flow.stays_here;
        let vip = flow.origin.vip;
        if !has_leg || flow.ending || !is_kept(&vip.ip()) || !comes_from_vip(vip) {
            continue;
        }
        let backend = backends.iter().find(|it| Some(it.id) == flow.backend).and_then(|it| it.address());
        if backend.is_some_and(|backend| machine.are_together(vip.ip(), backend.ip())) {
            table.orders.end_flow(flow.ticket(), EndReason::BackendHasVip, None);
            ended += 1;
        }
    }
    ended
}
