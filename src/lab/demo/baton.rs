//! Baton as the demo's child: started with a generated configuration, and operated as a user would do it.

pub(super) mod status;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use super::guard::Guard;
use super::process::{BatonProcess, StandInProcess};
use crate::addr::VipAddr;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoStartError {
    #[error("writing {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("starting Baton: {0}")]
    Spawn(#[source] io::Error),
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoOrderError {
    #[error("starting baton {verb}: {source}")]
    Spawn { verb: &'static str, source: io::Error },
    #[error("baton {verb}: no answer within {} s", ORDER_TIMEOUT.as_secs())]
    TimedOut { verb: &'static str },
    #[error("baton {verb}: {said}")]
    Refused { verb: &'static str, said: String },
}

/// The paths of the demo.
#[derive(Clone, Debug)]
pub(super) struct DemoPlaces {
    /// The `baton` binary.
    pub program: PathBuf,
    pub frontend: VipAddr,
    pub http: SocketAddr,
    pub socket: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
}

/// A running Baton. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Baton {
    process: BatonProcess,
    places: DemoPlaces,
}

impl Baton {
    /// Writes the configuration and starts `baton run -c` on it.
    pub(super) fn start(
        places: DemoPlaces,
        ca: &Path,
        stand_ins: &[StandInProcess],
        guard: &mut Guard,
    ) -> Result<Self, DemoStartError> {
        let writing = |path: &Path| {
            let path = path.to_owned();
            |source| DemoStartError::Write { path, source }
        };
        std::fs::write(&places.config, configuration(&places, ca, stand_ins)).map_err(writing(&places.config))?;
        let log = File::create(&places.log).map_err(writing(&places.log))?;
        let child = Command::new(&places.program)
            .args(["run", "-c"])
            .arg(&places.config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(DemoStartError::Spawn)?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(DemoStartError::Spawn)?;
        let _ = guard.take(&child);
        Ok(Self { process: BatonProcess::new(child), places })
    }

    pub(super) fn places(&self) -> &DemoPlaces {
        &self.places
    }

    /// See [`BatonProcess::ended`].
    pub(super) fn ended(&mut self, answers: u32, guard: &mut Guard) -> Option<ExitStatus> {
        self.process.ended(answers, guard)
    }

    /// The end of its log, for a failure.
    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.places.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS_LINES)..].join("\n")
    }

    /// SIGTERM, then up to `limit` for it to end by itself.
    pub(super) async fn stop(mut self, limit: Duration) {
        self.process.terminate();
        let ended = async {
            while self.process.runs() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(limit, ended).await;
    }

    /// Runs `baton --socket PATH drain|undrain BACKEND`, as an operator does.
    pub(super) async fn order(&self, verb: &'static str, backend: &str) -> Result<(), DemoOrderError> {
        let run = tokio::process::Command::new(&self.places.program)
            .arg("--socket")
            .arg(&self.places.socket)
            .args([verb, backend])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(ORDER_TIMEOUT, run)
            .await
            .map_err(|_| DemoOrderError::TimedOut { verb })?
            .map_err(|source| DemoOrderError::Spawn { verb, source })?;
        if output.status.success() {
            return Ok(());
        }
        Err(DemoOrderError::Refused { verb, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
    }
}

/// The configuration file: that of docs/install.md, with a short drain.
fn configuration(places: &DemoPlaces, ca: &Path, stand_ins: &[StandInProcess]) -> String {
    let backends: String = stand_ins
        .iter()
        .map(|stand_in| {
            format!("\n[[frontend.backend]]\nname = \"{}\"\naddress = \"{}\"\n", stand_in.name(), stand_in.address())
        })
        .collect();
    let text = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    format!(
        r#"[offload]
mode = "off"

[recorder]
size_mb = 0

[admin]
http = "{http}"
socket = {socket}

[[frontend]]
name = "apiserver"
listen = ["{frontend}"]
balance = "least_conn"
drain_timeout = "{drain_s}s"

[frontend.health]
kind = "https"
path = "/readyz"
interval = "1s"
fast_interval = "250ms"
timeout = "500ms"
rise = 2
fall = 2
ca_file = {ca}
{backends}"#,
        http = places.http,
        socket = text(&places.socket),
        frontend = places.frontend,
        drain_s = DRAIN_TIMEOUT.as_secs(),
        ca = text(ca),
    )
}

/// The demo's drain timer.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const ORDER_TIMEOUT: Duration = Duration::from_secs(5);
const LAST_WORDS_LINES: usize = 12;
