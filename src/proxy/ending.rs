//! The end of flows: each has one reason, and both sides see the end as it was.

pub(super) mod closing;
pub(super) mod orders;
pub(super) mod unheard;

use super::connect::source_ports::SourcePorts;
use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{Connecting, Flow, Phase, Side};
use super::offload::forget_announced;
use super::tell::{tell_ended, tell_lost};
use crate::addr::LocalAddr;
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::leg::LegKey;
use crate::ports::ended::EndedFlow;
use crate::ports::late_resets::Abandoned;
use crate::ports::offload::{Request, Ticket};
use crate::sys::sequence::sequence_numbers;
use crate::sys::{socket, tcp_info};
use crate::table::flows::{Field, FlowKey};
use unheard::Otherwise;

/// Closes both legs as `reason` demands and accounts for the flow.
pub(super) fn finish(
    cx: &mut WorkerContext,
    flows: &mut FlowSlab,
    ports: &mut SourcePorts,
    mut flow: Box<Flow>,
    reason: EndReason,
    errno: i32,
) {
    tell_ended(cx, &flow, reason);
    forget_announced(cx, &flow, reason);
    let key = flow.at.key();
    let slot = cx.slot(key);
    let word = |field: Field| slot.word(field as usize);
    let mut ended = EndedFlow {
        id: flow.id,
        origin: flow.origin(),
        backend: flow.backend().map(|backend| backend.id),
        backend_addr: None,
        source: LegKey(word(Field::LocalEnd)).address(),
        reason,
        bytes_to_backend: word(Field::BytesToBackend),
        bytes_to_client: word(Field::BytesToClient),
        connect_us: word(Field::ConnectUs),
        ended_at_ns: cx.now_ns(),
        errno,
    };
    if let (None, Phase::Relaying(relaying)) = (ended.source, &flow.phase) {
        // A flow that was short, or an address that is too long for its entry.
        ended.source = socket::local_addr(&relaying.backend).ok().map(LocalAddr::socket_addr);
    }
    let all_told = tell_late(cx, &flow, reason);
    // In LAST_ACK it sends no RST: if no other part can send one either, leave the segments in flight to the kernel.
    let left_to_kernel = flow.is_closing() && !all_told;
    if flow.shared && reason.client_saw() != ClientSaw::Fin && !left_to_kernel {
        // While another process has descriptors too, closing ours resets nothing.
        let _ = flow.client().map(socket::disconnect);
        if let Phase::Relaying(relaying) = &flow.phase {
            socket::disconnect(&relaying.backend);
        }
    }
    let client = match std::mem::replace(&mut flow.phase, Phase::Between) {
        Phase::Header(client) => Some(client),
        Phase::Connecting(connecting) => {
            let Connecting { client, attempts, .. } = *connecting;
            attempts.into_iter().for_each(|attempt| socket::reset(attempt.socket));
            Some(client)
        }
        Phase::Relaying(mut relaying) => {
            ended.backend_addr = Some(relaying.backend_addr.socket_addr());
            relaying.up.dismantle(&mut cx.tools);
            relaying.down.dismantle(&mut cx.tools);
            match closes_cleanly(reason) || left_to_kernel {
                true => {
                    drop(relaying.backend);
                    let waits = reason == EndReason::ClientClosed && relaying.source_port != 0;
                    if waits && !cx.table.offload.keeps_ports() {
                        ports.give(relaying.backend_addr, relaying.source_port, cx.now_ns());
                    }
                }
                false => socket::reset(relaying.backend),
            }
            Some(relaying.client)
        }
        Phase::Offloading(state) | Phase::Offloaded { state, .. } => {
            ended.backend_addr = Some(state.backend_addr.socket_addr());
            None
        }
        Phase::Between => None,
    };
    match reason.client_saw() {
        // A client that was taken for gone, and is not, learns of it at once.
        ClientSaw::Nothing if reason == EndReason::ClientTimedOut && !left_to_kernel => {
            client.into_iter().for_each(socket::reset)
        }
        ClientSaw::Rst if !left_to_kernel => client.into_iter().for_each(socket::reset),
        ClientSaw::Rst | ClientSaw::Fin | ClientSaw::Nothing => drop(client),
    }
    flow.frontend.entry.lanes[cx.number].ended[reason as usize].add(1);
    flows.vacate(cx, key);
    cx.report_ended(ended);
}

/// Has each end told that must learn of the end by RST. A single RST may be lost, and the kernel sends none for a
/// connection that it gave up in silence or that closes after FIN. False: that is not possible.
fn tell_late(cx: &mut WorkerContext, flow: &Flow, reason: EndReason) -> bool {
    let relaying = match &flow.phase {
        Phase::Relaying(relaying) => relaying,
        _ => {
            let client = flow.client().filter(|_| reason.client_saw() == ClientSaw::Rst);
            client.into_iter().for_each(|client| cx.unheard.note_unserved(client));
            return true;
        }
    };
    let port = cx.slot(flow.at.key()).word(Field::LocalEnd as usize) as u16;
    let client_hears = reason.client_saw() == ClientSaw::Rst || reason == EndReason::ClientTimedOut;
    let legs = [
        (Side::Client, client_hears, EndReason::ClientTimedOut, &relaying.client, flow.own_port),
        (Side::Backend, !closes_cleanly(reason), EndReason::BackendTimedOut, &relaying.backend, port),
    ];
    for (side, hears, silent, leg, port) in legs {
        let is_over = relaying.closing.as_ref().is_some_and(|closing| closing.is_over(side));
        if !hears || is_over {
            continue;
        }
        let is_closed = tcp_info::is_closed(leg).unwrap_or(true);
        if is_closed && reason != silent {
            // This end has reset the connection itself.
            continue;
        }
        match sequence_numbers(leg) {
            Ok(numbers) => {
                // The port of a closed socket is free already, and the socket no longer knows it.
                let mut abandoned = Abandoned::from(numbers);
                if is_closed {
                    abandoned.from.set_port(port);
                }
                match side {
                    _ if is_closed || relaying.closing.is_some() => cx.table.late_resets.tell(abandoned),
                    Side::Client => cx.unheard.note(abandoned, Otherwise::Repeat),
                    Side::Backend => cx.table.late_resets.repeat(abandoned),
                }
            }
            // It has just been reset, too.
            Err(_) if reason != silent && tcp_info::is_closed(leg).unwrap_or(true) => {}
            Err(error) => {
                cx.table.late_resets.complain(&error);
                return false;
            }
        }
    }
    true
}

/// Frees the place of a flow that a panic has lost. If the offload engine has it, the engine must reset it.
pub(super) fn give_up(cx: &mut WorkerContext, flows: &mut FlowSlab, key: FlowKey) {
    if let Some(id) = cx.id_at(key) {
        tell_lost(cx, id);
        let ticket = Ticket { worker: cx.number, key, id };
        cx.table.offload.ask(Request::End { ticket, unless_moved_since_ns: None });
    }
    flows.vacate(cx, key);
}

/// Whether the backend leg ends with FIN as well.
fn closes_cleanly(reason: EndReason) -> bool {
    reason.client_saw() == ClientSaw::Fin
}
