//! Commands that take a while and report their progress.

use std::ops::ControlFlow;

use serde::de::DeserializeOwned;

use super::output::{CliError, Output};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::Command;

/// Runs `command`, with `show` for each report, which may leave an unfinished line on a terminal. Returns the result.
pub(super) fn follow<Progress: DeserializeOwned, Outcome: DeserializeOwned>(
    client: &mut Client,
    command: &Command,
    output: &Output,
    mut show: impl FnMut(Progress) -> Result<(), CliError>,
) -> Result<Outcome, CliError> {
    let mut failed = None;
    let take = |progress| match show(progress) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    };
    let outcome: Result<Option<Outcome>, ClientError> = client.list(command, take);
    if output.terminal && !output.json {
        output.text("\r\x1b[K")?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(outcome?.ok_or(ClientError::Cut)?),
    }
}
