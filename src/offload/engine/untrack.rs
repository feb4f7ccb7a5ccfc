//! Removes offloaded flows from this host's connection tracking. Conntrack sees neither packets nor end of such a flow,
//! so its entries would stay for up to five days, until the table is full and the host drops new connections.
//!
//! A thread removes them, because a call may wait for a program that reads or flushes the table. Baton removes entries
//! instead of preventing them: without tracking, a flow would not match the "established" rule of the host's firewall,
//! and would have no NAT.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::essential;
use crate::model::ends::Ends;
use crate::sys::netlink;
use crate::sys::netlink::conntrack::{self, Tracking};
use crate::table::Part;
use crate::table::offload::OffloadCensus;

/// When dropped, it finishes the remaining work and ends.
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

    /// Both legs, soon: no packet of either may pass this host's stack any more, or conntrack makes a new entry.
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
        let ends: Vec<_> = std::iter::once(first).chain(more).collect();
        if !conntrack::is_there() {
            continue;
        }
        let legs: Vec<_> = ends.into_iter().flat_map(legs).collect();
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
            // Once per kind of error: otherwise every flow would log it.
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

/// The legs that conntrack does not see any more, as in the first packet of each. It sees both directions of a leg to a backend on
/// this host, and its end.
fn legs(ends: Ends) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
    let Ends { client, vip, local, backend } = ends;
    let to_backend = (local.socket_addr(), backend.socket_addr());
    let is_seen = netlink::is_local(backend.ip()).unwrap_or(false);
    std::iter::once((client.socket_addr(), vip.socket_addr())).chain((!is_seen).then_some(to_backend))
}
