//! A simple model of keepalived and of routers, which move VIPs or the routes to them.

use super::node::NAMES;
use super::{FlowDirection, World};

impl World {
    /// Whether keepalived or a router would give this node the VIP.
    pub(super) fn is_fit(&self, node: usize, vip: usize) -> bool {
        let it = &self.nodes[node];
        let process = it.process.as_ref().filter(|_| it.up && it.belongs && vip < it.config.vips);
        process.is_some_and(|process| process.exchange.is_ready() && !process.let_go)
    }

    fn fit_within_reach(&self, vip: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.is_fit(*node, vip) && !self.nodes[*node].isolated).collect()
    }

    /// After a while they notice a failure.
    pub(super) fn move_what_must(&mut self) {
        if self.net.shared {
            let wrong = |node: &usize| !self.is_fit(*node, 0) || self.nodes[*node].isolated;
            if (self.net.routed.is_empty() || self.net.routed.iter().any(wrong)) && self.dice.one_in(15) {
                self.reroute();
            }
            return;
        }
        for vip in 0..self.net.holders.len() {
            let reachable: Vec<_> =
                self.net.holders[vip].iter().copied().filter(|node| !self.nodes[*node].isolated).collect();
            if reachable.len() > 1 && !self.net.split {
                if self.dice.one_in(15)
                    && let Some(loser) = self.dice.pick(&reachable)
                {
                    self.take_vip(vip, loser);
                }
            } else if !reachable.iter().any(|node| self.is_fit(*node, vip)) && self.dice.one_in(15) {
                let fit = self.fit_within_reach(vip);
                if let Some(to) = self.dice.pick(&fit) {
                    self.move_vip(vip, to);
                }
            }
        }
    }

    /// Routers choose other hosts.
    pub(super) fn reroute(&mut self) {
        let fit = self.fit_within_reach(0);
        let some: Vec<_> = fit.iter().copied().filter(|_| self.dice.one_in(2)).collect();
        self.net.salt = self.dice.roll(100);
        self.net.routed = if some.is_empty() { fit } else { some };
        self.disturb();
        let names: Vec<_> = self.net.routed.iter().map(|node| NAMES[*node]).collect();
        self.note(|| format!("routers choose among {names:?}"));
    }

    pub(super) fn move_vip(&mut self, vip: usize, to: usize) {
        if self.net.holders[vip].contains(&to) {
            return;
        }
        self.give_vip(vip, to);
        for from in self.net.holders[vip].clone() {
            // A node that is cut off does not notice.
            if from != to && !self.nodes[from].isolated {
                self.take_vip(vip, from);
            }
        }
    }

    pub(super) fn give_vip(&mut self, vip: usize, to: usize) {
        self.note(|| format!("VIP {vip} comes to {}", NAMES[to]));
        self.net.holders[vip].insert(to);
        self.disturb();
        self.tell_addresses(to);
        self.act(to);
        self.see_who_cannot_tell(vip);
    }

    fn take_vip(&mut self, vip: usize, from: usize) {
        self.note(|| format!("VIP {vip} leaves {}", NAMES[from]));
        self.net.holders[vip].remove(&from);
        self.disturb();
        self.tell_addresses(from);
        self.act(from);
    }

    /// Whether the packets of both directions come to this node.
    pub(super) fn sees_all_of(&self, node: usize, client: u64, vip: usize) -> bool {
        [FlowDirection::ToBackend, FlowDirection::ToClient]
            .iter()
            .all(|direction| self.place(client, vip, *direction) == Some(node))
    }
}
