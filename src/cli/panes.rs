//! What the commands that draw on a terminal share: tables, colours, and a frame as text.

use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use ratatui::{Frame, Terminal};

use super::grid::{Grid, Piece};
use crate::model::humane::{count, plural};
use crate::model::weight::Weight;

/// A table of `width` columns. `focused`: keys act on it, and on the row that is `marked`.
pub(super) fn lines(grid: &Grid, width: u16, focused: bool, marked: Option<usize>) -> Vec<Line<'static>> {
    let (head, rows) = grid.laid_out(width.into());
    let style = if focused { Style::new().bold().underlined() } else { Style::new().dim() };
    let mut lines = vec![line(head).style(style)];
    for (place, row) in rows.into_iter().enumerate() {
        let is_marked = focused && marked == Some(place);
        let mut line = line(row);
        if is_marked {
            // The bar reaches the edge.
            line.spans.push(" ".repeat(usize::from(width).saturating_sub(line.width())).into());
            line = line.style(Style::new().reversed());
        }
        lines.push(line);
    }
    lines
}

fn line(pieces: Vec<Piece>) -> Line<'static> {
    pieces.into_iter().map(|piece| painted(piece.weight, piece.text)).collect()
}

/// The rows of a table or list that have no room on the screen, above and below those that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CutRows {
    pub above: usize,
    pub below: usize,
}

impl CutRows {
    /// Of `all` rows, so many are shown from the one at `first` on.
    pub(super) fn new(all: usize, first: usize, shown: usize) -> Self {
        Self { above: first.min(all), below: all.saturating_sub(first + shown) }
    }

    /// `↓ 3 more backends`, `↑ 1 ↓ 3 more backends`; `None`: all rows are shown. `of`: a backend.
    pub(super) fn line(self, of: &str) -> Option<String> {
        match self {
            Self { above: 0, below: 0 } => None,
            Self { above: 0, below } => Some(format!("↓ {}", plural(below as u64, &format!("more {of}")))),
            Self { above, below: 0 } => Some(format!("↑ {}", plural(above as u64, &format!("more {of}")))),
            Self { above, below } => {
                Some(format!("↑ {} ↓ {}", count(above as u64), plural(below as u64, &format!("more {of}"))))
            }
        }
    }

    /// `; 3 more below`, behind a title that says of what; or nothing.
    pub(super) fn beside_title(self) -> String {
        match self {
            Self { above: 0, below: 0 } => String::new(),
            Self { above: 0, below } => format!("; {} more below", count(below as u64)),
            Self { above, below: 0 } => format!("; {} more above", count(above as u64)),
            Self { above, below } => format!("; {} more above, {} below", count(above as u64), count(below as u64)),
        }
    }
}

pub(super) fn painted(weight: Weight, text: impl Into<String>) -> Span<'static> {
    let span = Span::from(text.into());
    match weight {
        Weight::Plain => span,
        Weight::Good => span.green(),
        Weight::Notice => span.yellow(),
        Weight::Bad => span.red(),
    }
}

/// `line`, broken between words so that its first row leaves room for what the `corner` at its right has. No row is empty but the first one,
/// of a terminal that has room for the corner alone.
pub(super) fn beside_corner(line: Line<'static>, corner: usize, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let mut rows = vec![Line::default()];
    let words = line.spans.iter().flat_map(|span| {
        let words = span.content.split_inclusive(' ');
        words.map(|word| Span::styled(word.to_owned(), span.style)).collect::<Vec<_>>()
    });
    for word in words {
        let room = if rows.len() == 1 { width.saturating_sub(corner) } else { width };
        let row = rows.last_mut().expect("there is one");
        let needed = row.width() + Span::from(word.content.trim_end()).width();
        match needed > room && (row.width() > 0 || room < width) {
            true => rows.push(Line::from(word)),
            false => row.push_span(word),
        }
    }
    rows
}

/// What `draw` draws on a terminal of that size, as lines of text.
pub(super) fn text(width: u16, height: u16, draw: impl FnOnce(&mut Frame<'_>)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(drawn) = terminal.draw(draw);
    let row = |y| -> String { (0..width).map(|x| drawn.buffer[(x, y)].symbol()).collect() };
    let lines: Vec<_> = (0..height).map(|y| row(y).trim_end().to_owned()).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// Those of `keys` that `width` has room for, the most needed first.
pub(super) fn keys_line(keys: &[&str], width: u16) -> String {
    let mut text = String::new();
    for key in keys {
        let next = if text.is_empty() { (*key).to_owned() } else { format!("{text}  {key}") };
        if next.chars().count() > usize::from(width) {
            break;
        }
        text = next;
    }
    text
}

/// A window with what the keys do.
pub(super) fn draw_help(frame: &mut Frame<'_>, area: Rect, help: &[&str]) {
    let width = help.iter().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let window = area.centered(Constraint::Length(width), Constraint::Length(help.len() as u16 + 2));
    let text: Vec<_> = help.iter().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Clear, window);
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" keys ")), window);
}
