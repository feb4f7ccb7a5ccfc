//! Whether a client may have a flow.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::sources::{SourceHold, SourceRefusal, Sources};
use crate::addr::{ClientAddr, SourceNetwork};
use crate::config::{Frontend, Limits};
use crate::model::end_reason::EndReason;
use crate::proxy::plane::{FrontendPlane, Plane};
use crate::table::backend::FrontendEntry;
use crate::table::flows::FlowTable;
use crate::table::offload::OffloadCensus;

/// Counts one flow towards its frontend's cap, as long as the hold exists.
#[derive(Debug)]
pub(crate) struct FrontendHold(Arc<FrontendEntry>);

impl FrontendHold {
    /// Counts a flow that was admitted by another process.
    pub(crate) fn count_in(frontend: &FrontendPlane) -> Self {
        let hold = Self::count_again(frontend);
        frontend.entry.other_process.arrive();
        hold
    }

    /// Counts a flow again that had stopped counting before its end; never refuses it.
    pub(crate) fn count_again(frontend: &FrontendPlane) -> Self {
        frontend.entry.active.fetch_add(1, Relaxed);
        Self(frontend.entry.clone())
    }
}

impl Drop for FrontendHold {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

/// Counts a flow in for the process and its frontend.
pub(crate) fn admit(
    plane: &Plane,
    frontend: &FrontendPlane,
    flows: &FlowTable,
    census: &OffloadCensus,
) -> Result<FrontendHold, EndReason> {
    let in_other_process =
        plane.frontends.iter().map(|frontend| frontend.entry.other_process.count()).sum::<u32>() as usize;
    let too_many = plane.max_connections.is_some_and(|max| flows.len() + in_other_process >= max);
    if too_many || census.flows_with_sockets(flows) + in_other_process >= plane.max_proxied {
        return Err(EndReason::LimitTotal);
    }
    let before = frontend.entry.active.fetch_add(1, Relaxed) + frontend.entry.other_process.count();
    let hold = FrontendHold(frontend.entry.clone());
    match frontend.settings.limits.max_connections {
        Some(max) if before >= max => Err(EndReason::LimitFrontend),
        _ => Ok(hold),
    }
}

/// Checks a client's source network. `None`: the frontend does not count its sources.
pub(crate) fn admit_source(
    frontend: &FrontendPlane,
    sources: &Sources,
    client: ClientAddr,
    now_ns: u64,
) -> Result<Option<SourceHold>, EndReason> {
    let settings = &frontend.settings;
    if !is_allowed(settings, client) {
        return Err(EndReason::Denied);
    }
    let limits = &settings.limits;
    let Some(network) = counted_network(limits, client) else { return Ok(None) };
    let (max, rate) = (limits.max_connections_per_source, limits.accept_rate_per_source);
    let admitted = sources.admit(frontend.entry.id, network, max, rate, now_ns);
    admitted.map(Some).map_err(|refusal| match refusal {
        SourceRefusal::Connections => EndReason::LimitSource,
        SourceRefusal::Rate => EndReason::RateSource,
    })
}

/// The network that a flow of `client` counts for; `None`: flows are not counted by source.
fn counted_network(limits: &Limits, client: ClientAddr) -> Option<SourceNetwork> {
    limits.max_connections_per_source.or(limits.accept_rate_per_source)?;
    Some(limits.source_mask.network(client))
}

/// Counts a flow that was admitted by another process; never refuses it.
pub(crate) fn count_source(
    frontend: &FrontendPlane,
    sources: &Sources,
    client: ClientAddr,
    now_ns: u64,
) -> Option<SourceHold> {
    let network = counted_network(&frontend.settings.limits, client)?;
    Some(sources.count_in(frontend.entry.id, network, now_ns))
}

/// As [`FrontendHold::count_again`].
pub(crate) fn count_source_again(
    frontend: &FrontendPlane,
    sources: &Sources,
    client: ClientAddr,
    now_ns: u64,
) -> Option<SourceHold> {
    let network = counted_network(&frontend.settings.limits, client)?;
    Some(sources.count_again(frontend.entry.id, network, now_ns))
}

/// Counts an existing flow by the frontend's present settings, if it was counted otherwise before.
pub(crate) fn recount_source(
    before: &Frontend,
    frontend: &FrontendPlane,
    sources: &Sources,
    client: ClientAddr,
    hold: &mut Option<SourceHold>,
    now_ns: u64,
) {
    let is_counted_so = hold.is_some() && before.limits.source_mask == frontend.settings.limits.source_mask;
    if !is_counted_so && let Some(anew) = count_source_again(frontend, sources, client, now_ns) {
        *hold = Some(anew);
    }
}

/// Whether the client must begin with a PROXY header.
pub(crate) fn sends_header(settings: &Frontend, client: ClientAddr) -> bool {
    settings.proxy_protocol.accept_from.iter().any(|network| network.contains(&client.ip()))
}

fn is_allowed(settings: &Frontend, client: ClientAddr) -> bool {
    let ip = client.ip();
    let allowed = settings.allow.is_empty() || settings.allow.iter().any(|network| network.contains(&ip));
    allowed && !settings.deny.iter().any(|network| network.contains(&ip))
}
