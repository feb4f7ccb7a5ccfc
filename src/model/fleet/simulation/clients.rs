//! Clients and their flows: how these begin, go on without sockets, and end.

use std::collections::BTreeSet;

use super::dice::Kind;
use super::node::{NAMES, vip};
use super::packets::Packet;
use super::{
    BackendAddr, ClientAddr, Ends, FlowDirection, FlowId, FlowRecord, IpAddr, Keeping, Local, LocalAddr, MS, SECOND_NS,
    World, passage, port_range,
};
use crate::model::fleet::InstanceName;

/// Each client has a port of its own, from this one on.
const PORTS: u64 = 1000;

/// The step that a client and its backend wait for. The named sender repeats its packet until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The backend answers the SYN of the instance that has accepted the flow.
    Connecting,
    Idle,
    /// The client sends a request.
    Asking,
    /// The instance that has the sockets sends it to the backend.
    Passing,
    /// The backend answers, or sends data by itself.
    Answering,
}

/// A flow as its two ends see it.
#[derive(Debug)]
pub(super) struct Client {
    pub number: u64,
    pub vip: usize,
    pub record: FlowRecord,
    pub stage: Stage,
    /// Since when it has waited in this stage or the one before.
    pub since_ns: u64,
    /// When it last changed in a way that some instances may not have heard of.
    pub changed_ns: u64,
    /// Whether its backend knows the connection.
    pub backend_lives: bool,
    /// The host of its apiserver, if each host has one.
    pub apiserver: Option<usize>,
    /// When the instances notice that its apiserver's host is dead.
    pub doomed_ns: Option<u64>,
    /// Its owner is gone or has closed its connection, and the client was not told.
    pub orphaned: Option<Orphaned>,
    /// Whether any holder may drop it: the instances that could have known of it do not.
    pub may_be_lost: bool,
    /// An instance that nobody hears has challenged it.
    pub challenged_in_vain: bool,
}

#[derive(Debug)]
pub(super) struct Orphaned {
    /// The instances that knew of it and must tell the client. Empty: none can.
    pub known_by: BTreeSet<usize>,
}

impl Client {
    /// Whether an instance knows of it that must tell its client if no instance has its flow.
    pub(super) fn can_be_told(&self) -> bool {
        self.orphaned.as_ref().is_none_or(|orphaned| !orphaned.known_by.is_empty())
    }
}

impl World {
    pub(super) fn bear(&mut self) {
        let vip_number = self.dice.roll(self.net.holders.len() as u64) as usize;
        let client = self.born + 1;
        let Some(node) = self.place(client, vip_number, FlowDirection::ToBackend) else { return };
        if !self.is_fit(node, vip_number) {
            return;
        }
        self.born = client;
        let apiserver = self.kinds.contains(&Kind::Stacked).then(|| {
            let up: Vec<_> = (0..self.nodes.len()).filter(|node| self.nodes[*node].up).collect();
            self.dice.pick(&up)
        });
        let apiserver = apiserver.flatten();
        let ports = port_range(32768..=60999, node as u8).expect("there are eight of them");
        let port = ports.first + (client % u64::from(ports.last - ports.first)) as u16;
        let from = ClientAddr::new((IpAddr::from([10, 0, 1, 7]), PORTS as u16 + client as u16).into());
        let Some(process) = &mut self.nodes[node].process else { return };
        let record = FlowRecord {
            id: FlowId::of(InstanceName(NAMES[node].into()).tag(), process.next_id),
            ends: Ends {
                client: from,
                vip: vip(vip_number),
                local: LocalAddr::new((vip(vip_number).ip(), port).into()),
                backend: BackendAddr::new((IpAddr::from([10, 0, 0, 11]), 6443).into()),
            },
            client: from,
            backend_key: 1,
            accepted_unix_ms: 1,
            connect_us: 1,
            keeping: Keeping::Sockets,
        };
        process.next_id += 1;
        process.accepted += 1;
        process.connecting.insert(record.id, record.clone());
        process.bind(&record);
        self.note(|| format!("client {client} connects to VIP {vip_number} at {}: {}", NAMES[node], record.id));
        let born = Client {
            number: client,
            vip: vip_number,
            record,
            stage: Stage::Connecting,
            since_ns: self.now_ns,
            changed_ns: self.now_ns,
            backend_lives: true,
            apiserver,
            doomed_ns: None,
            orphaned: None,
            may_be_lost: false,
            challenged_in_vain: false,
        };
        self.clients.insert(client, born);
        self.send(client);
    }

    pub(super) fn some_client(&mut self) -> Option<u64> {
        let pick = self.dice.roll(self.clients.len() as u64) as usize;
        self.clients.keys().nth(pick).copied()
    }

    /// The instance with its sockets.
    pub(super) fn owner_of(&self, client: &Client) -> Option<usize> {
        self.running().into_iter().find(|node| self.nodes[*node].has_sockets(&client.record))
    }

    pub(super) fn offload(&mut self) {
        if let Some(client) = self.some_client() {
            self.offload_this(client, false);
        }
    }

    /// In a quiet moment, and, unless `anywhere`, at the instance that gets both directions' packets.
    pub(super) fn offload_this(&mut self, number: u64, anywhere: bool) {
        let client = &self.clients[&number];
        let Some(node) = self.owner_of(client).filter(|_| client.stage == Stage::Idle) else { return };
        let sees = self.has_vip(node, client.vip) && (self.net.shared || self.sees_all_of(node, number, client.vip));
        if !(sees || anywhere) || !self.nodes[node].engine.carries {
            return;
        }
        let record = client.record.clone();
        let id = record.id;
        let passage = Box::new(passage(id.0 as u32));
        let offloaded = FlowRecord { keeping: Keeping::Passage(passage.clone()), ..record.clone() };
        if !self.nodes[node].engine.enter_own(offloaded) {
            return;
        }
        if let Some(process) = &mut self.nodes[node].process {
            process.sockets.remove(&id);
            process.unbind(&record);
            process.locals.push(Local::Offloaded { id, passage: passage.clone() });
        }
        self.note(|| format!("client {number} is offloaded at {}", NAMES[node]));
        let now_ns = self.now_ns;
        if let Some(client) = self.clients.get_mut(&number) {
            (client.record.keeping, client.changed_ns) = (Keeping::Passage(passage), now_ns);
        }
    }

    /// Both ends close.
    pub(super) fn end(&mut self) {
        let Some(number) = self.some_client() else { return };
        let client = &self.clients[&number];
        let listed = self.running().into_iter().find(|node| self.nodes[*node].lists(&client.record));
        let Some(node) = listed.filter(|_| client.stage == Stage::Idle) else { return };
        if !self.net.shared && !self.sees_all_of(node, number, client.vip) {
            return;
        }
        self.note(|| format!("client {number} ends at {}", NAMES[node]));
        self.is_over(number);
    }

    /// Both ends know that it has ended; an instance that still has a part of it finds out by itself.
    pub(super) fn is_over(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        self.everywhere.remove(&number);
        for node in 0..self.nodes.len() {
            self.close_sockets(node, &client.record);
            let engine = &mut self.nodes[node].engine;
            let own = engine.flows.values().find(|own| own.ends == client.record.ends).map(|own| own.id);
            own.into_iter().for_each(|id| engine.end_own(id));
        }
    }

    /// The host of these clients' apiserver dies, and the instances notice it within a few probes.
    pub(super) fn doom(&mut self, host: usize) {
        let now_ns = self.now_ns;
        for client in self.clients.values_mut().filter(|client| client.apiserver == Some(host)) {
            client.doomed_ns = Some(now_ns + self.dice.roll(2500) * MS);
        }
    }

    /// Instances reset the flows of an apiserver that they found dead, and no others.
    pub(super) fn end_doomed(&mut self) {
        let now_ns = self.now_ns;
        let is_due = |client: &&Client| client.doomed_ns.is_some_and(|at_ns| now_ns >= at_ns);
        let due: Vec<_> = self.clients.values().filter(is_due).map(|client| client.number).collect();
        for number in due {
            self.note(|| format!("client {number} hears that its apiserver is dead"));
            self.is_over(number);
        }
    }

    /// An instance that carries on a flow without ends challenges the ends after a while.
    pub(super) fn find_out(&mut self) {
        if !self.dice.one_in(10) {
            return;
        }
        for node in self.running() {
            let over = |own: &&FlowRecord| {
                let number = u64::from(own.ends.client.port()) - PORTS;
                self.clients.get(&number).is_none_or(|client| client.record.ends != own.ends)
            };
            let over: Vec<_> = self.nodes[node].engine.flows.values().filter(over).map(|own| own.id).collect();
            over.into_iter().for_each(|id| self.nodes[node].engine.end_own(id));
        }
    }

    pub(super) fn close_sockets(&mut self, node: usize, record: &FlowRecord) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let mut closed = process.connecting.remove(&record.id).is_some();
        if process.sockets.remove(&record.id).is_some() {
            process.locals.push(Local::Ended(record.id));
            closed = true;
        }
        if closed {
            process.unbind(record);
        }
    }

    /// Clients and backends send now and then, and repeat unanswered packets.
    pub(super) fn clients_send(&mut self, all: bool) {
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            let stage = self.clients[&number].stage;
            let waits = stage != Stage::Idle;
            if !all && !self.dice.one_in(if waits { 4 } else { 40 }) {
                continue;
            }
            if !waits {
                let stage = if !all && self.dice.one_in(3) { Stage::Answering } else { Stage::Asking };
                self.enter(number, stage);
            }
            self.send(number);
        }
    }

    pub(super) fn enter(&mut self, number: u64, stage: Stage) {
        let now_ns = self.now_ns;
        if let Some(client) = self.clients.get_mut(&number) {
            if client.stage == Stage::Idle {
                client.since_ns = now_ns;
            }
            client.stage = stage;
        }
    }

    /// The sender of the present stage sends.
    pub(super) fn send(&mut self, number: u64) {
        let Some(client) = self.clients.get(&number) else { return };
        match client.stage {
            Stage::Idle => {}
            Stage::Asking => self.packet(&Packet::data(client, FlowDirection::ToBackend)),
            Stage::Passing => match self.owner_of(client).filter(|node| !self.nodes[*node].isolated) {
                Some(_) if client.backend_lives => {
                    self.enter(number, Stage::Answering);
                    self.send(number);
                }
                Some(_) => self.packet(&Packet::rst(client, FlowDirection::ToClient)),
                // The instance's kernel has acknowledged the request: the client waits, and sends nothing.
                None => {}
            },
            Stage::Connecting if self.now_ns - client.since_ns > 3 * SECOND_NS => {
                // The backend's answer reaches no host: all hosts are cut off, or the one that sent the request is.
                let place = self.place(number, client.vip, FlowDirection::ToClient);
                let is_begun = |node: &usize| {
                    self.nodes[*node].process.as_ref().is_some_and(|it| it.connecting.contains_key(&client.record.id))
                };
                let away = (0..self.nodes.len()).find(is_begun).is_some_and(|node| self.nodes[node].isolated);
                let lost = away || place.is_none();
                self.demand(lost || !self.is_steady(2 * SECOND_NS), || format!("client {number} cannot connect"));
                self.is_over(number);
            }
            Stage::Connecting | Stage::Answering if client.backend_lives => {
                self.packet(&Packet::data(client, FlowDirection::ToClient));
            }
            Stage::Connecting => self.is_over(number),
            // The sender got no acknowledgement, and continues.
            Stage::Answering => {
                let stage = if self.owner_of(client).is_some() { Stage::Passing } else { Stage::Asking };
                self.enter(number, stage);
            }
        }
    }
}
