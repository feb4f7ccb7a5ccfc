//! Notices a worker whose event loop hangs, reports it in the log, the events, `/livez` and the metrics, and ends the process if the loop does not
//! return: nobody else serves that worker's flows, and their clients would wait for their own timeouts.

use std::time::Duration;

use super::pauses::{self, PauseParts};
use crate::drain::LifePhase;
use crate::essential;
use crate::model::fleet::STUCK_FOR;
use crate::model::humane::duration_ms;
use crate::sys::clock::now_ns;
use crate::table::Part;
use crate::table::beats::LoopBeats;
use crate::table::journal::{Journal, What};
use crate::table::worker::WorkerState;

/// A longer turn of the loop is a fault.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The same for the other loops, whose turns may do more work than a worker's.
const LOOP_STUCK_AFTER: Duration = Duration::from_secs(5);

/// How long `worker` has hung; `None`: it has not.
pub(crate) fn stuck_for(worker: &WorkerState, now_ns: u64) -> Option<Duration> {
    Some(Duration::from_nanos(worker.stuck_for_ns(now_ns))).filter(|turn| *turn > STUCK_AFTER)
}

/// The loops that hang, one sentence each.
pub(crate) fn complaints(workers: &[WorkerState], beats: &LoopBeats, phase: LifePhase, now_ns: u64) -> Vec<String> {
    let must_serve = (LifePhase::Serving..=LifePhase::Draining).contains(&phase);
    let complaint = |(worker, state): (usize, &WorkerState)| match stuck_for(state, now_ns) {
        Some(stuck) => Some(format!("worker {worker}{STUCK_FOR}{}", duration_ms(stuck.as_millis() as u64))),
        None if must_serve && !state.is_alive() => Some(format!("worker {worker} has ended")),
        None => None,
    };
    let workers = workers.iter().enumerate().filter_map(complaint);
    let loops = beats.stuck(now_ns, LOOP_STUCK_AFTER).into_iter();
    workers
        .chain(loops.map(|(name, stuck)| format!("the {name}{STUCK_FOR}{}", duration_ms(stuck.as_millis() as u64))))
        .collect()
}

/// Looks at all workers four times a second, and for pauses of the process, as long as it is polled.
pub(crate) async fn run(workers: Part<[WorkerState]>, pauses: PauseParts, journal: Part<Journal>) {
    let _until_dropped = pauses::watch(pauses, journal.clone());
    let mut watchdog = Watchdog::new(workers.len());
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(worker) = watchdog.look(&workers, &journal, now_ns()) {
            let stuck = stuck_for(&workers[worker], now_ns()).unwrap_or_default();
            let stuck = duration_ms(stuck.as_millis() as u64);
            let thread = workers[worker].thread().and_then(doing).unwrap_or_default();
            essential::abort(&format!(
                "worker {worker} has been stuck for {stuck}, and its clients would wait in vain{thread}"
            ));
        }
    }
}

/// What a thread of this process does, by proc_pid_stat(5): whether it runs or waits, for how long it has had a processor, and in which
/// system call it is, where this user may read that.
fn doing(thread: i32) -> Option<String> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
    let stat = read("stat")?;
    // Its name stands before, and may have spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let (user, system) = (fields.nth(10)?, fields.next()?);
    let call = read("syscall").and_then(|said| Some(format!(", in system call {}", said.split_whitespace().next()?)));
    let call = call.unwrap_or_default();
    Some(format!(" (its thread is in state {state} after {user} and {system} ticks in user and kernel mode{call})"))
}

/// Keeps for how many looks in a row each worker has hung, so that each fault is reported once.
#[derive(Debug)]
struct Watchdog {
    stuck: Vec<u32>,
}

impl Watchdog {
    fn new(workers: usize) -> Self {
        Self { stuck: vec![0; workers] }
    }

    /// Returns a worker that was stuck at each of the last [`STUCK_LOOKS_MAX`] looks. Looks count, not the clock: if the whole process or the
    /// machine pauses, the watchdog does not look either.
    fn look(&mut self, workers: &[WorkerState], journal: &Journal, now_ns: u64) -> Option<usize> {
        for (worker, (state, looks)) in workers.iter().zip(&mut self.stuck).enumerate() {
            match stuck_for(state, now_ns) {
                Some(stuck) => {
                    if *looks == 0 {
                        let for_ms = stuck.as_millis() as u64;
                        journal.record(What::WorkerStuck { worker, for_ms });
                    }
                    *looks += 1;
                }
                None if *looks > 0 => {
                    journal.record(What::WorkerMoves { worker });
                    *looks = 0;
                }
                None => {}
            }
        }
        self.stuck.iter().position(|looks| *looks >= STUCK_LOOKS_MAX)
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Five seconds in all with [`STUCK_AFTER`]: a kubelet's heartbeat bears that, and no turn of a worker that moves takes as long.
const STUCK_LOOKS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_stuck_worker_is_said_once_and_so_is_its_return() {
        let table = Table::new(2);
        let mut watchdog = Watchdog::new(2);
        let look = |watchdog: &mut Watchdog, now_ns| {
            assert_eq!(watchdog.look(&table.workers, &table.journal, now_ns), None);
        };
        table.workers[1].mark_busy(10 * S);
        look(&mut watchdog, 10 * S + S / 2);
        assert!(table.journal.since(0, false).is_empty());
        look(&mut watchdog, 12 * S);
        look(&mut watchdog, 13 * S);
        table.workers[1].mark_waiting();
        look(&mut watchdog, 14 * S);
        look(&mut watchdog, 15 * S);
        let events: Vec<_> = table.journal.since(0, false).into_iter().map(|event| event.what).collect();
        assert!(
            matches!(events[..], [What::WorkerStuck { worker: 1, for_ms: 2000 }, What::WorkerMoves { worker: 1 }]),
            "{events:?}"
        );
    }

    #[test]
    fn a_worker_that_does_not_return_ends_the_process_but_a_pause_of_the_process_does_not() {
        let table = Table::new(2);
        let mut watchdog = Watchdog::new(2);
        let mut look = |now_ns| watchdog.look(&table.workers, &table.journal, now_ns);
        table.workers[0].mark_busy(10 * S);
        // The process paused for a minute.
        assert_eq!(look(70 * S), None);
        assert_eq!(look(70 * S + S / 4), None);
        table.workers[0].mark_waiting();
        assert_eq!(look(70 * S + S / 2), None);
        table.workers[1].mark_busy(80 * S);
        let looks = (0..40).map(|number| 80 * S + number * S / 4);
        let ended = looks.map(&mut look).position(|worker| worker == Some(1)).expect("it is ended");
        let after = Duration::from_millis(250) * ended as u32;
        assert!((Duration::from_secs(4)..Duration::from_secs(6)).contains(&after), "{after:?}");
    }

    #[test]
    fn what_a_thread_does_is_read_from_the_kernel() {
        let own = doing(rustix::thread::gettid().as_raw_pid()).expect("it lives");
        assert!(own.starts_with(" (its thread is in state R after "), "{own}");
        assert_eq!(doing(i32::MAX), None);
    }

    #[test]
    fn livez_names_stuck_and_gone_workers_but_no_worker_that_has_not_begun() {
        let table = Table::new(2);
        assert_eq!(complaints(&table.workers, &table.beats, LifePhase::Starting, S), Vec::<String>::new());
        table.workers[0].mark_alive(true);
        assert_eq!(complaints(&table.workers, &table.beats, LifePhase::Serving, S), ["worker 1 has ended"]);
        table.workers[1].mark_alive(true);
        table.workers[0].mark_busy(S);
        assert_eq!(
            complaints(&table.workers, &table.beats, LifePhase::Serving, 3 * S),
            ["worker 0 has been stuck for 2.0 s"]
        );
        table.workers[0].mark_waiting();
        assert_eq!(complaints(&table.workers, &table.beats, LifePhase::Serving, 3 * S), Vec::<String>::new());
    }

    #[test]
    fn livez_names_a_loop_that_hangs_until_it_has_ended() {
        let table = Table::new(0);
        let beat = table.beats.begin("offload");
        let now = now_ns();
        assert_eq!(complaints(&table.workers, &table.beats, LifePhase::Serving, now), Vec::<String>::new());
        let stuck = complaints(&table.workers, &table.beats, LifePhase::Starting, now + 8 * S);
        assert!(matches!(&stuck[..], [one] if one.starts_with("the offload has been stuck for ")), "{stuck:?}");
        drop(beat);
        assert_eq!(complaints(&table.workers, &table.beats, LifePhase::Serving, now + 8 * S), Vec::<String>::new());
    }
}
