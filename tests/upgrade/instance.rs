//! Baton as a process, with a configuration of its own.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use baton::sys::clock::now_ns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const BINARY: &str = env!("CARGO_BIN_EXE_baton");
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A running instance, whichever process it is now. Dropping it kills all processes that it ever was.
pub struct Instance {
    pub directory: tempfile::TempDir,
    pub frontend: SocketAddr,
    first: Child,
}

impl Instance {
    /// Starts `baton run` before `backends`, and waits until it serves.
    pub fn start(backends: &[SocketAddr], workers: usize) -> Self {
        Self::start_with(backends, workers, &[])
    }

    pub fn start_with(backends: &[SocketAddr], workers: usize, environment: &[(&str, PathBuf)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let frontend = free_address();
        write_config(&config_path(&directory), directory.path(), frontend, backends, workers, "");
        let log = File::create(directory.path().join("log")).unwrap();
        let first = Command::new(BINARY)
            .args(["run", "-c"])
            .arg(config_path(&directory))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // A group of its own, so that whatever it becomes can be killed with it.
            .process_group(0)
            .spawn()
            .unwrap();
        let instance = Self { directory, frontend, first };
        wait_for("the instance to serve", || {
            instance.ask(&["status"]).is_some_and(|status| status.to_string().contains("\"ready\""))
                && TcpStream::connect(frontend).is_ok()
        });
        instance
    }

    pub fn config(&self) -> PathBuf {
        config_path(&self.directory)
    }

    pub fn configure(&self, backends: &[SocketAddr], workers: usize, extra: &str) {
        write_config(&self.config(), self.directory.path(), self.frontend, backends, workers, extra);
    }

    /// Runs a command against it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .arg("--socket")
            .arg(self.directory.path().join("admin.sock"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The JSON that a command prints, if it succeeds: of several documents, the last.
    pub fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        documents.map(Result::unwrap).last().filter(|_| output.status.success())
    }

    /// The process that answers at the admin socket.
    pub fn pid(&self) -> Option<u32> {
        Some(self.ask(&["version"])?["instance"]["pid"].as_u64()? as u32)
    }

    pub fn first_pid(&self) -> u32 {
        self.first.id()
    }

    /// Takes note of the end of the first process, so that it is no zombie.
    pub fn reap(&mut self) {
        let _ = self.first.try_wait();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.first.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.first.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().filter(|line| !line.contains("flow ended")).collect();
            eprintln!("the log:\n{}", lines.join("\n"));
        }
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

/// Whether the process runs (a zombie does not).
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Sockets that the process holds.
pub fn sockets_of(pid: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Looks until `done`, for as long as [`DEADLINE`].
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline_ns = now_ns() + DEADLINE.as_nanos() as u64;
    while !done() {
        assert!(now_ns() < deadline_ns, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Loopback addresses of this test process alone, so that no other test's client gets a port in between.
pub fn free_address() -> SocketAddr {
    let pid = std::process::id();
    let ip = Ipv4Addr::new(127, 77, (pid >> 8) as u8, pid as u8);
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

fn config_path(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("baton.toml")
}

fn write_config(
    path: &Path,
    directory: &Path,
    frontend: SocketAddr,
    backends: &[SocketAddr],
    workers: usize,
    extra: &str,
) {
    let backends: String = backends
        .iter()
        .enumerate()
        .map(|(number, address)| format!("\n[[frontend.backend]]\nname = \"b{number}\"\naddress = \"{address}\"\n"))
        .collect();
    let text = format!(
        "{extra}\n[path]\ngraduate = \"off\"\n[admin]\nhttp = \"\"\nsocket = \"{}/admin.sock\"\n[process]\nworkers = {workers}\n\
         [log]\nflows = \"errors\"\n[[frontend]]\nname = \"api\"\nlisten = [\"{frontend}\"]\n\
         [frontend.health]\nkind = \"tcp\"\n{backends}",
        directory.display()
    );
    // Written beside and moved, so that no half of it is ever read.
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}
