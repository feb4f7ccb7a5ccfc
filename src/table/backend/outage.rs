//! The outage of a frontend, which rebalancing follows, and which outlives the process.

use std::sync::{Mutex, PoisonError};

use crate::model::rebalance::outage::SavedOutage;

/// `None`: there is no outage.
#[derive(Debug, Default)]
pub struct OutageMemory(Mutex<Option<SavedOutage>>);

impl OutageMemory {
    pub(crate) fn get(&self) -> Option<SavedOutage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, outage: Option<SavedOutage>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = outage;
    }
}
