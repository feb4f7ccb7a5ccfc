//! What this instance says of itself, as of the last second: the recorder writes it beside its samples.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};

use crate::model::weight::Weight;

/// Written once a second.
#[derive(Debug, Default)]
pub(crate) struct StandingBoard(ArcSwapOption<InstanceStanding>);

/// The service state and the silent nodes, in the words of `baton status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceStanding {
    /// Whether this host should have the VIP, and whether clients are served.
    pub headline: String,
    /// A label of [`Weight`].
    pub weight: String,
    /// Why this host should not have the VIP.
    pub reasons: Vec<String>,
    /// `None`: no source listed nodes, or this instance did not know all connections.
    pub silent_nodes: Option<u64>,
    /// A sentence; empty: there were none.
    pub silence: String,
}

impl StandingBoard {
    pub(crate) fn show(&self, standing: InstanceStanding) {
        self.0.store(Some(Arc::new(standing)));
    }

    /// `None`: this process has just begun.
    pub(crate) fn last(&self) -> Option<Arc<InstanceStanding>> {
        self.0.load_full()
    }
}

impl InstanceStanding {
    /// Of the headline.
    pub(crate) fn weight(&self) -> Weight {
        Weight::of_label(&self.weight).unwrap_or(Weight::Plain)
    }

    pub(crate) fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        [&mut self.headline, &mut self.weight, &mut self.silence].into_iter().chain(&mut self.reasons)
    }
}
