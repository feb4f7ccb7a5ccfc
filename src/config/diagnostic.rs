//! Errors and warnings in a file, with their places.

use std::fmt;
use std::path::Path;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde::{Deserialize, Serialize};

use super::{Config, UnreadFile};
use crate::model::humane::printable;

/// A valid file.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// In the order of their lines.
    pub warnings: Vec<Diagnostic>,
}

/// An invalid file: every error in it, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// In the order of their lines.
    pub errors: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
    /// Those that the broker did not open. Each is one of the errors.
    pub unread: Vec<UnreadFile>,
}

impl Rejected {
    /// The first of the files that the broker did not open, if nothing else is known to be wrong.
    pub(crate) fn only_unread(&self) -> Option<&UnreadFile> {
        self.unread.first().filter(|_| self.unread.len() == self.errors.len())
    }

    /// Errors, then warnings, as [`Diagnostic::render`] shows each, with an empty line behind each.
    pub fn render(&self, colour: bool) -> String {
        self.errors.iter().chain(&self.warnings).map(|finding| finding.render(colour) + "\n\n").collect()
    }
}

impl std::error::Error for Rejected {}

impl fmt::Display for Rejected {
    /// One error a line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file is rejected.
    Error,
    /// The file is valid, but probably does not mean what its author intended.
    Warning,
}

/// One finding. Displays on one line: `file:12: unknown key "balanse" in frontend "apiserver"; did you mean "balance"?`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The path given to the loader, without parts that are not UTF-8.
    pub file: String,
    /// From 1; never beyond the last line. 0: the file was not read, so it has no place to name.
    pub line: u32,
    /// From 1, in characters; 0 as for the line.
    pub column: u32,
    /// The whole dotted key, such as `frontend[0].backend[2].address`; `file` or `syntax` where no key can be named.
    pub key: String,
    /// The error, and the part of the file that it concerns.
    pub message: String,
    /// The allowed values, and the one found; for a warning the advice.
    pub help: String,
    /// `None`: there is no text to show, or too much.
    pub quote: Option<Quote>,
}

/// The line of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quote {
    pub text: String,
    /// The marked part, in bytes; both ends are boundaries of characters.
    pub from: usize,
    pub to: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, message, help, .. } = self;
        match line {
            0 => write!(f, "{file}: {message}; {help}"),
            _ => write!(f, "{file}:{line}: {message}; {help}"),
        }
    }
}

impl Diagnostic {
    /// In several lines, as rustc does: the sentence, the place, and the line with the part marked. Without a newline
    /// at the end. Control characters in the quoted line, such as an escape, are replaced.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(&*self.message);
        let line = self.line as usize;
        let Some(Quote { text, from, to }) = &self.quote else {
            let origin = Origin::path(&*self.file);
            let origin = if line == 0 { origin } else { origin.line(line).char_column(self.column as usize) };
            return renderer.render(&[title.element(origin).element(Level::HELP.message(&*self.help))]);
        };
        let mark = AnnotationKind::Primary.span(*from..*to);
        // Beside the mark if an ordinary terminal has room for it there.
        let beside = text[..*to].chars().count() + self.help.chars().count() <= BESIDE_CHARS_MAX;
        let mark = if beside { mark.label(&*self.help) } else { mark };
        let group = title.element(Snippet::source(&**text).line_start(line).path(&*self.file).annotation(mark));
        let group = if beside { group } else { group.element(Level::HELP.message(&*self.help)) };
        renderer.render(&[group])
    }
}

/// The path, as messages name it.
pub(super) fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

const BESIDE_CHARS_MAX: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: "/etc/baton/baton.toml".into(),
            line: 12,
            column: 1,
            key: "frontend[0].balanse".into(),
            message: "unknown key \"balanse\" in frontend \"apiserver\"".into(),
            help: "did you mean \"balance\"?".into(),
            quote: Some(Quote { text: "balanse = \"least_conn\"".into(), from: 0, to: 7 }),
        }
    }

    #[test]
    fn a_finding_is_one_line_in_a_log_and_marked_in_its_line_on_a_terminal() {
        let one_line =
            "/etc/baton/baton.toml:12: unknown key \"balanse\" in frontend \"apiserver\"; did you mean \"balance\"?";
        assert_eq!(finding().to_string(), one_line);
        let marked = "\
error: unknown key \"balanse\" in frontend \"apiserver\"
  --> /etc/baton/baton.toml:12:1
   |
12 | balanse = \"least_conn\"
   | ^^^^^^^ did you mean \"balance\"?";
        assert_eq!(finding().render(false), marked);
        let coloured = finding().render(true);
        assert!(coloured.contains("\u{1b}[") && coloured.contains("did you mean"), "{coloured}");
    }

    #[test]
    fn what_does_not_fit_beside_the_mark_stands_below() {
        let long = Diagnostic { help: "expected one of ".to_owned() + &"a_key, ".repeat(20), ..finding() };
        let shown = long.render(false);
        assert!(shown.contains("   | ^^^^^^^\n   |\n   = help: expected one of a_key, "), "{shown}");
        let unquoted = Diagnostic { quote: None, ..finding() }.render(false);
        assert!(
            unquoted.contains("--> /etc/baton/baton.toml:12:1\n") && unquoted.contains("help: did you"),
            "{unquoted}"
        );
    }

    #[test]
    fn no_escape_of_the_file_reaches_the_terminal() {
        let text = "name = \"\u{1b}[2J\u{7}\"".to_owned();
        let finding = Diagnostic { quote: Some(Quote { from: 0, to: text.len(), text }), ..finding() };
        assert!(!finding.render(false).contains(['\u{1b}', '\u{7}']));
    }

    #[test]
    fn a_finding_survives_json() {
        let json = serde_json::to_string(&finding()).unwrap();
        assert!(json.contains("\"severity\":\"error\"") && json.contains("\"line\":12"), "{json}");
        assert_eq!(serde_json::from_str::<Diagnostic>(&json).unwrap(), finding());
    }
}
