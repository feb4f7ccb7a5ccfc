//! Runs up to eight instances, the network between them and the packets of their clients and backends through random
//! schedules: flows begin, are offloaded and end; instances die, reboot, restart, are upgraded, reloaded and evacuated;
//! links and hosts are cut off; VIPs move or are on all hosts. Exchange, failover, evacuation and the built-in VIP are the real ones;
//! packet paths, kernels, routers and clients are simple models. The seed of a world determines which faults happen in
//! it, and when.
//!
//! These must hold:
//! - where instances share the address, none takes an instance for dead that the link or another sign shows alive, and
//!   no other instance resets its flows;
//! - no offloaded flow is reset while a reachable instance holds it, and all instances with the flow keep it;
//! - where the instances move the VIP themselves, none takes it while a host has it that answers, two that hear each other
//!   do not both keep it, and some host has it within a bound while an instance could;
//! - where each host has an apiserver of its own, a host's death costs no offloaded flow whose apiserver lives;
//! - once the network no longer changes, whole or not, no packet of a client or its backend waits longer than a bound;
//! - once everything is repaired and quiet, each client whose flow no instance has was told, if any instance knew it;
//!   exactly one instance lists and serves each other flow; all instances know all flows of each other; new flows begin;
//!   and nothing is left of ended flows.

mod clients;
mod dice;
mod engine;
mod mishaps;
mod movers;
mod mutations;
mod network;
mod node;
mod operators;
mod packets;
mod run;
mod verdict;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::evacuate::{self, Evacuation};
use super::exchange::{Exchange, Member, Own};
use super::failover::{Action, Failover, Note, Settings, Wake};
use super::testing::passage;
use super::{
    BeatSecret, Epoch, Farewell, FleetId, FlowRecord, InstanceName, Keeping, Local, Message, PeerCommand,
    PeerPortRange, Remote, SavedFleet, StandbyAnswer, StandbyRequest, Then, Unknown, UnknownPacket, port_range,
};
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::ends::{Ends, Key};
use crate::model::ids::FlowId;
use crate::model::splice::FlowDirection;

use clients::{Client, Stage};
use dice::{Dice, Kind};
use movers::BuiltIn;
use network::Net;
use node::Node;

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1000 * MS;
const STEP_NS: u64 = 40 * MS;
const GUARD_NS: u64 = 1000 * MS;
/// Time within which all linked instances know a change.
const TOLD_NS: u64 = 200 * MS;
/// Time within which two newly linked instances know all flows of each other.
const HEARD_NS: u64 = 600 * MS;
/// The guard, a second until an owner is taken for dead, and time to ask the peers and to repeat the packet.
const WAIT_MAX_NS: u64 = GUARD_NS + 4000 * MS;

/// Old faults of the program, wired in again: the simulation must find each of them.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// A process that finds an empty map gives out ids from 1 on, even if its host has used them.
    ids_from_one: bool,
    /// Liveness comes from the peer link alone.
    link_alone: bool,
    /// The failover ignores reloads: it keeps the peers and frontends from its start.
    reloads_unheard: bool,
    /// A flow that a full map rejected counts as held.
    full_is_standby: bool,
    /// No host answers a question for the built-in VIP.
    vip_unanswered: bool,
    /// An instance that asks for the built-in VIP does not hear the gateway.
    gateway_unheard: bool,
    /// Peers do not hear of the built-in VIP's holder.
    holder_untold: bool,
    /// The new process of an upgrade does not get what the old one knew of the peers.
    peers_unsaved: bool,
}

struct World {
    faults: Faults,
    now_ns: u64,
    dice: Dice,
    /// The kinds of faults in this world.
    kinds: Vec<Kind>,
    nodes: Vec<Node>,
    net: Net,
    /// `None`: something else moves the VIP.
    built_in: Option<BuiltIn>,
    clients: BTreeMap<u64, Client>,
    born: u64,
    /// Offloaded flows that all instances have, and those have heard each other since.
    everywhere: BTreeSet<u64>,
    /// Frontends in the present configurations.
    vips_now: usize,
    /// When the instances reload, and which one.
    reloads: Vec<(u64, usize)>,
    leaving: Vec<(u64, usize)>,
    log_max: Option<usize>,
    log: RefCell<Vec<String>>,
    fault: RefCell<Option<String>>,
}

impl World {
    fn note(&self, what: impl FnOnce() -> String) {
        if self.fault.borrow().is_some() {
            return;
        }
        let at_ms = (self.now_ns / MS).saturating_sub(1_000_000);
        self.log.borrow_mut().push(format!("{at_ms:>6} ms  {}", what()));
    }

    fn steps(&mut self, count: usize, with_clients: bool) {
        for _ in 0..count {
            self.step();
            if with_clients {
                self.clients_send(false);
                self.nobody_waits();
            }
        }
    }

    fn step(&mut self) {
        if self.fault.borrow().is_some() {
            return;
        }
        self.now_ns += STEP_NS;
        self.see_links();
        self.link_up();
        self.deliver();
        for node in self.running() {
            self.run(node);
        }
        self.operate();
        self.end_doomed();
        self.find_out();
        self.move_what_must();
        self.come_back(false);
        self.what_all_have_they_keep();
    }

    fn run(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let Node { process: Some(process), engine, .. } = &mut self.nodes[node] else { return };
        engine.use_room();
        let locals = process.locals.drain(..).chain(engine.locals.drain(..)).collect::<Vec<_>>();
        process.exchange.handle_local(locals, now_ns);
        process.exchange.handle_time(now_ns);
        if !self.faults.ids_from_one {
            process.next_id = process.next_id.max(process.exchange.own_ids_told() + 1);
        }
        while let Some(query) = process.exchange.poll_query() {
            let key = Key { from: query.packet.from, to: query.packet.to };
            let known = engine.carries_key(&key) || process.taken.contains_key(&key);
            process.exchange.handle_known(&query, known);
        }
        while process.exchange.poll_notice().is_some() {}
        while let Some(remote) = process.exchange.poll_remote() {
            process.note_told(&remote);
            if self.faults.reloads_unheard
                && process.is_told_of_fleet
                && let Remote::Joined { .. } | Remote::Gone { .. } = remote
            {
                continue;
            }
            process.failover.handle_remote(now_ns, remote);
        }
        process.is_told_of_fleet = true;
        if process.exchange.is_ready() && !std::mem::replace(&mut process.ready_was_told, true) {
            process.failover.handle_ready();
        }
        if process.failover.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            process.failover.handle_timeout(now_ns);
        }
        self.act(node);
        while let Some((peer, _)) = self.nodes[node].process.as_mut().and_then(|process| process.exchange.poll_drop()) {
            self.hang_up(node, node::number(&peer), "it was given up");
        }
        self.speak(node);
        if !self.faults.link_alone {
            self.beat(node);
        }
        self.wake_late(node);
    }

    /// Carries out the failover's actions.
    fn act(&mut self, node: usize) {
        let now_ns = self.now_ns;
        loop {
            let is_here = (0..self.net.holders.len()).any(|vip| self.has_vip(node, vip));
            let Node { process: Some(process), engine, .. } = &mut self.nodes[node] else { return };
            let Some(action) = process.failover.poll_action() else {
                let answers = std::mem::take(&mut engine.answers);
                if answers.is_empty() {
                    return;
                }
                answers.into_iter().for_each(|answer| process.failover.handle_standby(now_ns, answer));
                continue;
            };
            match action {
                Action::Standby(request) => {
                    use StandbyRequest::{Inherit, Refuse, Release, Settle};
                    if let Inherit(_) | Refuse(_) | Release(_) | Settle { .. } = request {
                        let name = node::NAMES[node];
                        let line = format!("{:>6} ms      {name}: {request:?}", now_ns / MS - 1_000_000);
                        self.log.borrow_mut().push(line);
                    }
                    engine.carry_out(request, is_here);
                }
                Action::Send(command) => {
                    if let PeerCommand::Claim { owner, flows } = &command {
                        let name = node::NAMES[node];
                        let line =
                            format!("{:>6} ms      {name} claims {flows:?} from {owner}", now_ns / MS - 1_000_000);
                        self.log.borrow_mut().push(line);
                    }
                    process.exchange.handle_command(command, now_ns);
                }
                Action::Challenge { round, ends } => {
                    ends.into_iter().for_each(|end| self.challenge(node, end.from, end.to));
                    if let Some(process) = &mut self.nodes[node].process {
                        process.failover.handle_challenged(now_ns, round);
                    }
                }
                Action::WakeOn(all) => {
                    let begun_ns = self.now_ns;
                    process.late.extend(all.into_iter().map(|wake| (wake, begun_ns)));
                }
                Action::Answer(packet) => self.answer(node, &packet),
                Action::Note(Note::FailedOver { from, inherited, reset }) => {
                    self.note(|| {
                        format!(
                            "    {} fails over {from}: {inherited} flows go on, {reset} are reset",
                            node::NAMES[node]
                        )
                    });
                    self.judge_failover(node, &from);
                }
                // Every instance here tells what is so.
                Action::Refused(why) => {
                    self.demand(false, || format!("{}: a flow is refused: {why:?}", node::NAMES[node]))
                }
                Action::Announce(_) | Action::Shared(_) | Action::Note(_) => {}
            }
        }
    }
}
