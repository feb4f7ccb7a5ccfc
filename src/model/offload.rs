//! Decides when a flow is offered to the offload engine, and when again after a refusal.
//!
//! ```text
//!            nearly enough round trips,
//!            or old enough                 enough, and nothing under way
//!   Young ───────────────────▶ Announced ───────────────────────────────▶ Offered ──▶ offloaded
//!                                  ▲                                         │
//!                                  ├──── after 2 ms, 4 ms … 1 s ◀── busy ────┤
//!                                  ├──── after 2 s or 30 s ◀─────── refused ─┤
//!                                  │                         refused for good ──▶ proxied until it ends
//!                                  └──── at once: a reload, an evacuation
//! ```
//! Times are nanoseconds on one clock, which is passed in.

pub(crate) mod in_flight;
pub(crate) mod steps;
#[cfg(test)]
mod tests;

/// The pause before a busy flow's next try; it doubles each time, up to the limit.
const BUSY_WAIT_NS: u64 = 2_000_000;
const BUSY_WAIT_MAX_NS: u64 = 1_000_000_000;

/// Tries in a row, together two seconds, after which a flow with a silent end counts as refused.
const UNSEEN_TRIES: u8 = 11;

/// The pause before a flow's next try while a trial of the breaker is under way.
const TRIAL_WAIT_NS: u64 = 2_000_000_000;

/// The pause before a flow's next try while the map is full, an address is taken, or offload has stopped.
const REFUSED_WAIT_NS: u64 = 30_000_000_000;

/// The flows to offload: those with so many answered requests, or of this age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffloadPolicy {
    pub round_trips: u32,
    pub after_ns: u64,
}

impl OffloadPolicy {
    pub(crate) const AT_ONCE: OffloadPolicy = OffloadPolicy { round_trips: 0, after_ns: 0 };
}

/// Why a try to offload a flow failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadRefusal {
    /// Bytes were in flight.
    Busy,
    /// One of its ends has sent nothing yet, but may do so by itself.
    Unseen,
    /// It waits for the result of a trial.
    Trial,
    /// The obstacle may pass.
    ForNow,
    ForGood,
}

/// The progress of one flow towards its offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eligibility {
    /// Number of the client's answered requests.
    round_trips: u32,
    /// No try before this time; [`NEVER`].
    not_before_ns: u64,
    /// Number of tries in a row that found it busy.
    tries: u8,
    /// Number of tries in a row that found an end silent.
    unseen: u8,
    announced: bool,
}

const NEVER: u64 = u64::MAX;

impl Eligibility {
    /// A request was answered.
    pub(crate) fn count_round_trip(&mut self) {
        self.round_trips = self.round_trips.saturating_add(1);
    }

    /// A request has just been passed on. Returns true once, if the flow may be offloaded with the next one: then the
    /// offload engine begins to watch its packets.
    pub(crate) fn announce(&mut self, policy: OffloadPolicy, age_ns: u64) -> bool {
        let near = self.round_trips.saturating_add(1) >= policy.round_trips || age_ns >= policy.after_ns;
        let announces = near && !self.announced && !self.is_refused_for_good();
        self.announced |= announces;
        announces
    }

    /// Whether the offload engine watches it.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    /// Whether it may be tried if no bytes are in flight: the last refusal is long enough ago.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.not_before_ns && !self.is_refused_for_good()
    }

    /// Whether it may be tried with the request that has just come.
    pub(crate) fn may_be_tried(&self, policy: OffloadPolicy, age_ns: u64, now_ns: u64) -> bool {
        let grown = self.round_trips >= policy.round_trips || age_ns >= policy.after_ns;
        grown && self.announced && self.is_due(now_ns)
    }

    /// It was offered to the offload engine, which watches it from then on.
    pub(crate) fn offered(&mut self) {
        self.announced = true;
    }

    /// Bytes were in flight, so it was not offered. Returns the time of the next try.
    pub(crate) fn busy(&mut self, now_ns: u64) -> u64 {
        self.not_before_ns = now_ns + self.busy_wait_ns();
        self.not_before_ns
    }

    /// It was offered, but not offloaded. Returns the time of the next try; `None`: never.
    pub(crate) fn refused(&mut self, why: OffloadRefusal, now_ns: u64) -> Option<u64> {
        if why == OffloadRefusal::ForGood {
            self.not_before_ns = NEVER;
            return None;
        }
        let wait_ns = match why {
            OffloadRefusal::Unseen if self.unseen < UNSEEN_TRIES => {
                self.tries = self.unseen;
                self.unseen += 1;
                self.busy_wait_ns()
            }
            OffloadRefusal::Busy => self.busy_wait_ns(),
            OffloadRefusal::Trial => TRIAL_WAIT_NS,
            _ => REFUSED_WAIT_NS,
        };
        if why != OffloadRefusal::Unseen {
            self.unseen = 0;
        }
        self.not_before_ns = now_ns + wait_ns;
        Some(self.not_before_ns)
    }

    /// The obstacle may be gone. Returns whether to try it at once.
    pub(crate) fn try_again(&mut self) -> bool {
        if self.is_refused_for_good() {
            return false;
        }
        (self.not_before_ns, self.tries) = (0, 0);
        true
    }

    fn is_refused_for_good(&self) -> bool {
        self.not_before_ns == NEVER
    }

    fn busy_wait_ns(&mut self) -> u64 {
        let wait_ns = (BUSY_WAIT_NS << self.tries.min(16)).min(BUSY_WAIT_MAX_NS);
        self.tries = self.tries.saturating_add(1);
        wait_ns
    }
}
