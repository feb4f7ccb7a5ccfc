//! Flows for tests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    Epoch, FlowRecord, InstanceName, Keeping, Liveness, Passage, PeerVitals, RewriteState, SavedPeer, SavedTraits,
};
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::ends::Ends;
use crate::model::ids::FlowId;
use crate::model::splice::Rewrite;

/// A proxied flow; two records with different ids have no end in common.
pub(crate) fn record(id: u64) -> FlowRecord {
    let at = |net: u8, port: u16| {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, net, (id >> 24) as u8, (id >> 16) as u8)), port)
    };
    let client = ClientAddr::new(at(1, id as u16));
    FlowRecord {
        id: FlowId(id),
        ends: Ends {
            client,
            vip: VipAddr::new("10.0.0.100:6443".parse().expect("an address")),
            local: LocalAddr::new(at(2, id as u16)),
            backend: BackendAddr::new("10.0.0.11:6443".parse().expect("an address")),
        },
        client,
        backend_key: 7,
        accepted_unix_ms: 1_700_000_000_000,
        connect_us: 250,
        keeping: Keeping::Sockets,
    }
}

/// A passage whose numbers all come from `seed`.
pub(crate) fn passage(seed: u32) -> Passage {
    let way = |from: u32| RewriteState {
        rewrite: Rewrite {
            seq: from,
            ack: from + 1,
            tsval: from + 2,
            tsecr: from + 3,
            window_shift: -2,
            clear_ecn: false,
        },
        window: 23,
        sent: u64::from(from) + 4,
        acked: u64::from(from) + 5,
        bytes: u64::from(from) + 6,
    };
    Passage { up: way(seed), down: way(seed ^ 0xffff) }
}

/// A peer without flows that is heard.
pub(crate) fn saved_peer(name: &str) -> SavedPeer {
    SavedPeer {
        name: InstanceName(name.into()),
        link: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)),
        public_key: None,
        vitals: PeerVitals {
            liveness: Liveness::Alive,
            epoch: Epoch(1),
            slot: Some(1),
            version: "1.0.0".to_owned(),
            synced: true,
            heard_ns: Some(0),
            ..PeerVitals::default()
        },
        settled: true,
        looked_ns: 0,
        addresses: Some(Vec::new()),
        flows: 0,
        known: SavedTraits::default(),
    }
}
