//! Flows that change processes: what the control side may ask of the workers.
//!
//! ```text
//!   old   take ──▶ Parcel ──▶ let_go    the other process has it: closed here without a word to either end
//!                    ├──────▶ put_back  served here as before
//!                    └──────▶ reset     the other process had it and died, or did not want it
//!   new   Arriving ──▶ adopt
//! ```
//! A flow that was taken is in no epoll set; nobody reads or writes its sockets until its parcel is given back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::flow::{Flow, Phase};
use super::worker::Worker;
use super::{Proxy, worker};
use crate::addr::VipAddr;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::table::carried::SavedTurns;
use crate::table::passport::Passport;

/// A worker that does not answer within this is stuck.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A flow that its worker has taken out of service.
#[derive(Debug)]
pub struct Parcel {
    pub passport: Passport,
    pub(super) worker: usize,
    pub(super) flow: Box<Flow>,
}

/// Flows that one worker gave.
#[derive(Debug)]
pub struct Departure {
    pub parcels: Vec<Parcel>,
    /// The worker has looked at all its flows once; the next call begins anew.
    pub whole_round: bool,
}

/// A flow that came from another process.
#[derive(Debug)]
pub struct Arriving {
    pub passport: Passport,
    /// As its passport says.
    pub sockets: Vec<OwnedFd>,
}

/// Why a flow cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
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
pub enum Message {
    Take { flows_max: usize, bytes_max: usize, answer: Sender<Departure> },
    PutBack(Vec<Parcel>),
    LetGo(Vec<Parcel>),
    End(Vec<Parcel>, EndReason),
    Adopt { flows: Vec<Arriving>, answer: Sender<Vec<(FlowId, AdoptError)>> },
    LendListeners { answer: Sender<io::Result<Vec<(VipAddr, OwnedFd)>>> },
    ParkListeners { parked: bool, answer: Sender<()> },
    ExchangeListener { address: VipAddr, own: OwnedFd },
    SaveTurns { answer: Sender<Vec<SavedTurns>> },
    RecallTurns(Vec<SavedTurns>),
}

impl Parcel {
    /// In the order that its passport promises.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let backend = match &self.flow.phase {
            Phase::Relaying(relaying) => Some(relaying.backend.as_fd()),
            _ => None,
        };
        self.flow.client().into_iter().chain(backend)
    }
}

impl Proxy {
    pub fn workers(&self) -> usize {
        self.table.workers.len()
    }

    /// Takes up to `flows_max` flows of `worker` out of service, fewer if they hold more than `bytes_max`. Flows that
    /// were ordered to end stay until they have, and so do those that the path has.
    pub fn take(&self, worker: usize, flows_max: usize, bytes_max: usize) -> Result<Departure, StuckWorker> {
        self.ask(worker, |answer| Message::Take { flows_max, bytes_max, answer })
    }

    /// Serves the flows again as if nothing had been asked.
    pub fn put_back(&self, parcels: Vec<Parcel>) {
        self.give_back(parcels, Message::PutBack);
    }

    /// Forgets flows that another process has now.
    pub fn let_go(&self, parcels: Vec<Parcel>) {
        self.give_back(parcels, Message::LetGo);
    }

    /// Ends flows that no process can serve any more.
    pub fn end(&self, parcels: Vec<Parcel>, reason: EndReason) {
        self.give_back(parcels, |parcels| Message::End(parcels, reason));
    }

    /// Serves flows that another process gave; returns those that cannot be, with their sockets closed here.
    pub fn adopt(&self, flows: Vec<Arriving>) -> Vec<(FlowId, AdoptError)> {
        let workers = self.workers();
        let mut shares: Vec<Vec<Arriving>> = (0..workers).map(|_| Vec::new()).collect();
        for flow in flows {
            // Ids come one after the other, so this spreads them.
            shares[(flow.passport.id.0 % workers as u64) as usize].push(flow);
        }
        let asked = shares.into_iter().enumerate().filter(|(_, flows)| !flows.is_empty()).map(|(worker, flows)| {
            let ids: Vec<_> = flows.iter().map(|flow| flow.passport.id).collect();
            let (answer, answered) = channel();
            self.tell(worker, Message::Adopt { flows, answer });
            (worker, ids, answered)
        });
        let asked: Vec<_> = asked.collect();
        let outcome = |(worker, ids, answered): (usize, Vec<FlowId>, Receiver<_>)| match wait(worker, &answered) {
            Ok(refused) => refused,
            Err(StuckWorker(_)) => ids.into_iter().map(|id| (id, AdoptError::Stuck)).collect::<Vec<_>>(),
        };
        asked.into_iter().flat_map(outcome).collect()
    }

    /// A second descriptor for each listening socket of each worker.
    pub fn lend_listeners(&self) -> io::Result<Vec<(VipAddr, OwnedFd)>> {
        let mut all = Vec::new();
        for worker in 0..self.workers() {
            let lent = self.ask(worker, |answer| Message::LendListeners { answer });
            all.extend(lent.map_err(io::Error::other)??);
        }
        Ok(all)
    }

    /// Stops (or begins again) to accept without closing a listener. When this returns, the backlogs have been served.
    pub fn park_listeners(&self, parked: bool) -> Result<(), StuckWorker> {
        let ask = |worker| {
            let (answer, answered) = channel();
            self.tell(worker, Message::ParkListeners { parked, answer });
            (worker, answered)
        };
        let asked: Vec<_> = (0..self.workers()).map(ask).collect();
        asked.iter().try_for_each(|(worker, answered)| wait(*worker, answered))
    }

    fn give_back(&self, parcels: Vec<Parcel>, message: impl Fn(Vec<Parcel>) -> Message) {
        let mut shares: Vec<Vec<Parcel>> = (0..self.workers()).map(|_| Vec::new()).collect();
        for parcel in parcels {
            shares[parcel.worker].push(parcel);
        }
        for (worker, parcels) in shares.into_iter().enumerate().filter(|(_, parcels)| !parcels.is_empty()) {
            self.tell(worker, message(parcels));
        }
    }

    pub(super) fn ask<T>(&self, worker: usize, question: impl FnOnce(Sender<T>) -> Message) -> Result<T, StuckWorker> {
        let (answer, answered) = channel();
        self.tell(worker, question(answer));
        wait(worker, &answered)
    }

    pub(super) fn tell(&self, worker: usize, message: Message) {
        self.shared.inboxes[worker].push(worker::Message::Handover(message));
        self.table.orders.wake(worker);
    }
}

impl Worker {
    pub(super) fn hand_over(&mut self, message: Message) {
        match message {
            Message::Take { flows_max, bytes_max, answer } => {
                let departure = self.take_flows(flows_max, bytes_max);
                // Whoever asked has given up on us: nothing happened.
                if let Err(unwanted) = answer.send(departure) {
                    unwanted.0.parcels.into_iter().for_each(|parcel| self.put_back(parcel.flow));
                }
            }
            Message::PutBack(parcels) => parcels.into_iter().for_each(|parcel| self.put_back(parcel.flow)),
            Message::LetGo(parcels) => parcels.into_iter().for_each(|parcel| self.let_go(parcel.flow)),
            Message::End(parcels, reason) => parcels.into_iter().for_each(|parcel| self.end_taken(parcel.flow, reason)),
            Message::Adopt { flows, answer } => {
                let refused = flows.into_iter().filter_map(|flow| {
                    let id = flow.passport.id;
                    self.adopt(flow).err().map(|error| (id, error))
                });
                let _ = answer.send(refused.collect());
            }
            Message::LendListeners { answer } => {
                let _ = answer.send(self.lend_listeners());
            }
            Message::ParkListeners { parked, answer } => {
                self.park_listeners(parked);
                let _ = answer.send(());
            }
            Message::ExchangeListener { address, own } => self.exchange_listener(address, own),
            Message::SaveTurns { answer } => {
                let _ = answer.send(self.save_turns());
            }
            Message::RecallTurns(saved) => self.recall_turns(&saved),
        }
    }
}

fn wait<T>(worker: usize, answered: &Receiver<T>) -> Result<T, StuckWorker> {
    answered.recv_timeout(ANSWER_MAX).map_err(|_| StuckWorker(worker))
}
