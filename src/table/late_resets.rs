//! Far ends of connections that the kernel has given up after their silence. Should their hosts come back, nobody tells
//! them: a kernel sends no RST for what has timed out, and an end that only listens would wait.

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
    /// Numbers that the far end may expect: what it last acknowledged, and the end of what was written.
    pub seqs: [u32; 2],
    pub ack: u32,
}

/// From the workers to who tells them.
#[derive(Debug, Default)]
pub struct LateResets {
    queue: SegQueue<Abandoned>,
    told: Notify,
    /// It was said that they are not told.
    complained: AtomicBool,
}

impl LateResets {
    pub fn tell(&self, abandoned: Abandoned) {
        self.queue.push(abandoned);
        self.told.notify_one();
    }

    /// They cannot be told, for this reason: says so once.
    pub fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Relaxed) {
            tracing::warn!(%error, "far ends of connections that time out are not told: it takes CAP_NET_ADMIN and CAP_NET_RAW");
        }
    }

    pub fn take(&self) -> Option<Abandoned> {
        self.queue.pop()
    }

    /// Returns when there may be some to take.
    pub async fn told(&self) {
        self.told.notified().await;
    }
}
