//! The process that cleans up after a demo that could not do so itself.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn guard(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["demo", "--guard"])
        .arg(dir)
        .stdin(Stdio::piped())
        .spawn()
        .expect("baton starts")
}

#[test]
fn a_stopped_child_and_the_directory_of_a_demo_that_was_killed_are_removed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("baton-demo-1");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("cp1.key"), "secret").unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();

    let mut guard = guard(&dir);
    writeln!(guard.stdin.as_mut().unwrap(), "{}", child.id()).unwrap();
    // The end of file that the death of a demo brings.
    drop(guard.stdin.take());

    assert!(guard.wait().unwrap().success());
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert!(!dir.exists());
}

#[test]
fn a_directory_that_is_no_demos_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut guard = guard(dir.path());
    drop(guard.stdin.take());
    assert!(guard.wait().unwrap().success());
    assert!(dir.path().exists());
}
