//! Network namespaces with names that say who made them.
//!
//! A name is `bt-PID-NUMBER-HOST`: no two running processes share one, and the PID shows what a dead process has left.
//! No interface name contains it, so IFNAMSIZ does not matter.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "bt-";

/// A named network namespace, deleted when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

/// Why there is no namespace: the test cannot run here.
#[derive(Debug)]
pub struct NoNamespace(pub String);

impl Namespace {
    /// Makes a namespace for `host` of the lab with this number. The loopback interface is up.
    pub fn new(lab: u32, host: &str) -> Result<Self, NoNamespace> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let name = format!("{}-{lab}-{host}", name_of_process());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        let made = made.map_err(|error| NoNamespace(format!("ip netns: {error}")))?;
        if !made.status.success() {
            return Err(NoNamespace(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
        }
        let file =
            File::open(format!("{DIRECTORY}/{name}")).map_err(|error| NoNamespace(format!("{name}: {error}")))?;
        let namespace = Self { name, file };
        namespace.ip("link set lo up\n");
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread here: sockets it makes and processes it starts from now on are this namespace's.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|error| panic!("entering {}: {error}", self.name));
    }

    /// Runs lines of ip(8) in here.
    #[track_caller]
    pub fn ip(&self, lines: &str) {
        feed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), lines);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        delete(&self.name);
    }
}

/// Runs `command` with `input`; panics with its output if it fails.
#[track_caller]
pub fn feed(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A command that fails early closes its input; its output says why.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it was started");
    assert!(output.status.success(), "{command:?}\n{input}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The prefix of the names of everything that this process makes.
pub fn name_of_process() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// Deletes the namespaces and the temporary directories of test processes that are gone.
fn sweep() {
    left_behind(Path::new(DIRECTORY)).for_each(|name| delete(&name));
    let temporary = std::env::temp_dir();
    for name in left_behind(&temporary) {
        let _ = std::fs::remove_dir_all(temporary.join(name));
    }
}

fn left_behind(directory: &Path) -> impl Iterator<Item = String> {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
}

/// Best effort: another test process may be sweeping the same one. A process that outlived its test, such as the new one of an
/// upgrade that failed half way, would keep the namespace and its own share of a core.
fn delete(name: &str) {
    let inside = Command::new("ip").args(["netns", "pids", name]).stderr(Stdio::null()).output();
    let inside = inside.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in inside.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // A test may have moved its own threads there.
        if pid != std::process::id() as i32
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
}
