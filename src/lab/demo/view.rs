//! The content of the demo's display: gathered from the stage, drawn by `screen` or printed by `log`.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::chronicle::{Chronicle, EventTimes, ViewLine};
use super::process::Condition;
use super::stage::DemoStage;
use crate::lab::kubelet::{KubeletEvent, Summary};
use crate::model::health::HealthState;
use crate::sys::clock::now_ns;

/// The state of the demo at one moment.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Time since the demo's start.
    pub elapsed: Duration,
    pub frontend: String,
    pub page: String,
    /// The command that shows the status in another terminal.
    pub command: String,
    pub phase: String,
    pub backends: Vec<BackendRow>,
    pub kubelets: Vec<Summary>,
    /// Oldest first.
    pub lines: VecDeque<ViewLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackendRow {
    pub name: String,
    pub condition: Condition,
    /// `None`: Baton has not reported it.
    pub health_state: Option<HealthState>,
    pub why: String,
    /// `None`: since the start.
    pub since: Option<Duration>,
    pub drain_deadline: Option<Duration>,
    pub flows: u32,
}

impl View {
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_millis(self.kubelets.iter().map(|kubelet| kubelet.longest_gap_ms).max().unwrap_or(0))
    }
}

/// Keeps the lines about events between two views.
#[derive(Debug, Default)]
pub(super) struct ViewWatcher {
    next_event: u64,
    times: EventTimes,
    /// Clients that have failed since they were last connected: one line covers all their attempts.
    failing: HashSet<String>,
    chronicle: Chronicle,
}

impl ViewWatcher {
    /// Adds the line of an event that happens now.
    pub(super) fn say(&mut self, who: &str, text: impl Into<String>) {
        self.chronicle.add(now_ns(), who, text);
    }

    /// Adds the line of an event that happened at `at_ns`.
    pub(super) fn say_at(&mut self, at_ns: u64, who: &str, text: impl Into<String>) {
        self.chronicle.add(at_ns, who, text);
    }

    /// Takes in the events of Baton and the clients since the last call.
    pub(super) fn gather(&mut self, stage: &mut DemoStage) {
        let (events, next) = stage.status.borrow_and_update().events_since(self.next_event);
        self.next_event = next;
        for event in events {
            self.chronicle.add(self.times.next_ns(event.at_unix_ms), "baton", event.what.sentence());
        }
        for client in &mut stage.clients {
            let name = client.kubelet.summary().name;
            while let Ok(seen) = client.observed.try_recv() {
                if self.worth_a_line(&name, &seen.event) {
                    self.chronicle.add(client.start_ns + seen.at_ms * 1_000_000, &name, seen.event.to_string());
                }
            }
        }
    }

    /// The lines to print now.
    pub(super) fn due(&mut self) -> Vec<ViewLine> {
        self.chronicle.due()
    }

    /// All lines that are not printed yet.
    pub(super) fn rest(&mut self) -> Vec<ViewLine> {
        self.chronicle.rest()
    }

    /// Whether the event gets a line: renewals and watch events come all the time and are shown as numbers.
    fn worth_a_line(&mut self, client: &str, event: &KubeletEvent) -> bool {
        match event {
            KubeletEvent::Connected { .. } => {
                self.failing.remove(client);
                true
            }
            KubeletEvent::Failed { .. } => self.failing.insert(client.to_owned()),
            KubeletEvent::Disconnected { .. } => true,
            KubeletEvent::Renewed { .. } | KubeletEvent::Watched { .. } | KubeletEvent::WatchEnded { .. } => false,
        }
    }

    pub(super) fn view(&self, stage: &DemoStage) -> View {
        let status = stage.status.borrow();
        let backends = stage.stand_ins.iter().map(|stand_in| {
            let seen = status.backend(stand_in.name()).cloned().unwrap_or_default();
            BackendRow {
                name: stand_in.name().to_owned(),
                condition: stand_in.condition(),
                health_state: seen.health_state,
                why: seen.why,
                since: seen.since_ms.map(Duration::from_millis),
                drain_deadline: seen.drain_deadline_in_ms.map(Duration::from_millis),
                flows: seen.flows,
            }
        });
        let places = stage.places();
        View {
            elapsed: self.chronicle.elapsed(),
            frontend: places.frontend.to_string(),
            page: format!("http://{}/", places.http),
            command: format!("{} --socket {} status", own_name(), places.socket.display()),
            phase: status.instance.phase.clone(),
            backends: backends.collect(),
            kubelets: stage.summaries(),
            lines: self.chronicle.lines().clone(),
        }
    }
}

/// The name of this program as its user typed it.
pub(super) fn own_name() -> String {
    std::env::args().next().unwrap_or_else(|| "baton".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_fails_again_and_again_gets_one_line_until_it_is_connected() {
        let mut watcher = ViewWatcher::default();
        let failed = KubeletEvent::Failed { error: "refused".to_owned() };
        let connected = KubeletEvent::Connected { stand_in: None, local: "127.0.0.1:1".parse().unwrap(), took_ms: 1 };
        let mut seen = |who: &str, event: &KubeletEvent| watcher.worth_a_line(who, event);
        assert!(seen("node-1", &failed) && !seen("node-1", &failed));
        assert!(seen("node-2", &failed));
        assert!(seen("node-1", &connected) && seen("node-1", &failed));
        assert!(!seen("node-1", &KubeletEvent::Watched { bytes: 9, gap_ms: 9 }));
    }
}
