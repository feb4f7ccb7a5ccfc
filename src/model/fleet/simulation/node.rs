//! One host, and the process on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;

use super::engine::Engine;
use super::movers::OwnVip;
use super::{
    BeatSecret, Epoch, Evacuation, Exchange, Failover, Faults, FlowId, FlowRecord, GUARD_NS, InstanceName, Key, Local,
    MS, Member, Own, SECOND_NS, Settings, VipAddr, Wake,
};
use crate::model::fleet::port_range;

pub(super) const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

pub(super) fn name(node: usize) -> InstanceName {
    static NAMED: OnceLock<Vec<InstanceName>> = OnceLock::new();
    NAMED.get_or_init(|| NAMES.iter().map(|name| InstanceName((*name).into())).collect())[node].clone()
}

pub(super) fn number(name: &InstanceName) -> usize {
    usize::from(name.0.as_bytes()[0] - b'a')
}

pub(super) fn host(node: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 21 + node as u8])
}

/// The node with this address.
pub(super) fn at(ip: IpAddr) -> usize {
    let IpAddr::V4(ip) = ip else { unreachable!("all are IPv4") };
    usize::from(ip.octets()[3] - 21)
}

pub(super) fn vip(number: usize) -> VipAddr {
    VipAddr::new((IpAddr::from([10, 0, 0, 100 + number as u8]), 6443).into())
}

/// The content of its configuration file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub peers: BTreeSet<usize>,
    pub vips: usize,
}

pub(super) struct Node {
    pub number: usize,
    pub config: Config,
    /// Whether its host runs.
    pub up: bool,
    /// When the host stopped.
    pub died_ns: u64,
    /// Whether it is cut off from all others.
    pub isolated: bool,
    /// When that ended.
    pub back_ns: u64,
    pub engine: Engine,
    pub process: Option<Process>,
    /// When its last process ended.
    pub stopped_ns: u64,
    /// Whether it belongs to the fleet; others may not know that yet, or still believe it.
    pub belongs: bool,
}

pub(super) struct Process {
    pub exchange: Exchange,
    pub failover: Failover,
    pub started_ns: u64,
    pub ready_was_told: bool,
    /// Whether its failover knows the members from the process's start.
    pub is_told_of_fleet: bool,
    /// The id of the next flow that is accepted.
    pub next_id: u64,
    pub accepted: u64,
    pub sockets: BTreeMap<FlowId, FlowRecord>,
    /// Backend legs that are not established yet.
    pub connecting: BTreeMap<FlowId, FlowRecord>,
    /// Packets that its sockets take.
    pub taken: BTreeMap<Key, FlowId>,
    pub locals: Vec<Local>,
    /// The owners of others' flows, as the peer link told them, by the flow's first key.
    pub told: BTreeMap<Key, usize>,
    stale: BTreeSet<Key>,
    /// As `told`: what the process before this one had been told, by an owner that it heard and that this one has not heard yet.
    pub restored: BTreeMap<Key, usize>,
    /// All of that has come to the failover.
    pub is_restored: bool,
    pub evacuation: Option<Evacuation>,
    pub vip_given: bool,
    pub keeps: bool,
    /// Clients that it challenges again and again, and when it last did.
    pub late: Vec<(Wake, u64)>,
    /// `None`: something else moves the VIP.
    pub vip: Option<OwnVip>,
}

impl Node {
    pub(super) fn members(&self) -> Vec<Member> {
        self.config.peers.iter().map(|peer| Member { name: name(*peer), address: (host(*peer), 9471).into() }).collect()
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            me: name(self.number),
            slot: self.number as u8,
            peers: self.config.peers.iter().map(|peer| (name(*peer), host(*peer))).collect(),
            vips: (0..self.config.vips).map(vip).collect(),
            listens: (0..self.config.vips).map(vip).collect(),
            backend_keys: Default::default(),
            sources: Vec::new(),
            carries: self.engine.carries,
            challenge: true,
            guard_ns: GUARD_NS,
            priority: Vec::new(),
            ports: 32768..=60999,
            peer_flows_max: 1_000,
        }
    }

    /// Another process begins, with the pinned maps.
    pub(super) fn begin(&mut self, now_ns: u64, log_max: Option<usize>, faults: Faults) {
        let mut secret = [self.number as u8; 32];
        secret[..8].copy_from_slice(&now_ns.to_be_bytes());
        let own = Own {
            name: name(self.number),
            epoch: Epoch(now_ns),
            slot: self.number as u8,
            ports: port_range(32768..=60999, self.number as u8),
            version: String::new(),
            sync_deadline_ns: 2000 * MS,
            vips: (0..self.config.vips).map(|number| vip(number).ip()).collect(),
            beat_secret: BeatSecret(secret),
        };
        let mut exchange = Exchange::new(own, &self.members(), now_ns);
        exchange.set_whole();
        if let Some(changes) = log_max {
            exchange.keep_changes(changes);
        }
        self.engine.begin_process();
        let tag = name(self.number).tag();
        let highest = self.engine.ids().into_iter().filter(|id| id.tag() == tag).map(FlowId::count).max();
        let first = if faults.ids_from_one { 1 } else { FlowId::first_count(now_ns / SECOND_NS) };
        (self.engine.by_number, self.engine.full_is_standby) = (faults.ids_from_one, faults.full_is_standby);
        self.process = Some(Process {
            exchange,
            failover: Failover::new(self.settings()),
            started_ns: now_ns,
            ready_was_told: false,
            is_told_of_fleet: false,
            next_id: first.max(highest.map_or(1, |count| count + 1)),
            accepted: 0,
            sockets: BTreeMap::new(),
            connecting: BTreeMap::new(),
            taken: BTreeMap::new(),
            locals: Vec::new(),
            told: BTreeMap::new(),
            stale: BTreeSet::new(),
            restored: BTreeMap::new(),
            is_restored: false,
            evacuation: None,
            vip_given: false,
            keeps: false,
            late: Vec::new(),
            vip: None,
        });
    }

    /// Whether it lists the flow with these ends, proxied or offloaded.
    pub(super) fn lists(&self, record: &FlowRecord) -> bool {
        let Some(process) = &self.process else { return false };
        let mut all = process.sockets.values().chain(self.engine.flows.values());
        all.any(|other| other.ends == record.ends)
    }

    pub(super) fn has_sockets(&self, record: &FlowRecord) -> bool {
        let sockets = self.process.as_ref().and_then(|process| process.sockets.get(&record.id));
        sockets.is_some_and(|other| other.ends == record.ends)
    }
}

impl Process {
    /// Notes the peer link's events about others' flows.
    pub(super) fn note_told(&mut self, remote: &super::Remote) {
        use super::Remote::{Begin, Ended, Flow, Moved, Restored, RestoredFlows, Synced};
        match remote {
            Begin { owner, .. } => {
                let owner = number(owner);
                if self.is_restored {
                    self.restored.retain(|_, its| *its != owner);
                }
                self.stale = self.told.iter().filter(|(_, its)| **its == owner).map(|(key, _)| *key).collect();
            }
            Flow { owner, record } => {
                let key = record.ends.key(super::FlowDirection::ToBackend);
                self.stale.remove(&key);
                self.told.insert(key, number(owner));
            }
            RestoredFlows { owner, flows } => {
                for flow in flows {
                    let key = flow.ends.key(super::FlowDirection::ToBackend);
                    self.stale.remove(&key);
                    self.told.insert(key, number(owner));
                }
            }
            Synced { .. } => {
                let stale = std::mem::take(&mut self.stale);
                self.told.retain(|key, _| !stale.contains(key));
            }
            Restored => self.is_restored = true,
            Ended { .. } | Moved { .. } => {}
            _ => {}
        }
    }

    pub(super) fn bind(&mut self, record: &FlowRecord) {
        for direction in [super::FlowDirection::ToBackend, super::FlowDirection::ToClient] {
            self.taken.insert(record.ends.key(direction), record.id);
        }
    }

    pub(super) fn unbind(&mut self, record: &FlowRecord) {
        for direction in [super::FlowDirection::ToBackend, super::FlowDirection::ToClient] {
            self.taken.remove(&record.ends.key(direction));
        }
    }
}
