//! The table is state, and the parts talk through ports: nothing in the table makes a caller wait or wakes a thread,
//! and only one room sets each flag of a port.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sources::{files, sources, without_text, words};

/// Names that only a conversation needs. A path counts as the word before its colons, as in `watch::Sender`.
const TALK: &[&str] =
    &["SegQueue", "ArrayQueue", "EventFd", "Notify", "mpsc", "watch::", "oneshot", "broadcast", "Condvar"];

/// Flags that more than one room sets, and why.
const SET_TWICE: &[(&str, &str)] =
    &[("fleet.set_whole", "the offload engine, when it has recovered all; the wiring, where there is no engine")];

#[test]
fn the_table_has_no_queue_and_wakes_nobody() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let in_table = |path: &Path| path.strip_prefix(&root).unwrap().with_extension("").starts_with("table");
    let files: Vec<_> = files(&root).into_iter().filter(|path| in_table(path)).collect();
    assert!(files.len() > 10, "the table was not found");
    let faults: Vec<_> = files
        .iter()
        .filter_map(|path| Some((path, talk(&without_text(&fs::read_to_string(path).unwrap()))?)))
        .map(|(path, word)| format!("{} uses {word}", path.strip_prefix(&root).unwrap().display()))
        .collect();
    assert!(faults.is_empty(), "make it a port, in src/ports:\n{}", faults.join("\n"));
}

#[test]
fn a_queue_and_a_wake_are_found_and_words_like_them_are_not() {
    let found = |text: &str| talk(&without_text(text));
    assert_eq!(found("struct A { queue: crossbeam_queue::SegQueue<u8> }"), Some("SegQueue"));
    assert_eq!(found("pub came: tokio::sync::Notify,"), Some("Notify"));
    assert_eq!(found("keeping: watch::Sender<bool>,"), Some("watch::"));
    assert_eq!(found("fn watch(&self) {} // a Notify\nlet a = \"EventFd\"; struct Notifying;"), None);
}

/// A word of `code` that only a conversation needs.
fn talk(code: &str) -> Option<&'static str> {
    let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = |word: &str| match word.strip_suffix("::") {
        Some(module) => {
            code.match_indices(word).any(|(at, _)| words(&code[..at + module.len()]).last() == Some(module))
        }
        None => words(&code).any(|other| other == word),
    };
    TALK.iter().find(|word| named(word)).copied()
}

#[test]
fn each_flag_of_a_port_is_set_by_one_room() {
    let sources = sources();
    let ports = sources.iter().filter(|source| source.module == "ports");
    let flags: Vec<_> = ports.flat_map(|source| flags(&source.name(), &source.code)).collect();
    assert!(flags.len() > 6, "the flags were not found: {flags:?}");
    let mut setters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.module != "ports") {
        let code: String = source.code.split_whitespace().collect();
        for flag in flags.iter().filter(|flag| sets(&code, flag)) {
            setters.entry(flag).or_default().insert(&source.module);
        }
    }
    let allowed: BTreeSet<_> = SET_TWICE.iter().map(|(flag, _)| *flag).collect();
    let several: BTreeMap<_, _> = setters.into_iter().filter(|(_, rooms)| rooms.len() > 1).collect();
    let new: Vec<_> = several.iter().filter(|(flag, _)| !allowed.contains(*flag)).collect();
    assert!(new.is_empty(), "several rooms set a flag: {new:?}");
    let gone: Vec<_> = allowed.iter().filter(|flag| !several.contains_key(*flag)).collect();
    assert!(gone.is_empty(), "take it out of the list: {gone:?}");
}

#[test]
fn what_sets_a_flag_is_found() {
    assert_eq!(
        flags("ports/fleet", "pub fn set_ready(&self, ready: bool) {} pub fn is_ready(&self) {}"),
        ["fleet.set_ready"]
    );
    assert!(sets("self.core.ports.fleet.set_ready(true)", "fleet.set_ready"));
    assert!(!sets("exchange.set_ready(true);myfleet.set_ready(true);fleet.set_ready_ns(1)", "fleet.set_ready"));
}

/// The calls that set the flags of the port in this file.
fn flags(file: &str, code: &str) -> Vec<String> {
    let port = file.rsplit('/').next().unwrap_or_default();
    words(code).filter(|word| word.starts_with("set_")).map(|setter| format!("{port}.{setter}")).collect()
}

/// Whether `code`, which has no white space, contains this call.
fn sets(code: &str, flag: &str) -> bool {
    code.match_indices(&format!("{flag}("))
        .any(|(at, _)| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}
