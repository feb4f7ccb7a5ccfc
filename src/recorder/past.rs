//! What was at a moment of the past, from the samples and events that were recorded around it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{FileOwner, Recorded, RecordedSample, Recording, ends_counted};
use crate::model::end_reason::EndReason;
use crate::model::fleet::InstanceName;
use crate::model::health::HealthState;
use crate::model::humane::count;
use crate::model::ids::FlowId;
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
    pub flows: u32,
    /// Averages over the ten seconds before.
    pub new_per_s: f64,
    pub ended_per_s: f64,
    /// Flows that ended in the ten seconds before, by their reason.
    pub ended: BTreeMap<&'static str, u64>,
    /// Whether the disk took no records for a part of these seconds: then there may have been more.
    pub lacks_records: bool,
    pub backends: Vec<ReplayBackend>,
}

impl ReplayMoment {
    /// What of its process was not recorded.
    pub(crate) fn unrecorded(&self) -> Option<&'static str> {
        let is_missing = self.process.is_some() && self.standing.is_none();
        is_missing.then_some("not recorded: the service state, and which nodes were silent")
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
    /// Averages over the ten seconds before.
    pub new_per_s: f64,
    pub failed_per_s: f64,
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
        let Some((owner, last)) = known.or_else(|| self.first_sample(until, at_ms)) else { return nothing };
        // Counters begin anew with each process.
        let before = self.samples[..until]
            .iter()
            .rev()
            .take_while(|(it, sample)| {
                it == owner && last.at_unix_ms.saturating_sub(sample.at_unix_ms) <= RATES_OVER_MS
            })
            .last()
            .map_or(last, |(_, sample)| sample);
        let seconds = last.at_unix_ms.saturating_sub(before.at_unix_ms).max(1) as f64 / 1e3;
        let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let (process, standing) = (Some(self.owners[*owner].clone()), last.standing.clone());
        let mut moment = ReplayMoment { process, standing, ..nothing };
        for frontend in &last.frontends {
            moment.flows += frontend.flows;
            if let Some(then) = before.frontends.iter().find(|it| it.name == frontend.name) {
                moment.new_per_s += per_s(frontend.accepted_total, then.accepted_total);
                moment.ended_per_s += per_s(frontend.ended_total, then.ended_total);
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
        moment
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::health::Cause;
    use crate::recorder::entry::FrontendSample;
    use crate::recorder::{BackendSample, TimedRecord};
    use crate::table::journal::testing::ended;

    fn sample(at_s: u64, state: &str, flows: u32, connected: u64) -> Recorded {
        let backend = |name: &str, state: &str, flows, connected_total| BackendSample {
            frontend: "api".to_owned(),
            name: name.to_owned(),
            state: state.to_owned(),
            flows,
            connected_total,
            failed_total: 0,
            last_probe_us: 900,
        };
        Recorded::Sample(RecordedSample {
            at_unix_ms: at_s * 1000,
            frontends: vec![FrontendSample {
                name: "api".to_owned(),
                flows: flows + 10,
                accepted_total: connected * 2,
                ended_total: 0,
            }],
            backends: vec![backend("cp1", "ready", 10, connected), backend("cp2", state, flows, connected)],
            ..RecordedSample::default()
        })
    }

    fn lost(at_s: u64) -> Recorded {
        let what = What::BackendChanged {
            frontend: "api".to_owned(),
            backend: "cp2".to_owned(),
            from: HealthState::Ready,
            to: HealthState::Ejected,
            cause: Cause::Refused,
        };
        Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what })
    }

    fn past(of: impl IntoIterator<Item = (usize, Recorded)>) -> Past {
        let process = |pid| FileOwner { pid, ..FileOwner::default() };
        let records =
            of.into_iter().map(|(owner, what)| TimedRecord { at_unix_ms: what.at_unix_ms().unwrap(), owner, what });
        Past::new(Recording {
            records: records.collect(),
            owners: vec![process(1), process(2)],
            ..Recording::default()
        })
    }

    #[test]
    fn a_moment_has_the_last_sample_the_rates_before_it_and_the_cause_of_each_state() {
        let past = past([
            (0, sample(100, "ready", 30, 1000)),
            (0, sample(105, "ready", 30, 1050)),
            (0, lost(106)),
            (0, sample(107, "ejected", 0, 1050)),
            (0, sample(108, "ejected", 0, 1050)),
        ]);
        let before = past.at(105_900);
        assert_eq!((before.flows, before.new_per_s), (40, 20.0));
        assert_eq!((&*before.backends[1].state, before.backends[1].share_percent), ("ready", 75));
        assert_eq!(before.backends[1].why, None, "its beginning was not recorded");
        let at_once = &past.at(106_000).backends[1];
        assert_eq!((&*at_once.state, at_once.flows), ("ejected", 30), "the sample is older than the event");
        let after = past.at(108_500);
        let cp2 = &after.backends[1];
        assert_eq!((after.flows, &*cp2.state, cp2.since_unix_ms), (10, "ejected", Some(106_000)));
        assert_eq!(cp2.why.as_deref(), Some(&*Cause::Refused.to_string()));
        assert_eq!(cp2.health_state(), Some(HealthState::Ejected));
        assert_eq!(past.events(0, 105_999).count(), 0);
        assert_eq!(past.events(106_000, 106_000).count(), 1);
    }

    #[test]
    fn a_time_in_which_no_process_recorded_has_no_figures() {
        let past = past([(0, sample(100, "ready", 30, 1000)), (0, sample(200, "ready", 30, 1000))]);
        assert_eq!(past.at(99_999).process, None);
        assert!(past.at(102_000).process.is_some());
        assert_eq!(past.at(102_001).process, None);
        assert_eq!(past.flows_over(95_000, 205_000, 11)[..2], [Some(40), None]);
        assert_eq!(past.flows_over(95_000, 205_000, 11)[9..], [None, Some(40)]);
    }

    /// Regression: of the second in which a process began `baton replay` said that none recorded, though it lists its start.
    #[test]
    fn the_second_in_which_a_process_began_has_its_first_sample() {
        let started = |at_unix_ms| {
            let what = What::Started { version: "1".to_owned() };
            (1, Recorded::Event(Event { number: 0, at_unix_ms, what }))
        };
        let past = past([(0, sample(100, "ready", 30, 9)), started(200_000), (1, sample(201, "ready", 30, 0))]);
        let begun = past.at(200_300);
        assert_eq!((begun.process.map(|it| it.pid), begun.flows, begun.new_per_s), (Some(2), 40, 0.0));
        assert_eq!(past.at(199_999).process, None, "it had not begun");
        let Recorded::Sample(of_second) = sample(201, "ready", 30, 0) else { unreachable!() };
        assert!(tells_of(&Recorded::Sample(of_second), 200_000, 200_300), "it is read, too");
    }

    /// Regression: an upgrade would have shown millions of new flows a second, or none for ten seconds.
    #[test]
    fn rates_never_span_two_processes() {
        let past = past([
            (0, sample(100, "ready", 30, 1_000_000)),
            (1, sample(101, "ready", 30, 0)),
            (1, sample(103, "ready", 30, 20)),
        ]);
        assert_eq!(past.at(101_000).new_per_s, 0.0);
        let after = past.at(103_000);
        assert_eq!((after.new_per_s, after.process.unwrap().pid), (20.0, 2));
    }

    #[test]
    fn flows_that_lived_then_and_have_ended_since_are_known() {
        // It lasted 5 ms.
        let end = |at_unix_ms| (0, Recorded::Event(Event { number: 1, at_unix_ms, what: ended(9) }));
        let past = past([end(100_000)]);
        assert_eq!(past.ended_since(99_998).count(), 1);
        assert_eq!(past.ended_since(99_990).count(), 0, "it had not begun");
        assert_eq!(past.ended_since(100_000).count(), 0, "it had ended");
        assert_eq!(past.at(100_000).ended.values().sum::<u64>(), 1);
        assert!(tells_of(&end(100_000).1, 99_998, 99_999) && !tells_of(&end(100_000).1, 99_000, 99_990));
    }

    /// Regression: at 2,000 ends a second the record of ends covers minutes, and the moments before were told without any.
    #[test]
    fn ends_that_the_record_no_longer_has_are_counted_from_the_samples() {
        let counted = |at_s, ends| {
            let Recorded::Sample(mut of_second) = sample(at_s, "ready", 30, 0) else { unreachable!() };
            of_second.increase.ended = vec![("client_closed".to_owned(), ends)];
            (0, Recorded::Sample(of_second))
        };
        let kept = (0, Recorded::Event(Event { number: 1, at_unix_ms: 120_000, what: ended(9) }));
        let mut past = past([counted(100, 50), counted(105, 70), counted(118, 3), kept, counted(121, 9)]);
        past.lost_until_ms = 90_000;
        assert!(past.at(105_000).ended.is_empty() && !past.lacks_ends(104_000), "all are in the record");
        past.lost_until_ms = 119_000;
        assert_eq!(past.at(105_500).ended, BTreeMap::from([("client_closed", 120)]));
        assert_eq!(past.ended(118_000, 122_000).values().sum::<u64>(), 4, "none twice");
        assert!(past.lacks_ends(104_000) && !past.lacks_ends(118_000));
    }

    /// Regression: of a second in which the disk was full, 29 of 500 ends were told as all, the rarest reasons first.
    #[test]
    fn ends_of_a_time_in_which_the_disk_was_full_are_a_lower_limit() {
        let dropped = |at_s: u64| {
            let what = What::RecordsDropped { records: 494 };
            (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what }))
        };
        let end = |at_s: u64| (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what: ended(9) }));
        let at = |at_s| (0, sample(at_s, "ready", 30, 0));
        let past = past([at(100), end(102), at(103), dropped(120), at(121), end(124), at(131), end(131)]);
        let words = |at_s: u64| past.at(at_s * 1000).ended_in_words();
        let reason = words(131).split_once(' ').unwrap().1.to_owned();
        assert_eq!(words(102), format!("1 {reason}"), "before the disk was full");
        assert_eq!(words(124), format!("at least 1 {reason}"));
        assert_eq!(words(132), format!("2 {reason}"), "ten seconds later");
        let many = BTreeMap::from([("backend_reset", 3), ("no_backend", 19_042)]);
        let moment = ReplayMoment { ended: many, ..ReplayMoment::default() };
        assert_eq!(moment.ended_in_words(), "19,042 no_backend, 3 backend_reset");
    }

    /// Regression: a flow that another instance had until its host died was listed among the flows of this one of an hour before.
    #[test]
    fn a_flow_that_came_from_another_instance_was_not_here_before_it_came() {
        let name = |name: &str| InstanceName(name.into());
        let came = |at_s: u64, from: &str| {
            let what = What::FailedOver { instance: name(from), inherited: 1, reset: 0 };
            (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what }))
        };
        let end = |flow: FlowId| {
            let mut what = ended(9);
            let What::FlowEnded { flow: its, duration_ms, .. } = &mut what else { unreachable!() };
            (*its, *duration_ms) = (flow, 100_000);
            (0, Recorded::Event(Event { number: 900, at_unix_ms: 200_000, what }))
        };
        let of = |from: &str| FlowId::of(name(from).tag(), 7);
        let mut past = past([came(130, "lb-b"), came(150, "lb-c"), end(of("lb-b")), end(of("lb-a")), end(FlowId(7))]);
        past.owners[0].instance = Some("lb-a".to_owned());
        assert_eq!(past.ended_since(120_000).count(), 2, "its own, and one of before there was a fleet");
        assert_eq!(past.ended_since(130_000).count(), 3);
    }

    /// Regression: at a standby, 16 of 0 flows of a moment had ended since: it had taken them from a peer after the time that was read.
    #[test]
    fn flows_that_came_from_another_instance_after_the_time_that_was_read_were_not_here_before() {
        let (own, peer) = (InstanceName("lb-b".into()), InstanceName("lb-a".into()));
        let event = |at_s: u64, what| Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what });
        let end = |from: &InstanceName| {
            let mut what = ended(9);
            let What::FlowEnded { flow, duration_ms, .. } = &mut what else { unreachable!() };
            (*flow, *duration_ms) = (FlowId::of(from.tag(), 7), 900_000);
            what
        };
        let all = [
            event(900, What::FailedOver { instance: peer.clone(), inherited: 1, reset: 0 }),
            event(950, What::OffloadResumed {}),
            event(1000, end(&own)),
            event(1000, end(&peer)),
        ];
        let read = all.into_iter().filter(|what| tells_of(what, 120_000, 180_000)).map(|what| (0, what));
        let mut past = past(read);
        past.owners[0].instance = Some("lb-b".to_owned());
        assert_eq!(past.ended_since(150_000).count(), 1, "its own");
        assert_eq!(past.ended_since(900_000).count(), 2);
        assert!(past.events(0, u64::MAX).all(|event| matches!(event.what, What::FailedOver { .. })), "no more is read");
    }
}
