//! One word for each way in which a flow changes hands (docs/glossary.md): no name and no sentence uses a retired word.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The beginning of a retired word, and the word to use. Compared with each part of a name and each word of a sentence.
const RETIRED: &[(&str, &str)] = &[
    ("graduat", "offload"),
    ("handoff", "upgrade"),
    ("handover", "evacuate (a host on purpose), upgrade (a process)"),
    ("takeover", "failover (from a dead peer), upgrade (from the old process)"),
    ("adopt", "recover (what a process left), inherit (from a dead peer), import (in an upgrade)"),
    ("tickl", "challenge"),
    ("passport", "flow transfer"),
    ("parcel", "moving flow"),
    ("limbo", "bytes in flight"),
    ("pulse", "liveness"),
    ("stray", "unknown packet"),
    ("mend", "fix"),
    ("lent", "offload (a flow), share (a listener), forward (packets to a peer)"),
    ("lend", "offload (a flow), share (a listener), forward (packets to a peer)"),
    ("hast", "urgent (an acknowledgement), shorten (a wait)"),
    ("ripe", "offload (later, now), may be tried"),
    ("newcomer", "new process (of an upgrade), new client, added backend"),
    ("elsewhere", "the host, process, address or backend that is meant"),
    ("recall", "recover (what a process left), restore (counters of an upgrade)"),
    ("bury", "fail over (a dead peer), inherit or refuse (its flows)"),
    ("buri", "fail over (a dead peer), inherit or refuse (its flows)"),
    ("hurr", "at once"),
];

/// Two words that together are retired, and the words to use. A sum that is "taken over a packet" is none.
const RETIRED_PAIRS: &[([&str; 2], &str)] = &[
    (["take", "over"], "inherit (a dead peer's flows), replace (the old process of an upgrade)"),
    (["takes", "over"], "inherits (a dead peer's flows), replaces (the old process of an upgrade)"),
    (["took", "over"], "inherited (a dead peer's flows), replaced (the old process of an upgrade)"),
    (["hand", "over"], "evacuate (a host on purpose), upgrade (a process)"),
    (["hands", "over"], "evacuates (a host on purpose), upgrades (a process)"),
    (["handed", "over"], "evacuated (a host on purpose), moved (a flow of an upgrade)"),
    (["let", "go"], "give (the VIP), forget (a flow that another process has), release (a hold)"),
    (["lets", "go"], "gives (the VIP), forgets (a flow that another process has), releases (a hold)"),
    (["letting", "go"], "moving (the VIP)"),
];

/// Words that are retired as names in code, and stay as verbs: a request is carried out, a flow is carried on.
const RETIRED_NAMES: &[(&str, &str)] = &[
    ("carried", "offloaded (a flow), saved (counters of an upgrade)"),
    ("desk", "state (of an evacuation)"),
    ("hearing", "reachability, surroundings (of a backend)"),
];

/// A path is one of files, or of packets through the network. The offload engine and the BPF program are none.
const RETIRED_PATHS: &[&str] =
    &["struct Path {", "Path(Standby", "Action::Path", "has_path", "agenda.path(", "he path has ", "he path's program"];

/// Retired words that stay in a file: a name in C is also in the line information of the compiled object.
const KEPT: &[(&str, &str)] = &[
    ("src/offload/bpf/entry.h", "lent"),
    ("src/offload/bpf/unknown.h", "lent"),
    ("src/offload/bpf/offload.c", "lent"),
    ("src/offload/bpf/splice.h", "took over"),
];

/// Files in which the old names stay: where users may still type one and are told the new one, and this file.
const EXEMPT: &[&str] = &[
    "src/cli/renamed.rs",
    "src/config/renamed.rs",
    "config/invalid/former-names.toml",
    "config/invalid/former-names.expected",
    "docs/glossary.md",
    "docs/decisions/001-one-word-for-each-way.md",
    "tests/house/words.rs",
];

const FOLDERS: &[&str] =
    &["src", "tests", "benches", "fuzz/fuzz_targets", "proptest-regressions", "config", "deploy", "docs", "packaging"];
const FILES: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Cargo.toml", ".ci/run"];

#[test]
fn no_retired_word_is_used() {
    let mut files: Vec<_> = FILES.iter().map(PathBuf::from).collect();
    FOLDERS.iter().for_each(|folder| gather(Path::new(folder), &mut files));
    assert!(files.len() > 300, "{} files", files.len());
    let faults: Vec<_> = files
        .iter()
        .filter(|file| !EXEMPT.iter().any(|exempt| file.ends_with(exempt)))
        .flat_map(|file| {
            let name = file.to_string_lossy().into_owned();
            let text = fs::read(root().join(file)).unwrap_or_else(|error| panic!("{name}: {error}"));
            let text = String::from_utf8_lossy(&text).into_owned();
            let lines =
                text.lines().enumerate().map(|(index, line)| (format!("{name}:{}", index + 1), line.to_owned()));
            // The table of former names.
            let lines = lines.filter(|(_, line)| name != "CHANGELOG.md" || !line.starts_with('|'));
            let own = std::iter::once((name.clone(), name.clone()));
            let is_kept = |word: &str| KEPT.iter().any(|kept| *kept == (&*name, word));
            own.chain(lines)
                .flat_map(|(place, line)| {
                    let said = retired(&line).filter(|(word, _)| !is_kept(word));
                    said.map(|(_, said)| format!("{place}: {said}")).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(faults.is_empty(), "{} places\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_retired_word_is_found_in_every_form() {
    let found = |line: &str| retired(line).count();
    for line in [
        "let graduated = 1;",
        "fn wait_graduated()",
        "struct PathAdopted;",
        "Handover begins",
        "baton_handoffs_total",
        "TAKEOVER_NS",
        "struct LentSockets;",
        "fn lend_listeners()",
        "is_hasty",
        "const HASTE",
        "fn ripen_now()",
        "RecallTurns",
        "enum Newcomers {",
        "fn goes_on_elsewhere(&mut self)",
        "its flows are buried",
        "struct Buried;",
        "is_hurried",
        "fn let_go(&mut self)",
        "EvacuateOrder::LetGo",
        "it takes over a flow",
        "flows handed over a second",
    ] {
        assert_eq!(found(line), 1, "{line}");
    }
    for line in ["an undergraduate", "taken over", "readopted", "silent", "calendar", "let goes = 1", "take it over"] {
        assert_eq!(found(line), 0, "{line}");
    }
}

#[test]
fn no_retired_name_is_in_code() {
    let mut files = Vec::new();
    ["src", "tests", "benches"].iter().for_each(|folder| gather(Path::new(folder), &mut files));
    files.retain(|file| file.extension().is_some_and(|it| it == "rs") && !file.ends_with("tests/house/words.rs"));
    assert!(files.len() > 300, "{} files", files.len());
    let faults: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(root().join(file)).unwrap();
            let faults = |(index, line): (usize, &str)| {
                retired_names(line).into_iter().map(move |said| format!("{}:{}: {said}", file.display(), index + 1))
            };
            let own = file.display().to_string();
            retired_names(&own).into_iter().chain(text.lines().enumerate().flat_map(faults)).collect::<Vec<_>>()
        })
        .collect();
    assert!(faults.is_empty(), "{} places\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_retired_name_is_found_in_code_alone() {
    let found = |line: &str| retired_names(line).len();
    for line in [
        "struct CarriedCounters;",
        "let is_carried = 1;",
        "mod carried; // moved",
        "src/table/carried.rs",
        "struct Desk;",
        "mod hearing;",
    ] {
        assert_eq!(found(line), 1, "{line}");
    }
    for line in ["pub(super) struct Path {", "Path(StandbyRequest),", "has_path: bool", "// The path has both sockets."]
    {
        assert_eq!(found(line), 1, "{line}");
    }
    for line in ["health.carried_out.await", "fn each_end_is_carried_on()", "/// It is carried.", "say(\"carried\")"] {
        assert_eq!(found(line), 0, "{line}");
    }
}

#[test]
fn the_glossary_has_each_word_to_use() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    for word in ["offload", "upgrade", "evacuate", "failover", "recover", "challenge"] {
        assert!(glossary.lines().any(|line| line.starts_with(&format!("| **{word}** |"))), "{word}");
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Text files below `folder`, without objects, pictures and generated files.
fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let entry = entry.expect("a name");
        let path = folder.join(entry.file_name());
        let kept = !path.extension().is_some_and(|it| ["o", "svg", "png"].iter().any(|other| it == *other));
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() && entry.file_name() != "__pycache__" && entry.file_name() != "target" => {
                gather(&path, files)
            }
            kind if kind.is_file() && kept => files.push(path),
            _ => {}
        }
    }
}

/// The retired words and pairs in `line`, as in the lists, with the sentence that names the words to use.
fn retired(line: &str) -> impl Iterator<Item = (String, String)> + use<> {
    let parts: Vec<_> = line.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(parts).collect();
    let lower: Vec<_> = parts.iter().map(|part| part.to_ascii_lowercase()).collect();
    let word = |part: &String| {
        let (word, instead) = RETIRED.iter().find(|(retired, _)| part.to_ascii_lowercase().starts_with(retired))?;
        Some(((*word).to_owned(), format!("{part:?}: say {instead}")))
    };
    let pair = |two: &[String]| {
        let (_, instead) = RETIRED_PAIRS.iter().find(|(pair, _)| pair == two)?;
        Some((two.join(" "), format!("{:?}: say {instead}", two.join(" "))))
    };
    let faults: Vec<_> = parts.iter().filter_map(word).chain(lower.windows(2).filter_map(pair)).collect();
    faults.into_iter()
}

/// The retired names in the code of `line`, each with the words to use.
fn retired_names(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let names = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let faults = names.flat_map(|name| {
        let parts: Vec<_> = name.split('_').flat_map(parts).map(|part| part.to_ascii_lowercase()).collect();
        let is_retired = |index: usize, word: &str| {
            let next = parts.get(index + 1).map(String::as_str);
            parts[index] == word && !matches!(next, Some("on" | "out"))
        };
        let found = |index| RETIRED_NAMES.iter().find(|(word, _)| is_retired(index, word));
        let found = (0..parts.len()).filter_map(found).map(|(_, instead)| format!("{name:?}: say {instead}"));
        found.collect::<Vec<_>>()
    });
    let paths = RETIRED_PATHS.iter().filter(|said| line.contains(**said));
    faults.chain(paths.map(|said| format!("{said:?}: say offload, offload engine or BPF program"))).collect()
}

/// `PathAdopted` is of two parts, `ADOPTED` of one.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut before = ' ';
    for c in name.chars() {
        match parts.last_mut() {
            Some(part) if !(c.is_ascii_uppercase() && before.is_ascii_lowercase()) => part.push(c),
            _ => parts.push(c.to_string()),
        }
        before = c;
    }
    parts
}

/// Types with the same name in several places, and why each may stay: no code that uses one is near the other.
const NAMED_TWICE: &[(&str, &str)] = &[
    ("Action", "what the failover machine asks for; what an entry does with a packet"),
    ("Admin", "the doors; their section of the file"),
    ("Arrival", "of a backend; of a flow"),
    ("Field", "of a section; of a flow's row"),
    ("Heard", "by a beat; by a session"),
    ("Hello", "of the peer link; of the upgrade"),
    ("Instance", "in the status; its section of the file"),
    ("Kind", "of a key's value; of a message"),
    ("Message", "of the peer link, of the upgrade, and to a worker"),
    ("OffloadSettings", "as the file has them; as the engine wants them"),
    ("Ordered", "an order's answer, inside and on the socket"),
    ("Progress", "of a flow in an upgrade; of an offloaded one"),
    ("Rebalance", "its section of the file; its answer on the socket"),
    ("Side", "of a flow, in the machine, in the proxy, in a firewall's rule"),
    ("Source", "of connections to backends, in the file; the old process of an upgrade"),
];

#[test]
fn no_other_type_has_the_name_of_another() {
    let mut files = Vec::new();
    gather(Path::new("src"), &mut files);
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_product(file)) {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for name in text.lines().take_while(|line| *line != "mod tests {").filter_map(type_name) {
            places.entry(name.to_owned()).or_default().insert(file.display().to_string());
        }
    }
    assert!(places.len() > 500, "{} types", places.len());
    places.retain(|_, places| places.len() > 1);
    let found: BTreeSet<_> = places.keys().map(String::as_str).collect();
    let allowed: BTreeSet<_> = NAMED_TWICE.iter().map(|(name, _)| *name).collect();
    let new: Vec<_> = found.difference(&allowed).map(|name| (*name, &places[*name])).collect();
    assert!(new.is_empty(), "give these names of their own: {new:#?}");
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "take these out of the list: {gone:?}");
}

fn is_product(file: &Path) -> bool {
    let path = file.to_string_lossy();
    path.ends_with(".rs") && !["tests.rs", "/tests/", "testing.rs", "simulation"].iter().any(|part| path.contains(part))
}

/// The type that `line` begins to define. The associated types of a trait's implementation do not count.
fn type_name(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub(") {
        Some(rest) => rest.split_once(')')?.1.trim_start(),
        None => code.strip_prefix("pub ").unwrap_or(code),
    };
    let (word, rest) = code.split_once(' ')?;
    let is_associated = word == "type" && line.starts_with(' ');
    let name = rest.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    let defines = ["struct", "enum", "union", "trait", "type"].contains(&word) && !is_associated;
    (defines && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}
