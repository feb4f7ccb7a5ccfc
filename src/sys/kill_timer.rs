//! A timer of the kernel that kills this process, unless the process sets it anew in time (timer_create(2)). SIGKILL also reaches a
//! process that is stopped or frozen, or that no thread of answers.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use super::clock::for_timer_ns;

/// The kernel deletes it with the process, and exec(2) does, too; a child process does not inherit it.
#[derive(Debug)]
pub(crate) struct KillTimer(libc::timer_t);

// SAFETY: the id is a number that the kernel looks up for this process, whichever thread asks.
unsafe impl Send for KillTimer {}
// SAFETY: as for Send; timer_settime(2) of two threads at once is as one after the other.
unsafe impl Sync for KillTimer {}

impl KillTimer {
    /// It runs only once it is set.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: all fields of sigevent are numbers or pointers that SIGEV_SIGNAL leaves unread, so zeroes are valid.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer = ptr::null_mut();
        // SAFETY: both pointers are valid for the call, and the kernel writes the id before it returns 0.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The kernel kills this process at this moment of [`super::clock::now_ns`], unless the timer is set anew before.
    pub(crate) fn set(&self, at_ns: u64) {
        // Zero would stop it.
        self.set_to(for_timer_ns(at_ns).max(1));
    }

    pub(crate) fn stop(&self) {
        self.set_to(0);
    }

    fn set_to(&self, at_ns: u64) {
        let at = libc::timespec {
            tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
        };
        let value = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: the timer exists until `drop`, and the pointers are valid for the call. It can only fail for a bad id or time.
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const value, ptr::null_mut()) };
    }
}

impl Drop for KillTimer {
    fn drop(&mut self) {
        // SAFETY: the id is from timer_create(2), and nobody uses it after this.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::clock::now_ns;

    /// What it does when its time comes is shown by tests/net/vip/own_clients.rs.
    #[test]
    fn a_timer_that_is_set_anew_or_stopped_in_time_kills_nobody() {
        let timer = KillTimer::new().unwrap();
        let ms = 1_000_000;
        timer.set(now_ns() + 5000 * ms);
        timer.set(now_ns() + 3_600_000 * ms);
        timer.stop();
        timer.set(now_ns() + 3_600_000 * ms);
        drop(timer);
        let stopped = KillTimer::new().unwrap();
        stopped.set(now_ns() + 2000 * ms);
        stopped.stop();
        std::thread::sleep(Duration::from_millis(1));
    }
}
