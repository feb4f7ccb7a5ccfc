//! The rules for unknown packets, as the offload engine gets them.

use std::collections::HashMap;

use super::agenda::Agenda;
use super::members::Members;
use super::peer::PeerState;
use crate::addr::VipAddr;
use crate::model::fleet::{StandbyRequest, Then, Unknown};

/// The rule of each frontend, as the offload engine was last told it.
#[derive(Debug, Default)]
pub(super) struct Rules {
    told: HashMap<VipAddr, Unknown>,
}

impl Rules {
    /// The frontends have changed: addresses without a frontend need no rule.
    pub(super) fn configure(&mut self, members: &Members, agenda: &mut Agenda) {
        let vips = members.vips();
        let serves = |vip: &VipAddr| match vip.port() {
            0 => vips.contains(&vip.ip()),
            _ => members.settings().vips.contains(vip),
        };
        let over: Vec<_> = self.told.keys().copied().filter(|vip| !serves(vip)).collect();
        for vip in over {
            self.told.remove(&vip);
            agenda.standby(StandbyRequest::Unknown { vip, unknown: None });
        }
    }

    /// Tells the engine the rules, if they have changed. Until `guard_until_ns` unknown packets get no answer; 0: no
    /// guard. `is_refusing`: this instance itself refuses flows, so the program must show it their packets.
    pub(super) fn renew(&mut self, guard_until_ns: u64, is_refusing: bool, members: &Members, agenda: &mut Agenda) {
        if !members.settings().carries {
            return;
        }
        let is_shown = is_refusing && guard_until_ns > 0;
        let is_asked = is_shown || members.peers().any(|(_, peer)| PeerState::can_be_asked(peer));
        let all_told = members.peers().all(|(_, peer)| PeerState::has_told(peer));
        let then = if is_asked { Then::Ask { all_told } } else { Then::Reset };
        for vip in &members.settings().vips {
            // Of other ports only the source ports of backend legs: packets to a live peer's range are forwarded.
            // Another program may use one of these ports by way of conntrack, so no RST goes out before the peers were
            // asked.
            let any_port = VipAddr::new((vip.ip(), 0).into());
            for (vip, then) in [(*vip, then), (any_port, Then::Ask { all_told: false })] {
                let rule = Unknown { guard_until_ns, then };
                if self.told.get(&vip) != Some(&rule) {
                    self.told.insert(vip, rule);
                    agenda.standby(StandbyRequest::Unknown { vip, unknown: Some(rule) });
                }
            }
        }
    }
}
