//! Flows that move between processes: the requests of the control side to the workers.
//!
//! ```text
//!   old   take ──▶ MovingFlow ──▶ forget_moved  the other process has it: closed here without a word to either end
//!                    ├──────▶ put_back      served here as before
//!                    └──────▶ reset         the other process had it and died, or did not want it
//!   new   Arriving ──▶ import
//! ```
//! A flow that was taken is in no epoll set; nobody reads or writes its sockets until its `MovingFlow` is given back.

pub(super) mod export;
pub(super) mod import;
pub(super) mod message;
pub(super) mod saved;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::message::Message as WorkerMessage;
use super::plane::timeouts;
use super::workers::Proxy;
use crate::addr::VipAddr;
use crate::config::Config;
use crate::model::end_reason::EndReason;
use crate::model::ids::FlowId;
use crate::sys::socket;
use message::{Arriving, Departure, ImportError, Message, MovingFlow, StuckWorker};

/// A worker that does not answer within this time hangs.
const ANSWER_MAX: Duration = Duration::from_secs(2);

impl Proxy {
    pub fn workers(&self) -> usize {
        self.table.workers.len()
    }

    /// Takes up to `flows_max` flows of `worker` out of service, fewer if they hold more than `bytes_max`. Flows with
    /// an order to end stay until they have ended, and so do flows that the offload engine has.
    pub fn take(&self, worker: usize, flows_max: usize, bytes_max: usize) -> Result<Departure, StuckWorker> {
        self.ask(worker, |answer| Message::Take { flows_max, bytes_max, answer })
    }

    /// Serves the flows again, as if they had never been taken.
    pub fn put_back(&self, moving: Vec<MovingFlow>) {
        self.give_back(moving, Message::PutBack);
    }

    /// Forgets flows that another process has now.
    pub fn forget_moved(&self, moving: Vec<MovingFlow>) {
        self.give_back(moving, Message::ForgetMoved);
    }

    /// Ends flows that no process can serve any more.
    pub(crate) fn end(&self, moving: Vec<MovingFlow>, reason: EndReason) {
        self.give_back(moving, |moving| Message::End(moving, reason));
    }

    /// Serves flows of another process; returns those that cannot be served, with their sockets closed here.
    pub fn import(&self, flows: Vec<Arriving>) -> Vec<(FlowId, ImportError)> {
        let workers = self.workers();
        let mut shares: Vec<Vec<Arriving>> = (0..workers).map(|_| Vec::new()).collect();
        for flow in flows {
            // Ids are consecutive, so this spreads the flows over the workers.
            shares[(flow.transfer.id.0 % workers as u64) as usize].push(flow);
        }
        let asked = shares.into_iter().enumerate().filter(|(_, flows)| !flows.is_empty()).map(|(worker, flows)| {
            let ids: Vec<_> = flows.iter().map(|flow| flow.transfer.id).collect();
            let (answer, answered) = channel();
            self.tell(worker, Message::Import { flows, answer });
            (worker, ids, answered)
        });
        let asked: Vec<_> = asked.collect();
        let outcome = |(worker, ids, answered): (usize, Vec<FlowId>, Receiver<_>)| match wait(worker, &answered) {
            Ok(refused) => refused,
            Err(StuckWorker(_)) => ids.into_iter().map(|id| (id, ImportError::Stuck)).collect::<Vec<_>>(),
        };
        asked.into_iter().flat_map(outcome).collect()
    }

    /// A second descriptor for each listening socket of each worker.
    pub(crate) fn share_listeners(&self) -> io::Result<Vec<(VipAddr, OwnedFd)>> {
        let mut all = Vec::new();
        for worker in 0..self.workers() {
            let listeners = self.ask(worker, |answer| Message::ShareListeners { answer });
            all.extend(listeners.map_err(io::Error::other)??);
        }
        Ok(all)
    }

    /// Stops accepting (or begins again) without closing a listener. When this returns, the backlogs have been served.
    pub(crate) fn park_listeners(&self, parked: bool) -> Result<(), StuckWorker> {
        let ask = |worker| {
            let (answer, answered) = channel();
            self.tell(worker, Message::ParkListeners { parked, answer });
            (worker, answered)
        };
        let asked: Vec<_> = (0..self.workers()).map(ask).collect();
        asked.iter().try_for_each(|(worker, answered)| wait(*worker, answered))
    }

    /// Gives each worker sockets of its own where several share one, as after an upgrade from a process with fewer
    /// workers; returns the number of new sockets. The kernel sends new connections there at once, so call it only when
    /// no other process may continue with the old sockets alone.
    pub(crate) fn widen_listeners(&self, config: &Config) -> io::Result<usize> {
        let frontends = config.frontends.iter();
        let served: HashMap<_, _> =
            frontends.flat_map(|frontend| frontend.listen.iter().map(move |at| (*at, &frontend.keepalive))).collect();
        let (mut seen, mut widened) = (HashSet::new(), 0);
        for worker in 0..self.workers() {
            let listeners =
                self.ask(worker, |answer| Message::ShareListeners { answer }).map_err(io::Error::other)??;
            for (address, shared) in listeners {
                let is_shared = !seen.insert(socket::identity(&shared)?);
                if let (true, Some(keepalive)) = (is_shared, served.get(&address)) {
                    // Where the port is shared, the sockets are bound to another address.
                    let bound = socket::listening_address(&shared).unwrap_or(address);
                    let own = socket::listen(bound, &timeouts(keepalive))?;
                    self.tell(worker, Message::ExchangeListener { address, own });
                    widened += 1;
                }
            }
        }
        Ok(widened)
    }

    fn give_back(&self, moving: Vec<MovingFlow>, message: impl Fn(Vec<MovingFlow>) -> Message) {
        let mut shares: Vec<Vec<MovingFlow>> = (0..self.workers()).map(|_| Vec::new()).collect();
        for moving_flow in moving {
            shares[moving_flow.worker].push(moving_flow);
        }
        for (worker, moving) in shares.into_iter().enumerate().filter(|(_, moving)| !moving.is_empty()) {
            self.tell(worker, message(moving));
        }
    }

    pub(super) fn ask<T>(&self, worker: usize, question: impl FnOnce(Sender<T>) -> Message) -> Result<T, StuckWorker> {
        let (answer, answered) = channel();
        self.tell(worker, question(answer));
        wait(worker, &answered)
    }

    pub(super) fn tell(&self, worker: usize, message: Message) {
        self.shared.inboxes[worker].push(WorkerMessage::Upgrade(message));
        self.table.orders.wake(worker);
    }
}

fn wait<T>(worker: usize, answered: &Receiver<T>) -> Result<T, StuckWorker> {
    answered.recv_timeout(ANSWER_MAX).map_err(|_| StuckWorker(worker))
}
