//! What instances say to each other about the VIP, and which of them comes first.

use std::cmp::Reverse;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::SILENT_NS;
use crate::model::fleet::InstanceName;

/// What an instance says about itself and the VIP, on each change and with each beat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VipStanding {
    pub part: VipPart,
    /// The number of the claim that it holds the VIP by, or takes it with. A later claim has a higher one.
    pub claim: u64,
    /// It would serve clients.
    pub ready: bool,
    /// It knows all flows of all peers.
    pub synced: bool,
    /// It has heard the gateway, a backend or a client lately.
    pub hears: bool,
    /// The VIP has moved to and fro because of it, and it is held back.
    pub damped: bool,
    /// Another host answered its latest question for the addresses.
    pub answered: bool,
    pub priority: u8,
    /// [`InstanceName::tag`] of the instance that the sender hears and that holds the VIP.
    pub holder: Option<u16>,
    /// [`address_set`] of its addresses: instances with other addresses decide about another VIP.
    pub addresses: u32,
}

/// What an instance does about the VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VipPart {
    /// It must not have the VIP, or cannot.
    #[default]
    Out,
    /// It has not got the VIP, and would take it.
    Stands,
    /// It asks whether another host has the addresses, and is about to add them.
    Takes,
    Holds,
}

/// A peer, as it was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerVip {
    pub name: InstanceName,
    /// How long nothing has come from it itself; `None`: it has left, or nothing ever came.
    pub silence_ns: Option<u64>,
    /// Its latest; `None`: it has said nothing about the VIP, as an instance with keepalived or of an earlier release.
    pub standing: Option<VipStanding>,
    /// One of the addresses is on its host.
    pub has_address: bool,
}

/// What decides who takes a VIP that nobody has: the highest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank<'a> {
    undamped: bool,
    synced: bool,
    ready: bool,
    priority: u8,
    name: Reverse<&'a InstanceName>,
}

/// What decides which of two holders keeps the VIP: the highest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HoldRank<'a> {
    claim: u64,
    priority: u8,
    name: Reverse<&'a InstanceName>,
}

impl VipPart {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Stands => "stands by",
            Self::Takes => "takes it",
            Self::Holds => "holds it",
        }
    }
}

impl VipStanding {
    pub(super) fn rank<'a>(&self, name: &'a InstanceName) -> Rank<'a> {
        let Self { damped, synced, ready, priority, .. } = *self;
        Rank { undamped: !damped, synced, ready, priority, name: Reverse(name) }
    }

    pub(super) fn hold_rank<'a>(&self, name: &'a InstanceName) -> HoldRank<'a> {
        HoldRank { claim: self.claim, priority: self.priority, name: Reverse(name) }
    }

    /// It could take the VIP now.
    pub(super) fn is_able(&self) -> bool {
        matches!(self.part, VipPart::Stands | VipPart::Takes) && self.hears
    }
}

impl PeerVip {
    /// It was heard itself, not through others, a moment ago.
    pub(super) fn is_heard(&self) -> bool {
        self.silence_ns.is_some_and(|silence_ns| silence_ns < SILENT_NS)
    }

    /// What it says, if it speaks of the same addresses.
    pub(super) fn says(&self, addresses: u32) -> Option<&VipStanding> {
        self.standing.as_ref().filter(|standing| standing.addresses == addresses)
    }

    /// What it says decides, not what is on its host: that may be left over, and is about to go.
    pub(super) fn holds(&self, addresses: u32) -> bool {
        self.says(addresses).map_or(self.has_address, |standing| standing.part == VipPart::Holds)
    }
}

/// A number for a set of addresses, the same at each instance whatever their order.
pub(crate) fn address_set(addresses: &[IpAddr]) -> u32 {
    let mut all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.sort();
    // FNV-1a, which each release computes alike.
    let bytes = all.iter().flat_map(|text| text.bytes().chain([b' ']));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
