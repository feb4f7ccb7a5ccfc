//! The closing table of the fleet's tour.

use std::time::Duration;

use super::{FaultOutcome, Losses};
use crate::lab::demo::BUDGET;
use crate::lab::demo::screen::seconds;
use crate::lab::demo::tour::table::in_columns;

/// `all` and `longest` are of the whole tour, also of the times between the faults.
pub(super) fn lines(outcomes: &[FaultOutcome], all: Losses, kubelets: usize, longest: Duration) -> Vec<String> {
    let rows = outcomes.iter().map(|outcome| {
        let late = if outcome.longest_gap > BUDGET { "  TOO LONG" } else { "" };
        [
            outcome.title.to_owned(),
            if outcome.from == outcome.to {
                outcome.from.to_owned()
            } else {
                format!("{} → {}", outcome.from, outcome.to)
            },
            outcome.lost.with_apiserver.to_string(),
            outcome.lost.without_cause.to_string(),
            format!("{}{late}", seconds(outcome.longest_gap)),
        ]
    });
    let mut lines = vec![String::new()];
    lines.extend(in_columns(HEADER, rows));
    lines.push(String::new());
    lines.push(format!("with apiserver: of {kubelets} connections, those whose apiserver was gone or was to go"));
    lines.push("others lost: those whose apiserver lived".to_owned());
    lines.push("gap: the longest time without a heartbeat; 1.0 s is the usual interval".to_owned());
    lines.push(match (all.without_cause, longest <= BUDGET) {
        (0, true) => format!("No kubelet reconnected whose apiserver lived; the longest gap was {}.", seconds(longest)),
        (0, false) => format!("A kubelet waited for {}; {} are allowed.", seconds(longest), seconds(BUDGET)),
        (lost, _) => format!("Kubelets lost {lost} connections although their apiserver lived."),
    });
    lines
}

const HEADER: [&str; 5] = ["fault", "VIP", "with apiserver", "others lost", "gap"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns_and_the_verdict_follows_what_was_lost() {
        let outcome = |title, to, with_apiserver, without_cause, gap_ms| FaultOutcome {
            title,
            from: "lb-a",
            to,
            lost: Losses { with_apiserver, without_cause },
            longest_gap: Duration::from_millis(gap_ms),
        };
        let outcomes = [
            outcome("Baton killed, back in 0.5 s", "lb-a", 0, 0, 1010),
            outcome("plug pulled, firewalls drop", "lb-b", 4, 2, 2400),
        ];
        let all = Losses { with_apiserver: 4, without_cause: 2 };
        let lines = lines(&outcomes, all, 12, Duration::from_millis(2400));
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        assert_eq!(
            lines.join("\n"),
            "
fault                        VIP          with apiserver  others lost  gap
Baton killed, back in 0.5 s  lb-a         0               0            1.0 s
plug pulled, firewalls drop  lb-a → lb-b  4               2            2.4 s

with apiserver: of 12 connections, those whose apiserver was gone or was to go
others lost: those whose apiserver lived
gap: the longest time without a heartbeat; 1.0 s is the usual interval
Kubelets lost 2 connections although their apiserver lived."
        );
    }
}
