//! Flows that leave for another process.

use std::mem;

use super::message::{Departure, MovingFlow};
use crate::model::end_reason::EndReason;
use crate::proxy::accept::sources::SourceHold;
use crate::proxy::context::WorkerContext;
use crate::proxy::ending::closing::count_again;
use crate::proxy::flow::{Flow, Phase, Relaying, Side};
use crate::proxy::resume::{go_on, watch_again};
use crate::proxy::token::FlowRef;
use crate::proxy::verdict::FlowVerdict;
use crate::proxy::worker::Worker;
use crate::sys::socket;
use crate::table::flow_transfer::{FirstFin, FlowTransfer, Relayed, Stage};
use crate::table::flows::Field;

impl Worker {
    /// Takes flows out of service, going on where the last call stopped.
    pub(in crate::proxy) fn take_flows(&mut self, flows_max: usize, bytes_max: usize) -> Departure {
        let mut moving = Vec::new();
        let mut bytes = 0;
        while self.departing < self.flows.places() {
            if moving.len() == flows_max || bytes >= bytes_max {
                return Departure { moving, whole_round: false };
            }
            let may_leave = |flow: &Flow| flow.pending_end.is_none() && !flow.is_lent();
            let leaving = self.flows.take_if(self.departing, may_leave);
            self.departing += 1;
            if let Some(flow) = leaving {
                let moving_flow = self.pack(flow);
                bytes += moving_flow.as_ref().map_or(0, |moving_flow| moving_flow.transfer.held_bytes());
                moving.extend(moving_flow);
            }
        }
        self.departing = 0;
        Departure { moving, whole_round: true }
    }

    /// Serves a flow again that was taken.
    pub(in crate::proxy) fn put_back(&mut self, mut flow: Box<Flow>) {
        let at = flow.at;
        if !self.flows.keeps_place_of(at) {
            return reset_both(*flow);
        }
        flow.shared = true;
        self.flows.put(flow);
        self.with_flow(at, |worker, flow| {
            let begun = watch_again(&worker.cx, flow);
            if let Err(error) = begun {
                return FlowVerdict::End(EndReason::Internal, error.raw_os_error().unwrap_or(0));
            }
            go_on(&mut worker.cx, &mut worker.watch, &mut worker.backlog, flow)
        });
    }

    /// Forgets a flow that another process has now: its sockets close here, which their other descriptors survive.
    pub(in crate::proxy) fn let_go(&mut self, flow: Box<Flow>) {
        if self.flows.keeps_place_of(flow.at) {
            // It counts towards limits still, until the upgrade is over.
            flow.frontend.entry.elsewhere.leave();
            flow.holds.source.iter().for_each(SourceHold::leave);
            flow.backend().iter().for_each(|backend| backend.elsewhere.leave());
            self.flows.vacate(&mut self.cx, flow.at.key());
        }
    }

    /// Ends a flow that was taken.
    pub(in crate::proxy) fn end_taken(&mut self, flow: Box<Flow>, reason: EndReason) {
        match self.flows.keeps_place_of(flow.at) {
            true => self.finish(flow, reason, 0),
            false => reset_both(*flow),
        }
    }

    /// Makes a moving_flow of a flow; ends it if that fails.
    fn pack(&mut self, mut flow: Box<Flow>) -> Option<MovingFlow> {
        // Closing alone would not do: the other process's descriptors keep the registration alive (epoll(7), Q6).
        let _ = flow.client().map(|client| self.cx.epoll.forget(client));
        count_again(&self.cx, &mut flow);
        let stage = match &mut flow.phase {
            Phase::Header(_) => Stage::Header,
            Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => return None,
            Phase::Connecting(connecting) => {
                mem::take(&mut connecting.attempts).into_iter().for_each(|attempt| socket::reset(attempt.socket));
                Stage::Connecting
            }
            Phase::Relaying(relaying) => {
                relaying.place.count_again();
                let _ = self.cx.epoll.forget(&relaying.backend);
                match relayed(relaying, &mut self.cx, flow.at) {
                    Ok(relayed) => Stage::Relaying(Box::new(relayed)),
                    Err(error) => {
                        self.finish(flow, EndReason::Internal, error.raw_os_error().unwrap_or(0));
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
        Some(MovingFlow { transfer, worker: self.cx.number, flow })
    }
}

fn relayed(relaying: &mut Relaying, cx: &mut WorkerContext, at: FlowRef) -> std::io::Result<Relayed> {
    // The lists of flows that are looked at drop one that they do not find.
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
