//! What else went wrong about the time of the fault that is told, or still is wrong: a line each.

use std::collections::HashSet;

use super::last::{is_lost_still, last_start};
use super::{AFTER_MS, Story, is_by_backend, last, moment, peer_of, stops};
use crate::model::end_reason::EndReason;
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, plural};
use crate::model::weight::Weight;
use crate::table::journal::{Event, Trouble, What};

/// What is so near to the fault that is told belongs to the same bad minute.
const NEAR_MS: u64 = 60_000;
/// More lines are not read at night.
const LINES_MAX: usize = 6;

/// Whom or what an event is about. Of each only the newest is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Matter<'r> {
    Backend(&'r str, &'r str),
    Refusals(&'r str, &'r str),
    Peer(&'r str),
    Vip,
    /// That another host answers for the VIP.
    VipAnswer,
    Node(&'r str),
    Process,
    Other(String),
}

/// Whether it is still so when the record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Still,
    OverAfter {
        ms: u64,
    },
    /// It had no duration.
    Moment,
}

/// The other faults beside the event at `told`, the oldest first.
pub(super) fn beside(story: &Story<'_>, told: usize) -> Vec<String> {
    let event = story.events[told].0;
    let mut seen: HashSet<Matter<'_>> = matter(event).into_iter().chain(told_with(event)).collect();
    let since = last_start(story).unwrap_or(0);
    let mut found = Vec::new();
    for at in (0..story.events.len()).rev().filter(|at| *at != told && is_fault(story, *at)) {
        let other = story.events[at].0;
        if is_effect_of(other, event) || stops::stop_of(story, at) == Some(told) {
            continue;
        }
        let standing = standing(story, at);
        let is_near = other.at_unix_ms.abs_diff(event.at_unix_ms) <= NEAR_MS;
        let goes_on = standing == Standing::Still && at >= since;
        // The end of what a process before this one saw is not known.
        let standing = if standing == Standing::Still && !goes_on { Standing::Moment } else { standing };
        if (is_near || goes_on) && matter(other).is_some_and(|it| seen.insert(it)) {
            found.push((goes_on, at, standing));
        }
    }
    let left_out = found.len().saturating_sub(LINES_MAX);
    // What goes on is worth more than what is over.
    found.sort_by_key(|(goes_on, at, _)| (!goes_on, usize::MAX - at));
    found.truncate(LINES_MAX);
    found.sort_by_key(|(_, at, _)| *at);
    let mut lines: Vec<_> = found.into_iter().map(|(_, at, standing)| line(story, at, standing)).collect();
    if left_out > 0 {
        lines.push(format!("and {} (baton events)", plural(left_out as u64, "more fault")));
    }
    lines
}

fn line(story: &Story<'_>, at: usize, standing: Standing) -> String {
    let event = story.events[at].0;
    let (since, what, number) = (moment(event.at_unix_ms), event.what.sentence(), event.number);
    let standing = match standing {
        Standing::Still => "; still so".to_owned(),
        Standing::OverAfter { ms } => format!("; over after {}", duration_ms(ms)),
        Standing::Moment => String::new(),
    };
    let is_felt_by_nobody = match &event.what {
        What::BackendChanged { frontend, .. } => story.serves_nobody(at, frontend).is_some(),
        _ => false,
    };
    let felt = if is_felt_by_nobody { "; felt by no client of this host" } else { "" };
    format!("{since} {what}{standing}{felt} (baton explain event:{number})")
}

/// Whether it is one of its own, and not what follows from another.
fn is_fault(story: &Story<'_>, at: usize) -> bool {
    let event = story.events[at].0;
    match &event.what {
        What::FlowEnded { .. } | What::NodesBack { .. } | What::RefusalsOver { .. } => false,
        What::FlowsOrdered { reason, .. } if is_by_backend(*reason) => false,
        // Of a start it is no fault.
        What::VipGained { .. } => !story.shortly_before(at, AFTER_MS).any(|before| is_start(story.events[before].0)),
        What::FailedOver { .. } | What::VipGivenUp { .. } => true,
        What::BackendChanged { .. } if is_lost_still(story, at) => true,
        _ => matches!(story.weight(at), Weight::Bad | Weight::Notice),
    }
}

/// Whether the ends that it tells of are those of the order that is told.
fn is_effect_of(other: &Event, told: &Event) -> bool {
    matches!(
        (&other.what, &told.what),
        (What::FlowsOrdered { reason: EndReason::Killed, .. }, What::OrderReceived { .. })
    )
}

fn is_start(event: &Event) -> bool {
    matches!(event.what, What::Started { .. })
}

fn matter(event: &Event) -> Option<Matter<'_>> {
    Some(match &event.what {
        What::BackendChanged { frontend, backend, .. } | What::FlowsOrdered { frontend, backend, .. } => {
            Matter::Backend(frontend, backend)
        }
        What::RefusalsBegun { frontend, reason } => Matter::Refusals(frontend, reason.label()),
        What::VipGained { .. } | What::VipGivenUp { .. } | What::VipHostCutOff { .. } => Matter::Vip,
        What::VipAnswered { .. } => Matter::VipAnswer,
        What::NodesSilent { nodes, .. } => Matter::Node(nodes.first()?),
        What::Started { .. } | What::ProcessDied { .. } => Matter::Process,
        _ => match peer_of(event) {
            Some(peer) => Matter::Peer(peer),
            None => Matter::Other(event.what.sentence()),
        },
    })
}

/// What the explanation of this event tells, too.
fn told_with(event: &Event) -> Vec<Matter<'_>> {
    match &event.what {
        What::BackendChanged { frontend, .. } => vec![Matter::Refusals(frontend, EndReason::NoBackend.label())],
        What::PeerLiveness { .. } | What::FailedOver { .. } => vec![Matter::Vip, Matter::VipAnswer],
        What::VipGained { silent, .. } => {
            silent.iter().map(|peer| Matter::Peer(peer)).chain([Matter::VipAnswer]).collect()
        }
        _ => Vec::new(),
    }
}

fn standing(story: &Story<'_>, at: usize) -> Standing {
    let event = story.events[at].0;
    let mut is_end: Box<dyn FnMut(&What) -> bool> = match &event.what {
        What::BackendChanged { to: HealthState::Ready, .. } => return Standing::Moment,
        // A drain is over, too, with which no trouble begins.
        What::BackendChanged { .. } => {
            return last::over_after(story, at).map_or(Standing::Still, |over| over_after(event, over));
        }
        What::FailedOver { instance, .. } => ends(Trouble::PeerSilent(instance.0.to_string())),
        What::PeerLost { peer, .. } => {
            Box::new(move |it| matches!(it, What::PeerLinked { peer: linked, .. } if linked == peer))
        }
        What::DiscoveryFailed { .. } => Box::new(|it| matches!(it, What::DiscoveryRecovered { .. })),
        What::ReloadRefused { .. } => Box::new(|it| matches!(it, What::Reloaded { .. })),
        what => match Trouble::begun_by(what) {
            Some(trouble) => ends(trouble),
            None => return Standing::Moment,
        },
    };
    let over = story.events[at + 1..].iter().map(|(later, _)| *later).find(|later| is_end(&later.what));
    over.map_or(Standing::Still, |over| over_after(event, over))
}

fn ends(mut trouble: Trouble) -> Box<dyn FnMut(&What) -> bool> {
    Box::new(move |it| trouble.is_over_by(it))
}

fn over_after(event: &Event, over: &Event) -> Standing {
    let ms = match &over.what {
        // That event comes once no connection has been reset for a while.
        What::RefusalsOver { lasted_ms, .. } => *lasted_ms,
        _ => over.at_unix_ms.saturating_sub(event.at_unix_ms),
    };
    Standing::OverAfter { ms }
}
