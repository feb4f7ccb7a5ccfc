//! `baton init` where no network is needed.

use std::os::unix::fs::PermissionsExt;
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

/// Files that Baton rejects were written, and printed as if they were good.
#[test]
fn a_value_that_baton_rejects_is_refused_by_its_option_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let refused = |arguments: &[&str]| {
        let ran = init(directory.path(), &[&["init", "--node-local", "--root", root], arguments].concat());
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{arguments:?}: {said}");
        said
    };
    for print in [&["--print"][..], &[]] {
        let itself = refused(&[&["--backends", "127.0.0.1:6443"], print].concat());
        assert!(itself.contains("Baton would reject the file, so none is written:\nport: --node-local: "), "{itself}");
        let nobody = refused(&[&["--backends", "10.0.0.11,0.0.0.0"], print].concat());
        assert!(nobody.contains("written:\n--backends: "), "{nobody}");
        let port = refused(&[&["--port", "0", "--backends", "10.0.0.11"], print].concat());
        assert!(port.contains("invalid value '0' for '--port <PORT>': 0 is not in 1..=65535"), "{port}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The files were written below DIR, and then checked below /.
#[test]
fn below_another_root_the_files_are_those_of_that_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let pki = directory.path().join("etc/kubernetes/pki");
    std::fs::create_dir_all(&pki).unwrap();
    let key = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    std::fs::write(pki.join("ca.crt"), key.cert.pem()).unwrap();
    let of = |arguments: &[&str]| {
        let backends = ["init", "--root", root, "--node-local", "--backends", "10.0.0.11:6443"];
        init(directory.path(), &[&backends, arguments].concat())
    };
    let config = directory.path().join("etc/baton/baton.toml");
    for bad in ["/nonexistent.crt", "/etc/kubernetes/junk.crt"] {
        std::fs::write(directory.path().join("etc/kubernetes/junk.crt"), "junk").unwrap();
        let ran = of(&["--ca-file", bad]);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(!ran.status.success() && said.contains(&format!("{root}{bad}")) && !config.exists(), "{said}");
    }
    let ran = of(&[]);
    let said = String::from_utf8(ran.stdout).unwrap() + &String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success() && !said.contains("rejected"), "{said}");
    assert!(said.contains("\nnext: there, before it starts: baton check --host\n"), "{said}");
    let text = std::fs::read_to_string(config).unwrap();
    assert!(text.contains("ca_file = \"/etc/kubernetes/pki/ca.crt\""), "{text}");
}

/// The unit has ProtectHome=yes, and could not have started.
#[test]
fn a_path_that_the_unit_cannot_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let request = ["-c", "/root/my.toml", "init", "--node-local", "--backends", "10.0.0.11:6443", "--root", root];
    let ran = init(directory.path(), &request);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success() && said.contains("/root/my.toml: the unit cannot read below /root"), "{said}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(init(directory.path(), &[&request[..], &["--static-pod", "--image", "b:1"]].concat()).status.success());
}

/// Everybody could put another file in place of Baton's.
#[test]
fn a_umask_that_forbids_nothing_leaves_the_directory_to_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let set = r#"umask 000; exec "$0" init --node-local --backends 10.0.0.11:6443 --root ."#;
    let baton = env!("CARGO_BIN_EXE_baton");
    let ran = Command::new("sh").args(["-c", set, baton]).current_dir(directory.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mode = std::fs::metadata(directory.path().join("etc/baton")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "{mode:o}");
}

/// A manifest of random bytes counted as absent.
#[test]
fn a_file_that_is_no_text_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().join("etc/kubernetes/manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    std::fs::write(manifests.join("kube-apiserver.yaml"), [0x7f, 0, 1, 0xff]).unwrap();
    let root = directory.path().to_str().unwrap();
    let ran = init(directory.path(), &["init", "--node-local", "--backends", "10.0.0.11:6443", "--root", root]);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(
        !ran.status.success() && said.contains("kube-apiserver.yaml: it has a NUL byte, so it is no text"),
        "{said}"
    );
}

/// Two instances wanted one port, and the second one crashed for ever.
#[test]
fn what_starts_baton_already_is_named_beside_the_other_way() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let request = ["init", "--node-local", "--backends", "10.0.0.11:6443", "--root", root];
    let pod = [&request[..], &["--static-pod", "--image", "b:1"]].concat();
    let said = |arguments: &[&str]| String::from_utf8(init(directory.path(), arguments).stdout).unwrap();
    assert!(!said(&request).contains("two instances"));
    let with_pod = said(&pod);
    assert!(with_pod.contains("baton.yaml: written"), "{with_pod}");
    assert!(
        with_pod.contains("next: a unit is here as well: `systemctl disable --now baton`, and remove"),
        "{with_pod}"
    );
    let beside = said(&request);
    assert!(
        beside.contains("next: the kubelet starts Baton as well: remove /etc/kubernetes/manifests/baton.yaml"),
        "{beside}"
    );
    let wants = directory.path().join("etc/systemd/system/multi-user.target.wants");
    std::fs::create_dir_all(&wants).unwrap();
    std::os::unix::fs::symlink("/etc/systemd/system/baton.service", wants.join("baton.service")).unwrap();
    let beside = said(&pod);
    assert!(beside.contains("next: the unit is enabled: `systemctl disable --now baton`"), "{beside}");
}

/// --peers counted for nothing.
#[test]
fn peers_beside_backends_are_refused_where_there_are_no_peers() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let ran = init(
        directory.path(),
        &["init", "--node-local", "--backends", "10.0.0.11", "--peers", "10.0.0.12", "--root", root],
    );
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success() && said.contains("--node-local has no peers: --peers names"), "{said}");
}

/// Half a key was left, and the next attempt was refused.
#[test]
fn a_full_disk_leaves_the_key_as_it_was_and_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let key = format!("{}\n", "5".repeat(64));
    std::fs::write(directory.path().join("peers.key"), &key).unwrap();
    let full = r#"trap "" XFSZ; ulimit -f 0; exec "$0" genkey --next peers.key"#;
    let baton = env!("CARGO_BIN_EXE_baton");
    let ran = Command::new("sh").args(["-c", full, baton]).current_dir(directory.path()).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success() && said.contains("File too large"), "{said}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(directory.path().join("peers.key")).unwrap(), key);
    assert!(init(directory.path(), &["genkey", "--next", "peers.key"]).status.success());
}
