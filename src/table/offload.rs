//! What is counted of offloads, for metrics and the status, and how the offload engine stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use arc_swap::ArcSwap;

use super::Part;
use super::count::Tally;
use super::flows::FlowTable;
use crate::model::stays::Stays;

/// Why nothing is offloaded that could.
pub const OFF: &str = "offload.mode is \"off\"";

/// Counters of offloads, and how the offload engine stands; in cache lines of their own, for workers read what stands beside them at each
/// event.
#[derive(Debug)]
#[repr(align(128))]
pub struct OffloadCensus {
    pub offloaded: Tally,
    /// By `Stays as usize`: each time that a flow was tried and stayed.
    stayed: [Tally; Stays::ALL.len()],
    /// Flows of an earlier process that were recovered.
    pub recovered: Tally,
    /// Times that somebody else had detached the program, and it was attached again.
    pub reattached: Tally,
    /// Times that an entry could not be read, and its flow was left as it was.
    pub unread: Tally,
    /// Connections of offloaded flows that connection tracking was made to forget, and that it would not forget.
    pub untracked: Tally,
    pub still_tracked: Tally,
    /// The configuration lets no flow offload.
    is_off: AtomicBool,
    /// None is offloaded, for flows were reset right after they had been.
    stopped: AtomicBool,
    /// Flows without sockets now.
    without_sockets: AtomicU32,
    view: ArcSwap<OffloadView>,
}

/// How the offload engine stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadView {
    /// Flows may be offloaded. If not, why not, and what fixes it.
    pub why_not: Option<String>,
    /// Interfaces whose packets are looked at.
    pub interfaces: Vec<String>,
    pub flows_max: u64,
    /// Flows that the map holds, those included that ended a moment ago.
    pub flows_held: u64,
    /// Packets by what was done with them, or why they were dropped; since the program was loaded.
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
            view: ArcSwap::from_pointee(view),
        }
    }
}

impl OffloadCensus {
    pub fn count_stayed(&self, why: Stays) {
        self.stayed[why as usize].add(1);
    }

    pub fn stayed(&self, why: Stays) -> u64 {
        self.stayed[why as usize].value()
    }

    /// All of them by name, for an upgrade.
    pub fn tallies(&self) -> Vec<(String, &Tally)> {
        let stayed = Stays::ALL.iter().map(|why| (format!("stayed {}", why.label()), &self.stayed[*why as usize]));
        let others = [
            ("offloaded", &self.offloaded),
            ("recovered", &self.recovered),
            ("reattached", &self.reattached),
            ("unread", &self.unread),
            ("untracked", &self.untracked),
            ("still tracked", &self.still_tracked),
        ];
        others.map(|(name, tally)| (name.to_owned(), tally)).into_iter().chain(stayed).collect()
    }

    pub fn view(&self) -> Arc<OffloadView> {
        self.view.load_full()
    }

    pub fn show(&self, view: OffloadView) {
        let off = self.is_off.load(Relaxed).then(|| OFF.to_owned());
        self.view.store(Arc::new(OffloadView { why_not: off.or(view.why_not), ..view }));
    }

    /// Whether the configuration lets no flow offload, whatever else holds.
    pub fn set_off(&self, off: bool) {
        self.is_off.store(off, Relaxed);
        self.show(OffloadView { why_not: None, ..(*self.view()).clone() });
    }

    /// Whether none is offloaded, because flows were reset right after they had been.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Relaxed);
    }

    /// Flows that need no descriptor.
    pub fn without_sockets(&self) -> usize {
        self.without_sockets.load(Relaxed) as usize
    }

    /// Of `flows` those that end with this process: all but those that the offload engine carries.
    pub fn flows_with_sockets(&self, flows: &FlowTable) -> usize {
        flows.len().saturating_sub(self.without_sockets())
    }
}

/// Counts one flow without sockets for as long as it is held.
#[derive(Debug)]
pub struct SocketlessHold(Part<OffloadCensus>);

impl SocketlessHold {
    pub fn count_in(census: Part<OffloadCensus>) -> Self {
        census.without_sockets.fetch_add(1, Relaxed);
        Self(census)
    }
}

impl Drop for SocketlessHold {
    fn drop(&mut self) {
        self.0.without_sockets.fetch_sub(1, Relaxed);
    }
}
