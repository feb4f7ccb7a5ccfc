//! Passes standings between the peers and the VIP's holder.

use std::net::IpAddr;

use super::Exchange;
use crate::model::fleet::message::Message;
use crate::model::fleet::vip::{PeerVip, VipStanding};

impl Exchange {
    /// Sets this instance's standing to the VIP, and sends it to the peers at once.
    pub(crate) fn set_vip(&mut self, standing: VipStanding, now_ns: u64) {
        self.vip = Some(standing);
        self.beat_due_ns = now_ns;
        for session in self.sessions.values_mut() {
            session.say(Message::Vip(standing));
        }
    }

    /// The peers, as the machine of a VIP with the addresses `of` sees them.
    pub(crate) fn vip_peers(&self, of: &[IpAddr], now_ns: u64) -> Vec<PeerVip> {
        self.sessions.values().map(|session| session.vip_peer(of, &self.addresses, now_ns)).collect()
    }
}
