//! Waiting until every CPU knows the entries that were made: a thread that does nothing else, for a wait takes
//! milliseconds, in which requests that flows hold must not lie about.

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
    /// Wakes the engine of `offload` after each wait. Fails where the kernel has no such wait: then nothing may be offloaded.
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

    /// Begins a wait. Not while another is under way.
    pub(super) fn begin(&self) {
        let _ = self.begin.send(());
    }

    /// True once after each wait.
    pub(super) fn is_over(&self) -> bool {
        self.over.swap(false, AcqRel)
    }
}
