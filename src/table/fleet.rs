//! Where the parts that make a fleet meet: workers and path tell of this instance's flows, the peer link tells of the others',
//! and the takeover decides what becomes of them.
//!
//! ```text
//!   workers, path ──Local──▶ │ peer │ ══ link ══▶ other instances
//!                            │ link │ ──Remote──▶ takeover ──Request──▶ path
//!                            │      │ ◀──Command─ takeover
//! ```
//! `Remote` and `Command` go through channels that `app` makes; `Local` through a queue here, so that a worker never waits.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use arc_swap::ArcSwap;
use crossbeam_queue::SegQueue;
use serde::{Deserialize, Serialize};

use crate::model::ends::Ends;
use crate::model::fleet::{Epoch, FlowRecord, InstanceName, Passage, Pulse};
use crate::model::ids::FlowId;

/// What happened to a flow of this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Both legs are established, or the flow of another process or instance has become this one's.
    Established(Box<FlowRecord>),
    /// It goes on without sockets: these are closed, and the entries marked.
    Graduated { id: FlowId, passage: Box<Passage> },
    /// It is over, or another instance's.
    Ended(FlowId),
}

/// What the peer link tells the takeover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// What follows, up to `Synced`, are all flows of `owner`: those not among them are gone.
    Begin {
        owner: InstanceName,
        epoch: Epoch,
    },
    /// A flow of `owner` is as this says: new, or changed.
    Flow {
        owner: InstanceName,
        record: Box<FlowRecord>,
    },
    Ended {
        owner: InstanceName,
        id: FlowId,
    },
    Synced {
        owner: InstanceName,
    },
    Pulse {
        owner: InstanceName,
        pulse: Pulse,
    },
    /// `by` looks after these flows from now on, which were this instance's: their packets come to it.
    Claimed {
        by: InstanceName,
        flows: Vec<FlowId>,
    },
    /// The addresses of frontends that `owner` has on its interfaces now.
    Addresses {
        owner: InstanceName,
        vips: Vec<IpAddr>,
    },
    /// What `Command::Ask` was answered with. `None`: nobody who could be asked knows the flow.
    Answer {
        ends: Asked,
        owner: Option<InstanceName>,
    },
}

/// What the takeover wants of the peer link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Tell `owner` that its flows are this instance's from now on.
    Claim { owner: InstanceName, flows: Vec<FlowId> },
    /// Ask all whose flow this packet is. Answered by `Remote::Answer` at the latest after `ASK_WITHIN`.
    Ask(Asked),
    /// Tell all which of the frontends' addresses this host has.
    Addresses(Vec<IpAddr>),
    /// Beat at once, and have every peer answer: a VIP has come.
    Challenge,
}

/// A packet that nobody here knows: where it came from and went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// What is known of one peer; for `baton peers`, the metrics and readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    pub name: InstanceName,
    pub address: SocketAddr,
    pub pulse: Pulse,
    pub epoch: Epoch,
    /// Its flows are all known here.
    pub synced: bool,
    /// Flows of it that are known here.
    pub flows: usize,
    /// Of them, without sockets.
    pub graduated: usize,
    /// Changes of this instance's flows that it has not acknowledged yet.
    pub behind: usize,
    /// How long the oldest of them has waited, ms.
    pub lag_ms: u64,
    /// Times that its copy had to be made anew.
    pub resyncs: u64,
    /// Round trip of the last beat, µs.
    pub round_trip_us: u64,
    /// The frontends' addresses that are on its host.
    pub vips: Vec<IpAddr>,
    /// Why there is no link, in words.
    pub why_not: Option<String>,
}

/// The shared state of a fleet. Without peers nothing of it is used.
#[derive(Debug, Default)]
pub struct Fleet {
    enabled: AtomicBool,
    local: SegQueue<Local>,
    members: ArcSwap<Vec<MemberView>>,
    /// Every peer is synced, or the deadline for that has passed with nobody to be reached.
    ready: AtomicBool,
    pub census: FleetCensus,
}

/// What the fleet's parts have counted.
#[derive(Debug, Default)]
pub struct FleetCensus {
    /// `baton_untracked_packets_total` by outcome: packets of flows that were not this instance's.
    pub forwarded: AtomicU64,
    pub reset: AtomicU64,
    pub adopted: AtomicU64,
    pub dropped: AtomicU64,
    pub tickled: AtomicU64,
    pub takeovers: AtomicU64,
}

impl Fleet {
    /// Whether peers want to know of this instance's flows. While they do not, [`Fleet::tell`] does nothing.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Release);
    }

    /// Leaves word for the peers; never waits. Nobody is woken: the link looks every few milliseconds, for a wake for each
    /// short flow would cost more than the flow.
    pub fn tell(&self, local: impl FnOnce() -> Local) {
        if self.is_enabled() {
            self.local.push(local());
        }
    }

    pub fn next_local(&self) -> Option<Local> {
        self.local.pop()
    }

    pub fn members(&self) -> Arc<Vec<MemberView>> {
        self.members.load_full()
    }

    pub fn show_members(&self, members: Vec<MemberView>) {
        self.members.store(Arc::new(members));
    }

    /// Whether this instance may take a VIP: it has no peers, or knows their flows, or has waited for them long enough.
    pub fn is_ready(&self) -> bool {
        !self.is_enabled() || self.ready.load(Relaxed)
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }
}

impl Asked {
    /// A packet of a client's.
    pub fn up(ends: &Ends) -> Self {
        Self { from: ends.client.socket_addr(), to: ends.vip.socket_addr() }
    }
}
