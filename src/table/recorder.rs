//! What the recorder shows of itself.

use std::sync::{Mutex, PoisonError};

use super::count::Tally;

/// Counters and fault of the recorder.
#[derive(Debug, Default)]
pub struct RecorderCensus {
    /// Bytes in its files.
    pub written: Tally,
    /// Events that it could not write.
    pub dropped: Tally,
    fault: Mutex<Option<String>>,
}

impl RecorderCensus {
    /// All counters by name, for an upgrade. It does not compile with a new field that is not named here.
    pub(super) fn tallies(&self) -> [(&'static str, &Tally); 2] {
        let Self { written, dropped, fault: _ } = self;
        [("recorder bytes written", written), ("recorder events dropped", dropped)]
    }

    /// Why it writes nothing at present.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets it; returns whether it is another one than before.
    pub(crate) fn set_fault(&self, fault: Option<String>) -> bool {
        let mut known = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *known != fault;
        *known = fault;
        is_new
    }
}
