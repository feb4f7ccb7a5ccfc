//! Tests tests/run itself, with a stand-in for cargo: the commands that a test may call, and the result if it calls
//! another.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The stand-in prints this, as a runner would.
const SUMMARY: &str = "     Summary [   0.1s] 3 tests run: 3 passed, 0 skipped";

/// Runs tests/run where `frobnicate` is installed, with a stand-in for cargo whose tests are `script`.
fn run_with(script: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let (tests, installed) = (directory.path().join("tests"), directory.path().join("bin"));
    fs::create_dir(&tests).unwrap();
    fs::create_dir(&installed).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run"), tests.join("run")).unwrap();
    let runner = format!("case \"$*\" in *--version|*--no-run) exit 0;; esac\n{script}\necho '{SUMMARY}'");
    let commands = [("cargo", runner.as_str()), ("frobnicate", "echo frobnicated"), ("apt-get", "exit 1")];
    for (name, script) in commands {
        write_script(&installed.join(name), script);
    }
    let path = format!("{}:{}", installed.display(), std::env::var("PATH").unwrap());
    Command::new(tests.join("run")).env("PATH", path).output().unwrap()
}

fn write_script(file: &Path, script: &str) {
    fs::write(file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn a_command_that_is_installed_and_not_declared_fails_by_its_name() {
    let output = run_with("frobnicate || echo \"its end: $?\"");
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!said.lines().any(|line| line == "frobnicated"), "{said}");
    assert!(
        said.contains("frobnicate is not declared: add it, with its Debian package, to the needs of tests/run"),
        "{said}{why}"
    );
    assert!(said.contains("its end: 127"), "{said}");
    // A test that takes the failure for a result must fail all the same.
    assert!(said.contains("used and not declared in tests/run: frobnicate"), "{said}");
    assert!(said.ends_with("3 passed, 1 failed, 0 skipped\n"), "{said}");
    assert!(!output.status.success());
}

#[test]
fn what_is_declared_and_what_every_debian_has_is_found() {
    let output = run_with(
        "for name in sh sed grep mount cargo nft ethtool; do type $name >/dev/null || echo \"no $name\"; done",
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!said.contains("\nno ") && said.ends_with("3 passed, 0 failed, 0 skipped\n"), "{said}");
    assert!(output.status.success());
}
