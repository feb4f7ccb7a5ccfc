//! The RCU barrier: a wait until every CPU sees the entries that were made. It has a thread of its own, because a wait
//! takes milliseconds, and the requests of other flows must not wait as long.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Sender, channel};

use crate::essential;
use crate::ports::offload::Offload;
use crate::sys::bpf::Barrier;
use crate::table::Part;

#[derive(Debug)]
pub(super) struct RcuBarrier {
    begin: Sender<()>,
    over: Arc<AtomicBool>,
}

impl RcuBarrier {
    /// The thread wakes the engine of `offload` after each wait. Fails where the kernel offers no such wait: then Baton
    /// must not offload anything.
    pub(super) fn start(offload: Part<Offload>) -> io::Result<Self> {
        let barrier = Barrier::open()?;
        let (begin, begins) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let done = over.clone();
        let wait = move || {
            while begins.recv().is_ok() {
                while let Err(error) = barrier.wait() {
                    tracing::error!(%error, "the RCU barrier failed; Baton tries again");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
                done.store(true, Release);
                offload.wake();
            }
        };
        essential::thread("offload-rcu", wait)?;
        Ok(Self { begin, over })
    }

    /// Begins a wait. Only one wait may run at a time.
    pub(super) fn begin(&self) {
        let _ = self.begin.send(());
    }

    /// Whether a wait has ended; true once for each.
    pub(super) fn is_over(&self) -> bool {
        self.over.swap(false, AcqRel)
    }
}
