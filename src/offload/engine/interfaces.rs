//! Interfaces: where the program sees packets, and where flows' packets leave. Routes change while flows are offloaded:
//! an entry names its outgoing interface, and the kernel looks for the next hop only on that.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::Outside;
use super::enter::LOOPBACK;
use super::flows::Flows;
use super::offloaded::Step;
use crate::model::splice::FlowDirection;
use crate::offload::probe::EntryChange;
use crate::offload::program::Program;
use crate::ports::offload::Stays;
use crate::sys::netdev::HARDWARE_ETHERNET;
use crate::sys::netlink::Watch;
use crate::sys::{netdev, netlink};

/// The interfaces with the program, and those where it may be attached.
#[derive(Debug)]
pub(super) struct Interfaces {
    routes: Watch,
    links: Watch,
    /// Whether the engine attaches the program as needed.
    on_demand: bool,
}

impl Interfaces {
    pub(super) fn open(on_demand: bool) -> io::Result<Self> {
        Ok(Self { routes: Watch::open()?, links: Watch::open_for_links()?, on_demand })
    }

    /// Readable when an interface has come, gone or changed.
    pub(super) fn links(&self) -> BorrowedFd<'_> {
        self.links.as_fd()
    }

    /// Whether an interface has come, gone or changed since the last time.
    pub(super) fn links_changed(&self) -> bool {
        self.links.has_changed()
    }

    /// Packets of a flow may arrive on any interface with an address as soon as a route says so, and the kernel answers
    /// a packet that the program does not see with RST. So the program must be there before. Interfaces with nothing
    /// but a link-local address, such as those of a node's many pods, are left out. Returns whether it was attached
    /// anywhere.
    pub(super) fn attach_everywhere(&self, program: &mut Program) -> bool {
        if !self.on_demand {
            return false;
        }
        let networks = netdev::networks().unwrap_or_default();
        let routable = networks.iter().filter(|(_, network)| is_routable(network.addr()));
        let interfaces = routable.filter_map(|(name, _)| netdev::interface(name).ok());
        // The program looks for Ethernet headers: it cannot be attached to tunnels, and must not complain of each.
        let indices = interfaces.filter(|interface| interface.hardware == HARDWARE_ETHERNET).map(|one| one.index);
        let mut was_missing = false;
        for index in indices.collect::<Vec<_>>() {
            if program.attached().contains(&index) {
                continue;
            }
            if let Err(error) = program.attach(index) {
                tracing::error!(
                    interface = netdev::name(index).ok(),
                    %error,
                    "cannot attach the BPF program; the kernel resets offloaded flows that arrive by this interface"
                );
            }
            was_missing = true;
        }
        was_missing
    }

    /// Attaches the program to the interface that a leg's packets arrive on. Returns whether it was missing there.
    pub(super) fn attach_for_leg(&self, program: &mut Program, index: u32) -> Result<bool, Stays> {
        if program.attached().contains(&index) {
            return Ok(false);
        }
        if !self.on_demand {
            return Err(Stays::Interface);
        }
        if let Err(error) = program.attach(index) {
            tracing::warn!(
                interface = index,
                %error,
                "cannot attach the BPF program; flows with packets that arrive by this interface stay proxied"
            );
            return Err(Stays::Interface);
        }
        tracing::info!(interface = netdev::name(index).ok(), "attached the BPF program to an interface");
        Ok(true)
    }

    /// Attaches the program to `lo`, whichever interfaces the file names: those are the ways in from outside. Returns whether it
    /// is there, and whether it was missing.
    pub(super) fn attach_to_lo(&self, program: &mut Program) -> (bool, bool) {
        if program.attached().contains(&LOOPBACK) {
            return (true, false);
        }
        match program.attach(LOOPBACK) {
            Ok(()) => (true, true),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot attach the BPF program to lo; peers' flows with an end on this host are reset when they move here"
                );
                (false, false)
            }
        }
    }

    /// Detaches the program from `lo`. Returns whether it was there.
    pub(super) fn detach_from_lo(&self, program: &mut Program) -> bool {
        if !program.attached().contains(&LOOPBACK) {
            return false;
        }
        if let Err(error) = program.detach(LOOPBACK) {
            tracing::warn!(%error, "cannot detach the BPF program from lo; it looks at this host's own packets for nothing");
        }
        true
    }

    /// Attaches the program to an interface that other instances' flows may arrive on. Returns whether it was missing
    /// there.
    pub(super) fn attach_for_peers(&self, program: &mut Program, index: u32) -> bool {
        if index == 0 || !self.on_demand || program.attached().contains(&index) {
            return false;
        }
        match program.attach(index) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(
                    interface = index,
                    %error,
                    "cannot attach the BPF program; this host cannot carry peers' flows that arrive by this interface"
                );
                false
            }
        }
    }
}

/// Moves every flow to the interface of its present route. Cheap while no route changes.
pub(super) fn follow_routes(outside: &mut Outside, flows: &Flows) {
    if !outside.interfaces.routes.has_changed() {
        return;
    }
    outside.surroundings.links_changed();
    if !flows.is_empty() {
        outside.attach_everywhere(flows.len());
    }
    // Many flows have few destinations.
    let mut known: HashMap<(IpAddr, IpAddr), Option<u32>> = HashMap::new();
    let mut moved: HashMap<u32, Vec<_>> = HashMap::new();
    for (id, flow) in flows.iter().filter(|(_, flow)| !matches!(flow.step, Step::Over)) {
        let up = (flow.ends.local.socket_addr().ip(), flow.ends.backend.socket_addr().ip());
        let down = (flow.ends.vip.socket_addr().ip(), flow.ends.client.socket_addr().ip());
        for (ends, direction) in [(up, FlowDirection::ToBackend), (down, FlowDirection::ToClient)] {
            let interface = *known.entry(ends).or_insert_with(|| netlink::leaves_by(ends.0, ends.1).ok());
            // If there is no route, or only one on this host, keep the interface.
            if let Some(interface) = interface.filter(|interface| *interface != LOOPBACK) {
                moved.entry(interface).or_default().push((*id, flow.ends.key(direction)));
            }
        }
    }
    for (interface, entries) in moved {
        if let Err(error) = outside.program.change_each(&entries, EntryChange::Interface(interface)) {
            tracing::error!(%error, "cannot move offloaded flows to the interface of their new route");
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
