//! Gathers this instance's summary for its peers once a second, and finds where the instances of the fleet disagree.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Admin;
use super::control::LastReload;
use super::rates::{Sample, Samples};
use super::status::PeersReport;
use crate::config::{self, Config};
use crate::model::fleet::{
    BackendSummary, Disagreement, InstanceName, InstanceSummary, OffloadBrief, WorstEvent, disagreements,
};
use crate::model::health::{Cause, HealthState};
use crate::model::weight::Weight;
use crate::sys::clock::unix_ms;
use crate::table::backend::BackendEntry;
use crate::table::journal::{Event, EventRank, EventSeverity, Journal, Trouble};

/// An event is older news than what the summary says beside it.
pub(crate) const EVENTS_WITHIN_MS: u64 = 3_600_000;

/// Seconds of the rate of new flows.
const RATE_S: f64 = 10.0;

/// How many changes of its mind an instance gets before a difference counts: all see a fault of a backend within one,
/// and a backend that fails while another comes back takes two.
const CHANGES_OF_MIND: u32 = 3;

/// What goes on, and the latest event of each rank of what does not.
#[derive(Clone, Debug, Default)]
pub(super) struct WorstSoFar {
    /// The number of the next event to look at.
    next: u64,
    /// Whether the events of the processes before are among them.
    has_earlier: bool,
    open: Vec<OpenTrouble>,
    /// In the order of [`EventRank`].
    latest: [Option<WorstEvent>; EventRank::NUMBER],
}

/// What an event began, and none has ended.
#[derive(Clone, Debug)]
struct OpenTrouble {
    trouble: Trouble,
    severity: EventSeverity,
    event: WorstEvent,
}

impl WorstSoFar {
    /// Of earlier processes' events, in the order of time.
    pub(super) fn of<'e>(events: impl IntoIterator<Item = &'e Event>) -> Self {
        let mut worst = Self::default();
        events.into_iter().for_each(|event| worst.add(event));
        worst
    }

    fn add(&mut self, Event { at_unix_ms, what, .. }: &Event) {
        let over: Vec<_> = self.open.extract_if(.., |it| it.trouble.is_over_by(what)).collect();
        over.into_iter().for_each(|it| self.put(it.severity.rank_over(), it.event));
        let Some(severity) = what.severity() else { return };
        let event =
            WorstEvent { at_unix_ms: *at_unix_ms, is_bad: what.weight() == Weight::Bad, sentence: what.sentence() };
        match Trouble::begun_by(what) {
            Some(trouble) => self.open.push(OpenTrouble { trouble, severity, event }),
            None => self.put(severity.rank_of_point(), event),
        }
    }

    fn put(&mut self, rank: EventRank, event: WorstEvent) {
        let latest = &mut self.latest[rank as usize];
        if latest.as_ref().is_none_or(|before| before.at_unix_ms <= event.at_unix_ms) {
            *latest = Some(event);
        }
    }

    /// The worst event of the last hour, by [`EventRank`]; of equal ones the newest. `earlier`: of the processes before this one.
    fn look(&mut self, journal: &Journal, earlier: Option<&Self>, now_unix_ms: u64) -> Option<WorstEvent> {
        if let Some(earlier) = earlier.filter(|_| !self.has_earlier) {
            // They come before those of this process, which may end them.
            *self = Self { has_earlier: true, ..earlier.clone() };
        }
        let mut latest_ms = 0;
        for event in journal.since(self.next, false) {
            self.next = event.number + 1;
            latest_ms = event.at_unix_ms;
            self.add(&event);
        }
        let since_ms = latest_ms.max(now_unix_ms).saturating_sub(EVENTS_WITHIN_MS);
        self.open.retain(|it| it.event.at_unix_ms >= since_ms);
        let open = self.open.iter().map(|it| (it.severity.rank_open() as usize, &it.event));
        let others = self.latest.iter().enumerate().filter_map(|(rank, event)| Some((rank, event.as_ref()?)));
        let recent = open.chain(others).filter(|(_, event)| event.at_unix_ms >= since_ms);
        recent.max_by_key(|(rank, event)| (*rank, event.at_unix_ms)).map(|(_, event)| event.clone())
    }
}

/// This instance at `now_ns`, for its peers.
pub(super) fn take(
    admin: &Admin,
    worst: &mut WorstSoFar,
    sample: &Sample,
    samples: &Samples,
    now_ns: u64,
) -> InstanceSummary {
    let (table, config) = (&admin.table, admin.config.load());
    let uptime_ms = now_ns.saturating_sub(admin.started_at_ns()) / 1_000_000;
    let flows: u64 = table.registry.frontends().iter().map(|it| u64::from(it.active.load(Relaxed))).sum();
    let flows_offloaded = table.offload.without_sockets() as u64;
    let rate = samples.rate(sample, |sample| Some(sample.totals));
    let mut backends = table.registry.backends();
    backends.retain(|it| !it.is_former() && !matches!(it.health().cause, Cause::Removed | Cause::Readdressed));
    let place = |it: &Arc<BackendEntry>| config.frontends.iter().position(|frontend| frontend.name == it.frontend.name);
    // Stable: those of one frontend keep their order.
    backends.sort_by_key(|it| place(it).unwrap_or(usize::MAX));
    let of_backend = |entry: &Arc<BackendEntry>| {
        let health = entry.health();
        let why = if health.health_state == HealthState::Ready { String::new() } else { health.cause.to_string() };
        BackendSummary {
            frontend: entry.frontend.name.to_string(),
            name: entry.label().into_owned(),
            health_state: (health.cause != Cause::NotProbed).then_some(health.health_state),
            for_ms: in_state_ms(health.since_ns, admin.started_at_ns(), now_ns),
            why,
        }
    };
    let offload = match table.offload.view().why_not {
        Some(_) => OffloadBrief::Off,
        None if table.offload.is_stopped() => OffloadBrief::Stopped,
        None => OffloadBrief::On,
    };
    let summary = InstanceSummary {
        phase: admin.phase.phase().label().to_owned(),
        uptime_ms,
        not_live: admin.not_live(now_ns),
        not_ready: admin.not_ready(),
        flows_proxied: flows.saturating_sub(flows_offloaded),
        flows_offloaded,
        new_flows_per_10_s: (rate.flows_per_s * RATE_S).round() as u64,
        offload,
        silent_nodes: table.nodes.silent().map(|silent| silent.len() as u64),
        reload_refused: matches!(admin.control.config_state().last_reload, LastReload::Refused { .. }),
        worst_event: worst.look(&table.journal, admin.earlier.get().map(|it| &it.worst), unix_ms()),
        backends: backends.iter().map(of_backend).collect(),
        backends_left_out: 0,
    };
    summary.cut()
}

/// The age of a backend's state. It may have come from the process before, and be older than this one, which began at `began_ns`.
/// `since_ns` 0: nothing is known of the backend yet.
fn in_state_ms(since_ns: u64, began_ns: u64, now_ns: u64) -> u64 {
    let since_ns = if since_ns == 0 { began_ns } else { since_ns };
    now_ns.saturating_sub(since_ns) / 1_000_000
}

/// The disagreements between this instance and the peers that it hears, which have lasted longer than it takes each
/// instance to see what another has seen.
pub(super) fn lasting(report: &PeersReport, config: &Config) -> Vec<Disagreement> {
    let own = report.name.as_ref().zip(report.own.as_deref()).map(|(name, summary)| (name, summary, 0));
    let peers = report.peers.iter().filter_map(|it| Some((&it.name, it.summary.as_ref()?)));
    let peers = peers.filter(|(_, it)| it.is_present).map(|(name, it)| (name, &*it.summary, it.age_ms));
    let of: Vec<(&InstanceName, &InstanceSummary, u64)> = own.into_iter().chain(peers).collect();
    let mut all = disagreements(&of);
    all.retain(|it| it.for_ms >= settled_after(config, &it.frontend).as_millis() as u64);
    all
}

/// 6 s with the default probes.
fn settled_after(config: &Config, frontend: &str) -> Duration {
    let health = config.frontends.iter().find(|it| &*it.name == frontend).map(|it| &it.health);
    let change_of_mind = |it: &config::Health| it.interval * it.rise.max(it.fall);
    health.map_or(Duration::from_secs(2), change_of_mind) * CHANGES_OF_MIND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nodes::SilenceKind;
    use crate::table::journal::What;

    /// Regression: a worker that hung was gone from the fleet's pages as soon as somebody mistyped a reload.
    #[test]
    fn the_worst_event_of_an_hour_stays_until_a_worse_one_or_another_as_bad_comes() {
        let journal = Journal::default();
        let mut worst = WorstSoFar::default();
        let now_ms = unix_ms();
        let mut after = |what| {
            journal.record(what);
            worst.look(&journal, None, now_ms).map_or_else(String::new, |event| event.sentence)
        };
        let stuck = |worker| What::WorkerStuck { worker, for_ms: 2000 };
        let refused = || What::ReloadRefused { errors: vec!["a typing error".to_owned()] };
        assert_eq!(after(What::Started { version: "1".to_owned() }), "");
        assert!(after(refused()).contains("a typing error"));
        assert!(after(stuck(1)).starts_with("worker 1 is stuck"));
        assert!(after(refused()).starts_with("worker 1 is stuck"), "it is worse, though older");
        assert!(after(stuck(2)).starts_with("worker 2 is stuck"), "the newest of equal ones");
        assert_eq!(worst.look(&journal, None, now_ms + EVENTS_WITHIN_MS + 60_000), None);
    }

    /// Regression: three nodes that were silent for twelve seconds, fifty minutes ago, hid that a backend is down and that 40 flows were reset since.
    #[test]
    fn what_is_over_hides_neither_what_goes_on_nor_what_was_felt() {
        let journal = Journal::default();
        let mut worst = WorstSoFar::default();
        let now_ms = unix_ms();
        let mut after = |what| {
            journal.record(what);
            worst.look(&journal, None, now_ms).map_or_else(String::new, |event| event.sentence)
        };
        let nodes = || vec!["worker-17".to_owned()];
        let silent = |for_ms| What::NodesSilent {
            nodes: nodes(),
            more: 0,
            why: SilenceKind::NoConnection,
            for_ms,
            refused: None,
        };
        let back = || What::NodesBack { nodes: nodes(), more: 0, for_ms: 12_000 };
        let changed = |to| What::BackendChanged {
            frontend: "api".to_owned(),
            backend: "cp1".to_owned(),
            from: HealthState::Ready,
            to,
            cause: Cause::Refused,
        };
        let failed_over = What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 3, reset: 40 };
        let refused = What::ReloadRefused { errors: vec!["a typing error".to_owned()] };
        assert!(after(refused).contains("a typing error"));
        assert!(after(silent(10_000)).starts_with("worker-17"));
        assert!(after(back()).starts_with("worker-17"), "worse than an order, also once it is over");
        assert!(after(changed(HealthState::Ejected)).contains("cp1"), "a loss that goes on");
        assert!(after(failed_over).contains("lb-b"), "clients felt it");
        assert!(after(silent(11_000)).starts_with("worker-17"), "clients suffer now");
        assert!(after(back()).contains("lb-b"));
    }

    /// Regression: an end that the next process told did not end what the one before it had told.
    #[test]
    fn what_an_earlier_process_began_is_over_by_an_event_of_this_one() {
        let changed = |to| What::BackendChanged {
            frontend: "api".to_owned(),
            backend: "cp1".to_owned(),
            from: HealthState::Ready,
            to,
            cause: Cause::Refused,
        };
        let now_ms = unix_ms();
        let began = |ago_ms, what| Event { number: 9, at_unix_ms: now_ms - ago_ms, what };
        let suffered = What::AcceptPaused { worker: 0, error: "no file descriptors".to_owned() };
        let resumed = What::AcceptResumed { worker: 0, paused_ms: 100 };
        let earlier =
            WorstSoFar::of(&[began(9000, suffered), began(8900, resumed), began(8000, changed(HealthState::Ejected))]);
        let (journal, mut worst) = (Journal::default(), WorstSoFar::default());
        journal.record(What::Started { version: "1".to_owned() });
        let mut look = |journal: &Journal| worst.look(journal, Some(&earlier), now_ms).unwrap().sentence;
        assert!(look(&journal).contains("cp1"), "it is down still");
        journal.record(changed(HealthState::Ready));
        assert!(look(&journal).contains("worker 0"));
    }

    /// Regression: a crash took the worst event, which was often its cause, from the fleet's pages.
    #[test]
    fn the_worst_event_of_the_hour_may_be_of_a_process_before() {
        let now_ms = unix_ms();
        let event = |ago_ms, worker| {
            let what = What::WorkerStuck { worker, for_ms: 2000 };
            Event { number: 9, at_unix_ms: now_ms - ago_ms, what }
        };
        let earlier = WorstSoFar::of(&[event(2000, 7), event(1000, 8)]);
        let (journal, mut worst) = (Journal::default(), WorstSoFar::default());
        journal.record(What::ReloadRefused { errors: vec!["a typing error".to_owned()] });
        let mut at = |now_ms| worst.look(&journal, Some(&earlier), now_ms).map_or_else(String::new, |it| it.sentence);
        assert!(
            at(now_ms).starts_with("worker 8 is stuck"),
            "the newest of equal ones, worse than what this process has"
        );
        assert!(at(now_ms + EVENTS_WITHIN_MS - 500).contains("a typing error"), "it is older than an hour");
        journal.record(What::WorkerStuck { worker: 1, for_ms: 2000 });
        assert!(worst.look(&journal, Some(&earlier), now_ms).unwrap().sentence.starts_with("worker 1 is stuck"));
    }

    /// Regression: after an upgrade the fleet's card said "ready for 59 s", and the backend's own 2 m 18 s.
    #[test]
    fn a_state_of_the_process_before_is_as_old_as_it_is() {
        let at_ms = |since_ms: u64| in_state_ms(since_ms * 1_000_000, 100_000_000, 160_000_000);
        assert_eq!(at_ms(22), 138);
        assert_eq!(at_ms(130), 30);
        assert_eq!(at_ms(0), 60, "nothing is known of it since the process began");
    }

    #[test]
    fn a_worst_event_of_more_than_an_hour_ago_gives_its_place_to_a_lesser_one() {
        let event =
            |at_unix_ms, sentence: &str| Some(WorstEvent { at_unix_ms, is_bad: true, sentence: sentence.to_owned() });
        let mut worst = WorstSoFar::default();
        worst.latest[EventRank::Felt as usize] = event(1_000, "older");
        worst.latest[EventRank::Lost as usize] = event(2_000, "newer");
        let journal = Journal::default();
        let mut at = |now_ms| worst.look(&journal, None, now_ms).map(|event| event.sentence);
        assert_eq!(at(EVENTS_WITHIN_MS + 1_000).as_deref(), Some("older"));
        assert_eq!(at(EVENTS_WITHIN_MS + 1_001).as_deref(), Some("newer"));
        assert_eq!(at(EVENTS_WITHIN_MS + 2_001), None);
    }
}
