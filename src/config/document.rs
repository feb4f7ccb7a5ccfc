//! One file while it is read: its lines, and all errors so far.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

use super::diagnostic::{Diagnostic, Quote, Severity, shown};
use super::file::UnreadFile;
use super::foreign::{self, ForeignConfig};
use super::kind::quote;
use crate::model::secrets::{hide_keys, shown_message};

/// A place in the file.
#[derive(Clone, Debug)]
pub(super) struct Location {
    /// The whole dotted key.
    pub key: String,
    /// In bytes. `None`: it is nowhere in the file.
    pub span: Option<Range<usize>>,
}

/// Collects findings. Reading continues after each, so that one run reports all.
#[derive(Debug)]
pub(super) struct Document<'t> {
    path: &'t Path,
    text: &'t str,
    /// The offset in bytes at which each line begins.
    line_starts: Vec<usize>,
    findings: RefCell<Vec<Diagnostic>>,
    /// Number of findings beyond the limit, which are not kept.
    surplus: RefCell<BTreeMap<Severity, usize>>,
    known: RefCell<BTreeSet<String>>,
    unread: RefCell<Vec<UnreadFile>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(path: &'t Path, text: &'t str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let after = newlines.map(|(offset, _)| offset + 1).filter(|offset| *offset < text.len());
        let line_starts = std::iter::once(0).chain(after).collect();
        Self {
            path,
            text,
            line_starts,
            findings: RefCell::default(),
            surplus: RefCell::default(),
            known: RefCell::default(),
            unread: RefCell::default(),
        }
    }

    /// The file as TOML. `None` after syntax errors; they are reported, the first of each line.
    pub(super) fn syntax(&self) -> Option<Spanned<DeTable<'t>>> {
        let (table, mut errors) = DeTable::parse_recoverable(self.text);
        errors.sort_by_key(|error| error.span().map(|span| span.start));
        if !errors.is_empty()
            && let Some(what) = foreign::secret(self.text)
        {
            let place = Location { key: "syntax".into(), span: None };
            self.error(
                &place,
                format!("this is {what}, and Baton reads TOML"),
                "give the path of Baton's configuration file",
            );
            return None;
        }
        if !errors.is_empty()
            && let Some(ForeignConfig { program, place, advice }) = foreign::program(self.text, self.path)
        {
            let place = Location { key: "syntax".into(), span: Some(place) };
            self.error(&place, format!("this looks like a configuration of {program}, and Baton reads TOML"), advice);
            return None;
        }
        let mut last_line = 0;
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let line = self.line(span.start);
            if line != last_line {
                let (message, help) = self.syntax_error(error.message(), span.clone());
                self.error(&Location { key: "syntax".into(), span: Some(span) }, message, help);
            }
            last_line = line;
        }
        errors.is_empty().then_some(table)
    }

    /// The line of a byte, from 1. A byte beyond the end counts as in the last line.
    pub(super) fn line(&self, offset: usize) -> u32 {
        self.line_starts.partition_point(|start| *start <= offset).max(1) as u32
    }

    pub(super) fn error(&self, place: &Location, message: impl Into<String>, help: impl Into<String>) {
        self.find(Severity::Error, place, message.into(), help.into());
    }

    pub(super) fn warning(&self, place: &Location, message: impl Into<String>, help: impl Into<String>) {
        self.find(Severity::Warning, place, message.into(), help.into());
    }

    /// A path in the file: relative ones begin at the file's own directory.
    pub(super) fn resolve(&self, named: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(named)
    }

    /// Records that a file may hold `pattern`, a dotted key without indices.
    pub(super) fn know(&self, pattern: String) {
        self.known.borrow_mut().insert(pattern);
    }

    /// Records a file that the broker did not open; its error is reported as well.
    pub(super) fn leave_unread(&self, file: UnreadFile) {
        self.unread.borrow_mut().push(file);
    }

    /// Every file that the broker did not open.
    pub(super) fn unread(&self) -> Vec<UnreadFile> {
        self.unread.borrow().clone()
    }

    /// Every recorded key.
    pub(super) fn known(&self) -> BTreeSet<String> {
        self.known.borrow().clone()
    }

    /// Errors and warnings, each in the order of their lines.
    pub(super) fn into_findings(self) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        for (severity, count) in self.surplus.take() {
            let what = if severity == Severity::Error { "errors" } else { "warnings" };
            let last = self.text.len().checked_sub(1).map(|last| last..last);
            let (message, help) =
                (format!("there are {count} further {what}"), format!("fix the {FINDINGS_MAX} before them first"));
            self.keep(severity, &Location { key: "file".into(), span: last }, message, help);
        }
        let mut all = self.findings.into_inner();
        all.sort_by_key(|finding| finding.line);
        all.into_iter().partition(|finding| finding.severity == Severity::Error)
    }

    fn find(&self, severity: Severity, place: &Location, message: String, help: String) {
        if self.findings.borrow().len() < FINDINGS_MAX {
            self.keep(severity, place, message, help);
        } else {
            *self.surplus.borrow_mut().entry(severity).or_default() += 1;
        }
    }

    fn keep(&self, severity: Severity, place: &Location, message: String, help: String) {
        let (line, column, quote) = match &place.span {
            Some(span) => self.quote(span.clone()),
            None => (1, 1, None),
        };
        let (file, key) = (shown(self.path), place.key.clone());
        let [message, help] = [message, help].map(|text| shown_message(&key, &hide_keys(&text)));
        self.findings.borrow_mut().push(Diagnostic { severity, file, line, column, key, message, help, quote });
    }

    /// Line and column of `span`, and the line with the part of the span in it.
    fn quote(&self, span: Range<usize>) -> (u32, u32, Option<Quote>) {
        let line = self.line(span.start);
        let start = self.line_starts[line as usize - 1];
        let text = self.text[start..].split('\n').next().unwrap_or_default();
        let text = text.strip_suffix('\r').unwrap_or(text);
        let from = text.floor_char_boundary(span.start - start);
        let to = text.floor_char_boundary(span.end.max(span.start) - start).max(from);
        let column = text[..from].chars().count() as u32 + 1;
        let quote = (text.len() <= QUOTED_BYTES_MAX).then(|| Quote { text: hide_keys(text), from, to });
        (line, column, quote)
    }

    /// The words for an error of the parser at `span`.
    fn syntax_error(&self, said: &str, span: Range<usize>) -> (String, String) {
        let (what, expected) = said.split_once(", expected ").unwrap_or((said, "valid TOML"));
        let text = self.text.get(span).unwrap_or_default().lines().next().unwrap_or_default().trim_end();
        match what {
            "duplicate key" => (format!("{} is defined twice", quote(text)), "define it once".into()),
            "string values must be quoted" if text.is_empty() => {
                ("not TOML: a key without its value".into(), format!("expected {A_VALUE}"))
            }
            "string values must be quoted" => {
                (format!("not TOML: {} without quotes", quote(text)), format!("expected {A_VALUE}"))
            }
            _ if text.is_empty() => (format!("not TOML: {what}"), format!("expected {expected}")),
            _ => (format!("not TOML: {what}"), format!("expected {expected}, found {}", quote(text))),
        }
    }
}

const A_VALUE: &str = "text or a duration in quotes, a number, true, false or [ ]";
/// A longer line is unreadable beside a mark.
const QUOTED_BYTES_MAX: usize = 400;
/// A file with errors everywhere, such as another program's, must not fill the log.
const FINDINGS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_lies_on_a_line_of_the_file() {
        let document = Document::new(Path::new("f"), "a\nb\n\nc\n");
        let lines: Vec<u32> = (0..10).map(|offset| document.line(offset)).collect();
        assert_eq!(lines, [1, 1, 2, 2, 3, 4, 4, 4, 4, 4]);
        assert_eq!(Document::new(Path::new("f"), "").line(7), 1);
    }

    #[test]
    fn a_file_that_is_wrong_all_over_does_not_fill_the_log() {
        let text = "x\n".repeat(5000);
        let document = Document::new(Path::new("f"), &text);
        assert!(document.syntax().is_none());
        document.warning(&Location { key: "k".into(), span: None }, "m", "h");
        let (errors, warnings) = document.into_findings();
        assert_eq!(errors.len(), FINDINGS_MAX + 1);
        let last = "f:5000: there are 4000 further errors; fix the 1000 before them first";
        assert_eq!(errors[FINDINGS_MAX].to_string(), last);
        assert_eq!(warnings.len(), 1);
    }
    #[test]
    fn a_quote_is_the_line_and_the_mark_within_it() {
        let document = Document::new(Path::new("f"), "a = 1\r\né = \"\"\"x\ny\"\"\"");
        let quote = |span| document.quote(span);
        let of = |text: &str, from, to| Some(Quote { text: text.into(), from, to });
        assert_eq!(quote(4..5), (1, 5, of("a = 1", 4, 5)));
        assert_eq!(quote(5..9), (1, 6, of("a = 1", 5, 5)));
        assert_eq!(quote(12..20), (2, 5, of("é = \"\"\"x", 5, 9)));
        assert_eq!(quote(999..1000).0, 3);
    }
}
