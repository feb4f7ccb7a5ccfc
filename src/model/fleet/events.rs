//! Events between the parts of one instance: about its own flows to the peer link, from there to the failover, and
//! back.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{
    Abandoned, Epoch, FleetId, FlowRecord, InstanceName, Liveness, Passage, PeerSummary, PortRange, SavedPeerFlow,
    SavedTraits,
};
use crate::model::ends::Ends;
use crate::model::humane::duration_ms;
use crate::model::ids::FlowId;

/// An event of a flow of this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Both legs are established, or the flow has waited for a backend for a while, or this instance took the flow over
    /// from another process or instance. If told again with other ends, the flow goes on between those.
    Begun(Box<FlowRecord>),
    /// The BPF program carries the flow: its sockets are closed, and its entries marked.
    Offloaded { id: FlowId, passage: Box<Passage> },
    /// It is over.
    Ended(FlowId),
    /// It goes on with another instance, which has claimed it or to which this one left it.
    Left(FlowId),
}

/// The peer link's events for the failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// Begins a snapshot: the events up to `Synced` name all flows of `owner`; flows that they do not name are gone.
    /// `slot`: the part of the source ports that is its own.
    Begin {
        owner: InstanceName,
        epoch: Epoch,
        slot: u8,
    },
    /// `owner` belongs to the fleet. Its link has this address, which is the next hop towards it.
    Joined {
        owner: InstanceName,
        link: IpAddr,
    },
    /// `owner` no longer belongs to the fleet. `Ended` was sent for its flows.
    Gone {
        owner: InstanceName,
    },
    /// A flow of `owner` is as this says: new, or changed.
    Flow {
        owner: InstanceName,
        record: Box<FlowRecord>,
    },
    Ended {
        owner: InstanceName,
        id: FleetId,
    },
    /// A flow of `owner` now belongs to `to`, which may send its own record before or after this event.
    Moved {
        owner: InstanceName,
        id: FleetId,
        to: InstanceName,
    },
    Synced {
        owner: InstanceName,
    },
    /// Sent on each change; after `Command::Ping` also for each peer that answers, changed or not.
    Liveness {
        owner: InstanceName,
        liveness: Liveness,
    },
    /// `by` now owns these flows, which were this instance's: their packets come to it. Without ends: this instance has
    /// not told of any such flow.
    Claimed {
        by: InstanceName,
        flows: Vec<(FleetId, Option<Ends>)>,
    },
    /// `owner` has backend legs from these ports, among others.
    Ports {
        owner: InstanceName,
        ports: PortRange,
    },
    /// The addresses of frontends that `owner` has on its interfaces now.
    Addresses {
        owner: InstanceName,
        vips: Vec<IpAddr>,
    },
    /// The addresses of frontends that `owner`'s host keeps on `lo`, and has nowhere else.
    Kept {
        owner: InstanceName,
        vips: Vec<IpAddr>,
    },
    /// Ended flows whose clients a peer could not reset: the instance that has their address must do it.
    Untold(Vec<Abandoned>),
    /// The answer to `Command::Ask`.
    Answer {
        ends: Asked,
        said: Said,
    },
    /// What the process before this one knew of `owner`.
    RestoredPeer {
        owner: InstanceName,
        known: Box<SavedTraits>,
    },
    /// Flows of `owner` that the process before this one knew.
    RestoredFlows {
        owner: InstanceName,
        flows: Vec<SavedPeerFlow>,
    },
    /// All that the process before this one knew has been told.
    Restored,
    /// Another process is about to follow this one: tell what is known up to here.
    Save,
}

/// The peers' answer about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// This instance has the packet's flow, or forwards it.
    Known(InstanceName),
    /// No peer that could be asked knows it.
    Unknown,
    /// A live peer could not be asked, or did not answer in time: it may know the packet all the same.
    Nothing,
}

/// The failover's orders to the peer link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCommand {
    /// Tell `owner` that its flows are this instance's from now on.
    Claim { owner: InstanceName, flows: Vec<FleetId> },
    /// This instance leaves the flow to `to`, which claims to own it: the end of the flow here is not its end.
    Leave { to: InstanceName, flow: FleetId },
    /// Ask all peers whether they have this packet's flow. Answered by `Remote::Answer` within `ASK_WITHIN_NS`.
    Ask(Asked),
    /// Tell all which of the frontends' addresses this host has.
    Addresses(Vec<IpAddr>),
    /// Tell all which of the frontends' addresses this host keeps on `lo`, and has nowhere else.
    Kept(Vec<IpAddr>),
    /// Tell all peers of clients that could not be reset.
    Untold(Vec<Abandoned>),
    /// Have this peer name all its flows again.
    AskAgain(InstanceName),
    /// Send a beat at once, and have every peer answer: a VIP has come here.
    Ping,
}

/// A packet that no entry and no socket of this host knows: its source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

/// The view of one peer; for `baton peers`, the metrics and readiness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    pub name: InstanceName,
    pub address: SocketAddr,
    pub liveness: Liveness,
    pub epoch: Epoch,
    /// The part of the source ports that is its own. `None`: it has not said yet.
    pub slot: Option<u8>,
    /// Version of its software; empty: it has not said yet.
    pub version: String,
    /// Whether this instance knows all its flows.
    pub synced: bool,
    /// Number of its flows that this instance knows.
    pub flows: usize,
    /// How many of them are offloaded.
    pub offloaded: usize,
    /// Whether it has all flows of this instance, except for the changes of `behind`.
    pub told: bool,
    /// Changes of this instance's flows that it has not acknowledged yet.
    pub behind: usize,
    /// Age of the oldest such change, ms.
    pub lag_ms: u64,
    /// How often this instance had to send it a new snapshot.
    pub resyncs: u64,
    /// Round trip of the last beat, µs.
    pub round_trip_us: u64,
    /// The frontends' addresses that are on its host.
    pub vips: Vec<IpAddr>,
    /// Why there is no link, for people to read.
    pub why_not: Option<String>,
    /// What it last said of itself. `None`: nothing yet, or its release sends no summaries.
    #[serde(default)]
    pub summary: Option<PeerSummary>,
    #[serde(default)]
    pub last_heard: LastHeard,
}

/// How long ago a peer was last heard, by each of its signs, ms. `None`: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastHeard {
    /// By the peer link.
    pub link_ms: Option<u64>,
    /// By a beat beside the link.
    pub beat_ms: Option<u64>,
    /// By another instance, which said so.
    pub others_ms: Option<u64>,
}

impl MemberView {
    /// Whether this instance hears it, and not only since the first moments, in which its flows are still on their way.
    pub(crate) fn is_heard(&self) -> bool {
        self.liveness == Liveness::Alive && self.synced || self.liveness == Liveness::Unlinked
    }
}

impl LastHeard {
    /// `12 s ago by its link, 1.2 s ago by a beat`; empty: never.
    pub(crate) fn in_words(self) -> String {
        let signs = [(self.link_ms, "its link"), (self.beat_ms, "a beat"), (self.others_ms, "another instance")];
        let heard = signs.into_iter().filter_map(|(ago_ms, by)| Some(format!("{} ago by {by}", duration_ms(ago_ms?))));
        heard.collect::<Vec<_>>().join(", ")
    }
}

impl Asked {
    /// A packet from the client.
    #[cfg(test)]
    pub(crate) fn up(ends: &Ends) -> Self {
        Self { from: ends.client.socket_addr(), to: ends.vip.socket_addr() }
    }
}
