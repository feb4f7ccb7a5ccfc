//! An event is told once: `src/table/journal/sentences.rs` has its words for the log, `baton events` and the page, so
//! that the code that records an event writes no log line about it as well.

use crate::sources::{Source, sources};

/// The file with the words.
const TABLE: &str = "table/journal";

/// Limit for the lines of code between an event and a log line that counts as one about it.
const NEAR: usize = 6;

/// Log lines beside an event that are not about it: the file, the beginning of the line, and its subject.
const NOT_ABOUT_IT: &[(&str, &str, &str)] = &[
    ("admin/flow_log", "tracing::warn!(", "flows that the log skipped, in the next function"),
    ("app/upgrade/new", "tracing::error!(%error", "the servers of this process, beside the event of the upgrade"),
    ("vips/holder", "tracing::warn!(%error", "a timer that the kernel refused, before the next function"),
    ("recorder", "tracing::info!(directory", "the other outcome: nothing to say at a host without the state directory"),
];

#[test]
fn an_event_is_told_once() {
    let sources = sources();
    let mut faults: Vec<_> = sources.iter().flat_map(|source| told_twice(&source.name(), &source.code)).collect();
    for (file, begin, _) in NOT_ABOUT_IT {
        let before = faults.len();
        faults.retain(|fault| !(fault.file == *file && fault.line.starts_with(begin)));
        assert_eq!(
            before - faults.len(),
            1,
            "take it out of the list: {file} has no such line beside an event: {begin}"
        );
    }
    let faults: Vec<_> = faults.iter().map(|fault| format!("src/{}.rs: {}", fault.file, fault.line)).collect();
    assert!(faults.is_empty(), "say it in src/{TABLE}/sentences.rs alone:\n{}", faults.join("\n"));
    let tell = |source: &&Source| source.code.contains("journal.record(");
    assert!(sources.iter().filter(tell).count() > 10, "events are recorded in another way now");
}

#[test]
fn a_line_beside_an_event_is_found() {
    let found = |code: &str| told_twice("vips", code).len();
    assert_eq!(found("tracing::error!(%address, x);\nself.table.journal.record(What::VipAlone { address });"), 1);
    assert_eq!(found("journal.record(what);\n}\ninfo!(x);"), 1, "imported");
    assert_eq!(
        found("match note {\nNote::Came => {\ntracing::info!(x);\nWhat::AddressCame { address }\n}"),
        1,
        "made only"
    );
    assert_eq!(
        found("tracing::debug!(x);\njournal.record(What::OffloadResumed {});"),
        0,
        "for whoever looks for faults"
    );
    assert_eq!(found("tracing::warn!(x);\nevents.push(ProgramWhat::Fin);"), 0, "an event of another kind");
    assert_eq!(
        found(
            "tracing::info!(x);\nrecord(&flows);\n}\nfn record(flows: &[Flow]) {\na;\nb;\nc;\nd;\ne;\nf;\njournal.record(what);"
        ),
        1,
        "by a function of its own"
    );
    assert_eq!(
        found("tracing::info!(x);\norders.end(all);\n}\nfn end() {\na;\nb;\nc;\nd;\ne;\nf;\njournal.record(what);"),
        0,
        "another object's method of this name"
    );
    assert_eq!(found("tracing::warn!(x);\na;\nb;\nc;\nd;\ne;\njournal.record(what);"), 1, "six lines before");
    assert_eq!(found(&format!("tracing::warn!(x);{}\njournal.record(what);", "\na;".repeat(8))), 0, "far away");
}

struct Fault {
    file: String,
    line: String,
}

/// Each line of `code` that logs beside one that makes or records an event.
fn told_twice(file: &str, code: &str) -> Vec<Fault> {
    if file.starts_with(TABLE) {
        return Vec::new();
    }
    let lines: Vec<_> = code.lines().map(str::trim).collect();
    let tells = |line: &str| line.contains("journal.record") || begins_word(line, "What::");
    let logs = |line: &str| ["info!(", "warn!(", "error!("].iter().any(|call| begins_word(line, call));
    // A function that records an event tells it wherever it is called.
    let names = lines.iter().enumerate().filter(|(_, line)| line.contains("journal.record"));
    let names: Vec<_> = names.filter_map(|(at, _)| lines[..at].iter().rev().find_map(|line| function(line))).collect();
    let calls = |line: &str| function(line).is_none() && names.iter().any(|name| is_call(line, &format!("{name}(")));
    let events: Vec<_> =
        lines.iter().enumerate().filter(|(_, line)| tells(line) || calls(line)).map(|(at, _)| at).collect();
    let beside = |at: usize| events.iter().any(|event| event.abs_diff(at) <= NEAR);
    let told = lines.iter().enumerate().filter(|(at, line)| logs(line) && beside(*at));
    told.map(|(_, line)| Fault { file: file.to_owned(), line: (*line).to_owned() }).collect()
}

/// Whether `line` has `call`, and not as the method of another object.
fn is_call(line: &str, call: &str) -> bool {
    let own = |before: &str| {
        before.ends_with("self.") || !before.ends_with(|c: char| c.is_alphanumeric() || "_.".contains(c))
    };
    line.match_indices(call).any(|(at, _)| own(&line[..at]))
}

/// The name of the function that `line` begins.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let name = after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (before.is_empty() || before.ends_with(' ')).then_some(name).filter(|name| !name.is_empty())
}

/// Whether `part` is in `line` and no name ends right before it.
fn begins_word(line: &str, part: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(part).any(|(at, _)| !line[..at].ends_with(in_name))
}
