//! What else is asked of an instance while it is being replaced.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use super::backend::{self, ECHO, request};
use super::instance::{BINARY, DEADLINE, Instance, is_stopped, lives, signal, wait_for};

/// The process that the broker of `pid` has started for it.
fn child_of(pid: u32) -> u32 {
    let children = |pid: u32| -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    };
    let mut child = None;
    wait_for("the successor", || {
        child = children(pid).into_iter().flat_map(children).next();
        child.is_some()
    });
    child.unwrap()
}

/// Begins an upgrade to a process that stops before its first word: the upgrade is under way until it goes on.
fn begin(instance: &Instance) -> (std::process::Child, u32) {
    let old = instance.pid().unwrap();
    let successor = instance.directory.path().join("successor");
    std::fs::write(&successor, format!("#!/bin/sh\nkill -s STOP $$\nexec '{BINARY}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&successor, std::fs::Permissions::from_mode(0o755)).unwrap();
    let asking = instance.start_command(&["--json", "upgrade", "--binary", successor.to_str().unwrap()]);
    let new = child_of(old);
    wait_for("it to stop", || {
        assert!(lives(new), "the new process has ended: {}", instance.log());
        is_stopped(new)
    });
    (asking, new)
}

#[test]
fn a_reload_or_a_stop_during_an_upgrade_is_refused_or_waits() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends = [runtime.block_on(backend::serve())];
    let mut instance = Instance::start(&backends, 2);
    let mut flow = TcpStream::connect(instance.frontend).unwrap();
    flow.set_read_timeout(Some(DEADLINE)).unwrap();
    flow.write_all(&request(ECHO, 0, 0)).unwrap();

    let old = instance.first_pid();
    let (mut asking, new) = begin(&instance);
    for command in [&["reload"][..], &["drain", "b0"], &["upgrade"]] {
        let output = instance.run(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("upgrade is under way"), "{command:?}: {said}");
    }
    signal(old, Signal::HUP);
    signal(new, Signal::CONT);
    assert!(asking.wait().unwrap().success(), "{}", instance.log());
    assert_eq!(instance.pid(), Some(new));
    wait_for("the new process to reload", || {
        String::from_utf8(instance.run(&["events"]).stdout).unwrap().contains("reloaded")
    });
    flow.write_all(b"word").unwrap();
    flow.read_exact(&mut [0; 4]).unwrap();
    drop(flow);

    // Its end may orphan the process group, and the kernel sends SIGHUP to a stopped process in an orphaned group
    // (setpgid(2)).
    wait_for("the first to end", || {
        instance.reap();
        !lives(old)
    });
    let old = new;
    let (mut asking, new) = begin(&instance);
    signal(old, Signal::TERM);
    signal(new, Signal::CONT);
    assert!(asking.wait().unwrap().success(), "{}", instance.log());
    wait_for("both to end", || {
        instance.reap();
        !lives(old) && !lives(new)
    });
    assert!(instance.log().contains("stopped"), "it ended in the ordinary way: {}", instance.log());
}

#[test]
fn sigusr2_replaces_the_process_by_the_binary_that_is_there_now() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends = [runtime.block_on(backend::serve())];
    let mut instance = Instance::start(&backends, 2);
    let mut flow = TcpStream::connect(instance.frontend).unwrap();
    flow.set_read_timeout(Some(DEADLINE)).unwrap();
    flow.write_all(&request(ECHO, 0, 0)).unwrap();
    let old = instance.first_pid();
    signal(old, Signal::USR2);
    wait_for("another process in its place", || {
        instance.reap();
        !lives(old) && instance.pid().is_some_and(|pid| pid != old)
    });
    flow.write_all(b"word").unwrap();
    let mut back = [0; 4];
    flow.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"word");
}
