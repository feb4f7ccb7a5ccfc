//! `baton bundle`: one file for a ticket, from which `baton explain --from` and `baton events --from` can tell what happened.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::new_file::NewFile;
use super::output::{CliError, Output};
use super::recording::{self, RECORDS, RecordingFrom};
use super::{check, socket};
use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::{Command, FlowFilter, FlowRow, Listed};
use crate::config;
use crate::model::humane::{bytes, date_and_time};
use crate::model::secrets::{REMOVED, is_key, shown_value};
use crate::sys::clock::unix_ms;

/// The answers of `baton nodes` and `baton peers`.
pub(super) const NODES: &str = "nodes.json";
pub(super) const PEERS: &str = "peers.json";
/// [`LivingFlows`].
pub(super) const FLOWS: &str = "flows.json";

/// What a ticket has room for: some 20 MB.
const FLOWS_MAX: u64 = 50_000;

/// What there is of any host.
const OF_HOST: &str = "check-host.txt";

#[derive(Debug, Args)]
pub(super) struct BundleArguments {
    /// The file to write; it must not exist [default: baton-bundle-HOST-TIME.tar in the present directory].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The flows of the moment at which a bundle was made: the recorder has each at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct LivingFlows {
    pub flows: Vec<FlowRow>,
    /// Further ones, which are not listed.
    pub more: u64,
}

impl LivingFlows {
    fn ask(client: &mut Client) -> Result<Self, ClientError> {
        let mut living = Self::default();
        let take = |row| {
            living.flows.push(row);
            ControlFlow::Continue(())
        };
        let filter = FlowFilter { limit: Some(FLOWS_MAX), ..FlowFilter::default() };
        let listed: Option<Listed> = client.list(&Command::Flows(filter), take)?;
        living.more = listed.ok_or(ClientError::Cut)?.more;
        Ok(living)
    }
}

/// What became of it, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Bundled {
    file: PathBuf,
    bytes: u64,
    has: Vec<String>,
    /// A sentence for each part that is missing.
    left_out: Vec<String>,
}

pub(super) fn run(
    arguments: &BundleArguments,
    named: Option<PathBuf>,
    config: Option<&Path>,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let at_ms = unix_ms();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let path = arguments.output.clone().unwrap_or_else(|| default_name(&host, at_ms));
    // Half of a bundle would look like a whole one, so it gets its name last.
    let fault = |error| CliError::path(&path, error);
    if path.symlink_metadata().is_ok() {
        return Err(fault(io::ErrorKind::AlreadyExists.into()));
    }
    let tar = tar::Builder::new(Vec::new());
    let mut bundle = BundleWriter { tar, at_s: at_ms / 1000, has: Vec::new(), left_out: Vec::new() };
    let written = bundle.fill(&host, named, config).and_then(|()| bundle.tar.into_inner()).map_err(fault)?;
    NewFile::write(&path, &written, 0o600).and_then(NewFile::place_new).map_err(fault)?;
    let bytes_written = written.len() as u64;
    let bundled = Bundled { file: path, bytes: bytes_written, has: bundle.has, left_out: bundle.left_out };
    match output.json {
        true => output.document(&bundled)?,
        false => bundled.say(output)?,
    }
    if bundled.tells_anything() { Ok(ExitCode::SUCCESS) } else { Err(CliError::EmptyBundle(bundled.file)) }
}

impl Bundled {
    /// Whether it has what somebody could find a cause in: what the host is like does not count.
    fn tells_anything(&self) -> bool {
        self.has.iter().any(|part| part != OF_HOST)
    }

    fn say(&self, output: &Output) -> Result<(), CliError> {
        let shown = self.file.display();
        output.line(format!("{shown} has {} ({})", self.has.join(", "), bytes(self.bytes as f64)))?;
        self.left_out.iter().try_for_each(|why| output.line(format!("left out: {why}")))?;
        output.line("It has no key, but the addresses of clients and backends.")
    }
}

/// `baton-bundle-lb-a-20261125T031207Z.tar`.
fn default_name(host: &str, at_ms: u64) -> PathBuf {
    let (date, time) = date_and_time(at_ms);
    format!("baton-bundle-{host}-{}T{}Z.tar", date.replace('-', ""), time.replace(':', "")).into()
}

struct BundleWriter {
    tar: tar::Builder<Vec<u8>>,
    at_s: u64,
    has: Vec<String>,
    left_out: Vec<String>,
}

impl BundleWriter {
    fn fill(&mut self, host: &str, named: Option<PathBuf>, config: Option<&Path>) -> io::Result<()> {
        let socket = named.map_or_else(|| socket::find(config), Ok);
        // Whatever the file says by now: the instance knows where it records.
        let named = socket.as_ref().ok().cloned();
        let running = socket.and_then(|socket| {
            let mut client = socket::connect_briefly(&socket)?;
            let status: serde_json::Value = client.ask(&Command::Status {})?;
            Ok((client, status))
        });
        // The file of the running process, which may be another than the default.
        let its_file = running.as_ref().ok().and_then(|(client, status)| {
            let path = status["instance"]["config"]["path"].as_str()?;
            Some((PathBuf::from(path), client.is_of_own_user()))
        });
        let file = match (config, its_file) {
            (Some(named), _) => Ok(named.to_owned()),
            (None, None) => Ok(PathBuf::from(socket::DEFAULT_CONFIG)),
            (None, Some((path, is_of_own_user))) if is_of_own_user || path == Path::new(socket::DEFAULT_CONFIG) => {
                Ok(path)
            }
            // Whoever has taken that process over could have root read any file.
            (None, Some((path, _))) => Err(path),
        };
        match running {
            Ok((mut client, status)) => {
                self.add("status.json", &serde_json::to_vec_pretty(&status)?)?;
                for (name, command) in
                    [(NODES, Command::Nodes {}), (PEERS, Command::Peers {}), ("vip.json", Command::Vip {})]
                {
                    match client.ask::<serde_json::Value>(&command) {
                        Ok(answer) => self.add(name, &serde_json::to_vec_pretty(&answer)?)?,
                        Err(error) => self.left_out.push(format!("{name}, because {error}")),
                    }
                }
                match LivingFlows::ask(&mut client) {
                    Ok(flows) => self.add(FLOWS, &serde_json::to_vec(&flows)?)?,
                    Err(error) => self.left_out.push(format!("{FLOWS}, because {error}")),
                }
            }
            Err(error) => self.left_out.push(format!("status.json, because {error}")),
        }
        match &file {
            Ok(file) => self.add_config(file)?,
            Err(path) => self.left_out.push(format!(
                "baton.toml and {OF_HOST}, because an instance of another user says that its file is {}: name it by -c",
                path.display()
            )),
        }
        let file = file.as_deref().ok();
        match recording::find(&RecordingFrom::default(), named, file).and_then(|source| source.files()) {
            Ok(files) if files.is_empty() => self.left_out.push(format!("{RECORDS}, because it has no file yet")),
            Ok(files) => {
                self.has.push(format!("{RECORDS} with {} files", files.len()));
                for (name, content) in files {
                    self.append(&format!("{RECORDS}/{name}"), &content)?;
                }
            }
            Err(error) => self.left_out.push(format!("{RECORDS}, because {error}")),
        }
        let (date, time) = date_and_time(self.at_s * 1000);
        let about = format!(
            "A bundle of host {host}, by Baton {}, {date} {time}Z.\nIt has {}.\n{}\nbaton explain --from FILE last\nbaton events --from FILE\nbaton nodes --from FILE\nbaton replay --from FILE\nbaton who --from FILE ADDRESS:PORT\n",
            env!("CARGO_PKG_VERSION"),
            self.has.join(", "),
            self.left_out.iter().map(|why| format!("Left out: {why}\n")).collect::<String>(),
        );
        self.append("about.txt", about.as_bytes())
    }

    /// The file, and the host that it is for.
    fn add_config(&mut self, file: &Path) -> io::Result<()> {
        let text = config::read_file(file).map_err(|fault| fault.to_string());
        match text.and_then(|bytes| without_secrets(&bytes)) {
            Ok(text) => self.add("baton.toml", text.as_bytes())?,
            Err(why) => self.left_out.push(format!("baton.toml, because {} is of no use: {why}", file.display())),
        }
        self.add(OF_HOST, check::host_in_words(file)?.as_bytes())
    }

    fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.has.push(name.to_owned());
        self.append(name, content)
    }

    fn append(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.at_s);
        self.tar.append_data(&mut header, name, content)
    }
}

/// The keys of the file without comments, and without what may be a secret: the file names files with keys, and the arguments of
/// `on_gain` and `on_loss` may be one.
fn without_secrets(file: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(file).map_err(|_| "it is not UTF-8".to_owned())?;
    // The error quotes a line.
    let mut table: Table =
        text.parse().map_err(|_: toml::de::Error| "it is no TOML; `baton check` names the line".to_owned())?;
    remove_secrets(&mut table);
    Ok(format!("# Without comments and without what may be a secret.\n{table}"))
}

fn remove_secrets(table: &mut Table) {
    table.iter_mut().for_each(|(key, value)| remove_secret(key, value));
}

fn remove_secret(key: &str, value: &mut Value) {
    let is_secret = ["key", "token", "secret", "password"].iter().any(|word| key.ends_with(word));
    match value {
        Value::Table(inner) => remove_secrets(inner),
        Value::Array(items) => {
            (0..).zip(items).for_each(|(place, item): (usize, _)| remove_secret(&format!("{key}[{place}]"), item));
        }
        // Somebody has written a key where the name of its file belongs.
        Value::String(text) if is_secret || (key.ends_with("_file") && is_key(text)) => *text = REMOVED.to_owned(),
        Value::String(text) => *text = shown_value(key, text).into_owned(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a bundle in which nothing was but the host's settings ended with exit code 0, and nobody looked again.
    #[test]
    fn a_bundle_of_no_instance_is_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let [bundle, socket, config] = ["ticket.tar", "admin.sock", "baton.toml"].map(|it| directory.path().join(it));
        let ran = |config: &Path| {
            let _ = std::fs::remove_file(&bundle);
            let arguments = BundleArguments { output: Some(bundle.clone()) };
            run(&arguments, Some(socket.clone()), Some(config), &Output::new(true))
        };
        let refused = ran(&config).unwrap_err().to_string();
        assert!(refused.contains("ticket.tar has nothing of an instance: neither"), "{refused}");
        assert!(bundle.exists(), "it says why");
        std::fs::write(&config, "[recorder]\nsize_mb = 0\n").unwrap();
        assert!(ran(&config).is_ok(), "the file alone may tell something");
    }

    /// Regression: what a file that is no bundle had in it was printed as the reason.
    #[test]
    fn a_file_that_is_no_bundle_or_a_part_of_one_is_said_to_be_that() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("some.tar");
        let asked = || RecordingFrom::named(path.clone()).part::<Value>(NODES).map_err(|error| error.to_string());
        std::fs::write(&path, "\u{1b}[2Jroot:x:0:0\n".repeat(100)).unwrap();
        let said = asked().unwrap_err();
        assert!(said.contains("is no bundle") && !said.contains('\u{1b}') && !said.contains('\n'), "{said}");
        assert!(said.len() < 300, "{said}");
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mtime(7);
        tar.append_data(&mut header, NODES, &b"42"[..]).unwrap();
        std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
        assert_eq!(asked(), Ok(Some((Value::Integer(42), 7000))));
        assert_eq!(RecordingFrom::named(path.clone()).part::<Value>(PEERS).unwrap(), None);
    }

    /// Regression: a command that was interrupted left half of a bundle under the name of a whole one.
    #[test]
    fn a_bundle_has_its_name_once_it_is_whole_and_takes_no_others_place() {
        let directory = tempfile::tempdir().unwrap();
        let [bundle, socket, config] = ["ticket.tar", "admin.sock", "baton.toml"].map(|it| directory.path().join(it));
        std::fs::write(&config, "[recorder]\nsize_mb = 0\n").unwrap();
        std::fs::write(&bundle, "another's").unwrap();
        let arguments = BundleArguments { output: Some(bundle.clone()) };
        let refused = run(&arguments, Some(socket), Some(&config), &Output::new(true)).unwrap_err().to_string();
        assert!(refused.contains("ticket.tar"), "{refused}");
        assert_eq!(std::fs::read_to_string(&bundle).unwrap(), "another's");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "and nothing else is left");
    }

    #[test]
    fn a_bundle_has_no_comment_and_no_secret_of_the_file() {
        let file = "# swordfish\n[peers]\nkey_file = \"peers.key\" # swordfish\nkey = \"swordfish\"\n[vip]\non_gain = [\"/bin/tell\", \"swordfish\"]\n\
                    [[frontend]]\nname = \"f\"\n[frontend.discover]\ntoken_file = \"/t\"\ntoken = \"swordfish\"\n";
        let said = without_secrets(file.as_bytes()).unwrap();
        assert!(!said.contains("swordfish"), "{said}");
        for kept in ["key_file = \"peers.key\"", "\"/bin/tell\"", "token_file = \"/t\"", "name = \"f\""] {
            assert!(said.contains(kept), "{kept}: {said}");
        }
        let pasted = format!("key_file = \"{}\"\n[health]\npath = \"/readyz?token=swordfish\"\n", "5a".repeat(32));
        let said = without_secrets(pasted.as_bytes()).unwrap();
        assert!(!said.contains("5a5a") && said.contains("\"/readyz?(removed)\""), "{said}");
        let fault = without_secrets(b"key = \"swordfish").unwrap_err();
        assert!(!fault.contains("swordfish"), "{fault}");
    }
}
