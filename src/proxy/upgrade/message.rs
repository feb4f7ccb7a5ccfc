//! Flows on their way between two processes, and the requests to a worker meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;

use crate::addr::VipAddr;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::proxy::flow::{Flow, Phase};
use crate::table::flow_transfer::FlowTransfer;
use crate::table::saved::SavedTurns;

/// A flow that its worker has taken out of service.
#[derive(Debug)]
pub struct MovingFlow {
    pub transfer: FlowTransfer,
    pub(in crate::proxy) worker: usize,
    pub(in crate::proxy) flow: Box<Flow>,
}

/// Flows that one worker has taken out of service.
#[derive(Debug)]
pub struct Departure {
    pub moving: Vec<MovingFlow>,
    /// The worker has looked at all its flows once; the next call begins anew.
    pub whole_round: bool,
}

/// A flow that came from another process.
#[derive(Debug)]
pub struct Arriving {
    pub transfer: FlowTransfer,
    /// In the order that its transfer states.
    pub sockets: Vec<OwnedFd>,
}

/// Why this process cannot import a flow.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("frontend {0} is not in the configuration")]
    UnknownFrontend(String),
    #[error("backend {frontend}/{backend} is not in the configuration")]
    UnknownBackend { frontend: String, backend: String },
    #[error("{got} sockets came with it instead of {expected}")]
    Sockets { got: usize, expected: usize },
    #[error("the flow table is full")]
    TableFull,
    #[error("its sockets cannot be watched: {0}")]
    Watch(#[source] io::Error),
    #[error("its worker does not answer")]
    Stuck,
}

/// A worker did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("worker {0} does not answer")]
pub struct StuckWorker(pub usize);

#[derive(Debug)]
pub(crate) enum Message {
    Take { flows_max: usize, bytes_max: usize, answer: Sender<Departure> },
    PutBack(Vec<MovingFlow>),
    ForgetMoved(Vec<MovingFlow>),
    End(Vec<MovingFlow>, EndReason),
    Import { flows: Vec<Arriving>, answer: Sender<Vec<(FlowId, ImportError)>> },
    ShareListeners { answer: Sender<io::Result<Vec<(VipAddr, OwnedFd)>>> },
    ParkListeners { parked: bool, answer: Sender<()> },
    ExchangeListener { address: VipAddr, own: OwnedFd },
    SaveTurns { answer: Sender<Vec<SavedTurns>> },
    RestoreTurns(Vec<SavedTurns>),
}

impl MovingFlow {
    /// In the order that its transfer states.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let backend = match &self.flow.phase {
            Phase::Relaying(relaying) => Some(relaying.backend.as_fd()),
            _ => None,
        };
        self.flow.client().into_iter().chain(backend)
    }
}
