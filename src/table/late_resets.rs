//! Far ends of connections that are over by RST, or that the kernel has given up in silence. Should their hosts be cut off,
//! nobody tells them when they come back: a kernel sends one RST, and none for what has timed out, and an end that only
//! listens would wait.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

/// One such connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// This host's end.
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Numbers that the far end may expect: what it last acknowledged, and the end of what was sent.
    pub seqs: [u32; 2],
    pub ack: u32,
}

/// From the workers to who tells them.
#[derive(Debug, Default)]
pub struct LateResets {
    queue: SegQueue<(Abandoned, Told)>,
    told: Notify,
    /// It was said that they are not told.
    complained: AtomicBool,
}

/// Whether the far end was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Never,
    Once,
}

impl LateResets {
    /// Nobody has told it yet.
    pub fn tell(&self, abandoned: Abandoned) {
        self.push(abandoned, Told::Never);
    }

    /// The kernel tells it at this moment.
    pub fn repeat(&self, abandoned: Abandoned) {
        self.push(abandoned, Told::Once);
    }

    fn push(&self, abandoned: Abandoned, told: Told) {
        self.queue.push((abandoned, told));
        self.told.notify_one();
    }

    /// They cannot be told, for this reason: says so once.
    pub fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Relaxed) {
            tracing::warn!(%error, "far ends that a reset does not reach are not told again: it takes CAP_NET_ADMIN and CAP_NET_RAW");
        }
    }

    pub fn take(&self) -> Option<(Abandoned, Told)> {
        self.queue.pop()
    }

    /// Returns when there may be some to take.
    pub async fn told(&self) {
        self.told.notified().await;
    }
}
