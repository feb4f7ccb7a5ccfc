//! What is told to somebody who asks for the last fault, and what still is so when the record ends.

use super::beside::beside;
use super::headline::{headline, seen_still, unfelt_still};
use super::outage::outage;
use super::{Explained, LATELY_MS, Story, stops};
use crate::model::health::{Cause, HealthState};
use crate::model::humane::{duration_ms, plural};
use crate::table::journal::{Event, What};

/// The last fault, or a worse one that goes on. If there is none, a backend that is away now, though no client of this host felt it. With what
/// else went wrong about that time, or still is.
pub(super) fn last(story: &Story<'_>) -> Option<Explained> {
    let told = headline(story).or_else(|| unfelt_still(story));
    let told = match (told, stops::last_stop(story)) {
        // What was long before the stop is over, or its next process tells of it anew. Without one, nobody is served.
        (Some(fault), Some(stop)) if is_long_before(story, fault, stop) || is_the_end(story, fault, stop) => stop,
        (told, stop) => told.or(stop)?,
    };
    let stop = stops::stop_of(story, told);
    let told = stop.unwrap_or(told);
    let its = stop.map(|stop| stops::stop(story, stop));
    let (sentences, mut figures) = its.or_else(|| outage(story, told)).or_else(|| story.of_event(told))?;
    figures.beside = beside(story, told);
    Some((sentences, figures))
}

/// Whether the record ends with the stop, and what goes wrong afterwards is no fault of another one.
fn is_the_end(story: &Story<'_>, fault: usize, stop: usize) -> bool {
    fault < stop && last_start(story).is_none_or(|start| start < stop)
}

fn is_long_before(story: &Story<'_>, fault: usize, stop: usize) -> bool {
    let [fault_ms, stop_ms] = [fault, stop].map(|at| story.events[at].0.at_unix_ms);
    fault_ms + LATELY_MS < stop_ms
}

/// Where the events of the last process begin, or of the first of those that followed each other by upgrades: the next one knows what its
/// predecessor has told, and does not tell it anew. `None`: that was not recorded.
pub(super) fn last_start(story: &Story<'_>) -> Option<usize> {
    let is_start = |at: &usize| matches!(story.events[*at].0.what, What::Started { .. });
    let starts = || (0..story.events.len()).rev().filter(is_start);
    starts().find(|at| !story.is_of_upgrade(*at)).or_else(|| starts().next_back())
}

/// When the last process began; ms since 1970, 0 if that was not recorded.
pub(in crate::cli::explain) fn last_start_ms(story: &Story<'_>) -> u64 {
    last_start(story).map_or(0, |at| story.events[at].0.at_unix_ms)
}

/// Those nodes of a silence that have not been heard since.
pub(super) fn silent_still<'r>(story: &Story<'r>, at: usize) -> Vec<&'r str> {
    let What::NodesSilent { nodes, .. } = &story.events[at].0.what else { return Vec::new() };
    let is_back = |node: &String| {
        story.events[at + 1..].iter().any(|(event, _)| match &event.what {
            // Not all of them are named.
            What::NodesBack { nodes, more, .. } => *more > 0 || nodes.contains(node),
            _ => false,
        })
    };
    nodes.iter().filter(|node| !is_back(node)).map(String::as_str).collect()
}

/// That nodes are silent when the record ends: a sentence.
pub(super) fn still_silent(story: &Story<'_>, at: usize) -> Option<String> {
    if !seen_still(story).contains(&at) {
        return None;
    }
    let who = silent_until_the_end(story, at)?;
    Some(format!("This is still going on at {}: {who}{}.", story.ends_at(), story.dropped_since(at)))
}

/// Which nodes of the silence at `at` are silent when the record ends, and for how long then: a part of a sentence.
fn silent_until_the_end(story: &Story<'_>, at: usize) -> Option<String> {
    let event = story.events[at].0;
    let What::NodesSilent { for_ms, .. } = &event.what else { return None };
    let end_ms = story.recording.records.last()?.at_unix_ms;
    let lasts = duration_ms(for_ms + end_ms.saturating_sub(event.at_unix_ms));
    match &silent_still(story, at)[..] {
        [] => None,
        [node] => Some(format!("{node} is silent for {lasts}")),
        [first, others @ ..] => {
            Some(format!("{first} and {} are silent, for {lasts}", plural(others.len() as u64, "other node")))
        }
    }
}

/// Whether a backend that was lost by the event at `at`, by no order, has not changed since.
pub(super) fn is_lost_still(story: &Story<'_>, at: usize) -> bool {
    let What::BackendChanged { to, cause, .. } = &story.events[at].0.what else { return false };
    *to != HealthState::Ready && !is_ordered(cause) && over_after(story, at).is_none()
}

/// What ended the state that a backend got by the event at `at`.
pub(super) fn over_after<'r>(story: &Story<'r>, at: usize) -> Option<&'r Event> {
    let What::BackendChanged { frontend, backend, to, .. } = &story.events[at].0.what else { return None };
    story.events[at + 1..].iter().map(|(event, _)| *event).find(|next| match &next.what {
        What::BackendChanged { frontend: f, backend: b, to: now, .. } => (f, b) == (frontend, backend) && now != to,
        What::BackendRemoved { frontend: f, backend: b } | What::BackendAdded { frontend: f, backend: b } => {
            (f, b) == (frontend, backend)
        }
        _ => false,
    })
}

/// Whether an operator or a reload decided it, and no probe.
pub(super) fn is_ordered(cause: &Cause) -> bool {
    matches!(cause, Cause::OrderedDrain | Cause::OrderedEject | Cause::Removed | Cause::Readdressed)
}
