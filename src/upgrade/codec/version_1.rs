//! Flows as the first version of the protocol lays them out. Releases that speak nothing newer: 0.1.

use serde::{Deserialize, Serialize};

use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::ids::FlowId;
use crate::table::flow_transfer::{self, FirstFin, HalfWay};
use crate::upgrade::message;

#[derive(Serialize, Deserialize)]
pub struct Batch {
    number: message::BatchNumber,
    flows: Vec<FlowTransfer>,
}

#[derive(Serialize, Deserialize)]
struct FlowTransfer {
    id: FlowId,
    frontend: String,
    client: ClientAddr,
    vip: VipAddr,
    accepted_at_ns: u64,
    stage: Stage,
}

#[derive(Serialize, Deserialize)]
enum Stage {
    Header,
    Connecting,
    Relaying(Box<Relayed>),
}

#[derive(Serialize, Deserialize)]
struct Relayed {
    backend: String,
    backend_addr: BackendAddr,
    up: HalfWay,
    down: HalfWay,
    first_fin: Option<FirstFin>,
    bytes_up: u64,
    bytes_down: u64,
    last_up_ns: u64,
    last_down_ns: u64,
    connect_us: u64,
}

impl From<Batch> for message::Batch {
    fn from(batch: Batch) -> Self {
        Self { number: batch.number, flows: batch.flows.into_iter().map(Into::into).collect() }
    }
}

impl From<&message::Batch> for Batch {
    fn from(batch: &message::Batch) -> Self {
        Self { number: batch.number, flows: batch.flows.iter().map(Into::into).collect() }
    }
}

impl From<FlowTransfer> for flow_transfer::FlowTransfer {
    fn from(flow: FlowTransfer) -> Self {
        let FlowTransfer { id, frontend, client, vip, accepted_at_ns, stage } = flow;
        let stage = match stage {
            Stage::Header => flow_transfer::Stage::Header,
            Stage::Connecting => flow_transfer::Stage::Connecting,
            Stage::Relaying(relayed) => flow_transfer::Stage::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<&flow_transfer::FlowTransfer> for FlowTransfer {
    fn from(flow: &flow_transfer::FlowTransfer) -> Self {
        let flow_transfer::FlowTransfer { id, frontend, client, vip, accepted_at_ns, stage } = flow.clone();
        let stage = match stage {
            flow_transfer::Stage::Header => Stage::Header,
            flow_transfer::Stage::Connecting => Stage::Connecting,
            flow_transfer::Stage::Relaying(relayed) => Stage::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<Relayed> for flow_transfer::Relayed {
    fn from(relayed: Relayed) -> Self {
        Self {
            backend: relayed.backend,
            backend_addr: relayed.backend_addr,
            up: relayed.up,
            down: relayed.down,
            first_fin: relayed.first_fin,
            bytes_up: relayed.bytes_up,
            bytes_down: relayed.bytes_down,
            last_up_ns: relayed.last_up_ns,
            last_down_ns: relayed.last_down_ns,
            connect_us: relayed.connect_us,
            // It is watched again with its next byte.
            unanswered_since_ns: 0,
        }
    }
}

impl From<flow_transfer::Relayed> for Relayed {
    fn from(relayed: flow_transfer::Relayed) -> Self {
        Self {
            backend: relayed.backend,
            backend_addr: relayed.backend_addr,
            up: relayed.up,
            down: relayed.down,
            first_fin: relayed.first_fin,
            bytes_up: relayed.bytes_up,
            bytes_down: relayed.bytes_down,
            last_up_ns: relayed.last_up_ns,
            last_down_ns: relayed.last_down_ns,
            connect_us: relayed.connect_us,
        }
    }
}
