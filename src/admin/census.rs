//! Counts flows by state: a walk over the whole table, and so limited in rate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::status::FlowCounts;
use crate::model::ids::FrontendId;
use crate::sys::clock::now_ns;
use crate::table::flows::FlowTable;

/// Flows by frontend and state.
pub(crate) type Counts = HashMap<FrontendId, FlowCounts>;

/// Pause between two counts, as a multiple of the duration of the last walk: with a million flows, readers that come
/// every second must not use a noticeable part of a core.
const PAUSE: u64 = 20;

#[derive(Debug, Default)]
pub struct Census {
    last: Mutex<Option<Taken>>,
}

#[derive(Debug)]
struct Taken {
    at_ns: u64,
    took_ns: u64,
    counts: Arc<Counts>,
}

impl Census {
    /// The counts, perhaps a little old. Call it on a blocking thread: it may walk the table.
    pub fn counts(&self, flows: &FlowTable) -> Arc<Counts> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = now_ns();
        if let Some(taken) = &*last
            && begin - taken.at_ns < PAUSE * taken.took_ns
        {
            return taken.counts.clone();
        }
        let mut counts = Counts::new();
        for flow in flows.iter() {
            counts.entry(flow.origin.frontend).or_default().add(&flow);
        }
        let counts = Arc::new(counts);
        let at_ns = now_ns();
        *last = Some(Taken { at_ns, took_ns: at_ns - begin, counts: counts.clone() });
        counts
    }
}
