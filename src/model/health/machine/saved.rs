//! A machine's memory, for the process that takes over: nobody is trusted or probed anew because of an upgrade.

use serde::{Deserialize, Serialize};

use super::{Deadline, Machine, Policy, ProbePlan, Removal, Say, Streak, Verdict};
use crate::model::end_reason::EndReason;
use crate::model::health::damping::Penalty;
use crate::model::health::{Cause, Standing};

/// Times are monotonic nanoseconds, of the same host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    verdict: Verdict,
    cause: Cause,
    last: Cause,
    fresh: bool,
    streak: Streak,
    penalty: Penalty,
    order: Option<Standing>,
    removal: Option<Removal>,
    another_is_ready: bool,
    deadline: Option<Deadline>,
    shown: (Standing, Say),
    since_ns: u64,
    resetting: Option<EndReason>,
    probe_started_ns: Option<u64>,
    probe_due_ns: u64,
}

impl Machine {
    /// Everything but the settings and what is still to be done. Call it when no action waits.
    pub fn save(&self) -> Saved {
        let due_ns = match self.probe.running {
            // Its outcome will be lost, so the next one comes when this one would have been started anew.
            true => self.probe.started_ns.unwrap_or(0).saturating_add(self.policy.fast_interval_ns),
            false => self.probe.due_ns,
        };
        Saved {
            verdict: self.verdict,
            cause: self.cause.clone(),
            last: self.last.clone(),
            fresh: self.fresh,
            streak: self.streak,
            penalty: self.penalty,
            order: self.order,
            removal: self.removal,
            another_is_ready: self.another_is_ready,
            deadline: self.deadline,
            shown: self.shown,
            since_ns: self.since_ns,
            resetting: self.resetting,
            probe_started_ns: self.probe.started_ns,
            probe_due_ns: due_ns,
        }
    }

    /// Goes on as `saved`, under the settings of this process.
    pub fn restore(policy: Policy, saved: Saved, now_ns: u64) -> Self {
        let probe = ProbePlan {
            running: false,
            started_ns: saved.probe_started_ns,
            due_ns: saved.probe_due_ns.min(now_ns.saturating_add(policy.interval_ns)),
            suspected: false,
        };
        let mut machine = Self {
            policy,
            verdict: saved.verdict,
            cause: saved.cause,
            last: saved.last,
            fresh: saved.fresh,
            streak: saved.streak,
            penalty: saved.penalty,
            order: saved.order,
            removal: saved.removal,
            another_is_ready: saved.another_is_ready,
            deadline: saved.deadline,
            shown: saved.shown,
            since_ns: saved.since_ns,
            resetting: saved.resetting,
            probe,
            actions: Default::default(),
        };
        // Other thresholds may decide otherwise.
        machine.settle(now_ns);
        machine.refresh(now_ns);
        machine
    }
}
