//! Backends that were made for flows without a known backend, for the health checker, which must watch them. The
//! table's registry has one such list.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// Backends that the health checker does not watch yet.
#[derive(Debug)]
pub struct Strangers<T> {
    waiting: Mutex<Vec<T>>,
    came: Notify,
}

impl<T> Default for Strangers<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), came: Notify::new() }
    }
}

impl<T> Strangers<T> {
    pub(crate) fn come(&self, stranger: T) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stranger);
        self.came.notify_one();
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when there may be entries to take.
    pub(crate) async fn came(&self) {
        self.came.notified().await;
    }
}
