//! What an instance says of itself to its peers once a second, so that the page of each shows the whole fleet. For
//! people alone: no decision of Baton follows from a summary.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::message::Message;
use crate::model::duration;
use crate::model::health::HealthState;
use crate::model::humane::printable;

/// An unchanged summary is sent again after this time, so that its age shows whether the sender still gathers any.
const AGAIN_NS: u64 = 5_000_000_000;
/// A summary older than three such times says nothing of the present.
pub(super) const OLD_MS: u64 = 3 * AGAIN_NS / 1_000_000;

/// What a reason says of a loop that hangs, between its name and how long it has.
pub(crate) const STUCK_FOR: &str = " has been stuck for ";

/// Limits for the lists of a summary.
pub(crate) const BACKENDS_MAX: usize = 64;
const REASONS_MAX: usize = 4;
/// Limits for its texts, bytes: the largest summary has 16 KiB, which delays no beat for long.
const NAME_MAX: usize = 64;
const PHASE_MAX: usize = 16;
const WHY_MAX: usize = 80;
const REASON_MAX: usize = 160;

/// An instance as it sees itself. It goes over the link in the order of its fields, so another field needs another
/// version of the link; `/status.json` has the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSummary {
    /// `starting`, `serving`, `leaving`, `draining` or `forced`.
    pub phase: String,
    pub uptime_ms: u64,
    /// Why its `/livez` fails; empty: it does not. The first reasons.
    pub not_live: Vec<String>,
    /// Why its `/readyz` fails; empty: it does not. The first reasons.
    pub not_ready: Vec<String>,
    /// Present flows that it carries through its sockets.
    pub flows_proxied: u64,
    /// Present flows that its kernel carries.
    pub flows_offloaded: u64,
    /// Flows that it accepted in the last ten seconds.
    pub new_flows_per_10_s: u64,
    pub offload: OffloadBrief,
    /// Nodes without a working connection anywhere. `None`: it cannot say.
    pub silent_nodes: Option<u64>,
    /// It runs with an earlier configuration, because it refused the present one.
    pub reload_refused: bool,
    /// Its worst event of the last hour, if one was more than plain: worst is what its clients feel now, then what they felt at a moment, a
    /// backend or a peer that is lost still, what clients felt until it was over, other losses, an order, reload or upgrade that failed, and
    /// all that may be a fault; the latest of equal ones.
    pub worst_event: Option<WorstEvent>,
    /// In the order of its configuration. If they are too many, those that are not ready come first.
    pub backends: Vec<BackendSummary>,
    /// Backends that it has beside these.
    pub backends_left_out: u32,
}

impl InstanceSummary {
    /// For how long a worker of it had been stuck when it told this, at least.
    pub(crate) fn stuck_ms(&self) -> Option<u64> {
        let stuck = |why: &String| {
            let (_, lasted) = why.strip_prefix("worker ")?.split_once(STUCK_FOR)?;
            duration::parse(lasted).ok()
        };
        self.not_live.iter().filter_map(stuck).max().map(|lasted| lasted.as_millis() as u64)
    }

    /// The frontends without a backend that takes a new flow, as far as all their backends are told.
    pub(crate) fn unserved(&self) -> Vec<&str> {
        let mut served = Vec::<(&str, bool)>::new();
        for backend in self.backends.iter().filter(|_| self.backends_left_out == 0) {
            let serves = backend.health_state != Some(HealthState::Ejected);
            match served.iter_mut().find(|(frontend, _)| *frontend == backend.frontend) {
                Some((_, served)) => *served |= serves,
                None => served.push((&backend.frontend, serves)),
            }
        }
        served.into_iter().filter(|(_, serves)| !serves).map(|(frontend, _)| frontend).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffloadBrief {
    On,
    /// By its configuration, or its kernel cannot.
    #[default]
    Off,
    /// Baton offloads none, because flows were reset right after it.
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstEvent {
    /// Milliseconds since 1970, UTC, by the instance's clock.
    pub at_unix_ms: u64,
    pub is_bad: bool,
    pub sentence: String,
}

/// A backend as an instance sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendSummary {
    pub frontend: String,
    pub name: String,
    /// `None`: no probe has ended yet.
    pub health_state: Option<HealthState>,
    /// How long it has been in this state, ms; at most as long as the process runs.
    pub for_ms: u64,
    /// The cause in words; empty for a backend that is ready.
    pub why: String,
}

/// A peer's summary, and its age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSummary {
    /// Time since it came, ms.
    pub age_ms: u64,
    /// The peer is heard, and its summary is of the present.
    pub is_present: bool,
    #[serde(flatten)]
    pub summary: Arc<InstanceSummary>,
}

/// An instance says each second how it is, and is dead a second after its last beat: what it said before that may be so no longer.
const STUCK_SAID_MS: u64 = 3_000;

impl PeerSummary {
    /// For how long a worker of the peer has been stuck by now, if it said so a moment ago and nothing else since.
    pub(crate) fn stuck_ms(&self) -> Option<u64> {
        self.summary.stuck_ms().filter(|_| self.age_ms <= STUCK_SAID_MS).map(|stuck_ms| stuck_ms + self.age_ms)
    }
}

/// The summaries that one link carries to its peer.
#[derive(Debug, Default)]
pub(super) struct SummariesTold {
    due: Option<Arc<InstanceSummary>>,
    told: Option<(u64, Arc<InstanceSummary>)>,
}

/// Stands for the end of a text that was cut.
const CUT: &str = "…";

impl InstanceSummary {
    /// Cuts its lists and texts to their limits.
    pub(crate) fn cut(mut self) -> Self {
        if self.backends.len() > BACKENDS_MAX {
            // Stable: those of one kind keep their order.
            self.backends.sort_by_key(|it| it.health_state == Some(HealthState::Ready));
            let left_out = self.backends.len() - BACKENDS_MAX;
            self.backends_left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
            self.backends.truncate(BACKENDS_MAX);
        }
        self.not_live.truncate(REASONS_MAX);
        self.not_ready.truncate(REASONS_MAX);
        self.texts().filter(|(text, most)| text.len() > *most).for_each(|(text, most)| {
            text.truncate(text.floor_char_boundary(most - CUT.len()));
            text.push_str(CUT);
        });
        self
    }

    /// Whether a peer of this release could have said it.
    pub(super) fn is_within_limits(&mut self) -> bool {
        let lists = [(self.backends.len(), BACKENDS_MAX), (self.not_live.len(), REASONS_MAX)];
        let lists = lists.into_iter().chain([(self.not_ready.len(), REASONS_MAX)]);
        lists.into_iter().all(|(length, most)| length <= most) && self.texts().all(|(text, most)| text.len() <= most)
    }

    /// Its texts, with what a terminal would obey written out.
    pub(super) fn printable(mut self) -> Self {
        self.texts().for_each(|(text, _)| *text = printable(text).into_owned());
        self
    }

    /// Each text with its limit in bytes.
    fn texts(&mut self) -> impl Iterator<Item = (&mut String, usize)> {
        let backends = self
            .backends
            .iter_mut()
            .flat_map(|it| [(&mut it.frontend, NAME_MAX), (&mut it.name, NAME_MAX), (&mut it.why, WHY_MAX)]);
        let reasons = self.not_live.iter_mut().chain(&mut self.not_ready).map(|it| (it, REASON_MAX));
        let event = self.worst_event.iter_mut().map(|it| (&mut it.sentence, REASON_MAX));
        std::iter::once((&mut self.phase, PHASE_MAX)).chain(reasons).chain(event).chain(backends)
    }

    /// Whether it says more than that time goes on.
    fn is_news_after(&self, earlier: &Self) -> bool {
        let timeless = |of: &Self| {
            let backends = of.backends.iter().map(|it| BackendSummary { for_ms: 0, ..it.clone() }).collect();
            Self { uptime_ms: 0, backends, ..of.clone() }
        };
        timeless(self) != timeless(earlier)
    }
}

impl SummariesTold {
    /// Takes the present summary, which is due if it is news to the peer, or if the last one was told long ago.
    pub(super) fn offer(&mut self, summary: &Arc<InstanceSummary>, now_ns: u64) {
        let is_due = self
            .told
            .as_ref()
            .is_none_or(|(at_ns, told)| now_ns.saturating_sub(*at_ns) >= AGAIN_NS || summary.is_news_after(told));
        self.due = is_due.then(|| summary.clone());
    }

    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Message> {
        let summary = self.due.take()?;
        let message = Message::Summary(Box::new(InstanceSummary::clone(&summary)));
        self.told = Some((now_ns, summary));
        Some(message)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_longest_time_for_which_a_worker_is_stuck_is_read_from_the_reasons() {
        let of = |reasons: &[&str]| {
            let not_live = reasons.iter().map(|it| (*it).to_owned()).collect();
            InstanceSummary { not_live, ..InstanceSummary::default() }.stuck_ms()
        };
        assert_eq!(of(&["worker 0 has been stuck for 1.2 s", "worker 1 has been stuck for 4.0 s"]), Some(4_000));
        let stuck = vec!["worker 0 has been stuck for 2.0 s".to_owned()];
        let summary = Arc::new(InstanceSummary { not_live: stuck, ..InstanceSummary::default() });
        let said = |age_ms| PeerSummary { age_ms, is_present: false, summary: summary.clone() }.stuck_ms();
        assert_eq!((said(700), said(3_001)), (Some(2_700), None));
        assert_eq!(of(&["the offload has been stuck for 9.0 s", "worker 1 has ended"]), None);
    }

    #[test]
    fn a_frontend_is_unserved_if_all_its_backends_are_ejected_and_all_are_told() {
        use HealthState::{Draining, Ejected, Ready};
        let of = |states: &[(&str, HealthState)]| {
            let backends = states.iter().map(|(frontend, state)| BackendSummary {
                frontend: (*frontend).to_owned(),
                ..backend("cp1", *state, 5)
            });
            InstanceSummary { backends: backends.collect(), ..InstanceSummary::default() }
        };
        let some = of(&[("api", Ejected), ("web", Ejected), ("api", Draining), ("web", Ejected), ("db", Ready)]);
        assert_eq!(some.unserved(), ["web"]);
        assert_eq!(InstanceSummary { backends_left_out: 1, ..some }.unserved(), [""; 0]);
        assert_eq!(of(&[]).unserved(), [""; 0]);
    }

    pub(crate) fn backend(name: &str, health_state: HealthState, for_ms: u64) -> BackendSummary {
        let why = if health_state == HealthState::Ready { "" } else { "no answer within 500 ms" };
        BackendSummary {
            frontend: "apiserver".to_owned(),
            name: name.to_owned(),
            health_state: Some(health_state),
            for_ms,
            why: why.to_owned(),
        }
    }

    /// Each list and text at its limit.
    pub(crate) fn largest() -> InstanceSummary {
        let text = |length| "n".repeat(length);
        let backend = BackendSummary {
            frontend: text(NAME_MAX),
            name: text(NAME_MAX),
            health_state: Some(HealthState::Ejected),
            for_ms: u64::MAX,
            why: text(WHY_MAX),
        };
        InstanceSummary {
            phase: text(PHASE_MAX),
            uptime_ms: u64::MAX,
            not_live: vec![text(REASON_MAX); REASONS_MAX],
            not_ready: vec![text(REASON_MAX); REASONS_MAX],
            flows_proxied: u64::MAX,
            flows_offloaded: u64::MAX,
            new_flows_per_10_s: u64::MAX,
            offload: OffloadBrief::Stopped,
            silent_nodes: Some(u64::MAX),
            reload_refused: true,
            worst_event: Some(WorstEvent { at_unix_ms: u64::MAX, is_bad: true, sentence: text(REASON_MAX) }),
            backends: vec![backend; BACKENDS_MAX],
            backends_left_out: u32::MAX,
        }
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_not_ready_is_kept() {
        let mut summary = largest();
        assert!(summary.is_within_limits() && summary.clone().cut() == summary);
        let ready = BackendSummary { health_state: Some(HealthState::Ready), ..summary.backends[0].clone() };
        summary.backends.splice(0..0, vec![ready; 70]);
        summary.backends[134 - 1].name = "€".repeat(40);
        summary.not_ready.push("one more".to_owned());
        assert!(!summary.is_within_limits());
        let mut cut = summary.cut();
        assert!(cut.is_within_limits());
        assert_eq!((cut.backends.len(), cut.backends_left_out), (BACKENDS_MAX, 70));
        assert!(cut.backends.iter().all(|it| it.health_state == Some(HealthState::Ejected)));
        assert_eq!(cut.backends[BACKENDS_MAX - 1].name, "€".repeat(20) + CUT, "no letter is cut in two");
    }

    #[test]
    fn each_limit_counts() {
        type Breach = fn(&mut InstanceSummary);
        let breaches: [Breach; 9] = [
            |it| it.phase.push('n'),
            |it| it.not_live[3].push('n'),
            |it| it.not_ready[0].push('n'),
            |it| it.not_live.push(String::new()),
            |it| it.not_ready.push(String::new()),
            |it| it.worst_event.as_mut().unwrap().sentence.push('n'),
            |it| it.backends[0].frontend.push('n'),
            |it| it.backends[63].why.push('n'),
            |it| it.backends.push(backend("one more", HealthState::Ready, 0)),
        ];
        for (number, breach) in breaches.into_iter().enumerate() {
            let mut summary = largest();
            breach(&mut summary);
            assert!(!summary.is_within_limits(), "breach {number}");
        }
    }

    #[test]
    fn a_terminal_obeys_no_word_of_a_peer() {
        let mut summary = largest();
        summary.backends[1].why = "\x1b[2Jdown\n".to_owned();
        summary.phase = "ser\u{202e}ving".to_owned();
        let printed = summary.printable();
        assert_eq!(printed.backends[1].why, "\\u{1b}[2Jdown\\u{a}");
        assert_eq!(printed.phase, "ser\\u{202e}ving");
    }

    #[test]
    fn a_summary_is_told_when_it_changes_and_again_after_some_seconds() {
        const SECOND: u64 = 1_000_000_000;
        let at = |second: u64, flows_proxied| {
            let backends = vec![backend("cp-1", HealthState::Ready, second * 1000)];
            Arc::new(InstanceSummary {
                uptime_ms: second * 1000,
                flows_proxied,
                backends,
                ..InstanceSummary::default()
            })
        };
        let mut told = SummariesTold::default();
        let mut seconds = Vec::new();
        for second in 0..13 {
            told.offer(&at(second, u64::from(second >= 8)), second * SECOND);
            if told.poll(second * SECOND).is_some() {
                seconds.push(second);
            }
            assert_eq!(told.poll(second * SECOND), None);
        }
        assert_eq!(seconds, [0, 5, 8]);
    }
}
