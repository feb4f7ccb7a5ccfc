//! The sentences of an explanation: what happened, what decided it, what it did to clients, and how it ended.

mod beside;
mod causes;
mod effects;
pub(super) mod failovers;
mod flows;
mod frontends;
mod gaps;
mod headline;
mod kills;
pub(super) mod last;
mod nodes;
mod outage;
mod own;
mod pauses;
mod peers;
mod refusals;
mod stops;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod vips;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Subject;
use crate::model::end_reason::EndReason;
use crate::model::fleet::Liveness;
use crate::model::health::HealthState;
use crate::model::humane::{date_and_time, duration_ms, limit_ms, plural};
use crate::model::ids::FlowId;
use crate::recorder::{FrontendSettings, Recorded, RecordedSample, Recording, TimedRecord};
use crate::table::journal::{Event, What};
use causes::{decided_by, is_held_back};
use effects::share;
use gaps::{OtherBackend, gap_of_absence, gap_of_order, is_told_at_once, longest_gap, without_backend};

/// An order, or a reload, that came this long before an event may be its cause.
const BEFORE_MS: u64 = 5_000;

/// An explanation has no more: nobody reads on at night.
pub(super) const SENTENCES_MAX: usize = 6;

/// What may be a fault, so long after a bad event, may follow from it.
const LATELY_MS: u64 = 600_000;

/// What follows an event within this time may be its effect.
const AFTER_MS: u64 = 10_000;

/// The numbers of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Figures {
    /// Milliseconds since 1970 of what is explained.
    pub at_unix_ms: u64,
    /// Flows that Baton ordered to end.
    pub flows_ordered: u64,
    /// Ends of flows in the record that belong to it, by reason.
    pub flows_ended: BTreeMap<&'static str, u64>,
    /// Ends of flows by the backend itself about that time, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flows_ended_by_backend: BTreeMap<&'static str, u64>,
    /// Ends of flows of that time, whosever they were, that are no longer in the record: above 0, the ends by reason are at least so many.
    pub ends_not_recorded: u64,
    /// Commands that explain what else has this name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub see_also: Vec<String>,
    /// What else went wrong about that time, or still is wrong: a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// From what is explained to the last of these ends.
    pub ended_within_ms: u64,
    /// For which the state lasted; `None`: it still did when the record ended.
    pub lasted_ms: Option<u64>,
    /// The longest time without a heartbeat that a node can have seen, where a loss ended flows and another backend was ready in the record.
    pub longest_gap_ms: Option<u64>,
}

/// What was recorded, as a story needs it.
pub(super) struct Story<'r> {
    recording: &'r Recording,
    events: Vec<(&'r Event, usize)>,
}

pub(super) type Explained = (Vec<String>, Figures);

impl<'r> Story<'r> {
    pub(super) fn new(recording: &'r Recording) -> Self {
        let event = |record: &'r TimedRecord| match &record.what {
            // What the disk did not take is there all the same.
            _ if recording.is_filled(record) => None,
            Recorded::Event(event) => Some((event, record.owner)),
            Recorded::Owner(_) | Recorded::Sample(_) => None,
        };
        Self { recording, events: recording.records.iter().filter_map(event).collect() }
    }

    /// At most six sentences. `None`: nothing was recorded of it.
    pub(super) fn tell(&self, subject: &Subject) -> Option<Explained> {
        match subject {
            Subject::Number(number) => flows::flow(self, FlowId(*number)),
            Subject::Flow(flow) => flows::flow(self, *flow),
            Subject::Event(number) => self.event(*number),
            Subject::Backend(name) => self.backend(name),
            Subject::Instance(name) => self.peer(name),
            Subject::Last => last::last(self),
        }
    }

    /// When the flow with this number moved to another instance, if that is the last that was recorded of it: ms since 1970.
    pub(super) fn moved_away_ms(&self, id: FlowId) -> Option<u64> {
        let ends = self.events.iter().rev().map(|(event, _)| *event);
        let last = ends.into_iter().find_map(|event| match &event.what {
            What::FlowEnded { flow, reason, .. } if *flow == id => Some((*reason, event.at_unix_ms)),
            _ => None,
        });
        last.filter(|(reason, _)| *reason == EndReason::Moved).map(|(_, at_ms)| at_ms)
    }

    /// What else has this name: a VIP, this instance, a frontend or a node.
    pub(super) fn named(&self, name: &str) -> Option<Explained> {
        let of_vip = vips::of_address(self, name).or_else(|| own::own(self, name));
        of_vip.or_else(|| frontends::frontend(self, name)).or_else(|| nodes::node(self, name))
    }

    /// The last event with this number: each process numbers its events anew.
    fn event(&self, number: u64) -> Option<Explained> {
        let is_it = |(event, _): &&(&Event, usize)| event.number == number;
        let (mut sentences, figures) = self.of_event(self.events.iter().rposition(|it| is_it(&it))?)?;
        let earlier = self.events.iter().filter(is_it).count() - 1;
        if earlier > 0 && sentences.len() < SENTENCES_MAX {
            let (has, its) = if earlier == 1 { ("process has", "its") } else { ("processes have", "their") };
            sentences.push(format!(
                "{earlier} earlier {has} an event {number} of {its} own: --until TIME explains one of those."
            ));
        }
        Some((sentences, figures))
    }

    fn of_event(&self, at: usize) -> Option<Explained> {
        let (event, _) = self.events[at];
        match &event.what {
            What::BackendChanged { .. } => self.change(at),
            What::PeerLiveness { .. } | What::FailedOver { .. } if self.lacks_vip(at) == Some(true) => {
                let (mut sentences, figures) = self.plain(at)?;
                sentences.insert(
                    1,
                    "This host itself was cut off then: the peer may have lived on, with its flows.".to_owned(),
                );
                Some((sentences, figures))
            }
            What::PeerLiveness { .. } | What::FailedOver { .. } | What::VipGained { .. } => {
                failovers::failover(self, at).or_else(|| vips::vip(self, at)).or_else(|| self.plain(at))
            }
            What::RefusalsBegun { .. } | What::RefusalsOver { .. } => {
                outage::outage(self, at).or_else(|| refusals::refusals(self, at)).or_else(|| self.plain(at))
            }
            What::FlowEnded { .. } => flows::end(self, at),
            What::OrderReceived { .. } => {
                self.of_order(at).or_else(|| kills::kill(self, at)).or_else(|| self.plain(at))
            }
            What::FlowsOrdered { reason: EndReason::Killed, .. } => kills::kill(self, at).or_else(|| self.plain(at)),
            What::NodesBack { .. } => self.plain(self.silence_before(at).unwrap_or(at)),
            What::ProcessPaused { for_ms, proxied } => Some(pauses::pause(self, at, *for_ms, *proxied)),
            // The start that it is told after says more of it.
            What::ProcessDied { .. } => {
                let start = self.start_of(at);
                self.plain(if self.death_before(start).is_some() { start } else { at })
            }
            What::FlowsOrdered { frontend, backend, reason, .. } if is_by_backend(*reason) => {
                let decided = self.change_before(at, frontend, backend).and_then(|change| self.change(change));
                decided.or_else(|| self.plain(at))
            }
            _ => vips::vip(self, at).or_else(|| self.plain(at)),
        }
    }

    /// The last loss of a backend; or its last event, if it has lost nothing.
    fn backend(&self, name: &str) -> Option<Explained> {
        let is_it =
            |event: &Event| of_backend(event).is_some_and(|(frontend, backend)| is_named(name, frontend, backend));
        let is_loss = |event: &Event| match &event.what {
            What::BackendChanged { to, .. } => *to != HealthState::Ready,
            _ => false,
        };
        let newest =
            |wanted: &dyn Fn(&Event) -> bool| self.events.iter().rposition(|(event, _)| is_it(event) && wanted(event));
        // A drain before it is not why it is dead.
        let is_new = |event: &Event| match &event.what {
            What::BackendChanged { from, to, .. } => {
                *from == HealthState::Ready || (*from == HealthState::Draining && *to == HealthState::Ejected)
            }
            _ => false,
        };
        let killed = newest(&|event| matches!(event.what, What::FlowsOrdered { reason: EndReason::Killed, .. }));
        // One that is held back is not over with its last loss.
        let held = newest(&|event| matches!(event.what, What::BackendChanged { .. }));
        let held = held.filter(|at| is_held_back(self.events[*at].0));
        let at = held
            .or_else(|| newest(&|event| is_loss(event) && is_new(event)))
            .or_else(|| newest(&is_loss))
            .or(killed)
            .or_else(|| newest(&|_| true))?;
        let (mut sentences, mut figures) = self.of_event(at)?;
        if let Some((its, order)) = killed.filter(|it| *it >= at).and_then(|it| kills::of_backend(self, it)) {
            sentences.truncate(SENTENCES_MAX - 1);
            match killed == Some(at) {
                true => sentences.insert(1, its),
                false => {
                    let event = self.events[order].0;
                    let (since, what) = (moment(event.at_unix_ms), event.what.sentence());
                    sentences.push(format!("Newer is an order: at {since} {what}. {its}"));
                }
            }
        }
        let is_out_by_order = |event: &Event| match &event.what {
            What::BackendChanged { to, cause, .. } => *to != HealthState::Ready && last::is_ordered(cause),
            _ => false,
        };
        let ordered = newest(&is_out_by_order).filter(|it| *it > at && last::over_after(self, *it).is_none());
        if let Some((event, _)) = ordered.map(|it| self.events[it]) {
            sentences.truncate(SENTENCES_MAX - 1);
            sentences.push(format!(
                "What keeps it out now is newer: at {} {}.",
                moment(event.at_unix_ms),
                event.what.sentence()
            ));
        }
        let (told, _) = of_backend(self.events[at].0)?;
        let frontends = self.events.iter().filter(|(event, _)| is_it(event)).filter_map(|(event, _)| of_backend(event));
        let others: BTreeSet<_> =
            frontends.map(|(frontend, _)| frontend).filter(|frontend| *frontend != told).collect();
        figures.see_also.extend(others.iter().map(|frontend| format!("baton explain {frontend}/{name}")));
        Some((sentences, figures))
    }

    /// The last death of a peer, else the last change of its link, or its last event.
    fn peer(&self, name: &str) -> Option<Explained> {
        let last = |wanted: fn(&Event) -> bool| {
            self.events.iter().rposition(|(event, _)| peer_of(event) == Some(name) && wanted(event))
        };
        // Of its death more is known than of the link that ended with it; and a moment's silence since then is nothing beside it.
        match failovers::last_death(self, name) {
            Some(at) => peers::lived_on(self, name, self.of_event(at)?),
            None => {
                let lived = peers::lived(self, name);
                lived.or_else(|| self.plain(last(is_of_link).or_else(|| last(|_| true))?))
            }
        }
    }

    pub(super) fn event_at(&self, at: usize) -> &'r Event {
        self.events[at].0
    }

    /// The events of a peer, the newest first.
    pub(super) fn of_peer(&self, name: &str) -> impl Iterator<Item = &'r Event> {
        self.events.iter().rev().map(|(event, _)| *event).filter(move |event| peer_of(event) == Some(name))
    }

    /// An event with what came before and after it.
    fn plain(&self, at: usize) -> Option<Explained> {
        let (event, owner) = self.events[at];
        let mut sentences = vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())];
        let (mut absence_ms, mut lasted_ms) = (None, None);
        match &event.what {
            // No order to the process before it begins another one.
            What::Started { .. } => {
                if let Some((died, away_ms)) = self.death_before(at) {
                    sentences.push(died);
                    sentences.extend(self.went_on(at));
                    sentences.extend(self.stuck_before(at));
                    sentences.extend(vips::killed_as_holder(self, at));
                    if let Some(without) = vips::had_no_vip(self, at) {
                        sentences.push(without);
                    } else {
                        let lease_renew_ms = self.recording.owners[owner].lease_renew_ms;
                        let (gap, gap_ms) = gap_of_absence(away_ms, lease_renew_ms, failovers::holder_found(self, at));
                        sentences.push(gap);
                        absence_ms = gap_ms;
                    }
                }
            }
            What::NodesSilent { nodes, more, for_ms, why, refused } => {
                sentences.extend(self.silence(at, nodes, nodes.len() + more == 1, *for_ms, *why));
                refusals::add_refused(self, at, *for_ms, *refused, &mut sentences);
                let over = nodes.iter().find_map(|node| self.silence_over(at, node, *for_ms));
                let goes_on = last::still_silent(self, at);
                if let Some((over, ms)) = over {
                    sentences.push(over);
                    lasted_ms = Some(ms).filter(|_| goes_on.is_none());
                }
                if let Some(goes_on) = goes_on {
                    sentences.push(goes_on);
                    return Some((sentences, Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() }));
                }
            }
            What::RebalancePlanned { .. } | What::Rebalanced { .. } => {
                let ordered = self.order_of(at, "rebalance", None);
                sentences.extend(ordered.or_else(|| self.settings(owner, of_rebalance(event)?).and_then(rebalances)));
            }
            // What follows from it comes later.
            What::OrderReceived { .. } => {}
            _ => sentences.extend(self.order_before(at)),
        }
        let mut figures =
            Figures { at_unix_ms: event.at_unix_ms, longest_gap_ms: absence_ms, lasted_ms, ..Figures::default() };
        sentences.extend(self.aftermath(at, &mut figures));
        if lasted_ms.is_some() {
            return Some((sentences, figures));
        }
        let next = self.events[at + 1..].iter().map(|(event, _)| *event);
        // What follows at once from it is no news.
        let is_news = |it: &Event| !matches!(it.what, What::VipHeld { .. } | What::AddressWent { .. });
        let next = next.filter(|next| !next.what.is_end() && is_news(next));
        if let Some(next) = next.take_while(|next| next.at_unix_ms <= event.at_unix_ms + AFTER_MS).next() {
            // The clock may have been set back.
            let later = duration_ms(next.at_unix_ms.saturating_sub(event.at_unix_ms));
            sentences.push(format!("The next event came {later} later: {}.", next.what.sentence()));
        }
        Some((sentences, figures))
    }

    /// A change of a backend's health state.
    fn change(&self, at: usize) -> Option<Explained> {
        let (event, owner) = self.events[at];
        let What::BackendChanged { frontend, backend, from, to, cause } = &event.what else { return None };
        let mut figures = Figures { at_unix_ms: event.at_unix_ms, ..Figures::default() };
        let mut sentences = vec![format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence())];
        let settings = self.settings(owner, frontend);
        let ordered = last::is_ordered(cause);
        let mut found_before_ms = None;
        // An order that ends one is obeyed at once.
        let undrained = match (from, to) {
            (HealthState::Draining | HealthState::Ejected, HealthState::Ready) => {
                self.order_of(at, "undrain", Some(backend))
            }
            _ => None,
        };
        match (settings, ordered) {
            (_, true) => sentences.extend(self.order_before(at)),
            (_, false) if undrained.is_some() => sentences.extend(undrained),
            (_, false) if from == to || self.is_first(at, frontend, backend, *from) => {
                let (before, found_ms) = self.state_before_start(at, frontend, backend).unzip();
                found_before_ms = found_ms;
                let before = before.unwrap_or_default();
                sentences.push(format!("This was its first probe, which decides alone.{before}"));
            }
            (Some(settings), false) => {
                match is_held_back(event) {
                    true => sentences.push(self.damped(at, frontend, backend)),
                    false => sentences.extend(decided_by(settings, *to, cause)),
                }
                sentences.extend(if *to == HealthState::Ready { None } else { self.reload_before(at) });
            }
            (None, false) => {}
        }
        let over = last::over_after(self, at);
        if *to == HealthState::Ready {
            return Some((sentences, figures));
        }
        let until = over.map_or(u64::MAX, |over| over.at_unix_ms);
        let (effect, first_end_ms) = self.effect(frontend, backend, event.at_unix_ms..=until, owner, &mut figures);
        // A backend that dies ends its flows before a probe sees it.
        let begun_ms = first_end_ms.unwrap_or(event.at_unix_ms).min(event.at_unix_ms);
        sentences.extend([self.share_before((frontend, backend), begun_ms, event.at_unix_ms, owner), effect]);
        if *to == HealthState::Draining && over.is_none() {
            sentences.extend(self.drain_left((frontend, backend), event.at_unix_ms, cause));
        }
        let has_reset = figures.flows_ordered > 0 || !figures.flows_ended.is_empty();
        let is_loss = *to == HealthState::Ejected && !ordered;
        if let Some(nobody) = if is_loss { self.serves_nobody(at, frontend) } else { None } {
            sentences.push(nobody);
        } else if ordered && has_reset {
            let without = without_backend(self, at, frontend);
            let (sentence, gap_ms) = gap_of_order(frontend, self.recording.owners[owner].lease_renew_ms, without);
            figures.longest_gap_ms = gap_ms;
            sentences.push(sentence);
        } else if let (HealthState::Ejected, false, Some(settings)) = (*to, ordered, settings) {
            let without = without_backend(self, at, frontend);
            let was_told = is_told_at_once(cause, &figures);
            if has_reset || was_told || without != OtherBackend::Serves {
                let silence_ms = if was_told { 0 } else { settings.reset_after_silence_ms };
                let lease_renew_ms = self.recording.owners[owner].lease_renew_ms;
                let (sentence, gap_ms) = longest_gap(&settings.name, silence_ms, lease_renew_ms, without);
                let refused = self.refused_meanwhile(at, frontend, without, until);
                // Whoever found no place waited on.
                figures.longest_gap_ms = gap_ms.filter(|_| without != OtherBackend::Serves || refused.is_empty());
                sentences.push(sentence + &refused);
            }
        }
        sentences.push(match over {
            Some(Event { at_unix_ms, what: What::BackendAdded { .. }, .. }) => self.added_again(at, *at_unix_ms),
            Some(over) => {
                let lasted = over.at_unix_ms.saturating_sub(found_before_ms.unwrap_or(event.at_unix_ms));
                figures.lasted_ms = Some(lasted);
                // As the time without a backend beside it.
                let shown = if figures.longest_gap_ms.is_some() { limit_ms(lasted) } else { duration_ms(lasted) };
                format!("This lasted {shown}: at {} {}.", moment(over.at_unix_ms), over.what.sentence())
            }
            None => self.removed_before(at).unwrap_or_else(|| {
                format!(
                    "The record has no later change: {frontend}/{backend} was still {} at {}{}.",
                    to.label(),
                    self.ends_at(),
                    self.dropped_since(at)
                )
            }),
        });
        sentences.retain(|sentence| !sentence.is_empty());
        Some((sentences, figures))
    }

    /// The start of the process of the event at `at`, or that event, if none was recorded.
    fn start_of(&self, at: usize) -> usize {
        self.events[..=at].iter().rposition(|(event, _)| matches!(event.what, What::Started { .. })).unwrap_or(at)
    }

    /// A frontend's settings, as the process had them.
    fn settings(&self, owner: usize, frontend: &str) -> Option<&'r FrontendSettings> {
        self.recording.owners[owner].frontends.iter().find(|it| it.name == frontend)
    }

    /// The change of a backend before the event at `at` that made it lose flows.
    fn change_before(&self, at: usize, frontend: &str, backend: &str) -> Option<usize> {
        self.events[..at].iter().rposition(|(event, _)| {
            matches!(&event.what, What::BackendChanged { frontend: f, backend: b, to, .. } if f == frontend && b == backend && *to != HealthState::Ready)
        })
    }

    /// Whether no earlier change of the backend is of the same process, whose start was recorded, or the earlier one was of another address.
    fn is_first(&self, at: usize, frontend: &str, backend: &str, from: HealthState) -> bool {
        let owner = self.events[at].1;
        let mut earlier =
            self.events[..at].iter().rev().take_while(|(_, of)| *of == owner).map(|(event, _)| &event.what);
        let decides = |what: &What| match what {
            What::Started { .. } => Some(true),
            What::UpgradeFinished { .. } | What::UpgradeImported { .. } => Some(false),
            What::BackendChanged { frontend: f, backend: b, to, .. } if f == frontend && b == backend => {
                Some(*to != from)
            }
            What::BackendAdded { frontend: f, backend: b } if f == frontend && b == backend => Some(true),
            _ => None,
        };
        earlier.find_map(decides).unwrap_or(false)
    }

    fn sample_before(&self, at_unix_ms: u64) -> Option<&'r RecordedSample> {
        self.samples_before(at_unix_ms).next().map(|(_, sample)| sample)
    }

    /// The youngest first, each with its process.
    fn samples_before(&self, at_unix_ms: u64) -> impl Iterator<Item = (usize, &'r RecordedSample)> {
        self.recording.samples().rev().filter(move |(_, sample)| sample.at_unix_ms <= at_unix_ms)
    }

    /// The backend's share of the flows in the last sample of this process before `begun_ms`, for an event at `at_unix_ms`.
    fn share_before(&self, of: (&str, &str), begun_ms: u64, at_unix_ms: u64, owner: usize) -> String {
        let owners = &self.recording.owners;
        let is_of_this = |(of, _): &(usize, _)| owners[*of].is_same_process(&owners[owner]);
        let Some((_, sample)) = self.samples_before(begun_ms).find(is_of_this) else { return String::new() };
        let (its, all) = share(sample, of);
        let earlier = duration_ms(at_unix_ms - sample.at_unix_ms);
        let since = self.inherited_between(sample.at_unix_ms, at_unix_ms).map_or_else(String::new, |(peer, flows)| {
            format!(
                " Since then this instance had carried on {} of {peer}, which that does not count.",
                plural(flows, "flow")
            )
        });
        format!("{earlier} before, it had {} of the frontend's {}.{since}", plural(its, "flow"), all)
    }

    /// A peer that died in this time, and how many of its flows this instance has carried on.
    fn inherited_between(&self, from_ms: u64, until_ms: u64) -> Option<(&'r str, u64)> {
        let within =
            self.events.iter().map(|(event, _)| *event).filter(|it| (from_ms..=until_ms).contains(&it.at_unix_ms));
        within.rev().find_map(|it| match &it.what {
            What::FailedOver { instance, inherited, .. } if *inherited > 0 => Some((&*instance.0, *inherited as u64)),
            _ => None,
        })
    }

    /// The last fault of an instance that does not answer: before it, that the record ends with neither a stop nor an upgrade.
    pub(super) fn after_the_end(&self, last: Option<Explained>) -> Option<Explained> {
        let Some(end) = self.recording.never_left() else { return last };
        let (mut sentences, figures) = last.unwrap_or_default();
        let ended = format!(
            "No instance answers, and the record ends at {} without a stop: it was killed, it hangs, or its host went down.",
            moment(end.at_unix_ms)
        );
        sentences.insert(0, ended);
        // The last one says whether it is over.
        if sentences.len() > SENTENCES_MAX {
            sentences.drain(SENTENCES_MAX - 1..sentences.len() - 1);
        }
        Some((sentences, figures))
    }

    /// When the record ends.
    fn ends_at(&self) -> String {
        self.recording.records.last().map_or_else(String::new, |record| moment(record.at_unix_ms))
    }
}

/// Whether flows end for this reason since their backend's state has changed.
fn is_by_backend(reason: EndReason) -> bool {
    matches!(reason, EndReason::BackendEjected | EndReason::EjectedByOperator | EndReason::DrainDeadline)
}

/// The setting that moves flows, with its value.
fn rebalances(settings: &FrontendSettings) -> Option<String> {
    let what = match settings.rebalance_when.as_str() {
        "after_outage" => "flows that began while a backend was away move to it once it is back, each at most once",
        "always" => "flows move away from a backend that has more than its share",
        _ => return None,
    };
    Some(format!("rebalance.when = \"{}\" decided it: {what}.", settings.rebalance_when))
}

fn of_rebalance(event: &Event) -> Option<&str> {
    match &event.what {
        What::RebalancePlanned { frontend, .. } | What::Rebalanced { frontend, .. } => Some(frontend),
        _ => None,
    }
}

fn of_backend(event: &Event) -> Option<(&str, &str)> {
    match &event.what {
        What::BackendChanged { frontend, backend, .. }
        | What::FlowsOrdered { frontend, backend, .. }
        | What::BackendAdded { frontend, backend }
        | What::BackendRemoved { frontend, backend }
        | What::BackendResolved { frontend, backend, .. } => Some((frontend, backend)),
        _ => None,
    }
}

/// Whether it changes the state of a link.
pub(super) fn is_of_link(event: &Event) -> bool {
    matches!(
        event.what,
        What::PeerLinked { .. } | What::PeerLost { .. } | What::PeerUnreachable { .. } | What::PeerLiveness { .. }
    )
}

/// Whether it is the death of a peer.
fn is_death(event: &Event) -> bool {
    matches!(event.what, What::PeerLiveness { liveness: Liveness::Dead, .. })
}

/// The peer that an event is about.
pub(super) fn peer_of(event: &Event) -> Option<&str> {
    match &event.what {
        What::PeerLinked { peer, .. }
        | What::PeerLost { peer, .. }
        | What::PeerUnreachable { peer, .. }
        | What::PeerSynced { peer, .. }
        | What::PeerGap { peer }
        | What::PortsOverlap { peer, .. }
        | What::PeerLiveness { peer, .. } => Some(peer),
        What::FailedOver { instance, .. } | What::FlowsStrange { instance, .. } => Some(&instance.0),
        _ => None,
    }
}

fn is_named(name: &str, frontend: &str, backend: &str) -> bool {
    name == backend || name.split_once('/').is_some_and(|(of, its)| of == frontend && its == backend)
}

/// `2026-11-25 03:12:07.412Z`.
pub(super) fn moment(at_unix_ms: u64) -> String {
    let (date, time) = date_and_time(at_unix_ms);
    format!("{date} {time}.{:03}Z", at_unix_ms % 1000)
}
