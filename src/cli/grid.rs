//! Tables for terminals: columns as wide as their widest cell, not counting colour codes. In a terminal that is too narrow the least needed columns
//! are left out, and the last one, which is text, goes on in further lines. Where even that does not fit, each cell has a line of its own.
//! A screen cuts the last one instead, and long names before it. Files and pipes always get all of it.

use std::borrow::Cow;

use super::output::Output;
use super::wrap::{TEXT_MIN, wrap, wrap_line};
use crate::model::weight::Weight;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
pub(super) struct Grid {
    head: Vec<(Cow<'static, str>, Align)>,
    rows: Vec<Vec<Cell>>,
    indent: &'static str,
    /// Titles of columns that may be left out, the least needed one first.
    spare: Vec<&'static str>,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    weight: Weight,
}

impl Grid {
    pub(super) fn new(head: &[(&'static str, Align)]) -> Self {
        let head = head.iter().map(|(title, align)| (Cow::Borrowed(*title), *align)).collect();
        Self { head, rows: Vec::new(), indent: "", spare: Vec::new() }
    }

    /// More columns of words, before the last one.
    pub(super) fn with_columns(mut self, titles: impl IntoIterator<Item = String>) -> Self {
        let last = self.head.pop();
        self.head.extend(titles.into_iter().map(|title| (Cow::Owned(title), Align::Left)));
        self.head.extend(last);
        self
    }

    pub(super) fn indented(self) -> Self {
        Self { indent: "  ", ..self }
    }

    /// Names the columns that a narrow terminal goes without, the least needed one first.
    pub(super) fn spare(self, titles: &[&'static str]) -> Self {
        debug_assert!(titles.iter().all(|title| self.head.iter().any(|(one, _)| one == *title)));
        Self { spare: titles.to_vec(), ..self }
    }

    /// One cell for each column.
    pub(super) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    /// The whole table, newline included; the last column is never padded.
    pub(super) fn render(&self, output: &Output) -> String {
        let all = self.widths();
        let Some(width) = output.width else { return self.lines(&Layout::whole(&all), output, usize::MAX) };
        let mut layout = self.fit(&all, width, usize::MAX);
        if !layout.fits {
            return self.cards(output, width);
        }
        let last = self.head.len() - 1;
        layout.widths[last] = all[last];
        let mut text = self.lines(&layout, output, width);
        if !layout.left_out.is_empty() {
            let note = format!("{}too narrow for {}; --json has all", self.indent, layout.left_out.join(", "));
            text += &(output.faint(&wrap(&note, Some(width))) + "\n");
        }
        text
    }

    /// The last column goes on below itself where `width` ends.
    fn lines(&self, layout: &Layout, output: &Output, width: usize) -> String {
        let before = |column: &usize| layout.widths[*column] + GAP.len();
        let shown = &layout.shown[..layout.shown.len() - 1];
        let hang = self.indent.len() + shown.iter().map(before).sum::<usize>();
        let mut text = self.text(layout, &self.titles(), |piece| output.faint(&piece.text));
        for row in &self.rows {
            let line = self.text(layout, row, |piece| output.paint(piece.weight, &piece.text));
            text += &(wrap_line(line.trim_end_matches('\n'), width, hang) + "\n");
        }
        text
    }

    /// A line for each cell that has a text, and an empty one between two rows.
    fn cards(&self, output: &Output, width: usize) -> String {
        let titles = self.head.iter().map(|(title, _)| title.chars().count()).max().unwrap_or_default();
        let hang = self.indent.len() + titles + GAP.len();
        let card = |row: &Vec<Cell>| -> String {
            let cells = self.head.iter().zip(row).filter(|(_, cell)| !cell.text.is_empty());
            cells
                .map(|((title, _), cell)| {
                    let title = output.faint(&format!("{title:<titles$}"));
                    let line = format!("{}{title}{GAP}{}", self.indent, output.paint(cell.weight, &cell.text));
                    wrap_line(&line, width, hang) + "\n"
                })
                .collect()
        };
        self.rows.iter().map(card).collect::<Vec<_>>().join("\n")
    }

    /// The titles and the rows in pieces, for a screen of `width` columns.
    pub(super) fn laid_out(&self, width: usize) -> (Vec<Piece>, Vec<Vec<Piece>>) {
        let layout = self.fit(&self.widths(), width, NAME_MIN);
        let rows = self.rows.iter().map(|row| self.pieces(&layout, row)).collect();
        (self.pieces(&layout, &self.titles()), rows)
    }

    fn titles(&self) -> Vec<Cell> {
        self.head.iter().map(|(title, _)| Cell::from(&**title)).collect()
    }

    /// Of each column, its title included.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<_> = self.head.iter().map(|(title, _)| title.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        widths
    }

    /// The columns that `width` has room for. Those that are not spare are whole, however narrow the terminal is, except that columns of
    /// words may become as narrow as `name_min`.
    fn fit(&self, all: &[usize], width: usize, name_min: usize) -> Layout {
        let mut layout = Layout::whole(all);
        let last = self.head.len() - 1;
        let last_is_text = self.head[last].1 == Align::Left;
        let last_min = if last_is_text { all[last].min(TEXT_MIN) } else { all[last] };
        let mut spare = self.spare.iter();
        loop {
            let before: Vec<_> = layout.shown.iter().copied().filter(|column| *column != last).collect();
            let needed: usize = self.indent.len() + before.iter().map(|column| all[*column] + GAP.len()).sum::<usize>();
            let has_last = layout.shown.contains(&last);
            let over = (needed + if has_last { last_min } else { 0 }).saturating_sub(width);
            let names: Vec<_> = before.into_iter().filter(|column| self.head[*column].1 == Align::Left).collect();
            if over <= names.iter().map(|column| all[*column].saturating_sub(name_min)).sum() {
                shorten(&mut layout.widths, &names, over);
                layout.widths[last] = if has_last { all[last].min(width + over - needed) } else { 0 };
                return layout;
            }
            let Some(title) = spare.next() else {
                names.into_iter().for_each(|column| layout.widths[column] = all[column].min(name_min));
                layout.widths[last] = last_min;
                layout.fits = false;
                return layout;
            };
            layout.shown.retain(|column| self.head[*column].0 != *title);
            layout.left_out.push(title);
        }
    }

    fn text(&self, layout: &Layout, cells: &[Cell], paint: impl Fn(&Piece) -> String) -> String {
        let pieces = self.pieces(layout, cells);
        let painted = pieces.iter().map(|piece| if piece.is_gap { piece.text.clone() } else { paint(piece) });
        let mut line: String = painted.collect();
        line.truncate(line.trim_end().len());
        line + "\n"
    }

    fn pieces(&self, layout: &Layout, cells: &[Cell]) -> Vec<Piece> {
        let mut pieces = vec![Piece::gap(self.indent)];
        for (at, column) in layout.shown.iter().enumerate() {
            let (cell, width) = (&cells[*column], layout.widths[*column]);
            let last = at + 1 == layout.shown.len();
            let text = if last { cut(&cell.text, width) } else { cut_amid(&cell.text, width) };
            let shown = Piece { text, weight: cell.weight, is_gap: false };
            let padding = Piece::gap(" ".repeat(width - shown.text.chars().count()));
            match self.head[*column].1 {
                Align::Right => pieces.extend([padding, shown]),
                Align::Left if last => pieces.push(shown),
                Align::Left => pieces.extend([shown, padding]),
            }
            if !last {
                pieces.push(Piece::gap(GAP));
            }
        }
        pieces
    }
}

/// A part of a line: the text of a cell, or the space between two.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub text: String,
    pub weight: Weight,
    is_gap: bool,
}

impl Piece {
    fn gap(text: impl Into<String>) -> Self {
        Self { text: text.into(), weight: Weight::Plain, is_gap: true }
    }
}

/// The columns that are shown, and the width of each column.
#[derive(Debug)]
struct Layout {
    shown: Vec<usize>,
    widths: Vec<usize>,
    left_out: Vec<&'static str>,
    /// Whether the terminal is wide enough for all that are shown.
    fits: bool,
}

impl Layout {
    fn whole(widths: &[usize]) -> Self {
        Self { shown: (0..widths.len()).collect(), widths: widths.to_vec(), left_out: Vec::new(), fits: true }
    }
}

const GAP: &str = "  ";

/// What is left of a name on a narrow screen.
const NAME_MIN: usize = 20;

/// Narrows the widest of `columns`, all in all by `over`.
fn shorten(widths: &mut [usize], columns: &[usize], over: usize) {
    for _ in 0..over {
        let widest = columns.iter().copied().max_by_key(|column| widths[*column]);
        widest.into_iter().for_each(|column| widths[column] -= 1);
    }
}

/// At most `width` characters of `text`; the last one tells of a cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept.trim_end().to_owned() + "…"
}

/// At most `width` characters of a name. What tells names apart is mostly at their end, so that the middle goes.
fn cut_amid(name: &str, width: usize) -> String {
    let long = name.chars().count();
    if long <= width {
        return name.to_owned();
    }
    let behind = width.saturating_sub(1).div_ceil(2);
    let before: String = name.chars().take(width.saturating_sub(1) - behind).collect();
    before + "…" + &name.chars().skip(long - behind).collect::<String>()
}

impl Cell {
    pub(super) fn painted(weight: Weight, text: impl Into<String>) -> Self {
        Self { text: text.into(), weight }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::painted(Weight::Plain, text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn columns_line_up_whatever_their_letters() {
        let mut grid = Grid::new(&[("NAME", Align::Left), ("TOOK", Align::Right), ("WHY", Align::Left)]).indented();
        grid.row(["a".into(), "850 µs".into(), Cell::painted(Weight::Bad, "x → y")]);
        grid.row(["longer".into(), "3 s".into(), "".into()]);
        let output = Output::new(false);
        let text = grid.render(&output);
        assert_eq!(text, "  NAME      TOOK  WHY\n  a       850 µs  x → y\n  longer     3 s\n");
    }

    #[test]
    fn a_narrow_terminal_goes_without_spare_columns_and_wraps_the_text() {
        let mut grid =
            Grid::new(&[("NAME", Align::Left), ("A", Align::Right), ("B", Align::Right), ("WHY", Align::Left)]);
        grid.row(["cp1".into(), "11".into(), "22".into(), "connection refused; probe answered 500".into()]);
        let grid = grid.spare(&["A", "B"]);
        let at = |width| grid.render(&Output::new(false).with_width(width));
        assert_eq!(at(80), grid.render(&Output::new(false)));
        let (text, more) = ("connection refused; probe", "answered 500");
        assert_eq!(at(40), format!("NAME   A   B  WHY\ncp1   11  22  {text}\n              {more}\n"));
        let without_one = format!("NAME   B  WHY\ncp1   22  {text}\n          {more}\n");
        assert_eq!(at(36), without_one + "too narrow for A; --json has all\n");
        let without_two = "NAME  WHY\ncp1   connection refused;\n      probe answered 500\n";
        assert_eq!(at(30), without_two.to_owned() + "too narrow for A, B; --json\n  has all\n");
        // What is needed is there, however narrow the terminal is.
        assert_eq!(at(20), "NAME  cp1\nA     11\nB     22\nWHY   connection\n    refused; probe\n    answered 500\n");
    }

    #[test]
    fn a_narrow_screen_shortens_long_names_before_it_goes_without_columns() {
        let mut grid =
            Grid::new(&[("CLIENT", Align::Left), ("AGE", Align::Right), ("WHY", Align::Left)]).spare(&["AGE"]);
        grid.row(["worker-17.eu-central-1.compute.internal:51234".into(), "3 m".into(), "".into()]);
        grid.row(["worker-9:40000".into(), "12 s".into(), "busy".into()]);
        let row =
            |width, row: usize| grid.laid_out(width).1[row].iter().map(|piece| piece.text.as_str()).collect::<String>();
        assert_eq!(row(80, 0), "worker-17.eu-central-1.compute.internal:51234   3 m  ");
        assert_eq!(row(34, 0), "worker-17.…ernal:51234   3 m  ");
        assert_eq!(row(34, 1), "worker-9:40000          12 s  busy");
        assert_eq!(row(32, 0), "worker-17…rnal:51234   3 m  ");
        assert_eq!(row(30, 0), "worker-17.e…ternal:51234  ", "without the age there is room for more of the name");
        assert_eq!(row(9, 0), "worker-17…rnal:51234  ");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            cells in prop::collection::vec(prop::array::uniform4("[a-zµ→ ]{0,40}"), 0..6), width in 12usize..200,
        ) {
            let mut grid = Grid::new(&[("NAME", Align::Left), ("A", Align::Right), ("B", Align::Left), ("WHY", Align::Left)]);
            cells.into_iter().for_each(|row| grid.row(row.map(Cell::from)));
            let text = grid.spare(&["B", "A"]).render(&Output::new(false).with_width(width));
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            prop_assert!(widest <= width, "{text}");
        }
    }
}
