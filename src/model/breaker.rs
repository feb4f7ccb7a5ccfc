//! Decides whether Baton may go on offloading flows, by the fate of those that it has offloaded.
//!
//! ```text
//!            many are reset right after          those that offload are, those held back are not
//!   Closed ────────────────────────────▶ Trial ──────────────────────────────────────────────────▶ Open
//!     ▲                                    │ either lives, or both are reset                       │ ▲
//!     ├────────────────────────────────────┘                              after a while, or a reload │ it is reset
//!     └──────────────────────────────────────────────────────────────────────────────── Probe: one flow
//!                                                                              it lives
//! ```
//! A backend that dies resets many flows once, but not those of the trial; clients that always end with a reset also do
//! so in sockets. So the breaker opens only for resets that the offload itself causes, twice. Times are nanoseconds on
//! one clock, which is passed in.

use crate::model::ids::FlowId;

/// A flow that is reset within this time after its offload counts as reset right after it; any other counts as living.
pub(crate) const SOON_NS: u64 = 1_000_000_000;

/// The breaker suspects the offload if at least so many flows, and one in so many of the offloaded ones, are reset
/// right after it, in the time of all buckets.
const SUSPECT_MIN: u32 = 5;
const SUSPECT_ONE_IN: u32 = 5;
const BUCKETS: usize = 12;
const BUCKET_NS: u64 = 10_000_000_000;

/// Flows that are offloaded in a trial; half of them must be reset to speak against the offload.
const TRIAL: u32 = 6;

/// Time between two of these: a cause that resets many flows at a time is over by then.
const TRIAL_STEP_NS: u64 = 500_000_000;

/// Number of flows held back whose fate must be known, and how few are enough after a while. If half of all flows are
/// reset, the chance that none of eight is reset is 1 in 256.
const HELD: [(u64, u32); 4] = [(0, 24), (10_000_000_000, 8), (60_000_000_000, 3), (TRIAL_NS, 0)];
const HELD_MAX: usize = 64;

/// Of the flows held back, at most one in so many may be reset compared with the offloaded ones.
const HELD_ONE_IN: u64 = 8;

/// A trial without a result ends after this time.
const TRIAL_NS: u64 = 180_000_000_000;

/// A flow that is silent for so long counts as living: in a trial, and as the single flow of a probe.
const MUTE_NS: u64 = 5_000_000_000;
const MUTE_ALONE_NS: u64 = 30_000_000_000;

/// How long the breaker is open at first; twice as long each time that it opens again, up to the limit.
const OPEN_NS: u64 = 300_000_000_000;
const OPEN_NS_MAX: u64 = 3_600_000_000_000;

/// How long offload goes on in any case after a trial that found nothing against it, or in which all flows were reset.
const CLEARED_NS: u64 = 60_000_000_000;
const EXCUSED_NS: u64 = 600_000_000_000;

/// The decision about a flow that could be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Offload,
    /// It stays proxied for now, and the caller must report its fate by [`Breaker::handle_fate`].
    Observe,
    Stay,
}

/// The fate of a flow that was offloaded or held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// One of its ends has reset it right after the offload.
    Reset,
    Lives,
    /// It was ended in another way, so its fate stays unknown.
    Gone,
}

/// A change that people must learn of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    /// Offload stops: in the end, so many of so many offloaded flows were reset right after their offload.
    Opened { reset: u32, of: u32 },
    /// Offload continues after a stop.
    Closed,
}

#[derive(Debug, Default)]
enum BreakerState {
    #[default]
    Closed,
    Trial {
        since_ns: u64,
        /// When the next flow may be offloaded.
        next_ns: u64,
        offloaded: Arm,
        held: Arm,
    },
    Open {
        until_ns: u64,
    },
    Probe(Arm),
}

/// The watched flows and their fates.
#[derive(Debug, Default)]
struct Arm {
    /// Flows whose fate is not known yet, and since when they are watched.
    watched: Vec<(FlowId, u64)>,
    reset: u32,
    lived: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// Offloaded flows, and those of them that were reset, by the bucket's time modulo [`BUCKETS`].
    buckets: [(u64, u32, u32); BUCKETS],
    trusted_until_ns: u64,
    /// Number of openings, and the end of the last one.
    failures: u32,
    closed_ns: u64,
}

impl Breaker {
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed)
    }

    /// Whether no flow is offloaded, except one as a probe.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, BreakerState::Open { .. } | BreakerState::Probe(_))
    }

    /// Asks whether a flow may be offloaded. If it may and is not after all, report [`Fate::Gone`].
    pub(crate) fn admit(&mut self, id: FlowId, now_ns: u64) -> Admission {
        let admission = match &mut self.state {
            BreakerState::Closed => Admission::Offload,
            BreakerState::Trial { held, .. } if held.watches(id) => Admission::Stay,
            // Alternately, so that both groups are alike.
            BreakerState::Trial { next_ns, offloaded, held, .. }
                if offloaded.all() < TRIAL && offloaded.all() <= held.all() && now_ns >= *next_ns =>
            {
                *next_ns = now_ns + TRIAL_STEP_NS;
                offloaded.watched.push((id, now_ns));
                Admission::Offload
            }
            BreakerState::Trial { held, .. } if held.watched.len() < HELD_MAX => {
                held.watched.push((id, now_ns));
                Admission::Observe
            }
            BreakerState::Probe(arm) if arm.all() == 0 => {
                arm.watched.push((id, now_ns));
                Admission::Offload
            }
            BreakerState::Trial { .. } | BreakerState::Probe(_) | BreakerState::Open { .. } => Admission::Stay,
        };
        if admission == Admission::Offload {
            self.bucket(now_ns).1 += 1;
        }
        admission
    }

    /// Flows that were offloaded, or (not `offloaded`) held back, whose fate the caller must report.
    pub(crate) fn watched(&self, offloaded: bool) -> impl Iterator<Item = FlowId> + '_ {
        let arm = match &self.state {
            BreakerState::Trial { offloaded: arm, .. } | BreakerState::Probe(arm) if offloaded => Some(arm),
            BreakerState::Trial { held, .. } if !offloaded => Some(held),
            _ => None,
        };
        arm.into_iter().flat_map(|arm| arm.watched.iter().map(|(id, _)| *id))
    }

    /// Reports the fate of a flow. For offloaded flows report each reset; for others only the fate of watched ones.
    pub(crate) fn handle_fate(&mut self, id: FlowId, fate: Fate, now_ns: u64) {
        if let BreakerState::Trial { held, .. } = &mut self.state
            && held.settle(id, fate)
        {
            return;
        }
        if fate == Fate::Reset {
            self.bucket(now_ns).2 += 1;
        }
        match &mut self.state {
            BreakerState::Closed if fate == Fate::Reset && now_ns >= self.trusted_until_ns => self.suspect(now_ns),
            BreakerState::Trial { offloaded: arm, .. } | BreakerState::Probe(arm) => drop(arm.settle(id, fate)),
            BreakerState::Closed | BreakerState::Open { .. } => {}
        }
    }

    /// A reload may have removed the cause.
    pub(crate) fn handle_reload(&mut self) {
        if self.is_open() {
            self.state = BreakerState::Probe(Arm::default());
        }
    }

    /// Call it now and then.
    pub(crate) fn poll(&mut self, now_ns: u64) -> Option<BreakerChange> {
        match &mut self.state {
            BreakerState::Closed => None,
            BreakerState::Trial { since_ns, offloaded, held, .. } => {
                offloaded.expire(now_ns, MUTE_NS);
                held.expire(now_ns, 2 * MUTE_NS);
                let age_ns = now_ns.saturating_sub(*since_ns);
                if 2 * offloaded.lived > TRIAL {
                    return self.close(now_ns, CLEARED_NS);
                }
                if 2 * offloaded.reset < TRIAL {
                    return if age_ns < TRIAL_NS { None } else { self.close(now_ns, CLEARED_NS) };
                }
                if !HELD.iter().any(|(after_ns, least)| age_ns >= *after_ns && held.known() >= *least) {
                    return None;
                }
                let often = HELD_ONE_IN * u64::from(held.reset) * u64::from(offloaded.known());
                match often > u64::from(held.known()) * u64::from(offloaded.reset) {
                    true => self.close(now_ns, EXCUSED_NS),
                    false => {
                        let (reset, of) = (offloaded.reset, offloaded.known());
                        self.open(now_ns);
                        Some(BreakerChange::Opened { reset, of })
                    }
                }
            }
            BreakerState::Probe(arm) => {
                arm.expire(now_ns, MUTE_ALONE_NS);
                match (arm.reset, arm.lived) {
                    (0, 0) => {}
                    (0, _) => return self.close(now_ns, 0),
                    _ => self.open(now_ns),
                }
                None
            }
            BreakerState::Open { until_ns } => {
                if now_ns >= *until_ns {
                    self.state = BreakerState::Probe(Arm::default());
                }
                None
            }
        }
    }

    fn suspect(&mut self, now_ns: u64) {
        let at = now_ns / BUCKET_NS;
        let recent = self.buckets.iter().filter(|(of, ..)| at.saturating_sub(*of) < BUCKETS as u64);
        let (of, reset) = recent.fold((0, 0), |(of, reset), bucket| (of + bucket.1, reset + bucket.2));
        if reset >= SUSPECT_MIN && reset * SUSPECT_ONE_IN >= of {
            let (offloaded, held) = (Arm::default(), Arm::default());
            self.state = BreakerState::Trial { since_ns: now_ns, next_ns: now_ns, offloaded, held };
        }
    }

    fn open(&mut self, now_ns: u64) {
        if self.closed_ns != 0 && now_ns.saturating_sub(self.closed_ns) > OPEN_NS_MAX {
            self.failures = 0;
        }
        let wait_ns = OPEN_NS.saturating_mul(1 << self.failures.min(8)).min(OPEN_NS_MAX);
        self.failures += 1;
        self.closed_ns = 0;
        self.state = BreakerState::Open { until_ns: now_ns + wait_ns };
    }

    fn close(&mut self, now_ns: u64, trusted_ns: u64) -> Option<BreakerChange> {
        let was_open = self.is_open();
        self.state = BreakerState::Closed;
        self.buckets = Default::default();
        self.trusted_until_ns = now_ns + trusted_ns;
        if was_open {
            self.closed_ns = now_ns;
        }
        was_open.then_some(BreakerChange::Closed)
    }

    fn bucket(&mut self, now_ns: u64) -> &mut (u64, u32, u32) {
        let at = now_ns / BUCKET_NS;
        let bucket = &mut self.buckets[at as usize % BUCKETS];
        if bucket.0 != at {
            *bucket = (at, 0, 0);
        }
        bucket
    }
}

impl Arm {
    fn known(&self) -> u32 {
        self.reset + self.lived
    }

    fn all(&self) -> u32 {
        self.known() + self.watched.len() as u32
    }

    fn watches(&self, id: FlowId) -> bool {
        self.watched.iter().any(|(its, _)| *its == id)
    }

    /// Whether it is one of the watched flows.
    fn settle(&mut self, id: FlowId, fate: Fate) -> bool {
        let Some(place) = self.watched.iter().position(|(its, _)| *its == id) else { return false };
        self.watched.swap_remove(place);
        match fate {
            Fate::Reset => self.reset += 1,
            Fate::Lives => self.lived += 1,
            Fate::Gone => {}
        }
        true
    }

    fn expire(&mut self, now_ns: u64, mute_ns: u64) {
        let before = self.watched.len();
        self.watched.retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) < mute_ns);
        self.lived += (before - self.watched.len()) as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Plays flows that could be offloaded, one every 20 ms for so many seconds; `resets` says whether a flow is reset
    /// 100 ms after that, by its number and by whether it was offloaded. Returns the changes, and the number of
    /// offloaded flows that were reset.
    fn play(
        breaker: &mut Breaker,
        from_ns: u64,
        seconds: u64,
        resets: impl Fn(u64, bool) -> bool,
    ) -> (Vec<BreakerChange>, u32) {
        let (mut told, mut harmed) = (Vec::new(), 0);
        let mut due = std::collections::BTreeMap::new();
        for step in 0..seconds * 50 {
            let now_ns = from_ns + step * 20 * MS;
            while let Some((&(at_ns, id), &fate)) = due.first_key_value()
                && at_ns <= now_ns
            {
                due.pop_first();
                breaker.handle_fate(id, fate, at_ns);
            }
            let id = FlowId(from_ns + step);
            let admission = breaker.admit(id, now_ns);
            let offloaded = admission == Admission::Offload;
            let (fate, after) = if resets(step, offloaded) { (Fate::Reset, 100) } else { (Fate::Lives, 1000) };
            harmed += u32::from(offloaded && fate == Fate::Reset);
            if admission != Admission::Stay && (fate == Fate::Reset || breaker.watched(offloaded).any(|its| its == id))
            {
                due.insert((now_ns + after * MS, id), fate);
            }
            told.extend(breaker.poll(now_ns));
        }
        (told, harmed)
    }

    fn opened(told: &[BreakerChange]) -> usize {
        told.iter().filter(|change| matches!(change, BreakerChange::Opened { .. })).count()
    }

    #[test]
    fn what_offload_breaks_stops_it_after_a_few_and_a_reload_tries_again_with_one() {
        let mut breaker = Breaker::default();
        let (told, harmed) = play(&mut breaker, MS, 30, |_, offloaded| offloaded);
        assert!(matches!(told[..], [BreakerChange::Opened { .. }]), "{told:?}");
        assert!(harmed <= 20, "{harmed}");
        breaker.handle_reload();
        let (told, harmed) = play(&mut breaker, 100_000 * MS, 30, |_, offloaded| offloaded);
        assert_eq!((told, harmed), (vec![], 1));
        breaker.handle_reload();
        let (told, harmed) = play(&mut breaker, 200_000 * MS, 30, |_, _| false);
        assert_eq!((told, harmed, breaker.is_closed()), (vec![BreakerChange::Closed], 0, true));
    }

    #[test]
    fn it_is_tried_again_after_a_while_and_ever_more_rarely() {
        let mut breaker = Breaker::default();
        let (told, harmed) = play(&mut breaker, MS, 2 * 3600, |_, offloaded| offloaded);
        assert_eq!(opened(&told), 1, "{told:?}");
        assert!(harmed <= 25, "{harmed}");
    }

    #[test]
    fn a_backend_that_dies_once_does_not_stop_it() {
        let mut breaker = Breaker::default();
        let (told, _) = play(&mut breaker, MS, 60, |number, offloaded| offloaded && (100..150).contains(&number));
        assert_eq!((told, breaker.is_closed()), (vec![], true));
    }

    #[test]
    fn a_thousand_old_flows_that_are_reset_at_once_do_not_stop_it() {
        let mut breaker = Breaker::default();
        play(&mut breaker, MS, 60, |_, _| false);
        (0..1000).for_each(|number| breaker.handle_fate(FlowId(number), Fate::Reset, 60_000 * MS));
        assert!(!breaker.is_closed());
        let (told, _) = play(&mut breaker, 60_001 * MS, 5, |_, _| false);
        assert_eq!((told, breaker.is_closed()), (vec![], true));
    }

    #[test]
    fn a_part_of_the_flows_that_it_breaks_is_enough() {
        let mut breaker = Breaker::default();
        let (told, _) = play(&mut breaker, MS, 120, |number, offloaded| offloaded && number % 10 < 6);
        assert!(opened(&told) > 0, "{told:?}");
    }

    #[test]
    fn a_few_clients_that_come_again_every_ten_seconds_are_enough() {
        let mut breaker = Breaker::default();
        let (mut harmed, mut now_ns) = (0, MS);
        for number in 0..60 {
            now_ns += 5_000 * MS;
            let admission = breaker.admit(FlowId(number), now_ns);
            match admission {
                Admission::Offload => breaker.handle_fate(FlowId(number), Fate::Reset, now_ns + MS),
                Admission::Observe => breaker.handle_fate(FlowId(number), Fate::Lives, now_ns + 1000 * MS),
                Admission::Stay => {}
            }
            harmed += u32::from(admission == Admission::Offload);
            breaker.poll(now_ns + 1000 * MS);
        }
        assert!(breaker.is_open() && harmed <= 15, "{harmed}");
    }

    #[test]
    fn flows_that_nobody_hears_of_any_more_hold_nothing_up() {
        let mut breaker = Breaker::default();
        (0..5).for_each(|number| breaker.handle_fate(FlowId(number), Fate::Reset, MS));
        for number in 5..10 {
            if breaker.admit(FlowId(number), MS) == Admission::Offload {
                breaker.handle_fate(FlowId(number), Fate::Gone, MS);
            }
        }
        breaker.poll(2 * TRIAL_NS);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn flows_that_end_so_in_any_case_do_not_stop_it(one_in in 1u64..20, phase in 0u64..20) {
            let mut breaker = Breaker::default();
            // Mixed, so that no pattern matches the turns of a trial.
            let mixed = |number: u64| ((number + phase).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 20;
            let (told, _) = play(&mut breaker, MS, 120, |number, _| mixed(number) < 20 / one_in);
            prop_assert_eq!(told, vec![]);
            prop_assert!(!breaker.is_open());
        }

        #[test]
        fn it_never_opens_without_many_resets_right_after_and_always_goes_on_in_the_end(
            events in proptest::collection::vec((0u8..6, 0u64..3_000, 0u64..30), 0..400),
        ) {
            let (mut breaker, mut now_ns, mut resets) = (Breaker::default(), MS, 0);
            for (event, later_ms, id) in events {
                now_ns += later_ms * MS;
                match event {
                    0 | 1 => drop(breaker.admit(FlowId(id), now_ns)),
                    2 => { breaker.handle_fate(FlowId(id), Fate::Reset, now_ns); resets += 1; }
                    3 => breaker.handle_fate(FlowId(id), if id % 2 == 0 { Fate::Lives } else { Fate::Gone }, now_ns),
                    4 => breaker.handle_reload(),
                    _ => {
                        let told = breaker.poll(now_ns);
                        prop_assert!(opened(told.as_slice()) == 0 || resets >= SUSPECT_MIN + TRIAL / 2);
                    }
                }
            }
            // Flows that live close it, whatever happened before.
            for round in 0..4 {
                play(&mut breaker, now_ns + (round + 1) * (OPEN_NS_MAX + MS), 30, |_, _| false);
            }
            prop_assert!(breaker.is_closed());
        }
    }
}
