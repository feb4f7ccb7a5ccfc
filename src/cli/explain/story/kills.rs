//! What an order of `baton kill` ended: its own flows, whatever else ended at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::effects::{by_reason, ended};
use super::gaps::gap_of_reset;
use super::{BEFORE_MS, Explained, Figures, Story, is_named, moment};
use crate::model::end_reason::EndReason;
use crate::model::health::HealthState;
use crate::model::humane::{count, duration_ms, plural};
use crate::model::ids::FlowId;
use crate::table::journal::What;

/// The flows that an order means.
enum KillMeans<'o> {
    All,
    Backend(&'o str),
    Client(IpNet),
    Flow(FlowId),
}

/// So many backends are named.
const NAMED_MAX: usize = 6;

/// What the order at `at` ended, or the one that the event at `at` is part of. `None`: it is no such order, or that is not recorded.
pub(super) fn kill(story: &Story<'_>, at: usize) -> Option<Explained> {
    let order = match &story.events[at].0.what {
        What::OrderReceived { .. } => at,
        What::FlowsOrdered { reason: EndReason::Killed, .. } => order_before(story, at)?,
        _ => return None,
    };
    let (event, owner) = story.events[order];
    let means = means(&event.what)?;
    let is_its = |later: &usize| order_before(story, *later) == Some(order);
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    let (mut ordered, mut frontends) = (BTreeMap::<String, u64>::new(), BTreeSet::new());
    for later in (order + 1..story.events.len()).filter(is_its) {
        let (its, _) = story.events[later];
        match &its.what {
            What::FlowsOrdered { frontend, backend, flows, .. } => {
                *ordered.entry(format!("{frontend}/{backend}")).or_default() += *flows as u64;
                frontends.insert(frontend.as_str());
            }
            What::FlowEnded { frontend, reason, .. } => {
                *figures.flows_ended.entry(reason.label()).or_default() += 1;
                figures.ended_within_ms = its.at_unix_ms.saturating_sub(event.at_unix_ms);
                frontends.insert(frontend.as_str());
            }
            _ => {}
        }
    }
    figures.flows_ordered = ordered.values().sum();
    let reset_within_ms = story.recording.owners[owner].reset_within_ms;
    let until_ms = event.at_unix_ms + figures.ended_within_ms.max(reset_within_ms);
    figures.ends_not_recorded =
        story.not_recorded(&(event.at_unix_ms..=until_ms), |reason| reason == EndReason::Killed);

    let mut sentences = vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())];
    if !matches!(means, KillMeans::Flow(_)) {
        sentences.push(meant(&ordered));
    }
    let lost = story.lost(&figures);
    let killed: u64 = figures.flows_ended.values().sum();
    let without = figures.flows_ordered.saturating_sub(killed);
    let rest = match without {
        _ if figures.ends_not_recorded > 0 => String::new(),
        0 => String::new(),
        _ => format!(
            " Of {} that it meant the record has no such end: they ended for another reason before their turn, or had not ended yet.",
            plural(without, "flow")
        ),
    };
    sentences.push(match killed {
        0 => format!("The record has no end of a flow for it.{rest}{lost}"),
        _ => format!(
            "{} for it ({}), the last of them {} after it{}.{rest}{lost}",
            ended(&figures),
            by_reason(&figures),
            duration_ms(figures.ended_within_ms),
            story.spread(owner)
        ),
    });
    if killed > 0 && all_served(story, event.at_unix_ms, &frontends) {
        let (gap, gap_ms) = gap_of_reset("", story.recording.owners[owner].lease_renew_ms);
        sentences.push(gap);
        figures.longest_gap_ms = Some(gap_ms);
    }
    Some((sentences, figures))
}

/// The flows of one backend that the order of which the event at `at` is a part meant: a sentence, and the place of the order.
pub(super) fn of_backend(story: &Story<'_>, at: usize) -> Option<(String, usize)> {
    let order = order_before(story, at)?;
    let What::FlowsOrdered { frontend, backend, .. } = &story.events[at].0.what else { return None };
    let (mut meant, mut killed, mut last_ms) = (0, 0, 0);
    let ordered_ms = story.events[order].0.at_unix_ms;
    for (later, (event, _)) in story.events.iter().enumerate().skip(order + 1) {
        let is_its = || order_before(story, later) == Some(order);
        match &event.what {
            What::FlowsOrdered { frontend: f, backend: b, flows, .. } if (f, b) == (frontend, backend) && is_its() => {
                meant += *flows as u64;
            }
            What::FlowEnded { frontend: f, backend: Some(b), .. } if (f, b) == (frontend, backend) && is_its() => {
                (killed, last_ms) = (killed + 1, event.at_unix_ms.saturating_sub(ordered_ms));
            }
            _ => {}
        }
    }
    let ended = match killed {
        0 => "the record has no end of one of them for it".to_owned(),
        _ => format!("{} ended for it, the last of them {} after it", count(killed), duration_ms(last_ms)),
    };
    Some((format!("Of {frontend}/{backend} it meant {}: {ended}.", plural(meant, "flow")), order))
}

/// The order for which a flow was ended, or is to end, by the event at `at`: the last one of its process that meant it.
pub(super) fn order_before(story: &Story<'_>, at: usize) -> Option<usize> {
    let (event, owner) = story.events[at];
    let owners = &story.recording.owners;
    let means_it = |means: &KillMeans<'_>| match &event.what {
        What::FlowEnded { flow, frontend, backend, client, reason: EndReason::Killed, .. } => match means {
            KillMeans::All => true,
            KillMeans::Backend(name) => backend.as_deref().is_some_and(|backend| is_named(name, frontend, backend)),
            KillMeans::Client(network) => network.contains(&client.ip().to_canonical()),
            KillMeans::Flow(id) => id == flow,
        },
        // It follows at once.
        What::FlowsOrdered { frontend, backend, reason: EndReason::Killed, .. } => match means {
            KillMeans::All | KillMeans::Client(_) => true,
            KillMeans::Backend(name) => is_named(name, frontend, backend),
            KillMeans::Flow(_) => false,
        },
        _ => false,
    };
    let within_ms = if event.what.is_end() { u64::MAX } else { BEFORE_MS };
    story.shortly_before(at, within_ms).find(|before| {
        let (order, of) = story.events[*before];
        owners[of].is_same_process(&owners[owner]) && means(&order.what).is_some_and(|means| means_it(&means))
    })
}

fn means(what: &What) -> Option<KillMeans<'_>> {
    let What::OrderReceived { order, .. } = what else { return None };
    let mut words = order.split_whitespace();
    if words.next() != Some("kill") {
        return None;
    }
    match (words.next()?, words.next()) {
        ("--all", None) => Some(KillMeans::All),
        ("--backend", Some(name)) => Some(KillMeans::Backend(name)),
        ("--client", Some(network)) => {
            let one = || network.parse::<IpAddr>().ok().map(IpNet::from);
            network.parse().ok().or_else(one).map(KillMeans::Client)
        }
        (flow, None) => flow.parse().ok().map(KillMeans::Flow),
        _ => None,
    }
}

/// The flows that it meant, by backend: a sentence.
fn meant(ordered: &BTreeMap<String, u64>) -> String {
    if ordered.is_empty() {
        return "The record names no flow that it meant.".to_owned();
    }
    let mut named: Vec<_> =
        ordered.iter().take(NAMED_MAX).map(|(backend, flows)| format!("{backend} {flows}")).collect();
    let others = ordered.len().saturating_sub(NAMED_MAX);
    if others > 0 {
        named.push(format!("and those of {}", plural(others as u64, "other backend")));
    }
    format!("It meant {}: {}.", plural(ordered.values().sum(), "flow"), named.join(", "))
}

/// Whether each of these frontends had a backend that serves, as far as the last sample before tells of them.
fn all_served(story: &Story<'_>, at_ms: u64, frontends: &BTreeSet<&str>) -> bool {
    let Some(sample) = story.sample_before(at_ms) else { return false };
    let serves = |frontend: &str| {
        let mut its = sample.backends.iter().filter(|it| it.frontend == frontend).peekable();
        its.peek().is_some().then(|| its.any(|it| it.state != HealthState::Ejected.label()))
    };
    let known: Vec<_> = frontends.iter().filter_map(|frontend| serves(frontend)).collect();
    !known.is_empty() && known.iter().all(|serves| *serves)
}
