//! Reads entries. A failed read does not show whether the entry exists: the kernel had no memory for the copy, or a
//! program on this host forbids the call for now (map_lookup_elem and security_bpf, kernel/bpf/syscall.c).

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;
use thiserror::Error;

use super::{Program, UserNote};
use crate::model::ids::FlowId;
use crate::offload::entry::{ENTRY_SIZE, Entry, Key};

/// The content of the map is unknown. A caller that gets this error leaves the flow and all its state as they are,
/// concludes nothing, answers nobody, and tries again later. It is counted here, for [`Program::unread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("cannot read the map of offloaded flows")]
pub struct Unread(());

/// Reads that failed since the last call of [`Program::unread`], and the error of the last one.
#[derive(Debug, Default)]
pub(super) struct FailedReads {
    count: AtomicU64,
    errno: AtomicI32,
}

impl FailedReads {
    pub(super) fn note(&self, error: &io::Error) -> Unread {
        self.errno.store(error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()), Relaxed);
        self.count.fetch_add(1, Relaxed);
        Unread(())
    }
}

impl Program {
    /// `None`: there is no entry.
    pub fn entry(&self, key: &Key) -> Result<Option<Entry>, Unread> {
        let mut raw = [0; ENTRY_SIZE];
        let found = self.flows.look_up(&key.encode(), &mut raw).map_err(|error| self.failed.note(&error))?;
        Ok(found.then(|| Entry::decode(&raw)))
    }

    /// Both, or neither.
    pub(crate) fn entries(&self, [one, other]: [Key; 2]) -> Result<[Option<Entry>; 2], Unread> {
        Ok([self.entry(&one)?, self.entry(&other)?])
    }

    /// Removes one entry. An entry that cannot be read stays.
    pub(crate) fn take_out(&self, key: &Key) -> Result<Option<Entry>, Unread> {
        let mut raw = [0; ENTRY_SIZE];
        let found = self.flows.take_out(&key.encode(), &mut raw).map_err(|error| self.failed.note(&error))?;
        Ok(found.then(|| Entry::decode(&raw)))
    }

    pub(crate) fn note(&self, flow: FlowId) -> Result<Option<UserNote>, Unread> {
        let mut note = UserNote::default();
        let found = self.notes.look_up(&flow.0.to_ne_bytes(), &mut note).map_err(|error| self.failed.note(&error))?;
        Ok(found.then_some(note))
    }

    /// Reads that failed since the last call, and the error of the last one; `None`: none failed.
    pub(crate) fn unread(&self) -> Option<(u64, io::Error)> {
        let count = self.failed.count.swap(0, Relaxed);
        (count > 0).then(|| (count, io::Error::from_raw_os_error(self.failed.errno.load(Relaxed))))
    }

    /// Makes every read of an entry fail, or none.
    #[cfg(test)]
    pub(crate) fn set_unreadable(&mut self, unreadable: bool) {
        self.flows.set_unreadable(unreadable);
    }
}
