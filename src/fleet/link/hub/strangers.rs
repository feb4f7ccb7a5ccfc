//! Connections to the peer port that became no link.

use std::net::IpAddr;

use super::{Hub, INPUTS_MAX};

impl Hub {
    /// Whether a peer at this address is linked.
    pub(super) fn has_link_from(&self, ip: IpAddr) -> bool {
        let at = self.settings.peers.iter().find(|peer| peer.address.ip() == ip);
        at.is_some_and(|peer| self.links.contains_key(&peer.name))
    }

    /// A connection failed before it became a link.
    pub(super) fn stranger(&mut self, from: IpAddr, why: &str, now_ns: u64) {
        let known = self.settings.peers.iter().find(|peer| peer.address.ip() == from);
        if let Some(peer) = known.filter(|peer| !self.links.contains_key(&peer.name)) {
            return self.exchange.handle_failure(&peer.name, why);
        }
        let minute_ns = 60_000_000_000;
        self.complained.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < minute_ns);
        if self.complained.len() < INPUTS_MAX && self.complained.insert(from, now_ns).is_none() {
            let who =
                if known.is_some() { "a program at a linked peer's address" } else { "a program that is not a peer" };
            tracing::warn!(%from, "{who} connected to the peer link: {why}");
        }
    }
}
