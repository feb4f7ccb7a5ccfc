//! Far ends that pause: a reader without room for more is alive as long as its host answers window probes.
//!
//! TCP_USER_TIMEOUT takes such a reader for dead: while the window stays closed, the kernel ends the connection after
//! that time, even if probes are answered (net/ipv4/tcp_timer.c, tcp_probe_timer and tcp_rtx_probe0_timed_out). It also
//! ends a connection that loses segments for so long, though others arrive (retransmits_timed_out: retrans_stamp stays
//! until all losses are repaired). Without the option, however, Baton would notice a host that vanishes behind a closed
//! window only after a quarter of an hour. So the option stays, and Baton extends it again and again as long as the far
//! end answers or accepts bytes. The kernel sends no probe later than the remaining time
//! (tcp_clamp_probe0_to_user_timeout), so the extension also determines how often it probes.
//!
//! Baton checks only flows that wrote bytes, until all of them are acknowledged: an idle flow costs nothing.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::proxy::flow::{Flow, Phase, patience_ns};
use crate::proxy::token::FlowRef;
use crate::sys::socket;
use crate::sys::tcp_info::{Delivery, StuckBy, delivery};

/// Checks within one TCP_USER_TIMEOUT.
pub(super) const LOOKS: u64 = 8;

/// Probes in a row that a live host may leave unanswered: each probe or its answer may be lost.
const LOST_PROBES_MAX: u8 = 3;

/// Least extension of a paused flow beyond its next check: its worker may be late.
const MARGIN_MIN_NS: u64 = 500_000_000;

/// Flows with bytes or FIN in flight.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Flows that are checked equally often, earliest first. One line per setting of TCP_USER_TIMEOUT.
    lines: Vec<DeliveryLine>,
}

#[derive(Debug)]
struct DeliveryLine {
    every_ns: u64,
    flows: VecDeque<Delivering>,
}

#[derive(Debug)]
pub(super) struct Delivering {
    pub due_ns: u64,
    pub at: FlowRef,
    /// When the kernel may have begun to count. A later restart of its count is not visible: for retransmissions it
    /// counts from the first one, though much arrives in between (retrans_stamp).
    pub since_ns: u64,
    /// The state of client and backend at the last check.
    pub seen: Option<Box<[Option<SeenLeg>; 2]>>,
}

/// A leg with bytes in flight at a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenLeg {
    acked: u64,
    is_stuck: bool,
    /// The first check, or the last one that found newly accepted bytes or a closed window.
    news_ns: u64,
    /// Whether the far end accepted bytes between two checks that found it stuck.
    moves: bool,
}

/// The change of a leg's TCP_USER_TIMEOUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeoutAct {
    /// The far end is alive: it gets more time.
    Extend,
    Leave,
    /// Its time is over: set the configured value.
    Restore,
}

impl Deliveries {
    /// When the next flow is due, in monotonic ns.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.lines.iter().filter_map(|line| line.flows.front()).map(|next| next.due_ns).min()
    }

    pub(super) fn push(&mut self, every_ns: u64, next: Delivering) {
        match self.lines.iter_mut().find(|line| line.every_ns == every_ns) {
            Some(line) => line.flows.push_back(next),
            None => self.lines.push(DeliveryLine { every_ns, flows: [next].into() }),
        }
    }

    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Delivering> {
        let due = |line: &&mut DeliveryLine| line.flows.front().is_some_and(|next| next.due_ns <= now_ns);
        let found = self.lines.iter_mut().find(due).and_then(|line| line.flows.pop_front());
        if found.is_none() {
            // Lines of settings that a reload has replaced.
            self.lines.retain(|line| !line.flows.is_empty());
        }
        found
    }
}

/// Checks both ends of a flow. Returns whether another check is needed.
pub(super) fn look(flow: &mut Flow, looked: &mut Delivering, now_ns: u64) -> bool {
    let patience_ns = patience_ns(flow);
    let Phase::Relaying(relaying) = &mut flow.phase else { return false };
    let legs = [&relaying.client, &relaying.backend];
    if relaying.lenient && looked.seen.is_none() {
        let given_ns = legs.map(given_ns).into_iter().max().unwrap_or(0);
        looked.since_ns = looked.since_ns.min(now_ns.saturating_sub(given_ns));
    }
    let mut seen = [None; 2];
    let mut lenient = false;
    for (side, leg) in legs.into_iter().enumerate() {
        let state = delivery(leg).unwrap_or(Delivery::Done);
        let before = looked.seen.as_deref().and_then(|seen| seen[side]);
        seen[side] = SeenLeg::go_on(before, state, now_ns);
        match act(state, seen[side], now_ns, patience_ns) {
            TimeoutAct::Extend => {
                set_patience(leg, extended_ns(now_ns - looked.since_ns, patience_ns));
                lenient = true;
            }
            TimeoutAct::Leave => lenient |= relaying.lenient,
            TimeoutAct::Restore if relaying.lenient => set_patience(leg, patience_ns),
            TimeoutAct::Restore => {}
        }
    }
    relaying.lenient = lenient;
    relaying.delivering = seen != [None; 2];
    looked.seen = relaying.delivering.then(|| Box::new(seen));
    relaying.delivering
}

impl SeenLeg {
    /// Continues the state of the last check, or begins a new one.
    fn go_on(before: Option<Self>, state: Delivery, now_ns: u64) -> Option<Self> {
        let (acked, is_stuck, is_closed) = match state {
            Delivery::Done => return None,
            Delivery::UnderWay { acked } => (acked, false, false),
            Delivery::Stuck(stuck) => (stuck.acked, true, stuck.by != StuckBy::Loss),
        };
        let fresh = Self { acked, is_stuck, news_ns: now_ns, moves: false };
        Some(before.map_or(fresh, |before| match before.acked == acked {
            // While its window is closed, the far end accepts nothing and loses nothing. The segments that follow the opening
            // look lost until they are acknowledged, because the kernel keeps the backoff of its probes.
            true => Self { is_stuck, news_ns: if is_closed { now_ns } else { before.news_ns }, ..before },
            false => Self { moves: before.moves || before.is_stuck && is_stuck, ..fresh },
        }))
    }
}

fn act(state: Delivery, seen: Option<SeenLeg>, now_ns: u64, patience_ns: u64) -> TimeoutAct {
    let (Delivery::Stuck(stuck), Some(seen)) = (state, seen) else {
        return if state == Delivery::Done { TimeoutAct::Restore } else { TimeoutAct::Leave };
    };
    let is_silent = stuck.silence.as_nanos() >= u128::from(patience_ns);
    match stuck.by {
        StuckBy::Probes(unanswered) if is_silent && unanswered >= LOST_PROBES_MAX => TimeoutAct::Restore,
        StuckBy::ClosedWindow if is_silent => TimeoutAct::Restore,
        StuckBy::Probes(_) | StuckBy::ClosedWindow => TimeoutAct::Extend,
        // Its own segments do not prove that it receives ours.
        StuckBy::Loss if now_ns - seen.news_ns >= patience_ns => TimeoutAct::Restore,
        StuckBy::Loss if seen.moves => TimeoutAct::Extend,
        StuckBy::Loss => TimeoutAct::Leave,
    }
}

/// The TCP_USER_TIMEOUT for a leg, if the kernel has counted for at most `paused_ns`.
fn extended_ns(paused_ns: u64, patience_ns: u64) -> u64 {
    let margin_ns = (patience_ns / 4).max(MARGIN_MIN_NS);
    (paused_ns + 2 * patience_ns / LOOKS + margin_ns).max(patience_ns)
}

/// The longest time that a leg can have paused: after a longer one the kernel would have ended it.
fn given_ns(leg: &OwnedFd) -> u64 {
    socket::user_timeout(leg).map_or(0, |given| given.as_nanos() as u64)
}

fn set_patience(leg: &OwnedFd, patience_ns: u64) {
    // Fails if the connection has ended, which epoll reports.
    let _ = socket::set_user_timeout(leg, Duration::from_nanos(patience_ns));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::tcp_info::Stuck;

    const PATIENCE_NS: u64 = 30_000_000_000;

    fn stuck(by: StuckBy, silence_s: u64, acked: u64) -> Stuck {
        Stuck { by, silence: Duration::from_secs(silence_s), acked }
    }

    /// The change for a leg that was first seen at 0 and is seen again after `after_s`.
    fn after(after_s: u64, first: Stuck, again: Stuck) -> TimeoutAct {
        let now_ns = after_s * 1_000_000_000;
        let seen = SeenLeg::go_on(None, Delivery::Stuck(first), 0);
        let again = Delivery::Stuck(again);
        act(again, SeenLeg::go_on(seen, again, now_ns), now_ns, PATIENCE_NS)
    }

    #[test]
    fn a_host_without_room_is_given_up_after_silence_and_lost_probes_not_after_one_of_them() {
        let probes = |silence_s, unanswered| {
            let seen = stuck(StuckBy::Probes(unanswered), silence_s, 1);
            after(100, seen, seen)
        };
        assert_eq!(probes(119, 0), TimeoutAct::Extend, "it was not asked");
        assert_eq!(probes(40, 2), TimeoutAct::Extend, "two probes can be lost");
        assert_eq!(probes(29, 9), TimeoutAct::Extend, "it answered lately");
        assert_eq!(probes(30, 3), TimeoutAct::Restore);
        let closed = |silence_s| stuck(StuckBy::ClosedWindow, silence_s, 1);
        assert_eq!(
            [after(100, closed(1), closed(29)), after(100, closed(1), closed(30))],
            [TimeoutAct::Extend, TimeoutAct::Restore]
        );
    }

    #[test]
    fn a_host_that_loses_segments_must_take_some_and_not_only_speak() {
        let loss = |acked| stuck(StuckBy::Loss, 0, acked);
        assert_eq!(after(5, loss(1), loss(1)), TimeoutAct::Leave, "it may take some yet");
        assert_eq!(after(30, loss(1), loss(1)), TimeoutAct::Restore);
        assert_eq!(after(500, loss(1), loss(2)), TimeoutAct::Extend);
    }

    /// Found as a client that was reset when it read again after a pause: what the kernel sent it then looked lost, and as old as the pause.
    #[test]
    fn segments_that_follow_a_closed_window_are_lost_only_after_a_time_of_their_own() {
        let at = |seen, state, after_s: u64| SeenLeg::go_on(seen, Delivery::Stuck(state), after_s * 1_000_000_000);
        for by in [StuckBy::Probes(1), StuckBy::ClosedWindow] {
            let (closed, loss) = (stuck(by, 1, 1), stuck(StuckBy::Loss, 0, 1));
            let paused = at(at(None, closed, 0), closed, 60);
            let act_at = |after_s: u64| {
                let now_ns = after_s * 1_000_000_000;
                act(Delivery::Stuck(loss), at(paused, loss, after_s), now_ns, PATIENCE_NS)
            };
            assert_eq!(
                [act_at(61), act_at(89), act_at(90)],
                [TimeoutAct::Leave, TimeoutAct::Leave, TimeoutAct::Restore]
            );
        }
    }

    /// Otherwise a host that vanishes during a transfer gets time for bytes that it accepted before.
    #[test]
    fn what_was_taken_before_the_losses_began_does_not_count() {
        let (smooth, loss) = (Delivery::UnderWay { acked: 1 }, Delivery::Stuck(stuck(StuckBy::Loss, 0, 2)));
        let seen = SeenLeg::go_on(SeenLeg::go_on(None, smooth, 0), loss, 1_000_000_000);
        assert_eq!(act(loss, seen, 1_000_000_000, PATIENCE_NS), TimeoutAct::Leave);
        assert_eq!(act(smooth, seen, 1_000_000_000, PATIENCE_NS), TimeoutAct::Leave);
        assert_eq!(act(Delivery::Done, None, 1_000_000_000, PATIENCE_NS), TimeoutAct::Restore);
    }

    #[test]
    fn time_is_given_from_one_look_to_beyond_the_next() {
        let every_ns = PATIENCE_NS / LOOKS;
        assert_eq!(extended_ns(0, PATIENCE_NS), PATIENCE_NS, "not less than what was asked for");
        for looks in 4..100 {
            let left_ns = extended_ns(looks * every_ns, PATIENCE_NS) - looks * every_ns;
            assert!(left_ns > 2 * every_ns, "a worker may be late: {left_ns}");
            assert!(left_ns <= PATIENCE_NS / 2, "several probes within the time: {left_ns}");
        }
    }

    #[test]
    fn each_setting_has_a_line_of_its_own_and_the_soonest_comes_first() {
        let flow = |due_ns, index| Delivering { due_ns, at: FlowRef { index, generation: 0 }, since_ns: 0, seen: None };
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
