//! Connection tracking of this host forgets what has been offloaded: it will see neither packet nor end of such a flow, and its
//! entries would stay, up to five days long, until the table is full and the host drops whatever is new.
//!
//! Removing them is a thread's work, for a call may wait for somebody who reads or empties the table. They are removed
//! rather than never made: a flow without tracking would be no longer what the host's firewall calls established, and has
//! no NAT.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::essential;
use crate::model::ends::Ends;
use crate::sys::netlink::conntrack::{self, Tracking};
use crate::table::Part;
use crate::table::offload::OffloadCensus;

/// Dropped, it ends what is left to do and goes.
#[derive(Debug)]
pub(super) struct Untrack {
    flows: Option<Sender<Ends>>,
    thread: Option<JoinHandle<()>>,
}

impl Untrack {
    pub(super) fn start(census: Part<OffloadCensus>) -> io::Result<Self> {
        let (flows, wanted) = channel();
        let thread = essential::thread("offload-untrack", move || run(&census, &wanted))?;
        Ok(Self { flows: Some(flows), thread: Some(thread) })
    }

    /// Both legs, soon: nothing of either must pass through this host's stack any more, or what does begins an entry anew.
    pub(super) fn forget(&self, ends: &Ends) {
        if let Some(flows) = &self.flows {
            let _ = flows.send(*ends);
        }
    }
}

impl Drop for Untrack {
    fn drop(&mut self) {
        self.flows = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(census: &OffloadCensus, wanted: &Receiver<Ends>) {
    let mut tracking = Tracking::open().ok();
    let mut told = None;
    while let Ok(first) = wanted.recv() {
        let more = wanted.try_iter().take(conntrack::BATCH / 2 - 1);
        let legs: Vec<_> = std::iter::once(first).chain(more).flat_map(|ends| legs(&ends)).collect();
        if !conntrack::is_there() {
            continue;
        }
        let forgotten = match &tracking {
            Some(tracking) => tracking.forget(&legs),
            None => Tracking::open().and_then(|opened| tracking.insert(opened).forget(&legs)),
        };
        let error = match forgotten {
            Ok(forgotten) => {
                census.untracked.add(forgotten.removed);
                forgotten.refused.map(io::Error::from_raw_os_error)
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            census.still_tracked.add(legs.len() as u64);
            // Once for each reason: it would be said with every flow.
            if told.replace(error.kind()) != Some(error.kind()) {
                tracing::error!(
                    %error,
                    "cannot remove conntrack entries of offloaded flows, so the conntrack table fills up; check that the kernel \
                     module nf_conntrack_netlink is available"
                );
            }
        }
    }
}

/// As the first packet of each had it.
fn legs(ends: &Ends) -> [(SocketAddr, SocketAddr); 2] {
    let Ends { client, vip, local, backend } = ends;
    [(client.socket_addr(), vip.socket_addr()), (local.socket_addr(), backend.socket_addr())]
}
