//! A holder that its network reaches by ARP and not by IP, as behind a packet filter: it answers its peers' questions for the VIP, so that none of
//! them takes it, and serves nobody.

use super::{PeerVip, VipLook};

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

    /// Whether a peer asks for the addresses, and this host has heard no peer, backend or client since then.
    pub(super) fn is_certain(&mut self, look: &VipLook<'_>, peers: &[PeerVip], damped: bool) -> bool {
        let is_asked = self.asked_ns.is_some_and(|at_ns| look.now_ns.saturating_sub(at_ns) < QUESTION_LASTS_NS);
        if !is_asked || look.peers.is_none() || peers.iter().any(PeerVip::is_heard) {
            self.since_ns = None;
            return false;
        }
        let since_ns = *self.since_ns.get_or_insert(look.now_ns);
        if look.socket_ns >= since_ns {
            self.since_ns = Some(look.now_ns);
            return false;
        }
        look.now_ns - since_ns >= if damped { DEAF_DAMPED_NS } else { DEAF_NS }
    }

    /// Whether it is time to make backends answer.
    pub(super) fn rouses(&mut self, now_ns: u64) -> bool {
        let is_due = self.since_ns.is_some() && now_ns.saturating_sub(self.roused_ns) >= ROUSE_EVERY_NS;
        if is_due {
            self.roused_ns = now_ns;
        }
        is_due
    }
}
