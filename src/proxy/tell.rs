//! What the peers of a fleet are told of a worker's flows. Without peers it costs one look at a flag.

use super::context::WorkerContext;
use super::flow::{Flow, Phase};
use crate::addr::{ClientAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::model::fleet::{FlowRecord, Keeping, Local};
use crate::model::ids::FlowId;
use crate::sys::{clock, socket};
use crate::table::offload::Found;

/// Both legs are established, here or in the process that the flow comes from.
pub(super) fn tell_established(cx: &WorkerContext, flow: &Flow) {
    let fleet = &cx.table.fleet;
    if fleet.is_enabled()
        && let Some(record) = record(cx, flow)
    {
        fleet.tell(|| Local::Established(Box::new(record)));
    }
}

/// A flow without sockets of an earlier process has its place here. That it has none is the offload engine's to tell.
pub(super) fn tell_found(cx: &WorkerContext, found: &Found) {
    cx.table.fleet.tell(|| {
        Local::Established(Box::new(FlowRecord {
            id: found.id,
            ends: Ends { client: found.connection, vip: found.vip, local: found.local, backend: found.backend },
            client: found.record.client,
            backend_key: found.record.backend_key,
            accepted_unix_ms: clock::unix_ms_of(found.record.accepted_at_ns),
            connect_us: found.record.connect_us.try_into().unwrap_or(u32::MAX),
            keeping: Keeping::Sockets,
        }))
    });
}

/// The flow is over, or another instance's. One that never had a backend was never told of.
pub(super) fn tell_ended(cx: &WorkerContext, flow: &Flow, reason: EndReason) {
    if flow.backend().is_some() {
        cx.table.fleet.tell(|| match reason {
            EndReason::Moved => Local::Left(flow.id),
            _ => Local::Ended(flow.id),
        });
    }
}

/// The flow was lost with a panic, whatever it was.
pub(super) fn tell_lost(cx: &WorkerContext, id: FlowId) {
    cx.table.fleet.tell(|| Local::Ended(id));
}

/// `None`: it has gone under our hands, and its end is about to be seen.
fn record(cx: &WorkerContext, flow: &Flow) -> Option<FlowRecord> {
    let Phase::Relaying(relaying) = &flow.phase else { return None };
    let slot = cx.slot(flow.at.key());
    let connect_us = slot.word(crate::table::flows::Field::ConnectUs as usize);
    Some(FlowRecord {
        id: flow.id,
        ends: ends_of(flow)?,
        client: flow.client_addr,
        backend_key: relaying.place.0.hash_key,
        accepted_unix_ms: clock::unix_ms_of(flow.accepted_at_ns),
        connect_us: connect_us.try_into().unwrap_or(u32::MAX),
        keeping: Keeping::Sockets,
    })
}

/// What both connections of a flow are between; `None`: as for [`record`].
pub(super) fn ends_of(flow: &Flow) -> Option<Ends> {
    let Phase::Relaying(relaying) = &flow.phase else { return None };
    let settings = &flow.frontend.settings;
    // A header may have given it another name than its connection has.
    let client = match settings.proxy_protocol.accept_from.is_empty() {
        true => flow.client_addr,
        false => ClientAddr::new(socket::peer_addr(&relaying.client).ok()?),
    };
    let vip = match flow.vip.ip().is_unspecified() {
        true => VipAddr::new(socket::local_addr(&relaying.client).ok()?.socket_addr()),
        false => flow.vip,
    };
    let local = socket::local_addr(&relaying.backend).ok()?;
    Some(Ends { client, vip, local, backend: relaying.backend_addr })
}
