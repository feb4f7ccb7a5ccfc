//! Flap damping after RFC 2439: a penalty that grows with each loss and halves with time.

use serde::{Deserialize, Serialize};

/// The limits of flapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DampingPolicy {
    pub half_life_ns: u64,
    /// Above this whoever flaps is held back ...
    pub suppress: f64,
    /// ... until the penalty is below this.
    pub reuse: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::model) struct Penalty {
    value: f64,
    at_ns: u64,
    held: bool,
}

impl Penalty {
    /// Counts one loss.
    pub(in crate::model) fn add(&mut self, policy: &DampingPolicy, now_ns: u64) {
        self.value = self.at(policy, now_ns) + 1.0;
        self.at_ns = now_ns;
        self.held |= self.value > policy.suppress;
    }

    /// Whether the penalty holds its subject back at `now_ns`.
    pub(in crate::model) fn holds(&mut self, policy: &DampingPolicy, now_ns: u64) -> bool {
        self.held &= self.at(policy, now_ns) >= policy.reuse;
        self.held
    }

    fn at(&self, policy: &DampingPolicy, now_ns: u64) -> f64 {
        let halves = now_ns.saturating_sub(self.at_ns) as f64 / policy.half_life_ns.max(1) as f64;
        self.value * (-halves).exp2()
    }
}
