//! What may be a fault, and what may have caused it.

use std::collections::BTreeMap;

use super::gaps::takes_new;
use super::last::is_ordered;
use super::{AFTER_MS, BEFORE_MS, Explained, LATELY_MS, SENTENCES_MAX, Story, is_death, moment, stops};
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::fleet::Liveness;
use crate::model::health::{Cause, HealthState};
use crate::model::humane::{duration_ms, plural};
use crate::model::nodes::SilenceKind;
use crate::model::weight::Weight;
use crate::recorder::FrontendSettings;
use crate::table::journal::{Event, What};

impl Story<'_> {
    /// As a fault.
    pub(super) fn weight(&self, at: usize) -> Weight {
        let (event, _) = self.events[at];
        let is_applied = |(later, _): &(&Event, usize)| matches!(later.what, What::Reloaded { .. });
        match &event.what {
            // A host that is cut off loses all the others, and is the one that is ill.
            What::PeerLiveness { .. } | What::FailedOver { .. } | What::NodesSilent { .. }
                if self.lacks_vip(at) == Some(true) =>
            {
                Weight::Plain
            }
            What::PeerLiveness { peer, .. } | What::PeerUnreachable { peer, .. } if stops::awaits(self, at, peer) => {
                Weight::Plain
            }
            What::BackendChanged { frontend, .. } | What::FlowsOrdered { frontend, .. }
                if self.serves_nobody(at, frontend).is_some() =>
            {
                Weight::Plain
            }
            What::Started { .. } if self.death_before(at).is_some() => Weight::Bad,
            What::NodesSilent { .. } => Weight::Bad,
            // Its clients are reset, or will be at the end of drain_timeout.
            What::FlowsOrdered { reason, .. } if reason.client_saw() == ClientSaw::Rst => Weight::Bad,
            What::BackendChanged { to: HealthState::Draining, cause, .. } if !is_ordered(cause) => Weight::Bad,
            // It had clients, who waited.
            What::VipGained { silent: Some(_), .. } => Weight::Notice,
            // Its death is an event of its own.
            What::PeerLiveness { liveness: Liveness::Silent, .. } => Weight::Notice,
            // What called it off says more.
            What::EvacuationCancelled { .. } if self.has_lost_peer_before(at) => Weight::Plain,
            What::ReloadRefused { .. } if self.events[at..].iter().any(is_applied) => Weight::Plain,
            _ => event.what.weight(),
        }
    }

    /// Whether a peer died a moment before the event at `at`.
    fn has_lost_peer_before(&self, at: usize) -> bool {
        let mut near = self.shortly_before(at, BEFORE_MS).map(|before| self.events[before].0);
        near.any(|it| is_death(it) || matches!(it.what, What::FailedOver { .. }))
    }

    /// Whether this host had given the VIP up since it was cut off. `None`: it had the VIP, or Baton does not move it.
    pub(super) fn lacks_vip(&self, at: usize) -> Option<bool> {
        let last = self.events[..at].iter().rev().find_map(|(event, _)| match &event.what {
            What::VipGained { .. } => Some(None),
            What::VipGivenUp { cut_off, .. } => Some(Some(*cut_off)),
            What::VipHostCutOff { .. } => Some(Some(true)),
            What::VipHeld { .. } => Some(Some(false)),
            _ => None,
        });
        last.flatten()
    }

    /// What a host that was cut off had, and does not know any more: a sentence.
    pub(super) fn had_flows(&self, at_ms: u64) -> Option<String> {
        let flows = self.sample_before(at_ms).map(|sample| u64::from(sample.flows())).filter(|flows| *flows > 0)?;
        Some(format!(
            "It had {} then: those that were offloaded go on at the host that has the VIP now, and the others are reset there, which this host cannot see.",
            plural(flows, "flow")
        ))
    }

    /// Why no client of `frontend` can have felt the event at `at`: a sentence. `None`: one can have.
    pub(super) fn serves_nobody(&self, at: usize, frontend: &str) -> Option<String> {
        let at_ms = self.events[at].0.at_unix_ms;
        let has_none = || {
            let sampled = self.sample_before(at_ms)?;
            let flows = sampled.frontends.iter().find(|it| it.name == frontend)?.flows;
            Some(flows == 0 && self.inherited_between(sampled.at_unix_ms, at_ms).is_none())
        };
        match self.lacks_vip(at)? {
            true => Some(
                "This host was cut off and does not have the VIP: it cannot say what its backends did, nor what clients felt at the host \
                 that has the VIP."
                    .to_owned(),
            ),
            false if has_none() == Some(true) => {
                Some(format!("This host had neither the VIP nor a flow of {frontend}: no client felt it here."))
            }
            false => None,
        }
    }

    /// Whether the process that starts at `at` follows another one that lives.
    pub(super) fn is_of_upgrade(&self, at: usize) -> bool {
        let is_next = |what: &What| matches!(what, What::Started { .. } | What::UpgradeBegun { .. });
        let mut its = self.events[at + 1..].iter().map(|(event, _)| &event.what).take_while(|what| !is_next(what));
        its.any(|what| {
            matches!(what, What::UpgradeFinished { .. } | What::UpgradeImported { .. } | What::UpgradeFailed { .. })
        })
    }

    /// How the process before the one that starts at `at` ended, if it did not stop and was not upgraded, with the time for which no process
    /// may have served.
    pub(super) fn death_before(&self, at: usize) -> Option<(String, u64)> {
        let (event, owner) = self.events[at];
        let What::Started { .. } = event.what else { return None };
        if self.is_of_upgrade(at) {
            return None;
        }
        let last = self.recording.died_before(&self.recording.owners[owner], event.at_unix_ms)?;
        let older = duration_ms(event.at_unix_ms.saturating_sub(last.at_unix_ms));
        let flows = self.sample_before(last.at_unix_ms).map(|sample| plural(sample.flows().into(), "flow"));
        let had = flows.map_or_else(String::new, |flows| format!(", when it had {flows}"));
        let said = format!(
            "The process before it ended without a stop, as by a crash or a kill: its last record is {older} older{had}."
        );
        Some((said, event.at_unix_ms.saturating_sub(last.at_unix_ms)))
    }

    /// When the process before the one that starts at `at` died, if it had flows then that ended with it; ms since 1970.
    pub(super) fn died_with_flows_ms(&self, at: usize) -> Option<u64> {
        let (_, away_ms) = self.death_before(at)?;
        let died_ms = self.events[at].0.at_unix_ms.saturating_sub(away_ms);
        let had = u64::from(self.sample_before(died_ms)?.flows());
        // The sample is up to a second older, and some have ended in order since.
        let went_on = self.recovered(at).unwrap_or(0);
        (went_on < had - had / 10).then_some(died_ms)
    }

    /// The number of offloaded flows that the process that starts at `at` has taken up. `None`: that was not recorded.
    fn recovered(&self, at: usize) -> Option<u64> {
        let its = self.events[at + 1..].iter().map(|(event, _)| &event.what);
        its.take_while(|what| !matches!(what, What::Started { .. })).find_map(|what| match what {
            What::OffloadRecovered { flows, .. } => Some(*flows),
            _ => None,
        })
    }

    /// What of an earlier process's flows went on: a sentence.
    pub(super) fn went_on(&self, at: usize) -> Option<String> {
        let flows = self.recovered(at).filter(|flows| *flows > 0)?;
        Some(format!("{} that were offloaded went on meanwhile, and Baton has them again.", plural(flows, "flow")))
    }

    /// That workers of the process before the one that starts at `at` were stuck, and did not go on: a sentence.
    pub(super) fn stuck_before(&self, at: usize) -> Option<String> {
        let before = self.events[..at].iter().rev().map(|(event, _)| *event);
        let mut last = before
            .filter(|it| matches!(it.what, What::WorkerStuck { .. } | What::WorkerMoves { .. } | What::Started { .. }));
        let Event { at_unix_ms, what: What::WorkerStuck { worker, .. }, .. } = last.next()? else { return None };
        Some(format!(
            "Before that, at {}, worker {worker} was stuck: a process whose worker does not go on aborts itself.",
            moment(*at_unix_ms)
        ))
    }

    /// The order or the reload shortly before an event.
    pub(super) fn order_before(&self, at: usize) -> Option<String> {
        self.told_before(at, BEFORE_MS, |before| {
            matches!(self.events[before].0.what, What::OrderReceived { .. } | What::Reloaded { .. })
        })
    }

    /// The reload shortly before a backend was lost: it may have changed how it is probed.
    pub(super) fn reload_before(&self, at: usize) -> Option<String> {
        self.told_before(at, BEFORE_MS, |before| matches!(self.events[before].0.what, What::Reloaded { .. }))
    }

    /// Why a backend is held back: a sentence.
    pub(super) fn damped(&self, at: usize, frontend: &str, backend: &str) -> String {
        let losses = self.shortly_before(at, LATELY_MS).filter(|before| {
            matches!(&self.events[*before].0.what, What::BackendChanged { frontend: f, backend: b, from: HealthState::Ready, to, .. }
                if (&**f, &**b) == (frontend, backend) && *to != HealthState::Ready)
        });
        let times = plural(losses.count() as u64, "time");
        format!(
            "damping decided it: it was lost {times} within {}, and gets new connections once it has been stable (damping.suppress, damping.reuse).",
            duration_ms(LATELY_MS)
        )
    }

    /// Why nodes are silent, as far as something tells of it: up to three sentences.
    pub(super) fn silence(
        &self,
        at: usize,
        nodes: &[String],
        is_one: bool,
        for_ms: u64,
        why: SilenceKind,
    ) -> Vec<String> {
        let (event, owner) = self.events[at];
        let begun_ms = event.at_unix_ms.saturating_sub(for_ms);
        let mut sentences = Vec::new();
        let ended = self.events[..at].iter().rev().find_map(|(event, _)| match &event.what {
            What::FlowEnded { node: Some(node), frontend, backend, reason, .. }
                if Some(node) == nodes.first() && *reason != EndReason::Moved =>
            {
                Some((event.at_unix_ms, frontend, backend.as_deref().unwrap_or("no backend"), reason.label()))
            }
            _ => None,
        });
        // What came later is no cause of it, nor what another backend suffered.
        let is_its_backend = |what: &What| match (what, ended) {
            (What::BackendChanged { backend, .. } | What::FlowsOrdered { backend, .. }, Some((.., its, _))) => {
                nodes.len() > 1 || backend == its
            }
            _ => true,
        };
        let is_cause = |before: usize| {
            let cause = self.events[before].0;
            cause.at_unix_ms <= begun_ms + NOTICED_MS
                && self.weight(before) == Weight::Bad
                && is_its_backend(&cause.what)
                && !matches!(cause.what, What::NodesSilent { .. })
        };
        sentences.extend(self.told_before(at, for_ms + AFTER_MS, is_cause));
        // An end of another time is not the one after which it had none: that one was at another host, or was refused.
        let ended =
            ended.filter(|(at_ms, ..)| why == SilenceKind::NoConnection && at_ms.abs_diff(begun_ms) <= NOTICED_MS);
        if let (Some((ended_ms, frontend, backend, reason)), Some(node)) = (ended, nodes.first()) {
            let earlier = duration_ms(event.at_unix_ms.saturating_sub(ended_ms));
            sentences.push(format!(
                "The last flow of {node} ended {earlier} before, with {frontend}/{backend}, for the reason {reason}."
            ));
        }
        let unserved =
            self.recording.owners[owner].frontends.iter().find_map(|it| self.unserved_at(&it.name, event.at_unix_ms));
        match unserved {
            Some(unserved) => sentences.push(unserved),
            None => {
                let (times, renewal) = match why {
                    SilenceKind::NoConnection => (1, "a node that lives connects again within one"),
                    SilenceKind::NoByte if is_one => {
                        (2, "its connections were open, and a kubelet sends something in each")
                    }
                    SilenceKind::NoByte => (2, "their connections were open, and a kubelet sends something in each"),
                };
                let counted = duration_ms(times * self.recording.owners[owner].lease_renew_ms);
                let key = if times == 1 { "cluster.lease_renew" } else { "twice cluster.lease_renew" };
                sentences.push(format!("{counted} ({key}) decided it: {renewal} renewal's time."));
            }
        }
        sentences
    }

    /// How long the silence that is told at `at` lasted, in ms: a sentence.
    pub(super) fn silence_over(&self, at: usize, node: &str, for_ms: u64) -> Option<(String, u64)> {
        let (event, owner) = self.events[at];
        let back = self.events[at + 1..].iter().map(|(event, _)| *event).find(|it| match &it.what {
            What::NodesBack { nodes, .. } => nodes.iter().any(|it| it == node),
            _ => false,
        })?;
        let lasted_ms = for_ms + back.at_unix_ms.saturating_sub(event.at_unix_ms);
        let grace_ms = self.recording.owners[owner].node_grace_ms;
        let grace = duration_ms(grace_ms);
        let verdict = match grace_ms {
            0 => String::new(),
            _ if lasted_ms > grace_ms => {
                format!(", longer than cluster.node_monitor_grace_period = {grace}: it can have become NotReady")
            }
            _ => format!(", less than cluster.node_monitor_grace_period = {grace}"),
        };
        Some((
            format!(
                "{node} was heard again at {}, after {}{verdict}.",
                moment(back.at_unix_ms),
                duration_ms(lasted_ms)
            ),
            lasted_ms,
        ))
    }

    /// The event at which the silence that ends at `at` was told.
    pub(super) fn silence_before(&self, at: usize) -> Option<usize> {
        let What::NodesBack { nodes: back, .. } = &self.events[at].0.what else { return None };
        self.events[..at].iter().rposition(|(event, _)| match &event.what {
            What::NodesSilent { nodes, .. } => nodes.iter().any(|it| back.contains(it)),
            _ => false,
        })
    }

    /// That no backend of a frontend served at a time, not even one that drains: a sentence.
    fn unserved_at(&self, frontend: &str, at_unix_ms: u64) -> Option<String> {
        let mut states = BTreeMap::<&str, (bool, u64)>::new();
        let sampled = self.sample_before(at_unix_ms)?;
        for backend in sampled.backends.iter().filter(|it| it.frontend == frontend) {
            states.insert(&backend.name, (backend.state != HealthState::Ejected.label(), sampled.at_unix_ms));
        }
        for (event, _) in self.events.iter().filter(|(event, _)| event.at_unix_ms <= at_unix_ms) {
            if let What::BackendChanged { frontend: f, backend, to, cause, .. } = &event.what
                && f == frontend
                && let Some(state) = states.get_mut(backend.as_str())
            {
                let is_later = event.at_unix_ms > sampled.at_unix_ms;
                let serves = takes_new(*to, cause);
                if is_later || state.0 == serves {
                    *state = (serves, event.at_unix_ms);
                }
            }
        }
        let since_ms = states.values().map(|(_, since_ms)| *since_ms).max()?;
        let all_gone = !states.values().any(|(serves, _)| *serves);
        all_gone.then(|| format!("No backend of {frontend} served then, since {}.", moment(since_ms)))
    }

    /// That a reload had removed the backend of the event at `at` before: a sentence.
    pub(super) fn removed_before(&self, at: usize) -> Option<String> {
        self.removed_ms(at).map(|at_ms| format!("A reload had removed it at {}.", moment(at_ms)))
    }

    /// That the backend of the event at `at`, which a reload had removed, was added again: a sentence.
    pub(super) fn added_again(&self, at: usize, added_ms: u64) -> String {
        let removed_ms = self.removed_ms(at).unwrap_or(self.events[at].0.at_unix_ms);
        let (later, added) = (duration_ms(added_ms.saturating_sub(removed_ms)), moment(added_ms));
        format!("A reload had removed it at {}, and one added it again at {added}, {later} later.", moment(removed_ms))
    }

    /// When a reload had removed the backend of the event at `at`, before that.
    fn removed_ms(&self, at: usize) -> Option<u64> {
        let What::BackendChanged { frontend: of, backend: its, .. } = &self.events[at].0.what else { return None };
        let removed = self.events[..at].iter().rev().find_map(|(event, _)| match &event.what {
            What::BackendRemoved { frontend, backend } if (frontend, backend) == (of, its) => {
                Some(Some(event.at_unix_ms))
            }
            What::BackendAdded { frontend, backend } if (frontend, backend) == (of, its) => Some(None),
            _ => None,
        });
        removed.flatten()
    }

    /// That events since the one at `at` are not in the record: a part of a sentence.
    pub(super) fn dropped_since(&self, at: usize) -> String {
        let dropped = self.events[at + 1..].iter().filter_map(|(event, _)| match event.what {
            What::RecordsDropped { records } => Some(records),
            _ => None,
        });
        match dropped.sum() {
            0 => String::new(),
            records => format!(", as far as is known: the record lacks {} since", plural(records, "event")),
        }
    }

    /// What the process before had found of a backend that is lost by the first probe of this one: a sentence, and its time.
    pub(super) fn state_before_start(&self, at: usize, frontend: &str, backend: &str) -> Option<(String, u64)> {
        let (_, owner) = self.events[at];
        let owners = &self.recording.owners;
        let (before, found) = self.events[..at].iter().rev().find(|(event, of)| {
            !owners[*of].is_same_process(&owners[owner])
                && matches!(&event.what, What::BackendChanged { frontend: f, backend: b, .. } if (&**f, &**b) == (frontend, backend))
        })?;
        let What::BackendChanged { to, cause, .. } = &before.what else { return None };
        let is_last =
            self.events[..at].iter().rev().map(|(_, of)| of).find(|of| !owners[**of].is_same_process(&owners[owner]));
        let is_of_last = is_last.is_some_and(|last| owners[*last].is_same_process(&owners[*found]));
        (is_of_last && *to != HealthState::Ready).then(|| {
            let (state, since) = (to.label(), moment(before.at_unix_ms));
            (format!(" For the process before, it was {state} since {since}: {cause}."), before.at_unix_ms)
        })
    }

    /// The order `word`, for a backend or for any, which came a moment before the event that it caused.
    pub(super) fn order_of(&self, at: usize, word: &str, backend: Option<&str>) -> Option<String> {
        self.told_before(at, AT_ONCE_MS, |before| self.is_order(before, word, backend))
    }

    fn is_order(&self, at: usize, word: &str, backend: Option<&str>) -> bool {
        let What::OrderReceived { order, .. } = &self.events[at].0.what else { return false };
        let mut words = order.split_whitespace();
        let is_it = |it: &str, backend: &str| it == backend || it.ends_with(&format!("/{backend}"));
        words.next() == Some(word) && backend.is_none_or(|backend| words.any(|it| is_it(it, backend)))
    }

    /// An order about a backend, with what it did.
    pub(super) fn of_order(&self, at: usize) -> Option<Explained> {
        let event = self.events[at].0;
        let (did, figures) = self.change(self.caused_by(at)?)?;
        let ordered = format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence());
        // The change tells of its order, too.
        let did = did.into_iter().filter(|it| !it.contains(&event.what.sentence()));
        Some((std::iter::once(ordered).chain(did).take(SENTENCES_MAX).collect(), figures))
    }

    /// The change of a backend that the order at `at` caused.
    fn caused_by(&self, at: usize) -> Option<usize> {
        let until_ms = self.events[at].0.at_unix_ms + AT_ONCE_MS;
        let near = (at + 1..self.events.len()).take_while(|later| self.events[*later].0.at_unix_ms <= until_ms);
        near.into_iter().find(|later| match &self.events[*later].0.what {
            What::BackendChanged { backend, to, cause, .. } => match cause {
                Cause::OrderedDrain => self.is_order(at, "drain", Some(backend)),
                Cause::OrderedEject => self.is_order(at, "eject", Some(backend)),
                _ => *to == HealthState::Ready && self.is_order(at, "undrain", Some(backend)),
            },
            _ => false,
        })
    }

    /// The events within a time before another one, the last first.
    pub(super) fn shortly_before(&self, at: usize, within_ms: u64) -> impl Iterator<Item = usize> {
        let at_ms = self.events[at].0.at_unix_ms;
        (0..at).rev().take_while(move |before| self.events[*before].0.at_unix_ms.saturating_add(within_ms) >= at_ms)
    }

    /// The last event within a time before another one that `is_it`, in words.
    pub(super) fn told_before(&self, at: usize, within_ms: u64, is_it: impl Fn(usize) -> bool) -> Option<String> {
        self.shortly_before(at, within_ms).find(|before| is_it(*before)).map(|found| self.earlier(at, found))
    }

    /// The event at `found`, which came before the one at `at`, in words.
    pub(super) fn earlier(&self, at: usize, found: usize) -> String {
        let [event, found] = [at, found].map(|place| self.events[place].0);
        let earlier = duration_ms(event.at_unix_ms.saturating_sub(found.at_unix_ms));
        format!("{earlier} earlier, at {}, {}.", moment(found.at_unix_ms), found.what.sentence())
    }
}

/// Whether it holds a backend back that was lost too often.
pub(super) fn is_held_back(event: &Event) -> bool {
    matches!(event.what, What::BackendChanged { cause: Cause::Damped, .. })
}

/// The settings that decided about a backend.
pub(super) fn decided_by(settings: &FrontendSettings, to: HealthState, cause: &Cause) -> Option<String> {
    let FrontendSettings { interval_ms, fast_interval_ms, timeout_ms, rise, fall, probe, .. } = settings;
    let each =
        format!("each {}, and each {} once one has failed", duration_ms(*interval_ms), duration_ms(*fast_interval_ms));
    let pace = format!("Baton probes by {probe} {each}, and waits {} for an answer", duration_ms(*timeout_ms));
    match (to, cause) {
        (HealthState::Ready, Cause::Passed) => {
            Some(format!("rise = {rise} decided it: so many probes in a row passed; {pace}."))
        }
        (HealthState::Ready, _) => None,
        (HealthState::Draining, Cause::Slow | Cause::NoConnection) => {
            Some(format!("fall = {fall} decided it, where a slow answer counts half; {pace}."))
        }
        (_, _) => Some(format!("fall = {fall} decided it: so many probes in a row failed; {pace}.")),
    }
}

/// What an order does at once follows within this time.
const AT_ONCE_MS: u64 = 250;

/// A fault is noticed so long after the clients feel it, at most.
const NOTICED_MS: u64 = 3_000;
