//! Routes that move while flows are graduated: an entry names the interface that its packets leave by, and the kernel
//! finds the next hop there and nowhere else.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Path;
use super::carried::Step;
use crate::model::splice::Direction;
use crate::path::probe::Change;
use crate::sys::{netdev, routes};

impl Path {
    /// Has every flow leave by the interface that its route has now. Cheap while no route changes.
    pub(super) fn follow_routes(&mut self) {
        if !self.routes.has_changed() {
            return;
        }
        self.attach_everywhere();
        // Many flows go to few places.
        let mut known: HashMap<(IpAddr, IpAddr), Option<u32>> = HashMap::new();
        let mut moved: HashMap<u32, Vec<_>> = HashMap::new();
        for flow in self.flows.values().filter(|flow| !matches!(flow.step, Step::Over)) {
            let up = (flow.ends.local.socket_addr().ip(), flow.ends.backend.socket_addr().ip());
            let down = (flow.ends.vip.socket_addr().ip(), flow.ends.client.socket_addr().ip());
            for (ends, direction) in [(up, Direction::Up), (down, Direction::Down)] {
                let interface = *known.entry(ends).or_insert_with(|| routes::leaves_by(ends.0, ends.1).ok());
                // Without a route, or while it would stay on this host, there is nowhere better to go.
                if let Some(interface) = interface.filter(|interface| *interface != super::enter::LOOPBACK) {
                    moved.entry(interface).or_default().push(flow.ends.key(direction));
                }
            }
        }
        for (interface, keys) in moved {
            if let Err(error) = self.program.change(&keys, Change::Interface(interface)) {
                tracing::error!(%error, "flows cannot follow their routes");
            }
        }
    }

    /// By an interface that has an address packets of a flow may come as soon as a route says so, and a packet of theirs
    /// that the program does not see is answered with RST. So it looks there before.
    fn attach_everywhere(&mut self) {
        if !self.on_demand || self.flows.is_empty() {
            return;
        }
        let networks = netdev::networks().unwrap_or_default();
        let indices = networks.iter().filter_map(|(name, _)| Some(netdev::interface(name).ok()?.index));
        for index in indices.filter(|index| *index != super::enter::LOOPBACK).collect::<Vec<_>>() {
            if !self.program.attached().contains(&index)
                && let Err(error) = self.program.attach(index)
            {
                tracing::error!(interface = netdev::name(index).ok(), %error, "the path cannot look at its packets");
            }
        }
        self.show();
    }
}
