//! The fleet in place of the flows: what each instance says of itself, and each backend as each instance sees it.

use ratatui::style::Stylize;
use ratatui::text::Line;

use crate::admin::status::{FleetMatrix, PeersReport};
use crate::admin::words;
use crate::cli::grid::{Align::*, Cell, Grid};
use crate::cli::panes::{CutRows, lines, painted};
use crate::cli::peers;
use crate::cli::wrap::wrap;
use crate::model::weight::Weight;

/// The place of the first line that is shown.
#[derive(Debug, Default)]
pub(super) struct FleetPane {
    first: usize,
    page: usize,
}

impl FleetPane {
    pub(super) fn go(&mut self, places: isize) {
        self.first = self.first.saturating_add_signed(places);
    }

    pub(super) fn go_pages(&mut self, pages: isize) {
        self.go(pages.saturating_mul(self.page.max(1).try_into().unwrap_or(isize::MAX)));
    }

    /// As many lines as the screen has room for.
    pub(super) fn window(&mut self, report: &PeersReport, width: u16, room: usize) -> Vec<Line<'static>> {
        let Some(instances) = peers::instances(report) else {
            let none = if report.name.is_some() { NO_WORD } else { NO_PEERS };
            return vec![painted(Weight::Notice, none).into()];
        };
        let mut all = lines(&instances, width, false, None);
        all.push(Line::default());
        all.extend(matrix(report, width));
        for it in &report.disagreements {
            let sentence = wrap(&format!("Disagreement: {}", words::disagreement(it)), Some(width.into()));
            all.extend(sentence.lines().map(|line| Line::from(painted(Weight::Notice, line))));
        }
        self.page = room.max(1);
        self.first = self.first.min(all.len().saturating_sub(self.page));
        let below = all.len().saturating_sub(self.first + room);
        let mut shown: Vec<_> = all.into_iter().skip(self.first).take(room).collect();
        if below > 0
            && let Some(last) = shown.last_mut()
        {
            *last = Line::from(CutRows { above: 0, below: below + 1 }.line("line").unwrap_or_default().dim());
        }
        shown
    }
}

/// A row for each backend, a column for each instance.
fn matrix(report: &PeersReport, width: u16) -> Vec<Line<'static>> {
    let matrix = FleetMatrix::of(report);
    let instances = matrix.columns.iter().map(|it| it.instance.to_string());
    let mut grid = Grid::new(&[("BACKEND, SEEN BY", Left), ("", Left)]).with_columns(instances);
    let is_alone = matrix.rows.windows(2).all(|pair| pair[0].frontend == pair[1].frontend);
    for row in &matrix.rows {
        let name = if is_alone { row.backend.to_owned() } else { format!("{}/{}", row.frontend, row.backend) };
        let mut cells = vec![Cell::painted(if row.is_disputed { Weight::Notice } else { Weight::Plain }, name)];
        let mut why = Vec::new();
        for column in &matrix.columns {
            let seen = column.sees(row);
            let weight = if column.is_present { seen.weight } else { Weight::Plain };
            cells.push(Cell::painted(weight, format!("{} {}", seen.state, seen.when).trim_end()));
            if !seen.why.is_empty() {
                why.push(format!("{}: {}", column.instance, seen.why));
            }
        }
        cells.push(why.join("; ").into());
        grid.row(cells);
    }
    lines(&grid, width, false, None)
}

const NO_PEERS: &str = "this instance has no peers: there is no [peers] in its configuration";
const NO_WORD: &str = "the instances have not spoken of themselves yet, or this one is of a version that does not";
