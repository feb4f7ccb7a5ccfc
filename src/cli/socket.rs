//! Finds the instance's admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::output::CliError;
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::{About, Command};
use crate::config::read_socket;
use crate::sys::clock::now_ns;

/// An upgrade is over by then, and a restart of an instance without many flows.
const AGAIN_MAX: Duration = Duration::from_secs(10);
const AGAIN_EVERY: Duration = Duration::from_millis(100);

/// An instance that lives needs milliseconds.
const BRIEFLY: Duration = Duration::from_secs(3);
/// For each line of the answer: long enough for an instance that is busy beyond measure.
const TO_READ: Duration = Duration::from_secs(10);

/// The path in the configuration file at `config`, or $BATON_SOCKET, or the default. It reads only this one key, so
/// that commands work while the file has errors.
pub(super) fn find(config: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = config {
        let unusable = |reason: String| CliError::Config { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        let file: toml::Table = text.parse().map_err(|error: toml::de::Error| unusable(error.message().to_owned()))?;
        let socket = file.get("admin").and_then(|admin| admin.get("socket"));
        return match socket {
            None => Ok(DEFAULT_SOCKET.into()),
            Some(toml::Value::String(socket)) => Ok(socket.into()),
            Some(_) => Err(unusable("admin.socket is not a string".to_owned())),
        };
    }
    Ok(from_environment().unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

/// Connects to the admin socket at `path`, or to the one beside it that only reads, where the kernel lets this user use no other.
pub(super) fn connect(path: &Path) -> Result<Client, ClientError> {
    match Client::connect(path) {
        Err(ClientError::Unreachable { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            Client::connect(&read_socket(path)).map_err(|_| ClientError::Unreachable { path: path.to_owned(), source })
        }
        connected => connected,
    }
}

/// Connects as [`connect`], for a command that has something to say without the instance as well: one that is stuck takes the connection,
/// and never answers.
pub(super) fn connect_briefly(path: &Path) -> Result<Client, ClientError> {
    connect(path)?.with_limit(BRIEFLY)
}

/// Connects as [`connect`], for a command that only reads: whoever is paged does not wait a minute for an instance that is stuck.
pub(super) fn connect_to_read(path: &Path) -> Result<Client, ClientError> {
    connect(path)?.with_limit(TO_READ)
}

/// Connects anew, for a command that goes on for ever, and tells which process answers: after an upgrade it is another one.
///
/// # Errors
/// `lost`, why the connection before was lost, if that is no end of the process, or none answers for ten seconds.
pub(super) fn connect_again(path: &Path, lost: ClientError) -> Result<(Client, About), ClientError> {
    let has_ended = matches!(lost, ClientError::Cut | ClientError::Broken(_));
    let deadline_ns = now_ns() + AGAIN_MAX.as_nanos() as u64;
    while has_ended && now_ns() < deadline_ns {
        // At first, too: the process that ends may answer yet.
        std::thread::sleep(AGAIN_EVERY);
        if let Ok(found) = connect_and_ask(path) {
            return Ok(found);
        }
    }
    Err(lost)
}

/// Connects as [`connect`], and tells which process answers.
pub(super) fn connect_and_ask(path: &Path) -> Result<(Client, About), ClientError> {
    let mut client = connect(path)?;
    let about = client.ask(&Command::Version {})?;
    Ok((client, about))
}

/// Whether the environment names a socket.
pub(super) fn is_named() -> bool {
    from_environment().is_some()
}

fn from_environment() -> Option<PathBuf> {
    std::env::var_os("BATON_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

pub(super) const DEFAULT_CONFIG: &str = "/etc/baton/baton.toml";
const DEFAULT_SOCKET: &str = "/run/baton/admin.sock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_file_names_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("baton.toml");
        std::fs::write(&file, "[admin]\nsocket = \"/tmp/x.sock\"\nunknown = 1\n").unwrap();
        assert_eq!(find(Some(&file)).unwrap(), Path::new("/tmp/x.sock"));
        std::fs::write(&file, "[admin]\n").unwrap();
        assert_eq!(find(Some(&file)).unwrap(), Path::new(DEFAULT_SOCKET));
        std::fs::write(&file, "[admin\n").unwrap();
        assert!(find(Some(&file)).unwrap_err().to_string().contains("baton.toml"));
    }
}
