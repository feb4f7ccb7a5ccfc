//! Limits, capabilities and processes.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, getppid, getrlimit, kill_process, setrlimit};
use rustix::process::{pidfd_open, pidfd_send_signal};

use super::clock::now_ns;
use super::fd_passing;

/// Descriptors that Baton keeps for other uses than flows: listeners, probes, admin sockets, maps, pipes.
pub(crate) const RESERVED_FILES: u64 = 512;
/// Baton does not start with fewer descriptors: it would reset nearly every client.
pub(crate) const FILES_MIN: u64 = 2 * RESERVED_FILES;
/// A proxied flow has one for the client's socket, and one for the backend's.
pub(crate) const FILES_PER_FLOW: u64 = 2;

/// Raises the soft limit of file descriptors to the hard limit and returns it.
pub fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    file_limit()
}

/// The soft limit of file descriptors now.
pub(crate) fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The hard limit of file descriptors.
pub(crate) fn file_limit_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Whether this process may use capability `number` now (capabilities(7), `CapEff` of proc(5) status).
pub(crate) fn holds_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    held.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|held| held & 1 << number != 0)
}

/// Whether a process of this name runs in this network namespace (proc(5): comm, stat and ns/net). A process that this
/// one may not look into counts, so that without rights none is taken for ended; a zombie does not count.
pub(crate) fn runs_any(name: &str) -> bool {
    !arguments_of(name).is_empty()
}

/// The command lines of all processes that [`runs_any`] would find.
pub(crate) fn arguments_of(name: &str) -> Vec<Vec<String>> {
    let own = std::fs::read_link("/proc/thread-self/ns/net").ok();
    let found = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(|entry| {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("comm").trim_end() != name {
            return false;
        }
        // The state follows the name, which is in brackets and may itself contain brackets.
        let stat = read("stat");
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        !state.starts_with(['Z', 'X'])
            && match std::fs::read_link(entry.path().join("ns/net")) {
                Ok(there) => own.as_ref() == Some(&there),
                Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
            }
    });
    let arguments = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    found.map(arguments).collect()
}

/// A process, as proc(5) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub pid: u32,
    /// Its `comm`: at most 15 bytes of its program's name.
    pub name: String,
}

/// A process that has the socket with this inode. `None`: Baton may look into no such process.
pub(crate) fn holder(inode: u32) -> Option<Holder> {
    let link = std::path::PathBuf::from(format!("socket:[{inode}]"));
    let has_it = |entry: &std::fs::DirEntry| {
        let files = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|found| found == link))
    };
    let mut all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        has_it(&entry).then(|| Holder { pid, name: name.trim_end().to_owned() })
    })
}

/// Lets nobody but root read this process's memory, and the kernel write none of it to a core dump (PR_SET_DUMPABLE of prctl(2)).
pub(crate) fn keep_memory_private() {
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Ignores SIGHUP, SIGINT, SIGTERM and SIGUSR2, for a process that ends with another one.
pub(crate) fn ignore_stops() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGUSR2] {
        // SAFETY: no handler runs; the kernel drops the signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Number of cores that the process may run on.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The process that has started this one. `None`: it has ended, and another one is the parent now.
pub(crate) fn parent() -> io::Result<Option<ProcessHandle>> {
    let first = getppid();
    let Some(pid) = first else { return Err(io::ErrorKind::NotFound.into()) };
    let parent = pidfd_open(pid, PidfdFlags::empty())?;
    // Before that, its number may have become another's.
    Ok((getppid() == first).then_some(ProcessHandle(parent)))
}

/// Sends a signal. It is no error if the process has ended.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// A process, independent of later reuse of its number (pidfd_open(2)).
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Whether it has ended, or ends within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let until_ns = now_ns() + limit.as_nanos() as u64;
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
            match fd_passing::wait_readable(&self.0, left) {
                Ok(true) => return true,
                // A signal may have ended the wait before its time.
                Ok(false) if !left.is_zero() => {}
                _ => return false,
            }
        }
    }

    /// It is an error if the process has ended and its parent has waited for it.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Sends SIGKILL, as [`Self::signal`].
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that another process has opened for this one.
impl From<OwnedFd> for ProcessHandle {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<ProcessHandle> for OwnedFd {
    fn from(handle: ProcessHandle) -> Self {
        handle.0
    }
}
