//! The engine's answers to its workers: one wake of a worker for all answers that wait for it.

use std::collections::HashMap;

use crate::ports::offload::{Answer, Offload, Progress};
use crate::ports::orders::Orders;
use crate::table::Part;

#[derive(Debug)]
pub(super) struct Answers {
    offload: Part<Offload>,
    orders: Part<Orders>,
    /// Progress for each worker, before it is sent.
    lists: HashMap<usize, Vec<Progress>>,
    touched: Vec<bool>,
}

impl Answers {
    pub(super) fn new(offload: Part<Offload>, orders: Part<Orders>) -> Self {
        let touched = vec![false; orders.workers()];
        Self { offload, orders, lists: HashMap::new(), touched }
    }

    pub(super) fn answer(&mut self, worker: usize, answer: Answer) {
        self.offload.answer(worker, answer);
        self.touched[worker] = true;
    }

    pub(super) fn answer_all(&mut self, answer: impl Fn() -> Answer) {
        for worker in 0..self.touched.len() {
            self.answer(worker, answer());
        }
    }

    /// Chooses a worker for a flow without one, by the flow's number.
    pub(super) fn any_worker(&self, number: u64) -> usize {
        (number % self.touched.len() as u64) as usize
    }

    /// Queues progress for [`Answers::wake_workers`].
    pub(super) fn has_come_to(&mut self, progress: Progress) {
        self.lists.entry(progress.ticket.worker).or_default().push(progress);
    }

    pub(super) fn wake_workers(&mut self) {
        for (worker, list) in self.lists.drain() {
            self.offload.answer(worker, Answer::Progress(list));
            self.touched[worker] = true;
        }
        for (worker, touched) in self.touched.iter_mut().enumerate() {
            if std::mem::take(touched) {
                self.orders.wake(worker);
            }
        }
    }

    /// Progress that waits for this worker.
    #[cfg(test)]
    pub(super) fn waiting_for(&self, worker: usize) -> usize {
        self.lists.get(&worker).map_or(0, Vec::len)
    }
}
