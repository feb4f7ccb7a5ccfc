//! The invariants: at every step, and once everything is quiet.

use super::clients::Stage;
use super::network::pair;
use super::node::{NAMES, name, number};
use super::{Evacuation, FlowDirection, InstanceName, Keeping, WAIT_MAX_NS, World};

impl World {
    /// Notes the first violation.
    pub(super) fn demand(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.fault.borrow().is_none() {
            let what = what();
            self.note(|| format!("FAULT: {what}"));
            *self.fault.borrow_mut() = Some(what);
        }
    }

    /// Whether the network has not changed for so long.
    pub(super) fn is_steady(&self, for_ns: u64) -> bool {
        let all = self.running();
        let met = |one: &usize, other: &usize| one == other || self.net.met.contains(&pair(*one, *other));
        let all_met = all.iter().all(|one| all.iter().all(|other| met(one, other)));
        all_met && self.now_ns - self.net.changed_ns >= for_ns
    }

    /// Whether `one` can know that `other` lives.
    fn knows_alive(&self, one: usize, other: usize) -> bool {
        let knows = self.nodes[one].config.peers.contains(&other);
        let stays = |node: usize| self.now_ns - self.nodes[node].back_ns > super::SECOND_NS && self.has_run_long(node);
        let reaches = self.reaches(one, other) && stays(one) && stays(other);
        let witness = self.net.shared && reaches && self.can_open(one, other);
        knows && self.is_up(other) && (self.in_touch(one, other) || witness)
    }

    /// Whether it has run long enough to have heard of the others' flows.
    pub(super) fn has_run_long(&self, node: usize) -> bool {
        let process = self.nodes[node].process.as_ref();
        process.is_some_and(|it| self.now_ns - it.started_ns > super::SECOND_NS)
    }

    /// `by` has answered RST for a client's flow.
    pub(super) fn judge_reset(&self, by: usize, client: u64) {
        let client = &self.clients[&client];
        let engine = &self.nodes[by].engine;
        if client.may_be_lost || !engine.carries || engine.was_crowded || !engine.has_room(2) || !self.is_up(by) {
            return;
        }
        let (number, key) = (client.number, client.record.ends.key(FlowDirection::ToBackend));
        if let Some(owner) = self.owner_of(client) {
            let wrong = owner != by && self.knows_alive(by, owner) && self.nodes[owner].engine.carries;
            self.demand(!wrong, || {
                format!("client {number} of {}, which lives, is reset by {}", NAMES[owner], NAMES[by])
            });
        } else if matches!(client.record.keeping, Keeping::Passage(_)) {
            let holds = |node: &usize| self.nodes[*node].engine.carries_key(&key) && self.in_touch(by, *node);
            let holders: Vec<_> = self.running().into_iter().filter(holds).map(|node| NAMES[node]).collect();
            self.demand(holders.is_empty(), || format!("client {number} is reset while {holders:?} hold it"));
        }
    }

    /// `node` fails over what `from` has.
    pub(super) fn judge_failover(&self, node: usize, from: &InstanceName) {
        let from = number(from);
        let process = self.nodes[from].process.as_ref().filter(|_| self.is_up(from));
        let serves = process.is_some_and(|it| self.now_ns - it.started_ns > super::SECOND_NS);
        // An instance that has left the fleet hears nothing of it.
        let are_members = self.nodes[from].belongs && self.nodes[from].config.peers.contains(&node);
        let lives = self.net.shared && serves && self.knows_alive(node, from) && are_members;
        self.demand(!lives, || format!("{} fails over {}, which lives", NAMES[node], NAMES[from]));
    }

    pub(super) fn what_all_have_they_keep(&mut self) {
        let all: Vec<_> = (0..self.nodes.len()).filter(|node| self.nodes[*node].belongs).collect();
        let fine = |node: &usize| {
            self.is_up(*node) && self.nodes[*node].engine.carries && self.nodes[*node].engine.has_room(0)
        };
        let linked = all.iter().all(|one| all.iter().all(|other| self.in_touch(*one, *other)));
        if !linked || !all.iter().all(fine) || !self.reloads.is_empty() || !self.leaving.is_empty() {
            return self.everywhere.clear();
        }
        for client in self.clients.values().filter(|it| matches!(it.record.keeping, Keeping::Passage(_))) {
            let key = client.record.ends.key(FlowDirection::ToBackend);
            match all.iter().find(|node| !self.nodes[**node].engine.carries_key(&key)) {
                None => drop(self.everywhere.insert(client.number)),
                Some(node) => {
                    let had = self.everywhere.contains(&client.number);
                    self.demand(!had, || format!("{} has lost client {}", NAMES[*node], client.number));
                }
            }
        }
    }

    /// Every packet that waits is answered in time, if it reaches an instance.
    pub(super) fn nobody_waits(&self) {
        for client in self.clients.values().filter(|client| client.stage != Stage::Idle) {
            let since_ns = client.since_ns.max(self.net.changed_ns);
            // Without offload the owner's kernel answers, whatever others have.
            let owner = self.owner_of(client);
            let right = |node: usize| self.nodes[node].engine.carries || owner.is_none_or(|owner| owner == node);
            let comes = |direction| self.place(client.number, client.vip, direction).is_some_and(right);
            let nobody = client.stage == Stage::Passing && (client.challenged_in_vain || !client.can_be_told());
            let owner = self.owner_of(client).filter(|owner| self.nodes[*owner].isolated);
            // The backend's data goes to its owner, which is not heard.
            let says_nothing = matches!(client.stage, Stage::Passing | Stage::Answering);
            let nobody = nobody || owner.is_some() && says_nothing && !self.place_is_told(client);
            let late = self.now_ns - since_ns > WAIT_MAX_NS && !nobody;
            self.demand(!(late && comes(FlowDirection::ToBackend) && comes(FlowDirection::ToClient)), || {
                let ms = (self.now_ns - since_ns) / super::MS;
                format!("client {} waits for {ms} ms: {client:?}", client.number)
            });
        }
    }

    /// Whether the instance that gets its packets has heard of it.
    fn place_is_told(&self, client: &super::Client) -> bool {
        let place = self.place(client.number, client.vip, FlowDirection::ToBackend);
        let process = place.and_then(|place| self.nodes[place].process.as_ref());
        process.is_some_and(|it| it.told.contains_key(&client.record.ends.key(FlowDirection::ToBackend)))
    }

    /// No more faults: everything must be repaired.
    pub(super) fn come_to_rest(&mut self) {
        self.kinds.clear();
        self.fix();
        self.steps(40, false);
        self.come_back(true);
        for node in self.running() {
            let evacuation = self.nodes[node].process.as_mut().and_then(|process| process.evacuation.as_mut());
            evacuation.into_iter().for_each(Evacuation::cancel);
        }
        self.steps(40, false);
        self.come_back(true);
        self.fix();
        // Ends that wait repeat their packets, and nobody else sends anything.
        for _ in 0..200 {
            self.step();
            let waits = |number: &u64| self.clients[number].stage != Stage::Idle;
            let waiting: Vec<_> = self.clients.keys().copied().filter(waits).collect();
            if self.dice.one_in(4) {
                waiting.into_iter().for_each(|number| self.send(number));
            }
        }
        self.nobody_is_left_untold();
        for _ in 0..40 {
            self.step();
            self.clients_send(true);
        }
        self.steps(40, false);
        self.nobody_waits();
        self.one_has_the_built_in_vip();
        self.each_is_listed_once();
        self.all_know_all();
        self.new_flows_begin();
        self.nothing_is_left();
    }

    fn listed_at(&self, client: u64) -> Vec<&'static str> {
        let record = &self.clients[&client].record;
        (0..self.nodes.len()).filter(|node| self.nodes[*node].lists(record)).map(|node| NAMES[node]).collect()
    }

    /// The client of a flow that no instance has was told, unless no instance could. A flow whose packets are forwarded
    /// may have no owner until they come.
    fn nobody_is_left_untold(&self) {
        for client in self.clients.values() {
            let key = client.record.ends.key(FlowDirection::ToBackend);
            let place = self.place(client.number, client.vip, FlowDirection::ToBackend);
            if place.is_some_and(|place| self.nodes[place].engine.carries_key(&key)) {
                continue;
            }
            let listed = self.listed_at(client.number);
            let can_tell = (!client.challenged_in_vain || self.is_woken(client)) && client.can_be_told();
            self.demand(!listed.is_empty() || !can_tell, || {
                format!("client {} was not told that its flow is gone: {client:?}", client.number)
            });
        }
    }

    fn each_is_listed_once(&self) {
        for client in self.clients.values() {
            let listed = self.listed_at(client.number);
            // Its owner has left for good and had acknowledged the request: the client sends nothing that could be
            // answered.
            if listed.is_empty() && client.stage == Stage::Passing && !client.can_be_told() {
                continue;
            }
            self.demand(listed.len() == 1 && client.backend_lives, || {
                format!("client {} is listed by {listed:?}: {client:?}", client.number)
            });
        }
    }

    fn all_know_all(&self) {
        for node in self.running() {
            let Some(process) = &self.nodes[node].process else { continue };
            for view in process.exchange.members(self.now_ns) {
                let Some(other) = &self.nodes[number(&view.name)].process else { continue };
                let has = other.sockets.len() + self.nodes[number(&view.name)].engine.flows.len();
                let fine = view.synced && view.behind == 0 && view.flows == has;
                self.demand(fine, || format!("{} knows {view:?}, which has {has} flows", NAMES[node]));
            }
        }
    }

    fn new_flows_begin(&mut self) {
        let before = self.born;
        (0..4).for_each(|_| self.bear());
        for _ in 0..30 {
            self.step();
            self.clients_send(false);
        }
        for number in before + 1..=self.born {
            let client = self.clients.get(&number);
            let begun = client.is_some_and(|client| client.stage != Stage::Connecting);
            self.demand(begun, || format!("client {number} could not connect: {client:?}"));
        }
    }

    /// Long after all flows have ended, no instance has anything of them.
    fn nothing_is_left(&mut self) {
        if let Some(built_in) = &mut self.built_in {
            built_in.is_resting = true;
        }
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            if !self.dice.one_in(3) {
                self.is_over(number);
            }
        }
        self.steps(10, false);
        for _ in 0..16 {
            self.now_ns += 3 * super::SECOND_NS;
            self.steps(2, false);
        }
        for node in self.running() {
            let engine = &self.nodes[node].engine;
            let lives = |key| {
                self.clients.values().any(|it| {
                    [FlowDirection::ToBackend, FlowDirection::ToClient]
                        .iter()
                        .any(|direction| it.record.ends.key(*direction) == key)
                })
            };
            let left: Vec<_> = engine.entries.iter().filter(|(key, _)| !lives(**key)).collect();
            self.demand(left.is_empty(), || format!("{} is left with {left:?}", NAMES[node]));
            let Some(process) = &self.nodes[node].process else { continue };
            let others: usize =
                self.running().iter().filter(|other| **other != node).map(|other| self.lists_in_all(*other)).sum();
            let known = process.failover.known();
            self.demand(known == others, || format!("{} knows {known} flows of {others}", name(node)));
            let over: Vec<_> = process.failover.inherited().filter(|id| !engine.flows.contains_key(&id.flow)).collect();
            self.demand(over.is_empty(), || format!("{} remembers for ever that it inherited {over:?}", name(node)));
        }
    }

    fn lists_in_all(&self, node: usize) -> usize {
        self.nodes[node].process.as_ref().map_or(0, |it| it.sockets.len()) + self.nodes[node].engine.flows.len()
    }
}
