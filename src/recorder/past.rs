//! What was at a moment of the past, from the samples and events that were recorded around it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{FileOwner, Recorded, RecordedSample, Recording, ends_counted};
use crate::model::end_reason::EndReason;
use crate::model::fleet::InstanceName;
use crate::model::health::HealthState;
use crate::model::humane::{count, date_and_time};
use crate::model::ids::FlowId;
use crate::model::weight::Weight;
use crate::table::journal::{Event, What};
use crate::table::standing::InstanceStanding;

/// A time of which everything was read.
#[derive(Debug, Default)]
pub(crate) struct Past {
    owners: Vec<FileOwner>,
    /// With the index of their process, in the order of time.
    samples: Vec<(usize, RecordedSample)>,
    /// All but the ends of flows, in the order of time.
    events: Vec<(usize, Event)>,
    /// The ends of flows.
    ends: Vec<(usize, Event)>,
    /// See [`Recording::ends_lost_until_ms`].
    lost_until_ms: u64,
}

/// One instance at one moment, as far as it was recorded.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ReplayMoment {
    pub at_unix_ms: u64,
    /// The process that wrote the last sample; `None`: there is none in the seconds before, so that no process recorded.
    pub process: Option<FileOwner>,
    /// What it said of itself. `None`: its version did not record that, or it had just begun.
    pub standing: Option<InstanceStanding>,
    /// Around a moment without a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<ReplayGap>,
    pub flows: u32,
    /// Averages over the ten seconds before. `None`: there is one sample alone.
    pub new_per_s: Option<f64>,
    pub ended_per_s: Option<f64>,
    /// Flows that ended in the ten seconds before, by their reason.
    pub ended: BTreeMap<&'static str, u64>,
    /// Whether the disk took no records for a part of these seconds: then there may have been more.
    pub lacks_records: bool,
    pub backends: Vec<ReplayBackend>,
}

/// A time without a sample. `None`: its beginning or its end lies beyond what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReplayGap {
    pub from_unix_ms: Option<u64>,
    pub until_unix_ms: Option<u64>,
    /// The disk took no records. Otherwise no process recorded.
    pub disk_full: bool,
}

impl ReplayGap {
    /// `from 03:12:04Z to 03:15:20Z nothing is recorded: the disk took no records`.
    pub(crate) fn in_words(&self) -> String {
        let clock = |at_ms| date_and_time(at_ms).1;
        let times = match (self.from_unix_ms, self.until_unix_ms) {
            (Some(from_ms), Some(until_ms)) => format!("from {}Z to {}Z", clock(from_ms), clock(until_ms)),
            (Some(from_ms), None) => format!("from {}Z on", clock(from_ms)),
            (None, Some(until_ms)) => format!("until {}Z", clock(until_ms)),
            (None, None) => "at this time".to_owned(),
        };
        let why = match self.disk_full {
            true => "the disk took no records",
            false => "no process ran, or its disk took nothing",
        };
        format!("{times} nothing is recorded: {why}")
    }
}

impl ReplayMoment {
    /// What of its process was not recorded.
    pub(crate) fn unrecorded(&self) -> Option<&'static str> {
        let is_missing = self.process.is_some() && self.standing.is_none();
        is_missing.then_some("not recorded: the service state, and which nodes were silent")
    }

    /// What the instance said of itself is up to a second older than its events: without a backend that takes connections by now it would not
    /// have called itself ready.
    fn correct_standing(&mut self) {
        let Some(standing) = self.standing.as_mut().filter(|it| it.weight() == Weight::Good) else { return };
        let is_out = |it: &ReplayBackend| it.health_state() == Some(HealthState::Ejected);
        let mut names: Vec<_> = self.backends.iter().map(|it| &*it.frontend).collect();
        names.dedup();
        let all = names.len();
        names.retain(|name| self.backends.iter().filter(|it| it.frontend == **name).all(is_out));
        if names.is_empty() {
            return;
        }
        let of = if names.len() == all { String::new() } else { format!(" for {}", names.join(", ")) };
        standing.headline = format!("ready for the VIP, no backend{of}");
        standing.weight = Weight::Bad.label().to_owned();
    }

    /// `at least 29 client_closed, 3 backend_reset`, the most first; empty: none ended.
    pub(crate) fn ended_in_words(&self) -> String {
        let mut all: Vec<_> = self.ended.iter().collect();
        all.sort_by_key(|(_, flows)| std::cmp::Reverse(**flows));
        let words = all.iter().map(|(reason, flows)| format!("{} {reason}", count(**flows))).collect::<Vec<_>>();
        let least = if self.lacks_records && !words.is_empty() { "at least " } else { "" };
        format!("{least}{}", words.join(", "))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ReplayBackend {
    pub frontend: String,
    pub name: String,
    /// Its health state.
    pub state: String,
    /// Since when it had this state, and why. `None`: the change was not recorded.
    pub since_unix_ms: Option<u64>,
    pub why: Option<String>,
    pub flows: u32,
    /// Of its frontend's flows.
    pub share_percent: u32,
    /// Averages over the ten seconds before. `None`: there is one sample alone.
    pub new_per_s: Option<f64>,
    pub failed_per_s: Option<f64>,
    /// 0: no probe had ended.
    pub last_probe_us: u64,
}

/// Whether a listing of what was in `from_ms..=until_ms` needs it, besides all earlier events but the ends of flows. What came from other
/// instances it needs of later times, too.
pub(crate) fn tells_of(what: &Recorded, from_ms: u64, until_ms: u64) -> bool {
    match what {
        Recorded::Owner(_) => true,
        Recorded::Sample(sample) => {
            let until_ms = until_ms.saturating_add(FIRST_SAMPLE_MS);
            (from_ms.saturating_sub(RATES_OVER_MS)..=until_ms).contains(&sample.at_unix_ms)
        }
        Recorded::Event(event) => match &event.what {
            What::FlowEnded { duration_ms, .. } => {
                let begun_ms = event.at_unix_ms.saturating_sub(*duration_ms);
                begun_ms <= until_ms && event.at_unix_ms >= from_ms.saturating_sub(RATES_OVER_MS)
            }
            // They tell of flows that end later whether these were here before.
            What::FailedOver { .. } | What::FlowsClaimed { .. } => true,
            // It comes at the end of the time that it tells of.
            What::RecordsDropped { .. } => true,
            _ => event.at_unix_ms <= until_ms,
        },
    }
}

impl Past {
    pub(crate) fn new(recording: Recording) -> Self {
        let lost_until_ms = recording.ends_lost_until_ms();
        let mut past = Self { owners: recording.owners, lost_until_ms, ..Self::default() };
        for record in recording.records {
            match record.what {
                Recorded::Owner(_) => {}
                Recorded::Sample(sample) => past.samples.push((record.owner, sample)),
                Recorded::Event(event) if event.what.is_end() => past.ends.push((record.owner, event)),
                Recorded::Event(event) => past.events.push((record.owner, event)),
            }
        }
        past
    }

    /// The state at `at_ms`, milliseconds since 1970.
    pub(crate) fn at(&self, at_ms: u64) -> ReplayMoment {
        let ended = self.ended(at_ms.saturating_sub(RATES_OVER_MS) + 1, at_ms);
        let lacks_records = self.lacks_records(at_ms.saturating_sub(RATES_OVER_MS), at_ms);
        let nothing = ReplayMoment { at_unix_ms: at_ms, ended, lacks_records, ..ReplayMoment::default() };
        let until = self.samples.partition_point(|(_, sample)| sample.at_unix_ms <= at_ms);
        let known = self.samples[..until].last().filter(|(_, last)| at_ms - last.at_unix_ms <= SILENCE_MS);
        let Some((owner, last)) = known.or_else(|| self.first_sample(until, at_ms)) else {
            return ReplayMoment { gap: Some(self.gap(until, at_ms)), ..nothing };
        };
        // Counters begin anew with each process.
        let before = self.samples[..until]
            .iter()
            .rev()
            .take_while(|(it, sample)| {
                it == owner && last.at_unix_ms.saturating_sub(sample.at_unix_ms) <= RATES_OVER_MS
            })
            .last()
            .map_or(last, |(_, sample)| sample);
        let apart_ms = last.at_unix_ms.saturating_sub(before.at_unix_ms);
        let per_s =
            |now: u64, then: u64| (apart_ms > 0).then(|| now.saturating_sub(then) as f64 * 1e3 / apart_ms as f64);
        let sum = |of: Option<f64>, more: Option<f64>| Some(of.unwrap_or(0.0) + more?);
        let (process, standing) = (Some(self.owners[*owner].clone()), last.standing.clone());
        let mut moment = ReplayMoment { process, standing, ..nothing };
        for frontend in &last.frontends {
            moment.flows += frontend.flows;
            if let Some(then) = before.frontends.iter().find(|it| it.name == frontend.name) {
                moment.new_per_s = sum(moment.new_per_s, per_s(frontend.accepted_total, then.accepted_total));
                moment.ended_per_s = sum(moment.ended_per_s, per_s(frontend.ended_total, then.ended_total));
            }
        }
        for backend in &last.backends {
            let is_same = |frontend: &str, name: &str| frontend == backend.frontend && name == backend.name;
            let then = before.backends.iter().find(|it| is_same(&it.frontend, &it.name)).unwrap_or(backend);
            let of_frontend = last.backends.iter().filter(|it| it.frontend == backend.frontend);
            let all: u64 = of_frontend.map(|it| u64::from(it.flows)).sum();
            let change = self.events(0, at_ms).rev().find_map(|event| match &event.what {
                What::BackendChanged { frontend, backend, to, cause, .. } if is_same(frontend, backend) => {
                    Some((event.at_unix_ms, *to, cause.to_string()))
                }
                _ => None,
            });
            // An event is exact, and a sample up to a second old.
            let change = change.filter(|(at, to, _)| *at > last.at_unix_ms || to.label() == backend.state);
            let state = change.as_ref().map_or(&*backend.state, |(_, to, _)| to.label());
            moment.backends.push(ReplayBackend {
                frontend: backend.frontend.clone(),
                name: backend.name.clone(),
                state: state.to_owned(),
                since_unix_ms: change.as_ref().map(|(at, ..)| *at),
                why: change.map(|(.., why)| why),
                flows: backend.flows,
                share_percent: (u64::from(backend.flows) * 100 / all.max(1)) as u32,
                new_per_s: per_s(backend.connected_total, then.connected_total),
                failed_per_s: per_s(backend.failed_total, then.failed_total),
                last_probe_us: backend.last_probe_us,
            });
        }
        moment.correct_standing();
        moment
    }

    /// The time around `at_ms` up to the sample at `next`.
    fn gap(&self, next: usize, at_ms: u64) -> ReplayGap {
        let of = |place: Option<usize>| self.samples.get(place?).map(|(_, sample)| sample.at_unix_ms);
        ReplayGap {
            from_unix_ms: of(next.checked_sub(1)),
            until_unix_ms: of(Some(next)),
            disk_full: self.lacks_records(at_ms, at_ms),
        }
    }

    /// The sample at `next`, if it is the first of a process that had begun at `at_ms`: it comes a second later.
    fn first_sample(&self, next: usize, at_ms: u64) -> Option<&(usize, RecordedSample)> {
        let first = self.samples.get(next).filter(|(_, it)| it.at_unix_ms - at_ms <= FIRST_SAMPLE_MS)?;
        let is_its = |owner: usize| self.owners[owner].is_same_process(&self.owners[first.0]);
        let has_begun = self.events.iter().any(|(owner, event)| event.at_unix_ms <= at_ms && is_its(*owner));
        (has_begun && !self.samples[..next].iter().any(|(owner, _)| is_its(*owner))).then_some(first)
    }

    /// The events from `from_ms` up to `until_ms`, ends of flows left out.
    pub(crate) fn events(&self, from_ms: u64, until_ms: u64) -> impl DoubleEndedIterator<Item = &Event> {
        let first = self.events.partition_point(|(_, event)| event.at_unix_ms < from_ms);
        let end = self.events.partition_point(|(_, event)| event.at_unix_ms <= until_ms).max(first);
        self.events[first..end].iter().map(|(_, event)| event)
    }

    /// The samples from `from_ms` up to `until_ms`, each with the number of its process: counters begin anew with each.
    pub(crate) fn samples(&self, from_ms: u64, until_ms: u64) -> &[(usize, RecordedSample)] {
        let first = self.samples.partition_point(|(_, sample)| sample.at_unix_ms < from_ms);
        let end = self.samples.partition_point(|(_, sample)| sample.at_unix_ms <= until_ms).max(first);
        &self.samples[first..end]
    }

    /// The times and reasons of ends from `from_ms` up to `until_ms`.
    pub(crate) fn ends(&self, from_ms: u64, until_ms: u64) -> impl Iterator<Item = (u64, EndReason)> {
        let within = move |(_, event): &&(usize, Event)| (from_ms..=until_ms).contains(&event.at_unix_ms);
        self.ends.iter().filter(within).filter_map(|(_, event)| match &event.what {
            What::FlowEnded { reason, .. } => Some((event.at_unix_ms, *reason)),
            _ => None,
        })
    }

    /// The number of ends from `from_ms` up to `until_ms`, by reason: to the second where the record no longer has each of them.
    pub(crate) fn ended(&self, from_ms: u64, until_ms: u64) -> BTreeMap<&'static str, u64> {
        let mut ended = ends_counted(
            self.samples(from_ms, until_ms).iter().map(|(_, sample)| sample),
            &(from_ms..=until_ms.min(self.lost_until_ms)),
        );
        for (_, reason) in self.ends(from_ms, until_ms) {
            *ended.entry(reason.label()).or_default() += 1;
        }
        ended
    }

    /// Whether the disk took no records for a part of the time from `from_ms` up to `until_ms`. Samples are missing then, too.
    fn lacks_records(&self, from_ms: u64, until_ms: u64) -> bool {
        let dropped = self.events(from_ms, u64::MAX).filter(|it| matches!(it.what, What::RecordsDropped { .. }));
        let mut begun_ms = dropped.map(|it| {
            let before = self.samples.partition_point(|(_, sample)| sample.at_unix_ms < it.at_unix_ms);
            before.checked_sub(1).map_or(0, |last| self.samples[last].1.at_unix_ms)
        });
        begun_ms.any(|begun_ms| begun_ms <= until_ms)
    }

    /// Whether flows that lived at `at_ms` may have ended since without an end in the record, which has only the youngest.
    pub(crate) fn lacks_ends(&self, at_ms: u64) -> bool {
        let later = self.samples(at_ms.saturating_add(1), u64::MAX).iter().map(|(_, sample)| sample);
        !ends_counted(later, &(at_ms..=self.lost_until_ms)).is_empty()
    }

    /// The ends of those flows that lived here at `at_ms` and have ended since. A flow that lives still is not among them.
    pub(crate) fn ended_since(&self, at_ms: u64) -> impl Iterator<Item = &Event> {
        let taken = self.taken();
        let lived = move |(owner, event): &&(usize, Event)| match &event.what {
            What::FlowEnded { flow, duration_ms, .. } => {
                event.at_unix_ms > at_ms
                    && event.at_unix_ms.saturating_sub(*duration_ms) <= at_ms
                    && (self.is_own(*flow, *owner) || came_ms(&taken, *flow, event.at_unix_ms) <= at_ms)
            }
            _ => false,
        };
        self.ends.iter().filter(lived).map(|(_, event)| event)
    }

    /// Whether a flow began at this instance.
    fn is_own(&self, flow: FlowId, owner: usize) -> bool {
        is_own(flow, &self.owners[owner])
    }

    /// When flows came from other instances, and the tags of these.
    fn taken(&self) -> Vec<(u64, u16)> {
        self.events.iter().filter_map(|(_, event)| taken_by(event)).collect()
    }

    /// The number of flows in each of `parts` equal parts of the time, at its end. `None`: no process recorded.
    pub(crate) fn flows_over(&self, from_ms: u64, until_ms: u64, parts: usize) -> Vec<Option<u32>> {
        let part_ms = until_ms.saturating_sub(from_ms) as f64 / parts.max(1) as f64;
        let silence = SILENCE_MS.max(part_ms as u64);
        (1..=parts)
            .map(|part| {
                let at_ms = from_ms + (part as f64 * part_ms) as u64;
                let end = self.samples.partition_point(|(_, sample)| sample.at_unix_ms <= at_ms);
                let (_, sample) = self.samples[..end].last()?;
                (at_ms - sample.at_unix_ms <= silence).then(|| sample.flows())
            })
            .collect()
    }
}

impl ReplayBackend {
    /// `None`: a state of another version.
    pub(crate) fn health_state(&self) -> Option<HealthState> {
        HealthState::ALL.into_iter().find(|state| state.label() == self.state)
    }
}

/// Whether a flow began at the instance with these files.
fn is_own(flow: FlowId, owner: &FileOwner) -> bool {
    let own = owner.instance.as_deref().map_or(0, |name| InstanceName(name.into()).tag());
    flow.tag() == own || flow.tag() == 0
}

/// When flows came from another instance by this event, and the tag of that one.
fn taken_by(event: &Event) -> Option<(u64, u16)> {
    match &event.what {
        What::FailedOver { instance, .. } | What::FlowsClaimed { instance, .. } => {
            Some((event.at_unix_ms, instance.tag()))
        }
        _ => None,
    }
}

/// When a flow, which ended at `ended_ms`, came to the instance of `owner` from another one. `None`: it began here, or nothing tells of it.
pub(crate) fn came_here(recording: &Recording, owner: usize, flow: FlowId, ended_ms: u64) -> Option<u64> {
    if is_own(flow, &recording.owners[owner]) {
        return None;
    }
    let events = recording.records.iter().filter_map(|record| match &record.what {
        Recorded::Event(event) => taken_by(event),
        _ => None,
    });
    Some(came_ms(&events.collect::<Vec<_>>(), flow, ended_ms)).filter(|at_ms| *at_ms > 0)
}

/// When a flow of another instance, which ended at `ended_ms`, came here, by what was taken from others; 0: nothing tells of it.
fn came_ms(taken: &[(u64, u16)], flow: FlowId, ended_ms: u64) -> u64 {
    let before = &taken[..taken.partition_point(|(at_ms, _)| *at_ms <= ended_ms)];
    // It may have been at a third instance between.
    let found = before.iter().rfind(|(_, tag)| *tag == flow.tag()).or(before.last());
    found.map_or(0, |(at_ms, _)| *at_ms)
}

/// Rates are averages over so much, like those of the status.
const RATES_OVER_MS: u64 = 10_000;
/// Without a sample for longer than this, no process recorded: there is one each second.
const SILENCE_MS: u64 = 2_000;
/// The first sample of a process comes at most so long after its first event.
const FIRST_SAMPLE_MS: u64 = 2_000;
