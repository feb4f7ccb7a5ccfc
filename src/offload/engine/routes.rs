//! Routes that move while flows are offloaded: an entry names the interface that its packets leave by, and the kernel
//! finds the next hop there and nowhere else.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Engine;
use super::carried::Step;
use crate::model::splice::FlowDirection;
use crate::offload::probe::EntryChange;
use crate::sys::netdev::HARDWARE_ETHERNET;
use crate::sys::{netdev, netlink};

impl Engine {
    /// Has every flow leave by the interface that its route has now. Cheap while no route changes.
    pub(super) fn follow_routes(&mut self) {
        if !self.routes.has_changed() {
            return;
        }
        self.surroundings.links_changed();
        if !self.flows.is_empty() {
            self.attach_everywhere();
        }
        // Many flows go to few places.
        let mut known: HashMap<(IpAddr, IpAddr), Option<u32>> = HashMap::new();
        let mut moved: HashMap<u32, Vec<_>> = HashMap::new();
        for flow in self.flows.values().filter(|flow| !matches!(flow.step, Step::Over)) {
            let up = (flow.ends.local.socket_addr().ip(), flow.ends.backend.socket_addr().ip());
            let down = (flow.ends.vip.socket_addr().ip(), flow.ends.client.socket_addr().ip());
            for (ends, direction) in [(up, FlowDirection::ToBackend), (down, FlowDirection::ToClient)] {
                let interface = *known.entry(ends).or_insert_with(|| netlink::leaves_by(ends.0, ends.1).ok());
                // Without a route, or while it would stay on this host, there is nowhere better to go.
                if let Some(interface) = interface.filter(|interface| *interface != super::enter::LOOPBACK) {
                    moved.entry(interface).or_default().push(flow.ends.key(direction));
                }
            }
        }
        for (interface, keys) in moved {
            if let Err(error) = self.program.change(&keys, EntryChange::Interface(interface)) {
                tracing::error!(%error, "cannot move offloaded flows to the interface of their new route");
            }
        }
    }

    /// By an interface that has an address packets of a flow may come as soon as a route says so, and a packet of theirs
    /// that the program does not see is answered with RST. So it looks there before. Interfaces that have nothing but a
    /// link-local address, such as those of a node's many pods, are none of its business.
    pub(super) fn attach_everywhere(&mut self) {
        if !self.on_demand {
            return;
        }
        let networks = netdev::networks().unwrap_or_default();
        let routable = networks.iter().filter(|(_, network)| is_routable(network.addr()));
        let interfaces = routable.filter_map(|(name, _)| netdev::interface(name).ok());
        // The program looks for Ethernet headers: it cannot attach to tunnels, nor should it complain of each.
        let indices = interfaces.filter(|interface| interface.hardware == HARDWARE_ETHERNET).map(|one| one.index);
        for index in indices.collect::<Vec<_>>() {
            if self.program.attached().contains(&index) {
                continue;
            }
            if let Err(error) = self.program.attach(index) {
                tracing::error!(
                    interface = netdev::name(index).ok(),
                    %error,
                    "cannot attach the BPF program; the kernel resets offloaded flows that arrive by this interface"
                );
            }
            self.show();
        }
    }
}

fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_with_a_link_local_address_alone_is_left_alone() {
        let routable = |address: &str| is_routable(address.parse().unwrap());
        assert!(routable("10.0.0.1") && routable("fd77::1"));
        assert!(!routable("169.254.1.1") && !routable("fe80::1") && !routable("127.0.0.1") && !routable("::1"));
    }
}
