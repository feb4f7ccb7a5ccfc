//! Pipes for splice, kept between uses: making one costs as much as moving 100 KB.

use crate::sys::pipe::Pipe;

/// Empty pipes kept for reuse.
const KEEP: usize = 32;

/// One worker's pipes.
#[derive(Debug)]
pub(crate) struct PipePool {
    idle: Vec<Pipe>,
    in_use: usize,
    most: usize,
}

impl PipePool {
    /// Gives out at most `most` pipes at a time; each takes two descriptors away from new flows.
    pub(crate) fn new(most: usize) -> Self {
        Self { idle: Vec::new(), in_use: 0, most }
    }

    /// A pipe, or `None` if the limit is reached or no descriptor is free; then the caller copies.
    pub(crate) fn take(&mut self) -> Option<Pipe> {
        if self.in_use >= self.most {
            return None;
        }
        let pipe = self.idle.pop().or_else(|| Pipe::new().ok())?;
        self.in_use += 1;
        Some(pipe)
    }

    /// Takes a pipe back. One that still holds bytes of a dead flow is closed.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        self.in_use -= 1;
        if pipe.held() == 0 && self.idle.len() < KEEP {
            self.idle.push(pipe);
        }
    }

    /// Pipes in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Closes the idle pipes: descriptors are scarce.
    pub(crate) fn shrink(&mut self) {
        self.idle.clear();
    }
}
