//! docs/runbook.md and docs/end-reasons.md help with every alert and every end reason, and name nothing that is not there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use baton::model::end_reason::EndReason;

fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A rule's name and annotations.
struct Alert {
    name: String,
    command: String,
    runbook: String,
}

/// The rules, in their order: the file keeps to one key a line.
fn alerts() -> Vec<Alert> {
    let rules = page("deploy/prometheus/baton.rules.yml");
    let rules = rules.split("- alert: ").skip(1).map(|rule| {
        let value = |key: &str| {
            let found = rule.lines().find_map(|line| line.trim_start().strip_prefix(key));
            found.unwrap_or_default().trim().to_owned()
        };
        let name = rule.lines().next().unwrap().trim().to_owned();
        Alert { name, command: value("command: "), runbook: value("runbook: ") }
    });
    rules.collect()
}

/// The pages whose commands are tried.
const PAGES: [&str; 3] = ["docs/runbook.md", "docs/end-reasons.md", "docs/security.md"];

#[test]
fn each_alert_has_its_section_and_each_section_its_alert() {
    let runbook = page("docs/runbook.md");
    let sections: Vec<_> = runbook
        .split("\n### ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap())
        // A heading of the next group ends the section.
        .map(|(name, text)| (name, text.split("\n## ").next().unwrap()))
        .collect();
    let alerts = alerts();
    assert!(alerts.len() > 20, "the rules were not read: {}", alerts.len());
    let named: Vec<_> = sections.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, alerts.iter().map(|it| &*it.name).collect::<Vec<_>>());
    for (alert, (name, text)) in alerts.iter().zip(sections) {
        assert_eq!(alert.runbook, format!("docs/runbook.md#{}", name.to_lowercase()), "the annotation of {name}");
        for part in ["Clients", "Type first", "Causes", "Do", "Clears"] {
            assert_eq!(text.matches(&format!("\n**{part}:**")).count(), 1, "{name}: **{part}:**");
        }
        let first = text.split("**Type first:** ").nth(1).unwrap();
        assert!(first.starts_with(&format!("`{}`", alert.command)), "{name} types not {} first", alert.command);
    }
}

#[test]
fn each_end_reason_has_its_advice_and_each_setting_is_a_key() {
    let text = page("docs/end-reasons.md");
    let advice = text.split("| reason | is it a fault? |").nth(1).expect("the table of advice");
    let rows: Vec<Vec<_>> = advice
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let labels: Vec<_> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(labels, EndReason::ALL.iter().map(|it| it.label()).collect::<Vec<_>>());
    let example = page("config/baton.toml");
    let keys: BTreeSet<_> =
        example.lines().filter_map(|line| line.trim_start_matches('#').split_once(" = ")).map(|(key, _)| key).collect();
    for row in &rows {
        assert!(!row[1].is_empty(), "{row:?} says not whether it is a fault");
        for setting in row.get(3).unwrap_or(&"").split('`').skip(1).step_by(2) {
            let is_there = keys.contains(setting)
                || example.contains(&format!("\n{setting}\n"))
                || example.contains(&format!("\n#{setting}\n"))
                || setting.starts_with("baton ");
            assert!(is_there, "{row:?}: config/baton.toml has no {setting}");
        }
    }
}

#[test]
fn each_command_of_the_run_book_is_one_with_these_options() {
    let mut commands = BTreeSet::new();
    for text in PAGES.map(page) {
        let spans = text.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("baton "));
        let typed = text.lines().filter_map(|line| line.strip_prefix("$ baton "));
        commands.extend(spans.chain(typed).map(str::to_owned));
    }
    assert!(commands.len() > 20, "the commands were not read: {commands:?}");
    for command in commands {
        // An option without its value stands for any value.
        let value = if command.ends_with("--deadline") { Some("30s") } else { None };
        // A name in capitals stands for any name; a network must be one.
        let words = command.split(' ').map(|word| if word == "NETWORK" { "10.0.0.0/8" } else { word });
        let words = words.chain(value).chain(["--help"]);
        let output = Command::new(env!("CARGO_BIN_EXE_baton")).args(words).output().unwrap();
        assert!(output.status.success(), "baton {command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
