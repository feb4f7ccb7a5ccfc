//! State that all workers share, besides the table.

use crossbeam_queue::SegQueue;

use super::accept::sources::Sources;
use super::message::Message;

/// State that all workers share, besides the table.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) sources: Sources,
    pub(super) inboxes: Box<[SegQueue<Message>]>,
}

impl Shared {
    pub(super) fn next_message(&self, worker: usize) -> Option<Message> {
        self.inboxes[worker].pop()
    }
}
