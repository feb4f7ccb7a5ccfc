//! Enforces the layers of ARCHITECTURE.md: imports point only downwards, siblings never import each other, and files
//! stay short enough to read.

use std::path::Path;

use crate::circles::paths;
use crate::sources::{DIVIDED, Source, code_only, sources, words};

/// From the top; a module may use the rows below and its own modules.
const LAYERS: &[&[&str]] = &[
    &["main", "cli", "fuzzing"],
    &["app", "lab"],
    &[
        "proxy",
        "offload",
        "health",
        "discover",
        "rebalance",
        "recorder",
        "fleet/link",
        "fleet/failover",
        "upgrade",
        "admin",
        "preflight",
        "vips",
        "late_resets",
        "translate",
    ],
    &["table", "config", "metrics", "drain", "essential"],
    // Below the table: an entry may have a port of its own, and no port uses the table.
    &["ports"],
    &["model", "part"],
    &["sys"],
    // Below sys, so that a signature of a system call can say which end of a flow it concerns.
    &["addr"],
];

/// Modules of one row that may use each other: the binary is a thin shell around the command line.
const TOGETHER: &[[&str; 2]] = &[["main", "cli"]];

/// The only file outside the lab that may use it: the lab is a cargo feature.
const DISPATCH: &str = "cli/lab.rs";

const MAIN_LINES_MAX: usize = 130;
const FILE_LINES_MAX: usize = 600;

/// Places that may spawn work that is not essential: the file, the text after `spawn(`, and the reason.
const INESSENTIAL: &[(&str, &str, &str)] = &[
    ("admin/http.rs", "async move { cut_off", "a conversation"),
    ("admin/http/live.rs", "async move { let served", "a conversation"),
    ("admin/session.rs", "async move {", "a conversation"),
    ("app/upgrade.rs", "attend)", "sees to another process"),
    ("health/probe.rs", "async move { manner.attempt", "an attempt, which its probe sees fail"),
    ("discover/reverse.rs", "async move { (client, timeout", "a query, without which a client has no name"),
    ("fleet/link/hub/leave.rs", "async move { sleep(FAREWELL_MAX)", "lets a link say its last words"),
    ("fleet/link/hub/lines.rs", "async move { link.make", "a link, which is made anew"),
    ("fleet/link/hub/lines.rs", "async move { if let Err(error) = site.take", "a link, which its other end makes anew"),
];

/// Names that the model must not use: it is pure.
const IMPURE: &[&str] = &["tokio", "socket2", "rustix", "libc", "fastrand", "Instant", "SystemTime"];

#[test]
fn imports_point_downwards() {
    let faults: Vec<_> =
        sources().iter().flat_map(|source| import_faults(&source.module, &source.name(), &source.code)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn unsafe_stands_only_in_sys() {
    let faults: Vec<_> = sources()
        .iter()
        .filter(|source| source.module != "sys" && words(&source.code).any(|word| word == "unsafe"))
        .map(|source| source.path.display().to_string())
        .collect();
    assert!(faults.is_empty(), "unsafe outside src/sys: {faults:?}");
}

#[test]
fn the_model_is_pure() {
    let faults: Vec<_> = sources()
        .iter()
        .filter(|source| source.module == "model")
        .filter_map(|source| Some((source, words(&source.code).find(|word| IMPURE.contains(word))?)))
        .map(|(source, word)| format!("{} uses {word}", source.path.display()))
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
}

/// Otherwise a build without the lab would not compile.
#[test]
fn one_file_knows_of_the_lab() {
    let knows = |source: &Source| {
        let prefixes = ["crate::", "baton::"];
        let used = prefixes.iter().flat_map(|prefix| modules_used(&source.code, prefix));
        used.chain(modules_around(&source.name(), &source.code)).any(|module| module == "lab")
    };
    let sources = sources();
    let know = sources.iter().filter(|source| source.module != "lab" && knows(source));
    let know: Vec<_> = know.filter(|source| !source.path.ends_with(DISPATCH)).map(|source| &source.path).collect();
    assert!(know.is_empty(), "only {DISPATCH} may: {know:?}");
}

/// Otherwise a part could panic, and the process would go on without it.
#[test]
fn whatever_is_spawned_is_essential_or_listed() {
    let faults: Vec<_> = sources()
        .iter()
        .filter(|source| !["main", "cli", "lab"].contains(&source.module.as_str()) || is_of_the_daemon(&source.path))
        .filter(|source| !source.path.ends_with("essential.rs"))
        .flat_map(|source| spawn_faults(&source.path, &source.code))
        .collect();
    assert!(faults.is_empty(), "not by essential::task or essential::thread:\n{}", faults.join("\n"));
}

#[test]
fn a_spawn_that_is_neither_essential_nor_listed_is_found() {
    let found = |code: &str| spawn_faults(Path::new("src/vips.rs"), code).len();
    assert_eq!(found("tokio::spawn(run());"), 1);
    assert_eq!(found("tasks.spawn(\n    once_serving(x));"), 1);
    assert_eq!(found("std::thread::Builder::new().spawn(work)?"), 1);
    assert_eq!(found("tokio::spawn(essential::task(\"vips\", run()));"), 0);
    assert_eq!(found(&code_only("tasks.spawn(\"vips\", run());")), 0);
    assert_eq!(found("let run = spawn_blocking(walk); nft.spawn()?; scope.spawn(ask)"), 0);
}

/// Places that stop tasks in another way than by `essential::Tasks` or a CancellationToken, and why.
const STOPPED_OTHERWISE: &[(&str, &str)] = &[
    ("health/probe.rs", "attempts race, and the first to end has won"),
    ("discover/reverse.rs", "each query is waited for, with a limit"),
];

/// Files with a oneshot channel, which carries an answer; the drop of one would be another way to stop a task.
const ONESHOTS: &[(&str, &str)] = &[
    ("admin/upgrade.rs", "the old process waits until the requester has the result of the upgrade"),
    ("app/upgrade.rs", "the same"),
    ("app/control.rs", "what an ordered rebalance came to"),
    ("fleet/link/connection.rs", "the hub's answer to a hello"),
    ("fleet/link/hub.rs", "the hub has said farewell"),
    ("fleet/link/hub/leave.rs", "the same"),
    ("ports/fleet.rs", "what the failover knows, for the next process"),
    ("health.rs", "a backend's state, and that an order is carried out"),
    ("health/watcher.rs", "the same"),
    ("rebalance.rs", "what an ordered rebalance came to"),
];

/// Otherwise each part would stop its tasks in its own way (an abort handle, a dropped sender), and nobody would know
/// what ends when.
#[test]
fn tasks_are_stopped_in_one_way() {
    let daemon = |source: &&Source| !["main", "cli", "lab"].contains(&source.module.as_str());
    let other = |source: &&Source| !source.path.ends_with("essential.rs") && !source.path.ends_with("tests.rs");
    let listed = |source: &&Source| !STOPPED_OTHERWISE.iter().any(|(file, _)| source.path.ends_with(file));
    let sources = sources();
    let faults: Vec<_> = sources.iter().filter(daemon).filter(other).filter(listed).flat_map(stop_faults).collect();
    assert!(faults.is_empty(), "not by essential::Tasks or a CancellationToken:\n{}", faults.join("\n"));
}

fn stop_faults(source: &Source) -> Vec<String> {
    let answers = ONESHOTS.iter().any(|(file, _)| is_file(source, file));
    let ways = ["JoinSet", "abort_handle(", ".abort()", "task::JoinHandle", "oneshot"];
    let found = ways.iter().filter(|way| source.code.contains(**way) && !(**way == "oneshot" && answers));
    found.map(|way| format!("{}: {way}", source.path.display())).collect()
}

#[test]
fn another_way_to_stop_a_task_is_found() {
    let found = |file: &str, code: &str| {
        let source = Source { path: file.into(), module: String::new(), lines: 0, code: code.to_owned() };
        stop_faults(&source).len()
    };
    assert_eq!(found("src/vips.rs", "ended: oneshot::Receiver<()>"), 1);
    assert_eq!(found("src/health.rs", "done: oneshot::Sender<Ordered>, all: JoinSet<()>"), 1);
    assert_eq!(found("src/vips.rs", "ended: CancellationToken, ended: DropGuard"), 0);
    let unused = |file: &str| !sources().iter().any(|it| is_file(it, file) && it.code.contains("oneshot"));
    let unused: Vec<_> = ONESHOTS.iter().filter(|(file, _)| unused(file)).collect();
    assert!(unused.is_empty(), "take them out of the list: {unused:?}");
}

fn is_file(source: &Source, file: &str) -> bool {
    source.path.ends_with(Path::new("src").join(file))
}

/// Files with tasks of the runtime that walk through all flows or ask the kernel, and how they keep other tasks from
/// waiting.
const ASKING: &[(&str, &str)] = &[
    ("admin/commands/flows.rs", "the walk lets other tasks have their turn"),
    ("admin/commands/kill.rs", "the same"),
    ("admin/nodes.rs", "on a thread for blocking work"),
    ("app/diff.rs", "on a thread for blocking work"),
    ("app/evacuate.rs", "on a thread for blocking work"),
    ("fleet/failover/control.rs", "on a thread of its own"),
    ("fleet/link/hub.rs", "one connection or one route at a time, some µs each"),
    ("health/surroundings.rs", "the same; a list only while an interface has no carrier"),
    ("health/watcher/publish.rs", "on a thread for blocking work"),
    ("late_resets.rs", "some µs each, and other tasks have their turn"),
    ("rebalance/round.rs", "on a thread for blocking work"),
    ("vips.rs", "on a thread for blocking work"),
    ("vips/holder.rs", "on a thread of its own"),
];

/// Otherwise the runtime's two threads would stand still during a walk through a million flows.
#[test]
fn a_task_that_walks_or_asks_the_kernel_is_listed() {
    let sources = sources();
    let daemon =
        sources.iter().filter(|source| !["main", "cli", "lab", "sys", "model"].contains(&source.module.as_str()));
    let asking: Vec<_> = daemon.filter(|source| asks_in_a_task(&source.module, &source.code)).collect();
    let listed = |source: &&&Source| ASKING.iter().any(|(file, _)| is_file(source, file));
    let faults: Vec<_> = asking.iter().filter(|source| !listed(source)).map(|source| source.name()).collect();
    assert!(faults.is_empty(), "by essential::aside, or with the measured time beside it: {faults:?}");
    let unused: Vec<_> = ASKING.iter().filter(|(file, _)| !asking.iter().any(|source| is_file(source, file))).collect();
    assert!(unused.is_empty(), "take them out of the list: {unused:?}");
}

#[test]
fn a_task_that_asks_the_kernel_is_found() {
    let found = |room: &str, code: &str| asks_in_a_task(room, code);
    assert!(found("late_resets", "async fn run() { netlink::route(ip); }"));
    assert!(found("admin", "run(async move { table.flows\n        .iter() })"));
    assert!(found("health", "fn hear() { netdev::addresses() }"), "its tasks call it");
    assert!(!found("offload", "fn run() { sock_diag::connection(a, b) }"), "a thread");
    assert!(!found("admin", "async fn run() { frontends.iter() }"));
}

/// The room `health` runs in tasks throughout.
fn asks_in_a_task(room: &str, code: &str) -> bool {
    let code: String = code.split_whitespace().collect::<Vec<_>>().join(" ").replace(" .", ".");
    let calls = ["netlink::", "sock_diag::", "netdev::addresses", "netdev::networks", "flows.iter()"];
    let is_task = room == "health" || code.contains("async ") || code.contains(".await");
    is_task && calls.iter().any(|call| code.contains(call))
}

/// Only `baton run` among the commands.
fn is_of_the_daemon(path: &Path) -> bool {
    ["cli/run.rs", "cli/service.rs", "cli/logging.rs"].iter().any(|own| path.ends_with(own))
}

/// Each place of `code` that spawns work that is neither essential nor listed.
fn spawn_faults(path: &Path, code: &str) -> Vec<String> {
    let words_of = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let spawns = code.match_indices("spawn(").filter(|(at, _)| {
        // A child process takes no argument, and a scope waits for its threads.
        !code[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            && !code[..*at].ends_with("scope.")
            && !code[at + "spawn(".len()..].starts_with(')')
    });
    let what = spawns.map(|(at, call)| words_of(&code[at + call.len()..]));
    // `essential::Tasks` takes the name first, and the code here has no strings.
    what.filter(|what| !what.starts_with("essential::") && !what.starts_with(','))
        .filter(|what| !INESSENTIAL.iter().any(|(file, begin, _)| path.ends_with(file) && what.starts_with(begin)))
        .map(|what| format!("{}: spawn({}", path.display(), what.chars().take(60).collect::<String>()))
        .collect()
}

#[test]
fn files_are_short_enough_to_read() {
    let limit = |source: &Source| if source.module == "main" { MAIN_LINES_MAX } else { FILE_LINES_MAX };
    let faults: Vec<_> = sources()
        .iter()
        .filter(|source| source.lines > limit(source))
        .map(|source| format!("{}: {} lines, at most {}", source.path.display(), source.lines, limit(source)))
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// An entry that cannot be read may exist all the same: see `program::Unread`.
#[test]
fn a_failed_read_of_the_map_is_not_taken_for_no_entry() {
    let is_wrong = |source: &&Source| source.code.split_whitespace().collect::<String>().contains(".ok().flatten()");
    let offloads = sources().into_iter().filter(|source| source.name().contains("offload"));
    let faults: Vec<_> = offloads.filter(|source| is_wrong(&source)).map(|source| source.name()).collect();
    assert!(faults.is_empty(), ".ok().flatten() in {faults:?}");
}

#[test]
fn an_upward_or_sideways_import_is_found() {
    let found = |module: &str, text: &str| import_faults(module, module, &code_only(text)).len();
    assert_eq!(found("table", "use crate::proxy::relay;"), 1, "upward");
    assert_eq!(found("proxy", "fn f() { crate::health::check::run() }"), 1, "sideways, without use");
    assert_eq!(found("admin", "use crate::{metrics::Metrics, health::Checker, proxy};"), 2, "in braces");
    assert_eq!(found("model", "use crate::sys::{clock, eventfd};\nuse crate::table::Table;"), 1, "one of two");
    assert_eq!(found("fleet/link", "use crate::fleet::failover::Links;"), 1, "sideways in a divided room");
    assert_eq!(found("proxy", "use crate::fleet::{failover::Links, link};"), 2, "both of a divided room");
    assert_eq!(found("nowhere", "use crate::addr::VipAddr;"), 1, "a module in no layer");
    assert_eq!(found("main", "use baton::{cli, upstart};"), 1, "an unknown module of the library");
}

#[test]
fn a_downward_import_a_comment_a_string_and_a_test_are_no_faults() {
    let text = r##"
//! As [`crate::app`] wires it.
use crate::table::flows::{FlowTable, FlowView};
use crate::{addr, config::Config, model::{balance, ids::FlowId}};
/* crate::cli */
const QUOTE: char = '"';
const TEXT: &str = "crate::cli \" crate::app";
const RAW: &str = r#"crate::cli "quoted" crate::app"#;
fn f<'a>(x: &'a str) -> &'a str { x }
#[cfg(test)]
mod tests {
    use crate::app::build;
}
"##;
    assert_eq!(import_faults("proxy", "proxy", &code_only(text)), [""; 0]);
    assert_eq!(import_faults("app", "app", "use crate::fleet::{failover, link};"), [""; 0], "from above");
    let after = "#[cfg(test)]\nmod tests;\nmod relay;\nuse crate::app::build;\nstruct X {}";
    assert_eq!(
        import_faults("proxy", "proxy", &code_only(after)).len(),
        1,
        "what follows a module of tests in a file of its own"
    );
}

#[test]
fn an_import_by_way_of_the_module_around_is_found() {
    let found = |module, name, code| import_faults(module, name, code).len();
    assert_eq!(found("late_resets", "late_resets", "use super::rebalance::plan;"), 1);
    assert_eq!(found("late_resets", "late_resets", "fn f() { self::super::rebalance::plan() }"), 1);
    assert_eq!(found("proxy", "proxy/accept/queue", "use super::super::super::{addr::A, health::{B, C}};"), 2);
    assert_eq!(found("fleet/link", "fleet/link/hub", "use super::super::failover::Control;"), 1);
    assert_eq!(found("proxy", "proxy/accept/queue", "use super::super::health::Own; use super::table::A;"), 0);
    assert_eq!(found("app", "app", "use super::{fleet::{link, failover::A}, table};"), 0, "from above");
    assert_eq!(modules_around("cli", "use super::lab::run;"), ["lab"]);
    assert_eq!(modules_around("cli/demo", "use super::lab::run;"), [""; 0]);
}

/// The rooms that the paths of `code` reach through `super`, as seen from the file `name`.
fn modules_around(name: &str, code: &str) -> Vec<String> {
    let mut used = Vec::new();
    for path in paths(code).into_iter().filter(|path| ["super", "self"].contains(&path[0])) {
        let mut at: Vec<&str> = name.split('/').collect();
        let climbs = path.iter().take_while(|word| ["super", "self"].contains(*word)).count();
        for _ in path[..climbs].iter().filter(|word| **word == "super") {
            at.pop();
        }
        // Inside of the room, or of a divided room's part.
        if at.len() > usize::from(DIVIDED.contains(&at.first().copied().unwrap_or_default())) {
            continue;
        }
        at.extend(&path[climbs..]);
        match at[..] {
            [room, part, ..] if DIVIDED.contains(&room) => used.push(format!("{room}/{part}")),
            [room, ..] => used.push(room.to_owned()),
            [] => {}
        }
    }
    used
}

/// One line per import in `code`, a file `name` of top-level module `module`, that the layers forbid.
fn import_faults(module: &str, name: &str, code: &str) -> Vec<String> {
    let row = |name: &str| LAYERS.iter().position(|row| row.contains(&name));
    let Some(own) = row(module) else {
        return vec![format!("{module}: in no layer of tests/house/layers.rs")];
    };
    let prefixes: &[&str] = if module == "main" { &["crate::", "baton::"] } else { &["crate::"] };
    let used = prefixes.iter().flat_map(|prefix| modules_used(code, prefix));
    let around = modules_around(name, code);
    used.chain(around)
        .filter(|used| used != module && !TOGETHER.contains(&[module, used]) && !TOGETHER.contains(&[used, module]))
        .filter(|used| row(used).is_none_or(|used| used <= own))
        .map(|used| format!("{module} may not use {used}"))
        .collect()
}

/// The top-level modules in paths that begin with `prefix`, those in braces one by one; for a divided room its part.
fn modules_used(code: &str, prefix: &str) -> Vec<String> {
    let mut used = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        for name in named(rest) {
            match rest.strip_prefix(&format!("{name}::")).filter(|_| DIVIDED.contains(&name.as_str())) {
                Some(inside) => used.extend(named(inside).into_iter().map(|part| format!("{name}/{part}"))),
                None => used.push(name),
            }
        }
    }
    used
}

/// The first element of `path`, or of each path of a list in braces.
fn named(path: &str) -> Vec<String> {
    match path.strip_prefix('{') {
        Some(list) => heads(list),
        None => words(path).next().map(str::to_owned).into_iter().collect(),
    }
}

/// The first word of each entry of a brace list whose opening brace was just read.
fn heads(list: &str) -> Vec<String> {
    let (mut depth, mut heads, mut entry) = (1, Vec::new(), String::new());
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && character == ',') {
            heads.extend(words(&entry).next().map(str::to_owned));
            entry.clear();
        } else {
            entry.push(character);
        }
        if depth == 0 {
            break;
        }
    }
    heads
}
