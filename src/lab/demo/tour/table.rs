//! The closing table of the tour.

use std::time::Duration;

use super::{BUDGET, StepOutcome};
use crate::lab::demo::screen::seconds;

/// `longest`: the longest gap of all clients in the whole tour.
pub(super) fn lines(outcomes: &[StepOutcome], longest: Duration) -> Vec<String> {
    let rows = outcomes.iter().map(|outcome| {
        [
            outcome.title.to_owned(),
            outcome.stand_in.clone(),
            format!("{} after {}", outcome.health_state.label(), seconds(outcome.noticed_after)),
            format!("{} ({} clients)", outcome.lost, outcome.clients),
            format!("{}{}", seconds(outcome.longest_gap), if outcome.within_budget() { "" } else { "  TOO LONG" }),
            outcome.why.clone(),
        ]
    });
    let mut lines = vec![String::new()];
    lines.extend(in_columns(HEADER, rows));
    lines.push(String::new());
    lines.push("Each client renews its lease every second, so 1.0 s is no gap at all.".to_owned());
    let verdict = if longest <= BUDGET { "No client waited on a dead connection" } else { "A client waited too long" };
    lines.push(format!("{verdict}: the longest gap was {}, {} are allowed.", seconds(longest), seconds(BUDGET)));
    lines
}

/// The header and the rows, each column as wide as its widest cell.
pub(in crate::lab::demo) fn in_columns<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> impl Iterator<Item = String> {
    let table: Vec<[String; COLUMNS]> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    table.into_iter().map(move |row| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    })
}

const HEADER: [&str; 6] = ["fault", "on", "Baton found it", "connections lost", "longest gap", "why"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::health::HealthState;

    fn outcome(title: &'static str, longest_gap_ms: u64) -> StepOutcome {
        StepOutcome {
            title,
            stand_in: "cp1".to_owned(),
            noticed_after: Duration::from_millis(340),
            health_state: HealthState::Ejected,
            why: "connection refused".to_owned(),
            lost: 2,
            clients: 6,
            longest_gap: Duration::from_millis(longest_gap_ms),
        }
    }

    #[test]
    fn columns_line_up_and_the_verdict_follows_the_longest_gap() {
        let lines = lines(&[outcome("killed", 1010), outcome("hung for long", 12_000)], Duration::from_secs(12));
        assert_eq!(
            lines.join("\n"),
            "
fault          on   Baton found it       connections lost  longest gap       why
killed         cp1  ejected after 0.3 s  2 (6 clients)     1.0 s             connection refused
hung for long  cp1  ejected after 0.3 s  2 (6 clients)     12.0 s  TOO LONG  connection refused

Each client renews its lease every second, so 1.0 s is no gap at all.
A client waited too long: the longest gap was 12.0 s, 10.0 s are allowed."
        );
    }
}
