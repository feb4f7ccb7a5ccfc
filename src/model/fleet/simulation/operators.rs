//! Actions of operators: reload, upgrade, evacuate.

use super::evacuate::{EvacuateOrder, EvacuateStep, Places, Situation, Wish};
use super::node::{NAMES, Process, vip};
use super::{Evacuation, Farewell, FlowDirection, MS, SavedFleet, Stage, World};
use crate::model::fleet::failover;

impl World {
    /// Another process takes everything over.
    pub(super) fn upgrade(&mut self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        if process.evacuation.is_some() {
            return;
        }
        self.note(|| format!("{} is upgraded", NAMES[node]));
        self.falls_silent(node);
        let saved = self.save(node);
        let told = self.nodes[node].process.as_ref().map(|it| it.told.clone()).unwrap_or_default();
        let restored = told.iter().filter(|(_, owner)| self.in_touch(node, **owner));
        let restored: std::collections::BTreeMap<_, _> = restored.map(|(key, owner)| (*key, *owner)).collect();
        self.say_goodbye(node, Farewell::Succeeded);
        let Some(old) = self.nodes[node].process.take() else { return };
        self.start(node);
        let now_ns = self.now_ns;
        if let Some(process) = &mut self.nodes[node].process {
            (process.restored, process.is_restored) = (restored, self.faults.peers_unsaved);
            if !self.faults.peers_unsaved {
                failover::expect_restore(&mut process.failover);
                process.exchange.restore(saved, now_ns);
            }
            let Process { next_id, accepted, sockets, connecting, taken, .. } = old;
            let established = |record: &super::FlowRecord| super::Local::Begun(Box::new(record.clone()));
            process.locals.extend(sockets.values().map(established));
            process.next_id = process.next_id.max(next_id);
            (process.accepted, process.sockets, process.connecting, process.taken) =
                (accepted, sockets, connecting, taken);
        }
    }

    /// All that the process knows of the others. What its failover has decided up to then is done.
    fn save(&mut self, node: usize) -> SavedFleet {
        let now_ns = self.now_ns;
        let Some(process) = &mut self.nodes[node].process else { return SavedFleet::default() };
        let peers = process.exchange.save(now_ns);
        while let Some(remote) = process.exchange.poll_remote() {
            process.note_told(&remote);
            process.failover.handle_remote(now_ns, remote);
        }
        let known = failover::save(&process.failover);
        self.act(node);
        SavedFleet::join(peers, known, 3)
    }

    pub(super) fn change_members(&mut self) {
        let (inside, outside): (Vec<_>, Vec<_>) = (0..self.nodes.len()).partition(|node| self.nodes[*node].belongs);
        if let Some(node) = self.dice.pick(&outside)
            && self.nodes[node].process.is_none()
            && (inside.len() < 3 || self.dice.one_in(2))
        {
            self.note(|| format!("{} joins", NAMES[node]));
            self.nodes[node].belongs = true;
            self.nodes[node].up = true;
            self.nodes[node].config.peers = inside.iter().copied().collect();
            self.nodes[node].config.vips = self.vips_now;
            self.begin(node);
        } else if inside.len() > 2
            && let Some(node) = self.dice.pick(&inside)
        {
            self.note(|| format!("{} is to leave for good", NAMES[node]));
            self.nodes[node].belongs = false;
            let at_ns = self.now_ns + self.dice.roll(1500) * MS;
            self.leaving.push((at_ns, node));
            self.forsake(node);
        }
        self.reload_all();
    }

    /// Nobody has evacuated it before.
    fn forsake(&mut self, node: usize) {
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            if let Some(client) = self.clients.get_mut(&number).filter(|it| self.nodes[node].lists(&it.record)) {
                client.may_be_lost = true;
                client.orphaned = Some(super::clients::Orphaned { known_by: Default::default() });
            }
        }
    }

    pub(super) fn add_frontend(&mut self) {
        if self.vips_now < self.net.holders.len() {
            self.vips_now += 1;
            self.note(|| format!("there are to be {} frontends", self.vips_now));
            self.reload_all();
        }
    }

    fn reload_all(&mut self) {
        for node in (0..self.nodes.len()).filter(|node| self.nodes[*node].belongs).collect::<Vec<_>>() {
            let at_ns = self.now_ns + self.dice.roll(1500) * MS;
            self.reloads.push((at_ns, node));
        }
    }

    /// Carries out reloads and removals that are due.
    pub(super) fn operate(&mut self) {
        let due = |list: &mut Vec<(u64, usize)>, now_ns| -> Vec<usize> {
            let (due, later) = list.drain(..).partition(|(at_ns, _)| *at_ns <= now_ns);
            *list = later;
            due.into_iter().map(|(_, node): (u64, usize)| node).collect()
        };
        for node in due(&mut self.reloads, self.now_ns) {
            self.reload(node);
        }
        for node in due(&mut self.leaving, self.now_ns) {
            if self.is_up(node) {
                self.forsake(node);
                self.stop(node);
            }
            let it = &mut self.nodes[node];
            it.engine =
                super::engine::Engine { carries: it.engine.carries, room: it.engine.room, ..Default::default() };
            self.net.holders.iter_mut().for_each(|holders| holders.retain(|it| *it != node));
        }
        for node in self.running() {
            self.evacuate(node);
        }
    }

    fn reload(&mut self, node: usize) {
        if !self.nodes[node].belongs {
            return;
        }
        let others = (0..self.nodes.len()).filter(|other| *other != node && self.nodes[*other].belongs);
        let config = super::node::Config { peers: others.collect(), vips: self.vips_now };
        if self.nodes[node].config == config {
            return;
        }
        self.note(|| format!("{} reloads: {config:?}", NAMES[node]));
        self.nodes[node].config = config;
        let (members, settings, now_ns) = (self.nodes[node].members(), self.nodes[node].settings(), self.now_ns);
        let vips = (0..self.vips_now).map(|number| vip(number).ip()).collect();
        if let Some(process) = &mut self.nodes[node].process {
            process.exchange.set_members(&members, now_ns);
            process.exchange.set_vips(vips);
            if !self.faults.reloads_unheard {
                process.failover.handle_settings(now_ns, settings);
            }
        }
        self.act(node);
        self.tell_addresses(node);
        self.disturb();
    }

    fn look<T>(&mut self, node: usize, act: impl FnOnce(&mut Process, &Situation<'_>) -> T) -> Option<T> {
        let (now_ns, vips) = (self.now_ns, self.nodes[node].config.vips);
        let here = (0..vips).filter(|number| self.has_vip(node, *number)).map(|number| vip(number).ip());
        let mut places = Places { here: here.collect(), ..Places::default() };
        places.frontends = (0..vips).map(|number| vip(number).ip()).collect();
        let process = self.nodes[node].process.as_mut()?;
        if process.keeps {
            places.kept = places.frontends.clone();
        }
        let peers = process.exchange.members(now_ns);
        let (ending_here, accepted) = (process.sockets.len() + process.connecting.len(), process.accepted);
        Some(act(process, &Situation { now_ns, peers: &peers, places: &places, ending_here, accepted }))
    }

    pub(super) fn begin_evacuation(&mut self, node: usize) {
        if self.nodes[node].process.as_ref().is_none_or(|process| process.evacuation.is_some()) {
            return;
        }
        let deadline_ns = (2000 + self.dice.roll(3000)) * MS;
        let begun = self.look(node, |process, look| {
            process.evacuation = Evacuation::begin(Wish { to: None, deadline_ns }, look).ok();
            process.evacuation.is_some()
        });
        self.note(|| format!("{} evacuates: {begun:?}", NAMES[node]));
    }

    fn evacuate(&mut self, node: usize) {
        let Some(mut machine) = self.nodes[node].process.as_mut().and_then(|process| process.evacuation.take()) else {
            return;
        };
        let was = machine.step();
        self.look(node, |_, look| machine.handle_look(look));
        while let Some(order) = machine.poll_order() {
            self.note(|| format!("    {}: {order:?}", NAMES[node]));
            let Some(process) = &mut self.nodes[node].process else { return };
            match order {
                EvacuateOrder::Keep => process.keeps = true,
                EvacuateOrder::GiveVip => process.vip_given = true,
                EvacuateOrder::Offload | EvacuateOrder::Refuse => {}
                EvacuateOrder::Reset => {
                    let all = self.clients.values().filter(|client| self.nodes[node].has_sockets(&client.record));
                    all.map(|client| client.number).collect::<Vec<_>>().into_iter().for_each(|it| self.is_over(it));
                }
                EvacuateOrder::TakeBack => (process.keeps, process.vip_given) = (false, false),
                EvacuateOrder::Release => process.keeps = false,
            }
        }
        match machine.step() {
            EvacuateStep::Here => return,
            EvacuateStep::Away if was != EvacuateStep::Away && self.dice.one_in(2) => return self.switch_off(node),
            EvacuateStep::Emptying => {
                // Packets come by way of other instances.
                let its = self.clients.values().filter(|client| self.nodes[node].has_sockets(&client.record));
                let idle: Vec<_> = its.filter(|it| it.stage == Stage::Idle).map(|client| client.number).collect();
                idle.into_iter().for_each(|client| self.offload_this(client, true));
            }
            _ => {}
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.evacuation = Some(machine);
        }
    }

    /// Its flows are known to another instance: nobody misses it.
    fn switch_off(&mut self, node: usize) {
        for client in self.clients.values().filter(|client| self.nodes[node].lists(&client.record)) {
            let place = self.place(client.number, client.vip, FlowDirection::ToBackend);
            let known = place.is_none_or(|place| {
                let engine = &self.nodes[place].engine;
                let key = client.record.ends.key(FlowDirection::ToBackend);
                // An instance that has just begun asks the others.
                let has = |other: usize| other != node && self.nodes[other].engine.carries_key(&key);
                let is_asked = !self.has_run_long(place) && self.running().into_iter().any(has);
                is_asked || engine.carries_key(&key) || !engine.has_room(2) || !engine.carries
            });
            self.demand(known || client.may_be_lost, || {
                format!("{} may be switched off, and has client {}", NAMES[node], client.number)
            });
        }
        self.die(node);
    }
}
