//! The data plane's observations of one backend, for the health checker. Each backend's entry in the table has its own.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use tokio::sync::Notify;

/// The data plane's observations. Any worker sets a bit; the health checker takes it.
#[derive(Debug, Default)]
pub struct Suspicion {
    bits: AtomicU8,
    pub notify: Notify,
}

impl Suspicion {
    pub(crate) const CONNECT_FAILED: u8 = 1;
    pub(crate) const SEGMENTS_UNACKED: u8 = 2;
    /// Another backend is silent, and no other host is heard.
    pub(crate) const OTHERS_SILENT: u8 = 4;

    pub(crate) fn raise(&self, bit: u8) {
        if self.bits.fetch_or(bit, Relaxed) & bit == 0 {
            self.notify.notify_one();
        }
    }

    /// The bits raised since the last call.
    pub(crate) fn take(&self) -> u8 {
        self.bits.swap(0, Relaxed)
    }
}
