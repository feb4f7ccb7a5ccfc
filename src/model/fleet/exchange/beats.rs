//! What is said and heard beside the links, and the standings to the VIP, which are said there too.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{Exchange, Message, PLACES_MAX};
use crate::model::fleet::session::{BEAT_NS, DEAD_NS, Session};
use crate::model::fleet::vip::{PeerVip, VipStanding};
use crate::model::fleet::{Beat, BeatKey, BeatSecret, BeatTo, Epoch, HeardOf, InstanceName};

impl Exchange {
    /// The beats to send now, if they are due. A peer that this instance was never linked with gets none: it could not
    /// decrypt them.
    pub(crate) fn poll_beat(&mut self, now_ns: u64) -> Option<BeatTo> {
        if now_ns < self.beat_due_ns {
            return None;
        }
        self.beat_due_ns = now_ns + BEAT_NS;
        self.beats += 1;
        let ago = |session: &Session| Some(now_ns.saturating_sub(session.heard_at_ns()?));
        let heard = |session: &Session| {
            let ago_ns = ago(session).filter(|ago_ns| *ago_ns < DEAD_NS)?;
            Some(HeardOf { tag: session.name.tag(), epoch: session.vitals.epoch, ago_ms: (ago_ns / 1_000_000) as u16 })
        };
        let heard = self.sessions.values().filter_map(heard).collect();
        let beat = Beat { number: self.beats, heard, vip: self.vip };
        let places = |session: &Session| {
            let mut places: Vec<_> = session.places().filter(|ip| !self.is_own(*ip)).collect();
            let mut seen = HashSet::new();
            places.retain(|ip| seen.insert(*ip));
            places.truncate(PLACES_MAX);
            (session.name.clone(), places)
        };
        let known = self.sessions.values().filter(|session| session.vitals.epoch != Epoch::default());
        Some(BeatTo { beat, to: known.map(places).collect() })
    }

    /// Addresses that lead back to this host, or to the host that has the VIP.
    fn is_own(&self, ip: IpAddr) -> bool {
        self.own.vips.contains(&ip) || self.addresses.contains(&ip)
    }

    /// The secrets that seal the peers' beats, with their owners.
    pub(crate) fn beat_keys(&self) -> impl Iterator<Item = (&InstanceName, &BeatKey)> {
        self.sessions.values().filter_map(|session| Some((&session.name, session.beat_key()?)))
    }

    pub(crate) fn own_beat_secret(&self) -> &BeatSecret {
        &self.own.beat_secret
    }

    /// A beat of `from`, sealed with the secret that it sent on the link.
    pub(crate) fn handle_beat(&mut self, from: &InstanceName, beat: Beat, now_ns: u64) {
        let is_new = self.sessions.get_mut(from).is_some_and(|session| session.beat(beat.number, now_ns));
        if !is_new {
            return;
        }
        if let Some(session) = self.sessions.get_mut(from) {
            session.vitals.vip = beat.vip.or(session.vitals.vip);
        }
        for heard in beat.heard {
            let its = |session: &&mut Session| session.name.tag() == heard.tag && session.vitals.epoch == heard.epoch;
            if let Some(session) = self.sessions.values_mut().find(its).filter(|session| session.name != *from) {
                session.witness(now_ns.saturating_sub(u64::from(heard.ago_ms) * 1_000_000));
            }
        }
    }

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
