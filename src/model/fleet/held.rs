//! What passes between the failover and the offload engine, which holds and forwards what is other instances'.

use std::net::IpAddr;

use super::{FleetId, FlowRecord, PortRange, Unknown, UnknownPacket};
use crate::addr::VipAddr;
use crate::model::ends::{Ends, Key};

/// What the failover asks of the offload engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandbyRequest {
    /// Carry the packets of this flow, which has no sockets and which another instance lists. Again: its positions have
    /// moved on.
    Hold(Box<FlowRecord>),
    /// These held flows are over.
    Drop(Vec<FleetId>),
    /// These held flows are this instance's from now on.
    Inherit(Vec<FleetId>),
    /// These flows of this instance are another's from now on, and held.
    Release(Vec<FleetId>),
    /// All that is held, forwarded or refused has been said again since this process began: what an earlier one left
    /// besides is over, or (`claim`) this instance's.
    Settle { claim: bool },
    /// Send these flows' packets to the instance that has them. `to` is its address on a link that this host is on, too.
    Forward { flows: Vec<AcceptedFlow>, to: IpAddr },
    /// Send such packets there, though nobody has told of a flow, or it is over. A SYN begins a connection here.
    Lend { keys: Vec<Key>, to: IpAddr },
    /// Answer such packets with RST.
    Refuse(Vec<Key>),
    /// Forget what was said of such packets.
    Forget(Vec<Key>),
    /// Say when all that was asked before is done. Answered by `Reached`.
    Report(u64),
    /// Which of these, that are refused, nothing shows an answer of? Answered by `Unanswered`.
    FindUnanswered(Vec<Key>),
    /// What becomes of packets to `vip` that nobody knows; port 0: to all ports of port ranges that have no rule of their own.
    Unknown { vip: VipAddr, unknown: Option<Unknown> },
    /// Whose backend legs come from which ports.
    PortRanges(Vec<PeerPortRange>),
    /// An instance to which packets of this one's flows may come is cut off, or is heard again: what it took for a dead one's it
    /// has reset, at one end. Ask the ends of flows that are quiet, for a while.
    AskEnds,
    /// Routes or interfaces have changed.
    RoutesMoved,
}

/// A flow of another instance, and when that accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedFlow {
    pub ends: Ends,
    /// As in its record.
    pub accepted_unix_ms: u64,
}

/// Source ports of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPortRange {
    pub ports: PortRange,
    /// Where it is reached: one address of each family that it has. None: it is this instance, or it does not live.
    pub at: Vec<IpAddr>,
}

/// What the offload engine says to the failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandbyAnswer {
    /// Packets of these held flows' clients have come.
    Touched(Vec<FleetId>),
    /// These were to be held, and are this instance's own.
    Ours(Vec<FleetId>),
    /// These were to be held or inherited, and the map has no room for them.
    NoStandby(Vec<FleetId>),
    /// There is room again: these, of which that was said, are held.
    Held(Vec<FleetId>),
    /// These were inherited or claimed, and there is nothing of them here any more.
    Over(Vec<FleetId>),
    UnknownPackets(Vec<UnknownPacket>),
    Unanswered(Vec<Key>),
    Reached(u64),
    /// Some of what it has an entry for: flows that it holds, and keys of packets that it forwards, lends or refuses. All in turn.
    Keeps {
        flows: Vec<FleetId>,
        keys: Vec<Key>,
    },
}
