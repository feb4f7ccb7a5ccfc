//! Descriptors that were open when the process began.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Descriptor numbers that already have an owner.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Takes the `count` descriptors from number `first` on that the parent process passed to this one (sd_listen_fds(3));
/// leaves out those that are not open. Call it before anything else is opened; a second call returns none.
pub(crate) fn take_passed(first: RawFd, count: u32) -> Vec<OwnedFd> {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if CALLED.swap(true, Relaxed) {
        return Vec::new();
    }
    // SAFETY: nothing of this process has opened them, and nobody asks twice.
    (first..).take(count as usize).filter_map(|number| unsafe { take(number) }).collect()
}

/// Takes descriptor `number`, which the parent process passed. `None`: it is not open, it is one of the standard three,
/// or it was taken before.
///
/// # Safety
/// This process must not have opened it: a number in use by then belongs to other code.
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

/// Takes standard input for another purpose; reading stdin then returns EOF.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let owned = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(owned)
}
