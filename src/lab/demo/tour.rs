//! A limited tour without user input: each fault, how Baton handles it, and what its clients notice.

pub(super) mod table;

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::BUDGET;
use super::log;
use super::stage::{ActError, DemoStage, StageError, StandInAction};
use super::view::ViewWatcher;
use crate::model::health::HealthState;
use crate::sys::clock::now_ns;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TourError {
    #[error(transparent)]
    DemoStage(#[from] StageError),
    #[error(transparent)]
    Act(#[from] ActError),
    #[error("{step}: after {} s this was still awaited: {awaited}", STEP_TIMEOUT.as_secs())]
    Awaited { step: &'static str, awaited: String },
}

/// One fault of the tour.
#[derive(Clone, Copy, Debug)]
struct TourStep {
    title: &'static str,
    action: StandInAction,
    /// The health state that Baton must find.
    health_state: HealthState,
    after: After,
}

/// The condition that must hold once Baton has found the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Every client has left the stand-in and renewed its lease at another.
    ClientsMove,
    /// Its clients stay, without an interruption, for [`STAY`].
    ClientsStay,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StepOutcome {
    title: &'static str,
    stand_in: String,
    /// Time from the fault until Baton found it.
    noticed_after: Duration,
    health_state: HealthState,
    why: String,
    /// Connections that the clients lost.
    lost: u64,
    clients: usize,
    /// The longest time that any client went without a renewal.
    longest_gap: Duration,
}

impl StepOutcome {
    fn within_budget(&self) -> bool {
        self.longest_gap <= BUDGET
    }
}

/// Runs the tour and prints it. True if no client ever went without a renewal for longer than the budget.
pub(super) async fn run(stage: &mut DemoStage) -> Result<bool, TourError> {
    let mut guide = Guide { stage, watcher: ViewWatcher::default() };
    log::print_head(&guide.watcher.view(guide.stage));
    guide.until("all clients renew", "start", Guide::all_served).await?;

    let mut outcomes = Vec::new();
    for step in STEPS {
        outcomes.push(guide.play(step).await?);
    }
    let longest = guide.watcher.view(guide.stage).longest_gap();
    log::print_lines(&guide.watcher.rest());
    for line in table::lines(&outcomes, longest) {
        log::print(&line);
    }
    Ok(longest <= BUDGET)
}

struct Guide<'a> {
    stage: &'a mut DemoStage,
    watcher: ViewWatcher,
}

impl Guide<'_> {
    async fn play(&mut self, step: TourStep) -> Result<StepOutcome, TourError> {
        self.watch_for(CALM).await?;
        let target = self.busiest();
        let name = self.stage.stand_ins[target].name().to_owned();
        log::print_lines(&self.watcher.rest());
        log::print(&format!("\n== {name}: {}", step.title));
        self.stage.clients.iter().for_each(|client| client.kubelet.begin_window());
        let lost_before = self.lost();

        let begin_ns = now_ns();
        self.act(target, step.action).await?;
        let found = |guide: &Self| guide.health_state(&name) == Some(step.health_state);
        self.until(&format!("Baton finds {name} {}", step.health_state.label()), step.title, found).await?;
        let noticed_after = Duration::from_nanos(now_ns() - begin_ns);
        let why = self.stage.status.borrow().backend(&name).map(|backend| backend.why.clone()).unwrap_or_default();
        match step.after {
            After::ClientsMove => {
                let moved = |guide: &Self| guide.nobody_on(&name) && guide.all_served();
                self.until(&format!("all clients have left {name} and renew"), step.title, moved).await?;
                self.watch_for(SETTLE).await?;
            }
            After::ClientsStay => self.watch_for(STAY).await?,
        }
        let longest_gap = self.stage.clients.iter().map(|client| client.kubelet.window_gap()).max();
        let lost = self.lost() - lost_before;

        self.act(target, StandInAction::BringBack).await?;
        let all_well = |guide: &Self| guide.stage.status.borrow().all_ready() && guide.all_served();
        self.until(&format!("{name} is ready again"), step.title, all_well).await?;
        let clients = self.stage.clients.len();
        let longest_gap = longest_gap.unwrap_or_default();
        Ok(StepOutcome {
            title: step.title,
            stand_in: name,
            noticed_after,
            health_state: step.health_state,
            why,
            lost,
            clients,
            longest_gap,
        })
    }

    async fn act(&mut self, target: usize, action: StandInAction) -> Result<(), TourError> {
        let at_ns = now_ns();
        let done = self.stage.act(target, action).await?;
        self.watcher.say_at(at_ns, "you", done);
        Ok(())
    }

    /// Waits until `holds`, and prints events meanwhile.
    async fn until(
        &mut self,
        awaited: &str,
        step: &'static str,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<(), TourError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            self.tell()?;
            if holds(self) {
                return Ok(());
            }
            if timeout_at(deadline, sleep(PERIOD)).await.is_err() {
                return Err(TourError::Awaited { step, awaited: awaited.to_owned() });
            }
        }
    }

    async fn watch_for(&mut self, time: Duration) -> Result<(), TourError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(PERIOD).await;
            self.tell()?;
        }
        Ok(())
    }

    fn tell(&mut self) -> Result<(), TourError> {
        self.watcher.gather(self.stage);
        log::print_lines(&self.watcher.due());
        self.stage.baton_ended().map_or(Ok(()), |ended| Err(ended.into()))
    }

    /// The stand-in with the most clients, so that the fault matters.
    fn busiest(&self) -> usize {
        let summaries = self.stage.summaries();
        let clients_on = |place: &usize| {
            let name = self.stage.stand_ins[*place].name();
            summaries.iter().filter(|summary| summary.stand_in.as_deref() == Some(name)).count()
        };
        (0..self.stage.stand_ins.len()).rev().max_by_key(clients_on).unwrap_or(0)
    }

    fn health_state(&self, name: &str) -> Option<HealthState> {
        self.stage.status.borrow().backend(name)?.health_state
    }

    fn nobody_on(&self, name: &str) -> bool {
        self.stage.summaries().iter().all(|summary| summary.stand_in.as_deref() != Some(name))
    }

    /// Every client is connected and its last renewal is fresh.
    fn all_served(&self) -> bool {
        let served = |summary: &crate::lab::kubelet::Summary| {
            summary.stand_in.is_some() && summary.renewals > 0 && summary.last_renewal_ms < FRESH_MS
        };
        self.stage.summaries().iter().all(served)
    }

    fn lost(&self) -> u64 {
        self.stage.summaries().iter().map(|summary| summary.disconnections).sum()
    }
}

const STEPS: [TourStep; 5] = [
    TourStep {
        title: "the process is killed (SIGKILL)",
        action: StandInAction::Kill,
        health_state: HealthState::Ejected,
        after: After::ClientsMove,
    },
    TourStep {
        title: "the process hangs (SIGSTOP)",
        action: StandInAction::Hang,
        health_state: HealthState::Ejected,
        after: After::ClientsMove,
    },
    TourStep {
        title: "/readyz answers 500, all else is served",
        action: StandInAction::ToggleReady,
        health_state: HealthState::Draining,
        after: After::ClientsStay,
    },
    TourStep {
        title: "it is told to end, as for an upgrade (SIGTERM)",
        action: StandInAction::Terminate,
        health_state: HealthState::Draining,
        after: After::ClientsMove,
    },
    TourStep {
        title: "an operator drains it",
        action: StandInAction::Drain,
        health_state: HealthState::Draining,
        after: After::ClientsMove,
    },
];

/// Pause before each fault, so that each begins with renewals at their usual interval.
const CALM: Duration = Duration::from_secs(2);
/// Pause after clients have moved, so that each has renewed at its new stand-in.
const SETTLE: Duration = Duration::from_millis(1500);
/// Less than the drain timer of the demo's configuration.
const STAY: Duration = Duration::from_secs(4);
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(20);
/// One and a half intervals of renewals.
const FRESH_MS: u64 = 1500;
