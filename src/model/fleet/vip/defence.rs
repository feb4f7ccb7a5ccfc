//! Other hosts' claims to the addresses while this instance holds them: each announcement of theirs leads their neighbours astray.

use crate::model::neighbour::ANNOUNCE_AFTER_NS;

/// Least time between two rounds of announcements against other hosts: two that defend the same address must not fill the network (RFC 5227 section
/// 2.4, DEFEND_INTERVAL).
const DEFEND_EVERY_NS: u64 = 10_000_000_000;
/// How long a round takes.
const ROUND_NS: u64 = ANNOUNCE_AFTER_NS[ANNOUNCE_AFTER_NS.len() - 1];
/// A host that has an address answers a question each second: after three without an answer it has gone.
const GONE_NS: u64 = 3_500_000_000;

/// What this instance has heard from another host that uses the addresses, and has done about it.
#[derive(Debug, Default)]
pub(super) struct Defence {
    /// The latest claim since the last round.
    heard_ns: Option<u64>,
    announced_ns: Option<u64>,
}

impl Defence {
    /// Another host claims an address. Returns whether to announce it against that host now.
    pub(super) fn hear(&mut self, now_ns: u64) -> bool {
        let since_ns = self.announced_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        if since_ns.is_some_and(|since_ns| since_ns < DEFEND_EVERY_NS) {
            // Announcements of the same round are still to come: one claim may be several frames.
            let is_covered = since_ns.is_some_and(|since_ns| since_ns < ROUND_NS);
            self.heard_ns = if is_covered { self.heard_ns } else { Some(now_ns) };
            return false;
        }
        (self.heard_ns, self.announced_ns) = (None, Some(now_ns));
        true
    }

    /// Whether another host has claimed an address since the last announcement, and has gone.
    pub(super) fn is_over(&mut self, now_ns: u64) -> bool {
        let is_over = self.heard_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) >= GONE_NS);
        if is_over {
            (self.heard_ns, self.announced_ns) = (None, Some(now_ns));
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_single_claim_is_answered_at_once_and_a_lasting_one_every_ten_seconds_and_at_its_end() {
        let mut defence = Defence::default();
        assert!(!defence.is_over(0));
        assert!(defence.hear(1000 * MS));
        assert!(!defence.hear(1001 * MS), "it is one claim");
        assert!(!defence.is_over(9000 * MS), "nothing was heard since");
        for second in 2..11 {
            assert!(!defence.hear(second * 1000 * MS), "second {second}");
            assert!(!defence.is_over(second * 1000 * MS + 900 * MS));
        }
        assert!(defence.hear(11_000 * MS));
        assert!(!defence.hear(15_000 * MS));
        assert!(!defence.is_over(18_000 * MS));
        assert!(defence.is_over(18_500 * MS));
        assert!(!defence.is_over(18_510 * MS), "it is said once");
        assert!(!defence.hear(19_000 * MS), "its end was announced a moment ago");
    }
}
