//! Pipes for splice, kept between uses: making one costs as much as moving 100 KB.

use crate::sys::pipe::Pipe;

/// Empty pipes kept for reuse.
const KEEP: usize = 32;

/// One worker's pipes.
#[derive(Debug)]
pub(crate) struct PipePool {
    idle: Vec<Pipe>,
    lent: usize,
    most: usize,
}

impl PipePool {
    /// Lends at most `most` pipes at a time; each takes two descriptors away from new flows.
    pub(crate) fn new(most: usize) -> Self {
        Self { idle: Vec::new(), lent: 0, most }
    }

    /// A pipe, or `None` if the limit is reached or no descriptor is free; then the caller copies.
    pub(crate) fn lend(&mut self) -> Option<Pipe> {
        if self.lent >= self.most {
            return None;
        }
        let pipe = self.idle.pop().or_else(|| Pipe::new().ok())?;
        self.lent += 1;
        Some(pipe)
    }

    /// Takes a pipe back. One that still holds bytes of a dead flow is closed.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        self.lent -= 1;
        if pipe.held() == 0 && self.idle.len() < KEEP {
            self.idle.push(pipe);
        }
    }

    /// Pipes in use.
    pub(crate) fn lent(&self) -> usize {
        self.lent
    }

    /// Closes the idle pipes: descriptors are scarce.
    pub(crate) fn shrink(&mut self) {
        self.idle.clear();
    }
}
