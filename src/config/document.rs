//! One file while it is read: its lines, and all that was found wrong so far.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

use super::diagnostic::{Diagnostic, Severity};

/// Collects findings. Reading goes on after each, so that one run reports them all.
#[derive(Debug)]
pub struct Document<'t> {
    path: &'t Path,
    text: &'t str,
    /// The offset in bytes at which each line begins.
    line_starts: Vec<usize>,
    findings: RefCell<Vec<Diagnostic>>,
    /// Findings that are counted and no longer kept.
    surplus: RefCell<BTreeMap<Severity, usize>>,
    known: RefCell<BTreeSet<String>>,
}

impl<'t> Document<'t> {
    pub fn new(path: &'t Path, text: &'t str) -> Self {
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
        }
    }

    /// The file as TOML. `None` after syntax errors; they are reported, the first of each line.
    pub fn syntax(&self) -> Option<Spanned<DeTable<'t>>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        let mut last_line = 0;
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let line = self.line(span.start);
            if line != last_line {
                let (what, expected) =
                    error.message().split_once(", expected ").unwrap_or((error.message(), "valid TOML"));
                let allowed = match what {
                    "duplicate key" => "each key and table once",
                    "string values must be quoted" => {
                        "a value: text or a duration in quotes, a number, true, false, [ ]"
                    }
                    _ => expected,
                };
                self.error(line, "syntax", format!("{}: {what}", self.excerpt(span)), allowed);
            }
            last_line = line;
        }
        errors.is_empty().then_some(table)
    }

    /// The line of a byte, from 1. What lies beyond the end counts to the last line.
    pub fn line(&self, offset: usize) -> u32 {
        self.line_starts.partition_point(|start| *start <= offset).max(1) as u32
    }

    pub fn error(&self, line: u32, key: impl Into<String>, read: impl Into<String>, allowed: impl Into<String>) {
        self.find(Severity::Error, line, key.into(), read.into(), allowed.into());
    }

    pub fn warning(&self, line: u32, key: impl Into<String>, read: impl Into<String>, advised: impl Into<String>) {
        self.find(Severity::Warning, line, key.into(), read.into(), advised.into());
    }

    /// A path that the file names: relative ones begin at the file's own directory.
    pub fn resolve(&self, named: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(named)
    }

    /// Notes that `pattern`, a dotted key without indices, is one that a file may hold.
    pub fn know(&self, pattern: String) {
        self.known.borrow_mut().insert(pattern);
    }

    /// Every dotted key without indices that was asked for.
    pub fn known(&self) -> BTreeSet<String> {
        self.known.borrow().clone()
    }

    /// Errors and warnings, each in the order of their lines.
    pub fn into_findings(self) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        for (severity, count) in self.surplus.take() {
            let (line, read) = (self.line(self.text.len()), format!("{count} further findings of this kind"));
            let allowed = format!("{FINDINGS_MAX} in one run");
            self.keep(Diagnostic { file: self.path.into(), line, key: "file".into(), read, allowed, severity });
        }
        let mut all = self.findings.into_inner();
        all.sort_by_key(|finding| finding.line);
        all.into_iter().partition(|finding| finding.severity == Severity::Error)
    }

    fn find(&self, severity: Severity, line: u32, key: String, read: String, allowed: String) {
        if self.findings.borrow().len() < FINDINGS_MAX {
            self.keep(Diagnostic { file: self.path.into(), line, key, read, allowed, severity });
        } else {
            *self.surplus.borrow_mut().entry(severity).or_default() += 1;
        }
    }

    fn keep(&self, finding: Diagnostic) {
        self.findings.borrow_mut().push(finding);
    }

    /// What stands at `span`, or from there to the end of the line, and its column in characters from 1.
    fn excerpt(&self, span: Range<usize>) -> String {
        let line_start = self.line_starts[self.line(span.start) as usize - 1];
        let column = self.text.get(line_start..span.start).map_or(0, |before| before.chars().count()) + 1;
        let from = self.text.get(span.start..).unwrap_or_default();
        let text = self.text.get(span).filter(|text| !text.is_empty()).unwrap_or(from);
        match text.lines().next().map(str::trim_end).filter(|text| !text.is_empty()) {
            Some(text) => format!("{} at column {column}", super::kind::quote(text)),
            None => format!("the end of the line at column {column}"),
        }
    }
}

/// A file that is wrong all over, such as one of another program, must not fill the log.
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
        document.warning(1, "k", "r", "a");
        let (errors, warnings) = document.into_findings();
        assert_eq!(errors.len(), FINDINGS_MAX + 1);
        let last = "f:5000: file: read 4000 further findings of this kind, allowed: 1000 in one run";
        assert_eq!(errors[FINDINGS_MAX].to_string(), last);
        assert_eq!(warnings.len(), 1);
    }
}
