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
            // What goes there will most likely come from there.
            if self.on_demand
                && !self.program.attached().contains(&interface)
                && let Err(error) = self.program.attach(interface)
            {
                tracing::error!(interface = netdev::name(interface).ok(), %error, "the path cannot look at its packets");
            }
            if let Err(error) = self.program.change(&keys, Change::Interface(interface)) {
                tracing::error!(%error, "flows cannot follow their routes");
            }
        }
    }
}
