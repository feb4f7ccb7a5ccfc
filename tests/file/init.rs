//! `baton init` where no network is needed.

use std::path::Path;
use std::process::{Command, Output};

fn init(directory: &Path, arguments: &[&str]) -> Output {
    let baton = Command::new(env!("CARGO_BIN_EXE_baton")).args(arguments).current_dir(directory).output();
    baton.unwrap()
}

/// The unit and the static pod run in other directories.
#[test]
fn a_path_below_the_current_directory_is_written_there_and_named_whole() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let request = ["init", "--node-local", "--backends", "10.0.0.11:6443", "--print"];
    let ran = init(&directory, &[&["-c", "./my/baton.toml"], &request[..]].concat());
    let said = String::from_utf8(ran.stdout).unwrap();
    let path = directory.join("my/baton.toml");
    assert!(ran.status.success() && said.starts_with(&format!("# {}\n", path.display())), "{said}");
    assert!(said.contains(&format!(" run -c {}\n", path.display())), "{said}");
    let root = ["--root", directory.to_str().unwrap()];
    let refused = init(&directory, &[&["-c", "my/baton.toml"], &request[..], &root].concat());
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("my/baton.toml: with --root, the host's own path"), "{why}");
}
