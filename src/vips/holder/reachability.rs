//! Finds out when this host last heard its gateway, a backend or a client: a host that is cut off must not take the VIP.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use super::HolderParts;
use crate::config::VipSettings;
use crate::ports::suspicion::Suspicion;
use crate::sys::{netdev, netlink};
use crate::table::flows::FlowState;
use crate::vips::ears::Ears;

/// Interval between two looks at the backends while the instance does not ask for the addresses.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Addresses that no host has (RFC 5737, RFC 3849): packets to them take the default route.
const ANYWHERE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// When this host last heard another one.
#[derive(Debug, Default)]
pub(super) struct VipReachability {
    heard_ns: u64,
    socket_ns: u64,
    /// The routers that this host asked.
    gateways: Vec<IpAddr>,
    look_at_ns: u64,
}

impl VipReachability {
    /// Makes the gateway and the backends answer: asks for the gateway's address and has the backends probed.
    pub(super) fn ask(&mut self, parts: &HolderParts, ears: &Ears, settings: &VipSettings) {
        self.gateways = gateways(settings);
        for gateway in &self.gateways {
            let _ = ears.ask(*gateway);
        }
        parts.reachability.want_clients();
        parts.engine.wake();
        parts.registry.backends().iter().for_each(|entry| entry.suspicion.raise(Suspicion::OTHERS_SILENT));
        self.look_at_ns = 0;
    }

    /// A neighbour says that it has `address`.
    pub(super) fn hear(&mut self, address: IpAddr, now_ns: u64) {
        if self.gateways.contains(&address) {
            self.heard_ns = now_ns;
        }
    }

    /// A client on another host looks for the VIP. Peers that ask who has it do not say their address with that, and are no clients.
    pub(super) fn hear_client(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
    }

    /// When this host last heard one of them; 0: never.
    pub(super) fn heard_ns(&mut self, parts: &HolderParts, now_ns: u64, is_urgent: bool) -> u64 {
        if is_urgent || now_ns >= self.look_at_ns {
            self.look_at_ns = now_ns + LOOK_EVERY_NS;
            self.heard_ns = self.heard_ns.max(parts.reachability.client_ns());
            for entry in parts.registry.backends() {
                let answered_ns = entry.answered_ns.load(Relaxed);
                let heard_ns = answered_ns.max(entry.heard_ns.load(Relaxed));
                // A backend on this host answers without any network.
                let is_far = |ip: IpAddr| !netlink::route(ip).is_ok_and(|route| route.is_local);
                let is_news = heard_ns > self.heard_ns || answered_ns > self.socket_ns;
                if is_news && entry.address().is_some_and(|address| is_far(address.ip())) {
                    self.heard_ns = self.heard_ns.max(heard_ns);
                    self.socket_ns = self.socket_ns.max(answered_ns);
                }
            }
        }
        self.heard_ns
    }

    /// When a socket last received something from a backend or client on another host; 0: never. The engine hears more: its program gets
    /// packets before this host's packet filter.
    pub(super) fn socket_ns(&self) -> u64 {
        self.socket_ns
    }

    /// Looks for clients, whom nobody else looks for while their flows are proxied.
    pub(super) fn look_for_clients(&mut self, parts: &HolderParts) {
        let own: Vec<IpAddr> = netdev::addresses().unwrap_or_default().into_iter().map(|(_, ip)| ip).collect();
        let far = parts.flows.iter().filter(|flow| !own.contains(&flow.origin.client.ip()));
        let heard_ns = far.map(|flow| match flow.state {
            FlowState::Offloaded => flow.origin.accepted_at_ns,
            _ => flow.last_to_backend_ns.max(flow.origin.accepted_at_ns),
        });
        self.socket_ns = self.socket_ns.max(heard_ns.max().unwrap_or(0));
    }
}

/// The routers that the interface's default routes lead to.
fn gateways(settings: &VipSettings) -> Vec<IpAddr> {
    let routes = ANYWHERE.iter().filter_map(|ip| netlink::route(ip.parse().ok()?).ok());
    let index = netdev::interface(&settings.interface).map(|it| it.index).unwrap_or(0);
    routes.filter(|route| route.interface == index).filter_map(|route| route.gateway).collect()
}
