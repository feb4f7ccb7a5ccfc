//! New connections that were reset: since when, why, how many, and until when.

use super::effects::by_reason;
use super::{Explained, Figures, Story, limit, moment};
use crate::model::end_reason::EndReason;
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, plural};
use crate::model::nodes::NodeRefusal;
use crate::table::journal::{Event, What};

/// An instance looks for them so often, and tells of them after the first.
const NOTICED_MS: u64 = 250;

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
        What::RefusalsOver { frontend: f, reason: r, refused, lasted_ms } if (f, r) == (frontend, reason) => {
            Some((event, *refused, *lasted_ms))
        }
        _ => None,
    });
    match over {
        Some((over, refused, lasted_ms)) => {
            figures.flows_ended.insert(reason.label(), refused);
            (figures.ended_within_ms, figures.lasted_ms) = (lasted_ms, Some(lasted_ms));
            sentences.push(format!(
                "Baton reset {} within {}; at {} none had come for a while.",
                plural(refused, "new connection"),
                duration_ms(lasted_ms),
                moment(over.at_unix_ms)
            ));
        }
        None => {
            let times = event.at_unix_ms.saturating_sub(NOTICED_MS)..=u64::MAX;
            story.count_ends((Some(frontend), None), times, |it| it == *reason, &mut figures);
            let counted = match figures.flows_ended.is_empty() {
                true => String::new(),
                false => format!("; it has so many: {}", by_reason(&figures)),
            };
            sentences.push(format!("They were still going on at {}, where the record ends{counted}.", story.ends_at()));
        }
    }
    Some((sentences, figures))
}

/// The loss after which no backend was left: a sentence.
fn loss_before(story: &Story<'_>, at: usize, frontend: &str) -> Option<String> {
    let lost = story.events[..at].iter().rev().map(|(event, _)| *event).find(
        |event| matches!(&event.what, What::BackendChanged { frontend: f, to, .. } if f == frontend && *to != HealthState::Ready),
    )?;
    Some(earlier(story, at, lost))
}
