//! Flows that move to another process.

use std::mem;

use super::message::{Departure, MovingFlow};
use crate::model::end_reason::EndReason;
use crate::proxy::accept::sources::SourceHold;
use crate::proxy::connect::source_ports::SourcePorts;
use crate::proxy::context::WorkerContext;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::ending::closing::count_again;
use crate::proxy::ending::finish;
use crate::proxy::flow::{Flow, Phase, Relaying, Side};
use crate::proxy::token::FlowRef;
use crate::sys::socket;
use crate::table::flow_transfer::{FirstFin, FlowTransfer, Relayed, Stage};
use crate::table::flows::Field;

/// A worker's progress with the flows that move.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Departing {
    /// The next place to look at.
    next: usize,
}

impl Departing {
    /// Takes flows out of service, from where the last call stopped.
    pub(in crate::proxy) fn take(
        &mut self,
        cx: &mut WorkerContext,
        flows: &mut FlowSlab,
        ports: &mut SourcePorts,
        flows_max: usize,
        bytes_max: usize,
    ) -> Departure {
        let mut moving = Vec::new();
        let mut bytes = 0;
        while self.next < flows.places() {
            if moving.len() == flows_max || bytes >= bytes_max {
                return Departure { moving, whole_round: false };
            }
            let may_leave = |flow: &Flow| flow.pending_end.is_none() && !flow.is_with_engine();
            let leaving = flows.take_if(self.next, may_leave);
            self.next += 1;
            if let Some(flow) = leaving {
                let moving_flow = pack(cx, flows, ports, flow);
                bytes += moving_flow.as_ref().map_or(0, |moving_flow| moving_flow.transfer.held_bytes());
                moving.extend(moving_flow);
            }
        }
        self.next = 0;
        Departure { moving, whole_round: true }
    }
}

/// Puts a taken flow back into its place. `None`: a panic has freed the place, and the flow is reset.
pub(in crate::proxy) fn put_back(flows: &mut FlowSlab, mut flow: Box<Flow>) -> Option<FlowRef> {
    let at = flow.at;
    if !flows.keeps_place_of(at) {
        reset_both(*flow);
        return None;
    }
    flow.shared = true;
    flows.put(flow);
    Some(at)
}

/// Forgets a flow that another process has now: its sockets close here, and the other process keeps its descriptors.
pub(in crate::proxy) fn forget_moved(cx: &mut WorkerContext, flows: &mut FlowSlab, flow: Box<Flow>) {
    if flows.keeps_place_of(flow.at) {
        // It still counts towards limits until the upgrade is over.
        flow.frontend.entry.other_process.leave();
        flow.holds.source.iter().for_each(SourceHold::leave);
        flow.backend().iter().for_each(|backend| backend.other_process.leave());
        flows.vacate(cx, flow.at.key());
    }
}

/// Ends a flow that was taken.
pub(in crate::proxy) fn end_taken(
    cx: &mut WorkerContext,
    flows: &mut FlowSlab,
    ports: &mut SourcePorts,
    flow: Box<Flow>,
    reason: EndReason,
) {
    match flows.keeps_place_of(flow.at) {
        true => finish(cx, flows, ports, flow, reason, 0),
        false => reset_both(*flow),
    }
}

/// Makes a moving flow of a flow; ends it if that fails.
fn pack(
    cx: &mut WorkerContext,
    flows: &mut FlowSlab,
    ports: &mut SourcePorts,
    mut flow: Box<Flow>,
) -> Option<MovingFlow> {
    // Closing is not enough: the other process's descriptors keep the registration (epoll(7), Q6).
    let _ = flow.client().map(|client| cx.epoll.forget(client));
    count_again(cx, &mut flow);
    let stage = match &mut flow.phase {
        Phase::Header(_) => Stage::Header,
        Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => return None,
        Phase::Connecting(connecting) => {
            mem::take(&mut connecting.attempts).into_iter().for_each(|attempt| socket::reset(attempt.socket));
            Stage::Connecting
        }
        Phase::Relaying(relaying) => {
            relaying.place.count_again();
            let _ = cx.epoll.forget(&relaying.backend);
            match relayed(relaying, cx, flow.at) {
                Ok(relayed) => Stage::Relaying(Box::new(relayed)),
                Err(error) => {
                    finish(cx, flows, ports, flow, EndReason::Internal, error.raw_os_error().unwrap_or(0));
                    return None;
                }
            }
        }
    };
    let transfer = FlowTransfer {
        id: flow.id,
        frontend: flow.frontend.entry.name.to_string(),
        client: flow.client_addr,
        vip: flow.vip,
        accepted_at_ns: flow.accepted_at_ns,
        stage,
    };
    Some(MovingFlow { transfer, worker: cx.number, flow })
}

fn relayed(relaying: &mut Relaying, cx: &mut WorkerContext, at: FlowRef) -> std::io::Result<Relayed> {
    // The lists of watched flows drop one that they do not find.
    (relaying.watched, relaying.delivering) = (false, false);
    let (up, down) = (relaying.up.pack(&mut cx.tools)?, relaying.down.pack(&mut cx.tools)?);
    let slot = cx.slot(at.key());
    let word = |field: Field| slot.word(field as usize);
    Ok(Relayed {
        backend: relaying.place.0.name.to_string(),
        backend_addr: relaying.backend_addr,
        up,
        down,
        first_fin: relaying.first_fin.map(|side| match side {
            Side::Client => FirstFin::Client,
            Side::Backend => FirstFin::Backend,
        }),
        bytes_to_backend: word(Field::BytesToBackend),
        bytes_to_client: word(Field::BytesToClient),
        last_to_backend_ns: word(Field::LastToBackendNs),
        last_to_client_ns: word(Field::LastToClientNs),
        connect_us: word(Field::ConnectUs),
        unanswered_since_ns: relaying.unanswered_since_ns,
    })
}

fn reset_both(flow: Flow) {
    match flow.phase {
        Phase::Header(client) => socket::reset(client),
        Phase::Connecting(connecting) => socket::reset(connecting.client),
        Phase::Relaying(Relaying { client, backend, .. }) => [client, backend].into_iter().for_each(socket::reset),
        Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => {}
    }
}
