//! A frontend without a usable backend: since when, why each is out, what clients felt, and what ends it.

use std::collections::BTreeMap;

use super::effects::{by_reason, ended};
use super::failovers::holder_after;
use super::gaps::{OtherBackend, longest_gap, takes_new, without_backend};
use super::{Explained, Figures, SENTENCES_MAX, Story, is_by_backend, last, moment};
use crate::model::end_reason::{EndReason, EndedBy};
use crate::model::health::{Cause, HealthState};
use crate::model::humane::{duration_ms, limit_ms, plural};
use crate::table::journal::{Event, What};

/// The end of refusals is told so long after the last one.
const TOLD_MS: u64 = 12_000;

/// The state of a backend.
struct StateThen<'r> {
    label: &'r str,
    takes_new: bool,
    /// `None`: the change was not recorded.
    change: Option<(u64, &'r Cause)>,
}

struct FrontendOutage<'r> {
    frontend: &'r str,
    /// Those that are out, by name.
    out: BTreeMap<&'r str, StateThen<'r>>,
    /// The loss of the last one, by its place, and its time in ms since 1970.
    last_loss: Option<usize>,
    since_ms: u64,
}

/// Whether the loss at `at` left its frontend without a usable backend.
pub(super) fn leaves_none(story: &Story<'_>, at: usize) -> bool {
    FrontendOutage::at(story, at).is_some()
}

/// What the event at `at` begins, ends, or is a part of. `None`: a backend could be used then, or no client can have felt it here.
pub(super) fn outage(story: &Story<'_>, at: usize) -> Option<Explained> {
    let at = match &story.events[at].0.what {
        What::RefusalsOver { frontend, reason: EndReason::NoBackend, .. } => {
            story.events[..at].iter().rposition(|(event, _)| begins_refusals(&event.what, frontend))?
        }
        What::FlowsOrdered { frontend, backend, reason, .. } if is_by_backend(*reason) => {
            story.change_before(at, frontend, backend)?
        }
        _ => at,
    };
    let outage = FrontendOutage::at(story, at)?;
    let (event, owner) = story.events[at];
    let FrontendOutage { frontend, since_ms, .. } = outage;
    let over = outage.over(story, at);
    let until_ms = over.map_or(u64::MAX, |over| over.at_unix_ms);
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    let mut sentences =
        vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence()), outage.why(over.is_some())];
    let refused = refused_until(story, at, frontend, until_ms).unwrap_or_else(|| {
        let for_ms = until_ms.saturating_sub(since_ms);
        let without = OtherBackend::Away { from_unix_ms: since_ms, for_ms, silence_ms: 0, vip_left: false };
        story.refused_meanwhile(at, frontend, without, until_ms).trim_start().to_owned()
    });
    sentences.extend(Some(refused).filter(|it| !it.is_empty()));
    let first_ms = outage.out.values().filter_map(|it| it.change).map(|(at_ms, _)| at_ms).min().unwrap_or(since_ms);
    let silence_ms = story.settings(owner, frontend).map_or(0, |it| it.reset_after_silence_ms);
    let by_loss = |reason: EndReason| is_by_backend(reason) || reason.by() == EndedBy::Backend;
    story.count_ends((Some(frontend), None), first_ms.saturating_sub(silence_ms)..=until_ms, by_loss, &mut figures);
    if !figures.flows_ended.is_empty() {
        sentences.push(format!(
            "Of its flows {} ({}) since the first of these losses.{}",
            ended(&figures),
            by_reason(&figures),
            story.lost(&figures)
        ));
    }
    sentences.extend(vip_given_up(story, since_ms..=until_ms));
    let last_loss = outage.last_loss.filter(|_| over.is_some());
    if let Some(without) = last_loss.map(|loss| without_backend(story, loss, frontend))
        && without != OtherBackend::Serves
        && sentences.len() + 1 < SENTENCES_MAX
    {
        let lease_renew_ms = story.recording.owners[owner].lease_renew_ms;
        let (gap, gap_ms) = longest_gap(frontend, 0, lease_renew_ms, without);
        figures.longest_gap_ms = gap_ms;
        sentences.push(gap);
    }
    sentences.push(match over {
        Some(over) => {
            let lasted_ms = over.at_unix_ms.saturating_sub(since_ms);
            figures.lasted_ms = Some(lasted_ms);
            format!("That lasted {}: at {} {}.", limit_ms(lasted_ms), moment(over.at_unix_ms), over.what.sentence())
        }
        None => format!(
            "It goes on at {}, where the record ends{}: {}.",
            story.ends_at(),
            story.dropped_since(at),
            outage.ends_by(story.settings(owner, frontend).map(|it| it.rise))
        ),
    });
    sentences.truncate(SENTENCES_MAX);
    Some((sentences, figures))
}

impl<'r> FrontendOutage<'r> {
    fn at(story: &Story<'r>, at: usize) -> Option<Self> {
        let event = story.events[at].0;
        let frontend = match &event.what {
            What::BackendChanged { frontend, to, cause, .. } if !takes_new(*to, cause) => frontend,
            What::RefusalsBegun { frontend, reason: EndReason::NoBackend } => frontend,
            _ => return None,
        };
        if story.serves_nobody(at, frontend).is_some() {
            return None;
        }
        let out = states(story, at, frontend);
        if out.is_empty() || out.values().any(|state| state.takes_new) {
            return None;
        }
        let is_loss = |it: &Event| matches!(&it.what, What::BackendChanged { frontend: f, to, cause, .. } if f == frontend && !takes_new(*to, cause));
        let last_loss = story.events[..=at].iter().rposition(|(event, _)| is_loss(event));
        let since_ms = out.values().filter_map(|it| it.change).map(|(at_ms, _)| at_ms).max();
        Some(Self { frontend, out, last_loss, since_ms: since_ms.unwrap_or(event.at_unix_ms) })
    }

    /// The event by which a backend can be used again.
    fn over(&self, story: &Story<'r>, at: usize) -> Option<&'r Event> {
        let mut later = story.events[at + 1..].iter().map(|(event, _)| *event);
        later.find(|it| matches!(&it.what, What::BackendChanged { frontend, to, cause, .. } if frontend == self.frontend && takes_new(*to, cause)))
    }

    /// A sentence.
    fn why(&self, is_over: bool) -> String {
        let (can, is) = if is_over { ("could", "was") } else { ("can", "is") };
        let each = self.out.iter().map(|(name, StateThen { label, change, .. })| match change {
            Some((at_ms, cause)) => format!("{name} {is} {label} since {} ({cause})", moment(*at_ms)),
            None => format!("{name} {is} {label}"),
        });
        let each: Vec<_> = each.collect();
        format!("No backend of {} {can} be used since {}: {}.", self.frontend, moment(self.since_ms), each.join(", "))
    }

    fn ends_by(&self, rise: Option<u32>) -> String {
        let is_ordered = |state: &StateThen<'_>| state.change.is_some_and(|(_, cause)| last::is_ordered(cause));
        if self.out.values().all(is_ordered) {
            return "operators' orders keep them out, and `baton undrain` ends that".to_owned();
        }
        match rise {
            Some(rise) => format!("rise = {rise} ends it, so many passed probes in a row of one of them"),
            None => "passed probes of one of them end it".to_owned(),
        }
    }
}

fn begins_refusals(what: &What, frontend: &str) -> bool {
    matches!(what, What::RefusalsBegun { frontend: f, reason: EndReason::NoBackend } if f == frontend)
}

/// The states of a frontend's backends right after the event at `at`, by name.
fn states<'r>(story: &Story<'r>, at: usize, frontend: &str) -> BTreeMap<&'r str, StateThen<'r>> {
    let sample = story.sample_before(story.events[at].0.at_unix_ms);
    let sampled_ms = sample.map_or(0, |sample| sample.at_unix_ms);
    let mut states: BTreeMap<&str, StateThen<'_>> = BTreeMap::new();
    for it in sample.into_iter().flat_map(|sample| &sample.backends).filter(|it| it.frontend == frontend) {
        let takes_new = it.state != HealthState::Ejected.label();
        states.insert(&it.name, StateThen { label: &it.state, takes_new, change: None });
    }
    for (event, _) in &story.events[..=at] {
        let is_newer = event.at_unix_ms > sampled_ms;
        match &event.what {
            // A sample tells of a later change that was not recorded, or that the backend has gone.
            What::BackendChanged { frontend: f, backend, to, cause, .. }
                if f == frontend
                    && (is_newer || states.get(backend.as_str()).is_some_and(|it| it.label == to.label())) =>
            {
                let change = Some((event.at_unix_ms, cause));
                let state = StateThen { label: to.label(), takes_new: takes_new(*to, cause), change };
                states.insert(backend, state);
            }
            What::BackendRemoved { frontend: f, backend } if f == frontend && is_newer => {
                states.remove(backend.as_str());
            }
            _ => {}
        }
    }
    states
}

/// How many connections were reset since the outage, if the end of that is an event: a sentence.
fn refused_until(story: &Story<'_>, at: usize, frontend: &str, until_ms: u64) -> Option<String> {
    let later = story.events[at..].iter().map(|(event, _)| *event);
    let mut later = later.take_while(|it| it.at_unix_ms <= until_ms.saturating_add(TOLD_MS));
    later.find_map(|it| match &it.what {
        What::RefusalsOver { frontend: f, reason: EndReason::NoBackend, refused, lasted_ms, .. } if f == frontend => {
            let refused = plural(*refused, "new connection");
            Some(format!("Baton reset {refused} within {} (no_backend).", duration_ms(*lasted_ms)))
        }
        _ => None,
    })
}

/// That the VIP left this host meanwhile, and who had it then: a sentence.
fn vip_given_up(story: &Story<'_>, times: std::ops::RangeInclusive<u64>) -> Option<String> {
    let is_it = |it: &Event| matches!(it.what, What::VipGivenUp { .. }) && times.contains(&it.at_unix_ms);
    let lost = story.events.iter().position(|(event, _)| is_it(event))?;
    let event = story.events[lost].0;
    let then = holder_after(story, lost).map_or_else(String::new, |then| format!(" {then}"));
    Some(format!("At {} {}.{then}", moment(event.at_unix_ms), event.what.sentence()))
}
