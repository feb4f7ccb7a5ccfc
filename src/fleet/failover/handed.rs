//! Flows that have changed hands, gathered for the journal: instances claim flows one by one, and one event for each would push
//! all others out of the journal.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::fleet::InstanceName;
use crate::table::journal::What;

/// One event of each kind and instance tells of the flows of this time; of twice the time of the event before while flows go on to change
/// hands, as those of idle clients do for a minute after the VIP.
const GATHER: Duration = Duration::from_secs(1);
const GATHER_MAX: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(super) struct HandedFlows {
    /// From and to which instance, and how many.
    claimed: BTreeMap<InstanceName, usize>,
    released: BTreeMap<InstanceName, usize>,
    /// When the first of them changed hands.
    since_ns: Option<u64>,
    gather: Duration,
    told_ns: u64,
}

impl Default for HandedFlows {
    fn default() -> Self {
        Self { claimed: BTreeMap::new(), released: BTreeMap::new(), since_ns: None, gather: GATHER, told_ns: 0 }
    }
}

impl HandedFlows {
    /// This instance has claimed so many flows of `from`.
    pub(super) fn claimed(&mut self, from: InstanceName, flows: usize, now_ns: u64) {
        *self.claimed.entry(from).or_default() += flows;
        self.begin(now_ns);
    }

    /// `to` has claimed so many flows of this instance.
    pub(super) fn released(&mut self, to: InstanceName, flows: usize, now_ns: u64) {
        *self.released.entry(to).or_default() += flows;
        self.begin(now_ns);
    }

    fn begin(&mut self, now_ns: u64) {
        if self.since_ns.is_some() {
            return;
        }
        if now_ns.saturating_sub(self.told_ns) >= self.gather.as_nanos() as u64 {
            self.gather = GATHER;
        }
        self.since_ns = Some(now_ns);
    }

    /// The events to record now, if it is time.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<What> {
        match self.since_ns {
            Some(since_ns) if now_ns.saturating_sub(since_ns) >= self.gather.as_nanos() as u64 => {
                (self.gather, self.told_ns) = ((2 * self.gather).min(GATHER_MAX), now_ns);
                self.take()
            }
            _ => Vec::new(),
        }
    }

    /// All events, at the end.
    pub(super) fn take(&mut self) -> Vec<What> {
        self.since_ns = None;
        let (claimed, released) = (std::mem::take(&mut self.claimed), std::mem::take(&mut self.released));
        let claimed = claimed.into_iter().map(|(instance, flows)| What::FlowsClaimed { instance, flows });
        let released = released.into_iter().map(|(instance, flows)| What::FlowsReleased { instance, flows });
        claimed.chain(released).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = GATHER.as_nanos() as u64;

    fn sentences(events: &[What]) -> Vec<String> {
        events.iter().map(What::sentence).collect()
    }

    #[test]
    fn flows_that_change_hands_one_by_one_are_one_event_for_each_instance_and_none_is_lost() {
        let name = |text: &str| InstanceName(text.into());
        let mut handed = HandedFlows::default();
        for number in 0..400 {
            handed.released(name("lb-b"), 1, 1000 + number);
            handed.claimed(name("lb-b"), 2, 1000 + number);
        }
        handed.released(name("lb-c"), 3, 1000 + SECOND_NS - 1);
        assert!(handed.take_due(1000 + SECOND_NS - 1).is_empty(), "more may come");
        let expected = [
            "packets of 800 flows of lb-b come here",
            "packets of 400 flows come to lb-b now",
            "packets of 3 flows come to lb-c now",
        ];
        assert_eq!(sentences(&handed.take_due(1000 + SECOND_NS)), expected);
        // A while later it is another time.
        handed.released(name("lb-b"), 1, 5 * SECOND_NS);
        assert!(handed.take_due(5 * SECOND_NS).is_empty(), "a new second has begun");
        assert_eq!(sentences(&handed.take()), ["packets of 1 flow come to lb-b now"]);
        assert!(handed.take_due(u64::MAX).is_empty());
    }

    /// Regression: after a move of the VIP with ten thousand flows, all events of the page were of this kind.
    #[test]
    fn flows_that_go_on_to_change_hands_for_a_minute_are_few_events_and_none_is_lost() {
        let (mut handed, mut told, mut flows) = (HandedFlows::default(), 0, 0);
        let mut take = |handed: &mut HandedFlows, now_ns| {
            for what in handed.take_due(now_ns) {
                let What::FlowsClaimed { flows: its, .. } = what else { unreachable!() };
                (told, flows) = (told + 1, flows + its);
            }
            (told, flows)
        };
        for tenth in 0..600 {
            handed.claimed(InstanceName("lb-a".into()), 17, tenth * SECOND_NS / 10);
            take(&mut handed, tenth * SECOND_NS / 10);
        }
        assert_eq!(take(&mut handed, 70 * SECOND_NS), (10, 600 * 17));
    }
}
