//! A small process that outlives the demo by a moment: when the demo is gone, for any reason, it kills the demo's
//! processes and removes its directory and its network namespaces. A destructor alone cannot do that, because none runs
//! after SIGKILL.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::space;
use crate::sys::process::ProcessHandle;

/// The demo's end of the guard.
#[derive(Debug)]
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Starts `program demo --guard dir`.
    pub(crate) fn start(program: &Path, dir: &Path) -> io::Result<Self> {
        let process = Command::new(program)
            .args([OsStr::new("demo"), OsStr::new("--guard"), dir.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process })
    }

    /// Has `child` killed when the demo is gone.
    pub(crate) fn take(&mut self, child: &Child) -> io::Result<()> {
        self.take_process(child.id())
    }

    /// The same for a process that is no child.
    pub(crate) fn take_process(&mut self, pid: u32) -> io::Result<()> {
        match &mut self.process.stdin {
            Some(pipe) => writeln!(pipe, "{pid}"),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The guard waits for end of file.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs `baton demo --guard DIR`: reads process ids, one a line, until the demo is gone; then cleans up after it.
pub(super) fn run(dir: &Path) -> ExitCode {
    let demo = parent_id();
    // A handle instead of the number, which another process may have by then.
    let processes: Vec<ProcessHandle> = io::stdin()
        .lock()
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| ProcessHandle::open(line.trim().parse().ok()?).ok())
        .collect();
    for process in &processes {
        // Most of them have ended.
        let _ = process.kill();
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if name.starts_with(DIR_PREFIX) {
        if let Ok(program) = std::env::current_exe() {
            space::clear(&name, &program);
            // A demo that was killed has not waited for the command that was making a namespace.
            let was_killed = parent_id() != demo;
            for _ in 0..if was_killed { CLEARS } else { 0 } {
                sleep(CLEAR_EVERY);
                space::clear(&name, &program);
            }
        }
        let _ = std::fs::remove_dir_all(dir);
    }
    ExitCode::SUCCESS
}

/// The prefix of a demo's directory. No other directory is ever removed.
pub(super) const DIR_PREFIX: &str = "baton-demo-";
const CLEARS: u32 = 10;
const CLEAR_EVERY: Duration = Duration::from_millis(300);
