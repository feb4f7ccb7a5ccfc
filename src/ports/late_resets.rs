//! Far ends of connections that are over by RST, or that the kernel has given up in silence. Should their hosts be cut off,
//! nobody tells them when they come back: a kernel sends one RST, and none for what has timed out, and an end that only
//! listens would wait.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

pub use crate::model::fleet::Abandoned;
use crate::model::fleet::failover::Wake;
use crate::sys::sequence::SequenceNumbers;

/// Beyond, peers hear of no more until they have heard of these.
const SHARED_MAX: usize = 16_384;

/// From the workers to who tells them.
#[derive(Debug, Default)]
pub struct LateResets {
    queue: SegQueue<(Word, ToldBefore)>,
    told: Notify,
    /// For the peers, if there are any: one of them may get the address.
    shared: SegQueue<(Abandoned, ShareWhen)>,
    shares: AtomicBool,
    /// It was said that they are not told.
    complained: AtomicBool,
}

/// What a far end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Reset(Abandoned),
    /// To show its numbers: they get RST as an answer, from whoever answers unknown packets here.
    Wake(Wake),
}

impl Word {
    /// Who seems to speak, and to whom.
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Reset(Abandoned { from, to, .. }) | Self::Wake(Wake { from, to }) => (*from, *to),
        }
    }
}

/// Whether the far end was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldBefore {
    Never,
    Once,
    /// As `Once`, of a client that had no backend. Of such there may be very many.
    OnceUnserved,
}

/// When peers are told of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareWhen {
    Always,
    /// While one of the peers is not heard: it is this host that may be cut off, and the address that may go to that peer.
    WhileOneIsAway,
}

impl From<SequenceNumbers> for Abandoned {
    fn from(SequenceNumbers { local, remote, acked, sent, received }: SequenceNumbers) -> Self {
        Self { from: local, to: remote, seqs: [acked, sent], ack: received }
    }
}

impl LateResets {
    /// Nobody has told it yet.
    pub fn tell(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::Always);
        self.push(Word::Reset(abandoned), ToldBefore::Never);
    }

    /// The kernel tells it at this moment.
    pub fn repeat(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::WhileOneIsAway);
        self.push(Word::Reset(abandoned), ToldBefore::Once);
    }

    /// As [`Self::repeat`], of a client that had no backend yet.
    pub fn repeat_unserved(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::WhileOneIsAway);
        self.push(Word::Reset(abandoned), ToldBefore::OnceUnserved);
    }

    /// A peer knows of it, too.
    pub fn repeat_for_peer(&self, abandoned: Abandoned) {
        self.push(Word::Reset(abandoned), ToldBefore::Once);
    }

    /// It has just been woken, and has not answered.
    pub fn wake(&self, wake: Wake) {
        self.push(Word::Wake(wake), ToldBefore::Once);
    }

    /// From now on somebody takes those that are for the peers.
    pub fn share_with_peers(&self) {
        self.shares.store(true, Relaxed);
    }

    fn share(&self, abandoned: Abandoned, when: ShareWhen) {
        if self.shares.load(Relaxed) && self.shared.len() < SHARED_MAX {
            self.shared.push((abandoned, when));
        }
    }

    fn push(&self, word: Word, told: ToldBefore) {
        self.queue.push((word, told));
        self.told.notify_one();
    }

    /// They cannot be told, for this reason: says so once.
    pub fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Relaxed) {
            tracing::warn!(%error, "Baton cannot repeat resets to hosts that were cut off; that needs CAP_NET_ADMIN and CAP_NET_RAW");
        }
    }

    pub fn take_to_share(&self) -> Option<(Abandoned, ShareWhen)> {
        self.shared.pop()
    }

    pub fn take(&self) -> Option<(Word, ToldBefore)> {
        self.queue.pop()
    }

    /// Returns when there may be some to take.
    pub async fn told(&self) {
        self.told.notified().await;
    }
}
