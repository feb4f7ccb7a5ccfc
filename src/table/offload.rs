//! Counters of offloads for metrics and status, and the state of the offload engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use arc_swap::ArcSwap;

use super::Part;
use super::count::Tally;
use super::flows::FlowTable;
use crate::model::stays::Stays;

/// Why no flow is offloaded: an operator's choice.
pub(crate) const OFF: &str = "offload.mode is \"off\"";

/// Counters of offloads, and the state of the offload engine. In cache lines of their own, because workers read the
/// fields beside them at each event.
#[derive(Debug)]
#[repr(align(128))]
pub struct OffloadCensus {
    pub offloaded: Tally,
    /// By `Stays as usize`: failed tries to offload a flow.
    stayed: [Tally; Stays::ALL.len()],
    /// Flows of an earlier process that were recovered.
    pub recovered: Tally,
    /// Times that another program had detached the program, and Baton attached it again.
    pub reattached: Tally,
    /// Times that an entry could not be read, so that its flow stayed as it was.
    pub unread: Tally,
    /// Connections of offloaded flows that Baton removed from connection tracking, and those that it could not remove.
    pub untracked: Tally,
    pub still_tracked: Tally,
    /// The configuration allows no offload.
    is_off: AtomicBool,
    /// Offload has stopped, because flows were reset right after it.
    stopped: AtomicBool,
    /// Present number of offloaded flows.
    without_sockets: AtomicU32,
    /// Of these the number of flows whose backend is on this host.
    staying: AtomicU32,
    view: ArcSwap<OffloadView>,
}

/// The state of the offload engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadView {
    /// `None`: flows may be offloaded. Otherwise the reason, and what fixes it.
    pub why_not: Option<String>,
    /// Interfaces that the program is attached to.
    pub interfaces: Vec<String>,
    pub flows_max: u64,
    /// Flows in the map, with those that ended a moment ago.
    pub flows_held: u64,
    /// Packets by the program's action or the reason for a drop; since the program was loaded.
    pub packets: Vec<(&'static str, u64)>,
}

impl Default for OffloadCensus {
    fn default() -> Self {
        let view = OffloadView { why_not: Some("it has not been opened".to_owned()), ..OffloadView::default() };
        Self {
            offloaded: Tally::default(),
            stayed: std::array::from_fn(|_| Tally::default()),
            recovered: Tally::default(),
            reattached: Tally::default(),
            unread: Tally::default(),
            untracked: Tally::default(),
            still_tracked: Tally::default(),
            is_off: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            without_sockets: AtomicU32::new(0),
            staying: AtomicU32::new(0),
            view: ArcSwap::from_pointee(view),
        }
    }
}

impl OffloadCensus {
    pub(crate) fn count_stayed(&self, why: Stays) {
        self.stayed[why as usize].add(1);
    }

    pub(crate) fn stayed(&self, why: Stays) -> u64 {
        self.stayed[why as usize].value()
    }

    /// All counters by name, for an upgrade. It does not compile with a new field that is not named here.
    pub(crate) fn tallies(&self) -> Vec<(String, &Tally)> {
        let Self {
            offloaded,
            stayed,
            recovered,
            reattached,
            unread,
            untracked,
            still_tracked,
            is_off: _,
            stopped: _,
            without_sockets: _,
            staying: _,
            view: _,
        } = self;
        let stayed = Stays::ALL.iter().map(|why| (format!("stayed {}", why.label()), &stayed[*why as usize]));
        let others = [
            ("offloaded", offloaded),
            ("recovered", recovered),
            ("reattached", reattached),
            ("unread", unread),
            ("untracked", untracked),
            ("still tracked", still_tracked),
        ];
        others.map(|(name, tally)| (name.to_owned(), tally)).into_iter().chain(stayed).collect()
    }

    pub(crate) fn view(&self) -> Arc<OffloadView> {
        self.view.load_full()
    }

    pub fn show(&self, view: OffloadView) {
        let off = self.is_off.load(Relaxed).then(|| OFF.to_owned());
        self.view.store(Arc::new(OffloadView { why_not: off.or(view.why_not), ..view }));
    }

    /// Sets whether the configuration forbids offload.
    pub(crate) fn set_off(&self, off: bool) {
        self.is_off.store(off, Relaxed);
        self.show(OffloadView { why_not: None, ..(*self.view()).clone() });
    }

    /// Whether offload has stopped, because flows were reset right after it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Relaxed);
    }

    /// Number of flows that need no descriptor.
    pub fn without_sockets(&self) -> usize {
        self.without_sockets.load(Relaxed) as usize
    }

    /// Number of offloaded flows that end with this host.
    pub(crate) fn staying(&self) -> usize {
        self.staying.load(Relaxed) as usize
    }

    /// Of `flows` those that end with this process: all except those that the offload engine carries.
    pub(crate) fn flows_with_sockets(&self, flows: &FlowTable) -> usize {
        flows.len().saturating_sub(self.without_sockets())
    }
}

/// Counts one offloaded flow, as long as the hold exists.
#[derive(Debug)]
pub(crate) struct SocketlessHold {
    census: Part<OffloadCensus>,
    stays_here: bool,
}

impl SocketlessHold {
    /// `stays_here`: it ends with this host all the same.
    pub(crate) fn count_in(census: Part<OffloadCensus>, stays_here: bool) -> Self {
        census.without_sockets.fetch_add(1, Relaxed);
        census.staying.fetch_add(stays_here.into(), Relaxed);
        Self { census, stays_here }
    }
}

impl Drop for SocketlessHold {
    fn drop(&mut self) {
        self.census.without_sockets.fetch_sub(1, Relaxed);
        self.census.staying.fetch_sub(self.stays_here.into(), Relaxed);
    }
}
