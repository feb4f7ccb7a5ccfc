//! Messages between the failover and the offload engine, which holds and forwards other instances' flows.

use std::net::IpAddr;

use super::{FleetId, FlowRecord, PortRange, Unknown, UnknownPacket};
use crate::addr::VipAddr;
use crate::model::ends::{Ends, Key};

/// Requests of the failover to the offload engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StandbyRequest {
    /// Carry the packets of this flow, which is offloaded and has a record of another instance. If sent again: the
    /// flow's positions have moved on.
    Hold(Box<FlowRecord>),
    /// An earlier process of this host held these flows for other instances, and they are held still.
    Confirm(Vec<FleetId>),
    /// These held flows have ended.
    Drop(Vec<FleetId>),
    /// These held flows are this instance's from now on.
    Inherit(Vec<FleetId>),
    /// Another instance owns these flows from now on, and they are held for it.
    Release(Vec<FleetId>),
    /// Every entry that is still held, forwarded or refused was requested again since this process began. The rest of
    /// an earlier process's entries is over, or (`claim`) belongs to this instance.
    Settle { claim: bool },
    /// Send these flows' packets to their owner. `to` is its address on a link of this host.
    Forward { flows: Vec<AcceptedFlow>, to: IpAddr },
    /// Send packets with these keys there, though no record names their flow, or it has ended. A SYN begins a
    /// connection here.
    ForwardKeys { keys: Vec<Key>, to: IpAddr },
    /// Answer packets with these keys with RST.
    Refuse(Vec<Key>),
    /// Drop the entries of these keys.
    Forget(Vec<Key>),
    /// Report when all earlier requests are done. Answered by `Reached`.
    Report(u64),
    /// Report those of these refused keys whose ends have not answered. Answered by `Unanswered`.
    FindUnanswered(Vec<Key>),
    /// The rule for unknown packets to `vip`; port 0: to all ports in port ranges that have no rule of their own.
    Unknown { vip: VipAddr, unknown: Option<Unknown> },
    /// Each instance's port range.
    PortRanges(Vec<PeerPortRange>),
    /// A peer that may get packets of this instance's flows is cut off, or is heard again. It has reset flows that it
    /// took for a dead instance's, but only at one end. Challenge the ends of quiet flows for a while.
    AskEnds,
    /// Routes or interfaces have changed.
    RoutesMoved,
}

/// A flow of another instance, and the time when that instance accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcceptedFlow {
    pub ends: Ends,
    /// As in its record.
    pub accepted_unix_ms: u64,
}

/// The source ports of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerPortRange {
    pub ports: PortRange,
    /// Its addresses, one of each family that it has. Empty: it is this instance, or it is dead.
    pub at: Vec<IpAddr>,
}

/// Answers of the offload engine to the failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StandbyAnswer {
    /// Packets of these held flows' clients have come.
    Touched(Vec<FleetId>),
    /// The failover wanted to hold these, but they are this instance's own.
    Ours(Vec<FleetId>),
    /// The map has no room for these, which it should hold or inherit.
    NoStandby(Vec<FleetId>),
    /// The map has room again: it now holds these.
    Held(Vec<FleetId>),
    /// These were inherited or claimed, but the map has nothing of them any more.
    Over(Vec<FleetId>),
    UnknownPackets(Vec<UnknownPacket>),
    Unanswered(Vec<Key>),
    Reached(u64),
    /// A part of its entries: held flows, and keys of packets that it forwards or refuses. The engine reports
    /// all in turn.
    Keeps {
        flows: Vec<FleetId>,
        keys: Vec<Key>,
    },
}
