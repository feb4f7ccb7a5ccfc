//! Flows that nobody can carry since an address is here.

use super::{Action, HeldRequest, InstanceName, Known, State, Takeover, both};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;
use crate::model::splice::Direction;

impl Takeover {
    /// Whether nobody can carry the flow: its backend is on this host, and what it gets seems to come from an address of this
    /// host, too. A kernel takes no such packet from the wire, and sends none there.
    pub(super) fn is_stuck(&self, ends: &Ends) -> bool {
        self.is_own(ends) && self.is_here(ends.local.ip())
    }

    /// Whether its backend is on this host.
    pub(super) fn is_own(&self, ends: &Ends) -> bool {
        self.own.contains(&ends.backend.ip())
    }

    /// Resets what a living owner can serve no more since the address is here.
    pub(super) fn end_stuck(&mut self, owner: &InstanceName) {
        let own = self.own.clone();
        let here = self.here.clone().unwrap_or_default();
        self.bury_flows(owner, |ends| own.contains(&ends.backend.ip()) && here.contains(&ends.local.ip()));
    }

    /// Answers RST to packets of a flow, whatever was said of it before.
    pub(super) fn refuse(&mut self, owner: InstanceName, id: FlowId, ends: Ends) {
        if self.flows.get(&id).is_some_and(|known| known.state == State::Refused && known.ends == ends) {
            return;
        }
        self.remove(id);
        if self.settings.carries {
            self.actions.push_back(Action::Path(HeldRequest::Refuse(both(&ends).to_vec())));
        }
        if let Some(peer) = self.peers.get_mut(&owner) {
            peer.flows.insert(id);
        }
        self.by_key.insert(ends.key(Direction::Up), id);
        self.flows.insert(id, Known { owner, ends, state: State::Refused, also: Vec::new(), told: true });
    }
}
