//! Instances join, live and die; addresses come to this host and leave it.

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

    /// Removes all of `owner`: packets of its flows are unknown packets from now on.
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
        // An instance that begins a snapshot is alive.
        self.lives(owner);
        self.port_ranges.show(&self.members, &mut self.agenda);
    }

    pub(super) fn synced(&mut self, now_ns: u64, owner: &InstanceName) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let is_anew = peer.synced();
        let gone = self.flows.synced(owner, &mut self.agenda);
        let died = self.untold.came_back(owner, is_anew, gone, &self.members);
        // All its flows are known by now. Packets without a flow must not go there any more: their client may open a new
        // connection from the same port, and its SYN must not go to a host without the address.
        self.unknown.stop_forwarding(owner, &self.flows, &self.members, &mut self.agenda);
        let (here, away): (Vec<_>, Vec<_>) =
            died.into_iter().partition(|(_, ends)| self.members.is_here(ends.vip.ip()));
        self.tell_of_end(owner, here);
        self.untold.wait(now_ns, owner, away, &mut self.agenda);
        self.end_stuck(owner);
        self.members.watch_unforwarded(now_ns, owner, &mut self.agenda);
        self.settle();
    }

    pub(super) fn liveness(&mut self, now_ns: u64, owner: &InstanceName, liveness: Liveness) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let before = peer.hear(liveness);
        let (is_synced, has_answered) = (peer.is_synced(), peer.has_answered());
        match liveness {
            Liveness::Alive => {
                if !is_synced && before != Liveness::Alive {
                    // `owner` is about to tell its flows.
                    let until_ns = now_ns + self.members.settings().guard_ns;
                    self.unknown.guard(until_ns.max(self.unknown.guard_until_ns(now_ns)), &mut self.agenda);
                }
                self.lives(owner);
            }
            Liveness::Unlinked => self.lives(owner),
            Liveness::Dead | Liveness::Left(Farewell::Stopped) => self.fail_over(owner),
            Liveness::Silent if self.members.is_fresh(now_ns) && !has_answered => self.fail_over(owner),
            Liveness::Silent | Liveness::Unheard | Liveness::Left(Farewell::Succeeded) => {}
        }
        self.see_members();
        let is_parted = |liveness| matches!(liveness, Liveness::Unlinked | Liveness::Dead);
        let comes_or_goes =
            before != liveness && before != Liveness::Unheard && (is_parted(before) || is_parted(liveness));
        if comes_or_goes && self.members.peer(owner).is_some_and(|peer| peer.shares()) {
            self.agenda.carry(StandbyRequest::AskEnds);
        }
    }

    /// `owner` counted as dead and is heard again: packets of its flows that were refused are forwarded again.
    fn lives(&mut self, owner: &InstanceName) {
        if self.members.peer_mut(owner).is_some_and(|peer| peer.revive()) {
            self.flows.forward_again(owner, KnownState::Refused, &self.members, &mut self.agenda);
            // If it turns out to have lost these flows, their ends are told after all.
            let called_off = self.rounds.call_off(owner);
            self.untold.called_off(owner, called_off);
        }
    }

    pub(super) fn peer_addresses(&mut self, now_ns: u64, owner: &InstanceName, addresses: Vec<IpAddr>) {
        let Some(peer) = self.members.peer_mut(owner) else { return };
        let before = peer.move_addresses(addresses.clone());
        // Both hosts had the address: neighbours may still send to the other.
        let left = self.members.here().filter(|ip| before.contains(ip) && !addresses.contains(ip));
        left.for_each(|ip| self.agenda.act(Action::Announce(ip)));
        self.port_ranges.see_last_owners(&self.members);
        self.see_members();
        if before != addresses {
            self.flows.forward_again(owner, KnownState::Noted, &self.members, &mut self.agenda);
            self.members.watch_unforwarded(now_ns, owner, &mut self.agenda);
        }
    }

    /// Announces the addresses first: neighbours that still send to the dead host must send here before this one asks
    /// their clients anything.
    pub(super) fn vips_came(&mut self, now_ns: u64, came: &[IpAddr]) {
        for ip in came {
            self.agenda.act(Action::Announce(*ip));
            self.agenda.note(Note::AddressCame(*ip));
            self.port_ranges.address_came(now_ns, *ip, &mut self.agenda);
        }
        self.unknown.guard(now_ns + self.members.settings().guard_ns, &mut self.agenda);
        let dead = self.members.dead();
        let silent = self.members.vips_came(now_ns);
        dead.into_iter().for_each(|owner| self.fail_over_at(&owner, came));
        silent.into_iter().for_each(|owner| self.fail_over(&owner));
        for owner in self.members.living() {
            self.end_stuck(&owner);
            self.members.watch_unforwarded(now_ns, &owner, &mut self.agenda);
        }
        for (owner, id, ends) in self.untold.take_here(&self.members) {
            self.tell_of_end(&owner, vec![(id, ends)]);
        }
        if self.members.ping(now_ns) {
            self.agenda.send(PeerCommand::Ping);
            self.agenda.later(now_ns + PING_NS, Timer::Ping);
        }
    }

    /// Counts `owner` as dead, and inherits or refuses all its flows.
    pub(super) fn fail_over(&mut self, owner: &InstanceName) {
        if !self.members.peer_mut(owner).is_some_and(|peer| peer.set_dead()) {
            return;
        }
        self.port_ranges.show(&self.members, &mut self.agenda);
        self.unknown.stop_forwarding(owner, &self.flows, &self.members, &mut self.agenda);
        self.inherit_or_refuse(owner, |_| true);
        self.flows.says_no_more(owner);
        self.inherit();
    }

    /// Inherits dead owners' offloaded flows that are left: the instance that should have taken them may have died too.
    fn inherit(&mut self) {
        for owner in self.members.dead() {
            let is_heir = |ends: &Ends| self.members.is_heir(ends.vip.ip());
            let is_orphan = |known: &Known| known.state == KnownState::Held && is_heir(&known.ends);
            let orphans = self.flows.ends_of(&owner, is_orphan);
            if !orphans.is_empty() {
                self.inherit_or_refuse(&owner, |ends| orphans.contains(ends));
            }
        }
    }

    /// Inherits or refuses a dead owner's flows of addresses that have just come here.
    pub(super) fn fail_over_at(&mut self, owner: &InstanceName, vips: &[IpAddr]) {
        self.inherit_or_refuse(owner, |ends| vips.contains(&ends.vip.ip()));
    }

    /// Resets flows that a live owner can no longer serve since their address is here.
    pub(super) fn end_stuck(&mut self, owner: &InstanceName) {
        let is_lost = |known: &Known| {
            self.members.is_lost(&known.ends, known.state == KnownState::Held)
                || known.state != KnownState::Refused && self.members.ends_here(owner, known.ends.vip.ip())
        };
        let stuck = self.flows.ends_of(owner, is_lost);
        self.inherit_or_refuse(owner, |ends| stuck.contains(ends));
    }

    pub(super) fn inherit_or_refuse(&mut self, owner: &InstanceName, which: impl Fn(&Ends) -> bool) {
        let mut outcome = self.flows.inherit_or_refuse(owner, which, &self.members);
        let is_dead = self.members.is_dead(owner);
        if is_dead {
            self.untold.died(owner, &outcome);
        }
        if outcome.is_empty() {
            return;
        }
        let (from, told) = (owner.clone(), outcome.told.len());
        self.agenda.note(match is_dead {
            true => Note::FailedOver { from, inherited: outcome.inherited.len(), reset: told },
            false => Note::Stuck { from, flows: told, unforwarded: !self.members.settings().carries },
        });
        outcome.refuse(&mut self.agenda);
        self.rounds.begin(owner, outcome.told, &self.members, &mut self.agenda);
        self.claims.inherit(owner, outcome.inherited, &mut self.agenda);
    }
}
