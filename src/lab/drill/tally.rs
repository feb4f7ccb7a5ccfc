//! The results of a drill: every gap between two heartbeats, and the verdict on them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::lab::kubelet::{KubeletEvent, Summary};

/// Gaps of up to a day, in ms, to three digits.
const GAP_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The gaps that have ended, and the failures.
#[derive(Debug)]
pub(super) struct GapTally {
    gaps_ms: Histogram<u64>,
    pub failures: u64,
    pub disconnections: u64,
    pub watch_events: u64,
    pub watches_ended: u64,
    /// The longest time between two events of any watch.
    pub watch_gap_ms_max: u64,
    pub last_error: Option<String>,
}

/// The numbers of a drill. Times are in ms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DrillVerdict {
    pub kubelets: usize,
    /// Heartbeats that succeeded.
    pub heartbeats: u64,
    /// Heartbeats and connects that failed.
    pub failures: u64,
    pub disconnections: u64,
    pub gap_ms_p50: u64,
    pub gap_ms_p99: u64,
    /// With the gaps that have not ended.
    pub gap_ms_max: u64,
    pub grace_ms: u64,
    /// Nodes without a heartbeat for longer than the grace period.
    pub not_ready: usize,
    /// Nodes that never had a heartbeat.
    pub never: usize,
    /// Open watches at the end.
    pub watches_open: u64,
    pub watch_events: u64,
    /// Watches that ended, with their connection or by themselves; the client opens them again.
    pub watches_ended: u64,
    /// Between two events of one watch; a server sends one about every minute (a bookmark), if the client asks for
    /// that.
    pub watch_gap_ms_max: u64,
    /// Leases that the drill created and could not remove.
    pub leases_left: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// One bar: the number of gaps up to `up_to` (`None`: all longer ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub up_to: Option<Duration>,
    pub gaps: u64,
}

impl Default for GapTally {
    fn default() -> Self {
        let gaps_ms = Histogram::new_with_bounds(1, GAP_MS_MAX, 3).expect("the bounds are valid");
        Self {
            gaps_ms,
            failures: 0,
            disconnections: 0,
            watch_events: 0,
            watches_ended: 0,
            watch_gap_ms_max: 0,
            last_error: None,
        }
    }
}

impl GapTally {
    pub(super) fn note(&mut self, event: &KubeletEvent) {
        match event {
            KubeletEvent::Renewed { gap_ms, .. } => self.gaps_ms.saturating_record(*gap_ms),
            KubeletEvent::Failed { error } => {
                self.failures += 1;
                self.last_error = Some(error.clone());
            }
            KubeletEvent::Disconnected { .. } => self.disconnections += 1,
            KubeletEvent::Watched { gap_ms, .. } => {
                self.watch_events += 1;
                self.watch_gap_ms_max = self.watch_gap_ms_max.max(*gap_ms);
            }
            KubeletEvent::WatchEnded { error } => {
                self.watches_ended += 1;
                if let Some(error) = error {
                    self.last_error = Some(format!("a watch: {error}"));
                }
            }
            KubeletEvent::Connected { .. } => {}
        }
    }

    /// Heartbeats that succeeded.
    pub(super) fn heartbeats(&self) -> u64 {
        self.gaps_ms.len()
    }

    pub(super) fn percentile(&self, percent: f64) -> Duration {
        Duration::from_millis(self.gaps_ms.value_at_percentile(percent))
    }

    /// Gaps by length, between the heartbeat's interval and the grace period.
    pub(super) fn bars(&self, every: Duration, grace: Duration) -> Vec<Bar> {
        let mut edges = vec![every.mul_f64(1.1), every.mul_f64(1.5), every * 2, grace.mul_f64(0.75), grace];
        edges.retain(|edge| *edge <= grace);
        edges.sort_unstable();
        edges.dedup();
        let mut bars: Vec<_> = edges.into_iter().map(Some).chain([None]).map(|up_to| Bar { up_to, gaps: 0 }).collect();
        for step in self.gaps_ms.iter_recorded() {
            // The histogram keeps three digits: take the lowest value that it cannot distinguish from this one.
            let gap = Duration::from_millis(self.gaps_ms.lowest_equivalent(step.value_iterated_to()));
            if let Some(bar) = bars.iter_mut().find(|bar| bar.up_to.is_none_or(|up_to| gap <= up_to)) {
                bar.gaps += step.count_at_value();
            }
        }
        bars
    }

    /// `nodes`: their present state.
    pub(super) fn verdict(&self, nodes: &[Summary], grace: Duration) -> DrillVerdict {
        let grace_ms = grace.as_millis() as u64;
        DrillVerdict {
            kubelets: nodes.len(),
            heartbeats: self.heartbeats(),
            failures: self.failures,
            disconnections: self.disconnections,
            gap_ms_p50: self.gaps_ms.value_at_percentile(50.0),
            gap_ms_p99: self.gaps_ms.value_at_percentile(99.0),
            gap_ms_max: nodes.iter().map(|node| node.longest_gap_ms).max().unwrap_or(0),
            grace_ms,
            not_ready: nodes.iter().filter(|node| node.longest_gap_ms > grace_ms).count(),
            never: nodes.iter().filter(|node| node.renewals == 0).count(),
            watches_open: nodes.iter().map(|node| node.watches_open).sum(),
            watch_events: self.watch_events,
            watches_ended: self.watches_ended,
            watch_gap_ms_max: self.watch_gap_ms_max,
            leases_left: 0,
            last_error: self.last_error.clone(),
        }
    }
}

impl DrillVerdict {
    /// Whether every node had heartbeats, and none waited too long.
    pub(super) fn passed(&self) -> bool {
        self.not_ready == 0 && self.never == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewed(gap_ms: u64) -> KubeletEvent {
        KubeletEvent::Renewed { latency_ms: 1, gap_ms }
    }

    fn node(renewals: u64, longest_gap_ms: u64) -> Summary {
        Summary { renewals, longest_gap_ms, ..Summary::default() }
    }

    #[test]
    fn a_node_is_lost_beyond_the_grace_period_or_if_it_never_came() {
        let mut tally = GapTally::default();
        [10_000, 10_100, 41_000].map(renewed).iter().for_each(|event| tally.note(event));
        tally.note(&KubeletEvent::Failed { error: "refused".to_owned() });
        let grace = Duration::from_secs(40);
        let verdict = tally.verdict(&[node(2, 40_000), node(1, 41_000), node(0, 5_000)], grace);
        assert_eq!((verdict.not_ready, verdict.never, verdict.failures, verdict.gap_ms_max), (1, 1, 1, 41_000));
        assert!(!verdict.passed());
        assert!(tally.verdict(&[node(2, 40_000)], grace).passed());
    }

    #[test]
    fn every_gap_is_in_one_bar() {
        let mut tally = GapTally::default();
        for gap_ms in [9_000, 11_000, 12_000, 19_000, 25_000, 35_000, 40_000, 40_100, 90_000] {
            tally.note(&renewed(gap_ms));
        }
        let bars = tally.bars(Duration::from_secs(10), Duration::from_secs(40));
        assert_eq!(bars.iter().map(|bar| bar.gaps).sum::<u64>(), 9);
        assert_eq!(bars.last().map(|bar| (bar.up_to, bar.gaps)), Some((None, 2)));
        // A grace period shorter than the interval gives one edge.
        assert_eq!(tally.bars(Duration::from_secs(10), Duration::from_secs(5)).len(), 3);
    }
}
