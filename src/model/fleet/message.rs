//! Messages between two instances after the handshake of their link.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::summary::InstanceSummary;
use super::vip::VipStanding;
use super::{Abandoned, Asked, BeatKey, Epoch, Farewell, FleetId, FlowRecord, InstanceName, PortRange};

/// Records of one message, about 16 KiB: few enough that no message delays a beat for long.
pub(super) const RECORDS_MAX: usize = 64;

/// Clients of one message.
pub(super) const UNTOLD_MAX: usize = 256;

/// Flows of one claim.
pub(super) const CLAIM_MAX: usize = 1024;

/// One message. Variants are only ever added at the end, and only together with a new version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The first message of each side.
    Hello(Hello),
    /// The other's hello is refused, for this reason. The link ends.
    Refuse(String),
    /// Begins a snapshot: what follows, up to `Whole`, names all flows of the sender, and replaces everything that the
    /// receiver knew of them. The first change after it has the number `next`.
    Begin {
        next: u64,
    },
    Records(Vec<FlowRecord>),
    /// The changes with the numbers `first`, `first` + 1 ...
    Changes {
        first: u64,
        changes: Vec<Change>,
    },
    Whole,
    /// The receiver has every change below `next`, and has passed it on.
    Ack {
        next: u64,
    },
    /// A change is missing: send a new snapshot.
    Again,
    /// The sender lives; the receiver answers with `Echo` if asked to.
    Beat {
        number: u32,
        echo: bool,
    },
    Echo {
        number: u32,
    },
    /// The sender owns these flows of the receiver from now on.
    Claim(Vec<FleetId>),
    /// Asks whether the receiver has the flow of this packet.
    Ask {
        number: u32,
        packet: Asked,
    },
    Answer {
        number: u32,
        known: bool,
    },
    /// The frontends' addresses that are on the sender's host.
    Addresses(Vec<IpAddr>),
    Farewell(Farewell),
    /// The secret that seals the sender's beats.
    BeatKey(BeatKey),
    /// The instance that has or gets these clients' addresses must reset them again.
    Untold(Vec<Abandoned>),
    /// The sender's standing to the VIP.
    Vip(VipStanding),
    /// The frontends' addresses that the sender's host keeps on `lo` for flows, and has nowhere else. Its kernel drops packets from them.
    Kept(Vec<IpAddr>),
    /// The sender as it sees itself, for people. Since version 2.
    Summary(Box<InstanceSummary>),
    /// The ports from which the sender connects to backends. Since version 3.
    Ports(PortRange),
}

/// The sender of a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub name: InstanceName,
    pub epoch: Epoch,
    /// The part of the source ports that is its own, from 0.
    pub slot: u8,
    /// Version of the software, for people.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A new flow, or its present state.
    Flow(Box<FlowRecord>),
    Ended(FleetId),
    /// The flow goes on: `to` has said that it owns it.
    Moved {
        id: FleetId,
        to: InstanceName,
    },
}
