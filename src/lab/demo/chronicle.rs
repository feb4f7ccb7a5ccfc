//! The lines about events, in the order in which the events happened. Baton, its clients and the user report at different
//! times: without the events' own times a client would seem to lose its connection before its apiserver is killed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sys::clock::{now_ns, ns_of_unix_ms};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ViewLine {
    /// Time from the demo's start to the event.
    pub at: Duration,
    /// `you`, `baton`, an instance or a node.
    pub who: String,
    pub text: String,
}

/// The times of one process's events, taken in the order of their numbers: several events of one millisecond, or of two readings of the
/// clocks, keep it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventTimes {
    last_ns: u64,
}

impl EventTimes {
    /// On the monotonic clock.
    pub(super) fn next_ns(&mut self, at_unix_ms: u64) -> u64 {
        self.last_ns = self.last_ns.max(ns_of_unix_ms(at_unix_ms));
        self.last_ns
    }
}

/// Sorts lines by the times of their events.
#[derive(Debug)]
pub(super) struct Chronicle {
    start_ns: u64,
    /// The last ones, oldest first.
    lines: VecDeque<ViewLine>,
    /// Those that are not printed yet, oldest first.
    waiting: VecDeque<ViewLine>,
}

impl Default for Chronicle {
    fn default() -> Self {
        Self { start_ns: now_ns(), lines: VecDeque::new(), waiting: VecDeque::new() }
    }
}

impl Chronicle {
    pub(super) fn elapsed(&self) -> Duration {
        self.since_start(now_ns())
    }

    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    pub(super) fn lines(&self) -> &VecDeque<ViewLine> {
        &self.lines
    }

    /// Adds the line of an event that happened at `at_ns` on the monotonic clock.
    pub(super) fn add(&mut self, at_ns: u64, who: &str, text: impl Into<String>) {
        let line = ViewLine { at: self.since_start(at_ns), who: who.to_owned(), text: text.into() };
        insert(&mut self.waiting, line.clone());
        insert(&mut self.lines, line);
        if self.lines.len() > LINES_KEPT {
            self.lines.pop_front();
        }
    }

    /// The lines to print now: an older event that is reported later than this does not come in its place.
    pub(super) fn due(&mut self) -> Vec<ViewLine> {
        let until = self.elapsed().saturating_sub(HOLD);
        take_until(&mut self.waiting, until)
    }

    /// The lines that are not printed yet, also the latest.
    pub(super) fn rest(&mut self) -> Vec<ViewLine> {
        self.waiting.drain(..).collect()
    }

    fn since_start(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(at_ns.saturating_sub(self.start_ns))
    }
}

/// One log of the chronicles of several fleets, in the order of time: each is asked for its lines at other moments.
#[derive(Debug)]
pub(super) struct JointLog {
    waiting: VecDeque<ViewLine>,
    /// Until when the lines of each chronicle are in `waiting`.
    known: Vec<Duration>,
}

impl JointLog {
    pub(super) fn of(chronicles: usize) -> Self {
        Self { waiting: VecDeque::new(), known: vec![Duration::ZERO; chronicles] }
    }

    /// The lines to print now, after those that the chronicle at `place` has by now.
    pub(super) fn due(&mut self, place: usize, chronicle: &mut Chronicle) -> Vec<ViewLine> {
        let until = chronicle.elapsed().saturating_sub(HOLD);
        self.known[place] = until;
        take_until(&mut chronicle.waiting, until).into_iter().for_each(|line| insert(&mut self.waiting, line));
        let until = self.known.iter().min().copied().unwrap_or_default();
        take_until(&mut self.waiting, until)
    }

    /// All lines that are not printed yet, also the latest of these chronicles.
    pub(super) fn rest<'c>(&mut self, chronicles: impl IntoIterator<Item = &'c mut Chronicle>) -> Vec<ViewLine> {
        let lines = chronicles.into_iter().flat_map(Chronicle::rest);
        lines.for_each(|line| insert(&mut self.waiting, line));
        self.waiting.drain(..).collect()
    }
}

fn take_until(lines: &mut VecDeque<ViewLine>, until: Duration) -> Vec<ViewLine> {
    let count = lines.partition_point(|line| line.at <= until);
    lines.drain(..count).collect()
}

fn insert(lines: &mut VecDeque<ViewLine>, line: ViewLine) {
    let place = lines.partition_point(|other| other.at <= line.at);
    lines.insert(place, line);
}

const LINES_KEPT: usize = 200;
/// Longer than it takes until an event of Baton is read: its status is asked for every 200 ms.
const HOLD: Duration = Duration::from_millis(600);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_cause_that_is_reported_late_stands_before_its_effect() {
        let mut chronicle = Chronicle::default();
        let start_ns = chronicle.start_ns;
        chronicle.add(start_ns + 5800 * MS, "node-3", "disconnected");
        chronicle.add(start_ns + 5600 * MS, "baton", "cp1: ready → ejected");
        let texts = |lines: &mut dyn Iterator<Item = &ViewLine>| lines.map(|line| line.who.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&mut chronicle.lines().iter()), ["baton", "node-3"]);
        assert_eq!(texts(&mut chronicle.rest().iter()), ["baton", "node-3"]);
        assert!(chronicle.rest().is_empty(), "each line is printed once");
    }

    #[test]
    fn a_line_waits_until_older_events_are_known() {
        let mut chronicle = Chronicle { start_ns: now_ns() - 10_000 * MS, ..Chronicle::default() };
        chronicle.add(now_ns(), "node-3", "disconnected");
        chronicle.add(now_ns() - 2000 * MS, "you", "killed cp1");
        let due: Vec<_> = chronicle.due().into_iter().map(|line| line.who).collect();
        assert_eq!(due, ["you"]);
    }

    #[test]
    fn old_lines_make_room() {
        let mut chronicle = Chronicle::default();
        for number in 0..=LINES_KEPT as u64 {
            chronicle.add(chronicle.start_ns + number, "you", number.to_string());
        }
        assert_eq!((chronicle.lines().len(), chronicle.lines()[0].text.as_str()), (LINES_KEPT, "1"));
    }

    /// Regression: beside haproxy, lines of the two fleets stood up to 0.1 s out of order.
    #[test]
    fn a_line_waits_until_the_older_ones_of_the_other_fleet_are_known() {
        let mut both = [0, 0].map(|_| Chronicle { start_ns: now_ns() - 10_000 * MS, ..Chronicle::default() });
        let at = |ms| now_ns() - ms * MS;
        both[0].add(at(2000), "one", "");
        both[1].add(at(2100), "other", "");
        both[1].add(at(0), "other, later", "");
        let mut log = JointLog::of(2);
        let texts = |lines: Vec<ViewLine>| lines.into_iter().map(|line| line.who).collect::<Vec<_>>();
        assert!(log.due(0, &mut both[0]).is_empty(), "of the other nothing is known yet");
        assert_eq!(texts(log.due(1, &mut both[1])), ["other", "one"]);
        both[0].add(at(100), "one, later", "");
        assert_eq!(texts(log.rest(&mut both)), ["one, later", "other, later"]);
    }

    /// Regression: the order of an operator stood behind its effect of the same millisecond in about each second log.
    #[test]
    fn events_of_one_millisecond_keep_their_order() {
        let (mut chronicle, mut times) = (Chronicle::default(), EventTimes::default());
        let at_unix_ms = crate::sys::clock::unix_ms();
        let mut lasts_ns = 0;
        for number in 0..100 {
            let at_ns = times.next_ns(at_unix_ms);
            assert!(at_ns >= lasts_ns);
            lasts_ns = at_ns;
            chronicle.add(at_ns, "baton", number.to_string());
        }
        let texts: Vec<_> = chronicle.rest().into_iter().map(|line| line.text).collect();
        assert_eq!(texts, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
