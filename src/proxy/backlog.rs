//! What waits for its turn, so that one flow, or the death of one backend, does not keep the others waiting.

use std::collections::VecDeque;

use super::token::FlowRef;
use crate::sys::epoll::Ready;

/// Work that a turn of the loop has left for the next.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Flows that had their fair share and want more.
    again: Vec<FlowRef>,
    /// Events that say that a socket ends; oldest first.
    endings: VecDeque<Ready>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.again.is_empty() && self.endings.is_empty()
    }

    /// A flow had its fair share and wants more.
    pub(super) fn wants_more(&mut self, at: FlowRef) {
        self.again.push(at);
    }

    /// All that want more. Those that want more still say so again.
    pub(super) fn take_wanting(&mut self) -> Vec<FlowRef> {
        std::mem::take(&mut self.again)
    }

    /// An event says that a socket ends.
    pub(super) fn put_off(&mut self, ending: Ready) {
        self.endings.push_back(ending);
    }

    pub(super) fn next_ending(&mut self) -> Option<Ready> {
        self.endings.pop_front()
    }
}
