//! Far ends that pause: a reader without room for more lives, as long as its host answers window probes.
//!
//! TCP_USER_TIMEOUT counts such a reader as lost: while the window stays closed the kernel ends the connection after that
//! time, answers or not (net/ipv4/tcp_timer.c, tcp_probe_timer and tcp_rtx_probe0_timed_out). Without that option, though,
//! a host that vanishes behind a closed window is missed for a quarter of an hour. So the option stays, and the flow is
//! given more time again and again for as long as its far end answers. The kernel sends no probe later than the time
//! that is left (tcp_clamp_probe0_to_user_timeout), so what is given also says how often the far end is asked.
//!
//! Only flows that wrote something are looked at, until all of it was acknowledged: an idle flow costs nothing.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::flow::{Flow, Phase};
use super::graduate::patience_ns;
use super::token::FlowRef;
use super::worker::Worker;
use crate::sys::socket;
use crate::sys::tcp_info::{Delivery, Pause, delivery};

/// Looks within one TCP_USER_TIMEOUT.
const LOOKS: u64 = 8;

/// Flows looked at in one turn of the loop.
const LOOKS_PER_TURN: usize = 256;

/// Probes that a living host may leave unanswered: each, or its answer, may be lost.
const LOST_PROBES_MAX: u8 = 3;

/// What a paused flow is given beyond the next look, at least: its worker may be late.
const MARGIN_MIN_NS: u64 = 500_000_000;

/// Flows with bytes under way, or with FIN.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// Those that are looked at equally often, soonest first. As many as there are settings of TCP_USER_TIMEOUT.
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    every_ns: u64,
    flows: VecDeque<Delivering>,
}

#[derive(Debug)]
struct Delivering {
    due_ns: u64,
    at: FlowRef,
    /// Of its client and its backend, if either pauses.
    pauses: Option<Box<[Option<Paused>; 2]>>,
}

/// A far end that had no room when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Paused {
    /// The first look since it took something.
    since_ns: u64,
    acked: u64,
}

impl Deliveries {
    /// When the next flow is to be looked at, in monotonic ns.
    pub fn next_ns(&self) -> Option<u64> {
        self.lines.iter().filter_map(|line| line.flows.front()).map(|next| next.due_ns).min()
    }

    fn push(&mut self, every_ns: u64, next: Delivering) {
        match self.lines.iter_mut().find(|line| line.every_ns == every_ns) {
            Some(line) => line.flows.push_back(next),
            None => self.lines.push(Line { every_ns, flows: [next].into() }),
        }
    }

    fn pop(&mut self, now_ns: u64) -> Option<Delivering> {
        let due = |line: &&mut Line| line.flows.front().is_some_and(|next| next.due_ns <= now_ns);
        let found = self.lines.iter_mut().find(due).and_then(|line| line.flows.pop_front());
        if found.is_none() {
            // Settings that a reload changed, some time ago.
            self.lines.retain(|line| !line.flows.is_empty());
        }
        found
    }
}

impl Worker {
    /// Has a flow looked at that was given something to deliver.
    pub(super) fn look_after(&mut self, flow: &mut Flow) {
        let every_ns = patience_ns(flow) / LOOKS;
        if let Phase::Relaying(relaying) = &mut flow.phase
            && !std::mem::replace(&mut relaying.delivering, true)
        {
            // Another process, or the path, looked at it before, and what was given then is soon over.
            let after_ns = if relaying.lenient { every_ns / 4 } else { every_ns };
            self.deliveries.push(after_ns, Delivering { due_ns: self.now_ns + after_ns, at: flow.at, pauses: None });
        }
    }

    /// Gives those more time that pause and live.
    pub(super) fn look_at_deliveries(&mut self) {
        for _ in 0..LOOKS_PER_TURN {
            let Some(mut looked) = self.deliveries.pop(self.now_ns) else { break };
            let now_ns = self.now_ns;
            let Some(flow) = self.living(looked.at) else { continue };
            let every_ns = patience_ns(flow) / LOOKS;
            if look(flow, &mut looked.pauses, now_ns) {
                looked.due_ns = now_ns + every_ns;
                self.deliveries.push(every_ns, looked);
            }
        }
    }

    fn living(&mut self, at: FlowRef) -> Option<&mut Flow> {
        let place = self.places.get_mut(at.index as usize)?;
        let is_it = FlowRef::new(at.key(), place.generation) == at;
        place.flow.as_deref_mut().filter(|_| is_it)
    }
}

/// Looks at both ends of a flow; true if it is to be looked at again.
fn look(flow: &mut Flow, pauses: &mut Option<Box<[Option<Paused>; 2]>>, now_ns: u64) -> bool {
    let patience_ns = patience_ns(flow);
    let Phase::Relaying(relaying) = &mut flow.phase else { return false };
    let legs = [&relaying.client, &relaying.backend];
    let states = legs.map(|leg| delivery(leg).unwrap_or(Delivery::Done));
    let mut now = [None; 2];
    for (side, state) in states.into_iter().enumerate() {
        if let Delivery::Paused(pause) = state {
            let before = pauses.as_deref().and_then(|pauses| pauses[side]);
            let begun_ns = if relaying.lenient { now_ns.saturating_sub(given_ns(legs[side])) } else { now_ns };
            now[side] = Some(goes_on(before, pause, begun_ns));
        }
    }
    if now == [None; 2] {
        *pauses = None;
        if std::mem::take(&mut relaying.lenient) {
            legs.into_iter().for_each(|leg| set_patience(leg, patience_ns));
        }
    } else {
        relaying.lenient = true;
        for ((leg, state), paused) in legs.into_iter().zip(states).zip(&now) {
            match (state, paused) {
                (Delivery::Paused(pause), Some(paused)) if lives(pause, patience_ns) => {
                    set_patience(leg, extended_ns(now_ns - paused.since_ns, patience_ns));
                }
                // It has had its time: the kernel ends it.
                (Delivery::Paused(_), _) => {}
                _ => set_patience(leg, patience_ns),
            }
        }
        *pauses = Some(Box::new(now));
    }
    relaying.delivering = states != [Delivery::Done; 2];
    relaying.delivering
}

/// A pause that was seen before, or a new one that may have begun at `begun_ns`. The kernel counts anew once something
/// was taken.
fn goes_on(before: Option<Paused>, pause: Pause, begun_ns: u64) -> Paused {
    let is_same = |before: &Paused| before.acked == pause.acked;
    before.filter(is_same).unwrap_or(Paused { since_ns: begun_ns, acked: pause.acked })
}

/// A host that answered lately, or was hardly asked.
fn lives(pause: Pause, patience_ns: u64) -> bool {
    pause.silence.as_nanos() < u128::from(patience_ns)
        || !pause.retransmits && pause.unanswered_probes < LOST_PROBES_MAX
}

/// The TCP_USER_TIMEOUT of a flow that was seen to pause for so long. The kernel has counted for up to one look more.
fn extended_ns(paused_ns: u64, patience_ns: u64) -> u64 {
    let margin_ns = (patience_ns / 4).max(MARGIN_MIN_NS);
    (paused_ns + 2 * patience_ns / LOOKS + margin_ns).max(patience_ns)
}

/// For how long, at most, a leg can have paused: what is longer the kernel would have ended.
fn given_ns(leg: &OwnedFd) -> u64 {
    socket::user_timeout(leg).map_or(0, |given| given.as_nanos() as u64)
}

fn set_patience(leg: &OwnedFd, patience_ns: u64) {
    // It fails if the connection has ended, which epoll tells.
    let _ = socket::set_user_timeout(leg, Duration::from_nanos(patience_ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE_NS: u64 = 30_000_000_000;

    fn pause(silence_s: u64, unanswered_probes: u8) -> Pause {
        Pause { silence: Duration::from_secs(silence_s), unanswered_probes, retransmits: false, acked: 1 }
    }

    #[test]
    fn a_host_is_given_up_after_silence_and_lost_probes_not_after_one_of_them() {
        assert!(lives(pause(119, 0), PATIENCE_NS), "it was not asked");
        assert!(lives(pause(40, 2), PATIENCE_NS), "two probes can be lost");
        assert!(lives(pause(29, 9), PATIENCE_NS), "it answered lately");
        assert!(!lives(pause(30, 3), PATIENCE_NS));
        assert!(!lives(Pause { retransmits: true, ..pause(30, 0) }, PATIENCE_NS));
    }

    #[test]
    fn time_is_given_from_one_look_to_beyond_the_next() {
        let every_ns = PATIENCE_NS / LOOKS;
        assert_eq!(extended_ns(0, PATIENCE_NS), PATIENCE_NS, "not less than what was asked for");
        for looks in 4..100 {
            // The kernel may have begun to count just after the look before the first one that saw the pause.
            let kernel_ns = (looks + 1) * every_ns;
            let left_ns = extended_ns(looks * every_ns, PATIENCE_NS) - kernel_ns;
            assert!(left_ns > 2 * every_ns, "a worker may be late: {left_ns}");
            assert!(left_ns < PATIENCE_NS / 2, "several probes within the time: {left_ns}");
        }
    }

    #[test]
    fn whoever_takes_something_begins_a_new_pause() {
        let first = goes_on(None, pause(0, 0), 7);
        assert_eq!(goes_on(Some(first), pause(0, 0), 9).since_ns, 7);
        assert_eq!(goes_on(Some(first), Pause { acked: 2, ..pause(0, 0) }, 9).since_ns, 9);
    }

    #[test]
    fn each_setting_has_a_line_of_its_own_and_the_soonest_comes_first() {
        let flow = |due_ns, index| Delivering { due_ns, at: FlowRef { index, generation: 0 }, pauses: None };
        let mut deliveries = Deliveries::default();
        deliveries.push(100, flow(100, 1));
        deliveries.push(10, flow(12, 2));
        deliveries.push(10, flow(13, 3));
        assert_eq!(deliveries.next_ns(), Some(12));
        let mut pop = |now_ns| deliveries.pop(now_ns).map(|next| next.at.index);
        assert_eq!([pop(11), pop(13), pop(13), pop(99), pop(100)], [None, Some(2), Some(3), None, Some(1)]);
        assert_eq!(deliveries.next_ns(), None);
    }
}
