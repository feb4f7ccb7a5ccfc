//! The thread that offloads flows, watches them, and ends them.
//!
//! ```text
//!   workers ───▶ requests ──▶ │ noting: its packets' addresses on the wire          witness
//!                             │ entering: probe, terms, entries, bytes in flight    enter
//!                             │ RCU barrier: no packet on its way into a socket     settle, barrier (a thread of its own)
//!                             │ closing: drained, acknowledged, closed              settle
//!                             │ watching: ends, silence, bytes                      scan, watch, quiet, doubt
//!   workers ◀─── answers ◀─── │ ending: both ends reset                             reset, later
//!   failover ──▶ requests ──▶ │ keeping other instances' flows                      keep
//! ```
//! No worker waits for this thread, and no flow waits for another flow's RCU barrier: only sockets do.
//!
//! `Engine` is the loop. Its parts have private state. A task that needs several parts is a function that takes these;
//! no function takes the engine.

mod answers;
mod audit;
mod barrier;
mod breaker;
mod doubt;
mod enter;
mod flows;
mod interfaces;
mod keep;
mod later;
mod note;
mod offloaded;
mod quiet;
mod recover;
mod reset;
mod retold;
mod scan;
mod settle;
mod slots;
mod surroundings;
mod tell;
mod unread;
mod untrack;
mod watch;
mod wire;
mod witness;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::Duration;

use super::events::ProgramEvents;
use super::program::{OpenError, Program};
use crate::essential;
use crate::ports::fleet::Fleet;
use crate::ports::late_resets::LateResets;
use crate::ports::offload::{Candidate, Offload, Request};
use crate::ports::orders::Orders;
use crate::ports::reachability::Reachability;
use crate::sys::clock::now_ns;
use crate::sys::fd_passing::{wait_readable, wait_readable_any};
use crate::sys::netdev;
use crate::table::Part;
use crate::table::backend::Registry;
use crate::table::beats::LoopBeats;
use crate::table::fleet::FleetCensus;
use crate::table::flows::FlowTable;
use crate::table::journal::Journal;
use crate::table::offload::{OffloadCensus, OffloadView};
use answers::Answers;
use audit::Audit;
use doubt::Doubts;
use enter::enter;
use flows::Flows;
use interfaces::Interfaces;
use keep::{Keep, take_standby_requests};
use recover::{claim, keep_names, recover, refuse};
use reset::{do_what_is_due, end, reset};
use scan::Scan;
use settle::Settling;
use slots::Slots;
use surroundings::HostSurroundings;
use watch::set_patience;
use wire::EngineWire;
use witness::Witnesses;

/// How often the engine looks at the offloaded flows.
const TICK: Duration = Duration::from_millis(100);

/// Requests that the engine takes before it sends answers.
const BURST: usize = 64;

/// How long a stop waits for flows that are between two steps.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The parts of the table that the offload engine may touch.
#[derive(Clone, Debug)]
pub(crate) struct EngineParts {
    /// The flows that stay proxied, to judge whether offload causes resets.
    pub flows: Part<FlowTable>,
    pub registry: Part<Registry>,
    pub journal: Part<Journal>,
    pub beats: Part<LoopBeats>,
    pub census: Part<OffloadCensus>,
    pub fleet_census: Part<FleetCensus>,
    pub fleet: Part<Fleet>,
    pub offload: Part<Offload>,
    /// To wake the workers that it has answered.
    pub orders: Part<Orders>,
    pub reachability: Part<Reachability>,
    pub late_resets: Part<LateResets>,
}

/// The running thread. If dropped without [`OffloadEngine::stop`], it runs until the process ends.
#[derive(Debug)]
pub(crate) struct OffloadEngine {
    port: Part<Offload>,
    orders: Arc<EngineOrders>,
    thread: Option<JoinHandle<()>>,
}

/// Requests of the control side to the thread.
#[derive(Debug, Default)]
struct EngineOrders {
    /// The thread must not change the map on its own account: another process is about to take it over.
    frozen: AtomicBool,
    recover: AtomicBool,
    stop: AtomicBool,
}

impl OffloadEngine {
    /// Uses the program. An earlier process's flows in it go on, and [`OffloadEngine::recover`] gives them
    /// workers; no new flow gets their ids. If `interfaces` is empty, the engine attaches the program as needed.
    pub(crate) fn start(program: Program, table: EngineParts, on_demand: bool) -> Result<Self, OpenError> {
        let port = table.offload.clone();
        let mut engine = Engine::open(program, table, on_demand)?;
        let orders = engine.outside.orders.clone();
        keep_names(&engine.outside, &mut engine.keep)?;
        port.standby.serve(Box::new(engine.outside.program.flow_map()?));
        // Essential: workers wait for its answers. Offloaded flows go on without it, and the next process recovers
        // them.
        let thread = essential::thread("offload", move || engine.run()).map_err(OpenError::Begin)?;
        Ok(Self { port, orders, thread: Some(thread) })
    }

    /// Gives an earlier process's flows to workers, and resets those that it was offloading when it died.
    pub(crate) fn recover(&self) {
        self.orders.recover.store(true, Release);
        self.port.wake();
    }

    /// With `frozen` the engine leaves the map alone, after it has finished the flows that are between two steps;
    /// without, it continues.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.orders.frozen.store(frozen, Release);
        self.port.wake();
    }

    /// Ends the thread; offloaded flows go on without it.
    pub(crate) fn stop(&mut self) {
        self.orders.stop.store(true, Release);
        self.port.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Everything outside of the engine's own lists: the BPF program, the rest of Baton, the workers, the ends of flows,
/// and this host's network.
#[derive(Debug)]
struct Outside {
    program: Program,
    table: EngineParts,
    orders: Arc<EngineOrders>,
    answers: Answers,
    wire: EngineWire,
    interfaces: Interfaces,
    /// Whether an entry with an end on this host has been made or met since the last round of the audit ended.
    lo_is_wanted: bool,
    surroundings: HostSurroundings,
    slots: Slots,
    /// Why no interface runs the program and none can. `None`: that is not so.
    lost: Option<String>,
}

impl Outside {
    fn open(program: Program, table: EngineParts, on_demand: bool) -> io::Result<Self> {
        Ok(Self {
            answers: Answers::new(table.offload.clone(), table.orders.clone()),
            wire: EngineWire::open(table.census.clone())?,
            interfaces: Interfaces::open(on_demand)?,
            lo_is_wanted: false,
            surroundings: HostSurroundings::open()?,
            slots: Slots::default(),
            lost: None,
            orders: Arc::default(),
            program,
            table,
        })
    }

    fn is_frozen(&self) -> bool {
        self.orders.frozen.load(Acquire)
    }

    /// Publishes the engine's state.
    fn show(&self, flows_held: usize) {
        self.table.census.show(OffloadView {
            why_not: self.lost.as_ref().map(|error| {
                format!(
                    "somebody has removed the pins of its BPF program, and it cannot be pinned again: {error}; Baton tries each second, so make that \
                     directory one of a BPF file system that can be written to"
                )
            }),
            interfaces: self.program.attached().iter().filter_map(|index| netdev::name(*index).ok()).collect(),
            flows_max: self.program.flows_max().into(),
            flows_held: flows_held as u64,
            packets: self.program.counters().map(|counters| counters.labelled().to_vec()).unwrap_or_default(),
        });
    }

    /// Attaches the program to `lo`, for flows with an end on this host. Returns whether it is there.
    fn attach_to_lo(&mut self, flows_held: usize) -> bool {
        let was_wanted = std::mem::replace(&mut self.lo_is_wanted, true);
        if was_wanted && !self.program.attached().contains(&enter::LOOPBACK) {
            // It failed in this round of the audit. Thousands of flows may be told of until the next one.
            return false;
        }
        let (is_there, was_missing) = self.interfaces.attach_to_lo(&mut self.program);
        if was_missing {
            self.show(flows_held);
        }
        is_there
    }

    /// Detaches the program from `lo` if no entry needs it there: it would look at all that this host sends to itself.
    fn detach_from_lo(&mut self, flows_held: usize) {
        if !std::mem::take(&mut self.lo_is_wanted) && self.interfaces.detach_from_lo(&mut self.program) {
            self.show(flows_held);
        }
    }

    /// Attaches the program to every interface that packets of flows may arrive on.
    fn attach_everywhere(&mut self, flows_held: usize) {
        if self.interfaces.attach_everywhere(&mut self.program) {
            self.show(flows_held);
        }
    }
}

/// The thread's state.
struct Engine {
    outside: Outside,
    /// The program's events about flows and about unknown packets.
    events: ProgramEvents,
    /// Flows that may be offloaded soon.
    witnesses: Witnesses,
    flows: Flows,
    settling: Settling,
    /// Flows of other instances.
    keep: Keep,
    scan: Scan,
    doubts: Doubts,
    audit: Audit,
    reattach_at_ns: u64,
}

impl Engine {
    fn open(program: Program, table: EngineParts, on_demand: bool) -> Result<Self, OpenError> {
        Ok(Self {
            settling: Settling::start(table.offload.clone()).map_err(OpenError::Begin)?,
            flows: Flows::default(),
            events: program.events()?,
            witnesses: Witnesses::default(),
            doubts: Doubts::default(),
            scan: Scan::new(program.moved()?),
            audit: Audit::default(),
            reattach_at_ns: 0,
            keep: Keep::new(table.fleet.clone(), table.offload.clone()),
            outside: Outside::open(program, table, on_demand).map_err(OpenError::Begin)?,
        })
    }

    fn run(&mut self) {
        if self.outside.table.fleet.is_enabled() {
            // Packets of others' flows may come before this instance's first flow, and before the peers' first record.
            self.outside.attach_everywhere(self.flows.len());
        }
        self.outside.show(self.flows.len());
        let beat = self.outside.table.beats.begin("offload");
        loop {
            beat.turn();
            let wait = self.time_to_wait();
            if let Err(error) = self.wait(wait) {
                tracing::error!(%error, "the offload engine's wait for requests failed; it tries again");
                std::thread::sleep(TICK);
            }
            self.outside.table.offload.clear_wake();
            if self.outside.orders.stop.load(Acquire) {
                return self.leave();
            }
            self.turn();
        }
    }

    fn wait(&self, limit: Duration) -> io::Result<()> {
        let (wake, links) = (self.outside.table.offload.wake_fd(), self.outside.interfaces.links());
        match self.takes_events() {
            true => wait_readable_any(&[wake, links, self.events.as_fd()], limit),
            false => wait_readable_any(&[wake, links], limit),
        }
    }

    fn turn(&mut self) {
        while self.take_requests() {
            self.outside.answers.wake_workers();
            // Many candidates may come at once, and flows that were offloaded before may already be ending.
            self.take_events();
        }
        if self.outside.orders.recover.swap(false, AcqRel) {
            recover(&mut self.outside, &mut self.flows, &mut self.keep, &mut self.witnesses);
        }
        take_standby_requests(&mut self.keep, &mut self.outside, &mut self.flows, &mut self.witnesses);
        self.settling.settle(&mut self.outside, &mut self.flows);
        do_what_is_due(&self.outside, &mut self.flows);
        self.take_events();
        self.watch();
        self.outside.answers.wake_workers();
    }

    /// Takes a batch of requests. Returns whether more may wait.
    fn take_requests(&mut self) -> bool {
        let mut candidates = Vec::new();
        let mut taken = 0;
        while taken < BURST
            && let Some(request) = self.outside.table.offload.next_request()
        {
            taken += 1;
            match request {
                Request::Offload(candidate) => candidates.push(*candidate),
                Request::End { ticket, unless_moved_since_ns } => {
                    // The flow may be one of the candidates.
                    self.enter(std::mem::take(&mut candidates));
                    end(&mut self.outside, &mut self.flows, ticket, unless_moved_since_ns);
                }
                Request::Witness { id, ends } => {
                    self.witnesses.announced(&mut self.outside, self.flows.len(), id, ends)
                }
                Request::Forget { id, reason, bytes } => {
                    self.flows.judge.held_back_ended(id, reason, bytes);
                    self.witnesses.forget(&self.outside.program, id);
                }
                Request::Assign { ticket, patience_ns } => {
                    claim(&mut self.outside, &mut self.flows, ticket, patience_ns)
                }
                Request::Patience { ticket, patience_ns } => {
                    // The flow may be one of the candidates.
                    self.enter(std::mem::take(&mut candidates));
                    set_patience(&self.outside, &mut self.flows, ticket, patience_ns);
                }
                Request::Refuse { id, why } => refuse(&self.outside, &mut self.flows, id, &why),
            }
        }
        self.enter(candidates);
        taken == BURST
    }

    fn enter(&mut self, candidates: Vec<Candidate>) {
        enter(&mut self.outside, &mut self.flows, &mut self.settling, &mut self.witnesses, candidates);
    }

    fn time_to_wait(&self) -> Duration {
        let now_ns = now_ns();
        if let Some(wait) = self.settling.wants_turn_in() {
            return wait;
        }
        let next_ns = self.flows.later.next_ns().filter(|_| !self.outside.is_frozen()).unwrap_or(u64::MAX);
        TICK.min(Duration::from_nanos(next_ns.saturating_sub(now_ns)))
    }

    /// Finishes flows that are between two steps, as far as that takes a moment, and resets the others.
    fn leave(&mut self) {
        let until_ns = now_ns() + STOP_WAIT.as_nanos() as u64;
        while now_ns() < until_ns && self.outside.table.offload.in_flight() > 0 {
            self.take_requests();
            self.settling.settle(&mut self.outside, &mut self.flows);
            let _ = wait_readable(self.outside.table.offload.wake_fd(), settle::RETRY);
            self.outside.table.offload.clear_wake();
        }
        let unfinished: Vec<_> = self.flows.values().filter(|flow| flow.has_sockets()).map(|flow| flow.id).collect();
        for id in unfinished {
            reset(&self.outside, &mut self.flows, id);
        }
    }
}
