//! What the process forbids itself, without any unit: tried by a hook of `[vip]`, which has Baton's filter of system calls as every other
//! child, and by the threads' own state.
#![cfg(target_arch = "x86_64")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::{FULL, start};
use crate::fleet::Scene;
use crate::lab::*;

/// Names what went through, of system calls of x86-64 that root may make, and what did not go on that has to. Most have arguments by which
/// the kernel itself would refuse them otherwise (EINVAL, EFAULT, EBADF, ENOENT).
const TRY: &str = r#"
use constant { EPERM => 1, ENOSYS => 38, EAFNOSUPPORT => 97 };
sub tried {
    my ($name, $number, @rest) = @_;
    $! = 0;
    my $result = syscall($number, @rest);
    print "$name: $!\n" if $result != -1 || $! != EPERM;
}
tried("ptrace", 101, 16, 0, 0, 0);
tried("process_vm_readv", 310, $$, 0, 0, 0, 0, 0);
tried("pidfd_getfd", 438, -1, 0, 0);
tried("mount", 165, "none", "/nowhere", "tmpfs", 0, 0);
tried("umount2", 166, "/nowhere", 0);
tried("pivot_root", 155, "/nowhere", "/nowhere");
tried("chroot", 161, "/");
tried("open_tree", 428, -1, "nowhere", 0);
tried("move_mount", 429, -1, "nowhere", -1, "nowhere", 0);
tried("fsopen", 430, "tmpfs", 0);
tried("mount_setattr", 442, -1, "nowhere", 0, 0, 0);
tried("setns", 308, -1, 0);
tried("unshare", 272, 0x00020000);
tried("init_module", 175, 0, 0, 0);
tried("finit_module", 313, -1, 0, 0);
tried("delete_module", 176, "no_such_module", 0x800);
tried("kexec_load", 246, 0, 0, 0, 0xffff);
tried("reboot", 169, 0, 0, 0, 0);
tried("swapon", 167, "/nowhere", 0);
tried("swapoff", 168, "/nowhere");
tried("keyctl", 250, 0, -3, 0);
tried("add_key", 248, 0, 0, 0, 0, 0);
tried("settimeofday", 164, 0, 0);
tried("clock_settime", 227, 0, 0);
tried("adjtimex", 159, 0);
tried("open_by_handle_at", 304, -1, 0, 0);
tried("perf_event_open", 298, 0, 0, -1, -1, 0);
tried("userfaultfd", 323, 0xffff);
tried("io_uring_setup", 425, 1, 0);
tried("fanotify_init", 300, 0xffffffff, 0);
tried("quotactl", 179, 0xffff, 0, 0, 0);
tried("acct", 163, "/nowhere");
tried("syslog", 103, 10, 0, 0);
tried("sethostname", 170, 0, -1);
tried("personality", 135, 0xffffffff);
tried("iopl", 172, 0);
print "clone3: $!\n" if syscall(435, 0, 0) != -1 || $! != ENOSYS;
print "a call of x32: $!\n" if syscall(0x40000000 + 39) != -1 || $! != ENOSYS;
use Socket;
print "AF_ALG: $!\n" if socket(my $other, 38, 5, 0) || $! != EAFNOSUPPORT;
my $cloned = syscall(56, 0x10000000 | 17, 0, 0, 0, 0);
exit 0 if $cloned == 0;
print "a user namespace: $!\n" if $cloned != -1 || $! != EPERM;
# What hooks do.
for my $needed ("nft list tables", "ip address", "ip route", "cat /etc/hostname | cat", "date") {
    print "does not work: $needed\n" if system("$needed >/dev/null 2>&1") != 0;
}
# By the file's mode: whoever may connect to a container runtime's socket is root.
use Errno qw(EACCES);
socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or print "no socket: $!\n";
print "a socket of root's\n" if $> != 0 && (connect($socket, sockaddr_un($ARGV[0])) || $! != EACCES);
"#;

/// A hook that tries all of this and notes it in a file, whose first and last lines are its own.
struct Tries {
    script: PathBuf,
    said: PathBuf,
    socket: PathBuf,
}

impl Tries {
    /// In `directory`, to which every user may write from now on.
    fn new(directory: &Path) -> (Self, UnixListener) {
        let [script, said, socket] = ["try.pl", "said", "of-root.sock"].map(|name| directory.join(name));
        std::fs::write(&script, TRY).unwrap();
        std::fs::write(&said, "").unwrap();
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&said, PermissionsExt::from_mode(0o666)).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
        (Self { script, said, socket }, listener)
    }

    fn hook(&self) -> Vec<String> {
        let (script, said, socket) = (self.script.display(), self.said.display(), self.socket.display());
        let text = format!("(echo begins; perl {script} {socket}; echo ends) >>{said} 2>&1");
        ["/bin/sh", "-c", &text].map(str::to_owned).to_vec()
    }

    /// After so many runs nothing has been said of what went through.
    #[track_caller]
    fn ran(&self, times: usize) {
        let said = || std::fs::read_to_string(&self.said).unwrap();
        eventually(LONG, "the hook has run", || said().matches("ends\n").count() == times);
        assert_eq!(said(), "begins\nends\n".repeat(times));
    }
}

/// What each thread has: a filter, of which kind, and how many.
fn filters(pid: Pid) -> u32 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let of = |task: std::fs::DirEntry| {
        // A thread may have ended since it was listed.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let value = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key));
            value.unwrap_or("0").trim().parse::<u32>().unwrap()
        };
        assert_eq!((value("Seccomp:"), value("NoNewPrivs:")), (2, 1), "{status}");
        Some(value("Seccomp_filters:"))
    };
    let counts: Vec<_> = tasks.filter_map(|task| of(task.unwrap())).collect();
    assert!(counts.len() > 4 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

/// Without a unit, the process that parses what strangers send could mount, trace and load modules, as root can.
#[test]
fn root_s_own_process_forbids_itself_what_baton_does_not_need() {
    let Some(scene) = Scene::new("a process's own filter", 1) else { return };
    let _servers = scene.serve();
    let (tries, _listener) = Tries::new(scene.lab.directory());
    let config = crate::vip::built_in::config(&scene, 0).alone();
    let config = config.vip("on_gain", tries.hook()).vip("on_loss", tries.hook());
    let instance = scene.launch(0, &config);
    tries.ran(1);
    let before = filters(instance.baton.process.pid());
    assert!(instance.baton.status()["instance"]["unfiltered"].is_null());
    // The next process has the filter from this one, and puts no second one beside it.
    instance.baton.order(&["upgrade"]);
    let pid = instance.baton.status()["instance"]["pid"].as_i64().unwrap();
    let (_guard, pid) = (Stranger::new(pid), Pid::from_raw(pid as i32).unwrap());
    assert_eq!(filters(pid), before);
    assert!(instance.baton.status()["instance"]["unfiltered"].is_null());
    // The VIP has never left the host: no program of a gain runs.
    eventually(LONG, "it has the VIP", || instance.baton.metric("baton_vip_held", &[crate::vip::VIP]) == 1.0);
    assert!(instance.baton.events_of("vip_gained").is_empty());
    kill_process(pid, Signal::TERM).unwrap();
    tries.ran(2);
}

#[test]
fn a_process_with_the_unit_s_capabilities_forbids_itself_the_same_without_the_unit() {
    let Some(lab) = Lab::new("a unit's process's own filter") else { return };
    let _servers = lab.echo_everywhere();
    let (tries, _listener) = Tries::new(lab.directory());
    let config = lab.config().vip("addresses", vec!["10.77.0.100/32"]).vip("interface", "eth0");
    let config = config.frontend("listen", vec!["10.77.0.100:6443"]).vip("on_gain", tries.hook());
    let baton = start(&lab, FULL, &config, None);
    tries.ran(1);
    filters(baton.process.pid());
}
