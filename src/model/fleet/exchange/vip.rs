//! What passes between the peers and whoever decides about the VIP.

use std::net::IpAddr;

use super::Exchange;
use crate::model::fleet::message::Message;
use crate::model::fleet::vip::{PeerVip, VipStanding};

impl Exchange {
    /// How this instance stands to the VIP from now on: the peers are told at once.
    pub(crate) fn set_vip(&mut self, standing: VipStanding, now_ns: u64) {
        self.vip = Some(standing);
        self.beat_due_ns = now_ns;
        for session in self.sessions.values_mut() {
            session.say(Message::Vip(standing));
        }
    }

    /// The peers, as whoever decides about the VIP sees them; its addresses are `of`.
    pub(crate) fn vip_peers(&self, of: &[IpAddr], now_ns: u64) -> Vec<PeerVip> {
        self.sessions.values().map(|session| session.vip_peer(of, now_ns)).collect()
    }
}
