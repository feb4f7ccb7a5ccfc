//! This instance itself: its process, its reloads, upgrades and stalls, and the VIP.

use super::{Explained, Figures, SENTENCES_MAX, Story, moment};
use crate::model::humane::{duration_ms, plural};
use crate::table::journal::{Event, Trouble, What};

/// `None`: the record is not that of an instance or host with this name.
pub(super) fn own(story: &Story<'_>, name: &str) -> Option<Explained> {
    let last = story.recording.records.last()?;
    let owner = &story.recording.owners[last.owner];
    if owner.instance.as_deref() != Some(name) && owner.host != name {
        return None;
    }
    let mut figures = Figures::default();
    let started = |what: &What| matches!(what, What::Started { .. });
    let start = story.events.iter().rposition(|(event, _)| started(&event.what));
    let begun_ms = match (owner.began_unix_ms, start) {
        (0, Some(start)) => Some(story.events[start].0.at_unix_ms),
        (0, None) => None,
        (began_ms, _) => Some(began_ms),
    };
    figures.at_unix_ms = begun_ms.unwrap_or(0);
    let begun = begun_ms.map_or_else(String::new, |at_ms| format!(", began at {}", moment(at_ms)));
    let flows = story.sample_before(last.at_unix_ms).map(|sample| plural(sample.flows().into(), "flow"));
    let had = flows.map_or_else(String::new, |flows| format!(" and had {flows}"));
    let release = if owner.version.is_empty() { String::new() } else { format!("Baton {}, ", owner.version) };
    let mut sentences = vec![format!(
        "{name} is this instance: its process ({release}pid {}){begun}; it recorded until {}{had}.",
        owner.pid,
        moment(last.at_unix_ms)
    )];
    let starts = (0..story.events.len()).filter(|at| started(&story.events[*at].0.what));
    let deaths: Vec<_> = starts.clone().filter(|at| story.death_before(*at).is_some()).collect();
    let number = starts.count() as u64;
    let died = match deaths.last() {
        None if number == 0 => None,
        None => Some(format!("The record has {} of it, none after a crash or a kill.", plural(number, "start"))),
        Some(at) => story.death_before(*at).map(|(said, _)| {
            let times = plural(deaths.len() as u64, "time");
            let (starts, event) = (plural(number, "start"), story.events[*at].0);
            format!(
                "The record has {starts} of it, {times} after a crash or a kill, the last at {}: {said}",
                moment(event.at_unix_ms)
            )
        }),
    };
    sentences.extend(died);
    let is_upgrade = |what: &What| {
        matches!(what, What::UpgradeFinished { .. } | What::UpgradeFailed { .. } | What::UpgradeImported { .. })
    };
    let is_reload = |what: &What| matches!(what, What::Reloaded { .. } | What::ReloadRefused { .. });
    let of_kinds = [
        latest(story, "upgrade", is_upgrade),
        latest(story, "reload", is_reload),
        stalls(story),
        latest(story, "move of the VIP", What::is_vip_move),
    ];
    let none =
        ["upgrade", "reload", "stall", "move of the VIP"].into_iter().zip(&of_kinds).filter(|(_, it)| it.is_none());
    let none: Vec<_> = none.map(|(kind, _)| format!("no {kind}")).collect();
    sentences.extend(of_kinds.into_iter().flatten());
    if !none.is_empty() && sentences.len() < SENTENCES_MAX {
        sentences.push(format!("The record has {}.", none.join(", ")));
    }
    sentences.truncate(SENTENCES_MAX);
    Some((sentences, figures))
}

/// The number of events of this kind, and the last of them: a sentence.
fn latest(story: &Story<'_>, kind: &str, is_it: impl Fn(&What) -> bool) -> Option<String> {
    let its: Vec<&Event> = story.events.iter().map(|(event, _)| *event).filter(|event| is_it(&event.what)).collect();
    let last = its.last()?;
    let number = plural(its.len() as u64, kind)
        .replace("VIPs", "VIP")
        .replace("move of", if its.len() == 1 { "move of" } else { "moves of" });
    Some(format!("{number}, the last at {}: {}.", moment(last.at_unix_ms), last.what.sentence()))
}

/// How often it stood still, and how the last time ended: a sentence.
fn stalls(story: &Story<'_>) -> Option<String> {
    let is_stall = |what: &What| {
        matches!(
            what,
            What::WorkerStuck { .. }
                | What::ProcessPaused { .. }
                | What::AcceptPaused { .. }
                | What::VipGivenUp { late_ms: Some(_), .. }
        )
    };
    let said = latest(story, "stall", is_stall)?;
    let last = story.events.iter().rposition(|(event, _)| is_stall(&event.what))?;
    let mut trouble = Trouble::begun_by(&story.event_at(last).what);
    let mut is_over = |what: &What| {
        matches!(what, What::Started { .. }) || trouble.as_mut().is_some_and(|trouble| trouble.is_over_by(what))
    };
    let over = story.events[last + 1..].iter().map(|(event, _)| *event).find(|later| is_over(&later.what));
    let later = over.map(|over| {
        let after = duration_ms(over.at_unix_ms.saturating_sub(story.events[last].0.at_unix_ms));
        format!("; {after} later {}", over.what.sentence())
    });
    Some(format!("{}{}.", said.trim_end_matches('.'), later.unwrap_or_default()))
}
