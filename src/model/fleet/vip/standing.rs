//! The standing that instances send to each other about the VIP, and the order of instances that follows from it.

use std::cmp::Reverse;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::SILENT_NS;
use crate::model::fleet::InstanceName;

/// An instance sends its standing at each change and with each beat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipStanding {
    pub part: VipPart,
    /// The number of its claim to the VIP. A later claim has a higher number.
    pub claim: u64,
    /// The instance would serve clients: it may, its threads run, and a backend can be used.
    pub ready: bool,
    /// The instance knows all flows of all peers.
    pub synced: bool,
    /// The instance has heard its gateway, a backend or a client lately.
    pub hears: bool,
    /// The instance has lost the VIP several times within minutes, and is held back.
    pub damped: bool,
    /// Another host answered the instance's latest question for the addresses.
    pub answered: bool,
    pub priority: u8,
    /// The [`InstanceName::tag`] of the holder that the sender hears.
    pub holder: Option<u16>,
    /// The [`address_set`] of its VIP: instances with other addresses decide about another VIP.
    pub addresses: u32,
    /// Offloaded flows of the holder whose backend is on the sender's host. Of all flows these are the hardest to carry on for the sender. The
    /// number stays as it was when the holder went, so that all instances decide by the same numbers.
    pub flows_here: u32,
    /// The [`InstanceName::tag`] of the instance that an operator evacuates the sender's host to, or of the sender if the operator named none.
    pub heir: Option<u16>,
}

/// The part of an instance in the decision about the VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VipPart {
    /// The instance must not or cannot have the VIP.
    #[default]
    Out,
    /// The instance does not have the VIP and would take it.
    Stands,
    /// The instance asks whether another host has the addresses, and is about to add them.
    Takes,
    Holds,
}

/// A peer, as this instance last heard it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerVip {
    pub name: InstanceName,
    /// How long ago the peer itself was last heard; `None`: it has left, or was never heard.
    pub silence_ns: Option<u64>,
    /// Its latest standing; `None`: the peer sends none, because it runs beside keepalived.
    pub standing: Option<VipStanding>,
    /// The peer says that one of the addresses is on its host.
    pub has_address: bool,
    /// Its offloaded flows whose backend is on this host.
    pub flows_here: u32,
}

/// The instance with the highest rank takes a VIP without a holder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank<'a> {
    /// An operator names it, and it is synced and ready.
    is_heir: bool,
    /// First of all, because an instance that is not ready gives the VIP up to any ready one.
    ready: bool,
    undamped: bool,
    synced: bool,
    priority: u8,
    flows_here: Reverse<u32>,
    name: Reverse<&'a InstanceName>,
}

/// Of two holders, the one with the higher rank keeps the VIP.
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
    /// `heirs`: the tags of the instances that operators evacuate hosts to.
    pub(super) fn rank<'a>(&self, name: &'a InstanceName, heirs: &[u16]) -> Rank<'a> {
        let Self { damped, synced, ready, priority, flows_here, .. } = *self;
        let is_heir = synced && ready && heirs.contains(&name.tag());
        let flows_here = Reverse(flows_here);
        Rank { is_heir, ready, undamped: !damped, synced, priority, flows_here, name: Reverse(name) }
    }

    pub(super) fn hold_rank<'a>(&self, name: &'a InstanceName) -> HoldRank<'a> {
        HoldRank { claim: self.claim, priority: self.priority, name: Reverse(name) }
    }

    /// Whether the instance could take the VIP now.
    pub(super) fn is_able(&self) -> bool {
        matches!(self.part, VipPart::Stands | VipPart::Takes) && self.hears
    }
}

impl PeerVip {
    /// Whether this instance heard the peer itself a moment ago.
    pub(super) fn is_heard(&self) -> bool {
        self.silence_ns.is_some_and(|silence_ns| silence_ns < SILENT_NS)
    }

    /// Its standing, if it is about the same addresses.
    pub(super) fn says(&self, addresses: u32) -> Option<&VipStanding> {
        self.standing.as_ref().filter(|standing| standing.addresses == addresses)
    }

    /// Whether the peer holds the VIP. Its standing decides; its host's addresses count only without one, because they may be left over.
    pub(super) fn holds(&self, addresses: u32) -> bool {
        self.says(addresses).map_or(self.has_address, |standing| standing.part == VipPart::Holds)
    }
}

/// A number for a set of addresses, equal at each instance whatever the order in the file.
pub(crate) fn address_set(addresses: &[IpAddr]) -> u32 {
    let mut all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.sort();
    // FNV-1a, which each release computes alike.
    let bytes = all.iter().flat_map(|text| text.bytes().chain([b' ']));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
