//! The longest time without a heartbeat that a node can have seen.

use std::collections::BTreeMap;

use super::{AFTER_MS, Figures, Story};
use crate::model::health::{Cause, HealthState};
use crate::model::humane::limit_ms;
use crate::table::journal::What;

/// A kubelet that is refused tries again after pauses that double from 200 ms up to this (k8s.io/component-helpers,
/// apimachinery/lease/controller.go).
const PAUSE_MAX_MS: u64 = 7_000;
const PAUSE_MIN_MS: u64 = 200;

/// How long a kubelet may pause once it is served again, after it was refused for `away_ms`.
fn pause_after(away_ms: u64) -> u64 {
    if away_ms == 0 { 0 } else { (away_ms + PAUSE_MIN_MS).min(PAUSE_MAX_MS) }
}

/// Whether clients that lose their backend had another one that serves: a ready one, or else one that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherBackend {
    Serves,
    /// From the loss of the last one on, none served for so many ms. `silence_ms`: what its clients waited before they were told.
    Away {
        from_unix_ms: u64,
        for_ms: u64,
        silence_ms: u64,
        /// Then this host gave the VIP up, and another one served the clients.
        vip_left: bool,
    },
    Never,
}

/// The longest time that a client of `frontend` can have waited, as `baton check` computes it. `silence_ms`: from the backend's silence to the
/// last reset, 0 if its kernel ended its connections at once.
pub(super) fn longest_gap(
    frontend: &str,
    silence_ms: u64,
    lease_renew_ms: u64,
    other: OtherBackend,
) -> (String, Option<u64>) {
    // A client that had another backend meanwhile has renewed there, or has waited for less.
    let (away_ms, silence_ms, is_whole) = match other {
        OtherBackend::Serves => (0, silence_ms, true),
        OtherBackend::Away { for_ms, silence_ms: of_last_ms, vip_left, .. } => {
            (for_ms, silence_ms.max(of_last_ms), !vip_left)
        }
        OtherBackend::Never => {
            let sentence =
                format!("Then no backend of {frontend} served until the record ends, so that its clients had none.");
            return (sentence, None);
        }
    };
    let pause_ms = if is_whole { pause_after(away_ms) } else { 0 };
    let gap_ms = silence_ms + away_ms + pause_ms + lease_renew_ms;
    let [gap, silence, away, pause, renewal] = [gap_ms, silence_ms, away_ms, pause_ms, lease_renew_ms].map(limit_ms);
    let paused = match pause_ms {
        0 => String::new(),
        _ => format!("{pause} for which a kubelet then pauses between two tries, "),
    };
    let (until, least) = if is_whole { ("", "") } else { (", until this host gave the VIP up", "at least ") };
    let seen = format!("longest gap that a node can have seen is {least}{gap}");
    let sentence = match (away_ms, silence_ms) {
        (0, 0) => format!("Its kernel ended its flows at once, so the {seen}: a renewal's."),
        (0, _) => format!("The {seen}: {silence} from the silence to the last reset, and a renewal's {renewal}."),
        (_, 0) => format!(
            "Then no backend of {frontend} served for {away}{until}, so the {seen}: that time, \
             {paused}and a renewal's {renewal}."
        ),
        (_, _) => format!(
            "Then no backend of {frontend} served for {away}{until}, so the {seen}: {silence} from a silence to its last reset, \
             that time, {paused}and a renewal's {renewal}."
        ),
    };
    if !is_whole {
        return (sentence + " What they waited after that, the host that has the VIP since can tell.", None);
    }
    (sentence, Some(gap_ms))
}

/// The longest time that a client can have waited whose flow was reset by an order: its backend answered until then.
pub(super) fn gap_of_order(frontend: &str, lease_renew_ms: u64, other: OtherBackend) -> (String, Option<u64>) {
    if other != OtherBackend::Serves {
        return longest_gap(frontend, 0, lease_renew_ms, other);
    }
    let (sentence, gap_ms) = gap_of_reset("to another backend ", lease_renew_ms);
    (sentence, Some(gap_ms))
}

/// The same while backends served all the time. `whereto`: a part of the sentence, or nothing.
pub(super) fn gap_of_reset(whereto: &str, lease_renew_ms: u64) -> (String, u64) {
    let gap = limit_ms(lease_renew_ms);
    let sentence = format!(
        "Their clients could connect {whereto}at once, so the longest gap that a node can have seen is {gap}: a renewal's."
    );
    (sentence, lease_renew_ms)
}

/// The longest time that a client can have waited for a process that had died: on the host with the VIP, without an offloaded flow.
/// `holder`: the peer that had the VIP once this host had a process again.
pub(super) fn gap_of_absence(away_ms: u64, lease_renew_ms: u64, holder: Option<&str>) -> (String, Option<u64>) {
    if let Some(holder) = holder {
        let away = limit_ms(away_ms);
        let sentence = format!(
            "No process ran for at most {away}, and within that time {holder} took the VIP: when, and so how long clients waited, is in the record \
             of {holder} (baton explain last, there)."
        );
        return (sentence, None);
    }
    let gap_ms = away_ms + lease_renew_ms;
    let [gap, away, renewal] = [gap_ms, away_ms, lease_renew_ms].map(limit_ms);
    let sentence = format!(
        "The longest gap that a node can have seen by this is {gap}: at most {away} without a running process, unless another host had the VIP, and a renewal's {renewal}."
    );
    (sentence, Some(gap_ms))
}

/// Whether the clients of a backend that is lost by the event at `at` had another one, also when they connected again.
pub(super) fn without_backend(story: &Story<'_>, at: usize, frontend: &str) -> OtherBackend {
    // Whoever was reset here connected to the host that has the VIP.
    if story.lacks_vip(at) == Some(false) {
        return OtherBackend::Serves;
    }
    let (begun_ms, owner) = (story.events[at].0.at_unix_ms, story.events[at].1);
    let sampled = story.sample_before(begun_ms);
    let of_frontend = sampled.into_iter().flat_map(|sample| &sample.backends).filter(|it| it.frontend == frontend);
    let mut serves: BTreeMap<&str, bool> =
        of_frontend.map(|it| (it.name.as_str(), it.state != HealthState::Ejected.label())).collect();
    let sampled_ms = sampled.map_or(0, |sample| sample.at_unix_ms);
    for (place, (event, _)) in story.events.iter().enumerate() {
        if event.at_unix_ms > begun_ms + AFTER_MS {
            break;
        }
        let What::BackendChanged { frontend: f, backend, to, cause, .. } = &event.what else { continue };
        if f != frontend || event.at_unix_ms < sampled_ms {
            continue;
        }
        serves.insert(backend, takes_new(*to, cause));
        if place < at || serves.values().any(|serves| *serves) {
            continue;
        }
        let back = story.events[place + 1..].iter().map(|(event, _)| *event).find(|next| match &next.what {
            What::BackendChanged { frontend: f, to, cause, .. } => f == frontend && takes_new(*to, cause),
            What::VipGivenUp { .. } => true,
            _ => false,
        });
        let Some(back) = back else { return OtherBackend::Never };
        let mut lost = Figures::default();
        let times = event.at_unix_ms..=back.at_unix_ms;
        let settings = story.settings(owner, frontend);
        let silence_ms = settings.map_or(0, |settings| settings.reset_after_silence_ms);
        let (_, first_end_ms) = story.effect(frontend, backend, times, owner, &mut lost);
        // It serves until its process ends, and a probe sees that a moment later.
        let (from_unix_ms, silence_ms) = match is_told_at_once(cause, &lost) {
            true => (first_end_ms.unwrap_or(event.at_unix_ms).min(event.at_unix_ms), 0),
            false => (event.at_unix_ms, silence_ms),
        };
        let for_ms = back.at_unix_ms.saturating_sub(from_unix_ms);
        let vip_left = matches!(back.what, What::VipGivenUp { .. });
        return OtherBackend::Away { from_unix_ms, for_ms, silence_ms, vip_left };
    }
    OtherBackend::Serves
}

/// Whether a backend in this state takes new connections if no better one does: not one that is only there for its last flows.
pub(super) fn takes_new(state: HealthState, cause: &Cause) -> bool {
    let is_closed = matches!(cause, Cause::Removed | Cause::Readdressed | Cause::NoConnection);
    state != HealthState::Ejected && !is_closed
}

/// Whether the kernel of a backend ended all its connections: that of a process that ends does not wait.
pub(super) fn is_told_at_once(cause: &Cause, figures: &Figures) -> bool {
    let has_reset = figures.flows_ordered > 0 || !figures.flows_ended.is_empty();
    *cause == Cause::Refused && !has_reset && !figures.flows_ended_by_backend.is_empty()
}
