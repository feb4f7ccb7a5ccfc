//! Flows that have changed hands, gathered for the journal: instances claim flows one by one, and one event for each would push
//! all others out of the journal.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::fleet::InstanceName;
use crate::table::journal::What;

/// One event of each kind and instance tells of the flows of this time.
const GATHER: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct HandedFlows {
    /// From and to which instance, and how many.
    claimed: BTreeMap<InstanceName, usize>,
    released: BTreeMap<InstanceName, usize>,
    /// When the first of them changed hands.
    since_ns: Option<u64>,
}

impl HandedFlows {
    /// This instance has claimed so many flows of `from`.
    pub(super) fn claimed(&mut self, from: InstanceName, flows: usize, now_ns: u64) {
        *self.claimed.entry(from).or_default() += flows;
        self.since_ns.get_or_insert(now_ns);
    }

    /// `to` has claimed so many flows of this instance.
    pub(super) fn released(&mut self, to: InstanceName, flows: usize, now_ns: u64) {
        *self.released.entry(to).or_default() += flows;
        self.since_ns.get_or_insert(now_ns);
    }

    /// The events to record now, if it is time.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<What> {
        match self.since_ns {
            Some(since_ns) if now_ns.saturating_sub(since_ns) >= GATHER.as_nanos() as u64 => self.take(),
            _ => Vec::new(),
        }
    }

    /// All events, at the end.
    pub(super) fn take(&mut self) -> Vec<What> {
        let Self { claimed, released, .. } = std::mem::take(self);
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
        handed.released(name("lb-b"), 1, 5 * SECOND_NS);
        assert!(handed.take_due(5 * SECOND_NS).is_empty(), "a new second has begun");
        assert_eq!(sentences(&handed.take()), ["packets of 1 flow come to lb-b now"]);
        assert!(handed.take_due(u64::MAX).is_empty());
    }
}
