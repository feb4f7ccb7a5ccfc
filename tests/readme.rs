//! What the README says is what the program does.

use std::fs;

use baton::config::{self, PeerKey};
use baton::model::end_reason::{ClientSaw, EndReason};

fn readme() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap()
}

#[test]
fn the_table_of_end_reasons_is_complete_and_in_the_words_of_the_code() {
    let readme = readme();
    let rows: Vec<_> = readme.lines().filter(|line| line.starts_with("| `") && line.ends_with(". |")).collect();
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
    let readme = readme();
    let examples: Vec<_> = readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 3);
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, PeerKey([7; 32]).spell()).unwrap();
    let key_file = format!("key_file = {:?}", key.path());
    for example in examples {
        // The authority's file is on a control-plane host only, and the key on those of a fleet.
        let here: String = example
            .lines()
            .map(|line| match line.split(' ').next() {
                Some("ca_file") => "insecure_skip_verify = true",
                Some("key_file") => &key_file,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let loaded = config::parse(&here, "README.md".as_ref()).unwrap();
        let expected = |warning: &&config::Diagnostic| !warning.to_string().contains("insecure_skip_verify");
        let surprising: Vec<_> = loaded.warnings.iter().filter(expected).map(ToString::to_string).collect();
        assert_eq!(surprising, Vec::<String>::new());
    }
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
