//! What must hold: at every step, and once all is quiet.

use super::*;

impl World {
    pub(super) fn what_all_have_they_keep(&mut self) {
        let heard = |since_ns: &u64| self.now_ns - since_ns > HEARD_NS;
        let up = self.nodes.iter().all(|node| node.up);
        if !up || self.linked.len() < 3 || !self.linked.values().all(heard) || !self.cut.is_empty() {
            return self.everywhere.clear();
        }
        for (id, client) in &self.clients {
            let without = self.nodes.iter().position(|node| !node.has(*id));
            match without.filter(|_| client.graduated_ns.is_some()) {
                None if client.graduated_ns.is_some() => drop(self.everywhere.insert(*id)),
                None => {}
                Some(node) => {
                    self.demand(!self.everywhere.contains(id), &format!("{} has lost {id}", NAMES[node]));
                }
            }
        }
    }

    /// Nothing happens any more: all must come right.
    pub(super) fn come_to_rest(&mut self) {
        self.mend();
        (0..BOOT_NS / STEP_NS + 1).for_each(|_| self.step());
        (0..3).filter(|node| !self.nodes[*node].up).collect::<Vec<_>>().into_iter().for_each(|node| self.come_up(node));
        for _ in 0..400 {
            self.step();
            self.clients_send(false);
        }
        for _ in 0..20 {
            self.step();
            self.clients_send(true);
        }
        (0..100).for_each(|_| self.step());
        let holder = self.vip_at;
        for (id, client) in &self.clients {
            let with = |has: &dyn Fn(&Node) -> bool| (0..3).filter(|node| has(&self.nodes[*node])).collect::<Vec<_>>();
            let (sockets, own) = (with(&|node| node.sockets.contains_key(id)), with(&|node| node.own.contains_key(id)));
            let right = match client.record.keeping == Keeping::Sockets && sockets.len() == 1 {
                true => own.is_empty(),
                false => {
                    sockets.is_empty() && own.len() == 1 && (self.routed.is_some() || own.first() == holder.as_ref())
                }
            };
            self.demand(right, &format!("{id}: sockets at {sockets:?}, looked after at {own:?}, VIP at {holder:?}"));
            self.demand(client.waits_since_ns.is_none(), &format!("{id} is not served"));
        }
        for (node, own_name) in NAMES.iter().enumerate() {
            for view in self.nodes[node].exchange.members(self.now_ns) {
                let other = NAMES.iter().position(|name| **name == *view.name.0).expect("a node");
                let has = self.nodes[other].sockets.len() + self.nodes[other].own.len();
                let fine = view.synced && view.behind == 0 && view.flows == has;
                self.demand(fine, &format!("{own_name} knows {view:?}, which has {has} flows"));
            }
        }
    }
}
