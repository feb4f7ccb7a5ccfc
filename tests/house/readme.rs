//! Compares the statements of the README and docs/ with the program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use baton::config::{self, PeerKey};
use baton::model::end_reason::{ClientSaw, EndReason};

fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// README.md and similar files, and every page of docs/.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|it| it == "md")).collect::<Vec<_>>()
    };
    [".", "docs", "docs/decisions", "benches", "benches/results", "packaging"]
        .iter()
        .flat_map(|folder| listed(folder))
        .collect()
}

/// The name under which a page's heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|it| it.is_alphanumeric() || " -_".contains(*it))
        .map(|it| if it == ' ' { '-' } else { it })
        .collect()
}

#[test]
fn the_table_of_end_reasons_is_complete_and_in_the_words_of_the_code() {
    let page = page("docs/end-reasons.md");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `") && line.ends_with(". |")).collect();
    let expected: Vec<_> = EndReason::ALL
        .iter()
        .map(|reason| {
            let by = serde_json::to_value(reason.by()).unwrap();
            let saw = match reason.client_saw() {
                ClientSaw::Fin => "FIN",
                ClientSaw::Rst => "RST",
                ClientSaw::Nothing => "–",
            };
            format!("| `{}` | {} | {saw} | {} |", reason.label(), by.as_str().unwrap(), reason.about())
        })
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn the_example_configurations_are_valid() {
    let pages: Vec<_> = pages().into_iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let whole = |text: &&str| text.contains("[[frontend.backend]]");
    let examples: Vec<_> = pages
        .iter()
        .flat_map(|page| page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()))
        .filter(whole)
        .collect();
    assert_eq!(examples.len(), 5);
    let deployed = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/vip/baton.toml")).unwrap();
    let examples = examples.into_iter().chain([&*deployed]);
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, PeerKey([7; 32]).spell()).unwrap();
    let key_file = format!("key_file = {:?}", key.path());
    for example in examples {
        // The authority's file exists only on a control-plane host, and the key only on hosts of a fleet.
        let here: String = example
            .lines()
            .map(|line| match line.split(' ').next() {
                Some("ca_file") => "insecure_skip_verify = true",
                Some("key_file") => &key_file,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let loaded = config::parse(&here, "a page".as_ref()).unwrap();
        let expected = |warning: &&config::Diagnostic| !warning.to_string().contains("insecure_skip_verify");
        let surprising: Vec<_> = loaded.warnings.iter().filter(expected).map(ToString::to_string).collect();
        assert_eq!(surprising, Vec::<String>::new());
    }
}

#[test]
fn the_front_pages_are_short() {
    for (path, most) in [("README.md", 140), ("ARCHITECTURE.md", 100)] {
        let lines = page(path).lines().count();
        assert!(lines <= most, "{path} has {lines} lines, {most} are allowed");
    }
}

#[test]
fn no_link_leads_nowhere() {
    let mut count = 0;
    let mut dead = Vec::new();
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            count += 1;
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let leads = target.exists()
                && (wanted.is_empty()
                    || fs::read_to_string(&target).is_ok_and(|text| {
                        let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                        headings.any(|line| anchor(line.trim_start_matches('#')) == wanted)
                    }));
            if !leads {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(count > 50, "the links were not read: {count}");
    assert_eq!(dead, Vec::<String>::new());
}

#[test]
fn each_command_that_a_page_names_exists() {
    let mut named = BTreeMap::new();
    for path in pages() {
        let folder = path.parent().unwrap();
        // The decisions also name what commands were called before.
        if folder.ends_with("docs") || path.ends_with("README.md") && !folder.ends_with("decisions") {
            let text = fs::read_to_string(&path).unwrap();
            commands_in(&text).for_each(|command| {
                named.entry(command.to_owned()).or_insert(path.clone());
            });
        }
    }
    assert!(named.len() > 20, "the commands were not read: {named:?}");
    named.retain(|command, _| {
        let ran = Command::new(env!("CARGO_BIN_EXE_baton")).args([command, "--help"]).output().unwrap();
        !ran.status.success()
    });
    assert!(named.is_empty(), "baton has no such command: {named:?}");
}

/// The word after `baton` in code and in lines that a shell gets, options left out.
fn commands_in(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["`baton ", "$ baton ", "# baton ", "sudo baton "];
    let after = calls.into_iter().flat_map(|call| text.split(call).skip(1));
    let line = |rest: &str| rest.len().min(rest.find(['`', '\n']).unwrap_or(rest.len()));
    let word = move |rest| str::split_whitespace(&rest[..line(rest)]).find(|word| !word.starts_with('-'));
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    after.filter_map(word).filter(is_name)
}

#[test]
fn a_command_is_found_in_code_and_in_a_line_for_a_shell() {
    let text = "`baton --json events` and `baton -h`, baton and others\n$ baton flows --limit 1\nsudo baton kill 7";
    assert_eq!(commands_in(text).collect::<Vec<_>>(), ["events", "flows", "kill"]);
}

#[test]
fn each_decision_is_listed() {
    let index = page("docs/decisions/README.md");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("({name})")),
            "{name} is not in docs/decisions/README.md"
        );
    }
}

#[test]
fn the_documents_show_what_check_prints() {
    let check = page("docs/check.md");
    let mut shown = check.split("$ baton check -c /etc/baton/baton.toml\n").skip(1);
    let mut shown = || shown.next().unwrap().split("```").next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("baton.toml");
    let said = |text: String| {
        fs::write(&path, text).unwrap();
        let baton = Path::new(env!("CARGO_BIN_EXE_baton"));
        let said = Command::new(baton).arg("check").arg("-c").arg(&path).output().unwrap();
        let said = [said.stderr, said.stdout].map(|it| String::from_utf8(it).unwrap()).concat();
        said.replace(path.to_str().unwrap(), "/etc/baton/baton.toml")
    };

    let frontend = "[[frontend]]\nname = \"apiserver\"\nlisten = [\"10.0.0.100:6443\"]";
    let backend =
        |number| format!("[[frontend.backend]]\nname = \"cp{number}\"\naddress = \"10.0.0.1{number}:6443\"\n");
    let faulty = "balanse = \"least_conn\"\n\n[frontend.health]\ninterval = \"2\"\n";
    let faulty = format!("{frontend}{}{faulty}{}{}", "\n".repeat(9), backend(1), backend(2));
    assert_eq!(shown(), said(faulty));

    // The configuration for kubeadm, with the adverts of deploy/keepalived.
    let install = page("docs/install.md");
    let example = install.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let ca = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/ca.crt");
    let example = example.replace("/etc/kubernetes/pki/ca.crt", ca.to_str().unwrap());
    assert_eq!(shown(), said(format!("{example}\n[cluster]\nvrrp_advert_interval = \"100ms\"\n")));

    // Three nodes that balance for themselves.
    let stacked = page("docs/stacked.md");
    let example = stacked.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let key = directory.path().join("peers.key");
    fs::write(&key, PeerKey([7; 32]).spell()).unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let example = example.replace("/etc/kubernetes/pki/ca.crt", ca.to_str().unwrap());
    let example = example.replace("/etc/baton/peers.key", key.to_str().unwrap());
    let shown = stacked.split("$ baton check -c /etc/baton/baton.toml\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(shown, said(example));
}

#[test]
fn each_fault_that_is_listed_has_its_tests() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"));
    let faults = fs::read_to_string(format!("{root}/docs/faults.md")).unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    for row in faults.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row ")) {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for named in tests.split('`').skip(1).step_by(2) {
            count += 1;
            let (file, name) = named.split_once(' ').unwrap_or((named, ""));
            let text = fs::read_to_string(format!("{root}/tests/{file}.rs")).unwrap_or_default();
            let is_there = text.split("#[test]").skip(1).any(|test| test.contains(&format!("fn {name}")));
            if !is_there {
                missing.push(format!("{row}: {named}"));
            }
        }
    }
    assert!(count > 50, "the table was not read: {count}");
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn each_attack_that_is_listed_has_its_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(format!("{root}/SECURITY.md")).unwrap();
    let table = page.split("## Who can do what").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attacker ")) {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        // What no test shows is a weak place.
        assert_eq!(tests == "–", row.contains("**Baton believes it"), "{row}");
        for named in tests.split('`').skip(1).step_by(2) {
            count += 1;
            let (file, name) = named.split_once(' ').expect("a file and a name");
            let text = fs::read_to_string(format!("{root}/{file}.rs")).unwrap_or_default();
            if !text.split("test]").skip(1).any(|test| test.contains(&format!("fn {name}"))) {
                missing.push(named.to_owned());
            }
        }
    }
    assert!(count > 20, "the table was not read: {count}");
    assert_eq!(missing, Vec::<String>::new());
}
