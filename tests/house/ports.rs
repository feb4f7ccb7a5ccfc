//! The table is state, and the parts talk through ports: nothing in the table makes a caller wait or wakes a thread,
//! and only one room sets each flag of a port.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sources::{files, sources, without_text, words};

/// Names that only a conversation needs. A path counts as the word before its colons, as in `watch::Sender`.
const TALK: &[&str] = &[
    "SegQueue",
    "ArrayQueue",
    "EventFd",
    "Notify",
    "Semaphore",
    "mpsc",
    "sync_channel",
    "watch::",
    "oneshot",
    "broadcast",
    "Condvar",
    "Barrier",
    "Waker",
    "AtomicWaker",
    "Thread",
    "park",
    "unpark",
];

/// Types that make a queue or a flag, unless the field is state.
const MAY_TALK: &[&str] = &["VecDeque", "LinkedList", "AtomicBool"];

/// The fields of the table with a type of [`MAY_TALK`], each with the reason why it is state: its owner alone writes
/// what is true of itself, anybody reads it at any time, and no reader clears it or takes something out.
const STATE: &[(&str, &str, &str)] = &[
    (
        "table/backend",
        "beyond_reach",
        "the failover says what the peers' addresses mean for new flows, and each worker's pick reads it",
    ),
    ("table/backend", "former", "the registry says of an entry that its backend has another address now"),
    ("table/journal", "ended", "the last ended flows, which every reader finds again"),
    ("table/journal", "other", "the last other events, which every reader finds again"),
    ("table/offload", "is_off", "the configuration's choice, which the view of the engine's state shows as its reason"),
    ("table/offload", "stopped", "the engine's breaker is open: status, metrics and workers see the same state"),
    ("table/worker", "accept_paused", "the worker's own memory that it paused, which status and metrics show"),
    ("table/worker", "alive", "the worker says of itself that it serves, for the watchdog and status"),
];

/// Flags that more than one room sets, and why.
const SET_TWICE: &[(&str, &str)] = &[
    ("wake", "whoever has put something into the queue sets it for the part that waits"),
    ("complain", "late_resets and the worker send resets, and the first failure of either is logged"),
    ("want_clients", "the health checker and the VIP's holder ask for clients, each for its own decision"),
    ("set_whole", "the offload engine, when it has recovered all; the wiring, where there is no engine"),
];

/// Fields that are no port and have a method of such a name, by the text before the call, and the type.
const NO_PORTS: &[(&str, &str)] = &[("exchange.", "model::fleet::Exchange")];

/// Rooms that have no port, but types with methods of such names.
const WITHOUT_PORTS: &[&str] = &["lab", "model", "sys"];

#[test]
fn the_table_has_no_queue_and_wakes_nobody() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let in_table = |path: &Path| path.strip_prefix(&root).unwrap().with_extension("").starts_with("table");
    let files: Vec<_> = files(&root).into_iter().filter(|path| in_table(path)).collect();
    assert!(files.len() > 10, "the table was not found");
    let (mut faults, mut state) = (Vec::new(), BTreeSet::new());
    for path in &files {
        let name = path.strip_prefix(&root).unwrap().with_extension("").display().to_string();
        let code = without_text(&fs::read_to_string(path).unwrap());
        faults.extend(talk(&code).map(|word| format!("{name} uses {word}")));
        for field in may_talk(&code) {
            match STATE.iter().find(|(file, listed, _)| (*file, *listed) == (&*name, &*field)) {
                Some((file, listed, _)) => _ = state.insert((*file, *listed)),
                None => faults.push(format!("{name} has {field:?}, a queue or a flag")),
            }
        }
    }
    assert!(faults.is_empty(), "make it a port, in src/ports:\n{}", faults.join("\n"));
    let gone: Vec<_> = STATE.iter().filter(|(file, field, _)| !state.contains(&(*file, *field))).collect();
    assert!(gone.is_empty(), "take it out of the list: {gone:?}");
}

#[test]
fn a_field_that_may_be_a_queue_or_a_flag_is_found() {
    let found = |text: &str| may_talk(&without_text(text));
    assert_eq!(found("struct A { pub queue: Mutex<std::collections::VecDeque<u8>>, b: u8 }"), ["queue"]);
    assert_eq!(found("struct A { b: u8, stop: Arc<AtomicBool>,\n all: [AtomicBool; 4] }"), ["stop", "all"]);
    assert_eq!(found("static STOP: AtomicBool = AtomicBool::new(false);"), ["STOP"]);
    assert_eq!(found("struct A(AtomicBool);"), ["struct A("]);
    assert_eq!(found("use std::{collections::VecDeque, sync::atomic::{AtomicBool, AtomicU8}};"), [""; 0]);
    assert_eq!(found("Self { a: AtomicBool::new(false) } // a VecDeque"), [""; 0]);
}

/// The name before each type of [`MAY_TALK`] in `code`, outside of `use` and of calls; the text if it has no name.
fn may_talk(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, word) in MAY_TALK.iter().flat_map(|word| code.match_indices(word)) {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        let statement = before.rfind([';', '}']).map_or(before, |end| &before[end + 1..]).trim_start();
        let imported = before.rfind("use ").is_some_and(|from| !before[from..].contains(';'));
        if before.ends_with(is_word) || after.starts_with(is_word) || after.starts_with("::") || imported {
            continue;
        }
        // The last single colon, and not one of a path, stands between the name and its type.
        let bytes = statement.as_bytes();
        let single =
            |at: &usize| bytes[*at] == b':' && bytes.get(at + 1) != Some(&b':') && (*at == 0 || bytes[at - 1] != b':');
        let colon = (0..bytes.len()).rev().find(single).filter(|colon| !statement[*colon..].contains([',', '(']));
        let name = colon.and_then(|colon| words(&statement[..colon]).last());
        found.push((at, name.unwrap_or(statement).to_owned()));
    }
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn a_queue_and_a_wake_are_found_and_words_like_them_are_not() {
    let found = |text: &str| talk(&without_text(text));
    assert_eq!(found("struct A { queue: crossbeam_queue::SegQueue<u8> }"), Some("SegQueue"));
    assert_eq!(found("pub came: tokio::sync::Notify,"), Some("Notify"));
    assert_eq!(found("keeping: watch::Sender<bool>,"), Some("watch::"));
    assert_eq!(found("waiting: OnceLock<std::thread::Thread>,"), Some("Thread"));
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
    let setters: BTreeSet<_> = ports.flat_map(|source| setters(&source.code)).collect();
    assert!(setters.len() > 10, "the setters were not found: {setters:?}");
    let mut rooms: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let others = sources.iter().filter(|source| source.module != "ports");
    for source in others.filter(|source| !WITHOUT_PORTS.contains(&source.module.as_str())) {
        let code: String = source.code.split_whitespace().collect();
        for setter in setters.iter().filter(|setter| sets(&code, setter)) {
            rooms.entry(setter).or_default().insert(&source.module);
        }
    }
    let nowhere: Vec<_> = setters.iter().filter(|setter| !rooms.contains_key(**setter)).collect();
    assert!(nowhere.is_empty(), "their calls were not found: {nowhere:?}");
    let allowed: BTreeSet<_> = SET_TWICE.iter().map(|(setter, _)| *setter).collect();
    let several: BTreeMap<_, _> = rooms.into_iter().filter(|(_, rooms)| rooms.len() > 1).collect();
    let new: Vec<_> = several.iter().filter(|(setter, _)| !allowed.contains(*setter)).collect();
    assert!(new.is_empty(), "several rooms set a flag: {new:?}");
    let gone: Vec<_> = allowed.iter().filter(|setter| !several.contains_key(*setter)).collect();
    assert!(gone.is_empty(), "take it out of the list: {gone:?}");
}

#[test]
fn what_sets_a_flag_is_found() {
    let port = "pub fn set_ready(&self, ready: bool) {} pub fn is_ready(&self) -> bool { self.ready.load(Relaxed) }
        pub fn want(&self) { self.wanted.store(true, Relaxed); } pub fn take(&self) -> bool { self.a.swap(false, B) }
        pub fn first(&self) { if !self.said.swap(true, Relaxed) { log(); } }";
    assert_eq!(setters(port), ["set_ready", "want", "first"]);
    for call in ["self.core.ports.fleet.set_ready(true)", "port.set_ready(true)", "Fleet::set_ready(&port,true)"] {
        assert!(sets(call, "set_ready"), "{call}");
    }
    assert!(!sets("self.exchange.set_ready(true);fleet.set_ready_ns(1);fnset_ready(&self)", "set_ready"));
}

/// The methods of a port that set a flag: by their names, or because they store into an atomic one.
fn setters(code: &str) -> Vec<&str> {
    let methods = code.split("pub fn ").flat_map(|part| part.split("pub(crate) fn ")).skip(1);
    let named = methods.filter_map(|method| Some((words(method).next()?, method)));
    let stores = |method: &str| [".store(true", ".swap(true"].iter().any(|call| method.contains(call));
    named.filter(|(name, method)| name.starts_with("set_") || stores(method)).map(|(name, _)| name).collect()
}

/// Whether `code`, which has no white space, calls this method of a port.
fn sets(code: &str, setter: &str) -> bool {
    let calls = [format!(".{setter}("), format!("::{setter}(")];
    calls.iter().flat_map(|call| code.match_indices(call)).any(|(at, call)| {
        let receiver = &code[..at + call.len() - setter.len() - 1];
        !NO_PORTS.iter().any(|(other, _)| receiver.ends_with(other))
    })
}
