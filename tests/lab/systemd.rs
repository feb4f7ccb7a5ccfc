//! systemd as PID 1 of a container on a host of the lab, with one unit of deploy/ as it is shipped: the machine's own files below an
//! overlay, a PID namespace and a cgroup of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;

use super::baton::BINARY;
use super::host::Host;
use super::network::{Lab, skip};
use super::process::Process;
use super::wait::{eventually, eventually_some};
use super::{LONG, secs};

const MANAGER: &str = "/lib/systemd/systemd";

/// Before a command that runs inside: the PATH of the tests leads to a place that is not there.
pub const OWN_PATH: [&str; 2] = ["/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"];

/// Makes the container and becomes its PID 1: `$1` a directory of the test's, `$2` the binary, `$3` a name for the cgroup.
const BEGIN: &str = r#"
mount --make-rprivate /
ip link set lo up
cd "$1"
mkdir root over cgroups
mount -t cgroup2 cgroup2 cgroups
mkdir "cgroups/$3"
echo 0 >"cgroups/$3/cgroup.procs"
mount -t tmpfs tmpfs over
mkdir over/upper over/work
mount -t overlay overlay -o "lowerdir=/,upperdir=$PWD/over/upper,workdir=$PWD/over/work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
touch manager.log
mount --bind manager.log root/dev/kmsg
mount -t sysfs sysfs root/sys
mount -t bpf bpf root/sys/fs/bpf
mount -t tmpfs tmpfs root/run
mount -t tmpfs tmpfs root/tmp
# What an instance on the machine itself has left there cannot be moved out of an overlay's lower layer.
rm -rf root/var/lib/baton
mkdir -p root/etc/baton root/run/units
cp -r units/* root/run/units
touch baton.log root/run/baton.log
mount --bind baton.log root/run/baton.log
cp baton.toml root/etc/baton
touch root/usr/bin/baton
mount --bind "$2" root/usr/bin/baton
exec unshare --cgroup sh -euc '
mount -t cgroup2 cgroup2 root/sys/fs/cgroup
exec chroot root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=baton SYSTEMD_UNIT_PATH=/run/units \
    /lib/systemd/systemd --system --unit=default.target --log-target=kmsg --show-status=false
'
"#;

/// A running container. Dropped, all of it is killed.
#[derive(Debug)]
pub struct Systemd {
    process: Process,
    host: Host,
    /// Where PID 1 and the unit say what they do.
    logs: [PathBuf; 2],
}

impl Systemd {
    /// Boots on `lab.lb` with `unit` as baton.service, and `config` as its file, whose admin socket is to be the default one. `None`:
    /// this machine cannot, `test` is skipped.
    #[track_caller]
    pub fn boot(test: &str, lab: &Lab, unit: &str, config: &str) -> Option<Self> {
        if !Path::new(MANAGER).exists() {
            skip(test, &format!("there is no {MANAGER}"));
            return None;
        }
        let directory = lab.directory().join("systemd");
        let units = directory.join("units");
        std::fs::create_dir_all(&units).unwrap();
        std::fs::write(units.join("baton.service"), unit).unwrap();
        for target in ["sysinit", "basic", "network", "shutdown", "umount"] {
            std::fs::write(units.join(format!("{target}.target")), "[Unit]\nDescription=Nothing\n").unwrap();
        }
        let all = "[Unit]\nDescription=All\nAllowIsolate=yes\nWants=baton.service\n";
        std::fs::write(units.join("default.target"), all).unwrap();
        // There is no journal; nothing else is added to the unit.
        std::fs::create_dir(units.join("baton.service.d")).unwrap();
        let to_file = "[Service]\nStandardOutput=append:/run/baton.log\nStandardError=append:/run/baton.log\n";
        std::fs::write(units.join("baton.service.d/log.conf"), to_file).unwrap();
        std::fs::write(directory.join("baton.toml"), config).unwrap();
        let name = directory.parent().and_then(Path::file_name).and_then(|name| name.to_str()).expect("UTF-8");
        let apart = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--ipc", "--uts"];
        let begin = ["sh", "-euc", BEGIN, "sh", directory.to_str().expect("UTF-8"), BINARY, name];
        let process = lab.lb.spawn(&[&apart[..], &begin[..]].concat(), &directory.join("log"));
        let systemd =
            Self { process, host: lab.lb.clone(), logs: ["manager.log", "baton.log"].map(|name| directory.join(name)) };
        eventually(LONG, "systemd answers, or ends", || {
            systemd.process.exit_status().is_some() || systemd.run(&["systemctl", "list-jobs"]).status.success()
        });
        if systemd.process.exit_status().is_some() {
            skip(test, &format!("systemd cannot run here: {}", systemd.process.log_tail(5)));
            return None;
        }
        Some(systemd)
    }

    /// Runs `command` inside.
    pub fn run(&self, command: &[&str]) -> Output {
        let Some(manager) = self.manager() else {
            return Command::new("false").output().expect("coreutils");
        };
        let pid = manager.to_string();
        let enter = ["nsenter", "--target", &pid, "--mount", "--pid", "--root", "--wd=/"];
        let words = [&enter[..], &OWN_PATH, command].concat();
        self.host.enter(|| Command::new(words[0]).args(&words[1..]).output()).expect("util-linux")
    }

    /// A property of baton.service.
    pub fn property(&self, name: &str) -> String {
        let output = self.run(&["systemctl", "show", "--property", name, "--value", "baton.service"]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Waits until the unit is active and its process is another one than `than`; its number in the machine.
    #[track_caller]
    pub fn wait_active(&self, than: Option<Pid>, deadline: Duration) -> Pid {
        let started = || {
            let pid = self.started(than)?;
            (self.property("SubState") == "running").then_some(pid)
        };
        eventually_some(deadline, "baton.service runs", started).0
    }

    /// As [`Systemd::wait_active`], but the process may be starting still.
    #[track_caller]
    pub fn wait_started(&self, than: Option<Pid>, deadline: Duration) -> Pid {
        eventually_some(deadline, "baton.service is started", || self.started(than)).0
    }

    #[track_caller]
    fn started(&self, than: Option<Pid>) -> Option<Pid> {
        assert_ne!(self.property("ActiveState"), "failed", "{}", self.said());
        self.baton().filter(|pid| Some(*pid) != than)
    }

    /// `baton status --json`, once it answers.
    #[track_caller]
    pub fn status(&self) -> Value {
        eventually_some(LONG, "the instance answers", || {
            let output = self.run(&["/usr/bin/baton", "status", "--json"]);
            serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
        })
        .0
    }

    #[track_caller]
    pub fn wait_offloaded(&self, flows: u64) {
        eventually(LONG, "flows are offloaded", || self.status()["totals"]["flows"]["offloaded"] == flows);
    }

    fn said(&self) -> String {
        let end = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2500)..]).into_owned()
        };
        self.logs.iter().map(end).collect()
    }

    /// PID 1's number in the machine.
    fn manager(&self) -> Option<i32> {
        let pid = self.process.pid().as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .ok()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    }

    /// The main process's number in the machine.
    fn baton(&self) -> Option<Pid> {
        let inside = self.property("MainPID").parse::<i32>().ok().filter(|pid| *pid > 0)?.to_string();
        let manager = self.manager()?;
        let children = std::fs::read_to_string(format!("/proc/{manager}/task/{manager}/children")).ok()?;
        let is_it = |pid: &&str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            numbers.split_whitespace().last() == Some(inside.as_str())
        };
        Pid::from_raw(children.split_whitespace().find(is_it)?.parse().ok()?)
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("systemd:\n{}{}", self.process.log_tail(10), self.said());
        }
        self.process.kill();
        // Its cgroup is empty once all of its processes are gone.
        let name = self.process.log.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default().to_owned();
        let script = "mount -t cgroup2 cgroup2 /mnt && find \"/mnt/$1\" -depth -type d -exec rmdir {} +";
        let tidy = || {
            let mut tidy = Command::new("unshare");
            tidy.args(["--mount", "sh", "-euc", script, "sh"])
                .arg(&name)
                .output()
                .is_ok_and(|done| done.status.success())
        };
        let until = super::Stopwatch::start();
        while !tidy() && until.elapsed() < secs(2) {}
    }
}
