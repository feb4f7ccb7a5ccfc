//! The port between workers and offload engine: flows that are offered, given back, offloaded and ended.
//!
//! ```text
//!   worker                                      offload engine
//!     │  Witness: it may be offloaded soon ──────────▶ │  checks its packets, which its sockets still get
//!     │  Offload(Candidate): both sockets ───────────▶ │  probes, enters, closes without a segment
//!     │ ◀───────── Stays: both sockets, and why        │
//!     │ ◀───────── Offloaded                           │
//!     │ ◀───────── Progress, now and then              │
//!     │  End: reset it ──────────────────────────────▶ │
//!     │ ◀───────── Ended, or Moves: it was not idle    │
//!     │ ◀───────── Found: an earlier process's flow    │
//!     │  Assign: it has a place here ────────────────▶ │
//! ```
//! A flow stays with its worker until its end, with its place in the table and its part of every limit; only its bytes
//! take another path.

mod standby;
mod wake;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use crossbeam_queue::SegQueue;

use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

pub(crate) use crate::model::fleet::{PeerPortRange, StandbyAnswer, StandbyRequest};
pub use crate::model::flow::Ticket;
pub use crate::model::stays::Stays;
pub(crate) use standby::{OffloadedKeys, StandbyQueues};
pub(crate) use wake::EngineWake;

/// A flow that may be offloaded. Until the offload engine answers, only the engine reads and writes its sockets.
#[derive(Debug)]
pub struct Candidate {
    pub ticket: Ticket,
    pub sockets: Sockets,
    pub record: Record,
    /// Bytes that were passed on, without the held ones.
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    /// How long a silence of one side, while the other waits for it, ends the flow.
    pub patience_ns: u64,
}

/// Both legs, and the bytes that were read from one and not yet written to the other.
#[derive(Debug)]
pub struct Sockets {
    pub client: OwnedFd,
    pub backend: OwnedFd,
    pub held_up: Vec<u8>,
    pub held_down: Vec<u8>,
}

/// The identity that a later process needs to list a flow in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub accepted_at_ns: u64,
    pub connect_us: u64,
    /// `BackendEntry::hash_key`: identifies frontend and backend.
    pub backend_key: u64,
    /// The client for status and metrics: another address than the connection's if a PROXY header said so.
    pub client: ClientAddr,
}

/// The progress of an offloaded flow. Times are nanoseconds on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub ticket: Ticket,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
}

impl Progress {
    /// Progress without any news.
    pub(crate) fn none(ticket: Ticket) -> Self {
        Self { ticket, bytes_to_backend: 0, bytes_to_client: 0, last_to_backend_ns: 0, last_to_client_ns: 0 }
    }
}

/// A flow of an earlier process that is still offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: FlowId,
    pub record: Record,
    /// The client's end of its connection.
    pub connection: ClientAddr,
    pub vip: VipAddr,
    pub backend: BackendAddr,
    pub local: LocalAddr,
    /// Whether it ends with this host, because its backend is here.
    pub stays_here: bool,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
}

/// Requests of the workers to the offload engine.
#[derive(Debug)]
pub enum Request {
    /// A proxied flow may be offloaded soon: the offload engine must check its packets' addresses and numbers on the
    /// wire.
    Witness {
        id: FlowId,
        ends: Ends,
    },
    /// Such a flow has ended in its sockets.
    Forget {
        id: FlowId,
        reason: EndReason,
        bytes: [u64; 2],
    },
    Offload(Box<Candidate>),
    /// Reset both ends, unless a byte has moved since this time. Answered by `Ended` or `Moves`.
    End {
        ticket: Ticket,
        unless_moved_since_ns: Option<u64>,
    },
    /// An offloaded flow of the engine belongs to this ticket from now on.
    Assign {
        ticket: Ticket,
        patience_ns: u64,
    },
    /// The patience with a silent flow has changed.
    Patience {
        ticket: Ticket,
        patience_ns: u64,
    },
    /// The worker has no place for a found flow: the engine must reset it.
    Refuse {
        id: FlowId,
        why: String,
    },
}

/// Answers of the offload engine to a flow's worker.
#[derive(Debug)]
pub enum Answer {
    /// The BPF program carries its packets from now on.
    Offloaded {
        ticket: Ticket,
        /// As [`Found::stays_here`].
        stays_here: bool,
    },
    Stays {
        ticket: Ticket,
        sockets: Sockets,
        why: Stays,
    },
    Progress(Vec<Progress>),
    /// A byte has moved too lately for the flow to be ended.
    Moves(Progress),
    /// The flow is over. `None`: by the worker's request.
    Ended {
        last: Progress,
        reason: Option<EndReason>,
    },
    Found(Box<Found>),
    /// Another instance may have reset one end of proxied flows. Until this time, in monotonic ns, the worker must
    /// probe the ends that are quiet for a moment.
    AskEnds {
        until_ns: u64,
    },
}

/// The queues between workers and offload engine, and the flags that each sets for the other.
#[derive(Debug)]
pub struct Offload {
    requests: SegQueue<Request>,
    pub(super) wake: EngineWake,
    answers: Box<[SegQueue<Answer>]>,
    open: AtomicBool,
    /// Flows must leave even if they are young: an evacuation is under way.
    at_once: AtomicBool,
    /// Offload has stopped, because flows were reset right after it, and an operator wants it tried again.
    retry_wanted: AtomicBool,
    /// Source and destination of backend legs without sockets: the kernel would give the port to another connection.
    reserved: papaya::HashSet<(LocalAddr, BackendAddr)>,
    /// As `reserved`, for flows that began here and that belong to another instance, or did until a moment ago: their
    /// entries would take the answers to a new connection.
    reserved_for_peers: papaya::HashSet<(LocalAddr, BackendAddr)>,
    /// Number of flows whose sockets the offload engine has.
    in_flight: AtomicU32,
    /// Requests about other instances' flows.
    pub standby: StandbyQueues,
}

impl Offload {
    pub(crate) fn new(workers: usize) -> io::Result<Self> {
        Ok(Self {
            requests: SegQueue::new(),
            wake: EngineWake::new()?,
            answers: (0..workers).map(|_| SegQueue::new()).collect(),
            open: AtomicBool::new(false),
            at_once: AtomicBool::new(false),
            retry_wanted: AtomicBool::new(false),
            reserved: papaya::HashSet::default(),
            reserved_for_peers: papaya::HashSet::default(),
            in_flight: AtomicU32::new(0),
            standby: StandbyQueues::default(),
        })
    }

    /// Whether the engine accepts flows now.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub fn set_open(&self, open: bool) {
        self.open.store(open, Relaxed);
    }

    /// Whether flows must leave as soon as possible, even if they are young.
    pub(crate) fn is_wanted_at_once(&self) -> bool {
        self.at_once.load(Relaxed)
    }

    pub(crate) fn set_wanted_at_once(&self, at_once: bool) {
        self.at_once.store(at_once, Relaxed);
    }

    /// Offload has stopped, because flows were reset right after it: has the engine try it again.
    pub(crate) fn want_retry(&self) {
        self.retry_wanted.store(true, Relaxed);
    }

    pub(crate) fn take_retry_wanted(&self) -> bool {
        self.retry_wanted.swap(false, Relaxed)
    }

    /// Sends a request to the offload engine; never waits.
    pub(crate) fn ask(&self, request: Request) {
        if matches!(request, Request::Offload(_)) {
            self.in_flight.fetch_add(1, Relaxed);
        }
        self.requests.push(request);
        self.wake.wake_once();
    }

    /// Sends a request about other instances' flows to the offload engine; never waits.
    pub(crate) fn ask_standby(&self, request: StandbyRequest) {
        self.standby.push(request);
        self.wake.wake_once();
    }

    /// Readable when there may be requests.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Makes the offload engine look at its requests even if the queue is empty.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// Call it before taking requests, so that none is missed.
    pub(crate) fn clear_wake(&self) {
        self.wake.clear();
    }

    pub fn next_request(&self) -> Option<Request> {
        self.requests.pop()
    }

    /// Queues an answer for `worker`, which must still be woken.
    pub fn answer(&self, worker: usize, answer: Answer) {
        self.answers[worker].push(answer);
    }

    pub(crate) fn next_answer(&self, worker: usize) -> Option<Answer> {
        self.answers[worker].pop()
    }

    /// Keeps a source port from being reused towards `backend`.
    pub(crate) fn reserve(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved.pin().insert((local, backend));
    }

    pub(crate) fn release(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved.pin().remove(&(local, backend));
    }

    /// As [`Offload::reserve`], for a flow of another instance with one of this instance's ports.
    pub(crate) fn reserve_for_peer(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved_for_peers.pin().insert((local, backend));
    }

    pub(crate) fn release_for_peer(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved_for_peers.pin().remove(&(local, backend));
    }

    pub(crate) fn is_reserved(&self, local: LocalAddr, backend: BackendAddr) -> bool {
        let leg = (local, backend);
        self.reserved.pin().contains(&leg) || self.reserved_for_peers.pin().contains(&leg)
    }

    /// Whether the kernel must not choose source ports.
    pub(crate) fn keeps_ports(&self) -> bool {
        self.is_open() || !self.reserved.is_empty() || !self.reserved_for_peers.is_empty()
    }

    /// The engine has given a flow's sockets back, or closed them.
    pub(crate) fn count_out(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Number of flows whose sockets the offload engine has.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }
}
