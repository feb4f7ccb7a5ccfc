//! The death of a peer, and what this instance did about it.

use super::{AFTER_MS, Explained, Figures, SENTENCES_MAX, Story, is_death, is_of_link, moment, peer_of};
use crate::model::fleet::Liveness;
use crate::model::fleet::vip::SILENT_NS;
use crate::model::humane::{count, duration_ms, limit_ms, plural};
use crate::table::journal::{Event, What};

/// A failover is over within this time.
const WITHIN_MS: u64 = 10_000;
/// The link to a peer that dies ends within this time of its silence.
const LINK_ENDS_MS: u64 = 2_000;
/// A peer is called silent once nothing has come for this long.
const SILENT_MS: u64 = SILENT_NS / 1_000_000;
/// One thread takes the VIP and another counts the peer's silence: either may record first, by so much at most.
const SKEW_MS: u64 = 1_000;

/// The event `at`, if it is one of a failover or of a moment's silence. `None`: it is none of these.
pub(super) fn failover(story: &Story<'_>, at: usize) -> Option<Explained> {
    let (event, owner) = story.events[at];
    let near = |other: &Event| other.at_unix_ms.abs_diff(event.at_unix_ms) <= WITHIN_MS;
    let around = || story.events.iter().map(|(event, _)| *event).filter(|other| near(other));
    let peer = match &event.what {
        What::PeerLiveness { peer, liveness: Liveness::Silent | Liveness::Dead, .. } => peer,
        What::FailedOver { instance, .. } => &*instance.0,
        What::VipGained { silent: Some(peer), .. } => peer,
        What::VipGained { silent: None, .. } => peer_of(around().find(|other| is_failover(other) || is_death(other))?)?,
        _ => return None,
    };
    let place = |it: &Event| story.events.iter().position(|(event, _)| std::ptr::eq(*event, it)).unwrap_or(at);
    let is_back = |it: &Event| peer_of(it) == Some(peer) && is_of_link(it) && is_return(it);
    // What came before it was heard again is another matter.
    let heard = story.events[..at].iter().rposition(|(before, _)| near(before) && is_back(before));
    let of_peer = || {
        let since = around().filter(move |it| heard.is_none_or(|heard| place(it) > heard));
        since.filter(|other| peer_of(other) == Some(peer))
    };
    let silent = of_peer().find(|other| {
        matches!(other.what, What::PeerLiveness { liveness: Liveness::Silent, .. })
            && other.at_unix_ms <= event.at_unix_ms + SKEW_MS
    });
    let (death, over) = (of_peer().find(|it| is_death(it)), of_peer().find(|it| is_failover(it)));
    // It resets flows of an address once that is here.
    let step = of_peer().filter(|it| is_failover(it)).nth(1);
    let is_of_silence = |it: &Event| matches!(&it.what, What::VipGained { silent: Some(of), .. } if of == peer);
    let taken = around().find(|it| is_of_silence(it) && heard.is_none_or(|heard| place(it) > heard));
    // The same for each event of one failover: its gap is one figure.
    let first_ms = || [Some(event), death, over, taken].into_iter().flatten().map(|it| it.at_unix_ms).min();
    let begun_ms = silent.map(|it| it.at_unix_ms).or_else(first_ms).unwrap_or(event.at_unix_ms);
    // Of a peer that was silent for a moment, another one's death moved the VIP.
    let vip = around().find(|it| matches!(it.what, What::VipGained { .. }) && it.at_unix_ms + SKEW_MS >= begun_ms);
    let vip = vip.filter(|it| death.or(over).is_some() || is_of_silence(it));
    // What kept this instance from taking it, or who took it instead.
    let until_ms = vip.map_or(u64::MAX, |it| it.at_unix_ms);
    let beside = around().filter(|it| (begun_ms..=until_ms).contains(&it.at_unix_ms));
    let answered = beside.clone().find(|it| matches!(it.what, What::VipAnswered { .. }));
    let mut held = beside.filter(|it| matches!(&it.what, What::VipHeld { by, .. } if by != peer));
    let another = if vip.is_none() && death.or(over).is_some() { held.next() } else { None };
    let last = [death, over].into_iter().flatten().map(place).max().unwrap_or(at);
    let back = story.events[last + 1..].iter().map(|(event, _)| *event).find(|it| is_back(it));

    let told = |it: &Event| format!("At {} {}.", moment(it.at_unix_ms), it.what.sentence());
    let parts =
        [silent.filter(|_| answered.is_none()), answered, death, over, step, vip, another].into_iter().flatten();
    let mut parts: Vec<_> = parts.filter(|it| !std::ptr::eq(*it, event)).chain([event]).collect();
    parts.sort_by_key(|it| it.at_unix_ms);
    let mut sentences: Vec<_> = parts.into_iter().map(told).collect();
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    let mut had_clients = vip.is_some();
    if over.is_some() {
        let (inherited, reset) = flows_of([over, step]);
        figures.flows_ordered = reset;
        had_clients |= inherited + reset > 0;
    }
    // A link that ends with its peer is no news.
    let unlinked_ms = unlinked_ms(story, peer, at).map(|lost_ms| begun_ms.saturating_sub(lost_ms));
    let unlinked_ms = unlinked_ms.filter(|ms| *ms > LINK_ENDS_MS && death.or(over).is_some());
    if let Some(ms) = unlinked_ms {
        sentences.push(format!(
            "There had been no link to {peer} for {}: flows that it began in that time were not known here, and are reset with their next packet.",
            duration_ms(ms)
        ));
    }
    let lease_renew_ms = story.recording.owners[owner].lease_renew_ms;
    // A worker that was stuck served nobody, while other threads of its process beat on.
    let stuck_ms = of_peer().filter(|it| it.at_unix_ms >= begun_ms).find_map(|it| match it.what {
        What::PeerLiveness { stuck_ms: Some(ms), .. } => Some(ms.saturating_sub(it.at_unix_ms - begun_ms)),
        _ => None,
    });
    // Its clients waited until the VIP was here, or until this instance took its flows: unless another host serves them, as its answer says.
    if let Some(served) = vip.or(over).filter(|_| had_clients && (vip.is_some() || answered.is_none())) {
        let last_beat_ms = begun_ms.saturating_sub(SILENT_MS.max(stuck_ms.unwrap_or(0)));
        let waited_ms = served.at_unix_ms.saturating_sub(last_beat_ms);
        let gap_ms = waited_ms + lease_renew_ms;
        figures.longest_gap_ms = Some(gap_ms).filter(|_| unlinked_ms.is_none());
        let of_these = if unlinked_ms.is_some() { "Of flows that were known, the" } else { "The" };
        sentences.push(format!(
            "{of_these} longest gap that a node can have seen is {}: {} from {} to this, which no setting decides, and a renewal's {}.",
            limit_ms(gap_ms),
            limit_ms(waited_ms),
            match stuck_ms.filter(|ms| *ms > SILENT_MS) {
                Some(_) => format!("the time at which a worker of {peer} was stuck"),
                None => format!("{peer}'s last beat"),
            },
            limit_ms(lease_renew_ms)
        ));
    }
    sentences.extend(rest_of_its_flows(story, peer, at, vip.or(over).is_some(), [over, step]));
    if had_clients && stuck_ms.is_none() && sentences.len() + usize::from(back.is_some()) < SENTENCES_MAX {
        sentences.push(format!("Whether workers of {peer} were stuck before its last beat, its own record tells (baton explain last, there)."));
    }
    if let Some(back) = back {
        let lasted_ms = back.at_unix_ms.saturating_sub(begun_ms);
        figures.lasted_ms = Some(lasted_ms);
        let alone =
            if death.or(over).or(vip).is_none() { "It was a moment's silence, which changes nothing: " } else { "" };
        sentences.push(format!("{alone}{} later {}.", duration_ms(lasted_ms), back.what.sentence()));
    }
    // That it carries its flows on says that it is dead.
    if let (Some(death), Some(_)) = (death.filter(|it| !std::ptr::eq(*it, event)), over)
        && sentences.len() > SENTENCES_MAX
    {
        let said = told(death);
        sentences.retain(|it| *it != said);
    }
    sentences.truncate(SENTENCES_MAX);
    Some((sentences, figures))
}

/// How many flows these steps of a failover carried on, and how many they reset.
fn flows_of(steps: [Option<&Event>; 2]) -> (u64, u64) {
    steps.into_iter().flatten().fold((0, 0), |(all, ended), it| match it.what {
        What::FailedOver { inherited, reset, .. } => (all + inherited as u64, ended + reset as u64),
        _ => (all, ended),
    })
}

/// What became of those flows of the peer that this instance neither carries on nor resets, as far as it knows: a sentence.
/// `has_served`: clients of the peer came here.
fn rest_of_its_flows(
    story: &Story<'_>,
    peer: &str,
    at: usize,
    has_served: bool,
    steps: [Option<&Event>; 2],
) -> Option<String> {
    let at_ms = story.events[at].0.at_unix_ms;
    if steps.iter().any(Option::is_some) {
        let (inherited, reset) = flows_of(steps);
        let (here, known) = (inherited + reset, story.events[..at].iter().rev().map(|(event, _)| *event));
        let known = known.filter(|it| peer_of(it) == Some(peer)).find_map(|it| match it.what {
            What::PeerSynced { flows, .. } => Some((it.at_unix_ms, flows)),
            _ => None,
        });
        let (known_ms, _) = known.filter(|(_, flows)| *flows > here)?;
        let (since, flows) = (moment(known_ms), known.map_or(0, |(_, flows)| flows));
        return Some(format!(
            "When this instance had got all flows of {peer}, at {since}, it had {}: of the {} beyond these no end is \
             recorded here. They ended at {peer}, or went to an instance other than these two; one that is known nowhere is reset with its next packet.",
            plural(flows, "flow"),
            count(flows - here)
        ));
    }
    let claimed: usize = story
        .events
        .iter()
        .map(|(event, _)| *event)
        .map(|it| match &it.what {
            What::FlowsClaimed { instance, flows }
                if *instance.0 == *peer && it.at_unix_ms.abs_diff(at_ms) <= WITHIN_MS =>
            {
                *flows
            }
            _ => 0,
        })
        .sum();
    has_served.then(|| match claimed {
        0 => format!("Which flows of {peer} came here is not recorded: those that stayed there, its own record has (baton explain last, there)."),
        flows => format!(
            "{} of {peer} came here with their packets and went on; its others stayed there, and its own record has them (baton explain last, there).",
            plural(flows as u64, "flow")
        ),
    })
}

/// The last death of the peer: where this instance took its flows, if it did about then.
pub(in crate::cli::explain) fn last_death(story: &Story<'_>, peer: &str) -> Option<usize> {
    let last = |is_it: fn(&Event) -> bool| {
        story.events.iter().rposition(|(event, _)| peer_of(event) == Some(peer) && is_it(event))
    };
    match (last(is_failover), last(is_death)) {
        (Some(over), Some(death)) => {
            let [over_ms, death_ms] = [over, death].map(|at| story.events[at].0.at_unix_ms);
            Some(if over_ms + WITHIN_MS >= death_ms { over } else { death })
        }
        (over, death) => over.or(death),
    }
}

/// Which host had the VIP after this one had given it up by the event at `at`: a sentence.
pub(super) fn holder_after(story: &Story<'_>, at: usize) -> Option<String> {
    let given_up_ms = story.events[at].0.at_unix_ms;
    let held = soon_after(story, at).find(|it| matches!(it.what, What::VipHeld { .. } | What::VipGained { .. }))?;
    let after = duration_ms(held.at_unix_ms.saturating_sub(given_up_ms));
    Some(match &story.events[at].0.what {
        // It hears of it once it hears anybody.
        What::VipGivenUp { cut_off: true, .. } => {
            format!("This host heard {after} later that {}.", held.what.sentence())
        }
        _ => format!("{after} later {}.", held.what.sentence()),
    })
}

/// The peer that had the VIP when this host's process, which starts by the event at `at`, heard of it.
pub(super) fn holder_found<'r>(story: &Story<'r>, at: usize) -> Option<&'r str> {
    soon_after(story, at).find_map(|it| match &it.what {
        What::VipHeld { by, .. } => Some(Some(by.as_str())),
        What::VipGained { .. } | What::Started { .. } => Some(None),
        _ => None,
    })?
}

pub(super) fn soon_after<'r>(story: &Story<'r>, at: usize) -> impl Iterator<Item = &'r Event> {
    let at_ms = story.events[at].0.at_unix_ms;
    let later = story.events[at + 1..].iter().map(|(event, _)| *event);
    later.take_while(move |it| it.at_unix_ms <= at_ms + AFTER_MS)
}

/// Which peer had got the VIP about the time of the event at `at`: a sentence.
pub(super) fn owner_near(story: &Story<'_>, at: usize) -> Option<String> {
    let at_ms = story.events[at].0.at_unix_ms;
    let is_near = |it: &&Event| it.at_unix_ms.abs_diff(at_ms) <= WITHIN_MS && matches!(it.what, What::VipHeld { .. });
    let held = story.events.iter().map(|(event, _)| *event).filter(is_near);
    let nearest = held.min_by_key(|it| it.at_unix_ms.abs_diff(at_ms))?;
    Some(format!("About then, at {}, {}.", moment(nearest.at_unix_ms), nearest.what.sentence()))
}

/// Whether the peer had the VIP when it died last: a sentence. `None`: that was not recorded.
pub(in crate::cli::explain) fn vip_at_death(story: &Story<'_>, peer: &str) -> Option<String> {
    let ended = |it: &Event| peer_of(it) == Some(peer) && (is_death(it) || is_failover(it));
    let last = story.events.iter().rposition(|(event, _)| ended(event))?;
    // This instance may have its flows, and the VIP, a moment before it counts it as dead.
    let death_ms = story.events[last].0.at_unix_ms;
    let near = |it: &Event| it.at_unix_ms + WITHIN_MS >= death_ms;
    let first =
        (0..=last).rev().take_while(|at| near(story.events[*at].0)).filter(|at| ended(story.events[*at].0)).last()?;
    let moved = story.events[..first].iter().rev().map(|(event, _)| *event).find_map(|event| match &event.what {
        What::VipHeld { vip, by } => Some((event.at_unix_ms, vip, by == peer)),
        // Taken from it, a moment before it counted as dead.
        What::VipGained { silent: Some(of), .. } if of == peer && near(event) => None,
        What::VipGained { vip, .. } => Some((event.at_unix_ms, vip, false)),
        _ => None,
    });
    moved.map(|(since_ms, vip, is_its)| match is_its {
        true => format!("It had the VIP {vip} then, since {}.", moment(since_ms)),
        false => "It had no VIP then.".to_owned(),
    })
}

/// When the link to the peer ended, before the event at `at`, if none has come up since; ms since 1970.
fn unlinked_ms(story: &Story<'_>, peer: &str, at: usize) -> Option<u64> {
    let of_peer = story.events[..=at].iter().rev().map(|(event, _)| *event).filter(|it| peer_of(it) == Some(peer));
    let ends = of_peer.take_while(|it| !matches!(it.what, What::PeerLinked { .. }));
    ends.filter(|it| matches!(it.what, What::PeerLost { .. })).last().map(|it| it.at_unix_ms)
}

fn is_failover(event: &Event) -> bool {
    matches!(event.what, What::FailedOver { .. })
}

fn is_return(event: &Event) -> bool {
    matches!(event.what, What::PeerLinked { .. } | What::PeerLiveness { liveness: Liveness::Alive, .. })
}
