//! Three instances, the network between them and the packets of their clients, through random schedules of births, graduations,
//! deaths, restarts, cut links and moves of the VIP, or of routes to one that all have. The exchange and the takeover are the real ones; paths, kernels and clients
//! are as simple as can be.
//!
//! What must hold:
//! - a flow without sockets is never reset while an instance lives that holds its record;
//! - one that all have stays with all while they hear each other, whoever looks after it: its packets may come anywhere;
//! - no packet of a client waits beyond the guard once an instance has the VIP;
//! - once all is quiet, each flow that is left is looked after by exactly one instance: a proxied one by that with its sockets,
//!   one without sockets by that with the VIP, or by any if all have it; and all know all of each other.

mod mishaps;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use super::exchange::{Exchange, Member, Own};
use super::takeover::{Action, Settings, Takeover};
use super::testing::passage;
use super::{
    Command, Epoch, FlowRecord, HeldAnswer, HeldRequest, InstanceName, Keeping, Local, Message, Remote, Stray, Then,
    Unknown,
};
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::ends::{Ends, Key};
use crate::model::ids::FlowId;
use crate::model::splice::Direction;

const MS: u64 = 1_000_000;
const STEP_NS: u64 = 20 * MS;
const NAMES: [&str; 3] = ["a", "b", "c"];
const GUARD_NS: u64 = 1000 * MS;
/// A host is away for longer than the others need to take it for dead.
const BOOT_NS: u64 = 1500 * MS;
/// What a change may take to be known to all that are linked.
const TOLD_NS: u64 = 100 * MS;
/// What two that have just linked may take to know all of each other.
const HEARD_NS: u64 = 500 * MS;
/// The guard, a second until an owner is known to be dead, and some time to ask the others.
const WAIT_MAX_NS: u64 = GUARD_NS + 1500 * MS;

/// Numbers that look random and are the same for the same seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % sides
    }
}

struct Node {
    exchange: Exchange,
    takeover: Takeover,
    /// Its process and its host run.
    up: bool,
    died_ns: u64,
    epoch: u64,
    started_ns: u64,
    ready_was_told: bool,
    locals: Vec<Local>,
    /// Flows that have sockets here.
    sockets: BTreeMap<FlowId, FlowRecord>,
    /// Entries in the map: of own flows, and of others'.
    own: BTreeMap<FlowId, FlowRecord>,
    held: BTreeMap<FlowId, FlowRecord>,
    /// Held by an earlier process, and not said again.
    stale: BTreeSet<FlowId>,
    diverted: HashMap<Key, Divert>,
    unknown: HashMap<VipAddr, Unknown>,
    /// When the last guard ends, or did.
    guarded_until_ns: u64,
}

#[derive(Clone, Copy)]
enum Divert {
    To(IpAddr),
    Reset,
}

/// What a client knows of its flow.
struct Client {
    record: FlowRecord,
    /// Since when it has no sockets. `None`: it has, or too few were told in time that it has none.
    graduated_ns: Option<u64>,
    /// A packet that nothing has answered.
    waits_since_ns: Option<u64>,
}

/// What becomes of a packet.
#[derive(PartialEq)]
enum Fate {
    Served,
    Reset,
    /// Dropped, lost, or shown to the takeover: it will be sent again.
    Again,
}

struct World {
    now_ns: u64,
    dice: Dice,
    nodes: Vec<Node>,
    /// What is on its way from one to another, with its time of arrival; `None`: no link.
    wires: HashMap<(usize, usize), VecDeque<(u64, Message)>>,
    /// Since when two are linked.
    linked: BTreeMap<(usize, usize), u64>,
    cut: BTreeSet<(usize, usize)>,
    vip_at: Option<usize>,
    /// Every instance has the VIP, and routers choose among these by flow.
    routed: Option<Vec<usize>>,
    salt: u64,
    vip_since_ns: u64,
    clients: BTreeMap<FlowId, Client>,
    /// Flows without sockets that all instances have, and have heard each other since.
    everywhere: BTreeSet<FlowId>,
    born: u64,
    log: Vec<String>,
}

fn name(node: usize) -> InstanceName {
    InstanceName(NAMES[node].into())
}

fn host(node: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 21 + node as u8])
}

fn vip() -> IpAddr {
    IpAddr::from([10, 0, 0, 100])
}

fn flow(number: u64) -> FlowRecord {
    let client = ClientAddr::new((IpAddr::from([10, 0, 1, 7]), 1000 + number as u16).into());
    FlowRecord {
        id: FlowId(number),
        ends: Ends {
            client,
            vip: VipAddr::new((vip(), 6443).into()),
            local: LocalAddr::new((vip(), 30_000 + number as u16).into()),
            backend: BackendAddr::new((IpAddr::from([10, 0, 0, 11]), 6443).into()),
        },
        client,
        backend_key: 1,
        accepted_unix_ms: 1,
        connect_us: 1,
        keeping: Keeping::Sockets,
    }
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl Node {
    fn new(number: usize, epoch: u64, now_ns: u64) -> Self {
        let members: Vec<_> =
            (0..NAMES.len()).map(|other| Member { name: name(other), address: (host(other), 9471).into() }).collect();
        let own = Own {
            name: name(number),
            epoch: Epoch(epoch),
            slot: number as u8,
            version: String::new(),
            sync_deadline_ns: 2000 * MS,
            vips: vec![vip()],
        };
        let mut exchange = Exchange::new(own, &members, now_ns);
        exchange.set_whole();
        let takeover = Takeover::new(Settings {
            me: name(number),
            peers: (0..NAMES.len()).filter(|other| *other != number).map(|other| (name(other), host(other))).collect(),
            vips: vec![VipAddr::new((vip(), 6443).into())],
            carries: true,
            tickle: true,
            guard_ns: GUARD_NS,
            priority: Vec::new(),
            ports: 32768..=60999,
        });
        Self {
            exchange,
            takeover,
            up: true,
            died_ns: 0,
            epoch,
            started_ns: now_ns,
            ready_was_told: false,
            locals: Vec::new(),
            sockets: BTreeMap::new(),
            own: BTreeMap::new(),
            held: BTreeMap::new(),
            stale: BTreeSet::new(),
            diverted: HashMap::new(),
            unknown: HashMap::new(),
            guarded_until_ns: 0,
        }
    }

    fn carry_out(&mut self, request: HeldRequest) -> Option<HeldAnswer> {
        match request {
            HeldRequest::Hold(record) if self.own.contains_key(&record.id) => {
                return Some(HeldAnswer::Ours(vec![record.fleet_id()]));
            }
            HeldRequest::Hold(record) => {
                if !self.own.contains_key(&record.id) {
                    for direction in [Direction::Up, Direction::Down] {
                        self.diverted.remove(&record.ends.key(direction));
                    }
                    self.stale.remove(&record.id);
                    self.held.insert(record.id, *record);
                }
            }
            HeldRequest::Drop(flows) => flows.iter().for_each(|id| drop(self.held.remove(&id.flow))),
            HeldRequest::Adopt(flows) => self.adopt(flows.into_iter().map(|id| id.flow).collect()),
            HeldRequest::Release(flows) => {
                for id in flows.into_iter().map(|id| id.flow) {
                    if let Some(record) = self.own.remove(&id) {
                        self.locals.push(Local::Ended(id));
                        self.held.insert(id, record);
                    }
                }
            }
            HeldRequest::Settle { claim } => {
                let stale: Vec<_> = std::mem::take(&mut self.stale).into_iter().collect();
                match claim {
                    true => self.adopt(stale),
                    false => stale.iter().for_each(|id| drop(self.held.remove(id))),
                }
            }
            HeldRequest::Forward { keys, to } => {
                self.diverted.extend(keys.into_iter().map(|key| (key, Divert::To(to))));
            }
            HeldRequest::Refuse(keys) => self.diverted.extend(keys.into_iter().map(|key| (key, Divert::Reset))),
            HeldRequest::Forget(keys) => self.diverted.retain(|key, _| !keys.contains(key)),
            HeldRequest::FindUnanswered(keys) => return Some(HeldAnswer::Unanswered(keys)),
            HeldRequest::Unknown { vip, unknown } => {
                self.unknown.remove(&vip);
                let until_ns = unknown.map_or(0, |rule| rule.guard_until_ns);
                self.guarded_until_ns = self.guarded_until_ns.max(until_ns);
                self.unknown.extend(unknown.map(|rule| (vip, rule)));
            }
            HeldRequest::Report(number) => return Some(HeldAnswer::Reached(number)),
            HeldRequest::Slices(_) | HeldRequest::RoutesMoved => {}
        }
        None
    }

    fn adopt(&mut self, flows: Vec<FlowId>) {
        for id in flows {
            if let Some(record) = self.held.remove(&id) {
                self.locals.push(Local::Established(Box::new(record.clone())));
                self.own.insert(id, record);
            }
        }
    }

    fn has(&self, id: FlowId) -> bool {
        self.own.contains_key(&id) || self.held.contains_key(&id)
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let now_ns = 1_000_000 * MS;
        let mut world = Self {
            now_ns,
            dice: Dice(seed),
            routed: (seed % 3 == 2).then(|| vec![0]),
            salt: 0,
            nodes: (0..NAMES.len()).map(|number| Node::new(number, 1, now_ns)).collect(),
            wires: HashMap::new(),
            linked: BTreeMap::new(),
            cut: BTreeSet::new(),
            vip_at: None,
            vip_since_ns: now_ns,
            clients: BTreeMap::new(),
            everywhere: BTreeSet::new(),
            born: 0,
            log: Vec::new(),
        };
        (0..NAMES.len()).for_each(|node| world.tell_addresses(node));
        world
    }

    fn note(&mut self, what: String) {
        let at_ms = self.now_ns / MS - 1_000_000;
        self.log.push(format!("{at_ms:>6} ms  {what}"));
    }

    #[track_caller]
    fn demand(&self, holds: bool, what: &str) {
        assert!(holds, "{what}\n{}", self.log.join("\n"));
    }

    fn tell_addresses(&mut self, node: usize) {
        let mut addresses = vec![host(node)];
        addresses.extend((self.routed.is_some() || self.vip_at == Some(node)).then(vip));
        self.nodes[node].takeover.handle_addresses(self.now_ns, &addresses);
    }

    /// Where packets of this flow come to, if there is somebody.
    fn place(&self, id: FlowId) -> Option<usize> {
        let node = match &self.routed {
            Some(nodes) => nodes.get((id.0 ^ self.salt) as usize % nodes.len().max(1)).copied(),
            None => self.vip_at,
        };
        node.filter(|node| self.nodes[*node].up)
    }

    /// Routers choose among others.
    fn reroute(&mut self) {
        let fit: Vec<_> = (0..3).filter(|node| self.is_fit(*node)).collect();
        let some: Vec<_> = fit.iter().copied().filter(|_| self.dice.roll(2) == 0).collect();
        self.salt = self.dice.roll(100);
        let routed = if some.is_empty() { fit } else { some };
        self.note(format!("routers choose among {routed:?}"));
        (self.routed, self.vip_since_ns) = (Some(routed), self.now_ns);
    }

    fn move_vip(&mut self, to: Option<usize>) {
        if self.routed.is_some() {
            return self.reroute();
        }
        let from = self.vip_at;
        self.note(format!("the VIP goes to {:?}", to.map(|node| NAMES[node])));
        (self.vip_at, self.vip_since_ns) = (to, self.now_ns);
        for node in from.into_iter().chain(to) {
            if self.nodes[node].up {
                self.tell_addresses(node);
            }
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        self.link_up();
        self.deliver();
        for node in (0..3).filter(|node| self.nodes[*node].up).collect::<Vec<_>>() {
            self.run(node);
        }
        let gone = match &self.routed {
            Some(nodes) => nodes.is_empty() || nodes.iter().any(|node| !self.nodes[*node].up),
            None => self.vip_at.is_none_or(|node| !self.nodes[node].up),
        };
        if gone && self.dice.roll(15) == 0 {
            let fit = (0..3).find(|node| self.is_fit(*node));
            fit.into_iter().for_each(|node| self.move_vip(Some(node)));
        }
        self.what_all_have_they_keep();
    }

    fn deliver(&mut self) {
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            if self.cut.contains(&pair(from, to)) || !self.nodes[to].up {
                continue;
            }
            while let Some(wire) = self.wires.get_mut(&(from, to))
                && wire.front().is_some_and(|(at_ns, _)| *at_ns <= self.now_ns)
                && let Some((_, message)) = wire.pop_front()
            {
                self.nodes[to].exchange.handle_message(&name(from), message, self.now_ns);
            }
        }
    }

    fn run(&mut self, node: usize) {
        let now_ns = self.now_ns;
        let it = &mut self.nodes[node];
        let locals = std::mem::take(&mut it.locals);
        it.exchange.handle_local(locals, now_ns);
        it.exchange.handle_time(now_ns);
        while let Some(query) = it.exchange.poll_query() {
            let mut records = it.sockets.values().chain(it.own.values()).chain(it.held.values());
            let known = records.any(|record| record.ends.key(Direction::Up).from == query.packet.from);
            it.exchange.handle_known(&query, known);
        }
        while it.exchange.poll_notice().is_some() {}
        let mut remotes: Vec<Remote> = std::iter::from_fn(|| it.exchange.poll_remote()).collect();
        remotes.drain(..).for_each(|remote| it.takeover.handle_remote(now_ns, remote));
        if it.exchange.is_ready() && !std::mem::replace(&mut it.ready_was_told, it.exchange.is_ready()) {
            it.takeover.handle_ready();
        }
        if it.takeover.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            it.takeover.handle_timeout(now_ns);
        }
        self.act(node);
        while let Some((peer, why)) = self.nodes[node].exchange.poll_drop() {
            let other = NAMES.iter().position(|name| **name == *peer.0).expect("a node");
            self.unlink(node, other, &why);
        }
        for other in 0..3 {
            while self.wires.contains_key(&(node, other))
                && let Some(message) = self.nodes[node].exchange.poll_message(&name(other), now_ns)
            {
                // Now and then one link is much slower than the others.
                let most_ms = if self.dice.roll(40) == 0 { 100 } else { 30 };
                let at_ns = now_ns + self.dice.roll(most_ms) * MS;
                let Some(wire) = self.wires.get_mut(&(node, other)) else { break };
                // In their order, whatever the delay.
                let at_ns = wire.back().map_or(at_ns, |(before, _)| at_ns.max(*before));
                wire.push_back((at_ns, message));
            }
        }
    }

    fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].takeover.poll_action() {
            match action {
                Action::Path(request) => {
                    if let HeldRequest::Adopt(_) | HeldRequest::Release(_) | HeldRequest::Settle { .. } = request {
                        self.note(format!("    {}: {request:?}", NAMES[node]));
                    }
                    let answer = self.nodes[node].carry_out(request);
                    let now_ns = self.now_ns;
                    answer.into_iter().for_each(|it| self.nodes[node].takeover.handle_held(now_ns, it));
                }
                Action::Send(command) => self.command(node, command),
                Action::Tickle { round, ends } => {
                    for end in ends {
                        let flow = self.clients.values().find(|it| it.record.ends.client.socket_addr() == end.to);
                        // Its kernel answers, and that answer goes the way of all its packets.
                        if let Some(id) = flow.map(|client| client.record.id) {
                            self.packet(id);
                        }
                    }
                    self.nodes[node].takeover.handle_tickled(self.now_ns, round);
                }
                Action::Answer(stray) => {
                    let flow = self.clients.values().find(|it| it.record.ends.key(Direction::Up) == stray.key);
                    let id = flow.map(|client| client.record.id);
                    id.into_iter().for_each(|id| self.reset(id, &format!("{} says so", NAMES[node])));
                }
                Action::Announce(_) | Action::Shared(_) | Action::Note(_) => {}
            }
        }
    }

    fn command(&mut self, node: usize, command: Command) {
        if let Command::Claim { owner, flows } = &command {
            self.note(format!("    {} claims {flows:?} from {owner}", NAMES[node]));
        }
        self.nodes[node].exchange.handle_command(command, self.now_ns);
    }

    /// A client sends something.
    fn packet(&mut self, id: FlowId) {
        let Some(client) = self.clients.get(&id) else { return };
        let ends = client.record.ends;
        let fate = match self.place(id) {
            Some(node) => self.arrive(node, id, &ends, true),
            None => Fate::Again,
        };
        let now_ns = self.now_ns;
        match fate {
            Fate::Served => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.waits_since_ns = None;
                }
            }
            Fate::Reset => self.reset(id, "an entry or a kernel says so"),
            Fate::Again => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.waits_since_ns = client.waits_since_ns.or(Some(now_ns));
                }
            }
        }
    }

    fn arrive(&mut self, node: usize, id: FlowId, ends: &Ends, may_forward: bool) -> Fate {
        let (now_ns, key) = (self.now_ns, ends.key(Direction::Up));
        let it = &mut self.nodes[node];
        if it.sockets.contains_key(&id) || it.own.contains_key(&id) {
            return Fate::Served;
        }
        if let Some(held) = it.held.get(&id).map(FlowRecord::fleet_id) {
            it.takeover.handle_held(now_ns, HeldAnswer::Touched(vec![held]));
            self.act(node);
            return Fate::Served;
        }
        match it.diverted.get(&key).copied() {
            Some(Divert::Reset) => return Fate::Reset,
            Some(Divert::To(next)) if may_forward => {
                let owner = (0..3).find(|node| host(*node) == next).expect("a node");
                return match self.nodes[owner].up {
                    true => self.arrive(owner, id, ends, false),
                    false => Fate::Again,
                };
            }
            _ => {}
        }
        match it.unknown.get(&ends.vip).copied() {
            // What is forwarded is never forwarded again, nor asked about: the owner's kernel answers.
            _ if !may_forward => Fate::Reset,
            Some(Unknown { then: Then::Ask, .. }) => {
                let stray = Stray { key, seq: 1, ack: 2, length: 3, flags: 16 };
                it.takeover.handle_held(now_ns, HeldAnswer::Strays(vec![stray]));
                self.act(node);
                Fate::Again
            }
            Some(rule) if rule.guard_until_ns > now_ns => Fate::Again,
            Some(Unknown { then: Then::Reset, .. }) => Fate::Reset,
            Some(Unknown { then: Then::Pass, .. }) | None => Fate::Reset,
        }
    }

    fn reset(&mut self, id: FlowId, why: &str) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.note(format!("{id} is reset: {why}"));
        // One that nobody could hear of is as good as dead.
        let holds = |node: &usize| self.nodes[*node].up && self.nodes[*node].has(id) && self.is_heard(id, *node);
        let holders: Vec<_> = (0..3).filter(holds).collect();
        let lost = client.graduated_ns.is_some() && !holders.is_empty();
        self.demand(!lost, &format!("{id} was reset while {holders:?} hold it"));
        // Whoever still has something of it finds out by itself.
        for node in &mut self.nodes {
            if node.sockets.remove(&id).is_some() || node.own.remove(&id).is_some() {
                node.locals.push(Local::Ended(id));
            }
        }
    }

    /// By the instance that has the VIP, for long enough to have been told.
    fn is_heard(&self, id: FlowId, node: usize) -> bool {
        let heard = |holder: usize| {
            let since_ns = self.linked.get(&pair(node, holder));
            node == holder || since_ns.is_some_and(|since_ns| self.now_ns - since_ns > HEARD_NS)
        };
        self.place(id).is_some_and(heard)
    }

    /// Clients send now and then, and again what was not answered.
    fn clients_send(&mut self, all: bool) {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        for id in ids {
            let waits = self.clients.get(&id).is_some_and(|client| client.waits_since_ns.is_some());
            if all || self.dice.roll(if waits { 5 } else { 40 }) == 0 {
                self.packet(id);
            }
        }
        let waits = |(id, client): &(&FlowId, &Client)| {
            // Each peer that comes has the guard begin anew: what it has is about to be told.
            let it = self.place(**id).map(|node| &self.nodes[node]);
            let since_ns = it.map(|it| self.vip_since_ns.max(it.started_ns).max(it.guarded_until_ns));
            let since_ns = client.waits_since_ns.zip(since_ns).map(|(sent_ns, since_ns)| sent_ns.max(since_ns));
            since_ns.is_some_and(|since_ns| self.now_ns.saturating_sub(since_ns) > WAIT_MAX_NS)
        };
        let late = self.clients.iter().find(waits).map(|(id, _)| *id);
        self.demand(late.is_none(), &format!("a packet of {late:?} waits for too long"));
    }
}

fn run(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut world = World::new(seed);
        world.note(format!("seed {seed}"));
        (0..50).for_each(|_| world.step());
        let most = 40 + world.dice.roll(400);
        for _ in 0..most {
            world.step();
            world.clients_send(false);
            if world.dice.roll(4) == 0 {
                world.mishap();
            }
        }
        world.come_to_rest();
    }
}

/// In parts, so that they run beside each other.
macro_rules! parts {
    ($($name:ident: $seeds:expr;)*) => {
        $(#[test]
        fn $name() {
            run($seeds);
        })*
    };
}

parts! {
    no_schedule_loses_a_flow_or_leaves_a_packet_unanswered: 0..300;
    nor_do_three_hundred_others: 300..600;
    nor_three_hundred_more: 600..900;
    nor_the_last_hundred: 900..1000;
}
