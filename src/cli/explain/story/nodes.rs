//! A node: how its connections ended, and its silences.

use std::collections::{BTreeMap, BTreeSet};

use super::effects::by_reason;
use super::{Explained, Figures, SENTENCES_MAX, Story, flows, last, moment};
use crate::model::humane::{list, plural};
use crate::table::journal::What;

/// So many addresses are named.
const ADDRESSES_MAX: usize = 3;

/// The node with this name or address. `None`: the record has none.
pub(super) fn node(story: &Story<'_>, name: &str) -> Option<Explained> {
    let mut figures = Figures::default();
    let (mut addresses, mut ends) = (BTreeSet::new(), Vec::new());
    let mut by_backend = BTreeMap::<String, u64>::new();
    for (at, (event, _)) in story.events.iter().enumerate() {
        if let What::FlowEnded { node, client, frontend, backend, reason, .. } = &event.what
            && (node.as_deref() == Some(name) || client.ip().to_canonical().to_string() == name)
        {
            addresses.insert(client.ip().to_canonical());
            ends.push(at);
            *figures.flows_ended.entry(reason.label()).or_default() += 1;
            *by_backend.entry(format!("{frontend}/{}", backend.as_deref().unwrap_or("no backend"))).or_default() += 1;
        }
    }
    let silences: Vec<_> = (0..story.events.len())
        .filter(|at| matches!(&story.events[*at].0.what, What::NodesSilent { nodes, .. } if nodes.iter().any(|it| it == name)))
        .collect();
    let latest = ends.last().into_iter().chain(silences.last()).max()?;
    figures.at_unix_ms = story.events[*latest].0.at_unix_ms;
    let mut sentences = Vec::new();
    if let (Some(first), Some(last)) = (ends.first(), ends.last()) {
        let [from, to] = [*first, *last].map(|at| moment(story.events[at].0.at_unix_ms));
        let more = addresses.len().saturating_sub(ADDRESSES_MAX);
        let mut shown: Vec<_> = addresses.iter().take(ADDRESSES_MAX).map(ToString::to_string).collect();
        shown.extend((more > 0).then(|| plural(more as u64, "other address")));
        let backends: Vec<_> = by_backend.iter().map(|(backend, flows)| format!("{backend} {flows}")).collect();
        sentences.push(format!(
            "The record has {} of {name} ({}) that ended, from {from} to {to}: {}; with {}.",
            plural(ends.len() as u64, "flow"),
            list(&shown),
            by_reason(&figures),
            list(&backends)
        ));
        sentences.extend(flows::end(story, *last).into_iter().flat_map(|(its, _)| its.into_iter().take(2)));
    } else {
        sentences.push(format!("The record has no end of a flow of {name}."));
    }
    if let Some(at) = silences.last() {
        let event = story.events[*at].0;
        let What::NodesSilent { for_ms, .. } = &event.what else { return None };
        let over = story.silence_over(*at, name, *for_ms);
        let goes_on = last::still_silent(story, *at).filter(|_| over.is_none());
        figures.lasted_ms = over.as_ref().map(|(_, ms)| *ms);
        let times = plural(silences.len() as u64, "time");
        sentences.push(format!(
            "It was told {times} to be silent, the last at {}: {} (baton explain event:{}).",
            moment(event.at_unix_ms),
            event.what.sentence(),
            event.number
        ));
        sentences.extend(over.map(|(said, _)| said).or(goes_on));
    } else {
        sentences.push("It was never told to be silent.".to_owned());
    }
    if sentences.len() < SENTENCES_MAX {
        sentences.push(
            "Connections that go on are not in the record: `baton nodes` and `baton flows` have them.".to_owned(),
        );
    }
    sentences.truncate(SENTENCES_MAX);
    Some((sentences, figures))
}
