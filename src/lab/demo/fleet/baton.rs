//! Baton on a host of the fleet.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tokio::sync::watch;

use super::layout::VIP;
use crate::lab::demo::baton::status::DemoStatus;
use crate::lab::demo::guard::Guard;
use crate::lab::demo::process::BatonProcess;
use crate::lab::demo::space::NetSpace;

/// Baton on a host.
#[derive(Debug)]
pub(super) struct FleetBaton {
    program: PathBuf,
    config: PathBuf,
    pub socket: PathBuf,
    log: PathBuf,
    pub status: watch::Receiver<DemoStatus>,
    process: Option<BatonProcess>,
}

impl FleetBaton {
    /// Baton that does not run yet. Its files are `stem`.toml, `stem`.sock and `stem`.log.
    pub(super) fn new(program: PathBuf, stem: &Path, status: watch::Receiver<DemoStatus>) -> Self {
        Self {
            program,
            config: stem.with_extension("toml"),
            socket: stem.with_extension("sock"),
            log: stem.with_extension("log"),
            status,
            process: None,
        }
    }

    /// Starts `baton run` in the host's namespace.
    pub(super) fn start(&mut self, space: &NetSpace, guard: &mut Guard) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(["run", "-c"]).arg(&self.config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = space.inside(|| command.spawn())?;
        let _ = guard.take(&child);
        self.process = Some(BatonProcess::new(child));
        Ok(())
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// An upgrade has replaced the process by this one.
    pub(super) fn replaced_by(&mut self, pid: u32) {
        self.process.as_mut().map(|process| process.replaced_by(pid));
    }

    /// Whether its process has ended, and none has replaced it.
    pub(super) fn has_ended(&mut self, guard: &mut Guard) -> bool {
        let answers = self.status.borrow().instance.pid;
        self.process.as_mut().is_some_and(|process| process.ended(answers, guard).is_some())
    }

    pub(super) fn has_vip(&self) -> bool {
        self.status.borrow().instance.vips.contains(&VIP.into())
    }

    pub(super) fn last_words(&self) -> String {
        last_lines(&self.log)
    }
}

/// The end of a log.
pub(super) fn last_lines(log: &Path) -> String {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
