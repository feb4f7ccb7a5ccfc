//! A frontend: its backends' states and last changes, connections that were refused, and how its flows ended.

use super::effects::{by_reason, ended};
use super::{Explained, Figures, SENTENCES_MAX, Story, moment, of_rebalance};
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, list, plural};
use crate::table::journal::{Event, What};

/// The ends of this time before the end of the record are counted.
const COUNTED_MS: u64 = 3_600_000;

/// `None`: the record has no frontend of this name.
pub(super) fn frontend(story: &Story<'_>, name: &str) -> Option<Explained> {
    let last = story.recording.records.last()?;
    let sample = story.sample_before(last.at_unix_ms);
    let sampled = sample.and_then(|sample| sample.frontends.iter().find(|it| it.name == name));
    let settings = story.settings(last.owner, name);
    if sampled.is_none() && settings.is_none() {
        return None;
    }
    let mut figures = Figures { at_unix_ms: last.at_unix_ms, ..Figures::default() };
    let mut sentences = Vec::new();
    match (sample, sampled) {
        (Some(sample), Some(sampled)) => {
            let its = sample.backends.iter().filter(|it| it.frontend == name);
            let backends: Vec<_> = its.map(|it| format!("{} {} ({})", it.name, it.flows, it.state)).collect();
            let of_them = if backends.is_empty() { "no backend".to_owned() } else { list(&backends) };
            let flows = plural(sampled.flows.into(), "flow");
            sentences.push(format!("At {} the frontend {name} had {flows}: {of_them}.", moment(sample.at_unix_ms)));
        }
        _ => sentences.push(format!("The record has no sample of the frontend {name}, only its settings.")),
    }
    let changes: Vec<_> = (0..story.events.len()).filter(|at| is_change(story.events[*at].0, name)).collect();
    if let Some(at) = changes.last() {
        let event = story.events[*at].0;
        let number = plural(changes.len() as u64, "change");
        sentences.push(format!(
            "The record has {number} of its backends' states, the last at {}: {}.",
            moment(event.at_unix_ms),
            event.what.sentence()
        ));
        figures.see_also.push(format!("baton explain event:{}", event.number));
    } else {
        sentences.push("The record has no change of its backends' states.".to_owned());
    }
    let lost = changes
        .iter()
        .rev()
        .skip(1)
        .map(|at| story.events[*at].0)
        .find(|event| matches!(&event.what, What::BackendChanged { to, .. } if *to != HealthState::Ready));
    sentences
        .extend(lost.map(|event| format!("Before that, at {}, {}.", moment(event.at_unix_ms), event.what.sentence())));
    let rearmost = |is_it: &dyn Fn(&What) -> bool| {
        story.events.iter().rev().map(|(event, _)| *event).find(|event| is_it(&event.what))
    };
    let refused = rearmost(&|what| match what {
        What::RefusalsBegun { frontend, .. } | What::RefusalsOver { frontend, .. } => frontend == name,
        _ => false,
    });
    sentences.extend(refused.map(told));
    let rebalanced = story.events.iter().rev().map(|(event, _)| *event).find(|event| of_rebalance(event) == Some(name));
    sentences.extend(rebalanced.map(told));
    let times = last.at_unix_ms.saturating_sub(COUNTED_MS)..=last.at_unix_ms;
    story.count_ends((Some(name), None), times.clone(), |_| true, &mut figures);
    figures.ended_within_ms = 0;
    let lost = story.lost(&figures);
    let first_ms = story.recording.records[0].at_unix_ms.max(*times.start());
    let span = duration_ms(last.at_unix_ms.saturating_sub(first_ms));
    sentences.truncate(SENTENCES_MAX - 1);
    sentences.push(match figures.flows_ended.is_empty() {
        true => format!("In the last {span} of the record none of its flows ended.{lost}"),
        false => format!("In the last {span} of the record {} ({}).{lost}", ended(&figures), by_reason(&figures)),
    });
    Some((sentences, figures))
}

fn is_change(event: &Event, name: &str) -> bool {
    matches!(&event.what, What::BackendChanged { frontend, .. } if frontend == name)
}

fn told(event: &Event) -> String {
    format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())
}
