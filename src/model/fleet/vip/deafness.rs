//! A holder that its network reaches by ARP and not by IP, as behind a packet filter: it answers its peers' questions for the VIP, so that none of
//! them takes it, and serves nobody.

use super::{PeerVip, VipLook, VipMachine, VipOrder};

/// Peers ask at least once a second while nobody holds the VIP that they hear.
const QUESTION_LASTS_NS: u64 = 2_500_000_000;
/// How long the holder must hear nobody from the first question on. Probes of backends take less.
const DEAF_NS: u64 = 1_500_000_000;
/// The same for a holder that has lost the VIP several times within minutes. If no host hears any other, each believes that it is the deaf one.
const DEAF_DAMPED_NS: u64 = 30_000_000_000;
const ROUSE_EVERY_NS: u64 = 500_000_000;

/// Evidence that the holder does not hear what it should.
#[derive(Debug, Default)]
pub(super) struct Deafness {
    /// When another host last asked for the addresses.
    asked_ns: Option<u64>,
    /// Since when others ask, and no peer is heard.
    since_ns: Option<u64>,
    roused_ns: u64,
}

impl Deafness {
    /// Another host asks for the addresses.
    pub(super) fn hear_question(&mut self, now_ns: u64) {
        self.asked_ns = Some(now_ns);
    }
}

impl VipMachine {
    /// Whether a peer asks for the addresses, and this host has heard no peer, backend or client since then.
    pub(super) fn is_deaf(&mut self, look: &VipLook<'_>, peers: &[PeerVip]) -> bool {
        let now_ns = look.now_ns;
        let deafness = &mut self.deafness;
        let is_asked = deafness.asked_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < QUESTION_LASTS_NS);
        let hears_peers = look.peers.is_none() || peers.iter().any(PeerVip::is_heard);
        if !is_asked || hears_peers || !self.settings.has_peers {
            deafness.since_ns = None;
            return false;
        }
        let since_ns = *deafness.since_ns.get_or_insert(now_ns);
        if look.socket_ns >= since_ns {
            deafness.since_ns = Some(now_ns);
            return false;
        }
        if now_ns.saturating_sub(deafness.roused_ns) >= ROUSE_EVERY_NS {
            deafness.roused_ns = now_ns;
            self.orders.push_back(VipOrder::Rouse);
        }
        now_ns - since_ns >= if self.damped { DEAF_DAMPED_NS } else { DEAF_NS }
    }
}
