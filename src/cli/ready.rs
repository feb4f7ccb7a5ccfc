//! `baton ready`: whether this host should have the VIP, for the scripts of those who move it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::EXIT_UNAVAILABLE;
use super::output::{CliError, Output};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::Command;

#[derive(clap::Args, Clone, Debug)]
pub struct ReadyArguments {
    /// An instance that has not answered within this is not ready.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = super::duration::parse)]
    within: Duration,
}

/// Exit code 0: ready; 1: it says that it is not; 69: nobody answered in time.
pub fn ready(socket: &Path, arguments: &ReadyArguments, output: &Output) -> Result<ExitCode, CliError> {
    let asked = Client::connect(socket)
        .and_then(|client| client.with_limit(arguments.within))
        .and_then(|mut client| client.ask::<serde_json::Value>(&Command::Status {}));
    let status = match asked {
        Ok(status) => status,
        Err(ClientError::Broken(_) | ClientError::Cut) => {
            output.line("not ready: the instance does not answer")?;
            return Ok(EXIT_UNAVAILABLE.into());
        }
        Err(error) => return Err(error.into()),
    };
    let reasons: Vec<_> = status["not_ready"].as_array().into_iter().flatten().filter_map(|why| why.as_str()).collect();
    if output.json {
        output.document(&serde_json::json!({ "ready": reasons.is_empty(), "not_ready": reasons }))?;
    } else if reasons.is_empty() {
        output.line("ready")?;
    } else {
        output.line(format!("not ready: {}", reasons.join("; ")))?;
    }
    Ok(if reasons.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
