//! Faults of hosts, processes and links.

use std::collections::BTreeSet;

use super::clients::Orphaned;
use super::dice::Kind;
use super::engine::Engine;
use super::network::{Piece, pair};
use super::node::NAMES;
use super::{Farewell, FlowDirection, MS, SECOND_NS, TOLD_NS, World};
use crate::model::fleet::vip::VipBar;

/// A host is away longer than the others need to take it for dead.
const BOOT_NS: u64 = 1500 * MS;

impl World {
    /// One random fault.
    pub(super) fn mishap(&mut self) {
        match self.dice.roll(20) {
            0..=6 => return self.bear(),
            7..=10 => return self.offload(),
            11 | 12 => return self.end(),
            13 => return self.fix(),
            _ => {}
        }
        let kinds = self.kinds.clone();
        let Some(kind) = self.dice.pick(&kinds) else { return };
        let node = self.dice.roll(self.nodes.len() as u64) as usize;
        let other = self.dice.roll(self.nodes.len() as u64) as usize;
        let others_run = self.running().iter().any(|other| *other != node);
        let runs = self.is_up(node);
        match kind {
            Kind::Die if runs && others_run => self.die(node),
            Kind::Kill if runs => self.kill(node),
            Kind::Upgrade if runs => self.upgrade(node),
            Kind::Stop if runs && others_run => self.stop(node),
            Kind::Evacuation if runs => self.begin_evacuation(node),
            Kind::Move | Kind::Split if self.built_in.is_some() => {}
            Kind::Move if self.net.shared => self.reroute(),
            Kind::Move => {
                let vip = self.dice.roll(self.net.holders.len() as u64) as usize;
                if self.is_fit(node, vip) && !self.nodes[node].isolated {
                    self.move_vip(vip, node);
                }
            }
            Kind::Split if !self.net.shared => {
                let vip = self.dice.roll(self.net.holders.len() as u64) as usize;
                if self.is_fit(node, vip) && !self.net.holders[vip].contains(&node) {
                    self.net.split = true;
                    self.give_vip(vip, node);
                }
            }
            Kind::Cut | Kind::OneWay if node != other => {
                self.note(|| format!("the link from {} to {} is cut ({kind:?})", NAMES[node], NAMES[other]));
                self.net.cut.insert((node, other));
                if kind == Kind::Cut {
                    self.net.cut.insert((other, node));
                }
                self.falls_silent(node);
                self.falls_silent(other);
                self.out_of_touch(node, other);
                self.disturb();
            }
            Kind::Isolate if others_run => {
                self.note(|| format!("{} is cut off from everybody", NAMES[node]));
                self.nodes[node].isolated = true;
                self.falls_silent(node);
                self.net.linked.retain(|(one, other), _| *one != node && *other != node);
                self.disturb();
            }
            Kind::Stall if node != other => {
                self.note(|| format!("the link from {} to {} stands still", NAMES[node], NAMES[other]));
                let until_ns = self.now_ns + self.dice.roll(900) * MS;
                self.net.stalled.insert((node, other), until_ns);
                self.falls_silent(node);
                self.out_of_touch(node, other);
                self.disturb();
            }
            Kind::Members => self.change_members(),
            Kind::Frontends => self.add_frontend(),
            _ => {}
        }
    }

    /// Some peers may know the latest changes on this host, and others not.
    pub(super) fn falls_silent(&mut self, node: usize) {
        let now_ns = self.now_ns;
        for client in self.clients.values_mut() {
            let young = client.changed_ns + TOLD_NS > now_ns;
            client.may_be_lost |=
                young && self.nodes[node].engine.flows.values().any(|own| own.ends == client.record.ends);
        }
    }

    /// The instances that hear `node` and were told of the client's flow.
    fn knowers(&self, node: usize, client: u64) -> BTreeSet<usize> {
        let key = self.clients[&client].record.ends.key(FlowDirection::ToBackend);
        let knows = |other: &usize| {
            let process = self.nodes[*other].process.as_ref();
            let is_told = process.is_some_and(|it| it.told.contains_key(&key));
            let is_restored = process.is_some_and(|it| it.restored.get(&key) == Some(&node));
            *other != node && (self.in_touch(node, *other) && is_told || is_restored)
        };
        self.running().into_iter().filter(knows).collect()
    }

    /// The sockets of `node` are gone, or all that it has.
    fn orphan(&mut self, node: usize, with_map: bool, is_told: bool) {
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let client = &self.clients[&number];
            let in_sockets = self.nodes[node].has_sockets(&client.record);
            if !(in_sockets || with_map && self.nodes[node].lists(&client.record)) {
                continue;
            }
            let known_by = if is_told { BTreeSet::new() } else { self.knowers(node, number) };
            let key = client.record.ends.key(FlowDirection::ToBackend);
            let known = known_by.iter().any(|other| self.nodes[*other].engine.carries_key(&key));
            if let Some(client) = self.clients.get_mut(&number) {
                client.may_be_lost |= in_sockets || !known;
                client.orphaned = Some(Orphaned { known_by });
            }
        }
    }

    /// A process is gone that knew of untold clients.
    fn forgets(&mut self, node: usize) {
        for orphaned in self.clients.values_mut().filter_map(|client| client.orphaned.as_mut()) {
            orphaned.known_by.remove(&node);
        }
    }

    /// The instance with the VIP cannot tell clients of flows that it has not heard of, nor do others tell them.
    pub(super) fn see_who_cannot_tell(&mut self, vip: usize) {
        let holders = self.net.holders[vip].clone();
        for client in self.clients.values_mut().filter(|client| client.vip == vip) {
            if let Some(orphaned) = &mut client.orphaned
                && !holders.is_subset(&orphaned.known_by)
            {
                orphaned.known_by.clear();
            }
        }
    }

    /// Its host is gone and sends nothing more.
    pub(super) fn die(&mut self, node: usize) {
        self.note(|| format!("{} dies", NAMES[node]));
        self.falls_silent(node);
        self.orphan(node, true, false);
        self.forgets(node);
        self.forget_wires(node);
        self.doom(node);
        let it = &mut self.nodes[node];
        (it.up, it.died_ns, it.process, it.isolated) = (false, self.now_ns, None, false);
        it.engine = Engine { carries: it.engine.carries, room: it.engine.room, ..Engine::default() };
        self.net.holders.iter_mut().for_each(|holders| holders.retain(|it| *it != node));
        self.disturb();
    }

    pub(super) fn boot(&mut self, node: usize) {
        self.note(|| format!("{} comes back with nothing", NAMES[node]));
        self.nodes[node].up = true;
        self.begin(node);
    }

    pub(super) fn begin(&mut self, node: usize) {
        if self.net.shared {
            // The others may rely on this instance to inherit flows of the dead, of which it knows nothing.
            let orphaned = self.clients.values_mut().filter_map(|client| client.orphaned.as_mut());
            orphaned.for_each(|orphaned| orphaned.known_by.clear());
        }
        self.start(node);
    }

    /// Another process starts, which may know what the one before knew.
    pub(super) fn start(&mut self, node: usize) {
        self.net.met.retain(|(one, other)| *one != node && *other != node);
        let (now_ns, log_max, faults) = (self.now_ns, self.log_max, self.faults);
        self.nodes[node].begin(now_ns, log_max, faults);
        self.begin_vip(node);
        self.tell_addresses(node);
        self.disturb();
    }

    /// Its process is killed, and another one starts: sockets die, pinned maps stay.
    pub(super) fn kill(&mut self, node: usize) {
        self.note(|| format!("{} is killed and starts again", NAMES[node]));
        self.falls_silent(node);
        self.lose_sockets(node);
        (0..self.nodes.len()).for_each(|other| self.hang_up(node, other, "it was killed"));
        self.forgets(node);
        self.begin(node);
    }

    /// The kernel sends FIN or RST, which only gets through from the host with the VIP.
    fn lose_sockets(&mut self, node: usize) {
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let client = &self.clients[&number];
            let process = self.nodes[node].process.as_ref();
            let begins = process.is_some_and(|it| it.connecting.contains_key(&client.record.id));
            let its = begins || self.nodes[node].has_sockets(&client.record);
            if its && self.has_vip(node, client.vip) && !self.nodes[node].isolated {
                self.is_over(number);
            }
        }
        self.orphan(node, false, true);
    }

    pub(super) fn stop(&mut self, node: usize) {
        self.note(|| format!("{} stops", NAMES[node]));
        self.look_at_vip(node, self.now_ns, Some(VipBar::Stopping));
        self.falls_silent(node);
        self.say_goodbye(node, Farewell::Stopped);
        self.lose_sockets(node);
        self.forgets(node);
        let it = &mut self.nodes[node];
        (it.process, it.stopped_ns) = (None, self.now_ns);
        self.disturb();
    }

    /// The last messages arrive before the end of each link.
    pub(super) fn say_goodbye(&mut self, node: usize, farewell: Farewell) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.exchange.farewell(farewell);
        let now_ns = self.now_ns;
        for other in 0..self.nodes.len() {
            let Some(process) = &mut self.nodes[node].process else { return };
            if let Some(wire) = self.net.wires.get_mut(&(node, other)) {
                while let Some(message) = process.exchange.poll_message(&super::node::name(other), now_ns) {
                    let is_last = matches!(message, super::Message::Farewell(_));
                    let at_ns = wire.back().map_or(now_ns, |(at_ns, _)| now_ns.max(*at_ns));
                    wire.push_back((at_ns, Piece::Says(message)));
                    if is_last {
                        break;
                    }
                }
            }
            self.hang_up(node, other, "it said goodbye");
        }
    }

    /// Repairs everything.
    pub(super) fn fix(&mut self) {
        self.net.cut.clear();
        self.net.stalled.clear();
        self.net.split = false;
        for node in self.nodes.iter_mut().filter(|node| node.isolated) {
            (node.isolated, node.back_ns) = (false, self.now_ns);
        }
        self.note(|| "all is fixed".to_owned());
        self.disturb();
    }

    /// Hosts and processes come back by themselves.
    pub(super) fn come_back(&mut self, now: bool) {
        for (node, name) in NAMES.iter().enumerate().take(self.nodes.len()) {
            let it = &self.nodes[node];
            if !it.belongs || it.process.is_some() {
                continue;
            }
            let (away_ns, least_ns) = match it.up {
                true => (self.now_ns - it.stopped_ns, 300 * MS),
                false => (self.now_ns - it.died_ns, BOOT_NS),
            };
            if away_ns < least_ns || !now && !self.dice.one_in(SECOND_NS / super::STEP_NS) {
                continue;
            }
            match it.up {
                true => {
                    self.note(|| format!("{name} starts"));
                    self.begin(node);
                }
                false => self.boot(node),
            }
        }
    }

    /// Notes the links that carry everything again.
    pub(super) fn see_links(&mut self) {
        for (one, other) in self.net.wires.keys().copied().collect::<Vec<_>>() {
            let both = self.net.wires.contains_key(&(other, one));
            if one < other && both && self.carries_both_ways(one, other) {
                let now_ns = self.now_ns;
                self.net.linked.entry(pair(one, other)).or_insert(now_ns);
            }
        }
    }
}
