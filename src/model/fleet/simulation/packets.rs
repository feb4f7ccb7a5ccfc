//! The fate of a packet, as the BPF program and the kernel decide it.

use super::clients::{Client, Stage};
use super::engine::Entry;
use super::node::{NAMES, at};
use super::{FlowDirection, FlowRecord, Key, Local, StandbyAnswer, Then, UnknownPacket, VipAddr, World};

/// One packet of a client or a backend.
pub(super) struct Packet {
    client: u64,
    vip: usize,
    direction: FlowDirection,
    key: Key,
    record: FlowRecord,
    is_rst: bool,
    /// The packet only asks for the state of the connection.
    is_probe: bool,
}

/// Where a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A socket of this node takes it.
    Taken(usize),
    /// An entry forwards it to the other end.
    Passed,
    /// Answered with RST.
    Refused(usize),
    /// Its sender repeats it, if it still waits for an answer.
    Lost,
}

/// A packet is forwarded at most this often: its time to live.
const HOPS_MAX: u32 = 4;

impl Packet {
    pub(super) fn data(client: &Client, direction: FlowDirection) -> Self {
        let (key, record) = (client.record.ends.key(direction), client.record.clone());
        Self { client: client.number, vip: client.vip, direction, key, record, is_rst: false, is_probe: false }
    }

    pub(super) fn rst(client: &Client, direction: FlowDirection) -> Self {
        Self { is_rst: true, ..Self::data(client, direction) }
    }

    pub(super) fn probe(client: &Client, direction: FlowDirection) -> Self {
        Self { is_probe: true, ..Self::data(client, direction) }
    }
}

impl World {
    pub(super) fn packet(&mut self, packet: &Packet) {
        let number = packet.client;
        let fate = match self.place(number, packet.vip, packet.direction) {
            Some(node) => self.arrive(node, packet, None, 0),
            None => Fate::Lost,
        };
        let Some(client) = self.clients.get_mut(&number) else { return };
        match (fate, packet.direction, packet.is_rst) {
            (Fate::Lost, ..) => {}
            (Fate::Taken(_) | Fate::Passed, _, false) if packet.is_probe => {}
            // It passes through, or the instance closes both sides.
            (Fate::Taken(_) | Fate::Passed, _, true) => {
                self.note(|| format!("client {number} hears that its backend is gone"));
                self.is_over(number);
            }
            (Fate::Refused(_), _, true) => {}
            (Fate::Taken(node), FlowDirection::ToBackend, false) => {
                if client.stage == Stage::Asking && self.nodes[node].has_sockets(&packet.record) {
                    self.enter(number, Stage::Passing);
                    self.send(number);
                }
            }
            (Fate::Taken(node), FlowDirection::ToClient, false) => self.backend_is_heard(node, packet),
            (Fate::Passed, FlowDirection::ToBackend, false) => {
                if client.backend_lives {
                    self.enter(number, Stage::Answering);
                    self.send(number);
                } else {
                    let rst = Packet::rst(client, FlowDirection::ToClient);
                    self.packet(&rst);
                }
            }
            (Fate::Passed, FlowDirection::ToClient, false) => self.enter(number, Stage::Idle),
            (Fate::Refused(by), direction, false) => self.is_reset(by, packet, direction),
        }
    }

    /// A socket has received the backend's data.
    fn backend_is_heard(&mut self, node: usize, packet: &Packet) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if let Some(record) = process.connecting.remove(&packet.record.id) {
            process.locals.push(Local::Begun(Box::new(record.clone())));
            process.sockets.insert(record.id, record);
        }
        self.enter(packet.client, Stage::Idle);
    }

    fn arrive(&mut self, node: usize, packet: &Packet, from: Option<usize>, hops: u32) -> Fate {
        if hops > HOPS_MAX {
            return Fate::Lost;
        }
        match self.nodes[node].engine.entries.get_mut(&packet.key) {
            None => self.unknown(node, packet, from, hops),
            Some(Entry::Splice { .. }) => {
                self.nodes[node].engine.touch(&packet.key, packet.direction);
                self.act(node);
                Fate::Passed
            }
            Some(Entry::Reset { asked_for }) => {
                *asked_for = true;
                if packet.is_rst { Fate::Lost } else { Fate::Refused(node) }
            }
            Some(Entry::Forward(to)) => {
                let owner = at(*to);
                if from == Some(owner) {
                    self.unknown(node, packet, from, hops)
                } else if self.takes(node, &packet.key) {
                    Fate::Taken(node)
                } else {
                    self.send_on(node, owner, packet, hops)
                }
            }
        }
    }

    fn send_on(&mut self, node: usize, to: usize, packet: &Packet, hops: u32) -> Fate {
        if self.reaches(node, to) { self.arrive(to, packet, Some(node), hops + 1) } else { Fate::Lost }
    }

    fn takes(&self, node: usize, key: &Key) -> bool {
        self.nodes[node].process.as_ref().is_some_and(|process| process.taken.contains_key(key))
    }

    fn unknown(&mut self, node: usize, packet: &Packet, from: Option<usize>, hops: u32) -> Fate {
        if self.takes(node, &packet.key) {
            return Fate::Taken(node);
        }
        let it = &self.nodes[node];
        let (to, port) = (packet.key.to, packet.key.to.port());
        let rule = |port| it.engine.unknown.get(&VipAddr::new((to.ip(), port).into())).copied();
        let port_range = it.engine.port_ranges.iter().find(|port_range| port_range.ports.contains(port));
        let by_range = || rule(0).filter(|_| port_range.is_some());
        let Some(rule) = rule(port).or_else(by_range) else { return self.by_kernel(node, packet) };
        if let Some(owner) = port_range.and_then(|port_range| port_range.at.first()).map(|ip| at(*ip))
            && from != Some(owner)
        {
            return self.send_on(node, owner, packet, hops);
        }
        if packet.is_rst {
            return Fate::Lost;
        }
        if matches!(rule.then, Then::Ask { .. }) && self.is_up(node) {
            let packet = UnknownPacket { key: packet.key, seq: 1, ack: 2, length: 3, flags: 16 };
            self.nodes[node].engine.answers.push(StandbyAnswer::UnknownPackets(vec![packet]));
            self.act(node);
            Fate::Lost
        } else if rule.guard_until_ns > self.now_ns {
            Fate::Lost
        } else if rule.then == Then::Pass {
            self.by_kernel(node, packet)
        } else {
            Fate::Refused(node)
        }
    }

    /// No socket knows it.
    fn by_kernel(&self, node: usize, packet: &Packet) -> Fate {
        if packet.is_rst || !self.has_vip(node, packet.vip) { Fate::Lost } else { Fate::Refused(node) }
    }

    /// `by` has answered an end of the flow that there is no such connection.
    pub(super) fn is_reset(&mut self, by: usize, packet: &Packet, direction: FlowDirection) {
        let number = packet.client;
        self.note(|| format!("client {number}: {direction:?} is reset by {}", NAMES[by]));
        self.judge_reset(by, number);
        match direction {
            FlowDirection::ToBackend => self.is_over(number),
            FlowDirection::ToClient => {
                if let Some(client) = self.clients.get_mut(&number) {
                    client.backend_lives = false;
                }
            }
        }
    }
}
