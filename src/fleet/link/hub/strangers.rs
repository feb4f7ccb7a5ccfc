//! Connections to the peer port that became no link.

use std::net::IpAddr;

use super::{Hub, INPUTS_MAX};

impl Hub {
    /// A connection failed before it became a link.
    pub(super) fn stranger(&mut self, from: IpAddr, why: &str, said_nothing: bool, now_ns: u64) {
        let known = self.settings.peers.iter().find(|peer| peer.address.ip() == from);
        if let Some(peer) = known.filter(|peer| !self.links.contains_key(&peer.name)) {
            return self.exchange.handle_failure(&peer.name, why);
        }
        // That is how `baton check --host` at a peer asks whether the port answers.
        if known.is_some() && said_nothing {
            return;
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
