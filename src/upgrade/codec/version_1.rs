//! Flows as the first version of the protocol lays them out. Releases that speak nothing newer: 0.1.

use serde::{Deserialize, Serialize};

use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::model::ids::FlowId;
use crate::table::flow_transfer::{self, FirstFin, HalfWay};
use crate::upgrade::message;

#[derive(Serialize, Deserialize)]
pub struct BatchV1 {
    number: message::BatchNumber,
    flows: Vec<FlowTransferV1>,
}

#[derive(Serialize, Deserialize)]
struct FlowTransferV1 {
    id: FlowId,
    frontend: String,
    client: ClientAddr,
    vip: VipAddr,
    accepted_at_ns: u64,
    stage: StageV1,
}

#[derive(Serialize, Deserialize)]
enum StageV1 {
    Header,
    Connecting,
    Relaying(Box<RelayedV1>),
}

#[derive(Serialize, Deserialize)]
struct RelayedV1 {
    backend: String,
    backend_addr: BackendAddr,
    up: HalfWay,
    down: HalfWay,
    first_fin: Option<FirstFin>,
    bytes_to_backend: u64,
    bytes_to_client: u64,
    last_to_backend_ns: u64,
    last_to_client_ns: u64,
    connect_us: u64,
}

impl From<BatchV1> for message::Batch {
    fn from(batch: BatchV1) -> Self {
        Self { number: batch.number, flows: batch.flows.into_iter().map(Into::into).collect() }
    }
}

impl From<&message::Batch> for BatchV1 {
    fn from(batch: &message::Batch) -> Self {
        Self { number: batch.number, flows: batch.flows.iter().map(Into::into).collect() }
    }
}

impl From<FlowTransferV1> for flow_transfer::FlowTransfer {
    fn from(flow: FlowTransferV1) -> Self {
        let FlowTransferV1 { id, frontend, client, vip, accepted_at_ns, stage } = flow;
        let stage = match stage {
            StageV1::Header => flow_transfer::Stage::Header,
            StageV1::Connecting => flow_transfer::Stage::Connecting,
            StageV1::Relaying(relayed) => flow_transfer::Stage::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<&flow_transfer::FlowTransfer> for FlowTransferV1 {
    fn from(flow: &flow_transfer::FlowTransfer) -> Self {
        let flow_transfer::FlowTransfer { id, frontend, client, vip, accepted_at_ns, stage } = flow.clone();
        let stage = match stage {
            flow_transfer::Stage::Header => StageV1::Header,
            flow_transfer::Stage::Connecting => StageV1::Connecting,
            flow_transfer::Stage::Relaying(relayed) => StageV1::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<RelayedV1> for flow_transfer::Relayed {
    fn from(relayed: RelayedV1) -> Self {
        Self {
            backend: relayed.backend,
            backend_addr: relayed.backend_addr,
            up: relayed.up,
            down: relayed.down,
            first_fin: relayed.first_fin,
            bytes_to_backend: relayed.bytes_to_backend,
            bytes_to_client: relayed.bytes_to_client,
            last_to_backend_ns: relayed.last_to_backend_ns,
            last_to_client_ns: relayed.last_to_client_ns,
            connect_us: relayed.connect_us,
            // It is watched again with its next byte.
            unanswered_since_ns: 0,
        }
    }
}

impl From<flow_transfer::Relayed> for RelayedV1 {
    fn from(relayed: flow_transfer::Relayed) -> Self {
        Self {
            backend: relayed.backend,
            backend_addr: relayed.backend_addr,
            up: relayed.up,
            down: relayed.down,
            first_fin: relayed.first_fin,
            bytes_to_backend: relayed.bytes_to_backend,
            bytes_to_client: relayed.bytes_to_client,
            last_to_backend_ns: relayed.last_to_backend_ns,
            last_to_client_ns: relayed.last_to_client_ns,
            connect_us: relayed.connect_us,
        }
    }
}
