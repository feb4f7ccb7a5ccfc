//! haproxy and keepalived on a host of the fleet, with the files of kubeadm's guide to highly available clusters, which
//! runs both as static pods: the kubelet stops a pod by SIGUSR1, the stop signal of haproxy's image, and kills it later.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, kill_process, kill_process_group};
use tokio::sync::watch;

use super::baton::last_lines;
use super::layout::VIP;
use crate::lab::demo::guard::Guard;
use crate::lab::demo::process::Reaper;
use crate::lab::demo::space::NetSpace;
use crate::sys::clock::now_ns;

/// The two programs on a host. Dropping it ends them.
#[derive(Debug)]
pub(super) struct FleetHaproxy {
    /// Its files are this and an extension.
    stem: PathBuf,
    haproxy: Option<ProcessGroup>,
    keepalived: Option<ProcessGroup>,
    /// The rest of an order, each with the time at which it is due.
    steps: VecDeque<(u64, HaproxyStep)>,
    has_vip: watch::Receiver<bool>,
}

/// What a step of an order leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HaproxyStep {
    /// SIGUSR1: it accepts no more connections, and ends when the last one ends.
    StopInOrder,
    /// SIGKILL, unless it has ended; then it starts again.
    Replace,
    /// SIGKILL, unless it has ended.
    End,
}

impl FleetHaproxy {
    /// The programs, which do not run yet; their files are `stem` and an extension. `port` is the port of the VIP. The
    /// first host of the fleet is the one that keepalived prefers.
    pub(super) fn new(stem: &Path, space: &NetSpace, port: u16, is_first: bool) -> io::Result<Self> {
        let script = stem.with_extension("check_apiserver.sh");
        std::fs::write(&script, check_script(port))?;
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700))?;
        std::fs::write(stem.with_extension("haproxy.cfg"), haproxy_file(port))?;
        std::fs::write(stem.with_extension("keepalived.conf"), keepalived_file(&script, is_first))?;
        let has_vip = follow_address(space.clone(), VIP)?;
        Ok(Self { stem: stem.to_owned(), haproxy: None, keepalived: None, steps: VecDeque::new(), has_vip })
    }

    /// Starts those that do not run.
    pub(super) fn start(&mut self, space: &NetSpace, guard: &mut Guard) -> io::Result<()> {
        self.steps.clear();
        let file = |extension: &str| self.stem.with_extension(extension).into_os_string();
        if self.haproxy.is_none() {
            let arguments = ["-W".into(), "-db".into(), "-f".into(), file("haproxy.cfg")];
            self.haproxy = Some(self.run("haproxy", &arguments, space, guard)?);
        }
        if self.keepalived.is_none() {
            let options = ["--dont-fork", "--log-console", "--vrrp", "--use-file"].map(Into::into);
            let files = [file("keepalived.conf"), "--pid".into(), file("pid"), "--vrrp_pid".into(), file("vrrp.pid")];
            self.keepalived = Some(self.run("keepalived", &[&options[..], &files].concat(), space, guard)?);
        }
        Ok(())
    }

    fn run(
        &self,
        program: &str,
        arguments: &[impl AsRef<OsStr>],
        space: &NetSpace,
        guard: &mut Guard,
    ) -> io::Result<ProcessGroup> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(program))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = space.inside(|| command.spawn())?;
        let _ = guard.take(&child);
        Ok(ProcessGroup(Reaper(child)))
    }

    fn log(&self, program: &str) -> PathBuf {
        self.stem.with_extension(format!("{program}.log"))
    }

    /// SIGKILL to haproxy.
    pub(super) fn kill(&mut self) {
        self.haproxy = None;
    }

    /// SIGKILL to both.
    pub(super) fn end(&mut self) {
        (self.haproxy, self.keepalived) = (None, None);
    }

    /// Stops haproxy in order, and replaces it once it has ended, or is killed because it has not.
    pub(super) fn upgrade(&mut self) {
        let now = now_ns();
        self.steps = [(now, HaproxyStep::StopInOrder), (now + ns(STOP_WITHIN), HaproxyStep::Replace)].into();
    }

    /// Stops keepalived, so that the VIP leaves, and then haproxy, which has until `within` from now.
    pub(super) fn evacuate(&mut self, within: Duration) {
        if let Some(keepalived) = &self.keepalived {
            keepalived.signal(Signal::TERM);
        }
        let now = now_ns();
        self.steps = [(now + ns(within / 2), HaproxyStep::StopInOrder), (now + ns(within), HaproxyStep::End)].into();
    }

    /// Carries out the steps that are due; the last of an order, if it is one of these.
    pub(super) fn carry_out(&mut self, space: &NetSpace, guard: &mut Guard) -> io::Result<Option<HaproxyStep>> {
        let Some((due_ns, step)) = self.steps.front().copied() else { return Ok(None) };
        let is_early = step != HaproxyStep::StopInOrder && self.has_ended();
        if now_ns() < due_ns && !is_early {
            return Ok(None);
        }
        self.steps.pop_front();
        match step {
            HaproxyStep::StopInOrder => {
                if let Some(haproxy) = &self.haproxy {
                    haproxy.signal(Signal::USR1);
                }
                return Ok(None);
            }
            HaproxyStep::Replace => {
                self.haproxy = None;
                self.start(space, guard)?;
            }
            HaproxyStep::End => self.end(),
        }
        Ok(Some(step))
    }

    /// Whether haproxy does not run.
    pub(super) fn has_ended(&mut self) -> bool {
        self.haproxy.as_mut().is_none_or(ProcessGroup::has_ended)
    }

    pub(super) fn has_vip(&self) -> bool {
        *self.has_vip.borrow()
    }

    pub(super) fn last_words(&self) -> String {
        ["haproxy", "keepalived"].map(|program| last_lines(&self.log(program))).join("\n")
    }
}

/// A process and those that it has started. Dropping it kills them.
#[derive(Debug)]
struct ProcessGroup(Reaper);

impl ProcessGroup {
    /// Signals the first process, which tells the others.
    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(self.0.pid(), signal);
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.0.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // haproxy's worker and keepalived's child outlive their parents for a moment.
        let _ = kill_process_group(self.0.pid(), Signal::KILL);
    }
}

/// The file of kubeadm's guide for these control-plane nodes, with another port if the apiserver has the guide's.
fn haproxy_file(port: u16) -> String {
    include_str!("../../../../tests/migration/kubeadm.cfg").replace("bind *:6443", &format!("bind *:{port}"))
}

/// The file of kubeadm's guide, with the state and the priority that it has for the first host and for the others.
fn keepalived_file(script: &Path, is_first: bool) -> String {
    let guide = include_str!("../../../../tests/migration/kubeadm-keepalived.conf");
    // Otherwise keepalived runs the script as a user who may not read this directory.
    let guide = guide.replace("global_defs {\n", "global_defs {\n    script_user root\n    enable_script_security\n");
    let guide = guide.replace("/etc/keepalived/check_apiserver.sh", &script.display().to_string());
    if is_first { guide } else { guide.replace("state MASTER", "state BACKUP").replace("priority 101", "priority 100") }
}

/// The script of kubeadm's guide.
fn check_script(port: u16) -> String {
    format!(
        "#!/bin/sh\ncurl -sfk --max-time 2 https://localhost:{port}/healthz -o /dev/null ||\n{{\n    echo \"*** Error GET \
         https://localhost:{port}/healthz\" 1>&2\n    exit 1\n}}\n"
    )
}

/// Whether the host has `address`, looked up again and again.
fn follow_address(space: NetSpace, address: Ipv4Addr) -> io::Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    std::thread::Builder::new().name("address".to_owned()).spawn(move || {
        if space.enter().is_err() {
            return;
        }
        while !sender.is_closed() {
            let table = std::fs::read_to_string("/proc/thread-self/net/fib_trie").unwrap_or_default();
            let has_it = is_local(&table, address);
            sender.send_if_modified(|before| std::mem::replace(before, has_it) != has_it);
            std::thread::sleep(LOOK_EVERY);
        }
    })?;
    Ok(receiver)
}

/// Whether `address` is one of the host's own in this table of routes.
fn is_local(table: &str, address: Ipv4Addr) -> bool {
    let leaf = format!("|-- {address}");
    let mut lines = table.lines().map(str::trim);
    // The routes of an address follow it.
    while let Some(line) = lines.next() {
        if line == leaf && lines.clone().take_while(|line| line.starts_with('/')).any(|line| line == "/32 host LOCAL") {
            return true;
        }
    }
    false
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Less than the 30 s that a kubelet gives a pod, so that nobody has to watch for so long.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::demo::fleet::layout::{FleetLayout, PORT};

    #[test]
    fn the_files_of_the_guide_are_those_of_the_fleet() {
        let haproxy = haproxy_file(8443);
        assert!(haproxy.contains("bind *:8443\n"), "{haproxy}");
        for host in FleetLayout::Stacked.hosts() {
            let server = format!("server {} {}:{PORT} check", host.name, host.address);
            assert!(haproxy.contains(&server), "{server}: {haproxy}");
        }
        let [first, other] = [true, false].map(|is_first| keepalived_file(Path::new("/tmp/x/cp1.sh"), is_first));
        for text in [&first, &other] {
            assert!(text.contains("script \"/tmp/x/cp1.sh\"") && text.contains("script_user root"), "{text}");
            assert!(text.contains(&VIP.to_string()) && text.contains("interface eth0"), "{text}");
        }
        assert!(first.contains("state MASTER") && first.contains("priority 101"), "{first}");
        assert!(other.contains("state BACKUP") && other.contains("priority 100"), "{other}");
    }

    #[test]
    fn an_address_of_the_host_is_told_from_one_that_it_knows() {
        let table = "Local:\n     |-- 10.0.0.12\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n     \
                     |-- 10.0.0.100\n        /32 host LOCAL\n";
        let is = |address: &str| is_local(table, address.parse().unwrap());
        assert_eq!(["10.0.0.12", "10.0.0.255", "10.0.0.10", "10.0.0.100"].map(is), [true, false, false, true]);
    }
}
