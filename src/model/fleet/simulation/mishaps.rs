//! What befalls the instances and their flows.

use super::*;

impl World {
    /// One of the things that happen.
    pub(super) fn mishap(&mut self) {
        let node = self.dice.roll(3) as usize;
        let running = self.nodes.iter().filter(|node| node.up).count();
        match self.dice.roll(20) {
            0 if running > 1 && self.nodes[node].up => self.die(node),
            1 if self.nodes[node].up => self.restart(node),
            2 => {
                self.note(format!("{} is cut off", NAMES[node]));
                self.falls_silent(node);
                for other in (0..3).filter(|other| *other != node) {
                    self.cut.insert(pair(node, other));
                    self.linked.remove(&pair(node, other));
                }
            }
            3 | 4 => self.mend(),
            5 => {
                let dead =
                    (0..3).find(|node| !self.nodes[*node].up && self.now_ns - self.nodes[*node].died_ns > BOOT_NS);
                dead.into_iter().for_each(|node| self.come_up(node));
            }
            6 | 7 if self.is_fit(node) => self.move_vip(Some(node)),
            8..=12 => self.bear(),
            13..=16 => self.graduate(),
            _ => self.end(),
        }
    }

    /// Whether whoever moves VIPs would give it this one.
    pub(super) fn is_fit(&self, node: usize) -> bool {
        self.nodes[node].up && self.nodes[node].exchange.is_ready()
    }

    pub(super) fn bear(&mut self) {
        let Some(node) = self.place(FlowId(self.born + 1)).filter(|node| self.is_fit(*node)) else { return };
        self.born += 1;
        let record = flow(self.born);
        self.nodes[node].sockets.insert(record.id, record.clone());
        self.nodes[node].locals.push(Local::Established(Box::new(record.clone())));
        self.note(format!("{} is born at {}", record.id, NAMES[node]));
        self.clients.insert(record.id, Client { record, graduated_ns: None, waits_since_ns: None });
    }

    pub(super) fn some_flow(&mut self) -> Option<FlowId> {
        let pick = self.dice.roll(self.clients.len().max(1) as u64) as usize;
        self.clients.keys().nth(pick).copied()
    }

    pub(super) fn graduate(&mut self) {
        let Some(id) = self.some_flow() else { return };
        let Some(node) = self.nodes.iter().position(|node| node.up && node.sockets.contains_key(&id)) else { return };
        // Only with the VIP do both directions' packets come.
        if self.routed.is_none() && self.vip_at != Some(node) {
            return;
        }
        let passage = Box::new(passage(id.0 as u32));
        let it = &mut self.nodes[node];
        if let Some(mut record) = it.sockets.remove(&id) {
            record.keeping = Keeping::Passage(passage.clone());
            it.own.insert(id, record);
            it.locals.push(Local::Graduated { id, passage });
        }
        self.note(format!("{id} graduates at {}", NAMES[node]));
        let now_ns = self.now_ns;
        self.clients.entry(id).and_modify(|client| client.graduated_ns = Some(now_ns));
    }

    pub(super) fn end(&mut self) {
        let Some(id) = self.some_flow() else { return };
        let Some(node) = self
            .nodes
            .iter()
            .position(|node| node.up && (node.sockets.contains_key(&id) || node.own.contains_key(&id)))
        else {
            return;
        };
        if self.routed.is_none() && self.vip_at != Some(node) {
            return;
        }
        let it = &mut self.nodes[node];
        if it.sockets.remove(&id).is_some() || it.own.remove(&id).is_some() {
            it.locals.push(Local::Ended(id));
            self.clients.remove(&id);
            self.note(format!("{id} ends at {}", NAMES[node]));
        }
    }

    /// It cannot tell any more what has just happened: some may know of it, and others not.
    pub(super) fn falls_silent(&mut self, node: usize) {
        let now_ns = self.now_ns;
        for (_, client) in self.clients.iter_mut().filter(|(id, _)| self.nodes[node].own.contains_key(id)) {
            client.graduated_ns = client.graduated_ns.filter(|at_ns| now_ns - at_ns > TOLD_NS);
        }
    }

    /// Its host is gone, and says nothing any more.
    pub(super) fn die(&mut self, node: usize) {
        self.falls_silent(node);
        self.note(format!("{} dies", NAMES[node]));
        self.nodes[node].up = false;
        self.nodes[node].died_ns = self.now_ns;
        let lost: Vec<_> = self.nodes[node].own.keys().copied().collect();
        self.wires.retain(|(_, to), _| *to != node);
        if self.vip_at == Some(node) {
            self.vip_at = None;
        }
        // What nobody else holds is lost with it; that its client is told is another matter.
        for id in lost {
            if !self.nodes.iter().any(|node| node.up && node.has(id)) {
                self.clients.entry(id).and_modify(|client| client.graduated_ns = None);
            }
        }
    }

    pub(super) fn come_up(&mut self, node: usize) {
        self.note(format!("{} comes back with nothing", NAMES[node]));
        self.linked.retain(|(one, other), _| *one != node && *other != node);
        let epoch = self.nodes[node].epoch + 1;
        self.nodes[node] = Node::new(node, epoch, self.now_ns);
        self.tell_addresses(node);
    }

    /// Its process is killed, and another one starts: sockets die, what is pinned stays.
    pub(super) fn restart(&mut self, node: usize) {
        self.note(format!("{} is killed and starts again", NAMES[node]));
        let old = &mut self.nodes[node];
        let closed: Vec<_> = old.sockets.keys().copied().collect();
        let mut new = Node::new(node, old.epoch + 1, self.now_ns);
        new.own = std::mem::take(&mut old.own);
        new.held = std::mem::take(&mut old.held);
        new.stale = new.held.keys().copied().collect();
        new.locals = new.own.values().map(|record| Local::Established(Box::new(record.clone()))).collect();
        *old = new;
        // Their kernels said FIN or RST, though only with the VIP does it get through.
        if self.routed.is_some() || self.vip_at == Some(node) {
            self.clients.retain(|id, _| !closed.contains(id));
        }
        for other in (0..3).filter(|other| *other != node) {
            self.unlink(node, other, "it closed the connection");
        }
        self.tell_addresses(node);
    }

    pub(super) fn mend(&mut self) {
        if !self.cut.is_empty() {
            self.note("all links are mended".to_owned());
            self.cut.clear();
        }
    }

    pub(super) fn unlink(&mut self, one: usize, other: usize, why: &str) {
        for (from, to) in [(one, other), (other, one)] {
            self.wires.remove(&(from, to));
            self.linked.remove(&pair(from, to));
            if self.nodes[from].up {
                self.nodes[from].exchange.handle_loss(&name(to), why, self.now_ns);
            }
        }
    }

    pub(super) fn link_up(&mut self) {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let linked = self.wires.contains_key(&(one, other));
            let can = self.nodes[one].up && self.nodes[other].up && !self.cut.contains(&(one, other));
            if linked || !can || self.dice.roll(10) > 0 {
                continue;
            }
            let (first, second) = (self.nodes[one].exchange.hello(), self.nodes[other].exchange.hello());
            let taken = self.nodes[other].exchange.handle_link(&first, self.now_ns);
            let taken = taken.and_then(|()| self.nodes[one].exchange.handle_link(&second, self.now_ns));
            self.demand(taken.is_ok(), &format!("{taken:?}"));
            self.linked.insert((one, other), self.now_ns);
            self.wires.insert((one, other), VecDeque::new());
            self.wires.insert((other, one), VecDeque::new());
        }
    }
}
