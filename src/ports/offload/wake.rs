//! The offload engine's wake, for parts with news that are in none of its own queues.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::*};

use crate::sys::eventfd::EventFd;

/// Wakes the offload engine, which finds the news in the queues.
#[derive(Debug)]
pub(crate) struct EngineWake {
    /// A wake is on its way already.
    woken: AtomicBool,
    fd: EventFd,
}

impl EngineWake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { woken: AtomicBool::new(false), fd: EventFd::new()? })
    }

    /// Makes the offload engine look at its requests even if the queue is empty.
    pub(crate) fn wake(&self) {
        self.fd.signal();
    }

    /// One wake for many requests: the offload engine clears it before it takes them.
    pub(super) fn wake_once(&self) {
        if !self.woken.swap(true, AcqRel) {
            self.fd.signal();
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.fd()
    }

    pub(super) fn clear(&self) {
        self.fd.clear();
        self.woken.store(false, Release);
    }
}
