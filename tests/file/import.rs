//! `baton import` as a command: the files of known guides are translated, and `baton check` takes the result.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn baton(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton")).args(arguments).current_dir(directory).output().unwrap()
}

fn sample(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/migration", name].iter().collect();
    path.to_str().unwrap().to_owned()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn the_files_of_known_guides_are_imported_and_checked() {
    for (files, code) in [
        (&["kubeadm.cfg", "kubeadm-keepalived.conf"][..], 0),
        // Each has something without an equal: a queue, and backup servers.
        (&["kubespray.cfg"], 3),
        (&["openshift.cfg"], 3),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let files: Vec<_> = files.iter().map(|name| sample(name)).collect();
        let mut arguments: Vec<&str> = vec!["import", "--output", "baton.toml"];
        arguments.extend(files.iter().map(String::as_str));
        let imported = baton(directory.path(), &arguments);
        assert_eq!((imported.status.code(), text(&imported.stdout)), (Some(code), ""), "{}", text(&imported.stderr));
        let checked = baton(directory.path(), &["check", "-c", "baton.toml"]);
        assert!(checked.status.success(), "{files:?}: {}", text(&checked.stderr));
        assert!(text(&checked.stdout).starts_with("ok: "));

        let again = baton(directory.path(), &arguments);
        assert_eq!(again.status.code(), Some(1), "it overwrites");
        assert!(
            text(&again.stderr).ends_with("baton.toml: it exists; --force overwrites it\n"),
            "{}",
            text(&again.stderr)
        );
        arguments.push("--force");
        assert_eq!(baton(directory.path(), &arguments).status.code(), Some(code));
        // The same, for a pipe.
        let mut piped = vec!["import"];
        piped.extend(files.iter().map(String::as_str));
        let piped = baton(directory.path(), &piped);
        assert_eq!(text(&piped.stdout), fs::read_to_string(directory.path().join("baton.toml")).unwrap());
    }
}

#[test]
fn a_file_that_leads_to_nothing_is_told_and_fails() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("haproxy.cfg");
    fs::write(&file, "frontend web\n bind :80\n mode http\n default_backend x\n").unwrap();
    let ran = baton(directory.path(), &["import", "haproxy.cfg"]);
    assert_eq!(ran.status.code(), Some(1));
    let said = text(&ran.stderr);
    assert!(said.contains("NO EQUAL:   no frontend is written: its mode is http"), "{said}");
    assert!(said.contains("error: ") && said.ends_with("takes the file once these errors are fixed\n"), "{said}");
    assert_eq!(baton(directory.path(), &["import", "none.cfg"]).status.code(), Some(1));
    assert_eq!(baton(directory.path(), &["import"]).status.code(), Some(64));
    let json = baton(directory.path(), &["--json", "import", "haproxy.cfg"]);
    let told: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let first = &told["files"][0]["lines"][0];
    assert_eq!(
        (&first["line"], &first["outcome"], &first["changes_behaviour"]),
        (&1.into(), &"no_equal".into(), &true.into())
    );
    assert!(!told["errors"].as_array().unwrap().is_empty());
}

#[test]
fn check_names_import_for_the_file_of_another_program() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["kubespray.cfg", "kubeadm-keepalived.conf"] {
        let file = sample(name);
        let ran = baton(directory.path(), &["check", "-c", &file]);
        assert_eq!(ran.status.code(), Some(1));
        let said = text(&ran.stderr);
        assert!(said.contains("this looks like a configuration of ") && said.contains("baton import "), "{said}");
    }
}

#[test]
fn check_host_looks_at_the_host_although_the_file_has_errors() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("baton.toml"), "[log]\nlevel = 5\n").unwrap();
    let ran = baton(directory.path(), &["check", "-c", "baton.toml", "--host"]);
    assert_eq!(ran.status.code(), Some(1));
    let said = text(&ran.stdout);
    let (of_file, of_host) = said.split_once("\nThis host, without what depends on the file:\n").expect(said);
    assert!(of_file.starts_with("rejected: 2 errors"), "{said}");
    assert!(of_host.contains("kernel") && of_host.contains(" flows on this host\n"), "{said}");
}
