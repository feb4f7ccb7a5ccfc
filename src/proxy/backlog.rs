//! Work that waits for its turn, so that one flow, or the death of one backend, does not delay the others.

use std::collections::VecDeque;

use super::token::FlowRef;
use crate::sys::epoll::Ready;

/// Work that a turn of the loop has left for the next.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Flows that had their fair share and have more to do.
    again: Vec<FlowRef>,
    /// Events about the end of a socket; oldest first.
    endings: VecDeque<Ready>,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.again.is_empty() && self.endings.is_empty()
    }

    /// A flow had its fair share and has more to do.
    pub(super) fn wants_more(&mut self, at: FlowRef) {
        self.again.push(at);
    }

    /// Takes all flows that have more to do. A flow that then still has more must be added again.
    pub(super) fn take_wanting(&mut self) -> Vec<FlowRef> {
        std::mem::take(&mut self.again)
    }

    /// Adds an event about the end of a socket.
    pub(super) fn put_off(&mut self, ending: Ready) {
        self.endings.push_back(ending);
    }

    pub(super) fn next_ending(&mut self) -> Option<Ready> {
        self.endings.pop_front()
    }
}
