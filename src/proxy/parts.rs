//! The parts of the table that the data plane may touch.

use crate::ports::ended::EndedFlows;
use crate::ports::fleet::Fleet;
use crate::ports::late_resets::LateResets;
use crate::ports::offload::Offload;
use crate::ports::orders::Orders;
use crate::table::Part;
use crate::table::backend::Registry;
use crate::table::flows::FlowTable;
use crate::table::journal::Journal;
use crate::table::offload::OffloadCensus;
use crate::table::worker::WorkerState;

/// The state that the workers write, and their ports.
#[derive(Clone, Debug)]
pub struct ProxyParts {
    pub flows: Part<FlowTable>,
    pub registry: Part<Registry>,
    pub workers: Part<[WorkerState]>,
    pub journal: Part<Journal>,
    /// For offloaded flows, and whether the engine has stopped because of resets.
    pub census: Part<OffloadCensus>,
    /// The queue of orders; its wake is the worker's wake for all other messages too.
    pub orders: Part<Orders>,
    pub offload: Part<Offload>,
    pub fleet: Part<Fleet>,
    pub late_resets: Part<LateResets>,
    pub ended: Part<EndedFlows>,
}
