//! Descriptors that were open when the process began.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Numbers that have an owner already.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Owns the `count` descriptors from number `first` on, which whoever started this process left open for it (sd_listen_fds(3)); those
/// that are not open are left out. Call it before anything else is opened; from the second call on there are none.
pub fn take_passed(first: RawFd, count: u32) -> Vec<OwnedFd> {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if CALLED.swap(true, Relaxed) {
        return Vec::new();
    }
    // SAFETY: nothing of this process has opened them, and nobody asks twice.
    (first..).take(count as usize).filter_map(|number| unsafe { take(number) }).collect()
}

/// Owns descriptor `number`, which whoever started this process left open for it. `None`: it is not open, it is one of
/// the standard three, or it was taken before.
///
/// # Safety
/// Nothing of this process may have opened it: a number that is in use by then belongs to somebody else.
unsafe fn take(number: RawFd) -> Option<OwnedFd> {
    let mut taken = TAKEN.lock().ok()?;
    if number <= 2 || taken.contains(&number) {
        return None;
    }
    // SAFETY: it is only looked at, and fcntl(2) fails for one that is not open.
    let looked_at = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(looked_at, rustix::io::FdFlags::CLOEXEC).ok()?;
    taken.push(number);
    // SAFETY: it is open, nobody in this process has opened it, and it is handed out once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes standard input for something else; reading it gives nothing from now on.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let owned = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(owned)
}
