//! Baton as a process, with a configuration of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use baton::sys::clock::now_ns;
use baton::sys::process::ProcessHandle;
use baton::upgrade::source::SourceStep;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const BINARY: &str = env!("CARGO_BIN_EXE_baton");
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A running instance, whichever process it is now. Dropping it kills all processes that it ever was.
pub struct Instance {
    pub directory: tempfile::TempDir,
    pub frontend: SocketAddr,
    first: Child,
    /// Kills the group when its standard input ends: also if this test is killed.
    guard: Child,
}

impl Instance {
    /// Starts `baton run` before `backends`, and waits until it serves.
    pub fn start(backends: &[SocketAddr], workers: usize) -> Self {
        Self::start_with(backends, workers, "", &[])
    }

    /// With more settings of its frontend.
    pub fn start_as(backends: &[SocketAddr], workers: usize, frontend: &str) -> Self {
        Self::start_with(backends, workers, frontend, &[])
    }

    pub fn start_with(
        backends: &[SocketAddr],
        workers: usize,
        settings: &str,
        environment: &[(&str, PathBuf)],
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let frontend = free_address();
        write_config(&config_path(&directory), directory.path(), frontend, backends, workers, settings);
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
        let guard = Command::new("sh")
            .args(["-c", "read -r line; kill -s KILL -- -$0", &first.id().to_string()])
            .process_group(0)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let instance = Self { directory, frontend, first, guard };
        wait_for("the instance to serve", || {
            instance.ask(&["status"]).is_some_and(|status| status.to_string().contains("\"ready\""))
                && TcpStream::connect(frontend).is_ok()
        });
        wait_for("the first connections to end", || {
            let status = instance.ask(&["status"]).unwrap_or_default();
            status["totals"]["flows"].as_object().is_some_and(|flows| flows.values().all(|count| *count == 0))
        });
        instance
    }

    pub fn config(&self) -> PathBuf {
        config_path(&self.directory)
    }

    pub fn configure(&self, backends: &[SocketAddr], workers: usize, settings: &str) {
        write_config(&self.config(), self.directory.path(), self.frontend, backends, workers, settings);
    }

    /// Runs a command against it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.start_command(arguments).wait_with_output().unwrap()
    }

    /// Starts a command against it.
    pub fn start_command(&self, arguments: &[&str]) -> Child {
        Command::new(BINARY)
            .arg("--socket")
            .arg(self.directory.path().join("admin.sock"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The JSON that a command prints, if it succeeds: of several documents, the last.
    pub fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        documents.map(Result::unwrap).last().filter(|_| output.status.success())
    }

    /// Replaces it; panics if that fails. Returns once the old process has ended.
    pub fn upgrade(&mut self) -> Upgrade {
        self.upgrade_with(&[])
    }

    pub fn upgrade_with(&mut self, arguments: &[&str]) -> Upgrade {
        let old = ProcessHandle::open(self.pid().unwrap()).unwrap();
        let mut asking = self.start_command(&[&["--json", "upgrade"], arguments].concat());
        // On a machine that has much else to do thousands of flows take their time.
        let ended = std::thread::spawn(move || old.ends_within(4 * DEADLINE).then(now_ns));
        let (mut text, mut last_step_ns) = (String::new(), 0);
        for line in BufReader::new(asking.stdout.take().unwrap()).lines().map(Result::unwrap) {
            if line.contains(SourceStep::Finished.label()) {
                last_step_ns = now_ns();
            }
            text += &line;
            text.push('\n');
        }
        assert!(asking.wait().unwrap().success(), "no upgrade: {text}\n{}", self.log());
        let ended_ns = ended.join().unwrap().expect("the old process ends");
        self.reap();
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let result = documents.map(Result::unwrap).last().unwrap();
        assert!(last_step_ns > 0, "no last step was shown: {text}");
        Upgrade { result, gone_after: Duration::from_nanos(ended_ns.saturating_sub(last_step_ns)) }
    }

    /// The process that answers at the admin socket.
    pub fn pid(&self) -> Option<u32> {
        Some(self.ask(&["version"])?["instance"]["pid"].as_u64()? as u32)
    }

    pub fn first_pid(&self) -> u32 {
        self.first.id()
    }

    /// Sockets that listen for its clients.
    pub fn listening_sockets(&self) -> usize {
        let SocketAddr::V4(frontend) = self.frontend else { panic!("only IPv4 is looked for") };
        let local = format!("{:08X}:{:04X}", u32::from(*frontend.ip()).swap_bytes(), frontend.port());
        let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let listens = |words: &[&str]| words.get(1) == Some(&&*local) && words.get(3) == Some(&"0A");
        text.lines().filter(|line| listens(&line.split_whitespace().collect::<Vec<_>>())).count()
    }

    /// Takes note of the end of the first process, so that it is no zombie.
    pub fn reap(&mut self) {
        let _ = self.first.try_wait();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// How an upgrade went.
pub struct Upgrade {
    /// What `baton upgrade` said.
    pub result: Value,
    /// From before the last acknowledgement to the end of the old process.
    pub gone_after: Duration,
}

impl Drop for Instance {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        let _ = self.first.wait();
        if std::thread::panicking() {
            let log = self.log();
            let (ended, lines): (Vec<_>, Vec<_>) = log.lines().partition(|line| line.contains("bytes_to_client"));
            eprintln!("the log:\n{}", lines.join("\n"));
            eprintln!("the first of {} flows that did not end in the ordinary way:", ended.len());
            ended.iter().take(10).for_each(|line| eprintln!("{line}"));
        }
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
}

/// Whether the process runs. While its first thread is a zombie, others may still have its sockets.
pub fn lives(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// Whether no thread of the process runs any more, after SIGSTOP.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

/// The sockets of flows that the process has, by their inodes.
pub fn flow_sockets_of(pid: u32) -> BTreeSet<u64> {
    let inodes = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        let established = text.lines().skip(1).filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            // A listener is in state 0A.
            (words.get(3)? != &"0A").then(|| words.get(9)?.parse::<u64>().ok())?
        });
        established.collect::<BTreeSet<_>>()
    };
    let flows: BTreeSet<_> = inodes("tcp").union(&inodes("tcp6")).copied().collect();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return BTreeSet::new() };
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets = links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
    sockets.filter(|inode| flows.contains(inode)).collect()
}

/// How many descriptors of each kind the process holds.
pub fn descriptors_of(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return kinds };
    for link in entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
        // "socket:[4711]", "anon_inode:[eventpoll]", or a path.
        let name = link.to_string_lossy();
        let kind = name.split_once(":[").filter(|(kind, _)| *kind != "anon_inode").map_or(&*name, |(kind, _)| kind);
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

/// Looks until `done`, for as long as [`DEADLINE`].
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline_ns = now_ns() + DEADLINE.as_nanos() as u64;
    while !done() {
        assert!(now_ns() < deadline_ns, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A loopback address that no other call of this test process or of another one gets, so that neither an instance that
/// starts at the same time nor a client can get the port in between.
pub fn free_address() -> SocketAddr {
    static ASKED: AtomicU8 = AtomicU8::new(0);
    let pid = std::process::id();
    let ip = Ipv4Addr::new(127, 64 + ASKED.fetch_add(1, Relaxed) % 128, (pid >> 8) as u8, pid as u8);
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
    settings: &str,
) {
    // Written beside and moved, so that no half of it is ever read.
    let beside = path.with_extension("new");
    std::fs::write(&beside, text_of(directory, frontend, backends, workers, settings)).unwrap();
    std::fs::rename(beside, path).unwrap();
}

/// A file for `instance` that it does not know yet.
pub fn config_text(instance: &Instance, backends: &[SocketAddr], workers: usize, settings: &str) -> String {
    text_of(instance.directory.path(), instance.frontend, backends, workers, settings)
}

pub fn text_of(
    directory: &Path,
    frontend: SocketAddr,
    backends: &[SocketAddr],
    workers: usize,
    settings: &str,
) -> String {
    let backends: String = backends
        .iter()
        .enumerate()
        .map(|(number, address)| format!("\n[[frontend.backend]]\nname = \"b{number}\"\naddress = \"{address}\"\n"))
        .collect();
    format!(
        "[offload]\nmode = \"off\"\npins = \"/sys/fs/bpf/baton-of-no-test\"\n[admin]\nhttp = \"\"\nsocket = \"{}/admin.sock\"\n[process]\nworkers = {workers}\n\
         [log]\nflows = \"errors\"\n[[frontend]]\nname = \"api\"\nlisten = [\"{frontend}\"]\n\
         {settings}\n\
         [frontend.health]\nkind = \"tcp\"\n{backends}",
        directory.display()
    )
}
