//! A worker: one thread, one epoll, its own listeners and flows.
//!
//! A worker holds everything that its flows need, so that no byte waits for another thread. The control side reaches it
//! only through queues and an eventfd.

mod messages;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::accept::{self, Accepted, Acceptor};
use super::backlog::Backlog;
use super::connect::Connector;
use super::context::WorkerContext;
use super::context::slab::{FlowSlab, TakenFlow};
use super::ending::orders::end_due;
use super::ending::{self, closing};
use super::flow::{Flow, Phase};
use super::offload;
use super::relay::serve::Relay;
use super::tell::tell_established;
use super::timers::Due;
use super::token::{FlowRef, Token};
use super::upgrade::export::Departing;
use super::upgrade::import::GoneFrontends;
use super::verdict::{FlowVerdict, ended_by};
use super::watch::{FlowWatch, LOOKS_PER_TURN};
use crate::model::connect::ClientSeen;
use crate::model::end_reason::EndReason;
use crate::sys::epoll::{Events, Ready};
use crate::table::worker::WorkerState;

/// Connections taken at a time, so that a flood does not keep flows waiting.
const BURST: usize = 64;

/// Connections taken from the backlog of a listener that is about to close.
const LAST_ONES: usize = 65_536;

/// Deadlines handled before events get their turn again.
const DUE_PER_TURN: usize = 256;

/// Events about the end of a socket that one turn handles: at least this many, and as many as there were other events.
/// A backend that dies ends thousands of flows at once, and other flows' bytes must not wait behind these.
const ENDINGS_PER_TURN: usize = 32;

/// Limit for panics: each resets the worker's flows but not the worker; one more ends the process.
const PANICS_MAX: u32 = 5;

pub(super) struct Worker {
    cx: WorkerContext,
    flows: FlowSlab,
    acceptor: Acceptor,
    connector: Connector,
    watch: FlowWatch,
    backlog: Backlog,
    departing: Departing,
    gone_frontends: GoneFrontends,
    exiting: bool,
}

impl Worker {
    pub(super) fn new(cx: WorkerContext) -> io::Result<Self> {
        Ok(Self {
            connector: Connector::new(&cx),
            cx,
            flows: FlowSlab::default(),
            acceptor: Acceptor::new()?,
            watch: FlowWatch::default(),
            backlog: Backlog::default(),
            departing: Departing::default(),
            gone_frontends: GoneFrontends::default(),
            exiting: false,
        })
    }

    /// Serves until the message to exit.
    pub(super) fn run(&mut self) {
        let workers = self.cx.table.workers.clone();
        let state = &workers[self.cx.number];
        state.mark_thread();
        state.mark_alive(true);
        for panics in 1.. {
            match catch_unwind(AssertUnwindSafe(|| self.serve(state))) {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    tracing::error!(worker = self.cx.number, %error, "a worker's event loop failed; Baton resets the worker's flows")
                }
                Err(_) => {
                    tracing::error!(worker = self.cx.number, "a worker panicked; Baton resets the worker's flows")
                }
            }
            if panics == PANICS_MAX {
                tracing::error!(
                    worker = self.cx.number,
                    "a worker failed too often; the process aborts, and the supervisor should restart it"
                );
                std::process::abort();
            }
            self.end_all(EndReason::Internal);
        }
        self.end_all(EndReason::Shutdown);
        self.cx.tell_unheard();
        state.mark_waiting();
        state.mark_alive(false);
    }

    fn serve(&mut self, state: &WorkerState) -> io::Result<()> {
        let mut events = Events::default();
        while !self.exiting {
            let timeout = self.time_to_wait();
            state.mark_waiting();
            let count = self.cx.epoll.wait(&mut events, timeout)?;
            self.cx.look_at_clock();
            state.mark_busy(self.cx.now_ns());
            let mut others = 0;
            for event in (0..count).map(|index| events.event(index)) {
                if event.ends() {
                    self.backlog.put_off(event);
                } else {
                    self.dispatch(event);
                    others += 1;
                }
            }
            self.pump_again();
            for _ in 0..others.max(ENDINGS_PER_TURN) {
                let Some(event) = self.backlog.next_ending() else { break };
                self.dispatch(event);
            }
            self.fire_deadlines();
            self.cx.tell_unheard();
            state.pipes_in_use.store(self.cx.tools.pipes.in_use() as u64, Relaxed);
            state.turn.record(self.cx.look_at_clock());
        }
        Ok(())
    }

    fn time_to_wait(&mut self) -> Option<Duration> {
        if !self.backlog.is_empty() {
            return Some(Duration::ZERO);
        }
        // No deadline of a flow that has ended wakes the worker: short connections leave several each.
        self.cx.timers.forget_first_while(|at| !self.flows.keeps_place_of(at));
        self.watch.forget_first_while(|at| !self.flows.keeps_place_of(at));
        let next = [self.cx.timers.next_ns(), self.watch.next_ns(self.cx.now_ns())].into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.saturating_sub(self.cx.now_ns())))
    }

    fn dispatch(&mut self, ready: Ready) {
        match Token::unpack(ready.token) {
            Token::Wake => self.take_messages(),
            Token::Listener(index) => self.accept_up_to(index as usize, BURST),
            Token::Client(at) => self.with_flow(at, |worker, flow| worker.client_ready(flow, ready)),
            Token::Backend { flow: at, attempt } => {
                self.with_flow(at, |worker, flow| worker.backend_ready(flow, attempt, ready));
            }
        }
    }

    fn client_ready(&mut self, flow: &mut Flow, ready: Ready) -> FlowVerdict {
        match &flow.phase {
            Phase::Header(_) => accept::header_ready(&mut self.cx, flow, ready),
            Phase::Connecting(_) => self.connector.client_ready(&mut self.cx, &mut self.acceptor, flow, ready),
            Phase::Relaying(_) => self.relay().client_ready(flow, ready),
            // The offload engine handles its packets.
            Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => FlowVerdict::Keep,
        }
    }

    fn backend_ready(&mut self, flow: &mut Flow, attempt: u8, ready: Ready) -> FlowVerdict {
        match &flow.phase {
            Phase::Connecting(_) => {
                self.connector.attempt_ready(&mut self.cx, &mut self.acceptor, flow, attempt, ready)
            }
            Phase::Relaying(_) => self.relay().backend_ready(flow, attempt, ready),
            Phase::Header(_) | Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => FlowVerdict::Keep,
        }
    }

    fn relay(&mut self) -> Relay<'_> {
        let (watch, backlog) = (&mut self.watch, &mut self.backlog);
        Relay { cx: &mut self.cx, watch, backlog, ports: &self.connector.ports }
    }

    fn fire_deadlines(&mut self) {
        for _ in 0..DUE_PER_TURN {
            match self.cx.timers.pop(self.cx.now_ns()) {
                None => break,
                Some(Due::Connect(at)) => self.with_flow(at, |worker, flow| {
                    worker.connector.deadline_due(&mut worker.cx, &mut worker.acceptor, flow)
                }),
                Some(Due::Header(at)) => self.with_flow(at, |_, flow| match flow.phase {
                    Phase::Header(_) => FlowVerdict::End(EndReason::BadProxyHeader, libc::ETIMEDOUT),
                    _ => FlowVerdict::Keep,
                }),
                Some(Due::Idle) => {
                    for at in self.watch.walk_for_idle(&mut self.cx, &self.flows) {
                        self.with_flow(at, |worker, flow| closing::idle_due(&worker.cx, flow));
                    }
                }
                Some(Due::End(at)) => self.with_flow(at, |worker, flow| end_due(&worker.cx, &mut worker.watch, flow)),
                Some(Due::Evidence) => self.watch.look_at_unanswered(&mut self.cx, &mut self.flows),
                Some(Due::Leave(at)) => self.with_flow(at, |worker, flow| offload::leave_due(&mut worker.cx, flow)),
                Some(Due::Asked) => self.watch.stop_asking(&self.cx, &self.flows),
                Some(Due::Accept) => self.resume_accepting(),
            }
        }
        for _ in 0..DUE_PER_TURN {
            let Some(at) = self.watch.next_settling(self.cx.now_ns()) else { break };
            self.with_flow(at, |worker, flow| worker.watch.settle(&worker.cx, flow));
        }
        for _ in 0..DUE_PER_TURN {
            let Some(at) = self.watch.next_to_offload(self.cx.now_ns()) else { break };
            self.with_flow(at, |worker, flow| offload::leave_due(&mut worker.cx, flow));
        }
        for _ in 0..DUE_PER_TURN {
            let Some(at) = self.watch.next_retiming() else { break };
            self.with_flow(at, |worker, flow| worker.watch.retime(&worker.cx, flow));
        }
        for _ in 0..LOOKS_PER_TURN {
            let Some(looked) = self.watch.look_at_next(self.cx.now_ns(), &mut self.flows) else { break };
            if let Some(side) = looked.gone {
                self.with_flow(looked.at, |_, _| ended_by(side, libc::ETIMEDOUT));
            } else if looked.is_closing {
                self.with_flow(looked.at, |worker, flow| closing::closing_is_late(&worker.cx, flow));
            }
        }
    }

    fn pump_again(&mut self) {
        for at in self.backlog.take_wanting() {
            self.with_flow(at, |worker, flow| worker.relay().pump_more(flow));
        }
    }

    /// Calls `act` with the flow at `at`, if it still exists, and carries out the verdict.
    fn with_flow(&mut self, at: FlowRef, act: impl FnOnce(&mut Self, &mut Flow) -> FlowVerdict) {
        let Some(mut flow) = self.flows.take(at) else { return };
        let verdict = act(self, &mut flow);
        self.act_on(flow, verdict);
    }

    fn act_on(&mut self, mut flow: Box<Flow>, mut verdict: FlowVerdict) {
        loop {
            verdict = match verdict {
                FlowVerdict::Keep => break,
                FlowVerdict::Connect { readable, ends } => {
                    self.connector.begin(&mut self.cx, &mut self.acceptor, &mut flow, ClientSeen { readable, ends })
                }
                FlowVerdict::Serve => {
                    self.watch.settle_later(&self.cx, flow.at);
                    self.watch.offload_later(&self.cx, &flow);
                    tell_established(&self.cx, &flow);
                    self.relay().pump_both(&mut flow)
                }
                FlowVerdict::End(reason, _) if flow.is_with_engine() => {
                    offload::end_by_engine(&self.cx, &mut flow, reason);
                    break;
                }
                FlowVerdict::End(reason, errno) => return self.finish(flow, reason, errno),
            }
        }
        self.flows.put(flow);
    }

    fn accept_up_to(&mut self, index: usize, most: usize) {
        for _ in 0..most {
            match self.acceptor.accept(&mut self.cx, &mut self.flows, index) {
                Accepted::Nothing => return,
                Accepted::Failed => continue,
                Accepted::Refused => {}
                Accepted::Flow(at, verdict) => self.with_flow(at, |_, _| verdict),
            }
            if self.acceptor.is_paused() {
                return;
            }
        }
    }

    /// Tries again after a pause; resets connections that have waited too long.
    fn resume_accepting(&mut self) {
        let Some(since_ns) = self.acceptor.try_again() else { return };
        for index in self.acceptor.indices() {
            self.accept_up_to(index, BURST);
            if self.acceptor.is_paused() {
                return self.acceptor.stay_paused(&mut self.cx, since_ns);
            }
        }
        self.acceptor.resume(&self.cx, since_ns);
    }

    fn finish(&mut self, flow: Box<Flow>, reason: EndReason, errno: i32) {
        ending::finish(&mut self.cx, &mut self.flows, &mut self.connector.ports, flow, reason, errno);
    }

    /// Resets every proxied flow of this worker; after a panic also the one that it was handling.
    fn end_all(&mut self, reason: EndReason) {
        for index in 0..self.flows.places() {
            match self.flows.take_any(index) {
                // The BPF program carries it on, even without this worker and this process.
                TakenFlow::Flow(flow) if flow.is_with_engine() && reason == EndReason::Shutdown => {
                    self.flows.vacate(&mut self.cx, flow.at.key());
                }
                TakenFlow::Flow(flow) if flow.is_with_engine() => self.flows.put(flow),
                TakenFlow::Flow(flow) => self.finish(flow, reason, 0),
                TakenFlow::Lost(key) => ending::give_up(&mut self.cx, &mut self.flows, key),
                TakenFlow::Nothing => {}
            }
        }
    }
}
