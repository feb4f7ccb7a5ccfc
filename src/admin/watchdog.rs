//! Notices a worker whose event loop does not turn, and says so: in the log, the events, `/livez` and the metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::drain::LifePhase;
use crate::sys::clock::now_ns;
use crate::table::Table;
use crate::table::journal::What;
use crate::table::worker::WorkerState;

/// A turn of the loop that lasts longer than this is not work but a fault.
pub const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Nor is a turn of another loop: those do more in one than a worker may.
const LOOP_STUCK_AFTER: Duration = Duration::from_secs(5);

/// How long `worker` has been stuck, or `None` if it is not.
pub fn stuck_for(worker: &WorkerState, now_ns: u64) -> Option<Duration> {
    Some(Duration::from_nanos(worker.stuck_for_ns(now_ns))).filter(|turn| *turn > STUCK_AFTER)
}

/// Every loop that keeps this process from being alive, one sentence each.
pub fn complaints(table: &Table, phase: LifePhase, now_ns: u64) -> Vec<String> {
    let must_serve = (LifePhase::Serving..=LifePhase::Draining).contains(&phase);
    let complaint = |(worker, state): (usize, &WorkerState)| match stuck_for(state, now_ns) {
        Some(stuck) => Some(format!("worker {worker} has been stuck for {} ms", stuck.as_millis())),
        None if must_serve && !state.is_alive() => Some(format!("worker {worker} is gone")),
        None => None,
    };
    let workers = table.workers.iter().enumerate().filter_map(complaint);
    let loops = table.beats.stuck(now_ns, LOOP_STUCK_AFTER).into_iter();
    workers
        .chain(loops.map(|(name, stuck)| format!("the {name} has been stuck for {} ms", stuck.as_millis())))
        .collect()
}

/// Looks at all workers four times a second, for as long as it is polled.
pub async fn run(table: Arc<Table>) {
    let mut watchdog = Watchdog::new(&table);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        watchdog.look(&table, now_ns());
    }
}

/// Remembers who was stuck, so that each fault is said once.
#[derive(Debug)]
struct Watchdog {
    stuck: Vec<bool>,
}

impl Watchdog {
    fn new(table: &Table) -> Self {
        Self { stuck: vec![false; table.workers.len()] }
    }

    fn look(&mut self, table: &Table, now_ns: u64) {
        for (worker, (state, was_stuck)) in table.workers.iter().zip(&mut self.stuck).enumerate() {
            match stuck_for(state, now_ns) {
                Some(stuck) if !*was_stuck => {
                    let for_ms = stuck.as_millis() as u64;
                    table.journal.record(What::WorkerStuck { worker, for_ms });
                    *was_stuck = true;
                }
                None if *was_stuck => {
                    table.journal.record(What::WorkerMoves { worker });
                    *was_stuck = false;
                }
                _ => {}
            }
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_stuck_worker_is_said_once_and_so_is_its_return() {
        let table = Table::new(2).unwrap();
        let mut watchdog = Watchdog::new(&table);
        table.workers[1].mark_busy(10 * S);
        watchdog.look(&table, 10 * S + S / 2);
        assert!(table.journal.since(0, false).is_empty());
        watchdog.look(&table, 12 * S);
        watchdog.look(&table, 13 * S);
        table.workers[1].mark_waiting();
        watchdog.look(&table, 14 * S);
        watchdog.look(&table, 15 * S);
        let events: Vec<_> = table.journal.since(0, false).into_iter().map(|event| event.what).collect();
        assert!(
            matches!(events[..], [What::WorkerStuck { worker: 1, for_ms: 2000 }, What::WorkerMoves { worker: 1 }]),
            "{events:?}"
        );
    }

    #[test]
    fn livez_names_stuck_and_gone_workers_but_no_worker_that_has_not_begun() {
        let table = Table::new(2).unwrap();
        assert_eq!(complaints(&table, LifePhase::Starting, S), Vec::<String>::new());
        table.workers[0].mark_alive(true);
        assert_eq!(complaints(&table, LifePhase::Serving, S), ["worker 1 is gone"]);
        table.workers[1].mark_alive(true);
        table.workers[0].mark_busy(S);
        assert_eq!(complaints(&table, LifePhase::Serving, 3 * S), ["worker 0 has been stuck for 2000 ms"]);
        table.workers[0].mark_waiting();
        assert_eq!(complaints(&table, LifePhase::Serving, 3 * S), Vec::<String>::new());
    }

    #[test]
    fn livez_names_a_loop_that_hangs_until_it_has_ended() {
        let table = Table::new(0).unwrap();
        let beat = table.beats.begin("offload");
        let now = now_ns();
        assert_eq!(complaints(&table, LifePhase::Serving, now), Vec::<String>::new());
        let stuck = complaints(&table, LifePhase::Starting, now + 8 * S);
        assert!(matches!(&stuck[..], [one] if one.starts_with("the offload has been stuck for ")), "{stuck:?}");
        drop(beat);
        assert_eq!(complaints(&table, LifePhase::Serving, now + 8 * S), Vec::<String>::new());
    }
}
