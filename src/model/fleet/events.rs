//! What passes between the parts of one instance: of its own flows to the peer link, from there to the failover, and back.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Abandoned, Epoch, FleetId, FlowRecord, InstanceName, Liveness, Passage};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

/// What happened to a flow of this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Both legs are established, or it has waited for a backend for a while, or the flow of another process or instance has
    /// become this one's. Told again with other ends, it goes on between those.
    Begun(Box<FlowRecord>),
    /// It goes on without sockets: these are closed, and the entries marked.
    Offloaded { id: FlowId, passage: Box<Passage> },
    /// It is over.
    Ended(FlowId),
    /// It goes on with another instance, which has claimed it or which it was left to.
    Left(FlowId),
}

/// What the peer link tells the failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// What follows, up to `Synced`, are all flows of `owner`: those not among them are gone.
    /// `slot`: which eighth of the source ports is its own.
    Begin {
        owner: InstanceName,
        epoch: Epoch,
        slot: u8,
    },
    /// `owner` belongs to the fleet, and its link is at this address: the next hop towards it.
    Joined {
        owner: InstanceName,
        link: IpAddr,
    },
    /// It belongs to it no more. What it had has been said to be over.
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
    /// A flow that was `owner`'s is `to`'s, who may say more of it sooner or later than this comes.
    Moved {
        owner: InstanceName,
        id: FleetId,
        to: InstanceName,
    },
    Synced {
        owner: InstanceName,
    },
    /// Told on each change; after `Command::Ping` also by each peer that answers, changed or not.
    Liveness {
        owner: InstanceName,
        liveness: Liveness,
    },
    /// `by` looks after these flows from now on, which were this instance's: their packets come to it. Without ends: this
    /// instance has not told of any such flow.
    Claimed {
        by: InstanceName,
        flows: Vec<(FleetId, Option<Ends>)>,
    },
    /// The addresses of frontends that `owner` has on its interfaces now.
    Addresses {
        owner: InstanceName,
        vips: Vec<IpAddr>,
    },
    /// Flows that are over, and whose clients a peer could not tell: whoever has their address is to.
    Untold(Vec<Abandoned>),
    /// What `Command::Ask` was answered with.
    Answer {
        ends: Asked,
        said: Said,
    },
}

/// What the others say of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// This one has its flow, or passes it on.
    Known(InstanceName),
    /// None of those that could be asked knows it.
    Unknown,
    /// Somebody who lives could not be asked, or has not answered in time: it may be known all the same.
    Nothing,
}

/// What the failover wants of the peer link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCommand {
    /// Tell `owner` that its flows are this instance's from now on.
    Claim { owner: InstanceName, flows: Vec<FleetId> },
    /// This instance leaves the flow to `to`, who says of it that it is its own: that it ends here is not its end.
    Leave { to: InstanceName, flow: FleetId },
    /// Ask all whose flow this packet is. Answered by `Remote::Answer` at the latest after `ASK_WITHIN_NS`.
    Ask(Asked),
    /// Tell all which of the frontends' addresses this host has.
    Addresses(Vec<IpAddr>),
    /// Tell all of clients that could not be told.
    Untold(Vec<Abandoned>),
    /// Beat at once, and have every peer answer: a VIP has come.
    Ping,
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
    pub liveness: Liveness,
    pub epoch: Epoch,
    /// Which eighth of the source ports is its own. `None`: not heard of yet.
    pub slot: Option<u8>,
    /// Of its software; empty: not heard of yet.
    pub version: String,
    /// Its flows are all known here.
    pub synced: bool,
    /// Flows of it that are known here.
    pub flows: usize,
    /// Of them, without sockets.
    pub offloaded: usize,
    /// It has all flows of this instance, but for the changes that it is behind.
    pub told: bool,
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

impl MemberView {
    /// It is heard now, and not for the first moments, in which its flows are still being told.
    pub fn is_heard(&self) -> bool {
        self.liveness == Liveness::Alive && self.synced || self.liveness == Liveness::Unlinked
    }
}

impl Asked {
    /// A packet of a client's.
    #[cfg(test)]
    pub fn up(ends: &Ends) -> Self {
        Self { from: ends.client.socket_addr(), to: ends.vip.socket_addr() }
    }
}
