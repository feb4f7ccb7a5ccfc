//! The lines of a drill's display.

use std::time::Duration;

use super::tally::GapTally;
use crate::lab::kubelet::Summary;

/// Cells of the longest bar.
const BAR_CELLS: u64 = 40;

/// One moment of a drill.
#[derive(Debug)]
pub(super) struct Moment<'a> {
    pub server: &'a str,
    pub elapsed: Duration,
    pub every: Duration,
    pub grace: Duration,
    pub nodes: &'a [Summary],
    pub tally: &'a GapTally,
}

impl Moment<'_> {
    /// The whole picture.
    pub(super) fn lines(&self) -> Vec<String> {
        let bars = self.tally.bars(self.every, self.grace);
        let most = bars.iter().map(|bar| bar.gaps).max().unwrap_or(0).max(1);
        let mut lines = vec![
            format!(
                "{} kubelets at {}, a heartbeat every {}; NotReady after {}   {}",
                self.nodes.len(),
                self.server,
                seconds(self.every),
                seconds(self.grace),
                seconds(Duration::from_secs(self.elapsed.as_secs()))
            ),
            format!(
                "heartbeats {}  failures {}  lost connections {}  late now {}  NotReady {}",
                self.tally.heartbeats(),
                self.tally.failures,
                self.tally.disconnections,
                self.late(),
                self.tally.verdict(self.nodes, self.grace).not_ready
            ),
            format!(
                "gaps  p50 {}  p99 {}  longest {}",
                seconds(self.tally.percentile(50.0)),
                seconds(self.tally.percentile(99.0)),
                seconds(self.longest())
            ),
        ];
        let open: u64 = self.nodes.iter().map(|node| node.watches_open).sum();
        if open > 0 || self.tally.watches_ended > 0 {
            lines.push(format!(
                "watches {open}  events {}  ended {}  longest without an event {}",
                self.tally.watch_events,
                self.tally.watches_ended,
                seconds(Duration::from_millis(self.tally.watch_gap_ms_max))
            ));
        }
        for bar in bars {
            let title =
                bar.up_to.map_or_else(|| format!("above {}", seconds(self.grace)), |to| format!("to {}", seconds(to)));
            // A single gap must be visible beside a million.
            let cells = (bar.gaps * BAR_CELLS).div_ceil(most) as usize;
            lines.push(format!("{title:>13}  {:<40}  {}", "█".repeat(cells), bar.gaps));
        }
        if let Some(error) = &self.tally.last_error {
            lines.push(format!("last failure: {error}"));
        }
        lines
    }

    /// The picture in one line, for output other than a terminal.
    pub(super) fn line(&self) -> String {
        format!(
            "{:>5} s  heartbeats {}  failures {}  late now {}  gaps p50 {} p99 {} longest {}  NotReady {}",
            self.elapsed.as_secs(),
            self.tally.heartbeats(),
            self.tally.failures,
            self.late(),
            seconds(self.tally.percentile(50.0)),
            seconds(self.tally.percentile(99.0)),
            seconds(self.longest()),
            self.tally.verdict(self.nodes, self.grace).not_ready
        )
    }

    /// Nodes whose heartbeat is overdue.
    fn late(&self) -> usize {
        let due_ms = self.every.mul_f64(1.1).as_millis() as u64;
        self.nodes.iter().filter(|node| node.last_renewal_ms > due_ms).count()
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.nodes.iter().map(|node| node.longest_gap_ms).max().unwrap_or(0))
    }
}

/// `12.3 s`, without the digit where it is 0.
pub(super) fn seconds(time: Duration) -> String {
    let tenths = (time.as_millis() + 50) / 100;
    match tenths % 10 {
        0 => format!("{} s", tenths / 10),
        digit => format!("{}.{digit} s", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::kubelet::KubeletEvent;

    #[test]
    fn the_picture_shows_who_is_late_and_a_single_long_gap() {
        let mut tally = GapTally::default();
        (0..500).for_each(|_| tally.note(&KubeletEvent::Renewed { latency_ms: 2, gap_ms: 10_010 }));
        tally.note(&KubeletEvent::Renewed { latency_ms: 2, gap_ms: 44_000 });
        tally.note(&KubeletEvent::Failed { error: "connecting to 10.0.0.100:6443: refused".to_owned() });
        tally.note(&KubeletEvent::Watched { bytes: 300, gap_ms: 61_000 });
        let node = |longest_gap_ms, last_renewal_ms| Summary {
            renewals: 9,
            watches_open: 2,
            longest_gap_ms,
            last_renewal_ms,
            ..Summary::default()
        };
        let nodes = [node(10_010, 3000), node(44_000, 2000), node(13_000, 13_000)];
        let moment = Moment {
            server: "10.0.0.100:6443",
            elapsed: Duration::from_millis(61_900),
            every: Duration::from_secs(10),
            grace: Duration::from_secs(40),
            nodes: &nodes,
            tally: &tally,
        };
        insta::assert_snapshot!(moment.lines().join("\n"));
        insta::assert_snapshot!(moment.line());
    }
}
