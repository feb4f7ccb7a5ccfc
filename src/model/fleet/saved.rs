//! What a process knows of its peers and of their flows, for the process that follows it in an upgrade.
//!
//! A peer may die before the new process is linked with it. Then nobody tells this again, and the peer's clients would wait for ever.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::vip::VipStanding;
use super::{BeatKey, Epoch, FleetId, InstanceName, Liveness, PortRange};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;

/// A peer. Times are of the monotonic clock of the host, which both processes have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPeer {
    pub name: InstanceName,
    /// The address of its link. At another one there is another host, with other flows.
    pub link: IpAddr,
    /// The public key by which it has proven itself. `None`: the fleet's shared one, which any instance may have.
    #[serde(default)]
    pub public_key: Option<[u8; 32]>,
    #[serde(flatten)]
    pub vitals: PeerVitals,
    /// Readiness does not wait for it.
    pub settled: bool,
    /// When the process looked at this last: it heard nobody afterwards.
    pub looked_ns: u64,
    /// `None`: it has not told them.
    pub addresses: Option<Vec<IpAddr>>,
    /// Number of its flows that are known: fewer may follow.
    pub flows: u64,
    #[serde(default)]
    pub known: SavedTraits,
}

/// What a process keeps of a peer for as long as it knows the peer, and leaves to the process that follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVitals {
    pub liveness: Liveness,
    pub epoch: Epoch,
    pub slot: Option<u8>,
    pub version: String,
    /// Whether it has told all its flows since its link began.
    pub synced: bool,
    /// When it was last heard; `None`: never.
    pub heard_ns: Option<u64>,
    /// When it was last heard beside the link, by this instance or by others.
    pub witnessed_ns: Option<u64>,
    /// When its latest beat came.
    pub beat_ns: Option<u64>,
    pub left_ns: u64,
    /// The secret of its present process.
    pub beat_key: Option<BeatKey>,
    /// Of its latest beat.
    pub beat_number: u64,
    /// The latest standing of its present process to the VIP.
    pub vip: Option<VipStanding>,
    pub resyncs: u64,
    pub round_trip_us: u64,
}

/// What the failover alone knows of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTraits {
    /// The frontends' addresses that its host keeps on `lo`.
    pub kept: Vec<IpAddr>,
    /// The frontends' addresses that both hosts have.
    pub shared: Vec<IpAddr>,
    /// Ports from which instances connect to backends, if this one has told any.
    pub ports: Vec<PortRange>,
}

/// A part of a peer's flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPeerFlows {
    pub peer: InstanceName,
    pub flows: Vec<SavedPeerFlow>,
}

/// A flow of a peer. The layout is part of the upgrade's protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPeerFlow {
    pub id: FlowId,
    pub ends: Ends,
    /// As in its record.
    pub client: IpAddr,
    pub accepted_unix_ms: u64,
    pub state: SavedFlowState,
    /// Whether its owner has told of it.
    pub told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavedFlowState {
    /// Its owner has its sockets, or is dead and had them.
    Proxied,
    /// No instance has it, though its owner lives: its ends are being told.
    Refused,
    /// The map has its entries.
    Held,
    /// As `Held`, but the map had no room.
    NoRoom,
}

/// What the failover knows of all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownPeers {
    pub peers: BTreeMap<InstanceName, SavedTraits>,
    pub flows: BTreeMap<InstanceName, Vec<SavedPeerFlow>>,
}

/// What a process knows of its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SavedFleet {
    pub peers: Vec<SavedPeer>,
    pub flows: Vec<SavedPeerFlows>,
}

impl SavedPeerFlow {
    pub(crate) fn fleet_id(&self) -> FleetId {
        FleetId::of(self.id, &self.ends)
    }

    pub(crate) fn is_offloaded(&self) -> bool {
        matches!(self.state, SavedFlowState::Held | SavedFlowState::NoRoom)
    }
}

impl SavedFleet {
    /// Joins what the link knows and what the failover knows. Each part of the flows has `part_max` at most. Flows that are in no map
    /// come first: nobody else has them.
    pub(crate) fn join(peers: Vec<SavedPeer>, known: KnownPeers, part_max: usize) -> Self {
        let KnownPeers { peers: mut known, flows } = known;
        let peers = peers.into_iter().map(|peer| SavedPeer {
            known: known.remove(&peer.name).unwrap_or_default(),
            flows: flows.get(&peer.name).map_or(0, Vec::len) as u64,
            ..peer
        });
        let peers = peers.collect();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for (peer, flows) in flows {
            let (held, others): (Vec<_>, Vec<_>) =
                flows.into_iter().partition(|flow| flow.state == SavedFlowState::Held);
            for (flows, parts) in [(others, &mut first), (held, &mut last)] {
                let flows = flows.chunks(part_max).map(<[_]>::to_vec);
                parts.extend(flows.map(|flows| SavedPeerFlows { peer: peer.clone(), flows }));
            }
        }
        first.append(&mut last);
        Self { peers, flows: first }
    }

    /// Whether all flows of this peer are here.
    pub(crate) fn is_whole(&self, peer: &SavedPeer) -> bool {
        let parts = self.flows.iter().filter(|part| part.peer == peer.name);
        parts.map(|part| part.flows.len() as u64).sum::<u64>() >= peer.flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::testing::{record, saved_peer};

    fn flow(number: u64, state: SavedFlowState) -> SavedPeerFlow {
        let record = record(number);
        let client = record.client.ip();
        SavedPeerFlow { id: record.id, ends: record.ends, client, accepted_unix_ms: 1, state, told: true }
    }

    #[test]
    fn flows_that_no_map_has_go_first_and_what_is_missing_is_noticed() {
        let peer = saved_peer("lb-b");
        let states = [SavedFlowState::Held, SavedFlowState::Proxied, SavedFlowState::NoRoom, SavedFlowState::Refused];
        let flows: Vec<_> = (0..8).map(|number| flow(number, states[number as usize % 4])).collect();
        let known = KnownPeers {
            peers: [(peer.name.clone(), SavedTraits { kept: vec![peer.link], ..SavedTraits::default() })].into(),
            flows: [(peer.name.clone(), flows)].into(),
        };
        let mut fleet = SavedFleet::join(vec![peer], known, 4);
        let held = |part: &SavedPeerFlows| part.flows.iter().filter(|flow| flow.state == SavedFlowState::Held).count();
        let parts: Vec<_> = fleet.flows.iter().map(|part| (part.flows.len(), held(part))).collect();
        assert_eq!(parts, [(4, 0), (2, 0), (2, 2)]);
        let peer = fleet.peers[0].clone();
        assert_eq!((peer.flows, peer.known.kept.len()), (8, 1));
        assert!(fleet.is_whole(&peer));
        fleet.flows.pop();
        assert!(!fleet.is_whole(&peer));
    }
}
