//! Network namespaces for the hosts of a demo, and their removal.
//!
//! The name of a namespace begins with the name of the demo's directory, which contains the demo's process id. The BPF
//! programs of a host are pinned under the same name. So the guard, and the next demo, find what a killed demo has left.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::offload::pins_lock::PinsLock;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SpaceError {
    #[error("running {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("{program}: {said}")]
    Failed { program: String, said: String },
    #[error("the network namespace {name}: {source}")]
    Enter { name: String, source: io::Error },
    #[error("setting {path} to {value} in {name}: {source}")]
    Set { name: String, path: String, value: String, source: io::Error },
}

/// A named network namespace. Clones are the same one; [`clear`] removes it.
#[derive(Clone, Debug)]
pub struct NetSpace {
    name: String,
    file: Arc<File>,
}

impl NetSpace {
    /// Makes it, with its loopback interface up.
    pub(super) fn make(name: String) -> Result<Self, SpaceError> {
        feed(Command::new("ip").args(["netns", "add", &name]), "")?;
        let file = File::open(Path::new(SPACES).join(&name));
        let file = file.map_err(|source| SpaceError::Enter { name: name.clone(), source })?;
        let space = Self { name, file: Arc::new(file) };
        space.ip("link set lo up\n")?;
        Ok(space)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The directory for the BPF programs of this host.
    pub(super) fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.name)
    }

    /// Moves the calling thread into the namespace: its later sockets and children are of the namespace.
    pub(super) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs `work` on a thread in the namespace and waits for it.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| {
                self.enter()?;
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs lines of ip(8) in the namespace.
    pub(super) fn ip(&self, lines: &str) -> Result<(), SpaceError> {
        feed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines)
    }

    /// Loads rules of nft(8) in the namespace.
    pub(super) fn nft(&self, rules: &str) -> Result<(), SpaceError> {
        let loaded = self.inside(|| Ok(feed(Command::new("nft").args(["-f", "-"]), rules)));
        loaded.map_err(|source| SpaceError::Enter { name: self.name.clone(), source })?
    }

    /// Sets a kernel parameter by its name, such as `net.ipv4.tcp_retries2`.
    pub(super) fn set(&self, parameter: &str, value: &str) -> Result<(), SpaceError> {
        let path = format!("/proc/sys/{}", parameter.replace('.', "/"));
        let written = self.inside(|| std::fs::write(&path, value));
        let name = self.name.clone();
        written.map_err(|source| SpaceError::Set { name, path, value: value.to_owned(), source })
    }
}

/// Runs `command` with `input`.
fn feed(command: &mut Command, input: &str) -> Result<(), SpaceError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let run = |source| SpaceError::Run { program: program.clone(), source };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that fails early closes its input, and its output says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(run)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(SpaceError::Failed { program, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() }),
    }
}

/// Kills the processes in the namespaces of `demo`, and removes its namespaces and its BPF programs. `program`: the
/// `baton` binary.
pub(super) fn clear(demo: &str, program: &Path) {
    let prefix = format!("{demo}-");
    for name in names(SPACES).filter(|name| name.starts_with(&prefix)) {
        kill_inside(&Path::new(SPACES).join(&name));
        if let Ok(file) = File::open(Path::new(SPACES).join(&name)) {
            let space = NetSpace { name: name.clone(), file: Arc::new(file) };
            if space.pins().exists() {
                let _ = space.inside(|| unpin(program, &space.pins()));
            }
        }
        let _ = Command::new("ip").args(["netns", "delete", &name]).stderr(Stdio::null()).status();
    }
    for name in names(PINS).filter(|name| name.starts_with(&prefix)) {
        let _ = unpin(program, &Path::new(PINS).join(name));
    }
    // Each instance had one, beside its pins.
    let lock = PinsLock::path(&Path::new(PINS).join(demo));
    let (Some(locks), Some(stem)) = (lock.parent(), lock.file_stem()) else { return };
    let prefix = format!("{}-", stem.to_string_lossy());
    for name in names(&locks.to_string_lossy()).filter(|name| name.starts_with(&prefix)) {
        let _ = std::fs::remove_file(locks.join(name));
    }
}

/// Clears after demos whose processes are gone.
pub(super) fn sweep(prefix: &str, program: &Path) {
    let demo_of = |name: &str| {
        let pid: u32 = name.strip_prefix(prefix)?.split('-').next()?.parse().ok()?;
        (!Path::new(&format!("/proc/{pid}")).exists()).then(|| format!("{prefix}{pid}"))
    };
    let gone: std::collections::BTreeSet<String> =
        names(SPACES).chain(names(PINS)).filter_map(|name| demo_of(&name)).collect();
    gone.iter().for_each(|demo| clear(demo, program));
}

/// Removes the program and the maps in `pins`, and the program that shares ports in the namespace of this thread.
fn unpin(program: &Path, pins: &Path) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(["offload", "--pins"]).arg(pins).args(["remove", "--yes"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
}

/// Also a process that no process of the demo has started by itself, such as the new one of an upgrade.
fn kill_inside(space: &Path) {
    let of = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    let Some(wanted) = of(space) else { return };
    for pid in names("/proc").filter_map(|name| name.parse().ok()) {
        if of(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(wanted)
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn names(directory: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

/// ip(8) keeps the names of namespaces in it.
const SPACES: &str = "/run/netns";
const PINS: &str = "/sys/fs/bpf";
