//! What is counted of graduations, for metrics and the status.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;

use super::Stays;

/// Counters of graduations, and how the path stands.
#[derive(Debug)]
pub struct Census {
    pub graduated: AtomicU64,
    /// By `Stays as usize`: each time that a flow was tried and stayed.
    stayed: [AtomicU64; Stays::ALL.len()],
    /// Flows of an earlier process that were adopted.
    pub adopted: AtomicU64,
    /// Times that somebody else had detached the program, and it was attached again.
    pub reattached: AtomicU64,
    /// Connections of graduated flows that connection tracking was made to forget, and that it would not forget.
    pub untracked: AtomicU64,
    pub still_tracked: AtomicU64,
    view: ArcSwap<PathView>,
}

/// How the path stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathView {
    /// Flows may graduate. If not, why not, and what mends it.
    pub why_not: Option<String>,
    /// Interfaces whose packets are looked at.
    pub interfaces: Vec<String>,
    pub flows_max: u64,
    /// Flows that the map holds, those included that ended a moment ago.
    pub flows_held: u64,
    /// Packets by what was done with them, or why they were dropped; since the program was loaded.
    pub packets: Vec<(&'static str, u64)>,
}

impl Default for Census {
    fn default() -> Self {
        let view = PathView { why_not: Some("it has not been opened".to_owned()), ..PathView::default() };
        Self {
            graduated: AtomicU64::new(0),
            stayed: std::array::from_fn(|_| AtomicU64::new(0)),
            adopted: AtomicU64::new(0),
            reattached: AtomicU64::new(0),
            untracked: AtomicU64::new(0),
            still_tracked: AtomicU64::new(0),
            view: ArcSwap::from_pointee(view),
        }
    }
}

impl Census {
    pub fn count_stayed(&self, why: Stays) {
        self.stayed[why as usize].fetch_add(1, Relaxed);
    }

    pub fn stayed(&self, why: Stays) -> u64 {
        self.stayed[why as usize].load(Relaxed)
    }

    pub fn view(&self) -> Arc<PathView> {
        self.view.load_full()
    }

    pub fn show(&self, view: PathView) {
        self.view.store(Arc::new(view));
    }
}
