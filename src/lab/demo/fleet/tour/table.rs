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

/// The table with haproxy beside Baton. `all`: what the kubelets before haproxy lost in the whole tour.
pub(super) fn lines_beside(
    baton: &[FaultOutcome],
    haproxy: &[FaultOutcome],
    all: Losses,
    took: Duration,
) -> Vec<String> {
    let rows = baton.iter().zip(haproxy).map(|(here, there)| [here.title.to_owned(), cell(here), cell(there)]);
    let mut lines = vec![String::new()];
    lines.extend(in_columns(["fault", "Baton", "haproxy and keepalived"], rows));
    let in_faults: u64 = haproxy.iter().map(|outcome| outcome.lost.without_cause).sum();
    lines.extend([
        String::new(),
        "Reconnects of kubelets whose apiserver lived, and the longest time without a".to_owned(),
        format!("heartbeat (usually 1.0 s). hung: neither an answer nor an end for {}.", seconds(BUDGET)),
        format!(
            "When keepalived took the VIP back, kubelets reconnected {} more times.",
            all.without_cause - in_faults
        ),
        format!("The tour took {} s.", took.as_secs()),
    ]);
    lines
}

fn cell(outcome: &FaultOutcome) -> String {
    let over = if outcome.is_cut_short { "over " } else { "" };
    let gap = format!("{over}{}", seconds(outcome.longest_gap));
    let worse: Vec<_> = [(outcome.lost.hung as usize, "hung"), (outcome.not_ready, "NotReady")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let worse = if worse.is_empty() { String::new() } else { format!(" ({})", worse.join(", ")) };
    match outcome.lost.without_cause {
        0 => format!("none{worse}, {gap}"),
        count => format!("{count}{worse}, {gap}"),
    }
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
            lost: Losses { with_apiserver, without_cause, hung: 0 },
            longest_gap: Duration::from_millis(gap_ms),
            not_ready: 0,
            is_cut_short: false,
        };
        let outcomes = [
            outcome("Baton killed, back in 0.5 s", "lb-a", 0, 0, 1010),
            outcome("plug pulled, firewalls drop", "lb-b", 4, 2, 2400),
        ];
        let all = Losses { with_apiserver: 4, without_cause: 2, hung: 0 };
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

    #[test]
    fn the_table_of_both_fits_80_columns_too() {
        let outcome = |without_cause, hung, gap_ms| FaultOutcome {
            title: "balancer killed, back in 0.5 s",
            from: "cp1",
            to: "cp2",
            lost: Losses { with_apiserver: 4, without_cause, hung },
            longest_gap: Duration::from_millis(gap_ms),
            not_ready: hung as usize,
            is_cut_short: false,
        };
        let all = Losses { with_apiserver: 4, without_cause: 20, hung: 12 };
        let lines =
            lines_beside(&[outcome(0, 0, 1010)], &[outcome(12, 12, 45_600)], all, Duration::from_millis(99_900));
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        assert_eq!(
            lines.join("\n"),
            "
fault                           Baton        haproxy and keepalived
balancer killed, back in 0.5 s  none, 1.0 s  12 (12 hung, 12 NotReady), 45.6 s

Reconnects of kubelets whose apiserver lived, and the longest time without a
heartbeat (usually 1.0 s). hung: neither an answer nor an end for 10.0 s.
When keepalived took the VIP back, kubelets reconnected 8 more times.
The tour took 99 s."
        );
    }
}
