//! `baton ready`: whether this host should have the VIP, for scripts that move it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;

use super::output::{CliError, EXIT_UNAVAILABLE, Output};
use crate::admin::client::ClientError;
use crate::admin::protocol::Command;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ReadyArguments {
    /// An instance that has not answered within this time is not ready.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = crate::model::duration::parse)]
    within: Duration,
}

/// The needed part of the status: other versions' are understood, and an instance that does not send this is not ready.
#[derive(Deserialize)]
struct ReadyAnswer {
    instance: ReadySaid,
}

#[derive(Deserialize)]
struct ReadySaid {
    not_ready: Vec<String>,
}

/// Exit code 0: ready; 1: the instance says that it is not; 69: no answer in time.
pub(super) fn ready(socket: &Path, arguments: &ReadyArguments, output: &Output) -> Result<ExitCode, CliError> {
    let asked = super::socket::connect(socket)
        .and_then(|client| client.with_limit(arguments.within))
        .and_then(|mut client| client.ask::<ReadyAnswer>(&Command::Status {}));
    let reasons = match asked {
        Ok(answer) => answer.instance.not_ready,
        Err(ClientError::Broken(_) | ClientError::Cut) => {
            output.line("not ready: the instance does not answer")?;
            return Ok(EXIT_UNAVAILABLE.into());
        }
        Err(error) => return Err(error.into()),
    };
    if output.json {
        output.document(&serde_json::json!({ "ready": reasons.is_empty(), "not_ready": reasons }))?;
    } else if reasons.is_empty() {
        output.line("ready")?;
    } else {
        output.line(format!("not ready: {}", reasons.join("; ")))?;
    }
    Ok(if reasons.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
