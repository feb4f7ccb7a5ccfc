//! What two instances say to each other once their link is up.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Abandoned, Asked, BeatKey, Epoch, Farewell, FleetId, FlowRecord, InstanceName};

/// Records of one message, so that none holds up a beat for long: about 16 KiB.
pub(super) const RECORDS_MAX: usize = 64;

/// Clients that are named at once.
pub(super) const UNTOLD_MAX: usize = 256;

/// Flows of one claim.
pub(super) const CLAIM_MAX: usize = 1024;

/// One message. Variants are only ever added at the end, and only together with a new version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The first thing that each side says.
    Hello(Hello),
    /// The other's hello is not taken, and why. The link ends.
    Refuse(String),
    /// What follows, up to `Whole`, are all flows of the sender; what the receiver had of it is worth nothing any more. The
    /// first change after this one has the number `next`.
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
    /// Every change below `next` has come, and been passed on.
    Ack {
        next: u64,
    },
    /// A change is missing: begin again.
    Again,
    /// The sender lives; the receiver answers with `Echo` if asked to.
    Beat {
        number: u32,
        echo: bool,
    },
    Echo {
        number: u32,
    },
    /// These flows, which were the receiver's, are the sender's from now on.
    Claim(Vec<FleetId>),
    /// Whether the receiver has the flow of this packet.
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
    /// What the sender's beats beside the link are sealed with.
    BeatKey(BeatKey),
    /// Whoever has, or gets, their addresses is to tell these clients again.
    Untold(Vec<Abandoned>),
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub name: InstanceName,
    pub epoch: Epoch,
    /// Which eighth of the source ports is its own, from 0.
    pub slot: u8,
    /// Of the software, for people.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// New, or as it is now.
    Flow(Box<FlowRecord>),
    Ended(FleetId),
    /// It goes on, and `to` has said that it looks after it.
    Moved {
        id: FleetId,
        to: InstanceName,
    },
}
