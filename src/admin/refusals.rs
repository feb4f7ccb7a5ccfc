//! Looks four times a second whether new connections are reset, so that a limit which is reached is an event, and not only a counter.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::model::end_reason::EndReason;
use crate::sys::clock::{now_ns, unix_ms};
use crate::table::Part;
use crate::table::backend::{FrontendEntry, Registry};
use crate::table::journal::{Journal, REFUSALS_QUIET_MS, What};

/// Why new connections are reset that might have been carried. Those of `deny` are as the configuration wants it.
const REASONS: [EndReason; 8] = [
    EndReason::NoBackend,
    EndReason::BackendsFull,
    EndReason::LimitTotal,
    EndReason::LimitFrontend,
    EndReason::LimitSource,
    EndReason::RateSource,
    EndReason::OutOfFiles,
    EndReason::OutOfPorts,
];

const LOOK_EVERY: Duration = Duration::from_millis(250);

const QUIET_NS: u64 = REFUSALS_QUIET_MS * 1_000_000;

/// Looks as long as it is polled.
pub(crate) async fn run(registry: Part<Registry>, journal: Part<Journal>) {
    let mut refusals = Refusals::default();
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let frontends = registry.frontends();
        let counts: Vec<_> = frontends.iter().map(|entry| (&*entry.name, counts(entry))).collect();
        refusals.look(&counts, (now_ns(), unix_ms())).into_iter().for_each(|event| journal.record(event));
    }
}

/// New connections that this process's workers have reset, in the order of [`REASONS`]. An upgrade puts what the old process
/// counted in the last lane.
fn counts(entry: &FrontendEntry) -> [u64; REASONS.len()] {
    let workers = entry.lanes.split_last().map_or(&[][..], |(_, workers)| workers);
    REASONS.map(|reason| workers.iter().map(|lane| lane.ended[reason as usize].value()).sum())
}

/// New connections that are reset for one reason, from the first on.
#[derive(Clone, Copy, Debug)]
struct RefusalSpell {
    begun_ns: u64,
    last_ns: u64,
    refused: u64,
}

/// What was counted at the last look, and what goes on.
#[derive(Debug, Default)]
struct Refusals {
    frontends: HashMap<Box<str>, [(u64, Option<RefusalSpell>); REASONS.len()]>,
}

impl Refusals {
    /// The events since the last look. `counts`: those of all frontends, since the start. `now`: monotonic ns, and ms since 1970.
    fn look(&mut self, counts: &[(&str, [u64; REASONS.len()])], now: (u64, u64)) -> Vec<What> {
        self.frontends.retain(|name, _| counts.iter().any(|(it, _)| **it == **name));
        let mut events = Vec::new();
        for (name, counts) in counts {
            let known = self.frontends.entry((*name).into()).or_insert([(0, None); REASONS.len()]);
            for ((reason, (before, spell)), count) in REASONS.into_iter().zip(known).zip(*counts) {
                let refused = count.saturating_sub(*before);
                *before = count;
                events.extend(advance(spell, (name, reason), refused, now));
            }
        }
        events
    }
}

/// What is to be told of the connections of a frontend that were `refused` for a reason since the last look.
fn advance(
    spell: &mut Option<RefusalSpell>,
    (frontend, reason): (&str, EndReason),
    refused: u64,
    (now_ns, now_unix_ms): (u64, u64),
) -> Option<What> {
    match spell {
        None if refused == 0 => None,
        None => {
            *spell = Some(RefusalSpell { begun_ns: now_ns, last_ns: now_ns, refused });
            Some(What::RefusalsBegun { frontend: frontend.to_owned(), reason })
        }
        Some(it) if refused > 0 => {
            *it = RefusalSpell { last_ns: now_ns, refused: it.refused + refused, ..*it };
            None
        }
        Some(it) if now_ns.saturating_sub(it.last_ns) < QUIET_NS => None,
        Some(RefusalSpell { begun_ns, last_ns, refused }) => {
            // The first came after the look before.
            let lasted_ms = last_ns.saturating_sub(*begun_ns) / 1_000_000 + LOOK_EVERY.as_millis() as u64;
            let quiet_ms = now_ns.saturating_sub(*last_ns) / 1_000_000;
            let over = What::RefusalsOver {
                frontend: frontend.to_owned(),
                reason,
                refused: *refused,
                lasted_ms,
                last_unix_ms: Some(now_unix_ms.saturating_sub(quiet_ms)),
            };
            *spell = None;
            Some(over)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn of(reason: EndReason, count: u64) -> [u64; REASONS.len()] {
        REASONS.map(|it| if it == reason { count } else { 0 })
    }

    fn looked(refusals: &mut Refusals, second: u64, reason: EndReason, count: u64) -> Vec<What> {
        refusals.look(&[("api", of(reason, count))], (second * SECOND_NS, second * 1_000))
    }

    #[test]
    fn refusals_are_told_once_and_counted_when_they_are_over() {
        let mut refusals = Refusals::default();
        assert!(looked(&mut refusals, 1, EndReason::LimitFrontend, 0).is_empty());
        let begun = looked(&mut refusals, 2, EndReason::LimitFrontend, 3);
        assert!(
            matches!(&begun[..], [What::RefusalsBegun { frontend, reason: EndReason::LimitFrontend }] if frontend == "api"),
            "{begun:?}"
        );
        for (second, count) in [(3, 40), (4, 40), (12, 41), (13, 41), (21, 41)] {
            assert!(looked(&mut refusals, second, EndReason::LimitFrontend, count).is_empty(), "at second {second}");
        }
        let over = looked(&mut refusals, 22, EndReason::LimitFrontend, 41);
        assert!(
            matches!(over[..], [What::RefusalsOver { refused: 41, lasted_ms: 10_250, last_unix_ms: Some(12_000), .. }]),
            "{over:?}"
        );
        assert!(looked(&mut refusals, 40, EndReason::LimitFrontend, 41).is_empty());
        assert!(matches!(looked(&mut refusals, 41, EndReason::LimitFrontend, 42)[..], [What::RefusalsBegun { .. }]));
    }

    #[test]
    fn a_frontend_that_a_reload_removes_and_adds_again_begins_anew() {
        let mut refusals = Refusals::default();
        assert_eq!(looked(&mut refusals, 1, EndReason::NoBackend, 2).len(), 1);
        assert!(refusals.look(&[], (2 * SECOND_NS, 2_000)).is_empty());
        assert_eq!(looked(&mut refusals, 3, EndReason::NoBackend, 1).len(), 1, "counted from 0");
    }
}
