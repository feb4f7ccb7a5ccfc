//! Kills this process if it hangs while it has the VIP, just before the kernel removes the address.
//!
//! The kernel goes on accepting connections for a process that hangs, and acknowledges what their clients send. No peer knows of these
//! connections, and once the address has gone, nothing that this host sends reaches their clients, who wait for their own timeouts; so do
//! clients of this host, who connect from the VIP itself. While the address is still there, the end of the process ends them all: its sockets
//! close, and the clients hear it at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::essential;
use crate::sys::clock::now_ns;
use crate::sys::kill_timer::KillTimer;

/// How often a thread that does nothing else shows that the process runs, and for how long that counts.
const SHOW_EVERY: Duration = Duration::from_millis(200);
const SHOWN_NS: u64 = 1_000_000_000;

/// The timer, and the thread that puts it off while the holder's own thread waits, for example for the kernel's lock of the addresses.
#[derive(Debug)]
pub(super) struct HangGuard {
    shared: Arc<SharedTimer>,
    thread: thread::Thread,
}

#[derive(Debug)]
struct SharedTimer {
    timer: KillTimer,
    /// When the address is about to go unless the holder renews it; 0: the guard is off.
    at_ns: AtomicU64,
}

impl HangGuard {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(SharedTimer { timer: KillTimer::new()?, at_ns: AtomicU64::new(0) });
        let its = shared.clone();
        let thread = essential::thread("vip-guard", move || its.watch())?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// The address goes soon after `at_ns`: a process that hangs until then is killed.
    pub(super) fn arm(&self, at_ns: u64) {
        if self.shared.at_ns.swap(at_ns, Relaxed) == 0 {
            self.thread.unpark();
        }
        self.shared.timer.set(put_off(at_ns));
    }

    pub(super) fn disarm(&self) {
        if self.shared.at_ns.swap(0, Relaxed) != 0 {
            self.shared.timer.stop();
        }
    }
}

/// Never sooner than this: the process runs now.
fn put_off(at_ns: u64) -> u64 {
    at_ns.max(now_ns() + SHOWN_NS)
}

impl SharedTimer {
    fn watch(&self) {
        loop {
            match self.at_ns.load(Relaxed) {
                0 => {
                    self.timer.stop();
                    // A wake that came before this returns at once.
                    thread::park();
                }
                at_ns => {
                    self.timer.set(put_off(at_ns));
                    thread::sleep(SHOW_EVERY);
                }
            }
        }
    }
}
