//! New connections that were reset: since when, why, how many, and until when.

use super::effects::by_reason;
use super::flows::limit;
use super::{Explained, Figures, Story, moment};
use crate::model::end_reason::EndReason;
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, plural};
use crate::model::nodes::NodeRefusal;
use crate::table::journal::{Event, What};

/// An instance looks for them so often, and tells of them after the first.
const NOTICED_MS: u64 = 250;

/// Clients that are refused come again within this time.
const QUIET_MS: u64 = 3_000;

/// By this time the end of refusals is an event: without it some have come since, whose ends are not in the record.
const OVER_MS: u64 = 12_000;

/// A change of the settings shows itself once a client connects anew.
const SETTINGS_MS: u64 = 30_000;

/// What the event at `at` begins or ends. `None`: it does neither.
pub(super) fn refusals(story: &Story<'_>, at: usize) -> Option<Explained> {
    let (What::RefusalsBegun { frontend, reason } | What::RefusalsOver { frontend, reason, .. }) =
        &story.events[at].0.what
    else {
        return None;
    };
    let is_begin =
        |what: &What| matches!(what, What::RefusalsBegun { frontend: f, reason: r } if (f, r) == (frontend, reason));
    let begun = story.events[..=at].iter().rposition(|(event, _)| is_begin(&event.what))?;
    let (event, owner) = story.events[begun];
    let mut sentences = vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())];
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    match reason {
        EndReason::NoBackend => sentences.extend(loss_before(story, begun, frontend)),
        _ => sentences.extend(story.settings(owner, frontend).and_then(|settings| limit(settings, *reason))),
    }
    sentences.extend(story.order_before(begun));
    let after = story.events[begun + 1..].iter().map(|(event, _)| *event);
    let over = after.take_while(|event| !is_begin(&event.what)).find_map(|event| match &event.what {
        What::RefusalsOver { frontend: f, reason: r, refused, lasted_ms, last_unix_ms }
            if (f, r) == (frontend, reason) =>
        {
            Some((event, *refused, *lasted_ms, *last_unix_ms))
        }
        _ => None,
    });
    match over {
        Some((over, refused, lasted_ms, last_unix_ms)) => {
            figures.flows_ended.insert(reason.label(), refused);
            (figures.ended_within_ms, figures.lasted_ms) = (lasted_ms, Some(lasted_ms));
            let end = match last_unix_ms {
                Some(last_ms) => format!("the last one came at {}", moment(last_ms)),
                None => format!("at {} none had come for a while", moment(over.at_unix_ms)),
            };
            let (refused, lasted) = (plural(refused, "new connection"), duration_ms(lasted_ms));
            sentences.push(format!("Baton reset {refused} within {lasted}; {end}."));
        }
        None => {
            let times = event.at_unix_ms.saturating_sub(NOTICED_MS)..=u64::MAX;
            story.count_ends((Some(frontend), None), times, |it| it == *reason, &mut figures);
            let counted = match figures.flows_ended.is_empty() {
                true => String::new(),
                false => format!("; it has so many: {}", by_reason(&figures)),
            };
            let last_ms = last_refused_ms(story, begun, (frontend, *reason));
            let ends_ms = story.recording.records.last().map_or(last_ms, |record| record.at_unix_ms);
            sentences.push(match ends_ms.saturating_sub(last_ms) {
                quiet_ms if (QUIET_MS..OVER_MS).contains(&quiet_ms) => format!(
                    "The last one known came at {}, {} before the end of the record{counted}.",
                    moment(last_ms),
                    duration_ms(quiet_ms)
                ),
                _ => format!("They were still going on at {}, where the record ends{counted}.", story.ends_at()),
            });
        }
    }
    Some((sentences, figures))
}

/// Adds that nodes are silent from before `at` because Baton itself refuses them, and since which change of its settings.
pub(super) fn add_refused(
    story: &Story<'_>,
    at: usize,
    for_ms: u64,
    refused: Option<NodeRefusal>,
    sentences: &mut Vec<String>,
) {
    let Some(refusal) = refused else { return };
    // The last one tells which time decided it that nodes do not live. These do.
    sentences.pop();
    let begun_ms = story.events[at].0.at_unix_ms.saturating_sub(for_ms + SETTINGS_MS);
    let before = story.events[..at].iter().rev().map(|(event, _)| *event);
    let is_change = |it: &&Event| matches!(&it.what, What::Reloaded { changes } if !changes.is_empty());
    let changed = before.take_while(|it| it.at_unix_ms >= begun_ms).find(is_change);
    sentences.extend(changed.map(|it| earlier(story, at, it)));
    let (times, why) = (plural(refusal.times, "new connection"), refusal.why());
    sentences.push(format!(
        "Baton itself refused {times} of that time ({why}): this decided it, and not the nodes or their network."
    ));
}

/// An event before the one at `at`: a sentence.
fn earlier(story: &Story<'_>, at: usize, it: &Event) -> String {
    let earlier = duration_ms(story.events[at].0.at_unix_ms.saturating_sub(it.at_unix_ms));
    format!("{earlier} earlier, at {}, {}.", moment(it.at_unix_ms), it.what.sentence())
}

/// When the last connection of a frontend was reset for a reason, as far as events and samples tell.
fn last_refused_ms(story: &Story<'_>, begun: usize, (frontend, reason): (&str, EndReason)) -> u64 {
    let is_one = |what: &What| matches!(what, What::FlowEnded { frontend: f, reason: r, .. } if (&**f, *r) == (frontend, reason));
    let events = story.events[begun..].iter().rev().map(|(event, _)| *event);
    let event = events.into_iter().find(|event| is_one(&event.what)).map_or(0, |event| event.at_unix_ms);
    let samples = story.recording.samples().rev().map(|(_, sample)| sample);
    let sample = samples.into_iter().find(|it| it.increase.ended.iter().any(|(label, _)| label == reason.label()));
    event.max(sample.map_or(0, |it| it.at_unix_ms)).max(story.events[begun].0.at_unix_ms)
}

/// The loss after which no backend was left: a sentence.
fn loss_before(story: &Story<'_>, at: usize, frontend: &str) -> Option<String> {
    let lost = story.events[..at].iter().rev().map(|(event, _)| *event).find(
        |event| matches!(&event.what, What::BackendChanged { frontend: f, to, .. } if f == frontend && *to != HealthState::Ready),
    )?;
    Some(earlier(story, at, lost))
}
