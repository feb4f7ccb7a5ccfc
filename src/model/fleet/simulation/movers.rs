//! Moves VIPs, or the routes to them: simple models of keepalived and of routers, or the real machine of the built-in VIP on each instance, with
//! the questions between hosts and the kernels' leases.

use super::node::{NAMES, name, vip};
use super::{FlowDirection, MS, SECOND_NS, World};
use crate::addr::Mac;
use crate::model::fleet::vip::{
    InterfaceState, LEASE_NS, VipBar, VipGain, VipLook, VipMachine, VipNote, VipOrder, VipPart, VipPresence,
    VipStanding, VipTerms, address_set,
};

/// Interval of the machine's looks. An instance that asks does so every 40 ms.
const LOOK_NS: u64 = 10 * MS;
/// Two holders must have heard each other for this long: a few beats, of which one in ten is lost.
const BOTH_MAX_NS: u64 = 600 * MS;
/// Limit for a VIP without a holder while an instance could take it: the lease, and two rounds of questions.
const UNOWNED_MAX_NS: u64 = 3200 * MS;
/// A host that has come back answers the next question, and an instance asks several times within this.
const ASKED_NS: u64 = 200 * MS;

/// The state of the built-in VIP in a world.
#[derive(Default)]
pub(super) struct BuiltIn {
    /// When the kernel of each host removes the address.
    leases: Vec<Option<u64>>,
    /// Since when two holders hear each other.
    both_ns: Option<u64>,
    /// Since when no host has the VIP although an instance could take it.
    unowned_ns: Option<u64>,
    /// The world is at rest, and time passes in jumps that no lease outlasts.
    pub(super) is_resting: bool,
}

/// The VIP of one process.
pub(super) struct OwnVip {
    machine: VipMachine,
    /// When the process last heard the gateway.
    heard_ns: u64,
}

fn mac(node: usize) -> Mac {
    [2, 0, 0, 0, 0, node as u8]
}

impl World {
    /// Whether keepalived or a router would give this node the VIP.
    pub(super) fn is_fit(&self, node: usize, vip: usize) -> bool {
        let it = &self.nodes[node];
        let process = it.process.as_ref().filter(|_| it.up && it.belongs && vip < it.config.vips);
        process.is_some_and(|process| process.exchange.is_ready() && !process.vip_given)
    }

    fn fit_within_reach(&self, vip: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.is_fit(*node, vip) && !self.nodes[*node].isolated).collect()
    }

    /// After a while they notice a failure.
    pub(super) fn move_what_must(&mut self) {
        if self.built_in.is_some() {
            return self.move_built_in();
        }
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

    pub(super) fn take_vip(&mut self, vip: usize, from: usize) {
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

    /// A process starts.
    pub(super) fn begin_vip(&mut self, node: usize) {
        if self.built_in.is_none() {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let terms = VipTerms {
            me: name(node),
            priority: 100,
            interface: "eth0".to_owned(),
            addresses: address_set(&[vip(0).ip()]),
            has_peers: true,
            had_it: false,
        };
        process.vip = Some(OwnVip { machine: VipMachine::new(terms), heard_ns: 0 });
        let standing = VipStanding { priority: 100, addresses: address_set(&[vip(0).ip()]), ..Default::default() };
        process.exchange.set_vip(standing, self.now_ns);
    }

    /// All looks of one step of the world.
    pub(super) fn move_built_in(&mut self) {
        if self.built_in.as_ref().is_none_or(|built_in| built_in.is_resting) {
            return;
        }
        let steps = super::STEP_NS / LOOK_NS;
        for look in (0..steps).rev() {
            let now_ns = self.now_ns - look * LOOK_NS;
            self.end_leases(now_ns);
            for node in self.running() {
                self.look_at_vip(node, now_ns, None);
            }
        }
        self.judge_holders();
    }

    fn end_leases(&mut self, now_ns: u64) {
        for (node, name) in NAMES.iter().enumerate().take(self.nodes.len()) {
            let Some(built_in) = &mut self.built_in else { return };
            built_in.leases.resize(self.nodes.len(), None);
            let is_over = built_in.leases[node].is_some_and(|until_ns| now_ns >= until_ns);
            if is_over || !self.nodes[node].up {
                built_in.leases[node] = None;
            }
            if is_over && self.net.holders[0].contains(&node) {
                self.note(|| format!("the kernel of {name} removes the VIP"));
                self.take_vip(0, node);
            }
        }
    }

    /// `leaves`: the process is about to stop.
    pub(super) fn look_at_vip(&mut self, node: usize, now_ns: u64, leaves: Option<VipBar>) {
        let is_here = self.net.holders[0].contains(&node);
        let is_reached = !self.nodes[node].isolated;
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(own) = &mut process.vip else { return };
        if is_reached && now_ns.is_multiple_of(SECOND_NS) && !self.faults.gateway_unheard {
            own.heard_ns = now_ns;
        }
        let peers = process.exchange.vip_peers(&[vip(0).ip()], now_ns);
        let starting = (!process.exchange.is_ready()).then_some(VipBar::Starting);
        let evacuated = process.vip_given.then_some(VipBar::Evacuated { to: None });
        let bar = leaves.or(evacuated).or(starting);
        let look = VipLook {
            now_ns,
            peers: Some(&peers),
            ready: bar.is_none(),
            has_backend: true,
            bar,
            synced: process.exchange.members(now_ns).iter().all(|it| it.synced),
            heard_ns: own.heard_ns,
            socket_ns: own.heard_ns,
            interface: InterfaceState::Running,
            is_bare: false,
            here: if is_here { VipPresence::Whole } else { VipPresence::Absent },
        };
        own.machine.handle_look(&look);
        let order = |world: &mut Self| world.nodes[node].process.as_mut()?.vip.as_mut()?.machine.poll_order();
        while let Some(order) = order(self) {
            self.obey(node, order, now_ns);
        }
    }

    fn obey(&mut self, node: usize, order: VipOrder, now_ns: u64) {
        match order {
            VipOrder::Tell(mut standing) => {
                if self.faults.holder_untold {
                    (standing.part, standing.claim) = (VipPart::Stands, 0);
                }
                if let Some(process) = &mut self.nodes[node].process {
                    process.exchange.set_vip(standing, now_ns);
                }
            }
            VipOrder::Ask => self.ask_for_vip(node, now_ns),
            VipOrder::Add | VipOrder::Renew => {
                let lease_ns = now_ns + LEASE_NS + self.dice.roll(250) * MS;
                if let Some(built_in) = &mut self.built_in {
                    built_in.leases.resize(self.nodes.len(), None);
                    built_in.leases[node] = Some(lease_ns);
                }
                if !self.net.holders[0].contains(&node) {
                    self.give_vip(0, node);
                }
            }
            VipOrder::Remove { .. } => {
                if self.net.holders[0].contains(&node) {
                    self.take_vip(0, node);
                }
            }
            VipOrder::Announce | VipOrder::Rouse => {}
            VipOrder::Note(note) => {
                self.note(|| format!("    {}: {note:?}", NAMES[node]));
                if matches!(note, VipNote::Gained(VipGain::Vacant | VipGain::Silent(_) | VipGain::GivenUp(_))) {
                    self.judge_gain(node);
                }
            }
        }
    }

    /// Asks all hosts for the address, and the gateway to answer.
    fn ask_for_vip(&mut self, node: usize, now_ns: u64) {
        if self.nodes[node].isolated {
            return;
        }
        for other in (0..self.nodes.len()).filter(|other| *other != node).collect::<Vec<_>>() {
            if !self.reaches(node, other) {
                continue;
            }
            if self.net.holders[0].contains(&other)
                && !self.faults.vip_unanswered
                && let Some(own) = self.nodes[node].process.as_mut().and_then(|process| process.vip.as_mut())
            {
                own.machine.handle_answer((mac(other), vip(0).ip()), now_ns);
            }
            if let Some(own) = self.nodes[other].process.as_mut().and_then(|process| process.vip.as_mut()) {
                own.machine.handle_rival(mac(node), mac(other), now_ns);
            }
        }
        if let Some(own) = self.nodes[node].process.as_mut().and_then(|process| process.vip.as_mut())
            && !self.faults.gateway_unheard
        {
            own.heard_ns = now_ns;
        }
    }

    fn has_reached(&self, one: usize, other: usize, for_ns: u64) -> bool {
        let is_back = |node: usize| self.now_ns - self.nodes[node].back_ns > for_ns;
        self.reaches(one, other) && is_back(one) && is_back(other)
    }

    /// `node` has taken the VIP.
    fn judge_gain(&mut self, node: usize) {
        let has = |other: &usize| *other != node && self.has_reached(node, *other, ASKED_NS);
        let other = self.net.holders[0].iter().copied().find(has);
        self.demand(other.is_none(), || {
            format!("{} takes the VIP from {}, which has it and answers", NAMES[node], NAMES[other.unwrap_or(node)])
        });
    }

    /// Whether the process could have taken the VIP for a while.
    fn could_hold(&self, node: usize) -> bool {
        let is_old = self.nodes[node].process.as_ref().is_some_and(|it| self.now_ns - it.started_ns > 3 * SECOND_NS);
        let is_back = self.now_ns - self.nodes[node].back_ns > SECOND_NS;
        self.is_fit(node, 0) && !self.nodes[node].isolated && is_old && is_back
    }

    /// At rest.
    pub(super) fn one_has_the_built_in_vip(&self) {
        let holders = &self.net.holders[0];
        self.demand(self.built_in.is_none() || holders.len() == 1, || format!("at rest {holders:?} have the VIP"));
    }

    fn judge_holders(&mut self) {
        let (now_ns, holders) = (self.now_ns, self.net.holders[0].clone());
        let hear = |one: usize, other: usize| {
            let beats = self.can_open(one, other) && self.can_open(other, one);
            one < other && self.has_reached(one, other, 0) && (beats || self.in_touch(one, other))
        };
        let is_both = holders.iter().any(|one| holders.iter().any(|other| hear(*one, *other)));
        let is_owned = holders.iter().any(|node| self.nodes[*node].up && !self.nodes[*node].isolated);
        let is_unowned = !is_owned && (0..self.nodes.len()).any(|node| self.could_hold(node));
        let Some(built_in) = &mut self.built_in else { return };
        let since = |is: bool, since_ns: &mut Option<u64>| {
            if is {
                now_ns - *since_ns.get_or_insert(now_ns)
            } else {
                *since_ns = None;
                0
            }
        };
        let (both_ns, unowned_ns) =
            (since(is_both, &mut built_in.both_ns), since(is_unowned, &mut built_in.unowned_ns));
        self.demand(both_ns <= BOTH_MAX_NS, || format!("two that hear each other have the VIP: {holders:?}"));
        self.demand(unowned_ns <= UNOWNED_MAX_NS, || format!("nobody has the VIP for {} ms", unowned_ns / MS));
    }
}
