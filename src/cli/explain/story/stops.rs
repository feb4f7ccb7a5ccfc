//! A stop in order: what belongs to it is no fault, and neither is a peer that was stopped as well and is not started yet.

use super::{Explained, Figures, SENTENCES_MAX, Story, moment, peer_of};
use crate::model::fleet::{Farewell, Liveness};
use crate::model::humane::duration_ms;
use crate::model::weight::Weight;
use crate::table::journal::{Event, What};

/// An instance that stops may give the VIP up so long before it says that it stops.
const BEFORE_MS: u64 = 1_000;

/// The stop that the event at `at`, which is no bad one, belongs to: it came with the stop, before the next start.
pub(super) fn stop_of(story: &Story<'_>, at: usize) -> Option<usize> {
    let event = story.events[at].0;
    // Clients suffer by these, whenever they come.
    let is_felt = matches!(event.what, What::RefusalsBegun { .. } | What::VipGained { .. });
    if event.what.is_end() || is_felt || story.weight(at) == Weight::Bad {
        return None;
    }
    let until_ms = event.at_unix_ms + BEFORE_MS;
    let end = at + 1 + story.events[at + 1..].iter().take_while(|(later, _)| later.at_unix_ms <= until_ms).count();
    let stop = story.events[..end].iter().rposition(|(event, _)| is_stop(&event.what))?;
    let mut between = story.events[stop.min(at)..=at.max(stop)].iter();
    (!between.any(|(event, _)| matches!(event.what, What::Started { .. }))).then_some(stop)
}

/// The stop that is the last of all that may need an explanation: the record ends with it, or the next process did not begin long after.
pub(super) fn last_stop(story: &Story<'_>) -> Option<usize> {
    story.events.iter().rposition(|(event, _)| is_stop(&event.what))
}

/// The stop at `at`: what it ended, the peers that stopped as well, and the start after it.
pub(super) fn stop(story: &Story<'_>, at: usize) -> Explained {
    let event = story.events[at].0;
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    let mut sentences = vec![
        format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence()),
        "It was stopped in order, which is no fault.".to_owned(),
    ];
    sentences.extend(story.aftermath(at, &mut figures));
    let later = || story.events[at + 1..].iter().map(|(event, _)| *event);
    let start = later().find(|it| matches!(it.what, What::Started { .. }));
    let until_ms = start.map_or(u64::MAX, |it| it.at_unix_ms);
    let stopped = later().take_while(|it| it.at_unix_ms < until_ms).filter(|it| is_farewell(&it.what));
    sentences.extend(stopped.map(|it| format!("At {} {}.", moment(it.at_unix_ms), it.what.sentence())));
    sentences.truncate(SENTENCES_MAX - 1);
    sentences.push(match start {
        Some(start) => {
            let away_ms = start.at_unix_ms.saturating_sub(event.at_unix_ms);
            figures.lasted_ms = Some(away_ms);
            let (away, then) = (duration_ms(away_ms), moment(start.at_unix_ms));
            format!("{away} later, at {then}, {}.", start.what.sentence())
        }
        None => "The record has no start since.".to_owned(),
    });
    (sentences, figures)
}

/// Whether the peer, of which the event at `at` tells, has not been heard yet by a process that began after a stop in order, and had been
/// stopped, too, or is heard later.
pub(super) fn awaits(story: &Story<'_>, at: usize, peer: &str) -> bool {
    let start = story.start_of(at);
    let is_heard = |event: &Event| {
        let is_return =
            matches!(event.what, What::PeerLinked { .. } | What::PeerLiveness { liveness: Liveness::Alive, .. });
        peer_of(event) == Some(peer) && is_return
    };
    if start == at || story.events[start..at].iter().any(|(event, _)| is_heard(event)) {
        return false;
    }
    let before = story.events[..start].iter().rev().map(|(event, _)| *event);
    let mut stops = before.clone().take_while(|it| !matches!(it.what, What::Started { .. }));
    if !stops.any(|it| is_stop(&it.what)) {
        return false;
    }
    let mut lives = before.filter(|it| peer_of(it) == Some(peer) && matches!(it.what, What::PeerLiveness { .. }));
    let had_stopped = lives.next().is_some_and(|it| is_farewell(&it.what));
    let later = story.events[at + 1..].iter().map(|(event, _)| *event);
    let mut of_process = later.take_while(|it| !matches!(it.what, What::Started { .. }));
    had_stopped || of_process.any(is_heard)
}

fn is_stop(what: &What) -> bool {
    matches!(what, What::Stopping { .. })
}

fn is_farewell(what: &What) -> bool {
    matches!(what, What::PeerLiveness { liveness: Liveness::Left(Farewell::Stopped), .. })
}
