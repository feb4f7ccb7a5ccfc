//! A host's clock can be set by hours at any moment, so nothing that happens to a flow may depend on it. These are all places that read
//! it, each with what it is read for.

use std::fs;
use std::path::Path;

use crate::sources::files;

/// Beginning of the path below src, and the reason.
const READERS: &[(&str, &str)] = &[
    ("admin/refusals.rs", "the time of the last refusal, for people"),
    ("admin/status/build.rs", "the time of an answer"),
    ("admin/summary.rs", "which event is still worth a line"),
    ("app.rs", "the first number of flows; recovered flows and peers' records raise it where the clock is behind"),
    ("app/history.rs", "the time of a chart's points"),
    ("app/reload.rs", "the time of a reload"),
    ("cli/", "a time that a user asks for"),
    ("config/recorded.rs", "the time of a process's start"),
    ("config/tls.rs", "a warning of a certificate that has expired"),
    ("fleet/link/hub/leave.rs", "the same as in the hub"),
    (
        "fleet/link/hub.rs",
        "tells two processes of one instance apart; only while both are linked does it matter which is greater",
    ),
    ("lab/", "words of drills"),
    ("metrics/process.rs", "the process's start"),
    ("offload/engine/keep/standby.rs", "which of two connections from one client address is older: docs/limits.md"),
    ("offload/engine/retold.rs", "the age of a flow that another instance accepted"),
    ("proxy/tell.rs", "the age of a flow, for other instances"),
    ("recorder.rs", "the time of a record"),
    ("sys/clock.rs", "the functions themselves"),
    ("table/journal.rs", "the time of an event"),
];

const CALLS: &[&str] = &["SystemTime::now", "unix_ns", "unix_ms", "unix_ms_of", "ns_of_unix_ms", "ClockId::Realtime"];

#[test]
fn the_clock_that_can_be_set_is_read_only_for_what_it_is_needed_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let paths = files(&root).into_iter().filter(|path| !path.ends_with("tests.rs"));
    let reading: Vec<_> = paths.filter(|path| reads_it(&fs::read_to_string(path).unwrap())).collect();
    let reading: Vec<_> = reading.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
    let further: Vec<_> = reading.iter().filter(|it| !READERS.iter().any(|(known, _)| it.starts_with(known))).collect();
    assert!(further.is_empty(), "sys::clock::now_ns tells time that no one sets: {further:?}");
    let gone: Vec<_> = READERS.iter().filter(|(known, _)| !reading.iter().any(|it| it.starts_with(known))).collect();
    assert!(gone.is_empty(), "these do not read it any more: {gone:?}");
}

/// Whether code, not a comment, calls one of them.
fn reads_it(text: &str) -> bool {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(|line| CALLS.iter().flat_map(|call| calls(line, call))).next().is_some()
}

/// The calls of a function in a line, also by its path alone.
fn calls<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    line.match_indices(name).map(|(at, _)| (&line[..at], &line[at + name.len()..])).find_map(|(before, after)| {
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        let is_call = after.starts_with('(') || name.contains("::") || before.ends_with("::");
        (is_word && is_call && !before.trim_end().ends_with("fn")).then_some(after)
    })
}

#[test]
fn a_reader_of_the_clock_is_found() {
    for line in ["let at = unix_ms();", "clock::unix_ms_of(x)", "map(clock::unix_ns)", "SystemTime::now()"] {
        assert!(reads_it(line), "{line}");
    }
    for line in ["fn unix_ms() -> u64", "record.at_unix_ms", "sample.unix_ms()", "// unix_ms()", "at_unix_ms(x)"] {
        assert!(!reads_it(line), "{line}");
    }
}
