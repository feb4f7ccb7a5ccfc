//! The instances' port ranges, for packets of flows that no instance has told of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::agenda::Agenda;
use super::members::Members;
use super::peer::PeerState;
use super::timer::Timer;
use crate::model::fleet::{InstanceName, PeerPortRange, PortRange, SLOTS, StandbyRequest, port_range};

/// For so long after an address has come here, unknown packets to it go to its last owner, if that lives: they may
/// belong to handshakes that began there, or to flows that it has not told of yet.
const LEAVES_NS: u64 = 5_000_000_000;

/// The port ranges as the offload engine was last told them, and the last owners of the frontends' addresses.
#[derive(Debug, Default)]
pub(super) struct PortRanges {
    shown: Vec<PeerPortRange>,
    /// The one peer that has each of the frontends' addresses, or was the last to have it.
    last_owners: BTreeMap<IpAddr, InstanceName>,
    /// Addresses that have just come here, and until when they count as such.
    just_came: BTreeMap<IpAddr, u64>,
}

impl PortRanges {
    pub(super) fn address_came(&mut self, now_ns: u64, ip: IpAddr, agenda: &mut Agenda) {
        self.just_came.insert(ip, now_ns + LEAVES_NS);
        agenda.later(now_ns + LEAVES_NS, Timer::Left(ip));
    }

    /// Returns whether the address no longer counts as having just come.
    pub(super) fn left_for_good(&mut self, now_ns: u64, ip: IpAddr) -> bool {
        let over = self.just_came.get(&ip).is_some_and(|until_ns| *until_ns <= now_ns);
        over && self.just_came.remove(&ip).is_some()
    }

    pub(super) fn gone(&mut self, owner: &InstanceName) {
        self.last_owners.retain(|_, last| last != owner);
    }

    /// The frontends' addresses have changed.
    pub(super) fn configure(&mut self, vips: &BTreeSet<IpAddr>) {
        self.last_owners.retain(|ip, _| vips.contains(ip));
        self.just_came.retain(|ip, _| vips.contains(ip));
    }

    /// An address that is moving still belongs to its last owner; an address that several instances have belongs to
    /// none alone.
    pub(super) fn see_last_owners(&mut self, members: &Members) {
        for ip in members.vips() {
            let mut owners = members.peers().filter(|(_, peer)| peer.serves() && peer.has(ip));
            match (owners.next().map(|(name, _)| name.clone()), owners.next()) {
                (Some(owner), None) => drop(self.last_owners.insert(ip, owner)),
                (Some(_), Some(_)) => drop(self.last_owners.remove(&ip)),
                (None, _) => {}
            }
        }
    }

    /// Tells the offload engine the port range of each instance, if one has changed. It needs all of them, because
    /// Baton answers no packets to other ports.
    pub(super) fn show(&mut self, members: &Members, agenda: &mut Agenda) {
        let settings = members.settings();
        if !settings.carries {
            return;
        }
        let part = |slot| port_range(settings.ports.clone(), slot);
        let own = part(settings.slot).map(|ports| PeerPortRange { ports, at: Vec::new() });
        let peers = members.peers().filter_map(|(name, peer)| {
            let at = if peer.may_have_legs() { members.hops(name) } else { Vec::new() };
            Some(PeerPortRange { ports: part(peer.slot()?)?, at })
        });
        // A peer that was not heard yet may have any of the other ranges: a packet to them may belong to a flow that
        // another instance has.
        let known = |slot: &u8| *slot == settings.slot || members.peers().any(|(_, peer)| peer.slot() == Some(*slot));
        let unheard = members.peers().any(|(_, peer)| peer.slot().is_none());
        let unknown = (0..SLOTS).filter(|slot| unheard && !known(slot));
        let unknown = unknown.filter_map(|slot| Some(PeerPortRange { ports: part(slot)?, at: Vec::new() }));
        // The engine searches them in this order.
        let mut port_ranges: Vec<_> = self.frontends_of_other_process(members);
        port_ranges.extend(own.into_iter().chain(peers).chain(unknown));
        if port_ranges != self.shown {
            self.shown.clone_from(&port_ranges);
            agenda.standby(StandbyRequest::PortRanges(port_ranges));
        }
    }

    /// Frontends' ports whose unknown packets go to a peer without any record: it has their address, or had it until a
    /// moment ago. A handshake that began there must end there, and it tells of no handshake before its end.
    fn frontends_of_other_process(&self, members: &Members) -> Vec<PeerPortRange> {
        let vips = &members.settings().vips;
        let ports: BTreeSet<_> = vips.iter().map(|vip| vip.port()).collect();
        let of = |port| vips.iter().filter(move |vip| vip.port() == port).map(|vip| vip.ip());
        let port_ranges = ports.into_iter().filter_map(|port| {
            let mut came = of(port).filter(|ip| self.just_came.contains_key(ip)).peekable();
            let owners: BTreeSet<_> = match came.peek() {
                Some(_) => came.filter_map(|ip| self.last_owners.get(&ip)).collect(),
                // The offload engine distinguishes frontends by port alone, and this instance serves the one with this
                // port.
                None if of(port).any(|ip| members.is_here(ip)) => return None,
                None => of(port).filter_map(|ip| self.last_owners.get(&ip)).collect(),
            };
            let mut owners = owners.into_iter().filter(|owner| members.peer(owner).is_some_and(PeerState::serves));
            let (owner, None) = (owners.next()?, owners.next()) else { return None };
            Some(PeerPortRange { ports: PortRange { first: port, last: port }, at: members.hops(owner) })
        });
        port_ranges.collect()
    }

    #[cfg(test)]
    pub(super) fn shown(&self) -> &[PeerPortRange] {
        &self.shown
    }
}
