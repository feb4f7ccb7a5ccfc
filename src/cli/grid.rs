//! Tables for terminals: columns as wide as their widest cell, not counting colour codes.

use super::output::Output;
use crate::model::weight::Weight;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
pub(super) struct Grid {
    head: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
    indent: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    weight: Weight,
}

impl Grid {
    pub(super) fn new(head: &[(&'static str, Align)]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new(), indent: "" }
    }

    pub(super) fn indented(self) -> Self {
        Self { indent: "  ", ..self }
    }

    pub(super) fn row<const COLUMNS: usize>(&mut self, cells: [Cell; COLUMNS]) {
        debug_assert_eq!(COLUMNS, self.head.len());
        self.rows.push(cells.into());
    }

    /// The whole table, newline included; the last column is never padded.
    pub(super) fn render(&self, output: &Output) -> String {
        let mut widths: Vec<_> = self.head.iter().map(|(title, _)| title.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        let head = self.head.iter().map(|(title, _)| output.faint(title)).collect();
        let head_widths = self.head.iter().map(|(title, _)| title.chars().count()).collect::<Vec<_>>();
        let mut text = self.line(&widths, head, &head_widths);
        for row in &self.rows {
            let shown = row.iter().map(|cell| output.paint(cell.weight, &cell.text)).collect();
            let lengths: Vec<_> = row.iter().map(|cell| cell.text.chars().count()).collect();
            text += &self.line(&widths, shown, &lengths);
        }
        text
    }

    fn line(&self, widths: &[usize], shown: Vec<String>, lengths: &[usize]) -> String {
        let mut line = self.indent.to_owned();
        for (column, cell) in shown.into_iter().enumerate() {
            let padding = " ".repeat(widths[column] - lengths[column]);
            let last = column + 1 == widths.len();
            match self.head[column].1 {
                Align::Right => line.extend([padding.as_str(), &cell]),
                Align::Left if last => line += &cell,
                Align::Left => line.extend([cell.as_str(), &padding]),
            }
            if !last {
                line += "  ";
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    }
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
}
