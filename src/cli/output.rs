//! Output to the terminal, and the handling of errors.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use thiserror::Error;

use super::wrap::wrap;
use crate::admin::client::ClientError;
use crate::admin::protocol::{Refusal, errors_in_words};
use crate::config::Diagnostic;
use crate::model::humane::printable_lines;
use crate::model::weight::Weight;

/// Wrong usage: EX_USAGE.
pub(crate) const EXIT_USAGE: u8 = 64;

/// The instance cannot be reached: EX_UNAVAILABLE.
pub(super) const EXIT_UNAVAILABLE: u8 = 69;

/// Why a command failed.
#[derive(Debug, Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Client(ClientError),
    #[error("{path}: {reason}", path = .path.display())]
    Config { path: PathBuf, reason: String },
    /// Nothing can be written: the reader of a pipe has closed it, or the disk is full.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    #[error("{path}: {source}", path = .path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Setup(#[from] crate::translate::SetupRefusal),
    #[error("{path}: this is not a key; `baton genkey` prints one", path = .0.display())]
    NoKey(PathBuf),
    #[error("the command would reset {0}; repeat it with --yes")]
    FlowsInPath(String),
    #[error("{path}: {source}; the command would reset flows that are pinned there; repeat it with --yes", path = .path.display())]
    Unread { path: PathBuf, source: io::Error },
    #[error("a running instance uses what is pinned in {path}, and without it each flow that it offloads would be reset; stop it first", path = .0.display())]
    PinsInUse(PathBuf),
    #[error("Baton has accepted the order to reset flow {0}, but the flow has not ended yet")]
    StillThere(crate::model::ids::FlowId),
    /// The arguments contradict each other in a way that their parser does not see.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Recording(#[from] crate::recorder::ReadFault),
    #[error("{subject} is in the record: {covers}")]
    NotExplained { subject: String, covers: String },
    #[error("no client is known that was behind {address}{covers}")]
    Nobody { address: std::net::SocketAddr, covers: String },
    #[error("{path} is no bundle, and no directory of a recorder: {why}", path = .path.display())]
    NoBundle { path: PathBuf, why: String },
    #[error("{path} has no {part}: no instance ran when it was made, or an earlier release made it", path = .path.display())]
    NoPart { path: PathBuf, part: &'static str },
    #[error(
        "{path} has nothing of an instance: neither status nor configuration nor recorder; name its socket with --socket PATH, or its configuration file with -c FILE", path = .0.display()
    )]
    EmptyBundle(PathBuf),
    #[error("this instance records nothing: size_mb in [recorder] is 0; --from PATH reads another recorder's files")]
    NotRecorded,
    #[error(
        "{0}; a replay needs the recorder's files, and the running instance has none: `baton explain` and `baton events --since TIME` answer from its memory, or --from PATH names other files"
    )]
    NotReplayed(Box<CliError>),
    /// What would have to be a terminal, or why none may be used.
    #[error("`baton {command}` needs a terminal, and {why}; `baton {command} --once` prints one frame as text")]
    NoTerminal { command: &'static str, why: &'static str },
    #[error("cannot use the terminal: {0}")]
    Terminal(io::Error),
    #[error("{0} is no longer draining: an operator has ended the drain")]
    OrderGone(String),
}

impl CliError {
    /// The pinned objects at `path` cannot be read or removed.
    pub(super) fn path(path: &Path, source: io::Error) -> Self {
        Self::Path { path: path.to_path_buf(), source }
    }
}

/// Whether output to `stream` may have colours.
pub(super) fn colours(stream: &impl IsTerminal) -> bool {
    // https://no-color.org
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns of the terminal, as the user says (environ(7)) or the kernel (tty_ioctl(4)).
fn width() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    said.or_else(asked).filter(|columns| *columns > 0)
}

/// Columns of the terminal that is standard output, if it is one.
pub(super) fn columns() -> Option<usize> {
    if io::stdout().is_terminal() { width() } else { None }
}

/// Standard output, with the user's choices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    pub json: bool,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Columns of the terminal; `None`: standard output is none, or does not say.
    pub width: Option<usize>,
    colour: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { json, terminal, width: columns(), colour: colours(&io::stdout()) }
    }

    /// The same for a terminal of `width` columns.
    #[cfg(test)]
    pub(super) fn with_width(self, width: usize) -> Self {
        Self { width: Some(width), ..self }
    }

    pub(super) fn line(&self, text: impl Display) -> Result<(), CliError> {
        Ok(writeln!(io::stdout().lock(), "{text}")?)
    }

    /// Writes `text` as it is, at once.
    pub(super) fn text(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }

    /// Writes `text` at once, its lines broken at the edge of the terminal.
    pub(super) fn wrapped(&self, text: &str) -> Result<(), CliError> {
        self.text(&wrap(text, self.width))
    }

    /// One JSON document over several lines.
    pub(super) fn document(&self, value: &impl Serialize) -> Result<(), CliError> {
        self.line(serde_json::to_string_pretty(value).map_err(io::Error::from)?)
    }

    /// One JSON document on one line.
    pub(super) fn json_line(&self, value: &impl Serialize) -> Result<(), CliError> {
        self.line(serde_json::to_string(value).map_err(io::Error::from)?)
    }

    pub(super) fn paint(&self, weight: Weight, text: &str) -> String {
        let code = match weight {
            Weight::Good => "32",
            Weight::Plain => return text.to_owned(),
            Weight::Notice => "33",
            Weight::Bad => "31",
        };
        self.escape(code, text)
    }

    pub(super) fn bold(&self, text: &str) -> String {
        self.escape("1", text)
    }

    pub(super) fn faint(&self, text: &str) -> String {
        self.escape("2", text)
    }

    /// Prints the error on standard error, and returns the exit code.
    pub(super) fn fail(&self, error: &CliError) -> ExitCode {
        if let CliError::Output(error) = error
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            // `baton flows
            // head` has read enough.
            return ExitCode::SUCCESS;
        }
        let mut stderr = io::stderr().lock();
        if let CliError::Client(ClientError::Refused(Refusal::Reload { errors, findings })) = error
            && !findings.is_empty()
        {
            let _ = write!(stderr, "{}", reload_refused(errors, findings, colours(&io::stderr())));
            return ExitCode::FAILURE;
        }
        let _ = writeln!(stderr, "baton: {}", printable_lines(&error.to_string()));
        if let CliError::Usage(_) = error {
            return EXIT_USAGE.into();
        }
        let CliError::Client(ClientError::Unreachable { source, .. }) = error else { return ExitCode::FAILURE };
        let advice = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "Only root and the user that Baton runs as may use its admin socket; with \"group\" in [admin], the members of that group may look."
            }
            io::ErrorKind::ConnectionRefused => {
                "This is no socket, or an instance that has ended left it behind. Start an instance with `baton run -c FILE`."
            }
            _ => "Is Baton running? Name its socket with --socket PATH, or its configuration file with -c FILE.",
        };
        let _ = writeln!(stderr, "{advice}");
        EXIT_UNAVAILABLE.into()
    }

    fn escape(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The findings of the file with their lines, and the sentence below, at the end of the output.
fn reload_refused(errors: &[String], findings: &[Diagnostic], colour: bool) -> String {
    let shown: String = findings.iter().map(|finding| finding.render(colour) + "\n\n").collect();
    format!("{shown}baton: the configuration has {} and changed nothing\n", errors_in_words(errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_reload_quotes_each_line_of_the_file() {
        let findings = crate::config::parse("[log]\nlevel = 5\n", Path::new("baton.toml")).unwrap_err().errors;
        let errors: Vec<_> = findings.iter().map(ToString::to_string).collect();
        let said = reload_refused(&errors, &findings, false);
        assert!(said.contains("2 | level = 5\n  |         ^"), "{said}");
        assert!(said.ends_with("\n\nbaton: the configuration has 2 errors and changed nothing\n"), "{said}");
    }
}
