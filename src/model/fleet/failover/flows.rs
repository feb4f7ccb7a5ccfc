//! Flows of other instances, as their owners tell of them.

use super::{Failover, Known, KnownState, TOUCHED_NS, Timer};
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{AcceptedFlow, FleetId, FlowRecord, InstanceName, Keeping, StandbyRequest};

/// Packets of a flow that has ended are forwarded for so long: the last ones are still on their way.
const LINGER_NS: u64 = 5_000_000_000;

impl Failover {
    pub(super) fn flow(&mut self, now_ns: u64, owner: InstanceName, record: FlowRecord) {
        let (id, ends, accepted_unix_ms) = (record.fleet_id(), record.ends, record.accepted_unix_ms);
        if let Some(mine) = self.mine.get(&id) {
            let touched = mine.touched_ns != 0 && now_ns.saturating_sub(mine.touched_ns) < TOUCHED_NS;
            let vip = ends.vip.ip();
            // Who has the address now gets its packets now, wherever they came a moment ago.
            if self.prevails_by_address(&owner, vip).unwrap_or(touched || self.prevails_over(&owner, vip)) {
                // It was taken from this owner, or from the one before.
                return self.agenda.claim(owner, vec![id]);
            }
            self.mine.remove(&id);
            self.leave(owner.clone(), id);
            self.held_for(&owner, id, ends);
        }
        let Some(peer) = self.peers.get_mut(&owner) else { return };
        peer.stale.remove(&id);
        peer.also_stale.remove(&id);
        if self.is_stuck(&ends) {
            return self.refuse(owner, id, ends);
        }
        if let Some(before) = self.by_ends.get(&id.ends).copied().filter(|before| *before != id) {
            // It goes on under another id, or its ends have begun another one.
            match record.keeping {
                Keeping::Sockets => self.remove(before),
                // What the offload engine has there gives way by itself, and no packet finds it gone.
                Keeping::Passage(_) => drop(self.take_out(before)),
            }
        }
        let mut also = Vec::new();
        if let Some(before) = self.flows.get(&id) {
            also.clone_from(&before.also);
            // Who was only to have it, and has not told of it, does not tell of its end either.
            also.extend(before.told.then(|| before.owner.clone()));
            let lives = |other: &InstanceName| self.peers.get(other).is_some_and(|peer| !peer.is_dead);
            also.retain(|other| *other != owner && lives(other));
            let same = before.owner == owner;
            match (&record.keeping, before.state) {
                (Keeping::Sockets, KnownState::Forwarded) if same => return,
                // A record that was on its way when the flow lost its sockets, or that of its next owner, who is about to
                // say that it has none: a flow never gets any again.
                (keeping, KnownState::Held) => {
                    let is_all = *keeping == Keeping::Sockets;
                    self.take_out(id);
                    self.held_for(&owner, id, ends);
                    self.flows.entry(id).and_modify(|known| known.also.clone_from(&also));
                    if is_all {
                        return;
                    }
                }
                _ if !same => self.remove(id),
                _ => {}
            }
        }
        let owner_is_dead = self.peers.get(&owner).is_some_and(|peer| peer.is_dead);
        let state = match record.keeping {
            Keeping::Sockets if owner_is_dead && self.settings.carries => {
                self.agenda.path(StandbyRequest::Refuse(ends.keys().to_vec()));
                KnownState::Refused
            }
            Keeping::Sockets => self.forward(&owner, AcceptedFlow { ends, accepted_unix_ms }),
            Keeping::Passage(_) => {
                self.unindex(id, &ends);
                self.agenda.carry(StandbyRequest::Hold(Box::new(record)));
                KnownState::Held
            }
        };
        if state != KnownState::Held {
            self.index(id, &ends);
        }
        if let Some(peer) = self.peers.get_mut(&owner) {
            peer.flows.insert(id);
        }
        self.enter(id, Known { owner, ends, accepted_unix_ms, state, also, told: true });
    }

    pub(super) fn enter(&mut self, id: FleetId, known: Known) {
        self.by_ends.insert(id.ends, id);
        // The offload engine is asked anew, and says so if it still has none.
        self.no_room.remove(&id);
        self.flows.insert(id, known);
    }

    /// Has both directions' packets sent to the owner.
    pub(super) fn forward(&mut self, owner: &InstanceName, flow: AcceptedFlow) -> KnownState {
        let Some(hop) = self.hop(owner, flow.ends.vip.ip()).filter(|_| self.settings.carries) else {
            return KnownState::Noted;
        };
        self.agenda.forward(flow, hop);
        KnownState::Forwarded
    }

    pub(super) fn ended(&mut self, now_ns: u64, owner: &InstanceName, id: FleetId) {
        let Some(known) = self.flows.get_mut(&id) else {
            // Released to who had claimed it before anybody could say what it is, it is held though nobody lists it.
            if !self.mine.contains_key(&id) {
                self.agenda.drop_standby(id);
            }
            return;
        };
        known.also.retain(|other| other != owner);
        // Of a flow that is another's by now, its former owner only says that it is not its own any more.
        if known.owner != *owner {
            return;
        }
        if known.state == KnownState::Held
            && let Some(other) = known.also.pop()
        {
            let also = std::mem::take(&mut known.also);
            let ends = known.ends;
            self.take_out(id);
            self.held_for(&other, id, ends);
            self.flows.entry(id).and_modify(|known| known.also = also);
            return;
        }
        if let Some(known) = self.take_out(id) {
            match known.state {
                KnownState::Held => self.agenda.drop_standby(id),
                KnownState::NoRoom => self.drop_crowded(id, &known.ends),
                KnownState::Noted => {}
                KnownState::Forwarded | KnownState::Refused => {
                    if known.state == KnownState::Forwarded {
                        self.lend_last(owner, &known.ends);
                    }
                    self.agenda.later(now_ns + LINGER_NS, Timer::Forget(id, known.ends));
                }
            }
        }
    }

    /// The last packets of a flow are its owner's. Its client may use the port again at once.
    fn lend_last(&mut self, owner: &InstanceName, ends: &Ends) {
        let Some(hop) = self.hop(owner, ends.vip.ip()) else { return };
        let keys = ends.keys().into_iter().filter(|key| !self.by_key.contains_key(key));
        let keys: Vec<_> = keys.collect();
        self.agenda.lend(keys, hop);
    }

    /// Packets of a flow that ended a while ago are nobody's, unless another flow has them by now: its client has used the port again,
    /// and that one's backend leg has another.
    pub(super) fn forget(&mut self, id: FleetId, ends: &Ends) {
        let is_here = self.flows.contains_key(&id);
        let again = |key: &Key| self.by_key.get(key).is_some_and(|other| *other != id || is_here);
        let keys: Vec<_> = ends.keys().into_iter().filter(|key| !again(key)).collect();
        self.agenda.forget(keys);
    }

    /// Ends all that is known of a flow at once.
    pub(super) fn remove(&mut self, id: FleetId) {
        if let Some(known) = self.take_out(id) {
            match known.state {
                KnownState::Held => self.agenda.drop_standby(id),
                KnownState::NoRoom => self.drop_crowded(id, &known.ends),
                KnownState::Noted => {}
                KnownState::Forwarded | KnownState::Refused => self.forget(id, &known.ends),
            }
        }
    }

    pub(super) fn take_out(&mut self, id: FleetId) -> Option<Known> {
        let known = self.flows.remove(&id)?;
        self.no_room.remove(&id);
        if self.by_ends.get(&id.ends) == Some(&id) {
            self.by_ends.remove(&id.ends);
        }
        if let Some(peer) = self.peers.get_mut(&known.owner) {
            peer.flows.remove(&id);
            peer.stale.remove(&id);
        }
        self.unindex(id, &known.ends);
        Some(known)
    }

    pub(super) fn index(&mut self, id: FleetId, ends: &Ends) {
        self.by_key.extend(ends.keys().map(|key| (key, id)));
    }

    pub(super) fn unindex(&mut self, id: FleetId, ends: &Ends) {
        for key in ends.keys() {
            if self.by_key.get(&key) == Some(&id) {
                self.by_key.remove(&key);
            }
        }
    }

    /// An entry that forwards one of its directions may be left from when it had sockets.
    fn drop_crowded(&mut self, id: FleetId, ends: &Ends) {
        self.agenda.drop_standby(id);
        self.forget(id, ends);
    }
}
