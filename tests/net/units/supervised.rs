//! The unit by systemd itself: the sandbox, crashes without an end, and hangs.

use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::{FULL, PROXY, words};
use crate::lab::*;

/// Where a stock file puts them.
const PINS: &str = "/sys/fs/bpf/baton";
const SOCKET: &str = "/run/baton/admin.sock";

/// The unit as it is shipped, and a flow that has been offloaded; `None`: skipped.
fn begin(test: &str, lab: &Lab, unit: &str) -> Option<(Systemd, Pid, Conn)> {
    let _pinned = Pinned::unused(test)?;
    let config = lab.config().offloading(Path::new(PINS)).text(Path::new(SOCKET));
    let systemd = Systemd::boot(test, lab, unit, &config)?;
    let pid = systemd.wait_active(None, LONG);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|seed| conn.echo(seed, 1000));
    systemd.wait_offloaded(1);
    Some((systemd, pid, conn))
}

/// Of a key in proc(5)'s status.
fn value<'a>(status: &'a str, key: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim()
}

fn read(pid: Pid, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap()
}

#[test]
fn flows_are_offloaded_in_the_sandbox_of_the_unit() {
    let Some(lab) = Lab::new("the unit's sandbox") else { return };
    let _servers = lab.echo_everywhere();
    let Some((systemd, pid, mut conn)) = begin("the unit's sandbox", &lab, FULL) else { return };
    let status = read(pid, "status");
    let of = |key: &str| value(&status, key).to_owned();
    assert!(of("Uid:").split_whitespace().all(|uid| uid != "0"), "{status}");
    assert_eq!((of("NoNewPrivs:"), of("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    let held = u64::from_str_radix(&of("CapBnd:"), 16).unwrap();
    assert_eq!(held.count_ones() as usize, words(FULL, "CapabilityBoundingSet").len());
    let cores = read(pid, "limits").lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
    assert_eq!(cores.split_whitespace().nth(4), Some("0"), "{cores}");
    // In the process's sandbox even root can write only to the unit's own directories.
    let inside = |script: &str| {
        let target = format!("--target={}", pid.as_raw_nonzero());
        Command::new("nsenter")
            .args([&target, "--mount", "--root"])
            .args(crate::lab::systemd::OWN_PATH)
            .args(["sh", "-c", script])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(inside("command -v touch && ls / | grep etc"));
    for closed in ["/etc", "/usr", "/var"] {
        assert!(!inside(&format!("touch {closed}/of-a-test")), "{closed}");
    }
    assert!(!inside("ls /home/* /root/* 2>/dev/null | grep ."), "home directories show");
    assert!(inside("test -e /run/baton-vip-away && test -S /run/baton/admin.sock"));
    // Its user needs no capability to write these.
    let user = of("Uid:").split_whitespace().next().unwrap().to_owned();
    let as_user = format!("setpriv --reuid {user} --clear-groups --inh-caps=-all --ambient-caps=-all sh -c");
    assert!(inside(&format!("{as_user} 'echo 254 >/run/baton-vip-away'")));
    for pins in [PINS, "/sys/fs/bpf/baton-ports"] {
        assert!(inside(&format!("test $(stat -c %u {pins}) = {user}")), "{pins}");
    }
    // A reload by the unit's own command.
    let reloaded = systemd.run(&["systemctl", "reload", "baton.service"]);
    assert!(reloaded.status.success(), "{}", String::from_utf8_lossy(&reloaded.stderr));
    conn.echo(9, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

/// A fleet's key, which the unit finds as /run/units/key.
fn write_key(lab: &Lab) {
    let units = lab.directory().join("systemd/units");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::write(units.join("key"), format!("{:064x}", 0x5eed)).unwrap();
}

/// The unit with the drop-in of docs/security.md, for a user who is there already.
#[test]
fn without_the_capability_to_read_any_file_the_unit_reads_its_user_s_key_and_finds_its_pins() {
    let test = "the unit without CAP_DAC_READ_SEARCH";
    let page = include_str!("../../../docs/security.md");
    let (_, drop_in) = page.split_once("[Service]\n").expect("the drop-in");
    let drop_in = drop_in.split("```").next().unwrap().replace("baton", "daemon");
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    let Some(_pinned) = Pinned::unused(test) else { return };
    write_key(&lab);
    let config = lab.config().offloading(Path::new(PINS)).instance("name", "lb-a");
    let config = config.peers("listen", lab.lb.v4(9471).to_string()).peers("key_file", "/run/units/key");
    let config = config.peer("lb-b", lab.client.v4(9471));
    let begin = "ExecStartPre=/usr/bin/baton check";
    let prepared =
        "ExecStartPre=+/bin/sh -c 'chown daemon /run/units/key && chmod 600 /run/units/key && chmod 700 /sys/fs/bpf'";
    let unit = FULL.replacen(begin, &format!("{prepared}\n{}", begin.replace('=', "=-")), 1);
    let unit = unit.replacen("[Install]", &format!("{drop_in}\n[Install]"), 1);
    let Some(systemd) = Systemd::boot(test, &lab, &unit, &config.text(Path::new(SOCKET))) else { return };
    let pid = systemd.wait_active(None, LONG);
    let held = u64::from_str_radix(value(&read(pid, "status"), "CapBnd:"), 16).unwrap();
    assert_eq!(held.count_ones() as usize + 1, words(FULL, "CapabilityBoundingSet").len());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|seed| conn.echo(seed, 1000));
    systemd.wait_offloaded(1);
    kill_process(pid, Signal::KILL).unwrap();
    conn.echo(8, 1000);
    systemd.wait_active(Some(pid), LONG);
    systemd.wait_offloaded(1);
    let done = |command: &str| {
        let done = systemd.run(&["sh", "-uc", command]);
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for command in ["baton upgrade", "baton offload status", "baton reload"] {
        assert!(done(command).0, "{command}: {}", done(command).1);
    }
    let (well, said) = done("chown root /run/units/key && baton reload");
    assert!(!well && said.contains("/run/units/key") && said.contains("not permitted"), "{said}");
    conn.echo(9, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

/// Of a start by root, or of a unit whose user had another number.
#[test]
fn flows_whose_pins_belong_to_another_user_are_recovered_by_the_unit() {
    let test = "pins of another user";
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    let Some((systemd, pid, mut conn)) = begin(test, &lab, FULL) else { return };
    for command in [&["systemctl", "stop", "baton.service"][..], &["chown", "-R", "0:0", PINS]] {
        let done = systemd.run(command);
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    conn.echo(1, 1000);
    let started = systemd.run(&["systemctl", "start", "baton.service"]);
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    systemd.wait_active(Some(pid), LONG);
    systemd.wait_offloaded(1);
    conn.echo(2, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

/// What needs netlink, packet sockets, nft and another process, in that sandbox.
#[test]
fn the_unit_s_instance_takes_the_vip_and_is_upgraded() {
    let (test, vip) = ("the unit's VIP", "10.77.0.100");
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    let Some(_pinned) = Pinned::unused(test) else { return };
    write_key(&lab);
    let config = lab.config().offloading(Path::new(PINS)).frontend("listen", vec![format!("{vip}:6443")]);
    let config = config.vip("addresses", vec![format!("{vip}/32")]).vip("interface", "eth0").instance("name", "lb-a");
    let own = lab.lb.v4(9471);
    let config = config.peers("listen", own.to_string()).peers("key_file", "/run/units/key");
    let config = config.peer("lb-b", lab.client.v4(9471));
    let unit = FULL.replacen("ExecStartPre=/usr/bin/baton check", "ExecStartPre=-/usr/bin/baton check", 1);
    let Some(systemd) = Systemd::boot(test, &lab, &unit, &config.text(Path::new(SOCKET))) else { return };
    let pid = systemd.wait_active(None, LONG);
    eventually(LONG, "it has the VIP", || lab.lb.has_address(vip));
    let vip: std::net::SocketAddr = format!("{vip}:6443").parse().unwrap();
    let mut conn = lab.client.connect(vip);
    conn.echo(1, 1000);
    systemd.wait_offloaded(1);
    let upgraded = systemd.run(&["/usr/bin/baton", "upgrade"]);
    assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
    systemd.wait_active(Some(pid), LONG);
    conn.echo(2, 100_000);
    lab.client.connect(vip).echo(3, 1000);
    let rules = lab.lb.run("nft list tables");
    assert!(rules.contains("baton"), "{rules}");
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

/// Names what went through, of system calls of x86-64 that most of the kernel's own rules allow a user.
const TRY: &str = r#"
use constant EPERM => 1;
sub tried { my ($name, $number, @rest) = @_; print "$name\n" if syscall($number, @rest) != -1 || $! != EPERM }
tried("ptrace", 101, 0, 0, 0, 0);
tried("unshare", 272, 0x10000000);
tried("keyctl", 250, 0, -3, 0);
tried("setpriority", 141, 0, 0, 5);
tried("mount", 165, "none", "/tmp", "tmpfs", 0, 0);
tried("perf_event_open", 298, 0, 0, -1, -1, 0);
print "a runtime's socket\n" if -e "/run/containerd/containerd.sock";
use Socket;
use Errno qw(EACCES);
socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die;
print "a socket of root's\n" if connect($socket, sockaddr_un("/run/of-root.sock")) || $! != EACCES;
for my $file ("/etc/shadow", "/etc/kubernetes/admin.conf") {
    print "$file\n" if open(SECRET, "<", $file) && defined(<SECRET>);
}
"#;

/// A socket that nobody but root may use. Who may is refused by its end, which is gone.
const BIND: &str = r#"
use Socket;
socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die;
bind($socket, sockaddr_un("/run/of-root.sock")) or die;
"#;

fn forbids(test: &str, unit: &str) {
    let Some(lab) = Lab::new(test) else { return };
    let units = lab.directory().join("systemd/units");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::write(units.join("try.pl"), TRY).unwrap();
    std::fs::write(units.join("bind.pl"), BIND).unwrap();
    let begin = "ExecStartPre=/usr/bin/baton check";
    let tries = format!(
        "ExecStartPre=+/bin/sh -c 'mkdir -p /run/containerd /etc/kubernetes && : >/run/containerd/containerd.sock'\n\
         ExecStartPre=+/bin/sh -c 'umask 77 && echo secret >/etc/kubernetes/admin.conf && perl /run/units/bind.pl'\n\
         ExecStartPre=/bin/sh -c 'exec perl /run/units/try.pl >/var/lib/baton/tried 2>&1'\n{begin}"
    );
    let config = lab.config().text(Path::new(SOCKET));
    let Some(systemd) = Systemd::boot(test, &lab, &unit.replacen(begin, &tries, 1), &config) else { return };
    systemd.wait_active(None, LONG);
    let unfiltered = &systemd.status()["instance"]["unfiltered"];
    assert!(unfiltered.is_null(), "beside the unit's filter Baton has its own: {unfiltered}");
    let tried = systemd.run(&["cat", "/var/lib/baton/tried"]);
    assert!(tried.status.success(), "{}", String::from_utf8_lossy(&tried.stderr));
    assert_eq!(String::from_utf8_lossy(&tried.stdout), "", "these went through");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_unit_s_sandbox_forbids_what_baton_does_not_need() {
    forbids("what the unit forbids", FULL);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_proxy_unit_s_sandbox_forbids_what_baton_does_not_need() {
    forbids("what the proxy's unit forbids", PROXY);
}

/// Row 48: crashes in a row, faster than any limit of systemd's own. Offloaded flows go on all the while.
fn crashes(test: &str, times: u32) {
    let Some(lab) = Lab::new(test) else { return };
    let _servers = lab.echo_everywhere();
    // As fast as the unit once was, so that systemd's limit would be met in a moment.
    let unit = FULL.replace("RestartSec=1s", "RestartSec=100ms");
    let Some((systemd, mut pid, mut conn)) = begin(test, &lab, &unit) else { return };
    for crash in 1..=times {
        kill_process(pid, Signal::ABORT).unwrap();
        conn.echo(u64::from(crash), 1000);
        // As often as not it has not come as far as to be ready.
        pid = systemd.wait_started(Some(pid), LONG);
    }
    systemd.wait_active(None, LONG);
    assert_eq!(systemd.property("NRestarts"), times.to_string());
    eventually(LONG, "the last process recovers the flow", || {
        let status = systemd.status();
        status["totals"]["flows"]["offloaded"] == 1 && status["instance"]["not_ready"] == serde_json::json!([])
    });
    conn.echo(1, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

#[test]
fn systemd_does_not_give_up_after_some_crashes_and_offloaded_flows_go_on() {
    crashes("a crash loop under systemd", 8);
}

#[test]
#[ignore = "a minute: cargo nextest run --test net --run-ignored only hundred_crashes"]
fn systemd_does_not_give_up_after_a_hundred_crashes() {
    crashes("a long crash loop under systemd", 100);
}

/// SIGSTOP stops every thread, a debugger one of them: neither process says any more that it lives.
#[test]
fn a_process_that_hangs_and_one_whose_offload_engine_hangs_are_started_anew_by_the_watchdog() {
    let Some(lab) = Lab::new("the watchdog") else { return };
    let _servers = lab.echo_everywhere();
    let unit = FULL.replace("WatchdogSec=10s", "WatchdogSec=3s").replace("RestartSec=1s", "RestartSec=100ms");
    assert_ne!(unit, FULL);
    let Some((systemd, pid, mut conn)) = begin("the watchdog", &lab, &unit) else { return };
    kill_process(pid, Signal::STOP).unwrap();
    conn.echo(1, 1000);
    let pid = systemd.wait_active(Some(pid), secs(30));
    conn.echo(2, 1000);
    let frozen = Tracer::start(pid, &["offload"], |_| true);
    assert!(frozen.is_frozen(LONG), "the offload engine makes a system call now and then");
    systemd.wait_active(Some(pid), secs(40));
    assert_eq!(systemd.property("NRestarts"), "2");
    conn.echo(3, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}

/// The unit's process shares a port with an apiserver, and systemd keeps the sockets, which are bound to another address.
#[test]
fn connections_to_a_shared_port_wait_for_the_process_that_systemd_starts_anew() {
    let (test, vip) = ("a shared port under systemd", "10.77.0.100");
    let Some(lab) = Lab::new(test) else { return };
    lab.lb.add_address(vip.parse().unwrap());
    let _servers = lab.echo_everywhere();
    let apiserver = lab.lb.serve_on("[::]:6443".parse().unwrap(), Behaviour::Source { seed: 77, bytes: 10 });
    let Some(_pinned) = Pinned::unused(test) else { return };
    let vip: std::net::SocketAddr = format!("{vip}:6443").parse().unwrap();
    let config = lab.config().frontend("listen", vec![vip.to_string()]).text(Path::new(SOCKET));
    let unit = FULL.replace("RestartSec=1s", "RestartSec=300ms");
    let Some(systemd) = Systemd::boot(test, &lab, &unit, &config) else { return };
    let mut pid = systemd.wait_active(None, LONG);
    for seed in 0..2 {
        lab.client.connect(vip).echo(seed, 1000);
        kill_process(pid, Signal::KILL).unwrap();
        let mut waiting = lab.client.connect(vip);
        waiting.echo(seed, 1000);
        pid = systemd.wait_active(Some(pid), LONG);
    }
    assert_eq!(apiserver.accepted(), 0);
    // A restart with another share_port: of the sockets that systemd kept none is left.
    drop(apiserver);
    let set = "sed -i 's/^\\[\\[frontend\\]\\]/&\\nshare_port = \"off\"/' /etc/baton/baton.toml && systemctl restart baton.service";
    let set = systemd.run(&["sh", "-euc", set]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    lab.client.connect(vip).echo(3, 1000);
    let listening = lab.lb.run("ss -ltnH");
    assert!(listening.contains(&format!(" {vip} ")) && !listening.contains("192.0.0.8"), "{listening}");
}

/// What systemd itself says of the files, without running anything.
#[test]
fn systemd_finds_nothing_to_complain_about() {
    let without = FULL.replace(" CAP_DAC_READ_SEARCH\n", "\n");
    for (name, unit, exposure_max) in
        [("baton.service", FULL, 21), ("baton.service", &*without, 19), ("baton-proxy.service", PROXY, 14)]
    {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(name);
        std::fs::write(&file, unit.replace("/usr/bin/baton", "/bin/true")).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file);
        let output = verify.output().expect("systemd-analyze (Debian package systemd)");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let complaints: Vec<_> = text.lines().filter(|line| line.contains(name)).collect();
        assert!(complaints.is_empty(), "{text}");
        let mut security = Command::new("systemd-analyze");
        let exposure = security.args(["security", "--offline=true", &format!("--threshold={exposure_max}")]).arg(&file);
        let output = exposure.output().expect("systemd-analyze");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        for (key, value) in [
            ("StartLimitIntervalSec", "0"),
            ("WatchdogSec", "10s"),
            ("WatchdogSignal", "SIGKILL"),
            ("OOMScoreAdjust", "-900"),
            ("LimitCORE", "0"),
            ("Restart", "on-failure"),
        ] {
            assert_eq!(words(unit, key), [value], "{name}: {key}");
        }
    }
}
