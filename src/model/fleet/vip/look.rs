//! The settings of the machine, its looks at the host and the peers, and its orders.

use std::net::IpAddr;

use super::{PeerVip, VipBar, VipGain, VipLoss, VipStanding, VipWhy};
use crate::addr::Mac;
use crate::model::fleet::InstanceName;

/// The settings, which do not change while the machine lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VipTerms {
    pub me: InstanceName,
    pub priority: u8,
    /// The name of the VIP's interface.
    pub interface: String,
    /// The number of its set of addresses, see `address_set`.
    pub addresses: u32,
    /// Whether there are other instances to give the VIP to.
    pub has_peers: bool,
    /// Whether Baton had the VIP on this host until now, by other settings or by the process before this one. Then it gains nothing.
    pub had_it: bool,
}

/// The state of the VIP's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceState {
    Running,
    /// It has no carrier, or is down.
    NoCarrier,
    Absent,
}

/// How many of the VIP's addresses are on the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VipPresence {
    Absent,
    Partial,
    Whole,
}

/// The state of the host and of the peers at one moment.
#[derive(Clone, Debug)]
pub(crate) struct VipLook<'a> {
    pub now_ns: u64,
    /// `None` while the peer link does not run: then a peer's silence proves nothing.
    pub peers: Option<&'a [PeerVip]>,
    pub bar: Option<VipBar>,
    pub ready: bool,
    /// This instance could send a new flow to a backend.
    pub has_backend: bool,
    /// This instance knows all flows of all peers.
    pub synced: bool,
    /// When this host last heard its gateway, a backend or a client; 0: never.
    pub heard_ns: u64,
    /// When a socket of this host last received something from a backend or client on another host; 0: never. ARP passes packet filters that no
    /// socket gets anything through.
    pub socket_ns: u64,
    pub interface: InterfaceState,
    /// The interface has lost all its other addresses, or those of IPv4 if the VIP has one: this host reaches nobody there, and still answers for
    /// the VIP.
    pub is_bare: bool,
    pub here: VipPresence,
}

impl VipLook<'_> {
    pub(super) fn is_cut_off(&self) -> bool {
        self.interface != InterfaceState::Running || self.is_bare
    }
}

/// The caller carries these out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VipOrder {
    /// Send this standing to the peers.
    Tell(VipStanding),
    /// Ask the network for the addresses, and make the gateway and the backends answer something; call `handle_unasked` if
    /// the question could not be sent.
    Ask,
    /// Make the gateway and the backends answer something.
    Rouse,
    /// Add the missing addresses, each for the lease; call `handle_failed` if that fails.
    Add,
    /// Renew the addresses for the lease from now on.
    Renew,
    /// Announce the addresses to all neighbours.
    Announce,
    /// Remove the addresses. With `serves`, flows of this process may need them, so add them to `lo` first.
    Remove {
        serves: bool,
    },
    Note(VipNote),
}

/// Events for the journal, but for [`VipNote::Kept`]; the hooks run at a gain and a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VipNote {
    Gained(VipGain),
    /// The VIP is on this host as before, see [`VipTerms::had_it`].
    Kept,
    Lost(VipLoss),
    /// This host, which does not hold the VIP, reaches nobody.
    CutOff(VipWhy),
    /// This peer holds the VIP, and before it another instance did, or none.
    HeldBy(InstanceName),
    /// Another program had removed the addresses, and this instance added them again.
    Restored,
    /// Another host has one of the addresses, and no peer says so. The machine notes this once for each vacancy.
    Answered {
        by: Mac,
        address: IpAddr,
    },
    /// Another host claimed an address that this instance holds, and this instance announced it again.
    Defended(Mac),
}
