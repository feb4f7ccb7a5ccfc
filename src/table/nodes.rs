//! The cluster's nodes, as of the last look at all connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;

use crate::model::end_reason::EndReason;
use crate::model::nodes::NodeWatch;
pub use crate::model::nodes::{NodeRefusal, SilenceKind};

/// Written once a second, read for each scrape.
#[derive(Debug, Default)]
pub struct NodeBoard {
    watch: Mutex<NodeWatch>,
    silent: ArcSwapOption<Vec<SilentNode>>,
    counts: ArcSwapOption<NodeCounts>,
    /// Nodes of the list that have no connection since.
    refused: Mutex<HashMap<Arc<str>, NodeRefusal>>,
}

/// How many nodes of the list are in each state, by its name.
pub type NodeCounts = [(&'static str, u64); 5];

/// A node that has had no connection, or has sent nothing, for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentNode {
    pub name: Arc<str>,
    /// Monotonic.
    pub since_ns: u64,
    pub kind: SilenceKind,
    /// If Baton itself refuses it.
    pub refused: Option<NodeRefusal>,
}

impl NodeBoard {
    /// All that is known of the nodes.
    pub(crate) fn watch(&self) -> MutexGuard<'_, NodeWatch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that has been silent for the longest time first. `None`: no source lists the nodes, or this instance does not know
    /// all connections.
    pub(crate) fn silent(&self) -> Option<Arc<Vec<SilentNode>>> {
        self.silent.load_full()
    }

    /// `None`: no source lists the nodes.
    pub(crate) fn counts(&self) -> Option<Arc<NodeCounts>> {
        self.counts.load_full()
    }

    /// A connection of this node of the list was refused.
    pub(crate) fn note_refused(&self, node: &Arc<str>, reason: EndReason) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let it = refused.entry(node.clone()).or_insert(NodeRefusal { reason, times: 0 });
        *it = NodeRefusal { reason, times: it.times + 1 };
    }

    /// The nodes whose connections were refused, without those that are not listed any more or have one again.
    pub(crate) fn refused(&self, has_none: impl Fn(&str) -> bool) -> HashMap<Arc<str>, NodeRefusal> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|node, _| has_none(node));
        refused.clone()
    }

    pub fn show_counts(&self, counts: Option<NodeCounts>) {
        self.counts.store(counts.map(Arc::new));
    }

    pub fn show(&self, silent: Option<Vec<SilentNode>>) {
        self.silent.store(silent.map(Arc::new));
    }
}
