//! A limit for the memory of a process: a cgroup of a test's own, removed when dropped.

use std::path::{Path, PathBuf};

use super::namespace::name_of_process;
use super::network::skip;
use super::process::Process;

/// The files of one version of cgroups.
#[derive(Clone, Copy, Debug)]
struct Files {
    limit: &'static str,
    used: &'static str,
    /// With a line `oom_kill N`.
    events: &'static str,
}

const V2: Files = Files { limit: "memory.max", used: "memory.current", events: "memory.events" };
const V1: Files = Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", events: "memory.oom_control" };

#[derive(Debug)]
pub struct MemoryLimit {
    directory: PathBuf,
    files: Files,
}

impl MemoryLimit {
    /// Without a limit yet. `None` where this process may not make a cgroup that limits memory: `test` is then skipped.
    pub fn new(test: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let made = mounts.lines().find_map(Self::below_mount);
        if made.is_none() {
            skip(test, "no cgroup that limits memory can be made here");
        }
        made
    }

    /// `mount`: a line of proc(5) `/proc/self/mounts`.
    fn below_mount(mount: &str) -> Option<Self> {
        let fields: Vec<_> = mount.split(' ').collect();
        let (root, kind, options) = (Path::new(fields.get(1)?), *fields.get(2)?, *fields.get(3)?);
        let files = match kind {
            "cgroup2" => V2,
            "cgroup" if options.split(',').any(|it| it == "memory") => V1,
            _ => return None,
        };
        let directory = root.join(format!("{}-memory", name_of_process()));
        std::fs::create_dir(&directory).ok()?;
        let limit = Self { directory, files };
        // One of version 2 has no such file unless its parent gives it the controller.
        std::fs::write(limit.directory.join(files.limit), if kind == "cgroup2" { "max" } else { "-1" }).ok()?;
        Some(limit)
    }

    /// A command line that goes into it and becomes the command that follows.
    pub fn wrapper(&self) -> [String; 3] {
        let enter = format!("echo 0 >{}; exec \"$0\" \"$@\"", self.directory.join("cgroup.procs").display());
        ["sh".to_owned(), "-ec".to_owned(), enter]
    }

    /// From now on there are at most so many bytes more than now.
    #[track_caller]
    pub fn leave(&self, bytes: u64) {
        let used: u64 = self.read(self.files.used).trim().parse().expect("a number");
        std::fs::write(self.directory.join(self.files.limit), (used + bytes).to_string()).expect("a limit");
    }

    /// Processes that the kernel has killed for it.
    #[track_caller]
    pub fn kills(&self) -> u64 {
        let events = self.read(self.files.events);
        let line = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no oom_kill: {events}"))
    }

    /// Whether `process` is in it.
    pub fn has(&self, process: &Process) -> bool {
        let pid = process.pid().as_raw_nonzero().to_string();
        self.read("cgroup.procs").lines().any(|line| line == pid)
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.directory.join(file)).expect("a file of the cgroup")
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}
