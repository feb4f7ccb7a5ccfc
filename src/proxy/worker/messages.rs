//! Messages to a worker: from the control side, the offload engine and another process.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::LAST_ONES;
use super::Worker;
use crate::model::end_reason::EndReason;
use crate::ports::offload::{Answer, Request, Sockets, Stays, Ticket};
use crate::ports::orders::{EndOrder, Selector};
use crate::proxy::accept::admission::recount_source;
use crate::proxy::accept::listeners::Listener;
use crate::proxy::ending::orders::{end_due, give_turn, give_turns};
use crate::proxy::flow::{Flow, Phase};
use crate::proxy::message::Message;
use crate::proxy::offload;
use crate::proxy::plane::{FrontendPlane, Plane};
use crate::proxy::recover::recover_found;
use crate::proxy::resume::{go_on, serve_again};
use crate::proxy::upgrade::export::{end_taken, forget_moved, put_back};
use crate::proxy::upgrade::import::import;
use crate::proxy::upgrade::message::{Arriving, ImportError, Message as UpgradeMessage};
use crate::proxy::verdict::FlowVerdict;
use crate::sys::socket;

impl Worker {
    pub(super) fn take_messages(&mut self) {
        self.cx.table.orders.clear_wake(self.cx.number);
        while let Some(message) = self.cx.shared.next_message(self.cx.number) {
            match message {
                Message::Reconfigure { plane, open } => self.reconfigure(plane, open),
                Message::StopAccepting => {
                    self.acceptor.stop();
                    self.close_listeners(|_| true);
                }
                Message::TurnAway => {
                    self.acceptor.stop();
                    self.empty_backlogs(|_| true);
                    self.acceptor.refuse(Some(EndReason::Shutdown));
                }
                Message::Refuse(reason) => self.acceptor.refuse(reason),
                Message::Upgrade(message) => self.handle_upgrade(message),
                Message::OffloadAtOnce => offload::try_all_again(&self.cx, &mut self.watch, &mut self.flows),
                Message::Exit => self.exiting = true,
            }
        }
        self.take_answers();
        while let Some(order) = self.cx.table.orders.take(self.cx.number) {
            self.carry_out(order);
        }
    }

    /// Handles the offload engine's answers. Of an earlier process's flows, which may be a million, it takes a part in each turn, so that
    /// connections do not wait for all of them.
    fn take_answers(&mut self) {
        let mut found_flows = 0;
        while let Some(answer) = self.cx.table.offload.next_answer(self.cx.number) {
            match answer {
                Answer::Offloaded { ticket, stays_here } => {
                    self.with_ticket(ticket, |worker, flow| offload::offloaded(&worker.cx, flow, stays_here));
                }
                Answer::Stays { ticket, sockets, why } => self.take_back(ticket, sockets, why),
                Answer::Progress(all) => all.into_iter().for_each(|progress| {
                    self.with_ticket(progress.ticket, |worker, flow| offload::progressed(&worker.cx, flow, &progress));
                }),
                Answer::Moves(progress) => {
                    self.with_ticket(progress.ticket, |worker, flow| offload::moves(&worker.cx, flow, &progress));
                }
                Answer::Ended { last, reason } => {
                    let at = offload::place_of(&self.flows, last.ticket);
                    let Some(mut flow) = at.and_then(|at| self.flows.take(at)) else { continue };
                    let reason = offload::ended(&self.cx, &mut flow, &last, reason);
                    self.finish(flow, reason, 0);
                }
                Answer::Found(found) => {
                    recover_found(&mut self.cx, &mut self.flows, *found);
                    found_flows += 1;
                    if found_flows == FOUND_IN_A_TURN {
                        return self.cx.table.orders.wake(self.cx.number);
                    }
                }
                Answer::AskEnds { until_ns } => self.watch.ask_ends(&mut self.cx, &self.flows, until_ns),
            }
        }
    }

    fn take_back(&mut self, ticket: Ticket, sockets: Sockets, why: Stays) {
        let Some(at) = offload::place_of(&self.flows, ticket) else {
            // A panic has ended it meanwhile.
            return [sockets.client, sockets.backend].into_iter().for_each(socket::reset);
        };
        self.with_flow(at, |worker, flow| {
            let Self { cx, watch, backlog, .. } = worker;
            offload::take_back(cx, watch, backlog, flow, sockets, why)
        });
    }

    /// Calls `act` with the flow of `ticket`; has the offload engine end a flow that is not known here.
    fn with_ticket(&mut self, ticket: Ticket, act: impl FnOnce(&mut Self, &mut Flow) -> FlowVerdict) {
        match offload::place_of(&self.flows, ticket) {
            Some(at) => self.with_flow(at, act),
            None => self.cx.table.offload.ask(Request::End { ticket, unless_moved_since_ns: None }),
        }
    }

    fn reconfigure(&mut self, plane: Arc<Plane>, open: Vec<Listener>) {
        self.cx.set_plane(plane);
        self.gone_frontends.clear();
        let backends = self.cx.plane().frontends.iter().flat_map(|frontend| &frontend.backends);
        let addresses: Vec<_> = backends.filter_map(|backend| backend.current().address()).collect();
        self.connector.ports.retain(|address| addresses.contains(&address));
        let plane = self.cx.plane().clone();
        self.acceptor.follow(&plane);
        self.close_listeners(|listener| plane.listening_on(listener.address).is_none());
        for listener in open {
            self.acceptor.open(&self.cx, listener);
        }
        self.cx.state().plane_version.store(self.cx.plane().version, Relaxed);
        for flow in self.flows.iter_mut() {
            let same = |frontend: &&Arc<FrontendPlane>| frontend.entry.id == flow.frontend.entry.id;
            let Some(frontend) = self.cx.plane().frontends.iter().find(same) else { continue };
            let before = std::mem::replace(&mut flow.frontend, frontend.clone());
            // A flow without its PROXY header was not counted yet, and a flow that only waits for its last bytes is no
            // longer counted.
            if flow.holds.frontend.is_some() && !matches!(flow.phase, Phase::Header(_)) {
                let (sources, now_ns) = (&self.cx.shared.sources, self.cx.now_ns());
                recount_source(&before.settings, frontend, sources, flow.client_addr, &mut flow.holds.source, now_ns);
            }
            if before.timeouts != frontend.timeouts {
                self.watch.retime_later(flow.at);
            }
        }
        if let Some(policy) = self.cx.plane().leave {
            self.watch.offload_by(self.cx.now_ns().saturating_add(policy.after_ns));
        }
        self.watch.set_idle_walk(&mut self.cx);
    }

    /// Takes the connections in the chosen listeners' backlogs.
    fn empty_backlogs(&mut self, choose: impl Fn(&Listener) -> bool) {
        for index in self.acceptor.indices() {
            if self.acceptor.chooses(index, &choose) {
                self.accept_up_to(index, LAST_ONES);
            }
        }
    }

    /// Closes the chosen listeners. The worker first serves their backlogs, which closing would reset.
    fn close_listeners(&mut self, choose: impl Fn(&Listener) -> bool) {
        self.empty_backlogs(&choose);
        for index in self.acceptor.indices() {
            if self.acceptor.chooses(index, &choose) {
                self.acceptor.close(index);
            }
        }
    }

    fn carry_out(&mut self, order: EndOrder) {
        if let Selector::Flow { key, .. } = order.selector {
            if let Some(at) = give_turn(&self.cx, &mut self.flows, key, &order) {
                self.with_flow(at, |worker, flow| end_due(&worker.cx, &mut worker.watch, flow));
            }
            return;
        }
        let connecting = give_turns(&mut self.cx, &mut self.flows, &order);
        if let Selector::Backend(backend) | Selector::SocketsOf(backend) = order.selector {
            for at in connecting {
                self.with_flow(at, |worker, flow| {
                    worker.connector.abandon_attempts(&mut worker.cx, &mut worker.acceptor, flow, backend)
                });
            }
        }
    }

    fn handle_upgrade(&mut self, message: UpgradeMessage) {
        match message {
            UpgradeMessage::Take { flows_max, bytes_max, answer } => {
                let Self { cx, flows, connector, departing, .. } = self;
                let departure = departing.take(cx, flows, &mut connector.ports, flows_max, bytes_max);
                // The caller has stopped waiting: undo it.
                if let Err(unwanted) = answer.send(departure) {
                    unwanted.0.moving.into_iter().for_each(|moving_flow| self.put_back(moving_flow.flow));
                }
            }
            UpgradeMessage::PutBack(moving) => {
                moving.into_iter().for_each(|moving_flow| self.put_back(moving_flow.flow))
            }
            UpgradeMessage::ForgetMoved(moving) => {
                moving.into_iter().for_each(|moving_flow| forget_moved(&mut self.cx, &mut self.flows, moving_flow.flow))
            }
            UpgradeMessage::End(moving, reason) => {
                let Self { cx, flows, connector, .. } = self;
                let ports = &mut connector.ports;
                moving.into_iter().for_each(|moving_flow| end_taken(cx, flows, ports, moving_flow.flow, reason));
            }
            UpgradeMessage::Import { flows, answer } => {
                let refused = flows.into_iter().filter_map(|flow| {
                    let id = flow.transfer.id;
                    self.import(flow).err().map(|error| (id, error))
                });
                let _ = answer.send(refused.collect());
            }
            UpgradeMessage::ShareListeners { answer } => {
                let _ = answer.send(self.acceptor.share());
            }
            UpgradeMessage::ParkListeners { parked, answer } => {
                if self.acceptor.park(&self.cx, parked) {
                    self.empty_backlogs(|_| true);
                }
                let _ = answer.send(());
            }
            UpgradeMessage::ExchangeListener { address, own } => self.acceptor.exchange(&self.cx, address, own),
            UpgradeMessage::SaveTurns { answer } => {
                let _ = answer.send(self.connector.picker.save_turns(self.cx.number, self.cx.plane()));
            }
            UpgradeMessage::RestoreTurns(saved) => self.connector.picker.restore_turns(self.cx.plane(), &saved),
        }
    }

    fn put_back(&mut self, flow: Box<Flow>) {
        if let Some(at) = put_back(&mut self.flows, flow) {
            self.with_flow(at, |worker, flow| {
                serve_again(&mut worker.cx, &mut worker.watch, &mut worker.backlog, flow)
            });
        }
    }

    fn import(&mut self, arriving: Arriving) -> Result<(), ImportError> {
        let at = import(&mut self.cx, &mut self.flows, &mut self.gone_frontends, arriving)?;
        self.with_flow(at, |worker, flow| go_on(&mut worker.cx, &mut worker.watch, &mut worker.backlog, flow));
        Ok(())
    }
}

/// Each takes some microseconds.
const FOUND_IN_A_TURN: usize = 256;
