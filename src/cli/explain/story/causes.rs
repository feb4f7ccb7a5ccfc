//! What may be a fault, and what may have caused it.

use super::{BEFORE_MS, LATELY_MS, Story, moment};
use crate::model::fleet::Liveness;
use crate::model::humane::{duration_ms, plural};
use crate::model::weight::Weight;
use crate::recorder::TimedRecord;
use crate::table::journal::{Event, What};

impl Story<'_> {
    /// The last bad event, unless it is much older than the last that may be a fault: what follows a fault is none of its own.
    pub(super) fn last_fault(&self) -> Option<usize> {
        let last = |is_fault: fn(Weight) -> bool| (0..self.events.len()).rfind(|at| is_fault(self.weight(*at)));
        let any = last(|weight| matches!(weight, Weight::Bad | Weight::Notice))?;
        let bad = last(|weight| weight == Weight::Bad);
        bad.filter(|bad| self.events[*bad].0.at_unix_ms + LATELY_MS >= self.events[any].0.at_unix_ms).or(Some(any))
    }

    /// As a fault.
    fn weight(&self, at: usize) -> Weight {
        let (event, _) = self.events[at];
        let is_applied = |(later, _): &(&Event, usize)| matches!(later.what, What::Reloaded { .. });
        match event.what {
            What::Started { .. } if self.death_before(at).is_some() => Weight::Bad,
            What::NodesSilent { .. } => Weight::Bad,
            // Its death is an event of its own.
            What::PeerLiveness { liveness: Liveness::Silent, .. } => Weight::Notice,
            What::ReloadRefused { .. } if self.events[at..].iter().any(is_applied) => Weight::Plain,
            _ => event.what.weight(),
        }
    }

    /// How the process before the one that starts at `at` ended, if it did not stop and was not upgraded.
    pub(super) fn death_before(&self, at: usize) -> Option<String> {
        let (event, owner) = self.events[at];
        let What::Started { .. } = event.what else { return None };
        let is_start = |what: &What| matches!(what, What::Started { .. });
        let upgraded = self.events[at + 1..].iter().map(|(event, _)| &event.what);
        let mut upgraded = upgraded.take_while(|what| !is_start(what) && !matches!(what, What::UpgradeBegun { .. }));
        let mut before =
            self.events[..at].iter().rev().map(|(event, _)| &event.what).take_while(|what| !is_start(what));
        if upgraded.any(|what| {
            matches!(what, What::UpgradeFinished { .. } | What::UpgradeImported { .. } | What::UpgradeFailed { .. })
        }) || before.any(|what| matches!(what, What::Stopping { .. }))
        {
            return None;
        }
        let owners = &self.recording.owners;
        // This one may have recorded before it said that it starts.
        let is_of_another = |record: &&TimedRecord| {
            record.at_unix_ms < event.at_unix_ms && !owners[record.owner].is_same_process(&owners[owner])
        };
        let last = self.recording.records.iter().rfind(is_of_another)?;
        let older = duration_ms(event.at_unix_ms - last.at_unix_ms);
        let flows = self.sample_before(last.at_unix_ms).map(|sample| plural(sample.flows().into(), "flow"));
        let had = flows.map_or_else(String::new, |flows| format!(", when it had {flows}"));
        Some(format!(
            "The process before it ended without a stop, as by a crash or a kill: its last record is {older} older{had}."
        ))
    }

    /// The order or the reload shortly before an event.
    pub(super) fn order_before(&self, at: usize) -> Option<String> {
        self.told_before(at, BEFORE_MS, |before| {
            matches!(self.events[before].0.what, What::OrderReceived { .. } | What::Reloaded { .. })
        })
    }

    /// The last bad event in the time before an event, of another kind.
    pub(super) fn fault_before(&self, at: usize, within_ms: u64) -> Option<String> {
        self.told_before(at, within_ms, |before| {
            self.weight(before) == Weight::Bad && !matches!(self.events[before].0.what, What::NodesSilent { .. })
        })
    }

    /// The order `word`, for a backend or for any, which came a moment before the event that it caused.
    pub(super) fn order_of(&self, at: usize, word: &str, backend: Option<&str>) -> Option<String> {
        self.told_before(at, AT_ONCE_MS, |before| match &self.events[before].0.what {
            What::OrderReceived { order, .. } => {
                let mut words = order.split_whitespace();
                let is_it = |it: &str, backend: &str| it == backend || it.ends_with(&format!("/{backend}"));
                words.next() == Some(word) && backend.is_none_or(|backend| words.any(|it| is_it(it, backend)))
            }
            _ => false,
        })
    }

    /// The last event within a time before another one that `is_it`, in words.
    fn told_before(&self, at: usize, within_ms: u64, is_it: impl Fn(usize) -> bool) -> Option<String> {
        let (event, _) = self.events[at];
        let is_near = |before: &usize| self.events[*before].0.at_unix_ms + within_ms >= event.at_unix_ms;
        let (found, _) = self.events[(0..at).rev().take_while(is_near).find(|before| is_it(*before))?];
        let earlier = duration_ms(event.at_unix_ms - found.at_unix_ms);
        Some(format!("{earlier} earlier, at {}, {}.", moment(found.at_unix_ms), found.what.sentence()))
    }
}

/// What an order does at once follows within this time.
const AT_ONCE_MS: u64 = 250;
