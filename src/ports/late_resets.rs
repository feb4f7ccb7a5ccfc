//! Far ends of connections that ended by RST, or that the kernel has given up in silence. If their hosts are cut off,
//! no kernel tells them later: it sends one RST, and none for a connection that has timed out, so an end that only
//! listens would wait for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crossbeam_queue::SegQueue;
use tokio::sync::Notify;

pub(crate) use crate::model::fleet::Abandoned;
use crate::model::fleet::failover::Wake;
use crate::sys::sequence::SequenceNumbers;

/// Limit for the queue to the peers: while it is full, they are told of no others.
const SHARED_MAX: usize = 16_384;

/// The queue from the workers to `late_resets`.
#[derive(Debug, Default)]
pub struct LateResets {
    queue: SegQueue<(Word, ToldBefore)>,
    told: Notify,
    /// For the peers, if there are any: one of them may get the address.
    shared: SegQueue<(Abandoned, ShareWhen)>,
    shares: AtomicBool,
    /// Whether the failure to send was logged.
    complained: AtomicBool,
}

/// The segments for a far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Reset(Abandoned),
    /// A challenge: the far end's answer shows its numbers, and the rule for unknown packets answers that with RST.
    Wake(Wake),
}

impl Word {
    /// The source and the destination of the segments.
    pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Reset(Abandoned { from, to, .. }) | Self::Wake(Wake { from, to }) => (*from, *to),
        }
    }
}

/// Whether a reset was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToldBefore {
    Never,
    Once,
    /// As `Once`, to a client that had no backend. There may be very many of these.
    OnceUnserved,
}

/// When peers are told of a far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareWhen {
    Always,
    /// While one of the peers is not heard: then this host may be the one that is cut off, and that peer may get the
    /// address.
    WhileOneIsAway,
}

impl From<SequenceNumbers> for Abandoned {
    fn from(SequenceNumbers { local, remote, acked, sent, received }: SequenceNumbers) -> Self {
        Self { from: local, to: remote, seqs: [acked, sent], ack: received }
    }
}

impl LateResets {
    /// No reset was sent yet.
    pub(crate) fn tell(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::Always);
        self.push(Word::Reset(abandoned), ToldBefore::Never);
    }

    /// The kernel sends a reset at this moment.
    pub(crate) fn repeat(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::WhileOneIsAway);
        self.push(Word::Reset(abandoned), ToldBefore::Once);
    }

    /// As [`Self::repeat`], of a client that had no backend yet.
    pub(crate) fn repeat_unserved(&self, abandoned: Abandoned) {
        self.share(abandoned, ShareWhen::WhileOneIsAway);
        self.push(Word::Reset(abandoned), ToldBefore::OnceUnserved);
    }

    /// A peer knows of it, too.
    pub(crate) fn repeat_for_peer(&self, abandoned: Abandoned) {
        self.push(Word::Reset(abandoned), ToldBefore::Once);
    }

    /// It has just been challenged, and has not answered.
    pub(crate) fn wake(&self, wake: Wake) {
        self.push(Word::Wake(wake), ToldBefore::Once);
    }

    /// From now on the failover takes those for the peers.
    pub(crate) fn share_with_peers(&self) {
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

    /// No resets can be sent, for this reason: logs it once.
    pub(crate) fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Relaxed) {
            tracing::warn!(%error, "Baton cannot repeat resets to hosts that were cut off; that needs CAP_NET_ADMIN and CAP_NET_RAW");
        }
    }

    pub(crate) fn take_to_share(&self) -> Option<(Abandoned, ShareWhen)> {
        self.shared.pop()
    }

    pub(crate) fn take(&self) -> Option<(Word, ToldBefore)> {
        self.queue.pop()
    }

    /// Returns when there may be entries to take.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }
}
