//! What is wrong in a file, and where.

use std::fmt;
use std::path::PathBuf;

use super::Config;

/// A file that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// In the order of their lines.
    pub warnings: Vec<Diagnostic>,
}

/// A file that was not taken: every error in it, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// In the order of their lines.
    pub errors: Vec<Diagnostic>,
    pub warnings: Vec<Diagnostic>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file is rejected.
    Error,
    /// The file is taken, yet probably not what was meant.
    Warning,
}

/// One finding. Displays as `file:line: key: what was read, what is allowed`; a warning says "advised" for "allowed".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// As it was given to the loader.
    pub file: PathBuf,
    /// From 1; never beyond the last line.
    pub line: u32,
    /// The whole dotted key, such as `frontend[0].backend[2].address`; `file` or `syntax` where no key can be named.
    pub key: String,
    pub read: String,
    /// What is allowed, or for a warning what is advised.
    pub allowed: String,
    pub severity: Severity,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "allowed",
            Severity::Warning => "advised",
        };
        let Self { file, line, key, read, allowed, .. } = self;
        write!(f, "{}:{line}: {key}: read {read}, {word}: {allowed}", file.display())
    }
}
