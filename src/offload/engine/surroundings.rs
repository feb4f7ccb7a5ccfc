//! Properties of this host's network that forbid offload, and that may change at any time: cards that merge packets,
//! and IPsec.
//!
//! A card that merges packets (LRO) relies on the outgoing card to cut them again, which only some drivers support:
//! others omit data that the kernel needs, and the packet is dropped (gso_type of 0; net/ipv4/tcp_offload.c). The
//! kernel itself turns LRO off where it forwards (net/core/dev.c, dev_disable_lro); Baton leaves that to the operator.
//!
//! IPsec is applied by the kernel's routing, which the program's packets bypass.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use super::Outside;
use super::flows::Flows;
use super::reset::give_up;
use crate::model::end_reason::EndReason;
use crate::model::ends::Ends;
use crate::sys::netlink;
use crate::sys::netlink::xfrm::Policies;

#[derive(Debug)]
pub(super) struct HostSurroundings {
    policies: Policies,
    /// The policies have changed since offloaded flows were last compared with them.
    policies_moved: bool,
    /// Interfaces whose packets may be merged; `None`: not read yet.
    merging: Option<HashSet<u32>>,
    /// Whether an address is on this host; of those that were asked for.
    here: HashMap<IpAddr, bool>,
}

impl HostSurroundings {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { policies: Policies::open()?, policies_moved: false, merging: None, here: HashMap::new() })
    }

    /// An interface may have changed its state or its addresses, or the interfaces below it.
    pub(super) fn links_changed(&mut self) {
        self.merging = None;
        self.here.clear();
    }

    /// Whether the kernel delivers packets to this address on this host.
    pub(super) fn is_here(&mut self, ip: IpAddr) -> bool {
        *self.here.entry(ip).or_insert_with(|| netlink::is_local(ip).unwrap_or(false))
    }

    /// Whether a card may merge the packets that arrive on this interface.
    pub(super) fn merges(&mut self, interface: u32) -> bool {
        let read = || {
            netlink::merging().unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot read which interfaces merge packets (LRO); Baton assumes that none does");
                HashSet::new()
            })
        };
        self.merging.get_or_insert_with(read).contains(&interface)
    }

    /// Notices changed policies.
    pub(super) fn refresh(&mut self) {
        match self.policies.refresh() {
            Ok(changed) => self.policies_moved |= changed,
            Err(error) => tracing::error!(%error, "cannot read the IPsec policies of this host"),
        }
    }

    /// New flows must be compared with the policies.
    pub(super) fn compare_again(&mut self) {
        self.policies_moved = true;
    }

    /// Whether an IPsec policy covers one of a flow's legs.
    pub(super) fn are_covered(&self, ends: &Ends) -> bool {
        let Ends { client, vip, local, backend } = ends;
        self.policies.cover(vip.socket_addr(), client.socket_addr())
            || self.policies.cover(local.socket_addr(), backend.socket_addr())
    }
}

/// Ends offloaded flows that a new policy covers: their packets would leave unencrypted, and an end with the same
/// policy drops them.
pub(super) fn end_covered(outside: &mut Outside, flows: &mut Flows) {
    outside.surroundings.refresh();
    if !std::mem::take(&mut outside.surroundings.policies_moved) || outside.surroundings.policies.is_empty() {
        return;
    }
    let covered = flows.values().filter(|flow| !flow.step.is_ending() && outside.surroundings.are_covered(&flow.ends));
    for id in covered.map(|flow| flow.id).collect::<Vec<_>>() {
        give_up(outside, flows, id, EndReason::Ipsec);
    }
}
