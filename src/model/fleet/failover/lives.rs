//! Instances come, live and die, and so do this host's addresses come and go.

use std::net::IpAddr;

use super::flows::{Known, KnownState};
use super::peer::PING_NS;
use super::timer::Timer;
use super::{Action, Failover, Note};
use crate::model::ends::Ends;
use crate::model::fleet::{Epoch, Farewell, InstanceName, Liveness, PeerCommand, StandbyRequest};

impl Failover {
    pub(super) fn joined(&mut self, owner: InstanceName, link: IpAddr) {
        self.flows.joined(owner.clone());
        self.members.joined(owner, link);
        self.port_ranges.show(&self.members, &mut self.agenda);
    }

    /// Nothing of it is left: packets of its flows are unknown ones from now on.
    pub(super) fn gone(&mut self, owner: &InstanceName) {
        if !self.members.gone(owner) {
            return;
        }
        self.flows.gone(owner, &mut self.agenda);
        drop(self.rounds.call_off(owner));
        self.port_ranges.gone(owner);
        self.untold.gone(owner);
        self.see_members();
        self.settle();
    }

    pub(super) fn begin(&mut self, owner: &InstanceName, epoch: Epoch, slot: u8) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        peer.begin(epoch, slot);
        self.flows.begin(owner);
        // Nobody tells what it has and is dead.
        self.lives(owner);
        self.port_ranges.show(&self.members, &mut self.agenda);
    }

    pub(super) fn synced(&mut self, now_ns: u64, owner: &InstanceName) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let is_anew = peer.synced();
        let gone = self.flows.synced(owner, &mut self.agenda);
        let died = self.untold.came_back(owner, is_anew, gone);
        // All that it has is known by now: of another flow a client may begin a new connection by the same port, and its SYN must not
        // go to a host that has not the address.
        self.unknown.lend_no_more(owner, &self.flows, &self.members, &mut self.agenda);
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            died.into_iter().partition(|(_, ends)| self.members.is_here(ends.vip.ip()));
        self.tell_of_end(owner, here);
        self.untold.wait(now_ns, owner, elsewhere, &mut self.agenda);
        self.end_stuck(owner);
        self.settle();
    }

    pub(super) fn liveness(&mut self, now_ns: u64, owner: &InstanceName, liveness: Liveness) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let before = peer.hear(liveness);
        let (is_synced, has_answered) = (peer.is_synced(), peer.has_answered());
        match liveness {
            Liveness::Alive => {
                if !is_synced && before != Liveness::Alive {
                    // What it has is about to be told.
                    let until_ns = now_ns + self.members.settings().guard_ns;
                    self.unknown.guard(until_ns.max(self.unknown.guard_until_ns(now_ns)), &mut self.agenda);
                }
                self.lives(owner);
            }
            Liveness::Unlinked => self.lives(owner),
            Liveness::Dead | Liveness::Left(Farewell::Stopped) => self.bury(owner),
            Liveness::Silent if self.members.is_fresh(now_ns) && !has_answered => self.bury(owner),
            Liveness::Silent | Liveness::Unheard | Liveness::Left(Farewell::Succeeded) => {}
        }
        self.see_members();
        let is_parted = |liveness| matches!(liveness, Liveness::Unlinked | Liveness::Dead);
        let comes_or_goes = before != liveness && (is_parted(before) || is_parted(liveness));
        if comes_or_goes && self.members.peer(owner).is_some_and(|peer| peer.shares()) {
            self.agenda.carry(StandbyRequest::AskEnds);
        }
    }

    /// It was taken for dead, and is heard of again: what was refused in its name is forwarded again.
    fn lives(&mut self, owner: &InstanceName) {
        if self.members.peer_mut(owner).is_some_and(|peer| peer.revive()) {
            self.flows.forward_again(owner, KnownState::Refused, &self.members, &mut self.agenda);
            // Should it have none of them any more, they are told after all.
            let called_off = self.rounds.call_off(owner);
            self.untold.called_off(owner, called_off);
        }
    }

    pub(super) fn peer_addresses(&mut self, owner: &InstanceName, addresses: Vec<IpAddr>) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let before = peer.move_addresses(addresses.clone());
        // Both had it: neighbours may still believe the other.
        let left = self.members.here().filter(|ip| before.contains(ip) && !addresses.contains(ip));
        left.for_each(|ip| self.agenda.act(Action::Announce(ip)));
        self.port_ranges.see_last_owners(&self.members);
        self.see_members();
        if before != addresses {
            self.flows.forward_again(owner, KnownState::Noted, &self.members, &mut self.agenda);
        }
    }

    /// Own addresses first: neighbours that still send to the dead host are to come here before they are asked anything.
    pub(super) fn vips_came(&mut self, now_ns: u64, came: &[IpAddr]) {
        for ip in came {
            self.agenda.act(Action::Announce(*ip));
            self.agenda.note(Note::AddressCame(*ip));
            self.port_ranges.address_came(now_ns, *ip, &mut self.agenda);
        }
        self.unknown.guard(now_ns + self.members.settings().guard_ns, &mut self.agenda);
        let dead = self.members.dead();
        let silent = self.members.vips_came(now_ns);
        dead.into_iter().for_each(|owner| self.bury_where(&owner, came));
        silent.into_iter().for_each(|owner| self.bury(&owner));
        self.members.living().into_iter().for_each(|owner| self.end_stuck(&owner));
        for (owner, id, ends) in self.untold.take_here(&self.members) {
            self.tell_of_end(&owner, vec![(id, ends)]);
        }
        if self.members.ping(now_ns) {
            self.agenda.send(PeerCommand::Ping);
            self.agenda.later(now_ns + PING_NS, Timer::Ping);
        }
    }

    /// Takes over all that `owner` had.
    pub(super) fn bury(&mut self, owner: &InstanceName) {
        if !self.members.peer_mut(owner).is_some_and(|peer| peer.bury()) {
            return;
        }
        self.port_ranges.show(&self.members, &mut self.agenda);
        self.unknown.lend_no_more(owner, &self.flows, &self.members, &mut self.agenda);
        self.bury_flows(owner, |_| true);
        self.flows.says_no_more(owner);
        self.inherit();
    }

    /// Whoever was to go on with flows of the dead may have died before it could.
    fn inherit(&mut self) {
        for owner in self.members.dead() {
            let is_heir = |ends: &Ends| self.members.is_heir(ends.vip.ip());
            let is_orphan = |known: &Known| known.state == KnownState::Held && is_heir(&known.ends);
            let orphans = self.flows.ends_of(&owner, is_orphan);
            if !orphans.is_empty() {
                self.bury_flows(&owner, |ends| orphans.contains(ends));
            }
        }
    }

    /// Takes over what a dead owner had of addresses that have just come here.
    pub(super) fn bury_where(&mut self, owner: &InstanceName, vips: &[IpAddr]) {
        self.bury_flows(owner, |ends| vips.contains(&ends.vip.ip()));
    }

    /// Resets what a living owner can serve no more since the address is here.
    fn end_stuck(&mut self, owner: &InstanceName) {
        let stuck = self.flows.ends_of(owner, |known| self.members.is_stuck(&known.ends));
        self.bury_flows(owner, |ends| stuck.contains(ends));
    }

    pub(super) fn bury_flows(&mut self, owner: &InstanceName, which: impl Fn(&Ends) -> bool) {
        let mut buried = self.flows.bury(owner, which, &self.members);
        let is_dead = self.members.is_dead(owner);
        if is_dead {
            self.untold.died(owner, &buried);
        }
        if buried.is_empty() {
            return;
        }
        let (from, told) = (owner.clone(), buried.told.len());
        self.agenda.note(match is_dead {
            true => Note::FailedOver { from, inherited: buried.inherited.len(), reset: told },
            false => Note::Stuck { from, flows: told },
        });
        buried.refuse(&mut self.agenda);
        self.rounds.begin(owner, buried.told, &self.members, &mut self.agenda);
        self.claims.inherit(owner, buried.inherited, &mut self.agenda);
    }
}
