//! Configuration files of users: which are rejected, with which words, and that no file crashes the loader.

use std::fs;
use std::path::{Path, PathBuf};

use baton::config::{self, Loaded, Rejected, Severity};
use proptest::prelude::*;

/// Each `config/invalid/*.toml` is rejected with exactly the text in `*.expected` beside it: errors, then warnings, as
/// `baton check` shows them. UPDATE_EXPECTED=1 in the environment writes these files; then read the changes in git.
#[test]
fn each_invalid_file_is_rejected_with_the_expected_words() {
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let mut files = 0;
    let mut wrong = Vec::new();
    for path in files_in(Path::new("config/invalid"), "toml") {
        files += 1;
        let said = match config::load(&path) {
            Ok(_) => "nothing: it was taken\n".to_owned(),
            Err(rejected) => rejected.render(false),
        };
        if update {
            fs::write(path.with_extension("expected"), &said).unwrap();
        }
        match fs::read_to_string(path.with_extension("expected")) {
            Ok(expected) if expected == said => {}
            Ok(expected) => wrong.push(format!("{}\nexpected:\n{expected}said:\n{said}", path.display())),
            Err(error) => wrong.push(format!("{}: no expectation beside it ({error}); said:\n{said}", path.display())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files >= 25, "the corpus has gone: {files} files");
}

#[test]
fn each_expectation_has_its_file() {
    for path in files_in(Path::new("config/invalid"), "expected") {
        assert!(path.with_extension("toml").exists(), "{}", path.display());
    }
}

/// A new user begins with it, on a machine without a cluster.
#[test]
fn the_file_as_it_is_shipped_passes_the_check() {
    let loaded = config::load(Path::new("config/baton.toml")).unwrap_or_else(|rejected| panic!("{}", lines(&rejected)));
    assert_eq!(loaded.warnings, []);
}

#[test]
fn the_reference_file_is_taken() {
    let loaded = config::parse(&reference(), Path::new("config/invalid/baton.toml")).unwrap();
    assert_eq!(loaded.warnings, []);
    let frontend = &loaded.config.frontends[0];
    assert_eq!((&*frontend.name, frontend.listen.len(), frontend.backends.len()), ("apiserver", 2, 3));
    assert!(frontend.health.tls.is_some());
}

/// A value that the reference shows as a default is the default: with all of those lines uncommented nothing changes.
#[test]
fn the_defaults_in_the_reference_are_the_defaults() {
    let path = Path::new("config/invalid/baton.toml");
    let text = reference();
    let mut absent = false;
    let shown = text.lines().map(|line| match line.strip_prefix('#') {
        // A whole table that is commented out, with its keys.
        Some(rest) if rest.starts_with('[') => {
            absent = true;
            line
        }
        _ if line.starts_with('[') => {
            absent = false;
            line
        }
        _ if absent => line,
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) && !has_no_default(rest) => rest,
        _ => line,
    });
    let shown = shown.collect::<Vec<_>>().join("\n");
    assert!(
        shown.lines().filter(|line| line.contains(" = ")).count()
            > text.lines().filter(|l| !l.starts_with('#') && l.contains(" = ")).count() + 30
    );
    assert_eq!(config::parse(&shown, path).unwrap().config, config::parse(&text, path).unwrap().config);
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let huge = directory.path().join("huge.toml");
    fs::write(&huge, "# ".repeat(600_000)).unwrap();
    let fifo = directory.path().join("fifo.toml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let dangling = directory.path().join("dangling.toml");
    std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
    let cases = [
        (directory.path().join("none.toml"), "no such file"),
        (dangling, "no such file"),
        (directory.path().to_path_buf(), "a directory"),
        (fifo, "something that is not a regular file"),
        (huge, "a file of more than 1 MiB"),
    ];
    for (path, why) in cases {
        let rejected = config::load(&path).unwrap_err();
        let (file, allowed) = (path.display(), "expected a readable file of at most 1 MiB");
        let expected = format!("{file}: cannot read the configuration: {why}; {allowed}\n");
        assert_eq!(lines(&rejected), expected);
    }
}

#[test]
fn unwise_settings_are_warned_of_and_taken() {
    let cases = [
        (
            "",
            "hedge_after = \"1s\"",
            "",
            "hedge_after (1s) is not below connect_timeout (1s) in frontend \"apiserver\"",
        ),
        ("", "connect_timeout = \"100ms\"", "", "hedge_after (200ms) is not below connect_timeout (100ms) in frontend"),
        (
            "",
            "connect_attempts = 1\nhedge_after = \"10ms\"",
            "",
            "\"connect_attempts\" in frontend \"apiserver\" is 1, although hedge_after is set",
        ),
        (
            "",
            "drain_timeout = \"0s\"",
            "",
            "\"drain_timeout\" in frontend \"apiserver\" is \"0s\": Baton resets connections",
        ),
        ("", "idle_timeout = \"30s\"", "", "\"idle_timeout\" in frontend \"apiserver\" is \"30s\", and watches"),
        (
            "",
            "user_timeout = \"1s\"",
            "",
            "user_timeout (1s) is not above keepalive_idle + keepalive_interval (15s) in frontend",
        ),
        (
            "",
            "keepalive_idle = \"30s\"\nkeepalive_interval = \"5s\"",
            "",
            "user_timeout (30s) is not above keepalive_idle + keepalive_interval (35s) in frontend",
        ),
        (
            "",
            "accept_proxy_from = [\"0.0.0.0/0\"]",
            "",
            "element 1 of \"accept_proxy_from\" in frontend \"apiserver\" is \"0.0.0.0/0\", which is every client",
        ),
        (
            "",
            "deny = [\"::/0\"]",
            "",
            "element 1 of \"deny\" in frontend \"apiserver\" is \"::/0\", which denies every client",
        ),
        (
            "[process]\nstop_timeout = \"0s\"",
            "",
            "",
            "\"stop_timeout\" in [process] is \"0s\": Baton resets every connection",
        ),
        (
            "[admin]\nhttp = \"0.0.0.0:9470\"",
            "",
            "",
            "\"http\" in [admin] is \"0.0.0.0:9470\", which is no loopback address",
        ),
        (
            "[offload]\nmode = \"off\"\nafter = \"1s\"",
            "",
            "",
            "\"after\" in [offload] has no effect with mode = \"off\"",
        ),
        (
            "[process]\nmax_connections = 100\n[offload]\nmax_flows = 99",
            "",
            "",
            "\"max_flows\" in [offload] is 99, below the max_connections of [process], 100",
        ),
        (
            "",
            "source = \"2001:db8::1\"",
            "",
            "\"source\" in frontend \"apiserver\" is \"2001:db8::1\", and backend \"cp1\" is of the other address family",
        ),
        (
            "",
            "[frontend.health]\ninterval = \"5s\"\ntimeout = \"5s\"",
            "",
            "[frontend.health] of frontend \"apiserver\" lets the clients of a silent backend wait for up to 15.25s",
        ),
        (
            "",
            "[frontend.health]\nkind = \"tls\"\ninsecure_skip_verify = true",
            "",
            "\"insecure_skip_verify\" in [frontend.health] of frontend \"apiserver\" is true: Baton accepts any server",
        ),
        (
            "",
            "[frontend.health]\npath = \"/readyz\"",
            "",
            "\"path\" in [frontend.health] of frontend \"apiserver\" has no effect with kind = \"tcp\" (the default)",
        ),
        (
            "",
            "[frontend.health]\nhost = \"cp\"",
            "",
            "\"host\" in [frontend.health] of frontend \"apiserver\" has no effect with kind = \"tcp\" (the default)",
        ),
        (
            "",
            "[frontend.health]\nkind = \"tls\"\nca_file = \"pem/expired.pem\"",
            "",
            "certificate 1 in \"pem/expired.pem\", \"ca_file\" in [frontend.health] of frontend \"apiserver\", expired on 2021-02-03",
        ),
        (
            "",
            "",
            "health_address = \"10.0.0.12:1\"",
            "\"health_address\" in backend \"cp1\" of frontend \"apiserver\" is \"10.0.0.12:1\", another host than its address",
        ),
        (
            "",
            "",
            "health_address = \"10.0.0.11:6443\"",
            "\"health_address\" in backend \"cp1\" of frontend \"apiserver\" is its address, \"10.0.0.11:6443\"",
        ),
        (
            "",
            "",
            "weight = 0\n[[frontend.backend]]\nname = \"cp2\"\naddress = \"cp2:1\"\nweight = 0",
            "every backend of frontend \"apiserver\" has weight = 0",
        ),
        (
            "",
            "",
            "[[frontend.backend]]\nname = \"cp2\"\naddress = \"10.0.0.11:6443\"",
            "two backends of frontend \"apiserver\" have the address \"10.0.0.11:6443\"",
        ),
    ];
    for (top, frontend, backend, warning) in cases {
        let loaded = config::parse(&file(top, frontend, backend), Path::new("config/invalid/f")).unwrap();
        let said = loaded.warnings.iter().map(|warning| warning.to_string()).collect::<Vec<_>>();
        assert!(said.iter().any(|line| line.contains(&format!(": {warning}"))), "{warning}: {said:#?}");
        assert!(loaded.warnings.iter().all(|warning| warning.severity == Severity::Warning));
    }
}

/// Regression: the line for the log, the page and the recorder had a token that the file has in the place of a path.
#[test]
fn the_line_of_a_refusal_has_no_token_of_a_path_and_no_argument_of_a_program() {
    let text = "[vip]\naddresses = [\"10.0.0.100/32\"]\ninterface = \"eth0\"\non_gain = [\"tell --token=swordfish\"]\n\
                [[frontend]]\nname = \"f\"\nlisten = [\"10.0.0.100:1\"]\n[frontend.health]\nkind = \"http\"\n\
                path = \"readyz?token=swordfish\"\n";
    let rejected = config::parse(text, Path::new("baton.toml")).unwrap_err();
    let Rejected { errors, .. } = rejected;
    let lines: Vec<_> = errors.iter().map(|error| format!("{} {error}", error.help)).collect();
    assert!(lines.iter().any(|line| line.contains("readyz?(removed)")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("tell (removed)")), "{lines:?}");
    assert!(!lines.concat().contains("swordfish"), "{lines:?}");
}

#[test]
fn a_fleet_whose_vip_no_file_names_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("baton.toml");
    fs::write(directory.path().join("key"), config::PeerKey([7; 32]).spell()).unwrap();
    let peers = "[instance]\nname = \"a\"\n[peers]\nlisten = \"10.0.0.1:9471\"\nkey_file = \"key\"\n\
                 [[peers.peer]]\nname = \"b\"\naddress = \"10.0.0.2:9471\"";
    let said = |top: &str, listen: &str| {
        let text = format!(
            "{top}\n[[frontend]]\nname = \"f\"\nlisten = [{listen}]\n[[frontend.backend]]\nname = \"b\"\naddress = \"10.0.0.11:7443\""
        );
        let loaded = config::parse(&text, &path).unwrap();
        loaded.warnings.iter().map(ToString::to_string).find(|warning| warning.contains("name each VIP"))
    };
    for wildcard in ["0.0.0.0:6443", "[::]:6443"] {
        let quoted = format!("{wildcard:?}");
        let warning = said(peers, &quoted).expect("nobody names the VIP");
        assert!(warning.contains(&format!("is {quoted}, and no frontend names a VIP with port 6443")), "{warning}");
        assert!(said(peers, &format!("\"10.0.0.100:6444\", \"127.0.0.1:6443\", {quoted}")).is_some());
        assert_eq!(said(peers, &format!("\"10.0.0.100:6443\", {quoted}")), None);
        assert_eq!(said("", &quoted), None);
    }
}

#[test]
fn a_map_that_is_too_small_for_the_fleet_is_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("baton.toml");
    fs::write(directory.path().join("key"), config::PeerKey([7; 32]).spell()).unwrap();
    let said = |connections: u32, path_table: &str| {
        let top = format!(
            "[process]\nmax_connections = {connections}\n{path_table}\n[instance]\nname = \"a\"\n[peers]\n\
             listen = \"10.0.0.1:9471\"\nkey_file = \"key\"\n[[peers.peer]]\nname = \"b\"\naddress = \"10.0.0.2:9471\"\n\
             [[peers.peer]]\nname = \"c\"\naddress = \"10.0.0.3:9471\""
        );
        let loaded = config::parse(&file(&top, "", ""), &path).unwrap();
        loaded.warnings.iter().map(ToString::to_string).find(|warning| warning.contains("\"max_flows\" in [offload]"))
    };
    let read = "\"max_flows\" in [offload] is 65536, and 3 instances with max_connections = 30000 may have 90000 flows";
    let warning = said(30_000, "").expect("the default is too small");
    assert!(warning.contains(read) && warning.contains("; set 90000: "), "{warning}");
    assert_eq!(said(30_000, "[offload]\nmax_flows = 90000"), None);
    assert_eq!(said(30_000, "[offload]\nmode = \"off\""), None);
    assert_eq!(said(20_000, ""), None);
}

#[test]
fn zero_is_off_where_the_reference_says_so() {
    let text = file(
        "[admin]\nhttp = \"\"\n[process]\nworkers = 0\nmax_connections = 0",
        "hedge_after = \"0s\"\nidle_timeout = \"0s\"\nmax_connections = 0",
        "max_connections = 0",
    );
    let config = config::parse(&text, Path::new("f")).unwrap().config;
    assert_eq!((config.admin.http, config.process.workers, config.process.max_connections), (None, None, None));
    let frontend = &config.frontends[0];
    assert_eq!((frontend.hedge_after, frontend.idle_timeout, frontend.limits.max_connections), (None, None, None));
    assert_eq!(frontend.backends[0].max_connections, None);
}

/// A reload must see a certificate that was renewed in place.
#[test]
fn tls_settings_are_equal_only_while_the_files_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("baton.toml");
    fs::write(&path, file("", "[frontend.health]\nkind = \"https\"\nca_file = \"ca.pem\"", "")).unwrap();
    let put =
        |from: &str| fs::copy(Path::new("config/invalid/pem").join(from), directory.path().join("ca.pem")).unwrap();
    put("ca.pem");
    let before = config::load(&path).unwrap().config;
    assert_eq!(before, config::load(&path).unwrap().config);
    put("expired.pem");
    assert_ne!(before, config::load(&path).unwrap().config);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any damage of a file, the loader either accepts it or names a line that the file has.
    #[test]
    fn a_mutilated_file_is_taken_or_rejected_at_one_of_its_lines(mutations in prop::collection::vec(mutation(), 1..6)) {
        let mut bytes = reference().into_bytes();
        for mutation in mutations {
            mutation.apply(&mut bytes);
        }
        let text = String::from_utf8_lossy(&bytes);
        let last_line = text.lines().count().max(1) as u32;
        match config::parse(&text, Path::new("config/invalid/f.toml")) {
            Ok(Loaded { warnings, .. }) => prop_assert!(warnings.iter().all(|warning| (1..=last_line).contains(&warning.line))),
            Err(Rejected { errors, warnings, .. }) => {
                prop_assert!(!errors.is_empty());
                for finding in errors.iter().chain(&warnings) {
                    prop_assert!((1..=last_line).contains(&finding.line), "{finding} of {last_line}");
                    prop_assert_eq!(finding.to_string().lines().count(), 1);
                    let (place, shown) = (format!("f.toml:{}:{}", finding.line, finding.column), finding.render(false));
                    prop_assert!(shown.contains(&place), "{place}: {shown}");
                }
            }
        }
    }
}

/// One piece of damage; places are taken modulo the file's length.
#[derive(Clone, Debug)]
enum Mutation {
    Replace(usize, u8),
    Insert(usize, String),
    Cut(usize, usize),
    /// Copies one line over another.
    MoveLine(usize, usize),
    /// A commented key is uncommented.
    Uncomment(usize),
    Truncate(usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let at = |place: usize, bytes: &[u8]| place % bytes.len().max(1);
        match *self {
            _ if bytes.is_empty() => {}
            Self::Replace(place, byte) => {
                let place = at(place, bytes);
                bytes[place] = byte;
            }
            Self::Insert(place, ref text) => {
                let place = at(place, bytes);
                bytes.splice(place..place, text.bytes());
            }
            Self::Cut(place, length) => {
                let start = at(place, bytes);
                let end = (start + length).min(bytes.len());
                bytes.drain(start..end);
            }
            Self::MoveLine(from, to) => {
                let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
                let (from, to) = (from % lines.len(), to % lines.len());
                lines[to] = lines[from];
                *bytes = lines.join(&b'\n');
            }
            Self::Uncomment(line) => {
                let starts: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] == b'#').collect();
                if !starts.is_empty() {
                    bytes.remove(starts[line % starts.len()]);
                }
            }
            Self::Truncate(length) => bytes.truncate(at(length, bytes)),
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let place = 0usize..100_000;
    let text = prop_oneof![
        "[\\[\\]{}=\"'#.,\n a-z0-9_-]{1,12}",
        "\\PC{1,4}",
        prop::sample::select(vec![
            "\"\"\"",
            "[[[[[[[[[[",
            "9999999999999999999999",
            "0x",
            "1979-05-27",
            "\r\n",
            "\u{feff}",
            "é.é = 1\n"
        ])
        .prop_map(str::to_owned),
    ];
    prop_oneof![
        (place.clone(), any::<u8>()).prop_map(|(place, byte)| Mutation::Replace(place, byte)),
        (place.clone(), text).prop_map(|(place, text)| Mutation::Insert(place, text)),
        (place.clone(), 1usize..300).prop_map(|(place, length)| Mutation::Cut(place, length)),
        (place.clone(), place.clone()).prop_map(|(from, to)| Mutation::MoveLine(from, to)),
        place.clone().prop_map(Mutation::Uncomment),
        place.prop_map(Mutation::Truncate),
    ]
}

/// The reference, with a CA file that exists on every machine that has this repository.
fn reference() -> String {
    let text = fs::read_to_string("config/baton.toml").unwrap();
    let real = text.replace("\"ca.crt\"", "\"pem/ca.pem\"");
    assert_ne!(real, text);
    real
}

/// A file with one backend, and lines added at the top, in its frontend, and in its backend.
fn file(top: &str, frontend: &str, backend: &str) -> String {
    format!(
        "{top}\n[[frontend]]\nname = \"apiserver\"\nlisten = [\"127.0.0.1:6443\"]\n{frontend}\n\
         [[frontend.backend]]\nname = \"cp1\"\naddress = \"10.0.0.11:6443\"\n{backend}\n"
    )
}

fn has_no_default(line: &str) -> bool {
    [
        "host",
        "server_name",
        "client_cert_file",
        "client_key_file",
        "health_address",
        "vrrp_advert_interval",
        "name",
        "slot",
        "track_file",
    ]
    .iter()
    .any(|key| line.starts_with(&format!("{key} = ")))
}

fn lines(rejected: &Rejected) -> String {
    rejected.errors.iter().chain(&rejected.warnings).map(|finding| format!("{finding}\n")).collect()
}

fn files_in(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}
