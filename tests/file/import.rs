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
        // Each has something without an equal: a script that does not ask Baton, a queue, and backup servers.
        (&["kubeadm.cfg", "kubeadm-keepalived.conf"][..], 3),
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
    // What it would say of a host without a VIP is no word on this one.
    assert!(["firewall:", "interfaces:", "keepalived:"].iter().all(|topic| !of_host.contains(topic)), "{said}");
}

#[test]
fn check_names_a_file_of_keepalived_s_that_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("haproxy.cfg"), "listen a\n bind :6443\n server b 10.0.0.1:6443\n").unwrap();
    assert!(baton(directory.path(), &["import", "haproxy.cfg", "--output", "baton.toml"]).status.success());
    for more in [&[][..], &["--json"], &["--host"]] {
        let ran = baton(directory.path(), &[&["check", "-c", "baton.toml", "--keepalived", "/nope"], more].concat());
        let said = text(&ran.stderr).to_owned() + text(&ran.stdout);
        assert!(ran.status.code() == Some(1) && said.contains("/nope: No such file"), "{more:?}: {said}");
    }
}

/// What no configuration has, and yet is given by mistake: each ends soon, with an error that names the file, and no byte of it steers
/// the terminal.
#[test]
fn malformed_files_are_told_in_words_that_do_not_steer_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let lines = |line: &str, count: usize| line.repeat(count).into_bytes();
    let escapes = b"listen \x1b[31mred\n bind :6443\n mode \x1b]0;title\x07tcp\n \x1b[2Jkey v\n server c\x1b[5mp1 10.0.0.1:6443 o\x1b[1m\n \
        balance \xc2\x9b7mfoo\n timeout client 5\xe2\x80\xae1s\n option \x9bx\n";
    let keepalived =
        b"vrrp_instance V \x1b[31m{\n interface e\x1bth0\n virtual_ipaddress {\n 10.0.0.100/24\n }\n x\x1b[1m y\n}\n";
    // The error of `import` for it in the place of haproxy.cfg; empty: it is translated, or line by line not.
    let files: [(&str, Vec<u8>, &str); 13] = [
        ("empty", Vec::new(), "it has no section of HAProxy"),
        ("spaces", b" \n\t\r\n".to_vec(), "it has no section of HAProxy"),
        ("nul", b"listen a\n bind :6443\x00\n".to_vec(), "line 2 has a NUL byte"),
        ("utf-16", b"\xff\xfel\x00i\x00s\x00t\x00e\x00n\x00".to_vec(), "line 1 has a NUL byte"),
        ("not-utf8", b"listen a\xff\n bind :6443\n server \xc3\x28 10.0.0.1:6443\n".to_vec(), ""),
        ("escapes", escapes.to_vec(), ""),
        ("quotes", b"listen \"a\n bind ':6443\nlisten b\n server \"cp1 10.0.0.1:6443\n".to_vec(), ""),
        ("long-line", [b"listen a\n bind :6443 ".to_vec(), lines("x", 900_000)].concat(), ""),
        ("large", lines("listen a\n", 200_000), "it has more than 1 MiB"),
        (
            "keepalived.conf",
            keepalived.to_vec(),
            "this looks like a configuration of keepalived, where that of HAProxy belongs",
        ),
        ("deep", lines("vrrp_instance {", 60_000), "this looks like a configuration of keepalived"),
        ("carriage-returns", b"listen a\r\n bind :6443\r\n server cp1 10.0.0.1:6443 x\r\x1b[A\r\n".to_vec(), ""),
        ("na\x1b[31mme\nx", b"listen a\n bind :6443\n server cp1 10.0.0.1:6443\n".to_vec(), ""),
    ];
    fs::create_dir(directory.path().join("directory")).unwrap();
    fs::write(directory.path().join("good"), "listen a\n bind :6443\n server cp1 10.0.0.1:6443\n").unwrap();
    let run = |arguments: &[&str]| {
        let ran = baton(directory.path(), arguments);
        for stream in [&ran.stdout, &ran.stderr] {
            let said = text(stream);
            let steers = |letter: char| letter.is_control() && !"\n\t".contains(letter) || letter == '\u{202e}';
            assert!(!said.contains(steers) && !said.contains("panicked"), "{arguments:?}: {said:?}");
            assert!(said.len() < 100_000, "{arguments:?}: {}", said.len());
        }
        (ran.status.code().unwrap(), text(&ran.stderr).to_owned() + text(&ran.stdout))
    };
    for (name, bytes, error) in &files {
        fs::write(directory.path().join(name), bytes).unwrap();
        let (code, said) = run(&["import", name]);
        match *error {
            "" => assert!([0, 1, 3].contains(&code) && said.contains(": "), "{name}: {said}"),
            error => assert!(code == 1 && said.starts_with(&format!("baton: {name}: {error}")), "{name}: {said}"),
        }
        run(&["import", "good", name]);
        let (code, said) = run(&["check", "-c", name]);
        assert!(code == 1 && said.starts_with("error: "), "{name}: {said}");
        run(&["init", "--vip", "10.0.0.100", "--inventory", name, "--print", "--root", "directory"]);
    }
    assert_eq!(run(&["import", "good", "good"]).0, 1, "an haproxy.cfg is no keepalived.conf");
    for (name, error) in
        [("directory", "Is a directory"), ("none", "No such file"), ("/dev/zero", "it has more than 1 MiB")]
    {
        let (code, said) = run(&["import", name]);
        assert!(code == 1 && said.starts_with(&format!("baton: {name}: {error}")), "{said}");
        assert_eq!(run(&["import", "good", name]).0, 1);
        assert_eq!(run(&["check", "-c", name]).0, 1);
    }
    // The file that comes out is one of TOML, whatever the other's name.
    let (_, said) = run(&["import", "na\x1b[31mme\nx"]);
    assert!(said.contains("# na\\u{1b}[31mme\\u{a}x:2\n") && !said.contains("error"), "{said}");
}
