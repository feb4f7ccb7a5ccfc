//! Ends of connections that are over, and that may not know it: they were cut off when Baton reset them.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// One such connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Abandoned {
    /// The balancer's end.
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Sequence numbers that the far end may expect: its last acknowledgement, and the end of the sent bytes.
    pub seqs: [u32; 2],
    pub ack: u32,
}

/// Time after which the far end's own TCP gives up (tcp_retries2): 15 minutes.
const LONGEST_NS: u64 = 15 * 60 * 1_000_000_000;

/// Limit: beyond it the oldest are forgotten.
const REMEMBERED_MAX: usize = 16_384;

/// Ends that may need another reset later, for as long as they may wait.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    /// With the time when each was reported, oldest first.
    order: VecDeque<(Abandoned, u64)>,
    known: HashSet<Abandoned>,
}

impl Remembered {
    /// False: it is in the list already.
    pub(crate) fn remember(&mut self, one: Abandoned, now_ns: u64) -> bool {
        if !self.known.insert(one) {
            return false;
        }
        self.order.push_back((one, now_ns));
        while self.order.len() > REMEMBERED_MAX
            || self.order.front().is_some_and(|(_, since_ns)| is_past(*since_ns, now_ns))
        {
            self.forget_oldest();
        }
        true
    }

    /// The ends that may still wait.
    pub(crate) fn all(&self, now_ns: u64) -> impl Iterator<Item = Abandoned> + '_ {
        self.order.iter().filter(move |(_, since_ns)| !is_past(*since_ns, now_ns)).map(|(one, _)| *one)
    }

    fn forget_oldest(&mut self) {
        if let Some((one, _)) = self.order.pop_front() {
            self.known.remove(&one);
        }
    }
}

fn is_past(since_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(since_ns) > LONGEST_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: u32) -> Abandoned {
        let [from, to] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 6443)));
        Abandoned { from, to, seqs: [number; 2], ack: number }
    }

    #[test]
    fn each_is_remembered_once_and_not_for_ever_and_of_too_many_the_oldest_are_forgotten() {
        let mut remembered = Remembered::default();
        assert!(remembered.remember(one(0), 0));
        assert!(!remembered.remember(one(0), 1));
        assert_eq!(remembered.all(LONGEST_NS).count(), 1);
        assert_eq!(remembered.all(LONGEST_NS + 1).count(), 0);
        (0..=REMEMBERED_MAX as u32).for_each(|number| {
            remembered.remember(one(number), 2);
        });
        assert_eq!(remembered.all(2).next(), Some(one(1)));
        assert_eq!((remembered.order.len(), remembered.known.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(remembered.remember(one(0), LONGEST_NS + 3), "as a new one");
        assert_eq!((remembered.order.len(), remembered.known.len()), (1, 1));
    }
}
