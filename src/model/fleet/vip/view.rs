//! The view of the VIP for people: the holder, since when and why, and the events that would move the VIP.

use serde::{Deserialize, Serialize};

use super::{PeerVip, VipGain, VipLook, VipMachine, VipPart, VipPresence, VipStage, VipStanding, VipWhy};
use crate::addr::Mac;
use crate::model::fleet::InstanceName;

/// The VIP, as this instance sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VipView {
    pub part: VipPart,
    /// How long the part has been the same, in ms.
    pub for_ms: u64,
    /// Why this instance has the VIP or does not have it.
    pub why: String,
    /// How it came, if it has the VIP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<VipGain>,
    /// The holder, as far as this instance hears.
    pub holder: Option<InstanceName>,
    /// The number of the claim that this instance holds the VIP by; 0: it found the addresses, or is not the holder.
    pub claim: u64,
    pub ready: bool,
    pub synced: bool,
    /// This host has heard its gateway, a backend or a client lately.
    pub hears: bool,
    pub damped: bool,
    pub priority: u8,
    pub peers: Vec<VipPeerView>,
    /// The events that would move the VIP now, a sentence each.
    pub would_move: Vec<String>,
    /// The instance that would take the VIP if the holder went now; `None`: none could.
    #[serde(default)]
    pub next: Option<InstanceName>,
}

/// A peer, as `baton vip` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VipPeerView {
    pub name: InstanceName,
    /// `None`: the peer sends no standing.
    pub part: Option<VipPart>,
    pub ready: bool,
    pub synced: bool,
    pub hears: bool,
    pub damped: bool,
    pub priority: u8,
    /// The holder's offloaded flows whose backend is on the peer's host.
    pub flows_here: u32,
    /// This instance heard the peer itself a moment ago.
    pub heard: bool,
    /// The peer says that one of the addresses is on its host.
    pub has_address: bool,
    /// It moves a VIP of other addresses.
    #[serde(default)]
    pub other_vip: bool,
}

impl VipMachine {
    /// Whether a peer would serve clients of the VIP if this instance fell silent: a ready one, or one that has given it up by an evacuation, which
    /// takes it back then.
    pub(crate) fn has_heir(&self, look: &VipLook<'_>) -> bool {
        let serves = |its: &VipStanding| its.ready && its.is_able() || its.hears && its.heir.is_some();
        let is_heir = |peer: &PeerVip| peer.is_heard() && self.says(peer).is_some_and(serves);
        look.peers.is_some_and(|peers| peers.iter().any(is_heir))
    }

    /// The view at this look; call it after [`VipMachine::handle_look`]. `name_of`: what a host with this Ethernet address is called.
    pub(crate) fn view(&self, look: &VipLook<'_>, name_of: impl Fn(Mac) -> String) -> VipView {
        let peers = look.peers.unwrap_or_default();
        let own = self.own(look, peers);
        let holder = match self.holds() {
            true => Some(self.settings.me.clone()),
            false => peers.iter().find(|peer| self.holds_too(peer)).map(|peer| peer.name.clone()),
        };
        let (why, gain) = match &self.stage {
            VipStage::Holds { gain, .. } => (gain.to_string(), Some(gain.clone())),
            VipStage::Stands | VipStage::Takes { .. } => (self.why.told(&name_of), None),
        };
        let views = peers.iter().map(|peer| {
            let its = self.says(peer).copied();
            let others = peer.standing.filter(|_| its.is_none()).map_or(0, |standing| standing.addresses);
            let said = its.unwrap_or_default();
            VipPeerView {
                name: peer.name.clone(),
                part: its.map(|its| its.part),
                ready: said.ready,
                synced: said.synced,
                hears: said.hears,
                damped: said.damped,
                priority: said.priority,
                flows_here: said.flows_here,
                heard: peer.is_heard(),
                has_address: peer.has_address,
                other_vip: others != 0,
            }
        });
        VipView {
            part: own.part,
            for_ms: look.now_ns.saturating_sub(self.since_ns()) / 1_000_000,
            why,
            gain,
            holder,
            claim: if self.holds() { own.claim } else { 0 },
            ready: own.ready,
            synced: own.synced,
            hears: own.hears,
            damped: own.damped,
            priority: own.priority,
            peers: views.collect(),
            would_move: self.would_move(look, &name_of),
            next: self.next(peers, &own).cloned(),
        }
    }

    /// Since when what [`VipView::why`] says is so. A peer that was not heard for a moment has held the VIP all the same.
    fn since_ns(&self) -> u64 {
        match (&self.why, &self.holder_since) {
            (VipWhy::HeldBy(name), Some((holder, since_ns))) if !self.holds() && name == holder => *since_ns,
            _ => self.changed_ns,
        }
    }

    fn would_move(&self, look: &VipLook<'_>, name_of: impl Fn(Mac) -> String) -> Vec<String> {
        let peers = look.peers.unwrap_or_default();
        if !self.holds() {
            let first = match self.obstacle_now(look) {
                None => "this instance takes it as soon as no host answers for the addresses".to_owned(),
                Some(why) => format!("this instance does not take it: {}", why.told(name_of)),
            };
            return vec![first];
        }
        let mine = self.own(look, peers);
        let rank = |name: &InstanceName| peers.iter().find(|peer| peer.name == *name).and_then(|peer| self.says(peer));
        let heard = peers.iter().filter(|peer| peer.is_heard()).map(|peer| &peer.name);
        let able = heard.filter(|name| rank(name).is_some_and(|its| its.is_able()));
        let able: Vec<_> = able.collect();
        let next = self.next(peers, &mine);
        match next {
            None => vec!["no peer could take it now".to_owned()],
            Some(next) => {
                let mut moves = vec![format!(
                    "{next} takes it when this host, its network or this process stops, and on `baton evacuate`"
                )];
                let is_next_ready = rank(next).is_some_and(|its| its.ready);
                if look.ready && !look.has_backend {
                    moves.push(match is_next_ready {
                        true => format!("no backend can be used here: it goes to {next}, which can use one, unless one can be used here within moments"),
                        false => format!("no backend can be used here or at {next}: it goes to {next} when one can be used there"),
                    });
                } else if !mine.ready {
                    moves.push(format!("this instance is not ready: it goes to {next} as soon as that is ready"));
                } else {
                    moves.push(format!("it goes to {next} when this instance is not ready and {next} is"));
                }
                let counts = able.iter().filter_map(|name| Some((*name, rank(name)?.flows_here)));
                if able.len() > 1 && counts.clone().any(|(_, count)| count > 0) {
                    let counts = counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>();
                    moves.push(format!(
                        "of equal peers the one with the fewest of this instance's offloaded flows to its own host takes it: {}",
                        counts.join(", ")
                    ));
                }
                if look.here != VipPresence::Whole {
                    moves.push("an address is missing on the interface; this instance adds it again".to_owned());
                }
                moves
            }
        }
    }

    /// Of the instances that could take the VIP, the one with the highest rank. `own`: this instance's standing.
    fn next<'a>(&'a self, peers: &'a [PeerVip], own: &'a VipStanding) -> Option<&'a InstanceName> {
        let heirs = self.heirs(peers);
        let heard = peers.iter().filter(|peer| peer.is_heard());
        let others = heard.filter_map(|peer| Some((&peer.name, self.says(peer)?)));
        let able = others.chain([(&self.settings.me, own)]).filter(|(_, its)| its.is_able());
        able.max_by_key(|(name, its)| its.rank(name, &heirs)).map(|(name, _)| name)
    }

    fn obstacle_now(&self, _look: &VipLook<'_>) -> Option<&super::VipWhy> {
        (!self.takes()).then_some(&self.why)
    }
}
