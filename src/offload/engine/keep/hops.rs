//! The interfaces for packets of other instances' flows, and the next hops towards these instances.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::net::IpAddr;

use super::super::Outside;
use super::super::flows::Flows;
use super::BOTH;
use super::standby_flows::StandbyFlows;
use crate::model::fleet::PortRange;
use crate::offload::entry::Egress;
use crate::offload::probe::EntryChange;
use crate::offload::program::Owner;
use crate::ports::offload::PeerPortRange;
use crate::sys::netlink;

/// Results stay valid until routes change.
#[derive(Debug, Default)]
pub(super) struct Hops {
    /// The interface for packets to an address.
    routes: HashMap<IpAddr, Egress>,
    owners: HashMap<IpAddr, Owner>,
    port_ranges: Vec<PeerPortRange>,
}

impl Hops {
    pub(super) fn set_port_ranges(&mut self, outside: &mut Outside, flows: &Flows, port_ranges: Vec<PeerPortRange>) {
        self.port_ranges = port_ranges;
        self.show_port_ranges(outside, flows);
    }

    fn show_port_ranges(&mut self, outside: &mut Outside, flows: &Flows) {
        let port_ranges: Vec<(PortRange, Vec<Owner>)> = self
            .port_ranges
            .clone()
            .into_iter()
            .map(|port_range| {
                (
                    port_range.ports,
                    port_range.at.iter().filter_map(|ip| self.owner_at(outside, flows, *ip).ok()).collect(),
                )
            })
            .collect();
        if let Err(error) = outside.program.set_port_ranges(&port_ranges) {
            tracing::error!(%error, "cannot write the peers' port ranges to the BPF map; replies to peers' new connections may be reset");
        }
    }

    /// The next hop to the instance at `ip`, which is on a link of this host.
    pub(super) fn owner_at(&mut self, outside: &mut Outside, flows: &Flows, ip: IpAddr) -> std::io::Result<Owner> {
        if let Some(owner) = self.owners.get(&ip).filter(|owner| owner.mac.is_some()) {
            return Ok(*owner);
        }
        let route = netlink::route(ip)?;
        if route.gateway.is_some() || route.is_local {
            return Err(std::io::Error::other("it is not on a link of this host"));
        }
        look_at_interface(outside, flows, route.interface);
        let mac = match netlink::neighbour(route.interface, ip)? {
            None => self.mac_by_another_address(ip, route.interface),
            known => known,
        };
        let owner = Owner { ip, mac, interface: route.interface };
        self.owners.insert(ip, owner);
        Ok(owner)
    }

    /// The Ethernet address of the instance at `ip`, found by another of its addresses: the link to it uses one family
    /// only.
    fn mac_by_another_address(&self, ip: IpAddr, interface: u32) -> Option<[u8; 6]> {
        let instance = self.port_ranges.iter().find(|port_range| port_range.at.contains(&ip))?;
        let others = instance.at.iter().filter(|other| **other != ip);
        // The kernel may lack one of the families, and returns an error for it.
        others.copied().find_map(|other| netlink::neighbour(interface, other).unwrap_or_default())
    }

    /// The interface for packets to `ip`. Without a route the entry is made all the same, and fixed once there is one.
    pub(super) fn egress_to(&mut self, outside: &mut Outside, flows: &Flows, ip: IpAddr) -> Egress {
        if let Slot::Occupied(known) = self.routes.entry(ip) {
            return *known.get();
        }
        let egress = by_route(ip);
        self.routes.insert(ip, egress);
        if let Egress::Interface(index) = egress {
            look_at_interface(outside, flows, index);
        }
        egress
    }

    pub(super) fn routes_moved(&mut self, outside: &mut Outside, flows: &Flows, held: &StandbyFlows) {
        self.owners.clear();
        self.show_port_ranges(outside, flows);
        let known = std::mem::take(&mut self.routes);
        let mut moved = HashMap::new();
        for (ip, before) in known {
            let now = self.egress_to(outside, flows, ip);
            if now != before {
                moved.insert(ip, now);
            }
        }
        if moved.is_empty() {
            return;
        }
        for (id, ends) in held.iter().map(|(id, held)| (id.flow, held.ends)).collect::<Vec<_>>() {
            for direction in BOTH {
                let change = match moved.get(&ends.onward(direction).to.ip()) {
                    Some(Egress::Interface(index)) => EntryChange::Interface(*index),
                    Some(Egress::Local) => EntryChange::Local,
                    None => continue,
                };
                if let Err(error) = outside.program.change(id, &[ends.key(direction)], change) {
                    tracing::error!(%error, "cannot change the outgoing interface of a standby entry; the flow's packets may leave by the old route");
                }
            }
        }
    }
}

/// Attaches the program to an interface that other instances' flows may arrive on.
fn look_at_interface(outside: &mut Outside, flows: &Flows, index: u32) {
    if outside.interfaces.attach_for_peers(&mut outside.program, index) {
        outside.show(flows.len());
    }
}

fn by_route(ip: IpAddr) -> Egress {
    match netlink::route(ip) {
        Ok(route) if route.is_local => Egress::Local,
        Ok(route) => Egress::Interface(route.interface),
        Err(_) => Egress::Interface(0),
    }
}
