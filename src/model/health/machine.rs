//! The rules of health, as a machine without clock or socket.
//!
//! The result of the probes (the verdict); an operator's order or a reload overrides it:
//! ```text
//!      ┌───────────────────── rise passes ─────────────────┬────────────┐
//!      ▼                                                   │            │
//!    Ready ──────────── doubt ───────────▶ Draining ───────┤            │
//!      │ ▲                                  ▲    ▲         │ if damped: │
//!      │ └── penalty decayed ─── Held ──────┘    │         │ to Held    │
//!      │                          ▲   doubt      │         │            │
//!      │                          └──────────────┼─────────┴────────────┤
//!      │                                         │ rise answers         │
//!      └───────── fall dead probes ─────────▶ Ejected ──────────────────┘
//!                 (from any state)
//! ```
//! - **Untried**: no probe has ended. The first one decides alone, whatever its result. At the start of the process a
//!   backend is trusted until then, because connecting retries at another backend; one that a reload adds waits for its pass.
//! - **→ Draining**: the process lives but should get no new flows: it says so, or its certificate is faulty, or it
//!   answers too late while its flows still move bytes. The last is only half a reason, since loss alone can make a
//!   probe late: slow probes count half. The sum is the doubt, and `fall` whole ones in a row are enough.
//! - **→ Ejected**: `fall` probes in a row found it dead. From `reset_fall` on its flows are reset, again at each further
//!   one, since a flow may just have been connecting.
//! - **Ejected → Draining**: it answers again `rise` times, but is not ready; if all others are dead it is of use.
//! - **→ Held**: it passes, but was ready and lost too often lately (RFC 2439). It gets flows only if none is ready.
//!
//! A certificate fault drains and does not eject: flows that live are unaffected, and if the fault is in the probe's own
//! `ca_file`, then ejecting would take every backend away at once, while drained ones still serve when none is ready.
//!
//! The drain deadline runs for an order, a removal, and for "not ready" while another backend is ready: resetting
//! everybody when there is nowhere better to go makes an overload worse. It never runs for a slow, damped or
//! wrongly certified backend: those serve their flows.

mod outcome;
mod saved;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Cause, Dismissal, HealthState, Order};
use crate::model::balance::Preference;
pub(crate) use crate::model::damping::DampingPolicy;
use crate::model::damping::Penalty;
use crate::model::end_reason::EndReason;
pub(crate) use outcome::ProbeOutcome;
pub(crate) use saved::Saved;

/// The settings of one backend's health.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Policy {
    pub interval_ns: u64,
    /// From the start of one probe to the start of the next, while something is changing.
    pub fast_interval_ns: u64,
    /// Each interval is shortened by up to this many percent.
    pub jitter_percent: u32,
    pub rise: u32,
    pub fall: u32,
    /// Taken as at least `fall`.
    pub reset_fall: u32,
    pub slow_start_ns: u64,
    pub drain_timeout_ns: u64,
    pub damping: DampingPolicy,
}

/// The actions for the owner of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthAction {
    /// The health state changed, or who decides it: tell people.
    Changed { from: HealthState, to: HealthState, cause: Cause },
    /// Reset every flow of the backend. Comes again after each probe while the reason stands, because a flow may have
    /// been connecting at the time.
    ResetFlows { reason: EndReason, again: bool },
    /// Its share grows from `start_ns` on for `ramp_ns`.
    SlowStart { start_ns: u64, ramp_ns: u64 },
}

/// Whether a new backend is used before its first probe has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arrival {
    /// It was there when the process started.
    AtStart,
    /// A reload added it.
    ByReload,
}

/// The health of one backend. Times are monotonic nanoseconds and never go back.
#[derive(Debug)]
pub(crate) struct Machine {
    policy: Policy,
    verdict: ProbeVerdict,
    /// The cause of the verdict.
    cause: Cause,
    /// How the last probe ended.
    last: Cause,
    /// The next outcome decides alone.
    fresh: bool,
    streak: Streak,
    penalty: Penalty,
    order: Option<HealthState>,
    removal: Option<RemovalState>,
    another_is_ready: bool,
    deadline: Option<Deadline>,
    shown: (HealthState, Say),
    since_ns: u64,
    /// When the last probe that passed began; at first, when this was made.
    passed_ns: u64,
    served_until_ns: u64,
    resetting: Option<EndReason>,
    probe: ProbePlan,
    actions: VecDeque<HealthAction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ProbeVerdict {
    Untried(Arrival),
    Ready,
    Held,
    Draining,
    Ejected,
}

/// Outcomes in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Streak {
    passes: u32,
    /// Passes and other answers.
    answers: u32,
    dead: u32,
    /// Halves: 2 for each outcome that is no pass, 1 for a slow one.
    doubt: u32,
    /// Whether the last outcome agrees with the verdict, so that nothing is about to change.
    settled: bool,
}

/// Who decides the health state: a change of it is worth telling even if the health state stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Say {
    Nobody,
    Probes,
    Damping,
    Operator,
    Configuration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RemovalState {
    with_frontend: bool,
    /// Its name goes on, at another address. Absent from a release that did not part them.
    #[serde(default)]
    readdressed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Deadline {
    armed_at_ns: u64,
    /// Armed by an order or a removal: no need of another backend.
    firm: bool,
}

#[derive(Clone, Copy, Debug)]
struct ProbePlan {
    running: bool,
    /// `None` before the first one.
    started_ns: Option<u64>,
    due_ns: u64,
    /// A suspicion came while one ran.
    suspected: bool,
}

impl Machine {
    pub(crate) fn new(policy: Policy, arrival: Arrival, now_ns: u64) -> Self {
        let health_state = match arrival {
            Arrival::AtStart => HealthState::Ready,
            Arrival::ByReload => HealthState::Ejected,
        };
        Self {
            policy,
            verdict: ProbeVerdict::Untried(arrival),
            cause: Cause::NotProbed,
            last: Cause::NotProbed,
            fresh: true,
            streak: Streak::default(),
            penalty: Penalty::default(),
            order: None,
            removal: None,
            another_is_ready: false,
            deadline: None,
            shown: (health_state, Say::Nobody),
            since_ns: now_ns,
            passed_ns: now_ns,
            served_until_ns: now_ns,
            resetting: None,
            probe: ProbePlan { running: false, started_ns: None, due_ns: now_ns, suspected: false },
            actions: VecDeque::new(),
        }
    }

    /// A probe begins.
    pub(crate) fn handle_probe_started(&mut self, now_ns: u64) {
        self.probe = ProbePlan { running: true, started_ns: Some(now_ns), due_ns: u64::MAX, suspected: false };
    }

    /// The probe ended. `flows_moved`: a flow of this backend got bytes from it since the probe began.
    /// `random` is for the jitter.
    pub(crate) fn handle_outcome(&mut self, now_ns: u64, outcome: ProbeOutcome, flows_moved: bool, random: u64) {
        let conclusive = !matches!(outcome, ProbeOutcome::Inconclusive { .. });
        if conclusive {
            if matches!(outcome, ProbeOutcome::Passed) {
                self.passed_ns = self.probe.started_ns.unwrap_or(now_ns);
            }
            self.count(outcome, flows_moved, now_ns);
            self.fresh = false;
        }
        self.plan_next(now_ns, conclusive, random);
        let reset_before = self.resetting;
        self.refresh(now_ns);
        if let Some(reason) = self.resetting.filter(|_| reset_before == self.resetting) {
            self.actions.push_back(HealthAction::ResetFlows { reason, again: true });
        }
    }

    /// The data plane saw something odd: probe at once, but not more often than every `fast_interval`.
    pub(crate) fn handle_suspicion(&mut self, now_ns: u64) {
        match (self.probe.running, self.probe.started_ns) {
            (true, _) => self.probe.suspected = true,
            (false, None) => {}
            (false, Some(started_ns)) => {
                let soonest = now_ns.max(started_ns.saturating_add(self.policy.fast_interval_ns));
                self.probe.due_ns = self.probe.due_ns.min(soonest);
            }
        }
    }

    pub(crate) fn handle_order(&mut self, now_ns: u64, order: Order) {
        self.order = match order {
            Order::Drain => Some(HealthState::Draining),
            Order::Eject => Some(HealthState::Ejected),
            Order::Undrain => None,
        };
        self.refresh(now_ns);
    }

    /// It gets no flows any more, and keeps what it has until the drain deadline.
    pub(crate) fn handle_removed(&mut self, now_ns: u64, dismissal: Dismissal) {
        let (with_frontend, readdressed) = (dismissal == Dismissal::Frontend, dismissal == Dismissal::Address);
        self.removal = Some(RemovalState { with_frontend, readdressed });
        self.refresh(now_ns);
    }

    /// The state that it has so far is the one that it begins in.
    pub(crate) fn handle_begun(&mut self) {
        for action in &mut self.actions {
            if let HealthAction::Changed { from, to, .. } = action {
                *from = *to;
            }
        }
    }

    /// One that was removed need not wait for its drain deadline.
    pub(crate) fn handle_expired(&mut self, now_ns: u64) {
        if let Some(deadline) = &mut self.deadline {
            deadline.armed_at_ns = now_ns.saturating_sub(self.policy.drain_timeout_ns);
        }
        self.refresh(now_ns);
    }

    /// A reload brought it back before its last flow ended. An operator's order stays in force.
    pub(crate) fn handle_restored(&mut self, now_ns: u64) {
        self.removal = None;
        self.refresh(now_ns);
    }

    /// It has another address, or is probed in another way, so earlier results are no evidence any more. The health state
    /// stays until the next outcome, which comes at once and decides alone.
    pub(crate) fn handle_moved(&mut self, now_ns: u64) {
        self.streak = Streak::default();
        self.fresh = true;
        self.probe.running = false;
        self.probe.due_ns = now_ns;
        self.refresh(now_ns);
    }

    /// This host had lost its own network, and has it back, so earlier results are no evidence. Unlike a new address, that
    /// says nothing for the backend either, so the health state needs its `rise` or `fall` as ever.
    pub(crate) fn handle_network_back(&mut self, now_ns: u64) {
        self.streak = Streak::default();
        self.probe.running = false;
        self.probe.due_ns = now_ns;
        self.refresh(now_ns);
    }

    /// The probe ended while this host's network had not settled: neither it nor earlier results are evidence.
    pub(crate) fn handle_unsettled(&mut self, now_ns: u64, random: u64) {
        self.streak = Streak::default();
        self.plan_next(now_ns, false, random);
        self.refresh(now_ns);
    }

    pub(crate) fn handle_policy(&mut self, now_ns: u64, policy: Policy) {
        self.policy = policy;
        if let Some(started_ns) = self.probe.started_ns.filter(|_| !self.probe.running) {
            let latest = started_ns.saturating_add(policy.interval_ns).max(now_ns);
            self.probe.due_ns = self.probe.due_ns.min(latest);
        }
        self.settle(now_ns);
        self.refresh(now_ns);
    }

    /// Whether a backend of the same frontend is ready.
    pub(crate) fn handle_another_ready(&mut self, now_ns: u64, another_is_ready: bool) {
        self.another_is_ready = another_is_ready;
        self.refresh(now_ns);
    }

    /// [`Machine::next_timeout_ns`] has come.
    #[cfg(test)]
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        self.refresh(now_ns);
    }

    /// The next thing to do; apply [`Machine::preference`] before the actions, so that no new flow follows a reset.
    pub(crate) fn poll_action(&mut self) -> Option<HealthAction> {
        self.actions.pop_front()
    }

    /// When the next probe should start; `None` while one runs.
    pub(crate) fn next_probe_ns(&self) -> Option<u64> {
        (!self.probe.running).then_some(self.probe.due_ns)
    }

    /// When `handle_timeout` should be called.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        self.drain_deadline_ns().filter(|_| self.resetting.is_none())
    }

    pub(crate) fn health_state(&self) -> HealthState {
        self.effective().0
    }

    /// Why it stands as it stands.
    pub(crate) fn cause(&self) -> Cause {
        match self.effective().1 {
            Say::Operator if self.order == Some(HealthState::Ejected) => Cause::OrderedEject,
            Say::Operator => Cause::OrderedDrain,
            Say::Configuration if self.removal.is_some_and(|it| it.readdressed) => Cause::Readdressed,
            Say::Configuration => Cause::Removed,
            Say::Damping => Cause::Damped,
            Say::Nobody | Say::Probes => self.cause.clone(),
        }
    }

    /// Until when it is known to have served, in monotonic ns, if it is not ready.
    pub(crate) fn served_until_ns(&self) -> u64 {
        self.served_until_ns
    }

    /// Since when, in monotonic ns.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    pub(crate) fn preference(&self) -> Preference {
        match self.effective() {
            (HealthState::Ready, _) => Preference::Ready,
            (HealthState::Draining, Say::Operator) => Preference::OrderedAway,
            (HealthState::Draining, Say::Configuration) | (HealthState::Ejected, _) => Preference::Never,
            (HealthState::Draining, _) => Preference::Draining,
        }
    }

    /// The order in force, in a word.
    pub(crate) fn order(&self) -> Option<&'static str> {
        match (self.removal, self.order) {
            (Some(_), _) => Some("removed"),
            (None, Some(HealthState::Ejected)) => Some("eject"),
            (None, Some(_)) => Some("drain"),
            (None, None) => None,
        }
    }

    /// When its remaining flows are reset, if they are to be.
    pub(crate) fn drain_deadline_ns(&self) -> Option<u64> {
        self.deadline.map(|deadline| deadline.armed_at_ns.saturating_add(self.policy.drain_timeout_ns))
    }

    /// Proven ready by a probe: others may send their flows here.
    pub(crate) fn is_proven_ready(&self) -> bool {
        self.health_state() == HealthState::Ready && self.verdict == ProbeVerdict::Ready
    }

    fn count(&mut self, outcome: ProbeOutcome, flows_moved: bool, now_ns: u64) {
        let Streak { passes, answers, dead, doubt, .. } = self.streak;
        let plus = |count: u32, by: u32| count.saturating_add(by);
        let grown = |passes, answers, dead, doubt| Streak { passes, answers, dead, doubt, settled: false };
        let cause = match outcome {
            ProbeOutcome::Passed => Cause::Passed,
            ProbeOutcome::NotReady { status } => Cause::NotReady { status },
            ProbeOutcome::Failed(Cause::TimedOut { .. }) if flows_moved => Cause::Slow,
            ProbeOutcome::Failed(cause) => cause,
            ProbeOutcome::Inconclusive { .. } => return,
        };
        self.streak = match cause {
            Cause::Passed => grown(plus(passes, 1), plus(answers, 1), 0, 0),
            Cause::Slow | Cause::NoConnection => grown(0, plus(answers, 1), 0, plus(doubt, 1)),
            Cause::NotReady { .. } | Cause::Tls { .. } => grown(0, plus(answers, 1), 0, plus(doubt, 2)),
            Cause::Protocol { .. } if flows_moved => grown(0, plus(answers, 1), 0, plus(doubt, 2)),
            _ => grown(0, 0, plus(dead, 1), plus(doubt, 2)),
        };
        self.last = cause;
        let before = self.verdict;
        self.settle(now_ns);
        let dead = self.streak.dead > 0;
        let passed = self.last == Cause::Passed;
        let agrees = match self.verdict {
            ProbeVerdict::Ready | ProbeVerdict::Held => passed,
            ProbeVerdict::Draining => !passed && !dead,
            ProbeVerdict::Ejected => dead,
            ProbeVerdict::Untried(_) => false,
        };
        if agrees && before == self.verdict {
            self.cause = self.last.clone();
        }
        let reset_is_near = self.verdict == ProbeVerdict::Ejected && self.streak.dead < self.reset_fall();
        self.streak.settled = agrees && !reset_is_near;
    }

    /// Lets the streaks decide the verdict.
    fn settle(&mut self, now_ns: u64) {
        let Streak { passes, answers, dead, doubt, .. } = self.streak;
        let (rise, fall, doubtful) = match self.fresh {
            true => (1, 1, 1),
            false => (self.policy.rise.max(1), self.fall(), self.fall().saturating_mul(2)),
        };
        let next = match self.verdict {
            _ if dead >= fall => ProbeVerdict::Ejected,
            // Damping holds back from ready; it takes ready from nobody.
            ProbeVerdict::Ready if passes >= rise => ProbeVerdict::Ready,
            _ if passes >= rise && self.penalty.holds(&self.policy.damping, now_ns) => ProbeVerdict::Held,
            _ if passes >= rise => ProbeVerdict::Ready,
            ProbeVerdict::Ejected if answers >= rise && passes == 0 => ProbeVerdict::Draining,
            ProbeVerdict::Ejected => ProbeVerdict::Ejected,
            _ if doubt >= doubtful => ProbeVerdict::Draining,
            unchanged => unchanged,
        };
        if next == self.verdict {
            return;
        }
        // An operator who restarts a drained backend is no flapping.
        if self.verdict == ProbeVerdict::Ready && self.order.is_none() && self.removal.is_none() {
            self.penalty.add(&self.policy.damping, now_ns);
        }
        self.verdict = next;
        self.cause = self.last.clone();
    }

    fn plan_next(&mut self, now_ns: u64, conclusive: bool, random: u64) {
        let fast = !conclusive || !self.streak.settled;
        let interval_ns = if fast { self.policy.fast_interval_ns } else { self.policy.interval_ns };
        let most = interval_ns / 100 * u64::from(self.policy.jitter_percent.min(100));
        let gap_ns = interval_ns - ((u128::from(most) * u128::from(random)) >> 64) as u64;
        let gap_ns = if self.probe.suspected { gap_ns.min(self.policy.fast_interval_ns) } else { gap_ns };
        let started_ns = self.probe.started_ns.unwrap_or(now_ns);
        let due_ns = started_ns.saturating_add(gap_ns).max(now_ns);
        self.probe = ProbePlan { running: false, due_ns, suspected: false, ..self.probe };
    }

    /// Draws the consequences of a change of any input.
    fn refresh(&mut self, now_ns: u64) {
        let (to, say) = self.effective();
        self.update_deadline(now_ns);
        let shown = self.shown;
        let from = shown.0;
        if shown != (to, say) {
            self.shown = (to, say);
            self.since_ns = now_ns;
            self.served_until_ns = match (from, say) {
                // Its clients may have left it long before so many probes had failed.
                (HealthState::Ready, Say::Probes | Say::Damping) => self.passed_ns.min(now_ns),
                (HealthState::Ready, _) => now_ns,
                _ if to == HealthState::Ready => now_ns,
                _ => self.served_until_ns,
            };
            // One that waits for its first probe was found nowhere yet.
            let told = if shown == (HealthState::Ejected, Say::Nobody) { to } else { from };
            self.actions.push_back(HealthAction::Changed { from: told, to, cause: self.cause() });
        }
        if from != HealthState::Ready && to == HealthState::Ready {
            self.actions.push_back(HealthAction::SlowStart { start_ns: now_ns, ramp_ns: self.policy.slow_start_ns });
        }
        let reason = self.reset_reason(now_ns);
        if let Some(reason) = reason.filter(|_| reason != self.resetting) {
            self.actions.push_back(HealthAction::ResetFlows { reason, again: false });
        }
        self.resetting = reason;
        self.check();
    }

    fn update_deadline(&mut self, now_ns: u64) {
        let runs = match self.effective() {
            (HealthState::Draining, Say::Operator | Say::Configuration) => Some(true),
            (HealthState::Draining, Say::Probes) if matches!(self.cause, Cause::NotReady { .. }) => {
                self.another_is_ready.then_some(false)
            }
            _ => None,
        };
        self.deadline = match (self.deadline, runs) {
            (_, None) => None,
            // What already runs goes on, but for a lifted order, whose time was not the backend's fault.
            (Some(old), Some(firm)) if old.firm <= firm => Some(Deadline { firm, ..old }),
            (_, Some(firm)) => Some(Deadline { armed_at_ns: now_ns, firm }),
        };
    }

    fn reset_reason(&self, now_ns: u64) -> Option<EndReason> {
        if self.order == Some(HealthState::Ejected) {
            return Some(EndReason::EjectedByOperator);
        }
        if self.verdict == ProbeVerdict::Ejected && self.streak.dead >= self.reset_fall() {
            return Some(EndReason::BackendEjected);
        }
        let passed = self.drain_deadline_ns().is_some_and(|deadline| deadline <= now_ns);
        passed.then_some(match self.removal {
            Some(RemovalState { with_frontend: true, .. }) => EndReason::FrontendRemoved,
            _ => EndReason::DrainDeadline,
        })
    }

    fn effective(&self) -> (HealthState, Say) {
        if self.order == Some(HealthState::Ejected) {
            return (HealthState::Ejected, Say::Operator);
        }
        let by_probes = match self.verdict {
            ProbeVerdict::Untried(Arrival::AtStart) => (HealthState::Ready, Say::Nobody),
            ProbeVerdict::Untried(Arrival::ByReload) => (HealthState::Ejected, Say::Nobody),
            ProbeVerdict::Ready => (HealthState::Ready, Say::Probes),
            ProbeVerdict::Held => (HealthState::Draining, Say::Damping),
            ProbeVerdict::Draining => (HealthState::Draining, Say::Probes),
            ProbeVerdict::Ejected => (HealthState::Ejected, Say::Probes),
        };
        // Flows must not wait on a dead backend because somebody drains it.
        match (by_probes.0, self.removal, self.order) {
            (HealthState::Ejected, ..) => by_probes,
            (_, Some(_), _) => (HealthState::Draining, Say::Configuration),
            (_, None, Some(_)) => (HealthState::Draining, Say::Operator),
            (_, None, None) => by_probes,
        }
    }

    fn fall(&self) -> u32 {
        self.policy.fall.max(1)
    }

    fn reset_fall(&self) -> u32 {
        self.policy.reset_fall.max(self.fall())
    }

    fn check(&self) {
        let streak = &self.streak;
        debug_assert!(streak.passes == 0 || streak.doubt == 0, "a pass ends all doubt");
        debug_assert!(streak.passes <= streak.answers, "a pass is an answer");
        debug_assert!(streak.dead == 0 || streak.answers == 0, "the dead do not answer");
        debug_assert!(streak.dead <= streak.doubt, "a dead probe is a doubt");
        debug_assert!((self.health_state() == HealthState::Ready) == (self.preference() == Preference::Ready));
        debug_assert!(
            self.deadline.is_none() || self.health_state() == HealthState::Draining,
            "only draining has a deadline"
        );
        debug_assert!(
            self.resetting.is_none() || self.preference() != Preference::Ready,
            "a ready backend is not reset"
        );
        if self.verdict == ProbeVerdict::Ready && !self.fresh {
            debug_assert!(streak.dead < self.fall(), "ready in spite of {} dead probes", streak.dead);
            debug_assert!(u64::from(streak.doubt) < 2 * u64::from(self.fall()), "ready in spite of doubt");
        }
        if self.resetting == Some(EndReason::BackendEjected) {
            debug_assert!(streak.dead >= self.reset_fall(), "reset below reset_fall");
        }
    }
}

#[cfg(test)]
mod tests;
