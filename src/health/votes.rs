//! Counts a frontend's ready backends: drain deadlines apply only while there is one.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts the ready backends of one frontend.
#[derive(Debug)]
pub(super) struct Votes {
    ready: watch::Sender<usize>,
}

impl Default for Votes {
    fn default() -> Self {
        Self { ready: watch::Sender::new(0) }
    }
}

/// One backend's vote; dropping it removes the vote.
#[derive(Debug)]
pub(super) struct Vote {
    votes: Arc<Votes>,
    seen: watch::Receiver<usize>,
    ready: bool,
}

impl Vote {
    pub(super) fn new(votes: Arc<Votes>) -> Self {
        let seen = votes.ready.subscribe();
        Self { votes, seen, ready: false }
    }

    pub(super) fn set(&mut self, ready: bool) {
        if self.ready != ready {
            self.ready = ready;
            self.votes.ready.send_modify(|count| if ready { *count += 1 } else { *count -= 1 });
        }
    }

    /// Whether another backend is ready.
    pub(super) fn another(&self) -> bool {
        *self.seen.borrow() > usize::from(self.ready)
    }

    /// Returns when the count has changed.
    pub(super) async fn changed(&mut self) {
        // The sender lives as long as `votes`, so there is no error.
        let _ = self.seen.changed().await;
    }
}

impl Drop for Vote {
    fn drop(&mut self) {
        self.set(false);
    }
}
