//! Reports of a worker's flows to the fleet's peers. Without peers it costs one check of a flag.

use std::os::fd::OwnedFd;

use super::context::WorkerContext;
use super::flow::{Flow, Phase};
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::model::fleet::{FlowRecord, Keeping, Local};
use crate::model::ids::FlowId;
use crate::ports::offload::Found;
use crate::sys::{clock, socket};

/// Both legs are established, here or in the process that the flow comes from.
pub(super) fn tell_established(cx: &WorkerContext, flow: &Flow) {
    let fleet = &cx.table.fleet;
    if fleet.is_enabled()
        && let Some(record) = record(cx, flow)
    {
        fleet.tell(|| Local::Begun(Box::new(record)));
    }
}

/// An offloaded flow of an earlier process has its place here. The offload engine reports that it is offloaded.
pub(super) fn tell_found(cx: &WorkerContext, found: &Found) {
    cx.table.fleet.tell(|| {
        Local::Begun(Box::new(FlowRecord {
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

/// No backend has answered yet. The peers must know the flow all the same: if this host died, no other could reset its
/// client, and a client whose request was acknowledged sends nothing more.
pub(super) fn tell_connecting(cx: &WorkerContext, flow: &mut Flow) {
    let record = || {
        let Phase::Connecting(connecting) = &flow.phase else { return None };
        let attempt = connecting.attempts.last()?;
        Some(FlowRecord {
            id: flow.id,
            ends: ends_between(&connecting.client, &attempt.socket, attempt.address)?,
            client: flow.client_addr,
            backend_key: attempt.place.0.hash_key,
            accepted_unix_ms: clock::unix_ms_of(flow.accepted_at_ns),
            connect_us: 0,
            keeping: Keeping::Sockets,
        })
    };
    let Some(record) = record() else { return };
    cx.table.fleet.tell(|| Local::Begun(Box::new(record)));
    if let Phase::Connecting(connecting) = &mut flow.phase {
        connecting.machine.handle_told();
    }
}

/// The flow is over, or belongs to another instance.
pub(super) fn tell_ended(cx: &WorkerContext, flow: &Flow, reason: EndReason) {
    let told = match &flow.phase {
        Phase::Connecting(connecting) => connecting.machine.is_told(),
        _ => flow.backend().is_some(),
    };
    if told {
        cx.table.fleet.tell(|| match reason {
            EndReason::Moved => Local::Left(flow.id),
            _ => Local::Ended(flow.id),
        });
    }
}

/// A panic has lost the flow.
pub(super) fn tell_lost(cx: &WorkerContext, id: FlowId) {
    cx.table.fleet.tell(|| Local::Ended(id));
}

/// `None`: the client's connection is gone, and its end is about to be noticed.
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

/// The ends of a flow's two connections; `None`: as for [`record`].
pub(super) fn ends_of(flow: &Flow) -> Option<Ends> {
    let Phase::Relaying(relaying) = &flow.phase else { return None };
    ends_between(&relaying.client, &relaying.backend, relaying.backend_addr)
}

fn ends_between(client: &OwnedFd, leg: &OwnedFd, backend: BackendAddr) -> Option<Ends> {
    // A PROXY header may have named other ends than the connection has, and a reload may have changed who may send one.
    let vip = VipAddr::new(socket::local_addr(client).ok()?.socket_addr());
    let client = ClientAddr::new(socket::peer_addr(client).ok()?);
    Some(Ends { client, vip, local: socket::local_addr(leg).ok()?, backend })
}
