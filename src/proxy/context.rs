//! State that every part of a worker may use: the turn's time, the table and the plane, epoll, deadlines, and the
//! counters of its entries.
//!
//! It holds no flows. A part that looks at other flows than the present one also takes the [`slab::FlowSlab`], and so
//! its signature says so.

pub(super) mod slab;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::ending::unheard::Unheard;
use super::flow::{Flow, Phase};
use super::parts::ProxyParts;
use super::plane::Plane;
use super::relay::Tools;
use super::relay::pipes::PipePool;
use super::shared::Shared;
use super::timers::Timers;
use super::token::Token;
use crate::model::ids::FlowId;
use crate::model::offload::OffloadPolicy;
use crate::ports::ended::EndedFlow;
use crate::ports::offload::Ticket;
use crate::sys::clock::now_ns;
use crate::sys::epoll::Epoll;
use crate::sys::netlink;
use crate::sys::process::file_limit;
use crate::table::flows::{Field, FlowKey, FlowPlace, FlowState, ShardWriter};
use crate::table::slot::Slot;
use crate::table::worker::WorkerState;

/// One buffer per worker serves all its flows.
const BUFFER_BYTES: usize = 64 * 1024;

pub(super) struct WorkerContext {
    /// The worker's number.
    pub number: usize,
    pub table: ProxyParts,
    pub shared: Arc<Shared>,
    plane: Arc<Plane>,
    pub epoll: Epoll,
    pub timers: Timers,
    pub tools: Tools,
    /// Clients that were reset in this turn.
    pub unheard: Unheard,
    now_ns: u64,
    writer: ShardWriter,
}

impl WorkerContext {
    pub(super) fn new(number: usize, table: ProxyParts, shared: Arc<Shared>, plane: Arc<Plane>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.watch_level(table.orders.wake_fd(number), Token::Wake.pack())?;
        let pipes_max = (file_limit() / 16) as usize / table.workers.len();
        Ok(Self {
            number,
            writer: table.flows.writer(number),
            table,
            shared,
            plane,
            epoll,
            timers: Timers::default(),
            tools: Tools { buffer: vec![0; BUFFER_BYTES].into(), pipes: PipePool::new(pipes_max) },
            unheard: Unheard::new(|ip| netlink::is_local(ip).ok()),
            now_ns: now_ns(),
        })
    }

    /// The time of this turn of the loop, in monotonic ns.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Reads the clock; returns how long the old time was in use.
    pub(super) fn look_at_clock(&mut self) -> Duration {
        let before_ns = std::mem::replace(&mut self.now_ns, now_ns());
        Duration::from_nanos(self.now_ns.saturating_sub(before_ns))
    }

    /// Advances the time.
    #[cfg(test)]
    pub(super) fn pass(&mut self, time: Duration) {
        self.now_ns += time.as_nanos() as u64;
    }

    pub(super) fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Applies another configuration.
    pub(super) fn set_plane(&mut self, plane: Arc<Plane>) {
        self.plane = plane;
    }

    pub(super) fn state(&self) -> &WorkerState {
        &self.table.workers[self.number]
    }

    /// Sends an ended flow to the log; never waits.
    pub(super) fn report_ended(&self, flow: EndedFlow) {
        if !self.table.ended.report(self.number, flow) {
            self.state().ended_unlogged.add(1);
        }
    }

    pub(super) fn slot(&self, key: FlowKey) -> &Slot {
        self.table.flows.slot(&self.writer, key)
    }

    /// Monotonic ns of the flow's last byte, or of its accept.
    pub(super) fn last_byte_ns(&self, flow: &Flow) -> u64 {
        let slot = self.slot(flow.at.key());
        let (up, down) = (slot.word(Field::LastToBackendNs as usize), slot.word(Field::LastToClientNs as usize));
        up.max(down).max(flow.accepted_at_ns)
    }

    /// Of the flow whose entry is at `key`.
    pub(super) fn id_at(&self, key: FlowKey) -> Option<FlowId> {
        self.table.flows.id_at(&self.writer, key)
    }

    /// An id for a connection that never becomes a flow.
    pub(super) fn take_id(&mut self) -> FlowId {
        self.writer.take_id(&self.table.flows)
    }

    /// Publishes the flow's present client and VIP.
    pub(super) fn rename(&mut self, flow: &Flow) {
        self.writer.rename(&self.table.flows, flow.at.key(), flow.id, &flow.origin());
    }

    /// Reports, at the end of a turn, the clients that a reset did not reach.
    pub(super) fn tell_unheard(&mut self) {
        self.unheard.tell(&self.table.late_resets);
    }

    /// Publishes the state of a flow.
    pub(super) fn show_state(&self, flow: &Flow) {
        let (state, backend) = match &flow.phase {
            Phase::Header(_) | Phase::Between => (FlowState::Accepted, None),
            Phase::Connecting(connecting) => {
                (FlowState::Connecting, connecting.attempts.last().map(|attempt| attempt.place.0.id))
            }
            Phase::Relaying(relaying) => (FlowState::Proxied, relaying.backend_used()),
            Phase::Offloading(state) => (FlowState::Proxied, Some(state.place.0.id)),
            Phase::Offloaded { state, .. } => (FlowState::Offloaded, Some(state.place.0.id)),
        };
        let place = FlowPlace { state, ending: flow.pending_end.is_some(), stays_here: flow.stays_here(), backend };
        self.slot(flow.at.key()).set(Field::Place as usize, place.pack());
    }

    /// The policy for offloading flows; `None`: none may be offloaded now.
    pub(super) fn offload_policy(&self) -> Option<OffloadPolicy> {
        let policy = self.plane.leave.filter(|_| self.table.offload.is_open())?;
        Some(if self.table.offload.is_wanted_at_once() { OffloadPolicy::AT_ONCE } else { policy })
    }

    pub(super) fn ticket(&self, flow: &Flow) -> Ticket {
        Ticket { worker: self.number, key: flow.at.key(), id: flow.id }
    }
}
