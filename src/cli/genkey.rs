//! `baton genkey`: the secret that the instances of a fleet share.

use std::process::ExitCode;

use super::output::{CliError, Output};
use crate::config::PeerKey;
use crate::sys::random;

/// Prints a new key, as `peers.key_file` wants it.
pub fn genkey(output: &Output) -> Result<ExitCode, CliError> {
    let key = match random::secret() {
        Ok(secret) => PeerKey(secret),
        Err(error) => {
            eprintln!("the kernel gives no random numbers: {error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    match output.json {
        true => output.document(&serde_json::json!({ "key": key.spell() }))?,
        false => output.line(key.spell())?,
    }
    Ok(ExitCode::SUCCESS)
}
