//! The client of the admin socket, for the command line: blocking.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::protocol::{Command, Line, Refusal};

/// Longer than an instance lets any command take.
const REPLY_LIMIT: Duration = Duration::from_secs(60);

/// Why a command has no result.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("this command reaches no instance at {path}: {source}", path = .path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("the connection to the instance broke: {0}")]
    Broken(#[from] io::Error),
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
}

impl Client {
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream =
            UnixStream::connect(path).map_err(|source| ClientError::Unreachable { path: path.to_owned(), source })?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(Self { stream: BufReader::new(stream) })
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
                    if take(serde_json::from_value(item)?).is_break() {
                        return Ok(None);
                    }
                }
                Line::Ok(result) => return Ok(Some(serde_json::from_value(result)?)),
                Line::Error(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Limits the wait for each line.
    pub(crate) fn with_limit(self, limit: Duration) -> Result<Self, ClientError> {
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        self.stream.get_ref().set_write_timeout(Some(limit))?;
        Ok(self)
    }

    /// Removes the limit, for a listing that follows events.
    pub(crate) fn without_limit(self) -> Result<Self, ClientError> {
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(self)
    }

    fn send(&mut self, command: &Command) -> Result<(), ClientError> {
        match self.stream.get_mut().write_all(&command.to_line()) {
            // An instance that refuses us answers before it has read anything, and closes: read its answer.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn line(&mut self) -> Result<Line, ClientError> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(ClientError::Cut);
        }
        Ok(serde_json::from_str(&line)?)
    }
}
