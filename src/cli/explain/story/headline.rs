//! Which fault is told first: the worst of the last minute in which one began, or a worse one that goes on.

use std::ops::Range;

use super::outage::leaves_none;
use super::vips::{cut_off_over, had_no_vip};
use super::{LATELY_MS, Story, last};
use crate::model::end_reason::EndReason;
use crate::model::health::HealthState;
use crate::model::weight::Weight;
use crate::table::journal::{EventSeverity, Trouble, What};

/// What begins within this time is one bad minute, of which the worst is told.
const MINUTE_MS: u64 = 60_000;

/// What a fault did to the clients of this host, as far as the record tells; the worst comes last. The severity of an event, which knows
/// nothing of the others, cannot tell a loss that cost flows from one that no client felt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    /// It may be a fault, or become one.
    Trifle,
    /// Something was lost or refused, and no client felt it.
    Unfelt,
    /// Flows or nodes were lost, and the others went on.
    Lost,
    /// Clients waited, were refused, or may have come to a host that did not serve them.
    Suffered,
}

/// Of equal ones the newest.
pub(super) fn headline(story: &Story<'_>) -> Option<usize> {
    let faults: Vec<_> = (0..story.events.len()).filter_map(|at| Some((at, harm_at_least(story, at)?))).collect();
    let newest_ms = faults.iter().map(|(at, _)| begun_ms(story, *at)).max()?;
    let worth = || faults.iter().filter(|(_, least)| *least > Harm::Trifle).map(|(at, _)| *at);
    // What follows a fault is none of its own.
    let minute_ms = worth().map(|at| begun_ms(story, at)).max().filter(|ms| ms + LATELY_MS >= newest_ms);
    let (of_told, told) = match minute_ms {
        Some(ms) => {
            let of_minute = worth().filter(|at| begun_ms(story, *at) + MINUTE_MS >= ms);
            of_minute
                .filter_map(|at| Some((harm(story, at, ms)?, begun_ms(story, at), at)))
                .max()
                .map(|(harm, _, at)| (harm, at))?
        }
        None => (Harm::Trifle, faults.last()?.0),
    };
    let worse =
        worth().filter(|at| goes_on(story, *at, newest_ms)).filter_map(|at| Some((harm(story, at, newest_ms)?, at)));
    Some(worse.filter(|(it, _)| *it > of_told).max().map_or(told, |(_, at)| at))
}

/// When it began; ms since 1970.
fn begun_ms(story: &Story<'_>, at: usize) -> u64 {
    let event = story.events[at].0;
    match &event.what {
        What::NodesSilent { for_ms, .. } | What::ProcessPaused { for_ms, .. } => {
            event.at_unix_ms.saturating_sub(*for_ms)
        }
        _ => event.at_unix_ms,
    }
}

/// `None`: it is no fault. `minute_ms`: the end of the minute of which the worst is told.
fn harm(story: &Story<'_>, at: usize, minute_ms: u64) -> Option<Harm> {
    let least = harm_at_least(story, at)?;
    Some(match &story.events[at].0.what {
        What::BackendChanged { .. } if leaves_none(story, at) => Harm::Suffered,
        What::BackendChanged { .. } if has_cost_flows(story, at) => Harm::Lost,
        // Its clients were reset, and refused until the next process began: from its death on, however late that was.
        What::Started { .. } | What::ProcessDied { .. } if least == Harm::Lost => {
            let died_ms = story.died_with_flows_ms(story.start_of(at));
            if died_ms.is_some_and(|ms| ms + MINUTE_MS >= minute_ms) { Harm::Suffered } else { least }
        }
        _ => least,
    })
}

/// As [`harm`], without a look at what the loss of a backend cost, for which all events are read.
fn harm_at_least(story: &Story<'_>, at: usize) -> Option<Harm> {
    let what = &story.events[at].0.what;
    if what.is_end() {
        return None;
    }
    let is_bad = match story.weight(at) {
        Weight::Plain | Weight::Good => return None,
        weight => weight == Weight::Bad,
    };
    Some(match what {
        What::RefusalsBegun { reason: EndReason::NoBackend, .. } | What::VipGained { silent: Some(_), .. } => {
            Harm::Suffered
        }
        _ if !is_bad => Harm::Trifle,
        What::BackendChanged { .. } | What::PeerLiveness { .. } => Harm::Unfelt,
        What::FlowsOrdered { flows: 0, .. } => Harm::Trifle,
        What::FlowsOrdered { .. } | What::NodesSilent { .. } | What::VipHostCutOff { .. } => Harm::Lost,
        What::FailedOver { inherited: 0, reset: 0, .. } => Harm::Unfelt,
        What::FailedOver { reset: 0, .. } => Harm::Lost,
        // Its flows were reset once, and its clients connected again; before that they waited for a worker that was stuck.
        What::Started { .. } | What::ProcessDied { .. } => {
            let start = story.start_of(at);
            match (story.stuck_before(start), had_no_vip(story, start)) {
                (Some(_), _) => Harm::Suffered,
                (None, Some(_)) => Harm::Unfelt,
                (None, None) => Harm::Lost,
            }
        }
        what => match what.severity() {
            Some(EventSeverity::ClientsSuffer) => Harm::Suffered,
            _ => Harm::Unfelt,
        },
    })
}

/// Whether it still is so when the record ends. `newest_ms`: of the newest fault; what is much older is away for good, unless nobody is served.
fn goes_on(story: &Story<'_>, at: usize, newest_ms: u64) -> bool {
    let event = story.events[at].0;
    let is_lately = event.at_unix_ms + LATELY_MS >= newest_ms;
    match &event.what {
        What::VipHostCutOff { .. } | What::VipGivenUp { cut_off: true, .. } => {
            at >= last::last_start(story).unwrap_or(0) && cut_off_over(story, at).is_none()
        }
        _ if !seen_still(story).contains(&at) => false,
        What::NodesSilent { .. } => is_lately && !last::silent_still(story, at).is_empty(),
        What::RefusalsBegun { frontend, reason } => refuses_since(story, at, frontend, *reason),
        What::BackendChanged { frontend, .. } => {
            last::is_lost_still(story, at) && (is_lately || has_no_backend(story, frontend))
        }
        what => {
            let mut later = story.events[at + 1..].iter().map(|(event, _)| &event.what);
            is_lately && Trouble::begun_by(what).is_some_and(|mut trouble| !later.any(|what| trouble.is_over_by(what)))
        }
    }
}

/// The events of which this instance would know the end: the next process tells anew of what goes on, and a host without the VIP does not see
/// its clients.
pub(super) fn seen_still(story: &Story<'_>) -> Range<usize> {
    let end = if story.lacks_vip(story.events.len()).is_none() { story.events.len() } else { 0 };
    last::last_start(story).unwrap_or(0)..end
}

/// The newest loss of a backend that still is away, which no client felt, as another host had the VIP.
pub(super) fn unfelt_still(story: &Story<'_>) -> Option<usize> {
    let is_felt_by_nobody =
        |at: usize, frontend: &str| story.lacks_vip(at) == Some(false) && story.serves_nobody(at, frontend).is_some();
    if story.lacks_vip(story.events.len()) != Some(false) {
        return None;
    }
    (last::last_start(story).unwrap_or(0)..story.events.len()).rfind(|at| match &story.events[*at].0.what {
        What::BackendChanged { frontend, to, .. } if *to != HealthState::Ready => {
            last::is_lost_still(story, *at) && is_felt_by_nobody(*at, frontend)
        }
        _ => false,
    })
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

fn has_cost_flows(story: &Story<'_>, at: usize) -> bool {
    story.change(at).is_some_and(|(_, figures)| {
        let by_it = figures.flows_ordered > 0 || !figures.flows_ended.is_empty();
        by_it || !figures.flows_ended_by_backend.is_empty()
    })
}
