//! Commands that take a while and tell how far they have come.

use std::ops::ControlFlow;

use serde::de::DeserializeOwned;

use super::output::{CliError, Output};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::Command;

/// Has `command` carried out, with `show` for each word of its progress, which may leave an unfinished line on a terminal.
/// Returns what came of it.
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
