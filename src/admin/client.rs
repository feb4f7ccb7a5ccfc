//! The client of the admin socket, for the command line: blocking.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::protocol::{Command, Line, Refusal};
use crate::model::duration::display;
use crate::model::humane::printable_lines;
use crate::sys::fd_passing::peer_uid;

/// Longer than an instance lets any command take.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// Why a command has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("this command reaches no instance at {path}: {source}", path = .path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("the connection to the instance broke: {0}")]
    Broken(io::Error),
    #[error("the instance did not answer within {}; it may be stuck, or stopped", display(*.0))]
    Silent(Duration),
    #[error("the instance closed the connection before it answered; is it stopping?")]
    Cut,
    #[error("the instance answered in a way that this version does not understand: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A connection to a running instance.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    /// `None`: it waits for ever.
    limit: Option<Duration>,
}

impl Client {
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream =
            UnixStream::connect(path).map_err(|source| ClientError::Unreachable { path: path.to_owned(), source })?;
        Self { stream: BufReader::new(stream), limit: None }.with_limit(REPLY_LIMIT)
    }

    /// Whether the other end's process is of this process's user: then what it says could as well be said here. False also if the kernel
    /// does not say.
    pub(crate) fn is_of_own_user(&self) -> bool {
        peer_uid(self.stream.get_ref()).is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
    }

    /// One command, one result.
    pub fn ask<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, ClientError> {
        let listed = self.list(command, |_: serde_json::Value| ControlFlow::Continue(()))?;
        listed.ok_or(ClientError::Cut)
    }

    /// One command and its listing: `take` gets each item and may end the listing; then there is no result.
    pub fn list<I: DeserializeOwned, T: DeserializeOwned>(
        &mut self,
        command: &Command,
        mut take: impl FnMut(I) -> ControlFlow<()>,
    ) -> Result<Option<T>, ClientError> {
        self.send(command)?;
        loop {
            match self.line()? {
                Line::Item(item) => {
                    if take(serde_json::from_value(in_print(item))?).is_break() {
                        return Ok(None);
                    }
                }
                Line::Ok(result) => return Ok(Some(serde_json::from_value(in_print(result))?)),
                Line::Error(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Limits the wait for each line.
    pub(crate) fn with_limit(self, limit: Duration) -> Result<Self, ClientError> {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(limit)).map_err(ClientError::Broken)?;
        stream.set_write_timeout(Some(limit)).map_err(ClientError::Broken)?;
        Ok(Self { limit: Some(limit), ..self })
    }

    /// Removes the limit, for a listing that follows events.
    pub(crate) fn without_limit(self) -> Result<Self, ClientError> {
        self.stream.get_ref().set_read_timeout(None).map_err(ClientError::Broken)?;
        Ok(Self { limit: None, ..self })
    }

    fn send(&mut self, command: &Command) -> Result<(), ClientError> {
        match self.stream.get_mut().write_all(&command.to_line()) {
            // An instance that refuses us answers before it has read anything, and closes: read its answer.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(self.lost(error)),
            _ => Ok(()),
        }
    }

    fn lost(&self, error: io::Error) -> ClientError {
        match (error.kind(), self.limit) {
            (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, Some(limit)) => ClientError::Silent(limit),
            _ => ClientError::Broken(error),
        }
    }

    fn line(&mut self) -> Result<Line, ClientError> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(|error| self.lost(error))?;
        if !line.ends_with('\n') {
            return Err(ClientError::Cut);
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The answer with every text as [`printable_lines`] writes it: whoever has taken the instance over does not write to the operator's terminal.
fn in_print(answer: Value) -> Value {
    match answer {
        Value::String(text) => Value::String(printable_lines(&text)),
        Value::Array(items) => items.into_iter().map(in_print).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (printable_lines(&name), in_print(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `baton reload` wrote the changes that it was told to the terminal as they were.
    #[test]
    fn no_text_of_an_answer_moves_the_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let instance = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answers = std::thread::spawn(move || {
            let mut stream = instance.accept().unwrap().0;
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            let answer = serde_json::json!({ "ok": { "changes": ["\u{1b}[2J\u{202e}x", "a\nb"] } });
            writeln!(stream, "{answer}").unwrap();
        });
        let answer: Value = Client::connect(&path).unwrap().ask(&Command::Reload {}).unwrap();
        answers.join().unwrap();
        assert_eq!(answer["changes"], serde_json::json!(["\\u{1b}[2J\\u{202e}x", "a\nb"]));
    }

    /// Regression: a stuck instance takes connections, and commands ended with "Resource temporarily unavailable (os error 11)".
    #[test]
    fn an_instance_that_takes_the_connection_and_never_answers_is_said_to_be_silent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let _stuck = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = Client::connect(&path).and_then(|client| client.with_limit(Duration::from_millis(50)));
        let silent = client.unwrap().ask::<serde_json::Value>(&Command::Status {}).unwrap_err();
        assert!(silent.to_string().starts_with("the instance did not answer within 50ms"), "{silent}");
    }
}
