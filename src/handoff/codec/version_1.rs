//! Flows as the first version of the protocol lays them out. Releases that speak nothing newer: 0.1.

use serde::{Deserialize, Serialize};

use crate::addr::{BackendAddr, ClientAddr, VipAddr};
use crate::handoff::message;
use crate::model::ids::FlowId;
use crate::table::passport::{self, FirstFin, HalfWay};

#[derive(Serialize, Deserialize)]
pub struct Batch {
    number: message::BatchNumber,
    flows: Vec<Passport>,
}

#[derive(Serialize, Deserialize)]
struct Passport {
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

impl From<Passport> for passport::Passport {
    fn from(flow: Passport) -> Self {
        let Passport { id, frontend, client, vip, accepted_at_ns, stage } = flow;
        let stage = match stage {
            Stage::Header => passport::Stage::Header,
            Stage::Connecting => passport::Stage::Connecting,
            Stage::Relaying(relayed) => passport::Stage::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<&passport::Passport> for Passport {
    fn from(flow: &passport::Passport) -> Self {
        let passport::Passport { id, frontend, client, vip, accepted_at_ns, stage } = flow.clone();
        let stage = match stage {
            passport::Stage::Header => Stage::Header,
            passport::Stage::Connecting => Stage::Connecting,
            passport::Stage::Relaying(relayed) => Stage::Relaying(Box::new((*relayed).into())),
        };
        Self { id, frontend, client, vip, accepted_at_ns, stage }
    }
}

impl From<Relayed> for passport::Relayed {
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

impl From<passport::Relayed> for Relayed {
    fn from(relayed: passport::Relayed) -> Self {
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
