//! Where the data plane and the offload engine meet: flows that are lent, given back, carried and ended.
//!
//! ```text
//!   worker                                         path
//!     │  Witness: it may be offloaded soon ─────────────▶ │  looks at its packets, which its sockets still get
//!     │  Offload(Candidate): both sockets ─────────▶ │  probes, enters, closes in silence
//!     │ ◀───────── Stays: both sockets, and why       │
//!     │ ◀───────── Offloaded                          │
//!     │ ◀───────── Progress, now and then             │
//!     │  End: reset it ─────────────────────────────▶ │
//!     │ ◀───────── Ended, or Moves: it was not idle   │
//!     │ ◀───────── Found: an earlier process's flow   │
//!     │  Claim: it has a place here ────────────────▶ │
//! ```
//! A flow stays with its worker for its whole life, with its place in the table and its part of every limit; only its
//! bytes take another way.

mod held;
mod wake;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use crossbeam_queue::SegQueue;

use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

pub use crate::model::fleet::{PeerPortRange, StandbyAnswer, StandbyRequest};
pub use crate::model::flow::Ticket;
pub use crate::model::stays::Stays;
pub use held::{CarriedKeys, StandbyQueues};
pub use wake::EngineWake;

/// A flow that may be offloaded. Nobody reads or writes its sockets but the offload engine until it answers.
#[derive(Debug)]
pub struct Candidate {
    pub ticket: Ticket,
    pub sockets: Sockets,
    pub record: Record,
    /// Bytes that were passed on, without those held.
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    /// Silence of one side, while the other waits for it, that ends the flow.
    pub patience_ns: u64,
}

/// Both legs, and what was read from one and not yet written to the other.
#[derive(Debug)]
pub struct Sockets {
    pub client: OwnedFd,
    pub backend: OwnedFd,
    pub held_up: Vec<u8>,
    pub held_down: Vec<u8>,
}

/// What a later process must know to list a flow as this one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub accepted_at_ns: u64,
    pub connect_us: u64,
    /// `BackendEntry::hash_key`: names frontend and backend.
    pub backend_key: u64,
    /// As it is shown and counted; another than the connection's own if a PROXY header said so.
    pub client: ClientAddr,
}

/// How far an offloaded flow has come. Times are nanoseconds on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub ticket: Ticket,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
}

impl Progress {
    /// Nothing that is not known already.
    pub fn none(ticket: Ticket) -> Self {
        Self { ticket, bytes_to_backend: 0, bytes_to_client: 0, last_to_backend_ns: 0, last_to_client_ns: 0 }
    }
}

/// A flow of an earlier process that the offload engine carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: FlowId,
    pub record: Record,
    /// The client's end of its connection.
    pub connection: ClientAddr,
    pub vip: VipAddr,
    pub backend: BackendAddr,
    pub local: LocalAddr,
    pub bytes_to_backend: u64,
    pub bytes_to_client: u64,
    pub last_to_backend_ns: u64,
    pub last_to_client_ns: u64,
}

/// What the workers ask of the offload engine.
#[derive(Debug)]
pub enum Request {
    /// A flow that has sockets may be offloaded soon: the offload engine is to see what its packets look like on the wire.
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
    /// Reset both ends, unless a byte moved since this time. Answered by `Ended` or `Moves`.
    End {
        ticket: Ticket,
        unless_moved_since_ns: Option<u64>,
    },
    /// A flow that the offload engine carries already belongs to this ticket from now on.
    Claim {
        ticket: Ticket,
        patience_ns: u64,
    },
    /// Silence that ends a flow has become another.
    Patience {
        ticket: Ticket,
        patience_ns: u64,
    },
    /// A flow that was found has no place here, and is to be reset.
    Refuse {
        id: FlowId,
        why: String,
    },
}

/// What the offload engine says to a flow's worker.
#[derive(Debug)]
pub enum Answer {
    /// Its packets pass the worker by from now on.
    Offloaded(Ticket),
    Stays {
        ticket: Ticket,
        sockets: Sockets,
        why: Stays,
    },
    Progress(Vec<Progress>),
    /// It moved a byte too lately to be ended.
    Moves(Progress),
    /// It is over. `None`: as the worker asked.
    Ended {
        last: Progress,
        reason: Option<EndReason>,
    },
    Found(Box<Found>),
    /// Another instance may have reset one end of flows that have sockets here: until then, in monotonic ns, those ends are to be asked that
    /// are quiet for a moment.
    AskEnds {
        until_ns: u64,
    },
}

/// Queues between workers and offload engine, and what each of them has to know of the other.
#[derive(Debug)]
pub struct Offload {
    requests: SegQueue<Request>,
    pub(super) wake: EngineWake,
    answers: Box<[SegQueue<Answer>]>,
    open: AtomicBool,
    /// Flows are to leave however young they are: their host is about to go.
    hurried: AtomicBool,
    /// None is offloaded, for flows were reset right after they had been, and somebody wants to know whether that is still so.
    retry_wanted: AtomicBool,
    /// Source and destination of backend legs whose sockets are gone: the kernel would give the port again.
    reserved: papaya::HashSet<(LocalAddr, BackendAddr)>,
    /// As `reserved`, of flows that began here and are, or were until a moment ago, another instance's: its entries would take the answers to a
    /// new connection.
    reserved_elsewhere: papaya::HashSet<(LocalAddr, BackendAddr)>,
    /// Flows whose sockets the offload engine has.
    in_flight: AtomicU32,
    /// Flows of other instances.
    pub held: StandbyQueues,
}

impl Offload {
    pub fn new(workers: usize) -> io::Result<Self> {
        Ok(Self {
            requests: SegQueue::new(),
            wake: EngineWake::new()?,
            answers: (0..workers).map(|_| SegQueue::new()).collect(),
            open: AtomicBool::new(false),
            hurried: AtomicBool::new(false),
            retry_wanted: AtomicBool::new(false),
            reserved: papaya::HashSet::default(),
            reserved_elsewhere: papaya::HashSet::default(),
            in_flight: AtomicU32::new(0),
            held: StandbyQueues::default(),
        })
    }

    /// Whether flows may be lent now.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub fn set_open(&self, open: bool) {
        self.open.store(open, Relaxed);
    }

    /// Whether flows are to leave as soon as they can, however young they are.
    pub fn is_hurried(&self) -> bool {
        self.hurried.load(Relaxed)
    }

    pub fn set_hurried(&self, hurried: bool) {
        self.hurried.store(hurried, Relaxed);
    }

    /// None is offloaded, for flows were reset right after they had been: has it tried whether that is still so.
    pub fn want_retry(&self) {
        self.retry_wanted.store(true, Relaxed);
    }

    pub fn take_retry_wanted(&self) -> bool {
        self.retry_wanted.swap(false, Relaxed)
    }

    /// Asks the offload engine; never waits.
    pub fn ask(&self, request: Request) {
        if matches!(request, Request::Offload(_)) {
            self.in_flight.fetch_add(1, Relaxed);
        }
        self.requests.push(request);
        self.wake.wake_once();
    }

    /// Asks the offload engine for what concerns flows of other instances; never waits.
    pub fn ask_standby(&self, request: StandbyRequest) {
        self.held.push(request);
        self.wake.wake_once();
    }

    /// Readable when there may be requests.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Makes the offload engine look at its requests though there may be none.
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// Call it before taking requests, so that none is missed.
    pub fn clear_wake(&self) {
        self.wake.clear();
    }

    pub fn next_request(&self) -> Option<Request> {
        self.requests.pop()
    }

    /// Leaves an answer for `worker`; it must still be woken.
    pub fn answer(&self, worker: usize, answer: Answer) {
        self.answers[worker].push(answer);
    }

    pub fn next_answer(&self, worker: usize) -> Option<Answer> {
        self.answers[worker].pop()
    }

    /// Keeps a source port from being used again towards `backend`.
    pub fn reserve(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved.pin().insert((local, backend));
    }

    pub fn release(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved.pin().remove(&(local, backend));
    }

    /// As [`Offload::reserve`], for a flow of another instance that has a port of this one's.
    pub fn reserve_elsewhere(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved_elsewhere.pin().insert((local, backend));
    }

    pub fn release_elsewhere(&self, local: LocalAddr, backend: BackendAddr) {
        self.reserved_elsewhere.pin().remove(&(local, backend));
    }

    pub fn is_reserved(&self, local: LocalAddr, backend: BackendAddr) -> bool {
        let leg = (local, backend);
        self.reserved.pin().contains(&leg) || self.reserved_elsewhere.pin().contains(&leg)
    }

    /// Whether the kernel must not choose source ports.
    pub fn keeps_ports(&self) -> bool {
        self.is_open() || !self.reserved.is_empty() || !self.reserved_elsewhere.is_empty()
    }

    /// The path has given a flow's sockets back, or closed them.
    pub fn count_out(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Flows whose sockets the offload engine has.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }
}
