//! The events of the VIP: what decided them, who had it before and since, the flows of this host, and what its clients felt.

use super::effects::by_reason;
use super::failovers::{holder_after, soon_after};
use super::gaps::gap_of_absence;
use super::{AFTER_MS, Explained, Figures, LATELY_MS, SENTENCES_MAX, Story, limit_ms, moment};
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::fleet::vip::{
    CUT_OFF_NS, LEASE_NS, LEASE_SAFE_NS, NO_BACKEND_NS, SILENT_NS, VipBar, VipGain, VipLoss, VipWhy,
};
use crate::model::health::HealthState;
use crate::model::humane::{duration_ms, plural};
use crate::table::journal::{Event, What};

/// A move of the VIP goes on for so long: what came before it in this time belongs to it.
const MOVE_MS: u64 = 60_000;

/// The event `at`, if it is one of the VIP. `None`: it is none.
pub(super) fn vip(story: &Story<'_>, at: usize) -> Option<Explained> {
    let (event, owner) = story.events[at];
    if !event.what.is_of_vip() {
        return None;
    }
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
    let mut sentences = vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())];
    let lease_renew_ms = story.recording.owners[owner].lease_renew_ms;
    match &event.what {
        What::VipGivenUp { late_ms: Some(late_ms), .. } => {
            let (gap, gap_ms) = gap_of_absence(*late_ms, lease_renew_ms, None);
            sentences.push(gap);
            figures.longest_gap_ms = gap_ms;
        }
        What::VipGivenUp { cut_off: true, .. } => sentences.extend(story.had_flows(event.at_unix_ms)),
        _ => {}
    }
    let order =
        matches!(event.what, What::VipGained { .. } | What::VipGivenUp { late_ms: None, .. } | What::VipHeld { .. });
    sentences.extend(if order { story.order_before(at) } else { None });
    sentences.extend(decided(story, at));
    if let What::VipGained { .. } = event.what
        && let Some((unserved, gap_ms)) = unserved_before(story, at, lease_renew_ms)
    {
        sentences.push(unserved);
        figures.longest_gap_ms = gap_ms;
    } else {
        sentences.push(holder_before(story, at));
    }
    sentences.extend(flows(story, at, &mut figures));
    sentences.extend(since(story, at, &mut figures));
    sentences.truncate(SENTENCES_MAX);
    Some((sentences, figures))
}

/// The last event of this VIP, and how often it has moved. `None`: no event names the address.
pub(super) fn of_address(story: &Story<'_>, address: &str) -> Option<Explained> {
    let is_its = |event: &Event| match &event.what {
        What::VipGained { vip, .. }
        | What::VipGivenUp { vip, .. }
        | What::VipHeld { vip, .. }
        | What::VipRestored { vip } => vip.split(", ").any(|it| it == address),
        What::VipShared { address: its, .. }
        | What::VipAlone { address: its }
        | What::VipLeftBehind { address: its } => its.to_string() == address,
        _ => false,
    };
    let last = story.events.iter().rposition(|(event, _)| is_its(event))?;
    let (mut sentences, mut figures) = story.of_event(last)?;
    let moves: Vec<_> = story.events.iter().filter(|(event, _)| is_its(event) && event.what.is_vip_move()).collect();
    let first_ms = moves.first().map_or(0, |(event, _)| event.at_unix_ms);
    let times = plural(moves.len() as u64, "move");
    sentences.truncate(SENTENCES_MAX - 1);
    sentences.push(match moves.len() {
        0 => "The record has no move of it.".to_owned(),
        _ => format!("The record has {times} of it, as this host saw them, since {}.", moment(first_ms)),
    });
    figures
        .see_also
        .extend(moves.iter().rev().skip(1).take(2).map(|(event, _)| format!("baton explain event:{}", event.number)));
    Some((sentences, figures))
}

/// The rule or the setting that decided: a sentence, and the loss before it if a backend's loss did.
fn decided(story: &Story<'_>, at: usize) -> Vec<String> {
    let ms = |ns: u64| duration_ms(ns / 1_000_000);
    let by_rank = "Of the instances that could have it a ready one comes first, then the one with the highest priority in [vip]: that decided it.";
    match &story.events[at].0.what {
        What::VipGained { gain, .. } => match gain {
            Some(VipGain::Vacant | VipGain::GivenUp(_)) => vec![by_rank.to_owned()],
            Some(VipGain::Silent(peer)) => vec![format!(
                "Nothing had come of {peer} for {}, which no setting decides, and no host answered for the addresses.",
                ms(SILENT_NS)
            )],
            Some(VipGain::Found) => vec![format!(
                "A process before this one, or another program, had left them here: the kernel keeps them for {} without a process.",
                ms(LEASE_NS)
            )],
            None => Vec::new(),
        },
        What::VipGivenUp { loss, .. } => match loss {
            Some(VipLoss::Barred(VipBar::Stopping)) => {
                vec!["A process that stops gives it up first, so that a peer takes it without waiting for its silence.".to_owned()]
            }
            Some(VipLoss::NotReady { heir }) => {
                vec![format!("An instance that is not ready does not keep it while another is: {heir} was.")]
            }
            Some(VipLoss::NoBackend { heir }) => {
                let lost = story.told_before(at, LATELY_MS, |before| {
                    matches!(story.events[before].0.what, What::BackendChanged { to: HealthState::Ejected, .. })
                });
                let rule = format!(
                    "For {} no backend could be used here, and one could at {heir}: that time no setting decides, and which backends are used [frontend.health] does.",
                    ms(NO_BACKEND_NS)
                );
                std::iter::once(rule).chain(lost).collect()
            }
            Some(VipLoss::Yielded { to }) => {
                vec![format!("Two instances had it, as happens if neither hears the other: the later claim counts, which was that of {to}.")]
            }
            Some(VipLoss::NoCarrier | VipLoss::NoInterface { .. } | VipLoss::NoAddress) => vec![format!(
                "A host that is so for {} gives it up, so that a peer takes it; no setting decides that time.",
                ms(CUT_OFF_NS)
            )],
            _ => Vec::new(),
        },
        What::VipHeld { by, .. } => {
            let why = soon_before(story, at).find(|it| tells_why(&it.what, by));
            vec![why.map_or_else(
                || format!("Why, this record does not say: that of {by} does (`baton vip --why`, there)."),
                |it| format!("About then, at {}, {}.", moment(it.at_unix_ms), it.what.sentence()),
            )]
        }
        What::VipHostCutOff { .. } => {
            vec!["While that is so this host does not take the VIP, whatever it knows of the others; no setting decides that.".to_owned()]
        }
        What::VipAnswered { .. } => vec!["Two hosts with one address would be worse than none: what that host did for clients this record cannot know.".to_owned()],
        What::VipDefended { .. } => vec![again(story, at, "Another host has claimed it", |what| matches!(what, What::VipDefended { .. }))],
        What::VipRestored { .. } => {
            vec![
                again(story, at, "That has happened", |what| matches!(what, What::VipRestored { .. })),
                "For how long it was missing is not recorded: clients waited for that time, if no other host had it.".to_owned(),
            ]
        }
        What::VipHookFailed { .. } => {
            let its = story.shortly_before(at, MOVE_MS).find(|before| {
                matches!(story.events[*before].0.what, What::VipGained { .. } | What::VipGivenUp { .. })
            });
            its.map(|its| story.earlier(at, its)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether it may be why the VIP went to `by`.
fn tells_why(what: &What, by: &str) -> bool {
    match what {
        What::VipGivenUp { .. }
        | What::FailedOver { .. }
        | What::EvacuationBegun { .. }
        | What::VipHostCutOff { .. } => true,
        What::PeerLiveness { peer, .. } => peer != by,
        _ => false,
    }
}

/// How often it came lately: a sentence.
fn again(story: &Story<'_>, at: usize, begins: &str, is_it: impl Fn(&What) -> bool) -> String {
    let times = story.shortly_before(at, LATELY_MS).filter(|before| is_it(&story.events[*before].0.what)).count() + 1;
    format!("{begins} {} within {}.", plural(times as u64, "time"), duration_ms(LATELY_MS))
}

/// The last move before the event at `at`.
fn move_before(story: &Story<'_>, at: usize) -> Option<usize> {
    story.events[..at].iter().rposition(|(event, _)| event.what.is_vip_move())
}

/// That the process before the one that starts by the event at `at` had the VIP, and may have been killed for a hang: a sentence.
pub(super) fn killed_as_holder(story: &Story<'_>, at: usize) -> Option<String> {
    let What::VipGained { .. } = &story.event_at(move_before(story, at)?).what else { return None };
    let hang = duration_ms(LEASE_SAFE_NS / 1_000_000);
    Some(format!("It had the VIP: the kernel kills such a process, too, if it hangs for {hang} and a peer is ready."))
}

/// That the process before the one that starts by the event at `at` did not have the VIP when it ended: a sentence.
pub(super) fn had_no_vip(story: &Story<'_>, at: usize) -> Option<String> {
    match &story.event_at(move_before(story, at)?).what {
        What::VipGivenUp { .. } => Some("It had given the VIP up before it ended.".to_owned()),
        What::VipHeld { by, .. } => Some(format!("It had no VIP when it ended: {by} had it.")),
        _ => None,
    }
}

/// That no instance had the VIP before this host took it, if this host knows: a sentence, and the longest gap.
fn unserved_before(story: &Story<'_>, at: usize, lease_renew_ms: u64) -> Option<(String, Option<u64>)> {
    let before = move_before(story, at)?;
    let ((lost, of), (gained, owner)) = (story.events[before], story.events[at]);
    let What::VipGivenUp { why, cut_off, .. } = &lost.what else { return None };
    if *cut_off {
        let since = moment(lost.at_unix_ms);
        let said = format!(
            "This host had given it up at {since}: {why}. It could not hear whether a peer had it meanwhile: how long clients waited, the record of \
             a peer that had it tells (baton explain last, there)."
        );
        return Some((said, None));
    }
    let away_ms = gained.at_unix_ms.saturating_sub(lost.at_unix_ms);
    let since = moment(lost.at_unix_ms);
    let owners = &story.recording.owners;
    if !owners[of].is_same_process(&owners[owner]) {
        let said = format!(
            "The process before had given it up at {since}: {why}; who had it until this one began is not recorded."
        );
        return Some((said, None));
    }
    let gap_ms = away_ms + lease_renew_ms;
    let [gap, away, renewal] = [gap_ms, away_ms, lease_renew_ms].map(limit_ms);
    let said = format!(
        "This host had given it up at {since}: {why}. No instance that it heard had it since, so the longest gap that a node can have seen is {gap}: \
         these {away}, and a renewal's {renewal}."
    );
    Some((said, Some(gap_ms)))
}

/// Who had the VIP before the event at `at`, and since when: a sentence.
fn holder_before(story: &Story<'_>, at: usize) -> String {
    let at_ms = story.events[at].0.at_unix_ms;
    let Some(before) = move_before(story, at) else { return "Who had it before is not recorded.".to_owned() };
    let moved = story.events[before].0;
    let (since, for_ms) = (moment(moved.at_unix_ms), duration_ms(at_ms.saturating_sub(moved.at_unix_ms)));
    let is_begun = |it: &Event| matches!(it.what, What::Started { .. }) && it.at_unix_ms + AFTER_MS >= moved.at_unix_ms;
    match &moved.what {
        // A process hears at its start who has it.
        What::VipHeld { by, .. } if story.events[..before].iter().any(|(event, _)| is_begun(event)) => {
            format!(
                "{by} had had it since {since} at the latest, for {for_ms} or more: then a process of this host began."
            )
        }
        What::VipHeld { by, .. } => format!("{by} had had it since {since}, for {for_ms}."),
        What::VipGained { .. } => format!("This host had had it since {since}, for {for_ms}."),
        _ => format!("This host had given it up at {since}, {for_ms} before."),
    }
}

/// The flows of this host then, and those that came or went with the VIP: a sentence.
fn flows(story: &Story<'_>, at: usize, figures: &mut Figures) -> Option<String> {
    let event = story.events[at].0;
    let had = story.sample_before(event.at_unix_ms).map(|sample| plural(sample.flows().into(), "flow"));
    let near = |other: &&Event| other.at_unix_ms.abs_diff(event.at_unix_ms) <= AFTER_MS;
    let around = || story.events.iter().map(|(event, _)| *event).filter(near);
    match &event.what {
        What::VipGained { .. } => {
            let came: usize = around()
                .map(|it| match &it.what {
                    What::FlowsClaimed { flows, .. } => *flows,
                    What::FailedOver { inherited, .. } => *inherited,
                    _ => 0,
                })
                .sum();
            Some(match (came, had) {
                (0, None) => return None,
                (0, Some(had)) => {
                    format!("This host had {had} before it; that one of another instance came with it is not recorded.")
                }
                (came, had) => format!(
                    "{} of other instances came with it and went on here{}.",
                    plural(came as u64, "flow"),
                    had.map_or_else(String::new, |had| format!("; this host had {had} before"))
                ),
            })
        }
        What::VipGivenUp { cut_off: true, .. } => None,
        What::VipGivenUp { .. } | What::VipHeld { .. } => {
            let times = event.at_unix_ms..=event.at_unix_ms + AFTER_MS;
            let mut moved = Figures::default();
            story.count_ends((None, None), times.clone(), |reason| reason == EndReason::Moved, &mut moved);
            let moved: u64 = moved.flows_ended.values().sum();
            let by_baton = |reason: EndReason| reason.client_saw() == ClientSaw::Rst;
            story.count_ends((None, None), times, by_baton, figures);
            let ended: u64 = figures.flows_ended.values().sum();
            let within = duration_ms(AFTER_MS);
            let had = had?;
            let lost = story.lost(figures);
            Some(match (moved, ended) {
                (0, 0) if figures.ends_not_recorded > 0 => format!("This host had {had} then.{lost}"),
                (0, 0) if had == plural(0, "flow") => "This host had no flow then.".to_owned(),
                (0, 0) => format!("This host had {had} then, and none of its flows ended with RST within {within}."),
                (moved, ended) => format!(
                    "This host had {had} then: within {within} {moved} moved on to another instance, and {ended} ended with RST{}.{lost}",
                    match ended {
                        0 => String::new(),
                        _ => format!(" ({})", by_reason(figures)),
                    }
                ),
            })
        }
        What::VipShared { .. }
        | What::VipLeftBehind { .. }
        | What::VipDefended { .. }
        | What::VipNotRemoved { .. }
        | What::VipRestored { .. } => had.map(|had| {
            format!("This host had {had} then: those of clients whose packets went to another host waited.")
        }),
        _ => had.map(|had| format!("This host had {had} then.")),
    }
}

/// How it went on: a sentence.
fn since(story: &Story<'_>, at: usize, figures: &mut Figures) -> Option<String> {
    let event = story.events[at].0;
    let lasted = |until: &Event| until.at_unix_ms.saturating_sub(event.at_unix_ms);
    let next = |is_it: &dyn Fn(&What) -> bool| {
        story.events[at + 1..].iter().map(|(event, _)| *event).find(|later| is_it(&later.what))
    };
    let ends_at = story.ends_at();
    match &event.what {
        What::VipGained { .. } => {
            Some(match next(&|what| matches!(what, What::VipGivenUp { .. } | What::VipHeld { .. })) {
                None => format!("It still had it at {ends_at}, where the record ends."),
                Some(over) => {
                    figures.lasted_ms = Some(lasted(over));
                    format!(
                        "It had it for {}: at {} {}.",
                        duration_ms(lasted(over)),
                        moment(over.at_unix_ms),
                        over.what.sentence()
                    )
                }
            })
        }
        What::VipHeld { by, .. } => Some(
            match next(&|what| {
                matches!(what, What::VipGained { .. }) || matches!(what, What::VipHeld { by: other, .. } if other != by)
            }) {
                None => format!("{by} still had it at {ends_at}, where the record ends."),
                Some(over) => {
                    figures.lasted_ms = Some(lasted(over));
                    format!(
                        "{by} had it for {}: at {} {}.",
                        duration_ms(lasted(over)),
                        moment(over.at_unix_ms),
                        over.what.sentence()
                    )
                }
            },
        ),
        What::VipGivenUp { cut_off: true, .. } | What::VipHostCutOff { .. } if cut_off_over(story, at).is_none() => {
            Some(cut_off_still(story, at))
        }
        What::VipGivenUp { .. } => holder_after(story, at).or_else(|| {
            let later = next(&What::is_vip_move);
            Some(later.map_or_else(
                || "Who had it after that is not recorded.".to_owned(),
                |later| {
                    format!(
                        "Who had it next is recorded {} later: {}.",
                        duration_ms(lasted(later)),
                        later.what.sentence()
                    )
                },
            ))
        }),
        What::VipShared { address, .. } | What::VipLeftBehind { address } => {
            Some(match next(&|what| matches!(what, What::VipAlone { address: its } if its == address)) {
                None => format!("The record has no end of it: it goes on at {ends_at}, as far as is known."),
                Some(over) => {
                    figures.lasted_ms = Some(lasted(over));
                    format!(
                        "That lasted {}: at {} {}.",
                        duration_ms(lasted(over)),
                        moment(over.at_unix_ms),
                        over.what.sentence()
                    )
                }
            })
        }
        What::VipAlone { address } => {
            let begun = story.events[..at].iter().rev().map(|(event, _)| *event).find(|before| match &before.what {
                What::VipShared { address: its, .. } | What::VipLeftBehind { address: its } => its == address,
                _ => false,
            })?;
            let for_ms = event.at_unix_ms.saturating_sub(begun.at_unix_ms);
            Some(format!(
                "That ended what had lasted {}: at {} {}.",
                duration_ms(for_ms),
                moment(begun.at_unix_ms),
                begun.what.sentence()
            ))
        }
        What::VipAnswered { .. } | What::VipRefused { .. } | What::VipHostCutOff { .. } => {
            Some(match next(&What::is_vip_move) {
                None => "The record has no later move of it.".to_owned(),
                Some(over) => {
                    figures.lasted_ms = Some(lasted(over));
                    format!(
                        "{} later, at {}, {}.",
                        duration_ms(lasted(over)),
                        moment(over.at_unix_ms),
                        over.what.sentence()
                    )
                }
            })
        }
        _ => soon_after(story, at)
            .find(|it| it.what.is_of_vip())
            .map(|later| format!("{} later {}.", duration_ms(lasted(later)), later.what.sentence())),
    }
}

/// What ends it that this host is cut off since the event at `at`: it hears who has the VIP, takes it, or begins anew.
pub(super) fn cut_off_over<'r>(story: &Story<'r>, at: usize) -> Option<&'r Event> {
    let mut later = story.events[at + 1..].iter().map(|(event, _)| *event);
    later.find(|it| matches!(it.what, What::VipHeld { .. } | What::VipGained { .. } | What::Started { .. }))
}

/// That this host is cut off when the record ends, and what would end it: a sentence.
fn cut_off_still(story: &Story<'_>, at: usize) -> String {
    let end_ms = story.recording.records.last().map_or(0, |record| record.at_unix_ms);
    let lasts = duration_ms(end_ms.saturating_sub(story.events[at].0.at_unix_ms));
    let ends_by = match &story.events[at].0.what {
        What::VipGivenUp { loss: Some(VipLoss::NoCarrier), .. }
        | What::VipHostCutOff { cause: Some(VipWhy::NoCarrier), .. } => {
            "the interface has a carrier again (cable, switch port)"
        }
        What::VipGivenUp { loss: Some(VipLoss::NoInterface { .. }), .. }
        | What::VipHostCutOff { cause: Some(VipWhy::NoInterface { .. }), .. } => {
            "the interface is there again, by that name"
        }
        What::VipGivenUp { loss: Some(VipLoss::NoAddress), .. }
        | What::VipHostCutOff { cause: Some(VipWhy::NoAddress), .. } => "the interface has its own address again",
        _ => "this host hears a peer, a backend or a client again",
    };
    format!(
        "That is still so at {}, where the record ends, after {lasts}: it ends once {ends_by}. Clients reach the host that has the VIP meanwhile.",
        story.ends_at()
    )
}

/// The events shortly before the one at `at`, the last first.
fn soon_before<'r>(story: &Story<'r>, at: usize) -> impl Iterator<Item = &'r Event> {
    story.shortly_before(at, AFTER_MS).map(|before| story.events[before].0)
}
