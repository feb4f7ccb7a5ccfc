//! The completions for shells, made from the arguments.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use serde::de::DeserializeOwned;

use super::socket::{self, DEFAULT_CONFIG};
use crate::admin::client::ClientError;
use crate::admin::protocol::Command;
use crate::admin::status::{BackendStatus, PeersReport};

/// The shell's completion script starts `baton` with this variable to ask for candidates.
const ASKED_BY: &str = "BATON_COMPLETE";

/// The option with the configuration file.
const CONFIG: [&str; 2] = ["-c", "--config"];

/// Somebody has pressed a key and waits.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);

/// Prints the script that makes `shell` ask this program for completions.
pub(super) fn completion(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let written = match shells.completer(&shell.to_string()) {
        Some(shell) => shell.write_registration(ASKED_BY, "baton", "baton", "baton", &mut script),
        None => return ExitCode::FAILURE,
    };
    match written {
        Ok(()) => print(&script),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Answers the shell and ends the process if a completion script has started it.
pub(super) fn complete<Arguments: CommandFactory>() {
    CompleteEnv::with_factory(Arguments::command).var(ASKED_BY).complete();
}

/// Completes the names of backends.
pub(super) fn backend_names() -> ArgValueCandidates {
    ArgValueCandidates::new(|| known_backends().into_iter().map(CompletionCandidate::new).collect())
}

/// Completes the names of backends and peers.
pub(super) fn backend_and_peer_names() -> ArgValueCandidates {
    let known = || known_backends().into_iter().chain(known_peers());
    ArgValueCandidates::new(move || known().map(CompletionCandidate::new).collect())
}

/// The other instances of the fleet.
pub(super) fn known_peers() -> Vec<String> {
    match asked::<PeersReport>(&Command::Peers {}) {
        Ok(report) => report.peers.iter().map(|it| it.name.to_string()).collect(),
        Err(_) => std::fs::read_to_string(config_file()).map_or(Vec::new(), |text| peers_in(&text)),
    }
}

pub(super) fn known_backends() -> Vec<String> {
    match asked::<Vec<BackendStatus>>(&Command::Backends { backend: None }) {
        Ok(backends) => names(backends.iter().map(|it| (&*it.frontend, &*it.name))),
        // Only root may ask the instance, everybody may read the file.
        Err(_) => std::fs::read_to_string(config_file()).map_or(Vec::new(), |text| named_in(&text)),
    }
}

/// The configuration file of the line that is being completed, or the usual one.
fn config_file() -> PathBuf {
    typed(&words(), &CONFIG).unwrap_or(DEFAULT_CONFIG).into()
}

/// The line that is being completed, among the shell's own words.
fn words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The value that a line gives to an option: in the word after it, after "=", or, of one letter, in the same word.
fn typed<'w>(words: &'w [String], option: &[&str]) -> Option<&'w str> {
    words.iter().enumerate().find_map(|(place, word)| {
        let value = option.iter().find_map(|name| word.strip_prefix(name))?;
        match value.strip_prefix('=') {
            Some(value) => Some(value),
            None if value.is_empty() => words.get(place + 1).map(String::as_str),
            None => (!word.starts_with("--")).then_some(value),
        }
    })
}

/// What the running instance answers.
fn asked<T: DeserializeOwned>(command: &Command) -> Result<T, ClientError> {
    let words = words();
    let named = typed(&words, &CONFIG).map(Path::new);
    let usual = Some(Path::new(DEFAULT_CONFIG)).filter(|path| path.exists() && !socket::is_named());
    let socket = match typed(&words, &["--socket"]) {
        Some(socket) => socket.into(),
        None => socket::find(named.or(usual)).or_else(|_| socket::find(None)).map_err(|_| ClientError::Cut)?,
    };
    socket::connect(&socket)?.with_limit(ANSWER_LIMIT)?.ask(command)
}

/// The backends in a configuration file, which may have errors.
fn named_in(file: &str) -> Vec<String> {
    let Ok(file) = file.parse::<toml::Table>() else { return Vec::new() };
    let tables = |table: &toml::Table, key| {
        let list = table.get(key).and_then(toml::Value::as_array).cloned().unwrap_or_default();
        list.into_iter().filter_map(|it| it.as_table().cloned())
    };
    let name = |table: &toml::Table| table.get("name").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    let backends: Vec<_> = tables(&file, "frontend")
        .flat_map(|frontend| tables(&frontend, "backend").map(move |backend| (name(&frontend), name(&backend))))
        .collect();
    names(backends.iter().map(|(frontend, backend)| (&**frontend, &**backend)))
}

/// The peers in a configuration file, which may have errors.
fn peers_in(file: &str) -> Vec<String> {
    let file = file.parse::<toml::Table>().ok();
    let peers = file.as_ref().and_then(|file| file.get("peers")?.get("peer")?.as_array());
    let name = |peer: &toml::Value| Some(peer.get("name")?.as_str()?.to_owned());
    peers.into_iter().flatten().filter_map(name).collect()
}

/// NAME, or FRONTEND/NAME if several frontends have a backend of this name.
fn names<'a>(backends: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Vec<String> {
    let is_alone = |(frontend, name)| backends.clone().all(|(other, same)| same != name || other == frontend);
    let named = backends.clone().filter(|(_, name)| !name.is_empty());
    let mut names: Vec<_> = named
        .map(|(frontend, name)| if is_alone((frontend, name)) { name.to_owned() } else { format!("{frontend}/{name}") })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// If the reader has closed the pipe, as `head` does, that is no error.
pub(super) fn print(bytes: &[u8]) -> ExitCode {
    match io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_two_frontends_have_is_completed_with_its_frontend() {
        let both = [("a", "cp1"), ("a", "cp2"), ("b", "cp1"), ("b", "")];
        assert_eq!(names(both.into_iter()), ["a/cp1", "b/cp1", "cp2"]);
    }

    #[test]
    fn without_an_instance_the_file_has_the_names_and_may_have_errors() {
        let file =
            "x = 1\n[[frontend]]\nname = \"a\"\n[[frontend.backend]]\nname = \"cp1\"\n[[frontend.backend]]\nbad = 1\n";
        assert_eq!(named_in(file), ["cp1"]);
        assert_eq!(named_in("[[frontend"), [""; 0]);
        assert_eq!(named_in("frontend = 1"), [""; 0]);
        let file = "[peers]\nx = 1\n[[peers.peer]]\nname = \"lb-b\"\n[[peers.peer]]\nbad = 1\n";
        assert_eq!((peers_in(file), peers_in("peers = 1"), peers_in("[[")), (vec!["lb-b".to_owned()], vec![], vec![]));
    }
}
