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
use crate::lab::demo::process::{Reaper, UpgradedProcess};
use crate::lab::demo::space::NetSpace;

/// Baton on a host.
#[derive(Debug)]
pub(super) struct FleetBaton {
    program: PathBuf,
    config: PathBuf,
    pub socket: PathBuf,
    log: PathBuf,
    pub status: watch::Receiver<DemoStatus>,
    child: Option<Reaper>,
    /// The process that replaced the child in an upgrade.
    successor: Option<UpgradedProcess>,
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
            child: None,
            successor: None,
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
        self.child = Some(Reaper(child));
        Ok(())
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        self.successor = None;
        self.child = None;
    }

    /// An upgrade has replaced the process by this one.
    pub(super) fn replaced_by(&mut self, pid: u32) {
        self.successor = UpgradedProcess::open(pid).ok();
    }

    /// Whether its process has ended, and none has replaced it.
    pub(super) fn has_ended(&mut self) -> bool {
        let ended = self.child.as_mut().is_some_and(|child| matches!(child.0.try_wait(), Ok(Some(_))));
        ended && self.successor.is_none()
    }

    pub(super) fn has_vip(&self) -> bool {
        self.status.borrow().instance.vips.contains(&VIP.into())
    }

    pub(super) fn last_words(&self) -> String {
        last_lines(&self.log)
    }
}

impl Drop for FleetBaton {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of a log.
pub(super) fn last_lines(log: &Path) -> String {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
