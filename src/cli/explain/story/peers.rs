//! A peer that lived when the record ended: of it more is known than its last event.

use super::{Explained, Figures, SENTENCES_MAX, Story, is_of_link, moment};
use crate::model::fleet::Liveness;
use crate::model::humane::plural;
use crate::table::journal::{Event, What};

/// `None`: it did not live, as far as is recorded.
pub(super) fn lived(story: &Story<'_>, peer: &str) -> Option<Explained> {
    let last = story.of_peer(peer).find(|event| is_of_link(event)).filter(|event| is_alive(event))?;
    let figures = Figures { at_unix_ms: last.at_unix_ms, ..Figures::default() };
    let mut sentences = vec![format!(
        "{peer} was alive at {}, where the record ends: at {} {}.",
        story.ends_at(),
        moment(last.at_unix_ms),
        last.what.sentence()
    )];
    sentences.extend(story.of_peer(peer).find_map(|event| match event.what {
        What::PeerSynced { flows, .. } => Some(format!(
            "When this instance had got all flows of {peer}, at {}, it had {}.",
            moment(event.at_unix_ms),
            plural(flows, "flow")
        )),
        _ => None,
    }));
    let moves = story.events.iter().rev().map(|(event, _)| *event);
    sentences.extend(moves.into_iter().find_map(|event| {
        let since = moment(event.at_unix_ms);
        match &event.what {
            What::VipHeld { vip, by } if by == peer => Some(format!("It had the VIP {vip}, since {since}.")),
            What::VipHeld { vip, by } => Some(format!("{by} had the VIP {vip}, since {since}.")),
            What::VipGained { vip, .. } => Some(format!("This host had the VIP {vip}, since {since}.")),
            What::VipGivenUp { .. } => Some(format!("Who had the VIP since {since} is not recorded.")),
            _ => None,
        }
    }));
    sentences.push(format!("The record has no death of {peer}."));
    Some((sentences, figures))
}

/// Adds to the last death of the peer that it lived when the record ended.
pub(super) fn lived_on(story: &Story<'_>, peer: &str, (mut sentences, figures): Explained) -> Option<Explained> {
    let last = story.of_peer(peer).find(|event| is_of_link(event));
    if last.is_some_and(is_alive) && sentences.len() < SENTENCES_MAX {
        sentences.insert(0, format!("{peer} was alive at {}, where the record ends.", story.ends_at()));
    }
    Some((sentences, figures))
}

fn is_alive(event: &Event) -> bool {
    matches!(event.what, What::PeerLinked { .. } | What::PeerLiveness { liveness: Liveness::Alive, .. })
}
