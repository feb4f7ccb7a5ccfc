//! Far ends with bytes in flight: a host that is gone is told from a reader that pauses, which is alive as long as its host answers
//! window probes.
//!
//! The kernel cannot tell them apart in time. Without TCP_USER_TIMEOUT (tcp(7)) it gives a host up after a quarter of an hour; with it,
//! it takes a closed window for a lost host, and later ends connections that have long recovered ([`forget_user_timeout`]). So Baton sets
//! no such option, looks at what the kernel knows, and ends the flow itself.
//!
//! Baton checks only flows that wrote bytes, until all of them are acknowledged: an idle flow costs nothing.
//!
//! [`forget_user_timeout`]: crate::sys::liveness::forget_user_timeout

use std::collections::VecDeque;
use std::time::Duration;

use crate::proxy::flow::{Flow, Phase, Side, patience_ns};
use crate::proxy::token::FlowRef;
use crate::sys::tcp_info::{Delivery, Stuck, StuckBy, delivery};

/// Checks within one user_timeout.
pub(super) const LOOKS: u64 = 8;

/// Probes in a row that a live host may leave unanswered: each probe or its answer may be lost.
const LOST_PROBES_MAX: u8 = 3;

/// Flows with bytes or FIN in flight.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Flows that are checked equally often, earliest first. One line per setting of user_timeout.
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
    /// The state of client and backend at the last check.
    pub seen: Option<Box<[Option<SeenLeg>; 2]>>,
}

/// A leg with bytes in flight at a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenLeg {
    acked: u64,
    /// The first check, or the last one that found newly accepted bytes or a closed window.
    news_ns: u64,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryState {
    /// Everything has arrived.
    Delivered,
    /// It needs another check.
    UnderWay,
    /// This end's host is gone.
    Gone(Side),
}

impl Deliveries {
    /// When the next flow is due, in monotonic ns.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.lines.iter().filter_map(|line| line.flows.front()).map(|next| next.due_ns).min()
    }

    /// Forgets the first flows, as long as they `has_ended`.
    pub(super) fn forget_first_while(&mut self, has_ended: impl Fn(FlowRef) -> bool) {
        for line in &mut self.lines {
            while line.flows.pop_front_if(|next| has_ended(next.at)).is_some() {}
        }
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
        if found.is_none() && self.lines.len() > 1 {
            // Lines of settings that a reload has replaced. The last line stays: short flows empty it again and again.
            self.lines.retain(|line| !line.flows.is_empty());
        }
        found
    }
}

/// Checks both ends of a flow.
pub(super) fn look(flow: &mut Flow, looked: &mut Delivering, now_ns: u64) -> DeliveryState {
    let patience_ns = patience_ns(flow);
    let Phase::Relaying(relaying) = &mut flow.phase else { return DeliveryState::Delivered };
    let legs = [(Side::Client, &relaying.client), (Side::Backend, &relaying.backend)];
    let mut seen = [None; 2];
    let mut gone = None;
    for (number, (side, leg)) in legs.into_iter().enumerate() {
        let state = delivery(leg).unwrap_or(Delivery::Done);
        let before = looked.seen.as_deref().and_then(|seen| seen[number]);
        seen[number] = SeenLeg::go_on(before, state, now_ns);
        if let (Delivery::Stuck(stuck), Some(seen)) = (state, seen[number])
            && is_gone(stuck, seen, now_ns, patience_ns)
        {
            gone = gone.or(Some(side));
        }
    }
    relaying.delivering = seen != [None; 2];
    looked.seen = relaying.delivering.then(|| Box::new(seen));
    match (gone, relaying.delivering) {
        (Some(side), _) => DeliveryState::Gone(side),
        (None, true) => DeliveryState::UnderWay,
        (None, false) => DeliveryState::Delivered,
    }
}

impl SeenLeg {
    /// Continues the state of the last check, or begins a new one.
    fn go_on(before: Option<Self>, state: Delivery, now_ns: u64) -> Option<Self> {
        let (acked, is_closed) = match state {
            Delivery::Done => return None,
            Delivery::UnderWay { acked } => (acked, false),
            Delivery::Stuck(stuck) => (stuck.acked, stuck.by != StuckBy::Loss),
        };
        // While its window is closed, the far end accepts nothing and loses nothing. The segments that follow the opening
        // look lost until they are acknowledged, because the kernel keeps the backoff of its probes.
        let goes_on = before.filter(|before| before.acked == acked && !is_closed);
        Some(goes_on.unwrap_or(Self { acked, news_ns: now_ns }))
    }
}

/// Whether the host of a far end that accepts nothing is gone.
fn is_gone(stuck: Stuck, seen: SeenLeg, now_ns: u64, patience_ns: u64) -> bool {
    let silent_for = |least: Duration| stuck.silence >= least.max(Duration::from_nanos(patience_ns));
    match stuck.by {
        StuckBy::Probes(unanswered) => unanswered >= LOST_PROBES_MAX && silent_for(Duration::ZERO),
        StuckBy::ClosedWindow { backoff } => silent_for(backoff * LOST_PROBES_MAX.into()),
        // Its own segments do not prove that it receives ours.
        StuckBy::Loss => now_ns - seen.news_ns >= patience_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::tcp_info::Stuck;

    const PATIENCE_NS: u64 = 30_000_000_000;

    fn stuck(by: StuckBy, silence_s: u64, acked: u64) -> Stuck {
        Stuck { by, silence: Duration::from_secs(silence_s), acked }
    }

    /// Whether a leg that was first seen at 0 is given up when it is seen again after `after_s`.
    fn after(after_s: u64, first: Stuck, again: Stuck) -> bool {
        let now_ns = after_s * 1_000_000_000;
        let seen = SeenLeg::go_on(None, Delivery::Stuck(first), 0);
        is_gone(again, SeenLeg::go_on(seen, Delivery::Stuck(again), now_ns).unwrap(), now_ns, PATIENCE_NS)
    }

    #[test]
    fn a_host_without_room_is_given_up_after_silence_and_lost_probes_not_after_one_of_them() {
        let probes = |silence_s, unanswered| {
            let seen = stuck(StuckBy::Probes(unanswered), silence_s, 1);
            after(100, seen, seen)
        };
        assert!(!probes(119, 0), "it was not asked");
        assert!(!probes(40, 2), "two probes can be lost");
        assert!(!probes(29, 9), "it answered lately");
        assert!(probes(30, 3));
        let closed = |silence_s, backoff_s| {
            let seen = stuck(StuckBy::ClosedWindow { backoff: Duration::from_secs(backoff_s) }, silence_s, 1);
            after(100, seen, seen)
        };
        assert_eq!([closed(29, 1), closed(30, 1)], [false, true]);
        assert_eq!([closed(89, 30), closed(90, 30)], [false, true], "it is asked so rarely");
    }

    #[test]
    fn a_host_that_loses_segments_must_take_some_and_not_only_speak() {
        let loss = |acked| stuck(StuckBy::Loss, 0, acked);
        assert!(!after(29, loss(1), loss(1)), "it may take some yet");
        assert!(after(30, loss(1), loss(1)));
        assert!(!after(500, loss(1), loss(2)));
    }

    /// Found as a client that was reset when it read again after a pause: what the kernel sent it then looked lost, and as old as the pause.
    #[test]
    fn segments_that_follow_a_closed_window_are_lost_only_after_a_time_of_their_own() {
        let at = |seen, state, after_s: u64| SeenLeg::go_on(seen, Delivery::Stuck(state), after_s * 1_000_000_000);
        for by in [StuckBy::Probes(1), StuckBy::ClosedWindow { backoff: Duration::from_secs(1) }] {
            let (closed, loss) = (stuck(by, 1, 1), stuck(StuckBy::Loss, 0, 1));
            let paused = at(at(None, closed, 0), closed, 60);
            let is_gone_at = |after_s: u64| {
                let seen = at(paused, loss, after_s).unwrap();
                is_gone(loss, seen, after_s * 1_000_000_000, PATIENCE_NS)
            };
            assert_eq!([is_gone_at(61), is_gone_at(89), is_gone_at(90)], [false, false, true]);
        }
    }

    /// Otherwise a host that vanishes during a transfer gets time for bytes that it accepted before, or none because it lost none yet.
    #[test]
    fn losses_count_from_the_last_bytes_that_were_taken() {
        let (smooth, loss) = (Delivery::UnderWay { acked: 1 }, stuck(StuckBy::Loss, 0, 1));
        let began = SeenLeg::go_on(None, smooth, 0);
        let seen = SeenLeg::go_on(began, Delivery::Stuck(loss), 30_000_000_000).unwrap();
        assert!(is_gone(loss, seen, 30_000_000_000, PATIENCE_NS), "it took nothing since then");
        let loss = stuck(StuckBy::Loss, 0, 2);
        let seen = SeenLeg::go_on(began, Delivery::Stuck(loss), 30_000_000_000).unwrap();
        assert!(!is_gone(loss, seen, 30_000_000_000, PATIENCE_NS), "it took some");
        assert_eq!(SeenLeg::go_on(Some(seen), Delivery::Done, 31_000_000_000), None);
    }

    #[test]
    fn each_setting_has_a_line_of_its_own_and_the_soonest_comes_first() {
        let flow = |due_ns, index| Delivering { due_ns, at: FlowRef { index, generation: 0 }, seen: None };
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
