//! The content of the demo's display: gathered from the stage, drawn by `screen` or printed by `log`.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

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

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ViewLine {
    /// Time since the demo's start.
    pub at: Duration,
    /// `you`, `baton` or a node's name.
    pub who: String,
    pub text: String,
}

impl View {
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_millis(self.kubelets.iter().map(|kubelet| kubelet.longest_gap_ms).max().unwrap_or(0))
    }
}

/// Keeps the lines about events between two views.
#[derive(Debug)]
pub(super) struct ViewWatcher {
    start_ns: u64,
    next_event: u64,
    /// Clients that have failed since they were last connected: one line covers all their attempts.
    failing: HashSet<String>,
    lines: VecDeque<ViewLine>,
}

impl Default for ViewWatcher {
    fn default() -> Self {
        Self { start_ns: now_ns(), next_event: 0, failing: HashSet::new(), lines: VecDeque::new() }
    }
}

impl ViewWatcher {
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(now_ns() - self.start_ns)
    }

    /// Adds a line.
    pub(super) fn say(&mut self, who: &str, text: impl Into<String>) -> ViewLine {
        let line = ViewLine { at: self.elapsed(), who: who.to_owned(), text: text.into() };
        if self.lines.len() == LINES_KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line.clone());
        line
    }

    /// Takes in the events of Baton and the clients since the last call; returns the new lines.
    pub(super) fn gather(&mut self, stage: &mut DemoStage) -> Vec<ViewLine> {
        let (events, next) = stage.status.borrow_and_update().events_since(self.next_event);
        self.next_event = next;
        let mut new: Vec<ViewLine> = events.into_iter().map(|event| self.say("baton", event)).collect();
        for client in &mut stage.clients {
            let name = client.kubelet.summary().name;
            while let Ok(seen) = client.observed.try_recv() {
                if self.worth_a_line(&name, &seen.event) {
                    new.push(self.say(&name, seen.event.to_string()));
                }
            }
        }
        new
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
            elapsed: self.elapsed(),
            frontend: places.frontend.to_string(),
            page: format!("http://{}/", places.http),
            command: format!("{} --socket {} status", own_name(), places.socket.display()),
            phase: status.instance.phase.clone(),
            backends: backends.collect(),
            kubelets: stage.summaries(),
            lines: self.lines.clone(),
        }
    }
}

/// The name of this program as its user typed it.
fn own_name() -> String {
    std::env::args().next().unwrap_or_else(|| "baton".to_owned())
}

const LINES_KEPT: usize = 200;

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

    #[test]
    fn old_lines_make_room() {
        let mut watcher = ViewWatcher::default();
        for number in 0..LINES_KEPT + 1 {
            watcher.say("you", number.to_string());
        }
        assert_eq!((watcher.lines.len(), watcher.lines[0].text.as_str()), (LINES_KEPT, "1"));
    }
}
