//! What becomes of packets that nobody here knows, as the offload engine is told.

use std::collections::HashMap;

use super::agenda::Agenda;
use super::members::Members;
use super::peer::PeerState;
use crate::addr::VipAddr;
use crate::model::fleet::{StandbyRequest, Then, Unknown};

/// The rule of each frontend, as the offload engine was told last.
#[derive(Debug, Default)]
pub(super) struct Rules {
    told: HashMap<VipAddr, Unknown>,
}

impl Rules {
    /// The frontends are others by now: who does not listen any more needs no rule.
    pub(super) fn configure(&mut self, members: &Members, agenda: &mut Agenda) {
        let vips = members.vips();
        let serves = |vip: &VipAddr| match vip.port() {
            0 => vips.contains(&vip.ip()),
            _ => members.settings().vips.contains(vip),
        };
        let over: Vec<_> = self.told.keys().copied().filter(|vip| !serves(vip)).collect();
        for vip in over {
            self.told.remove(&vip);
            agenda.path(StandbyRequest::Unknown { vip, unknown: None });
        }
    }

    /// Says anew what becomes of them, if that has changed. `guard_until_ns`: until then they are not answered; 0: not at all.
    /// `is_refusing`: some are refused from here, for which the program must show its packets.
    pub(super) fn renew(&mut self, guard_until_ns: u64, is_refusing: bool, members: &Members, agenda: &mut Agenda) {
        if !members.settings().carries {
            return;
        }
        let is_shown = is_refusing && guard_until_ns > 0;
        let is_asked = is_shown || members.peers().any(|(_, peer)| PeerState::can_be_asked(peer));
        let all_told = members.peers().all(|(_, peer)| PeerState::has_told(peer));
        let then = if is_asked { Then::Ask { all_told } } else { Then::Reset };
        for vip in &members.settings().vips {
            // Of the others only source ports of backend legs: what those of living peers get is forwarded. One of them may
            // be in somebody else's use, whom conntrack knows, so no RST goes out unasked.
            let any_port = VipAddr::new((vip.ip(), 0).into());
            for (vip, then) in [(*vip, then), (any_port, Then::Ask { all_told: false })] {
                let rule = Unknown { guard_until_ns, then };
                if self.told.get(&vip) != Some(&rule) {
                    self.told.insert(vip, rule);
                    agenda.path(StandbyRequest::Unknown { vip, unknown: Some(rule) });
                }
            }
        }
    }
}
