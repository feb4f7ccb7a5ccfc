//! Which event is told first to somebody who asks for the last fault: one that goes on, or else the newest.

use std::ops::Range;

use super::beside::beside;
use super::{Explained, LATELY_MS, Story};
use crate::model::end_reason::EndReason;
use crate::model::health::{Cause, HealthState};
use crate::model::humane::{duration_ms, plural};
use crate::model::weight::Weight;
use crate::table::journal::{Event, What};

/// The last fault; before it one that still goes on and costs nodes, connections or flows. If there is none, a backend that is away now, though
/// no client of this host felt it. With what else went wrong about that time, or still is.
pub(super) fn last(story: &Story<'_>) -> Option<Explained> {
    let newest = newest_fault(story);
    let ongoing = newest.and_then(|newest| worst_ongoing(story, newest));
    let told = ongoing.or(newest).or_else(|| unfelt_still(story))?;
    let (sentences, mut figures) = story.of_event(told)?;
    figures.beside = beside(story, told);
    Some((sentences, figures))
}

/// The newest loss of a backend that still is away, which no client felt, as another host had the VIP.
fn unfelt_still(story: &Story<'_>) -> Option<usize> {
    let is_felt_by_nobody =
        |at: usize, frontend: &str| story.lacks_vip(at) == Some(false) && story.serves_nobody(at, frontend).is_some();
    if story.lacks_vip(story.events.len()) != Some(false) {
        return None;
    }
    (last_start(story).unwrap_or(0)..story.events.len()).rfind(|at| match &story.events[*at].0.what {
        What::BackendChanged { frontend, .. } => is_lost_still(story, *at) && is_felt_by_nobody(*at, frontend),
        _ => false,
    })
}

/// The last bad event, unless it is much older than the last that may be a fault: what follows a fault is none of its own.
fn newest_fault(story: &Story<'_>) -> Option<usize> {
    let last = |is_fault: fn(Weight) -> bool| (0..story.events.len()).rfind(|at| is_fault(story.weight(*at)));
    let any = last(|weight| matches!(weight, Weight::Bad | Weight::Notice))?;
    let bad = last(|weight| weight == Weight::Bad);
    bad.filter(|bad| story.events[*bad].0.at_unix_ms + LATELY_MS >= story.events[any].0.at_unix_ms).or(Some(any))
}

/// The newest of those that go on and cost something.
fn worst_ongoing(story: &Story<'_>, newest: usize) -> Option<usize> {
    let newest_ms = story.events[newest].0.at_unix_ms;
    seen_still(story).rfind(|at| {
        let event = story.events[*at].0;
        let is_lately = event.at_unix_ms + LATELY_MS >= newest_ms;
        story.weight(*at) == Weight::Bad
            && match &event.what {
                // One that is away for good does not hide what happens since.
                What::NodesSilent { .. } => {
                    is_lately && !silent_still(story, *at).is_empty() && !(*at < newest && has_cost(story, newest))
                }
                // The loss says more of it.
                What::RefusalsBegun { frontend, reason: EndReason::NoBackend } => {
                    let is_its = |lost: usize| {
                        matches!(&story.events[lost].0.what, What::BackendChanged { frontend: f, .. } if f == frontend)
                    };
                    refuses_since(story, *at, frontend, EndReason::NoBackend)
                        && !(0..*at).any(|lost| is_its(lost) && is_lost_still(story, lost))
                }
                What::RefusalsBegun { frontend, reason } => refuses_since(story, *at, frontend, *reason),
                What::BackendChanged { frontend, .. } => {
                    is_lost_still(story, *at)
                        && (has_no_backend(story, frontend) || is_lately && has_cost_flows(story, *at))
                }
                _ => false,
            }
    })
}

/// The events of which this instance would know the end: the next process tells anew of what goes on, and a host without the VIP does not see
/// its clients.
fn seen_still(story: &Story<'_>) -> Range<usize> {
    let end = if story.lacks_vip(story.events.len()).is_none() { story.events.len() } else { 0 };
    last_start(story).unwrap_or(0)..end
}

/// Where the events of the last process begin. `None`: that was not recorded.
pub(super) fn last_start(story: &Story<'_>) -> Option<usize> {
    story.events.iter().rposition(|(event, _)| matches!(event.what, What::Started { .. }))
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

/// Whether connections are refused for this reason since the event at `at`, until the record ends.
fn refuses_since(story: &Story<'_>, at: usize, frontend: &str, reason: EndReason) -> bool {
    !story.events[at + 1..].iter().any(|(event, _)| {
        matches!(&event.what, What::RefusalsOver { frontend: f, reason: r, .. } if f == frontend && *r == reason)
    })
}

fn has_no_backend(story: &Story<'_>, frontend: &str) -> bool {
    let begun = story.events.iter().rposition(|(event, _)| {
        matches!(&event.what, What::RefusalsBegun { frontend: f, reason: EndReason::NoBackend } if f == frontend)
    });
    begun.is_some_and(|begun| refuses_since(story, begun, frontend, EndReason::NoBackend))
}

/// Whether a backend that was lost by the event at `at`, by no order, has not changed since.
pub(super) fn is_lost_still(story: &Story<'_>, at: usize) -> bool {
    let What::BackendChanged { to, cause, .. } = &story.events[at].0.what else { return false };
    *to != HealthState::Ready && !is_ordered(cause) && over_after(story, at).is_none()
}

/// Whether clients felt it.
fn has_cost(story: &Story<'_>, at: usize) -> bool {
    match &story.events[at].0.what {
        What::BackendChanged { .. } => has_cost_flows(story, at),
        What::FlowsOrdered { flows, .. } => *flows > 0,
        What::FailedOver { inherited, reset, .. } => inherited + reset > 0,
        What::RefusalsBegun { .. } | What::VipGained { silent: Some(_), .. } | What::Started { .. } => true,
        _ => false,
    }
}

fn has_cost_flows(story: &Story<'_>, at: usize) -> bool {
    story.change(at).is_some_and(|(_, figures)| {
        let by_it = figures.flows_ordered > 0 || !figures.flows_ended.is_empty();
        by_it || !figures.flows_ended_by_backend.is_empty()
    })
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
