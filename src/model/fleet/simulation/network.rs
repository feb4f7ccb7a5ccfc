//! Links between instances, and the hosts that packets to a VIP reach.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::dice::mix;
use super::node::{NAMES, at, host, name, vip};
use super::{FlowDirection, HEARD_NS, MS, Message, World};

/// A message on its way from one instance to another.
pub(super) enum Piece {
    Says(Message),
    /// The link ends here.
    Ends(&'static str),
}

#[derive(Default)]
pub(super) struct Net {
    /// All instances have all VIPs, and routers choose among `routed`.
    pub shared: bool,
    /// Otherwise, the hosts that have each VIP.
    pub holders: Vec<BTreeSet<usize>>,
    pub routed: Vec<usize>,
    pub salt: u64,
    /// Whether two instances may have one VIP.
    pub split: bool,
    /// Directions in which the peer link, but nothing else, is cut.
    pub cut: BTreeSet<(usize, usize)>,
    /// Links that deliver nothing until this time.
    pub stalled: BTreeMap<(usize, usize), u64>,
    /// With their time of arrival.
    pub wires: BTreeMap<(usize, usize), VecDeque<(u64, Piece)>>,
    /// Since when two instances are linked without any cut.
    pub linked: BTreeMap<(usize, usize), u64>,
    /// Pairs that were linked since the processes of both began.
    pub met: BTreeSet<(usize, usize)>,
    /// When anything of it last changed.
    pub changed_ns: u64,
}

/// How much a link accepts before the other end reads.
const WIRE_MAX: usize = 12;

pub(super) fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl World {
    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes[node].up && self.nodes[node].process.is_some()
    }

    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.is_up(*node)).collect()
    }

    fn link_carries(&self, from: usize, to: usize) -> bool {
        let whole = |node: usize| self.nodes[node].up && !self.nodes[node].isolated;
        let stands = self.net.stalled.get(&(from, to)).is_some_and(|until_ns| *until_ns > self.now_ns);
        whole(from) && whole(to) && !stands && !self.net.cut.contains(&(from, to))
    }

    /// Whether frames of one host reach another.
    pub(super) fn reaches(&self, from: usize, to: usize) -> bool {
        [from, to].iter().all(|node| self.nodes[*node].up && !self.nodes[*node].isolated)
    }

    /// Whether every message of one instance has reached the other for a while.
    pub(super) fn in_touch(&self, one: usize, other: usize) -> bool {
        one == other || self.net.linked.get(&pair(one, other)).is_some_and(|at_ns| self.now_ns - at_ns > HEARD_NS)
    }

    pub(super) fn disturb(&mut self) {
        self.net.changed_ns = self.now_ns;
    }

    /// From now on their link is cut, or loses messages.
    pub(super) fn out_of_touch(&mut self, one: usize, other: usize) {
        self.net.linked.remove(&pair(one, other));
    }

    /// `node` ends its link to `other`, which learns of it if the network carries anything there.
    pub(super) fn hang_up(&mut self, node: usize, other: usize, why: &'static str) {
        self.net.wires.remove(&(other, node));
        let now_ns = self.now_ns;
        if let Some(wire) = self.net.wires.get_mut(&(node, other)) {
            let at_ns = wire.back().map_or(now_ns, |(at_ns, _)| now_ns.max(*at_ns));
            wire.push_back((at_ns, Piece::Ends(why)));
        }
        self.out_of_touch(node, other);
        if let Some(process) = &mut self.nodes[node].process {
            process.exchange.handle_loss(&name(other), why, now_ns);
        }
    }

    /// The host is gone, and with it the messages to it.
    pub(super) fn forget_wires(&mut self, node: usize) {
        self.net.wires.retain(|(from, to), _| *from != node && *to != node);
        self.net.linked.retain(|(one, other), _| *one != node && *other != node);
    }

    pub(super) fn link_up(&mut self) {
        let running = self.running();
        for (at, one) in running.iter().copied().enumerate() {
            for other in running[at + 1..].iter().copied() {
                let knows = |one: usize, other: usize| self.nodes[one].config.peers.contains(&other);
                let idle = [(one, other), (other, one)].iter().all(|wire| !self.net.wires.contains_key(wire));
                let can = self.link_carries(one, other) && self.link_carries(other, one);
                if !idle || !can || !knows(one, other) || !knows(other, one) || !self.dice.one_in(8) {
                    continue;
                }
                let hello = |node: usize| self.nodes[node].process.as_ref().map(|it| it.exchange.hello());
                let (Some(first), Some(second)) = (hello(one), hello(other)) else { continue };
                let now_ns = self.now_ns;
                let mut greet = |node: usize, hello| {
                    let process = self.nodes[node].process.as_mut();
                    process.map_or(Ok(()), |it| it.exchange.handle_link(hello, now_ns))
                };
                let taken = greet(other, &first).and_then(|()| greet(one, &second));
                self.demand(taken.is_ok(), || format!("{} and {}: {taken:?}", NAMES[one], NAMES[other]));
                self.net.linked.insert((one, other), now_ns);
                self.net.met.insert((one, other));
                self.net.wires.insert((one, other), VecDeque::new());
                self.net.wires.insert((other, one), VecDeque::new());
                self.disturb();
            }
        }
    }

    pub(super) fn deliver(&mut self) {
        let now_ns = self.now_ns;
        for (from, to) in self.net.wires.keys().copied().collect::<Vec<_>>() {
            if !self.link_carries(from, to) {
                continue;
            }
            while let Some(wire) = self.net.wires.get_mut(&(from, to))
                && wire.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns)
                && let Some((_, piece)) = wire.pop_front()
            {
                match (piece, &mut self.nodes[to].process) {
                    (Piece::Says(message), Some(process)) => {
                        process.exchange.handle_message(&name(from), message, now_ns);
                    }
                    (Piece::Ends(why), _) => {
                        self.net.wires.remove(&(from, to));
                        self.hang_up(to, from, why);
                        self.net.wires.remove(&(to, from));
                    }
                    (Piece::Says(_), None) => {}
                }
            }
        }
    }

    /// Sends the messages of `node`.
    pub(super) fn speak(&mut self, node: usize) {
        let now_ns = self.now_ns;
        for other in 0..self.nodes.len() {
            let Some(wire) = self.net.wires.get_mut(&(node, other)) else { continue };
            if wire.back().is_some_and(|(_, piece)| matches!(piece, Piece::Ends(_))) {
                continue;
            }
            let Some(process) = &mut self.nodes[node].process else { return };
            // Now and then one link is much slower than the others.
            let most_ms = if self.dice.one_in(40) { 100 } else { 30 };
            while wire.len() < WIRE_MAX
                && let Some(message) = process.exchange.poll_message(&name(other), now_ns)
            {
                let at_ns = now_ns + self.dice.roll(most_ms) * MS;
                // In order, whatever the delay.
                let at_ns = wire.back().map_or(at_ns, |(before, _)| at_ns.max(*before));
                wire.push_back((at_ns, Piece::Says(message)));
            }
        }
    }

    /// Sends the beats of `node`: to each known address of a peer, in datagrams, a part of which is lost.
    pub(super) fn beat(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(wanted) = process.exchange.poll_beat(now_ns) else { return };
        for (_, places) in &wanted.to {
            for ip in places {
                let vip = (0..self.net.holders.len()).find(|number| vip(*number).ip() == *ip);
                let to = match vip {
                    Some(vip) => self.net.holders[vip].first().copied(),
                    None => Some(at(*ip)),
                };
                let Some(to) = to.filter(|to| self.reaches(node, *to) && self.can_open(*to, node)) else { continue };
                if self.dice.one_in(10) {
                    continue;
                }
                if let Some(process) = &mut self.nodes[to].process {
                    process.exchange.handle_beat(&name(node), wanted.beat.clone(), now_ns);
                }
            }
        }
    }

    /// Whether `one` knows the secret of the beats of this process of `other`.
    pub(super) fn can_open(&self, one: usize, other: usize) -> bool {
        let [Some(process), Some(sender)] = [one, other].map(|node| self.nodes[node].process.as_ref()) else {
            return false;
        };
        let mut keys = process.exchange.beat_keys();
        let sealed = sender.exchange.own_beat_secret().toward(&name(one));
        keys.any(|(of, key)| *of == name(other) && *key == sealed)
    }

    /// The node that packets of this direction reach.
    pub(super) fn place(&self, client: u64, vip: usize, direction: FlowDirection) -> Option<usize> {
        let word = mix((client * 2 + u64::from(direction == FlowDirection::ToClient)) ^ (self.net.salt << 32)) as usize;
        if self.net.shared {
            let node = self.net.routed.get(word % self.net.routed.len().max(1)).copied();
            return node.filter(|node| self.nodes[*node].up && !self.nodes[*node].isolated);
        }
        let holders = self.net.holders[vip].iter().copied();
        let holders: Vec<_> = holders.filter(|node| self.nodes[*node].up && !self.nodes[*node].isolated).collect();
        holders.get(word % holders.len().max(1)).copied()
    }

    /// Whether the node has the VIP.
    pub(super) fn has_vip(&self, node: usize, vip: usize) -> bool {
        self.net.shared || self.net.holders[vip].contains(&node)
    }

    pub(super) fn tell_addresses(&mut self, node: usize) {
        let vips = (0..self.net.holders.len()).filter(|number| self.has_vip(node, *number));
        let mut addresses: Vec<_> = vips.map(|number| vip(number).ip()).collect();
        addresses.insert(0, host(node));
        let now_ns = self.now_ns;
        if let Some(process) = &mut self.nodes[node].process {
            process.failover.handle_addresses(now_ns, &addresses);
        }
    }

    pub(super) fn carries_both_ways(&self, one: usize, other: usize) -> bool {
        self.link_carries(one, other) && self.link_carries(other, one)
    }
}
