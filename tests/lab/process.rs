//! A process in a namespace that cannot outlive its test.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::LONG;
use super::namespace::{Namespace, feed};
use super::wait::{eventually, patient};

/// A running process. Dropped, it is killed, also when it is stopped by SIGSTOP.
///
/// A keeper thread starts it and waits for it: the kernel kills a child when the *thread* that started it ends
/// (PR_SET_PDEATHSIG, prctl(2)), so that thread must live as long as the process.
#[derive(Debug)]
pub struct Process {
    pub log: PathBuf,
    pid: Pid,
    pidfd: OwnedFd,
    ended: Arc<Ended>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Ended {
    status: Mutex<Option<ExitStatus>>,
    changed: Condvar,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    #[track_caller]
    pub fn spawn(namespace: &Arc<Namespace>, command: &[&str], log: &Path) -> Self {
        let output = OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        let mut command = with_death_signal(command, output);
        let ended = Arc::new(Ended::default());
        let (started, starts) = mpsc::channel();
        let keeper = std::thread::spawn({
            let (namespace, ended) = (namespace.clone(), ended.clone());
            move || {
                namespace.enter();
                let mut child = match command.spawn() {
                    Ok(child) => child,
                    Err(error) => return drop(started.send(Err(format!("{command:?}: {error}")))),
                };
                let pid = Pid::from_child(&child);
                // Before the first wait, so that the number cannot have been given to another process.
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| format!("pidfd_open: {error}"));
                let _ = started.send(pidfd.map(|pidfd| (pid, pidfd)));
                let status = child.wait().expect("nobody else waits for it");
                *ended.status.lock().unwrap() = Some(status);
                ended.changed.notify_all();
            }
        });
        let (pid, pidfd) = starts.recv().expect("the keeper answers").unwrap_or_else(|error| panic!("{error}"));
        Self { log: log.to_owned(), pid, pidfd, ended, keeper: Some(keeper) }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal; nothing happens if it has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// SIGKILL, and waits until the kernel has closed everything it had.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait(LONG);
    }

    /// SIGSTOP, and waits until every thread of it hangs. Its kernel goes on.
    #[track_caller]
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let hangs = |task: PathBuf| {
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        eventually(LONG, "the process hangs", || {
            std::fs::read_dir(self.proc("task")).into_iter().flatten().flatten().all(|task| hangs(task.path()))
        });
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.status.lock().unwrap()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&self, deadline: Duration) -> ExitStatus {
        let deadline = patient(deadline);
        let status = self.ended.status.lock().unwrap();
        let (status, _) = self.ended.changed.wait_timeout_while(status, deadline, |status| status.is_none()).unwrap();
        status.unwrap_or_else(|| panic!("process {} still runs after {deadline:?}", self.pid.as_raw_nonzero()))
    }

    /// Open file descriptors; 0 once it has ended.
    pub fn fds(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).map_or(0, |entries| entries.count())
    }

    pub fn threads(&self) -> usize {
        std::fs::read_dir(self.proc("task")).map_or(0, Iterator::count)
    }

    /// What its file descriptors are, for messages.
    pub fn fd_list(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.proc("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string())).collect()
    }

    /// Resident memory in KiB, from proc(5) status.
    pub fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(self.proc("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("it runs")
    }

    /// CPU time used so far, user and system, all threads.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(self.proc("task")).into_iter().flatten().flatten();
        let of_task = |path: PathBuf| -> Option<u64> {
            std::fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
        };
        Duration::from_nanos(tasks.filter_map(|task| of_task(task.path())).sum())
    }

    /// Sets the soft limit of open files.
    pub fn limit_files(&self, soft: u64) {
        let pid = self.pid.as_raw_nonzero().to_string();
        feed(Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]), "");
    }

    /// The last lines that it wrote.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log_text();
        let all: Vec<_> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    pub fn log_text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.pid.as_raw_nonzero()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// setpriv(1) asks for the signal and becomes the command: the safe way to a prctl between fork and exec.
fn with_death_signal(command: &[&str], output: File) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL", "--"]).args(command);
    let errors = output.try_clone().expect("a second handle of the log file");
    wrapped.stdin(Stdio::null()).stdout(output).stderr(errors);
    wrapped
}

/// A process that a process of the test has started, as an upgrade does. Dropped, it is killed.
#[derive(Debug)]
pub struct Stranger(Pid);

impl Stranger {
    #[track_caller]
    pub fn new(pid: i64) -> Self {
        Self(i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process"))
    }

    /// Kills it, and waits until everything that it held is free, even if its parent has not waited for it yet
    /// (proc_pid_stat(5)).
    #[track_caller]
    pub fn kill(&self) {
        rustix::process::kill_process(self.0, Signal::KILL).expect("it runs");
        let directory = format!("/proc/{}", self.0.as_raw_nonzero());
        let stat = || std::fs::read_to_string(format!("{directory}/stat"));
        // The first thread may be dead while another one waits for the disk, and holds all that is open.
        let threads = || std::fs::read_dir(format!("{directory}/task")).map_or(0, Iterator::count);
        let is_dead =
            || stat().map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])));
        eventually(LONG, "it is dead", || is_dead() && threads() <= 1);
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::KILL);
    }
}
