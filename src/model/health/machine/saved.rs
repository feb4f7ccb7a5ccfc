//! A machine's state, for the new process of an upgrade: that must not make it trust or probe any backend anew.

use serde::{Deserialize, Serialize};

use super::{Deadline, Machine, Policy, ProbePlan, ProbeVerdict, RemovalState, Say, Streak};
use crate::model::damping::Penalty;
use crate::model::end_reason::EndReason;
use crate::model::health::{Cause, HealthState};

/// Times are monotonic nanoseconds, of the same host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    verdict: ProbeVerdict,
    cause: Cause,
    last: Cause,
    fresh: bool,
    streak: Streak,
    penalty: Penalty,
    order: Option<HealthState>,
    removal: Option<RemovalState>,
    another_is_ready: bool,
    deadline: Option<Deadline>,
    shown: (HealthState, Say),
    since_ns: u64,
    /// Absent from an earlier release.
    #[serde(default)]
    passed_ns: Option<u64>,
    #[serde(default)]
    served_until_ns: Option<u64>,
    resetting: Option<EndReason>,
    probe_started_ns: Option<u64>,
    probe_due_ns: u64,
}

impl Saved {
    /// For a backend that was removed and is in the configuration again.
    pub(crate) fn reinstated(mut self) -> Self {
        if self.removal.take().is_some() {
            self.deadline = None;
        }
        self
    }
}

impl Machine {
    /// Everything except the settings and pending actions. Call it when no action is pending.
    pub(crate) fn save(&self) -> Saved {
        let due_ns = match self.probe.running {
            // Its result will be lost, so the next probe starts when this one would have been repeated.
            true => self.probe.started_ns.unwrap_or(0).saturating_add(self.policy.fast_interval_ns),
            false => self.probe.due_ns,
        };
        Saved {
            verdict: self.verdict,
            cause: self.cause.clone().known_before(),
            last: self.last.clone().known_before(),
            fresh: self.fresh,
            streak: self.streak,
            penalty: self.penalty,
            order: self.order,
            removal: self.removal,
            another_is_ready: self.another_is_ready,
            deadline: self.deadline,
            shown: self.shown,
            since_ns: self.since_ns,
            passed_ns: Some(self.passed_ns),
            served_until_ns: Some(self.served_until_ns),
            resetting: self.resetting,
            probe_started_ns: self.probe.started_ns,
            probe_due_ns: due_ns,
        }
    }

    /// Continues from `saved`, with the settings of this process.
    pub(crate) fn restore(policy: Policy, saved: Saved, now_ns: u64) -> Self {
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
            passed_ns: saved.passed_ns.unwrap_or(now_ns),
            served_until_ns: saved.served_until_ns.unwrap_or(saved.since_ns),
            resetting: saved.resetting,
            probe,
            actions: Default::default(),
        };
        // Other thresholds may give another result.
        machine.settle(now_ns);
        machine.refresh(now_ns);
        machine
    }
}

impl Cause {
    /// As a process of the last release knows it. The next probe tells it anew.
    fn known_before(self) -> Self {
        if self == Self::NoConnection { Self::Slow } else { self }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, to_value};

    use super::*;
    use crate::model::health::machine::Arrival;

    /// A process of the last release cannot parse an unknown word, and would refuse the upgrade. So a new word must be
    /// sent to it as one that it knows.
    #[test]
    fn the_release_before_knows_every_word_of_a_machine() {
        let verdicts = [
            ProbeVerdict::Untried(Arrival::AtStart),
            ProbeVerdict::Untried(Arrival::ByReload),
            ProbeVerdict::Ready,
            ProbeVerdict::Held,
            ProbeVerdict::Draining,
            ProbeVerdict::Ejected,
        ];
        let says = [Say::Nobody, Say::Probes, Say::Damping, Say::Operator, Say::Configuration];
        let error = || "why".to_owned();
        let causes = [
            Cause::NotProbed,
            Cause::Passed,
            Cause::NotReady { status: 500 },
            Cause::Slow,
            Cause::NoConnection.known_before(),
            Cause::Refused,
            Cause::Reset,
            Cause::Unreachable { error: error() },
            Cause::TimedOut { after_ms: 1 },
            Cause::Tls { error: error() },
            Cause::Protocol { error: error() },
            Cause::Unresolved { error: error() },
            Cause::Damped,
            Cause::OrderedDrain,
            Cause::OrderedEject,
            Cause::Removed,
        ];
        // Names the lists above that a new variant must be added to.
        let known = |verdict: &ProbeVerdict, say: &Say, cause: &Cause| match (verdict, say, cause) {
            (
                ProbeVerdict::Untried(Arrival::AtStart | Arrival::ByReload)
                | ProbeVerdict::Ready
                | ProbeVerdict::Held
                | ProbeVerdict::Draining
                | ProbeVerdict::Ejected,
                Say::Nobody | Say::Probes | Say::Damping | Say::Operator | Say::Configuration,
                Cause::NotProbed
                | Cause::Passed
                | Cause::NotReady { .. }
                | Cause::Slow
                | Cause::Refused
                | Cause::Reset
                | Cause::Unreachable { .. }
                | Cause::TimedOut { .. }
                | Cause::Tls { .. }
                | Cause::Protocol { .. }
                | Cause::Unresolved { .. }
                | Cause::Damped
                | Cause::OrderedDrain
                | Cause::OrderedEject
                | Cause::Removed
                // Never saved: it follows from the removal.
                | Cause::Readdressed
                // Saved as `Slow`.
                | Cause::NoConnection,
            ) => (),
        };
        known(&verdicts[0], &says[0], &causes[0]);
        let words = |values: Vec<Value>| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(verdicts.iter().map(|verdict| to_value(verdict).unwrap()).collect()),
            r#"{"Untried":"AtStart"} {"Untried":"ByReload"} "Ready" "Held" "Draining" "Ejected""#
        );
        assert_eq!(
            words(says.iter().map(|say| to_value(say).unwrap()).collect()),
            r#""Nobody" "Probes" "Damping" "Operator" "Configuration""#
        );
        let kinds = causes.iter().map(|cause| to_value(cause).unwrap()["kind"].as_str().unwrap().to_owned());
        assert_eq!(
            kinds.collect::<Vec<_>>().join(" "),
            "not_probed passed not_ready slow slow refused reset unreachable timed_out tls protocol unresolved damped \
             ordered_drain ordered_eject removed"
        );
    }
}
