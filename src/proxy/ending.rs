//! How flows end: each with one reason, seen by both sides for what it is.

pub(super) mod closing;
pub(super) mod unheard;

use std::time::Duration;

use super::flow::{Connecting, Flow, PendingEnd, Phase, Side};
use super::offload::forget_announced;
use super::tell::{tell_ended, tell_lost};
use super::timers::Due;
use super::verdict::FlowVerdict;
use super::worker::Worker;
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::sys::sequence::sequence_numbers;
use crate::sys::{socket, tcp_info};
use crate::table::flows::{Field, FlowKey, FlowState, pack_place};
use crate::table::late_resets::Abandoned;
use crate::table::offload::{Request, Ticket};
use crate::table::orders::{EndOrder, Pace, Selector};
use crate::table::worker::EndedFlow;
use closing::close_both;
use unheard::Otherwise;

impl Worker {
    /// Gives each selected flow its turn within the order's pace.
    pub(super) fn carry_out(&mut self, order: EndOrder) {
        if let Selector::Flow { key, .. } = order.selector {
            let chosen = self.flows.at_key(key);
            if let Some(at) = chosen.filter(|flow| selects(&order, flow)).map(|flow| flow.at) {
                self.set_pending(at, order);
                self.with_flow(at, Self::end_due);
            }
            return;
        }
        let mut chosen: Vec<_> = self.flows.iter().filter(|flow| selects(&order, flow)).map(|flow| flow.at).collect();
        // In random order, so that clients that came together do not all come back together.
        self.cx.random.shuffle(&mut chosen);
        let step_ns = step_ns(order.pace, chosen.len(), self.cx.table.workers.len());
        for (turn, at) in chosen.into_iter().enumerate() {
            if let Selector::Backend(backend) | Selector::SocketsOf(backend) = order.selector
                && self.is_connecting(at)
            {
                self.with_flow(at, |worker, flow| {
                    worker.connector.abandon_attempts(&mut worker.cx, &mut worker.acceptor, flow, backend)
                });
                continue;
            }
            self.set_pending(at, order);
            let jitter_ns = self.cx.random.u64(0..=step_ns / 2);
            self.cx.timers.set(self.cx.now_ns + turn as u64 * step_ns + jitter_ns, Due::End(at));
        }
    }

    /// A flow's turn to end has come.
    pub(super) fn end_due(&mut self, flow: &mut Flow) -> FlowVerdict {
        let Some(pending) = flow.pending_end else { return FlowVerdict::Keep };
        if let Some(idle) = pending.only_idle_for {
            let quiet_ns = self.cx.now_ns.saturating_sub(self.cx.last_byte_ns(flow));
            if flow.holds_bytes() || flow.is_closing() || quiet_ns < idle.as_nanos() as u64 {
                flow.pending_end = None;
                self.cx.show_state(flow);
                return FlowVerdict::Keep;
            }
        }
        match pending.reason.client_saw() {
            ClientSaw::Fin if flow.is_closing() => FlowVerdict::Keep,
            ClientSaw::Fin => close_both(&self.cx, &mut self.watch, flow, pending.reason),
            _ => FlowVerdict::End(pending.reason, 0),
        }
    }

    /// Closes both legs as `reason` demands and accounts for the flow.
    pub(super) fn finish(&mut self, mut flow: Box<Flow>, reason: EndReason, errno: i32) {
        tell_ended(&self.cx, &flow, reason);
        forget_announced(&self.cx, &flow, reason);
        let key = flow.at.key();
        let slot = self.cx.slot(key);
        let word = |field: Field| slot.word(field as usize);
        let mut ended = EndedFlow {
            id: flow.id,
            origin: flow.origin(),
            backend: flow.backend().map(|backend| backend.id),
            backend_addr: None,
            reason,
            bytes_to_backend: word(Field::BytesToBackend),
            bytes_to_client: word(Field::BytesToClient),
            connect_us: word(Field::ConnectUs),
            ended_at_ns: self.cx.now_ns,
            errno,
        };
        let all_told = self.tell_late(&flow, reason);
        // In LAST_ACK it sends no RST: if nobody else can, what is under way is better than nothing.
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
                relaying.up.dismantle(&mut self.cx.tools);
                relaying.down.dismantle(&mut self.cx.tools);
                match closes_cleanly(reason) || left_to_kernel {
                    true => {
                        drop(relaying.backend);
                        let waits = reason == EndReason::ClientClosed && relaying.source_port != 0;
                        if waits && !self.cx.table.offload.keeps_ports() {
                            self.connector.ports.give(relaying.backend_addr, relaying.source_port, self.cx.now_ns);
                        }
                    }
                    false => socket::reset(relaying.backend),
                }
                Some(relaying.client)
            }
            Phase::Offloading(lent) | Phase::Offloaded { lent, .. } => {
                ended.backend_addr = Some(lent.backend_addr.socket_addr());
                None
            }
            Phase::Between => None,
        };
        match reason.client_saw() {
            ClientSaw::Rst if !left_to_kernel => client.into_iter().for_each(socket::reset),
            ClientSaw::Rst | ClientSaw::Fin | ClientSaw::Nothing => drop(client),
        }
        flow.frontend.entry.lanes[self.cx.number].ended[reason as usize].add(1);
        self.flows.vacate(&mut self.cx, key);
        self.cx.state().report_ended(ended);
    }

    /// Has each end told that is to learn of the end by RST: one alone may be lost, and of what the kernel has given up in
    /// silence, or closes after FIN, there is none. False: it cannot be done.
    fn tell_late(&mut self, flow: &Flow, reason: EndReason) -> bool {
        let relaying = match &flow.phase {
            Phase::Relaying(relaying) => relaying,
            _ => {
                let client = flow.client().filter(|_| reason.client_saw() == ClientSaw::Rst);
                client.into_iter().for_each(|client| self.cx.unheard.note_unserved(client));
                return true;
            }
        };
        let port = self.cx.slot(flow.at.key()).word(Field::LocalPort as usize) as u16;
        let client_hears = reason.client_saw() == ClientSaw::Rst || reason == EndReason::ClientTimedOut;
        let legs = [
            (Side::Client, client_hears, EndReason::ClientTimedOut, &relaying.client, flow.vip.port()),
            (Side::Backend, !closes_cleanly(reason), EndReason::BackendTimedOut, &relaying.backend, port),
        ];
        for (side, hears, silent, leg, port) in legs {
            let is_over = relaying.closing.as_ref().is_some_and(|closing| closing.is_over(side));
            if !hears || is_over {
                continue;
            }
            let is_closed = tcp_info::is_closed(leg).unwrap_or(true);
            if is_closed && reason != silent {
                // It has reset the connection itself.
                continue;
            }
            match sequence_numbers(leg) {
                Ok(numbers) => {
                    // The port of a closed socket is free already, and its socket does not know it any more.
                    let mut abandoned = Abandoned::from(numbers);
                    if is_closed {
                        abandoned.from.set_port(port);
                    }
                    match side {
                        _ if is_closed || relaying.closing.is_some() => self.cx.table.late_resets.tell(abandoned),
                        Side::Client => self.cx.unheard.note(abandoned, Otherwise::Repeat),
                        Side::Backend => self.cx.table.late_resets.repeat(abandoned),
                    }
                }
                // It has just been reset, too.
                Err(_) if reason != silent && tcp_info::is_closed(leg).unwrap_or(true) => {}
                Err(error) => {
                    self.cx.table.late_resets.complain(&error);
                    return false;
                }
            }
        }
        true
    }

    /// Frees the place of a flow that was lost with a panic. If the offload engine has it, it is to be reset there.
    pub(super) fn give_up(&mut self, key: FlowKey) {
        if let Some(id) = self.cx.id_at(key) {
            tell_lost(&self.cx, id);
            let ticket = Ticket { worker: self.cx.number, key, id };
            self.cx.table.offload.ask(Request::End { ticket, unless_moved_since_ns: None });
        }
        self.flows.vacate(&mut self.cx, key);
    }

    fn set_pending(&mut self, at: super::token::FlowRef, order: EndOrder) {
        self.with_flow(at, |worker, flow| {
            flow.pending_end = Some(PendingEnd { reason: order.reason, only_idle_for: order.only_idle_for });
            let backend = flow.backend_used();
            worker.cx.slot(at.key()).set(Field::Place as usize, pack_place(FlowState::Ending, backend));
            FlowVerdict::Keep
        });
    }

    fn is_connecting(&self, at: super::token::FlowRef) -> bool {
        let flow = self.flows.at_key(at.key());
        flow.is_some_and(|flow| matches!(flow.phase, Phase::Connecting(_)))
    }
}

fn selects(order: &EndOrder, flow: &Flow) -> bool {
    // What must end already is not saved by an order that may spare it.
    let must_end = flow.pending_end.is_some_and(|pending| pending.only_idle_for.is_none());
    if must_end && order.only_idle_for.is_some() {
        return false;
    }
    match order.selector {
        Selector::Flow { id, .. } => flow.id == id,
        Selector::Backend(id) => flow.uses_backend(id),
        Selector::SocketsOf(id) => flow.uses_backend(id) && !flow.is_lent(),
        Selector::Frontend(id) => flow.frontend.entry.id == id,
        Selector::Client(network) => network.contains(&flow.client_addr.ip()),
        Selector::WithSockets => !flow.is_lent(),
        Selector::All => true,
    }
}

/// Whether the backend leg ends with FIN as well.
fn closes_cleanly(reason: EndReason) -> bool {
    reason.client_saw() == ClientSaw::Fin
}

/// Time between two ends of one worker: spreads them over the window, but never beyond the rate.
fn step_ns(pace: Pace, flows: usize, workers: usize) -> u64 {
    let spread = pace.within.as_nanos() as u64 / (flows as u64).max(1);
    let rate_limit = Duration::from_secs(workers as u64).as_nanos() as u64 / u64::from(pace.per_second.max(1));
    spread.max(rate_limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mass_reset_fills_its_window_but_keeps_its_rate() {
        let pace = Pace { within: Duration::from_millis(250), per_second: 50_000 };
        assert_eq!(step_ns(pace, 100, 2), 2_500_000);
        // 100,000 flows of one of two workers: 25,000 a second each, so four seconds.
        assert_eq!(step_ns(pace, 100_000, 2) * 100_000, 4_000_000_000);
        assert_eq!(step_ns(Pace::AT_ONCE, 10, 2), 0);
    }
}
