//! What the loss of a backend did to clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::{AFTER_MS, Figures, OtherBackend, Story, is_by_backend, last, moment, of_rebalance};
use crate::model::end_reason::{EndReason, EndedBy};
use crate::model::health::{Cause, HealthState};
use crate::model::humane::{duration_ms, plural};
use crate::recorder::{FrontendSettings, RecordedSample, ends_counted};
use crate::table::journal::What;

/// What a backend ended itself.
struct EndsByBackend {
    /// A sentence, or nothing.
    said: String,
    by_reason: BTreeMap<&'static str, u64>,
    /// ms since 1970.
    first_ms: Option<u64>,
}

/// A plan moves its flows within this time (docs/operate.md).
const SPREAD_MS: u64 = 60_000;

impl Story<'_> {
    /// What a loss did to the backend's flows: a sentence, and when the backend itself ended the first of them, if it did.
    pub(super) fn effect(
        &self,
        frontend: &str,
        backend: &str,
        times: RangeInclusive<u64>,
        owner: usize,
        figures: &mut Figures,
    ) -> (String, Option<u64>) {
        for (event, _) in self.events.iter().filter(|(event, _)| times.contains(&event.at_unix_ms)) {
            if let What::FlowsOrdered { frontend: f, backend: b, flows, .. } = &event.what
                && f == frontend
                && b == backend
            {
                figures.flows_ordered += *flows as u64;
            }
        }
        // Those that it has ordered end a little later, and their backend may be back by then.
        let later = self.recording.owners[owner].reset_within_ms + AFTER_MS;
        let again = self.events.iter().map(|(event, _)| *event).find(|event| {
            event.at_unix_ms > *times.end()
                && matches!(&event.what, What::BackendChanged { frontend: f, backend: b, to, .. } if (&**f, &**b) == (frontend, backend) && *to != HealthState::Ready)
        });
        let until = times.end().saturating_add(later).min(again.map_or(u64::MAX, |event| event.at_unix_ms - 1));
        self.count_ends((Some(frontend), Some(backend)), *times.start()..=until, is_by_backend, figures);
        let settings = self.settings(owner, frontend);
        let not_taken = self.dropped_in(&(*times.start()..=until));
        let (mut gone, mut first_ms) = (self.lost(figures), None);
        if let Some(settings) = settings {
            // What it ends once it is back is of another loss.
            let its = self.ended_by_backend(frontend, backend, settings.reset_after_silence_ms, times.clone());
            gone += &its.said;
            figures.flows_ended_by_backend = its.by_reason;
            first_ms = its.first_ms;
        }
        if not_taken > 0 {
            gone +=
                &format!(" The record lacks {} of that time, which the disk did not take.", plural(not_taken, "event"));
        }
        let sentence = match (figures.flows_ended.is_empty(), figures.flows_ordered) {
            (true, 0) if figures.ends_not_recorded > 0 || not_taken > 0 => {
                format!("The record has no end of its flows.{gone}")
            }
            (true, 0) => format!("Baton reset none of its flows.{gone}"),
            (true, flows) => {
                format!("Baton ordered {} to end; the record has none of these ends.{gone}", plural(flows, "flow"))
            }
            (false, _) => format!(
                "Of its flows {} ({}), the last of them {} after this{}.{gone}",
                ended(figures),
                by_reason(figures),
                duration_ms(figures.ended_within_ms),
                self.pace(owner, settings, figures)
            ),
        };
        (sentence, first_ms)
    }

    /// What is left of a backend that drains since `since_ms`, and until when: a sentence. `None`: nothing is, or the time is over.
    pub(super) fn drain_left(&self, of: (&str, &str), since_ms: u64, cause: &Cause) -> Option<String> {
        let last = self.recording.records.last()?;
        let sample = self.sample_before(last.at_unix_ms)?;
        let (left, _) = share(sample, of);
        if left == 0 {
            return None;
        }
        let left = plural(left, "flow");
        let mut others = sample.backends.iter().filter(|it| it.frontend == of.0 && it.name != of.1);
        let another_is_ready = others.any(|it| it.state == HealthState::Ready.label());
        match cause {
            Cause::NotReady { .. } if !another_is_ready => {
                Some(format!("It still has {left}, which no time limit ends while no other backend is ready."))
            }
            _ if last::is_ordered(cause) || matches!(cause, Cause::NotReady { .. }) => {
                // A reload changes the time of drains that run.
                let drain_timeout_ms = self.settings(last.owner, of.0)?.drain_timeout_ms;
                let until_ms = since_ms + drain_timeout_ms;
                (last.at_unix_ms < until_ms).then(|| {
                    format!(
                        "It still has {left}; drain_timeout = {} decides that those left at {} are reset.",
                        duration_ms(drain_timeout_ms),
                        moment(until_ms)
                    )
                })
            }
            _ => Some(format!(
                "It still has {left}, which no time limit ends: a backend that drains for this reason serves them."
            )),
        }
    }

    /// The settings that decided when the flows of a backend were reset.
    fn pace(&self, owner: usize, settings: Option<&FrontendSettings>, figures: &Figures) -> String {
        let has = |reason: EndReason| figures.flows_ended.contains_key(reason.label());
        let mut pace = String::new();
        if let Some(settings) = settings {
            if has(EndReason::DrainDeadline) {
                let of_drain = |it: &What| matches!(it, What::FlowEnded { frontend, reason: EndReason::DrainDeadline, .. } if *frontend == settings.name);
                let last = self.events.iter().rfind(|(event, _)| of_drain(&event.what));
                let then = last.and_then(|(_, owner)| self.settings(*owner, &settings.name)).unwrap_or(settings);
                pace += &format!("; drain_timeout = {} decided when", duration_ms(then.drain_timeout_ms));
            }
            if has(EndReason::BackendEjected) && settings.reset_fall != settings.fall {
                pace += &format!("; reset_fall = {} decided when", settings.reset_fall);
            }
        }
        pace + &self.spread(owner)
    }

    /// The setting that spreads resets: a part of a sentence, or nothing.
    pub(super) fn spread(&self, owner: usize) -> String {
        match self.recording.owners[owner].reset_within_ms {
            0 => String::new(),
            ms => format!("; reset_within = {} spreads such resets", duration_ms(ms)),
        }
    }

    /// The flows that a backend ended itself, as one does whose process dies. A probe sees the death a moment later.
    fn ended_by_backend(
        &self,
        frontend: &str,
        backend: &str,
        before_ms: u64,
        times: RangeInclusive<u64>,
    ) -> EndsByBackend {
        let mut gone = Figures::default();
        let is_its = |reason: EndReason| reason.by() == EndedBy::Backend;
        let (of_it, at_ms) = ((Some(frontend), Some(backend)), *times.start());
        let times = at_ms.saturating_sub(before_ms)..=*times.end();
        self.count_ends(of_it, times.clone(), is_its, &mut gone);
        let first = self.ends(of_it, &times).filter(|(_, reason)| is_its(*reason)).map(|(at_ms, _)| at_ms).min();
        let said = match first {
            None => String::new(),
            Some(first_ms) => {
                let when = match first_ms < at_ms {
                    true => format!("the first {} before this", duration_ms(at_ms - first_ms)),
                    false => format!("the first {} after this", duration_ms(first_ms - at_ms)),
                };
                let flows = at_least(&gone, "flow");
                format!(" The backend itself ended {flows} ({}), {when}.", by_reason(&gone))
            }
        };
        EndsByBackend { said, by_reason: gone.flows_ended, first_ms: first }
    }

    /// The new connections that no backend took, while none was ready or until `over_ms`: a sentence.
    pub(super) fn refused_meanwhile(&self, at: usize, frontend: &str, without: OtherBackend, over_ms: u64) -> String {
        let at_ms = self.events[at].0.at_unix_ms;
        let (begun_ms, until_ms) = match without {
            OtherBackend::Serves => (at_ms, over_ms),
            OtherBackend::Away { from_unix_ms, for_ms, .. } => (at_ms.min(from_unix_ms), from_unix_ms + for_ms),
            OtherBackend::Never => (at_ms, u64::MAX),
        };
        let is_full = without == OtherBackend::Serves;
        let is_refusal = |reason| match reason {
            EndReason::BackendsFull => true,
            EndReason::NoBackend | EndReason::ConnectFailed | EndReason::ConnectTimedOut => !is_full,
            _ => false,
        };
        let mut refused = Figures::default();
        self.count_ends((Some(frontend), None), begun_ms..=until_ms, is_refusal, &mut refused);
        let connections = at_least(&refused, "new connection");
        match (refused.flows_ended.is_empty(), is_full) {
            (true, _) => String::new(),
            (false, true) => format!(
                " That is so for clients that found a place: the other backends had max_connections, and Baton reset {connections} ({}).",
                by_reason(&refused)
            ),
            (false, false) => format!(" Meanwhile Baton reset {connections} ({}).", by_reason(&refused)),
        }
    }

    /// The ends of flows that may be an event's effect, or that it tells of: a sentence.
    pub(super) fn aftermath(&self, at: usize, figures: &mut Figures) -> Option<String> {
        let event = self.events[at].0;
        let at_ms = event.at_unix_ms;
        let (times, of) = match &event.what {
            What::FlowsOrdered { frontend, backend, .. } => {
                (at_ms..=at_ms + AFTER_MS, (Some(frontend.as_str()), Some(backend.as_str())))
            }
            What::RebalancePlanned { frontend, .. } => {
                let next = self.events[at + 1..].iter().find(|(next, _)| of_rebalance(next) == Some(frontend));
                let spread_until_ms = next.map_or(u64::MAX, |(next, _)| next.at_unix_ms.saturating_sub(1));
                (at_ms..=spread_until_ms.min(at_ms + SPREAD_MS), (Some(frontend.as_str()), None))
            }
            What::Rebalanced { frontend, .. } => {
                (self.planned_ms(at, frontend)?..=at_ms, (Some(frontend.as_str()), None))
            }
            it if ends_no_flow(it) => return None,
            _ => (at_ms..=at_ms + AFTER_MS, (None, None)),
        };
        let is_effect = |reason| match &event.what {
            What::FlowsOrdered { reason: ordered, .. } => reason == *ordered,
            What::RebalancePlanned { .. } | What::Rebalanced { .. } => reason == EndReason::Rebalanced,
            // What has moved goes on.
            _ => !matches!(reason, EndReason::ClientClosed | EndReason::BackendClosed | EndReason::Moved),
        };
        // Nothing is recorded of what comes after.
        let ends_ms = self.recording.records.last().map_or(at_ms, |record| record.at_unix_ms).max(at_ms);
        let (so_far, end_ms) = if ends_ms < *times.end() { ("So far, in", ends_ms) } else { ("In", *times.end()) };
        let span = duration_ms(end_ms - times.start());
        self.count_ends(of, times.clone(), is_effect, figures);
        let lost = self.lost(figures);
        if figures.flows_ended.is_empty() {
            return (!lost.is_empty()).then(|| lost.trim_start().to_owned());
        }
        let why = match &event.what {
            What::FlowsOrdered { .. } | What::RebalancePlanned { .. } | What::Rebalanced { .. } => "for it",
            _ => "by a fault or an order",
        };
        let ended = format!("{} {why} ({})", ended(figures), by_reason(figures));
        Some(match *times.end() == at_ms {
            true => format!("From its plan on, {span} before, {ended}.{lost}"),
            false => format!("{so_far} the {span} after it, {ended}.{lost}"),
        })
    }

    /// When the rebalancing that ends with the event at `at` was planned first.
    fn planned_ms(&self, at: usize, frontend: &str) -> Option<u64> {
        let (owners, this) = (&self.recording.owners, self.events[at].1);
        let own = self.events[..at]
            .iter()
            .rev()
            .filter(|(event, of)| of_rebalance(event) == Some(frontend) && owners[*of].is_same_process(&owners[this]));
        let plans = own.take_while(|(event, _)| matches!(event.what, What::RebalancePlanned { .. }));
        plans.last().map(|(event, _)| event.at_unix_ms)
    }

    /// Adds the ends within `times`, for a reason of this kind, of the flows of a frontend and a backend; `None`: of any.
    pub(super) fn count_ends(
        &self,
        (frontend, backend): (Option<&str>, Option<&str>),
        times: RangeInclusive<u64>,
        is_reason: impl Fn(EndReason) -> bool,
        figures: &mut Figures,
    ) {
        figures.ends_not_recorded += self.not_recorded(&times, &is_reason);
        for (at_ms, reason) in self.ends((frontend, backend), &times).filter(|(_, reason)| is_reason(*reason)) {
            *figures.flows_ended.entry(reason.label()).or_default() += 1;
            figures.ended_within_ms = figures.ended_within_ms.max(at_ms - times.start());
        }
    }

    /// When the flows of a frontend and a backend ended within `times`, and for which reasons; `None`: those of any.
    fn ends(
        &self,
        (frontend, backend): (Option<&str>, Option<&str>),
        times: &RangeInclusive<u64>,
    ) -> impl Iterator<Item = (u64, EndReason)> {
        let within = self.events.iter().map(|(event, _)| event).filter(|event| times.contains(&event.at_unix_ms));
        within.filter_map(move |event| match &event.what {
            What::FlowEnded { frontend: f, backend: b, backend_address, reason, .. }
                if frontend.is_none_or(|it| it == f)
                    && backend.is_none_or(|it| is_of(it, b.as_deref(), *backend_address)) =>
            {
                Some((event.at_unix_ms, *reason))
            }
            _ => None,
        })
    }

    /// The number of ends within `times` that were counted before the first one in the record.
    pub(super) fn not_recorded(&self, times: &RangeInclusive<u64>, is_reason: impl Fn(EndReason) -> bool) -> u64 {
        let samples = self.recording.samples().map(|(_, sample)| sample);
        let counted = ends_counted(samples, &(*times.start()..=self.recording.ends_lost_until_ms().min(*times.end())));
        let of_kind = EndReason::ALL.iter().filter(|reason| is_reason(**reason));
        of_kind.filter_map(|reason| counted.get(reason.label())).sum()
    }

    /// The number of events that the disk did not take while it failed, for a part of `times`.
    fn dropped_in(&self, times: &RangeInclusive<u64>) -> u64 {
        let dropped = self.events.iter().enumerate().filter_map(|(at, (event, _))| match event.what {
            What::RecordsDropped { records } => Some((at, event.at_unix_ms, records)),
            _ => None,
        });
        let is_of_these = |(at, until_ms, _): &(usize, u64, u64)| {
            let event = at.checked_sub(1).map_or(0, |before| self.events[before].0.at_unix_ms);
            // It takes one each second that it can.
            let sample = self.samples_before(until_ms - 1).next().map_or(0, |(_, sample)| sample.at_unix_ms);
            event.max(sample) <= *times.end() && until_ms >= times.start()
        };
        dropped.filter(is_of_these).map(|(.., records)| records).sum()
    }

    /// What the record lacks: a sentence, or nothing.
    pub(super) fn lost(&self, figures: &Figures) -> String {
        let before =
            self.recording.ends_from_ms.map_or_else(String::new, |at_ms| format!(" of before {}", moment(at_ms)));
        match figures.ends_not_recorded {
            0 => String::new(),
            ends => format!(
                " The record has no ends{before}: {} of such reasons, of this backend or others.",
                plural(ends, "flow")
            ),
        }
    }
}

/// Whether a flow with this backend was one of the backend `named`: the ends of flows name a former address apart.
fn is_of(named: &str, backend: Option<&str>, address: Option<SocketAddr>) -> bool {
    let is_it = |(name, former): (&str, &str)| {
        backend == Some(name) && address.is_some_and(|address| former == address.to_string())
    };
    backend == Some(named) || former(named).is_some_and(is_it)
}

/// Name and address of a backend at a former address, which events name `cp3 (10.0.0.13:6443)`.
pub(super) fn former(named: &str) -> Option<(&str, &str)> {
    named.strip_suffix(')')?.split_once(" (")
}

/// The flows of a backend, and of its frontend. One whose address has just changed had its name alone before.
pub(super) fn share(sample: &RecordedSample, (frontend, backend): (&str, &str)) -> (u64, u64) {
    let of_frontend = sample.backends.iter().filter(|it| it.frontend == frontend);
    let named = |name: &str| of_frontend.clone().find(|it| it.name == name).map(|it| u64::from(it.flows));
    let its = named(backend).or_else(|| named(former(backend)?.0));
    let all = sample.frontends.iter().find(|it| it.name == frontend).map(|it| u64::from(it.flows));
    (its.unwrap_or(0), all.unwrap_or(0))
}

/// Whether flows do not end because of it: those that end at the same time have another cause.
fn ends_no_flow(what: &What) -> bool {
    matches!(
        what,
        What::BackendAdded { .. }
            | What::BackendsDiscovered { .. }
            | What::DiscoveryFailed { .. }
            | What::DiscoveryRecovered { .. }
            | What::DiscoveryUnwatched { .. }
            | What::DiscoveryWatched { .. }
            | What::ReloadRefused { .. }
            | What::VipAlone { .. }
            | What::VipHeld { .. }
            | What::VipGained { silent: None, .. }
            | What::OffloadOpened { .. }
            | What::OffloadShut { unwatched: false, .. }
            | What::OffloadResumed {}
            | What::PeerLinked { .. }
            | What::PeerSynced { .. }
            | What::NamesFailed { .. }
            | What::NamesRecovered { .. }
            | What::NodesSilent { .. }
            | What::NodesBack { .. }
            | What::RecorderFailed { .. }
            | What::RecordsDropped { .. }
    ) || matches!(what, What::ProgramReattached { interfaces, .. } if interfaces.is_empty())
}

/// `at least 30 flows`.
fn at_least(figures: &Figures, what: &str) -> String {
    let ends = plural(figures.flows_ended.values().sum(), what);
    if figures.ends_not_recorded > 0 { format!("at least {ends}") } else { ends }
}

pub(super) fn ended(figures: &Figures) -> String {
    format!("{} ended", at_least(figures, "flow"))
}

/// `backend_ejected 30, client_reset 2`.
pub(super) fn by_reason(figures: &Figures) -> String {
    figures.flows_ended.iter().map(|(reason, flows)| format!("{reason} {flows}")).collect::<Vec<_>>().join(", ")
}
