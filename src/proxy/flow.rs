//! One flow of a worker.
//!
//! ```text
//!             header, or none expected        a backend answered
//!   Header ──────────────────────▶ Connecting ─────────────────▶ Relaying
//!      │                               │                            │
//!      ├───────────────────────────────┴────────────────────────────┤
//!      │                              the sockets stay    the engine asks for them
//!      │                                  Relaying ◀─── Offloading ◀┘
//!      │                                                    │ the sockets are gone
//!      ├──────────────────────────────────────── Offloaded ◀┘
//!      ▼
//!                  ended, with one EndReason
//! ```

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::accept::admission::FrontendHold;
use super::accept::sources::SourceHold;
use super::plane::FrontendPlane;
use super::relay::Direction;
use super::token::FlowRef;
use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::connect::{ClientSeen, ConnectMachine};
use crate::model::end_reason::EndReason;
use crate::model::ids::{BackendId, FlowId};
use crate::model::offload::Eligibility;
use crate::sys::silence::unacknowledged;
use crate::table::backend::BackendEntry;
use crate::table::flows::FlowOrigin;
use crate::table::offload::SocketlessHold;

#[derive(Debug)]
pub(super) struct Flow {
    pub id: FlowId,
    pub at: FlowRef,
    pub client_addr: ClientAddr,
    pub vip: VipAddr,
    /// The port that its client's connection has here; a PROXY header may say that `vip` has another.
    pub own_port: u16,
    pub accepted_at_ns: u64,
    pub frontend: Arc<FrontendPlane>,
    pub phase: Phase,
    /// An order to end it, whose time has not come.
    pub pending_end: Option<PendingEnd>,
    pub holds: Holds,
    /// Whether another process has, or had, descriptors of its sockets: then closing ours may send nothing to the far
    /// ends.
    pub shared: bool,
}

/// The holds that count a flow towards limits.
#[derive(Debug)]
pub(super) struct Holds {
    /// `None`: it no longer counts.
    pub frontend: Option<FrontendHold>,
    pub source: Option<SourceHold>,
}

impl Holds {
    pub(super) fn release(&mut self) {
        (self.frontend, self.source) = (None, None);
    }
}

/// How a flow ends when its time comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingEnd {
    pub reason: EndReason,
    /// Only if no byte has moved for so long.
    pub only_idle_for: Option<Duration>,
}

/// The phase of a flow, with the sockets that the flow has in it.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for the PROXY header on the client's socket.
    Header(OwnedFd),
    Connecting(Box<Connecting>),
    Relaying(Relaying),
    /// The offload engine has both sockets and has not answered yet.
    Offloading(OffloadState),
    /// The BPF program carries its packets; there are no sockets.
    Offloaded {
        state: OffloadState,
        /// It ends with this host all the same: its backend is here.
        stays_here: bool,
        _hold: SocketlessHold,
    },
    /// Its sockets are moving from one phase to the next; this value never leaves a function.
    Between,
}

/// A flow between accept and its backend's answer.
#[derive(Debug)]
pub(super) struct Connecting {
    pub client: OwnedFd,
    pub machine: ConnectMachine,
    /// The machine's open attempts: one, or two while hedging.
    pub attempts: Vec<Attempt>,
}

/// One try to reach one backend. Dropping it frees its place at the backend.
#[derive(Debug)]
pub(super) struct Attempt {
    pub number: u8,
    pub socket: OwnedFd,
    pub address: BackendAddr,
    pub place: BackendHold,
    /// 0: the kernel chose it.
    pub source_port: u16,
}

/// Counts one flow towards its backend, as long as the hold exists or until `count_out`.
#[derive(Debug)]
pub(super) struct BackendHold(pub Arc<BackendEntry>, ByteCounts);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteCounts {
    Yes,
    No,
}

impl BackendHold {
    /// A hold for a flow that is counted already.
    pub(super) fn new(entry: Arc<BackendEntry>) -> Self {
        Self(entry, ByteCounts::Yes)
    }

    /// Returns whether it counted until now.
    pub(super) fn count_out(&mut self) -> bool {
        let counted = mem::replace(&mut self.1, ByteCounts::No) == ByteCounts::Yes;
        if counted {
            self.0.release();
        }
        counted
    }

    pub(super) fn count_again(&mut self) {
        if mem::replace(&mut self.1, ByteCounts::Yes) == ByteCounts::No {
            self.0.count_again();
        }
    }
}

impl Drop for BackendHold {
    fn drop(&mut self) {
        self.count_out();
    }
}

/// The state of a closing flow.
#[derive(Debug)]
pub(super) struct Closing {
    pub reason: EndReason,
    pub client_is_over: bool,
    pub backend_is_over: bool,
    /// Bytes in flight at the last check, and since when there are so many.
    pub left: usize,
    pub left_since_ns: u64,
}

impl Closing {
    pub(super) fn is_over(&self, side: Side) -> bool {
        match side {
            Side::Client => self.client_is_over,
            Side::Backend => self.backend_is_over,
        }
    }
}

/// A flow with both legs established.
#[derive(Debug)]
pub(super) struct Relaying {
    pub client: OwnedFd,
    pub backend: OwnedFd,
    pub backend_addr: BackendAddr,
    pub place: BackendHold,
    /// Source port of the backend leg once it may be used again after this flow; 0 until then.
    pub source_port: u16,
    /// Number of the attempt that won.
    pub attempt: u8,
    /// Client to backend.
    pub up: Direction,
    /// Backend to client.
    pub down: Direction,
    /// The side that sent FIN first.
    pub first_fin: Option<Side>,
    /// Set once FIN was passed on both ways.
    pub closing: Option<Box<Closing>>,
    /// Monotonic ns of the first byte to the backend since its last answer; 0: it has answered.
    pub unanswered_since_ns: u64,
    /// Whether it is in the worker's list of flows that wait for an answer.
    pub watched: bool,
    /// Whether it is in the worker's list of flows with unacknowledged bytes.
    pub delivering: bool,
    /// Whether it is in the worker's list of flows that had their fair share and have more to do.
    pub waits_for_turn: bool,
    pub eligibility: Eligibility,
}

/// The state of a flow whose sockets the offload engine has.
#[derive(Debug)]
pub(super) struct OffloadState {
    pub backend_addr: BackendAddr,
    pub place: BackendHold,
    /// As in [`Relaying`], for when the sockets come back.
    pub source_port: u16,
    pub attempt: u8,
    pub eligibility: Eligibility,
    /// The order to the offload engine.
    pub ending: Option<EndAsked>,
}

/// The offload engine was ordered to end a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndAsked {
    pub reason: EndReason,
    /// Only if no byte has moved lately.
    pub only_if_idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Backend,
}

/// The initial state of a flow.
pub(super) struct Arrival {
    pub id: FlowId,
    pub at: FlowRef,
    pub phase: Phase,
    pub client_addr: ClientAddr,
    pub vip: VipAddr,
    pub now_ns: u64,
    pub frontend: Arc<FrontendPlane>,
    pub frontend_hold: FrontendHold,
    pub source_hold: Option<SourceHold>,
}

impl Flow {
    /// A flow in the phase that it arrives in.
    pub(super) fn new(arrival: Arrival) -> Box<Self> {
        Box::new(Self {
            id: arrival.id,
            at: arrival.at,
            client_addr: arrival.client_addr,
            vip: arrival.vip,
            own_port: arrival.vip.port(),
            accepted_at_ns: arrival.now_ns,
            frontend: arrival.frontend,
            phase: arrival.phase,
            pending_end: None,
            holds: Holds { frontend: Some(arrival.frontend_hold), source: arrival.source_hold },
            shared: false,
        })
    }

    /// The flow's origin, for the table.
    pub(super) fn origin(&self) -> FlowOrigin {
        FlowOrigin {
            accepted_at_ns: self.accepted_at_ns,
            client: self.client_addr,
            vip: self.vip,
            frontend: self.frontend.entry.id,
        }
    }

    /// The client's socket, if the flow has it.
    pub(super) fn client(&self) -> Option<BorrowedFd<'_>> {
        match &self.phase {
            Phase::Header(client) => Some(client.as_fd()),
            Phase::Connecting(connecting) => Some(connecting.client.as_fd()),
            Phase::Relaying(relaying) => Some(relaying.client.as_fd()),
            Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => None,
        }
    }

    /// The flow's backend, if one has answered.
    pub(super) fn backend(&self) -> Option<&Arc<BackendEntry>> {
        match &self.phase {
            Phase::Relaying(relaying) => Some(&relaying.place.0),
            Phase::Offloading(state) | Phase::Offloaded { state, .. } => Some(&state.place.0),
            _ => None,
        }
    }

    /// Whether `id` is its backend, or one that it tries to reach.
    pub(super) fn uses_backend(&self, id: BackendId) -> bool {
        match &self.phase {
            Phase::Header(_) | Phase::Between => false,
            Phase::Connecting(connecting) => connecting.attempts.iter().any(|attempt| attempt.place.0.id == id),
            Phase::Relaying(relaying) => relaying.backend_used() == Some(id),
            Phase::Offloading(state) | Phase::Offloaded { state, .. } => state.place.0.id == id,
        }
    }

    /// Whether the offload engine has its sockets, or has closed them.
    pub(super) fn is_with_engine(&self) -> bool {
        matches!(self.phase, Phase::Offloading(_) | Phase::Offloaded { .. })
    }

    /// Whether it is offloaded and ends with this host all the same.
    pub(super) fn stays_here(&self) -> bool {
        matches!(self.phase, Phase::Offloaded { stays_here: true, .. })
    }

    /// Whether FIN was passed on both ways, but not everything is acknowledged.
    pub(super) fn is_closing(&self) -> bool {
        matches!(&self.phase, Phase::Relaying(relaying) if relaying.closing.is_some())
    }

    /// Whether it holds bytes that were read and not yet delivered.
    pub(super) fn holds_bytes(&self) -> bool {
        matches!(&self.phase, Phase::Relaying(relaying) if relaying.up.is_blocked() || relaying.down.is_blocked())
    }

    /// Whether each end has acknowledged what it was sent.
    pub(super) fn is_acknowledged(&self) -> bool {
        let Phase::Relaying(relaying) = &self.phase else { return true };
        [relaying.client.as_fd(), relaying.backend.as_fd()].iter().all(|leg| unacknowledged(leg).unwrap_or(0) == 0)
    }
}

impl Relaying {
    /// Its backend, unless that has received everything.
    pub(super) fn backend_used(&self) -> Option<BackendId> {
        let is_over = self.closing.as_ref().is_some_and(|closing| closing.is_over(Side::Backend));
        (!is_over).then_some(self.place.0.id)
    }
}

impl Connecting {
    /// `client_seen`: events of the client's socket that were not acted upon.
    pub(super) fn new(client: OwnedFd, now_ns: u64, client_seen: ClientSeen) -> Box<Self> {
        let machine = ConnectMachine::begin(now_ns, client_seen);
        Box::new(Self { client, machine, attempts: Vec::with_capacity(2) })
    }

    /// Takes attempt `number` out, to reset it or to make it the backend leg.
    pub(super) fn take_attempt(&mut self, number: u8) -> Option<Attempt> {
        let index = self.attempts.iter().position(|attempt| attempt.number == number)?;
        Some(self.attempts.remove(index))
    }
}

/// How long an end may be silent, or accept nothing.
pub(super) fn patience_ns(flow: &Flow) -> u64 {
    flow.frontend.settings.keepalive.user_timeout.as_nanos() as u64
}
