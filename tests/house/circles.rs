//! Finds circles of imports. The layers forbid them between rooms. Inside a room, files may import each other only if
//! they are one part.
//!
//! A part is a room. In the rooms of [`PARTED`] it is a file of the room with the folder of the same name, as `proxy/accept.rs` with
//! `proxy/accept/`; the room's own file, `proxy.rs`, is a part as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::sources::sources;

/// Rooms of several parts.
const PARTED: &[&str] =
    &["proxy", "offload", "fleet", "upgrade", "preflight", "vips", "cli", "lab", "metrics", "model", "sys"];

/// Imports that close a circle, and why each may stay.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// Each file by its path below src without `.rs`, with the files of the modules that its code names.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_circle_goes_through_files_of_different_parts() {
    let mut imports = imports_of(sources().iter().map(|source| (source.name(), source.code.as_str())));
    for (from, to, _) in ALLOWED {
        let was_there = imports.get_mut(*from).is_some_and(|imported| imported.remove(*to));
        assert!(was_there, "take it out of the list: {from} no longer imports {to}");
    }
    let circles = circles(&imports);
    assert!(circles.is_empty(), "{} imports close a circle:\n{}", circles.len(), circles.join("\n"));
    for (from, to, _) in ALLOWED {
        imports.get_mut(*from).expect("a file").insert((*to).to_owned());
        let closes = way(&imports, to, from).is_some();
        assert!(closes, "take it out of the list: {from} may import {to}, which closes no circle any more");
        imports.get_mut(*from).expect("a file").remove(*to);
    }
}

#[test]
fn a_circle_of_two_parts_is_found_and_one_inside_of_a_part_is_none() {
    let found = |files: &[(&str, &str)]| {
        circles(&imports_of(files.iter().map(|(name, code)| ((*name).to_owned(), *code)))).len()
    };
    let worker = ("proxy/worker", "use super::accept::{Listeners, Burst}; struct Worker;");
    assert_eq!(found(&[worker, ("proxy/accept", "use super::worker::Worker;")]), 2, "each of the two imports");
    assert_eq!(found(&[worker, ("proxy/accept", "fn f(worker: &crate::proxy::worker::Worker) {}")]), 2, "without use");
    assert_eq!(
        found(&[worker, ("proxy/accept", "mod queue;"), ("proxy/accept/queue", "use super::super::worker;")]),
        0
    );
    let around = ("proxy/accept", "use crate::{addr, proxy::{flow::Flow, plane}};");
    assert_eq!(found(&[worker, around, ("proxy/flow", "use super::{plane, worker::Worker};")]), 3, "by way of a third");
    assert_eq!(found(&[("proxy/accept", "use queue::Q;"), ("proxy/accept/queue", "use super::Burst;")]), 0, "one part");
    assert_eq!(
        found(&[("proxy", "use worker::Worker;"), ("proxy/worker", "use super::Shared;")]),
        2,
        "the room's own file"
    );
    assert_eq!(found(&[("table/flows", "use super::orders;"), ("table/orders", "use super::flows;")]), 0, "one room");
}

/// The part that the file of this name belongs to.
fn part_of(name: &str) -> String {
    let mut segments = name.split('/');
    let room = segments.next().unwrap_or_default();
    match segments.next().filter(|_| PARTED.contains(&room)) {
        Some(part) => format!("{room}/{part}"),
        None => room.to_owned(),
    }
}

/// One line for each import between two parts that closes a circle.
fn circles(imports: &Imports) -> Vec<String> {
    let pairs = imports.iter().flat_map(|(from, imported)| imported.iter().map(move |to| (from, to)));
    let between_parts = pairs.filter(|(from, to)| part_of(from) != part_of(to));
    between_parts.filter_map(|(from, to)| Some(format!("{from} -> {}", way(imports, to, from)?.join(" -> ")))).collect()
}

/// The shortest chain of imports between two files, both included.
fn way(imports: &Imports, from: &str, to: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        if at == to {
            let mut way = vec![at.to_owned()];
            let mut at = at;
            while at != from {
                at = before[at];
                way.push(at.to_owned());
            }
            way.reverse();
            return Some(way);
        }
        for imported in imports.get(at).into_iter().flatten() {
            if imported != from && !before.contains_key(imported.as_str()) {
                before.insert(imported, at);
                next.push_back(imported);
            }
        }
    }
    None
}

fn imports_of<'a>(files: impl Iterator<Item = (String, &'a str)>) -> Imports {
    let files: BTreeMap<String, &str> = files.collect();
    let imported = |name: &str, code| {
        let named = paths(code).into_iter().filter_map(|path| file_of(&files, name, &path));
        named.filter(|other| other != name).collect()
    };
    files.iter().map(|(name, code)| (name.clone(), imported(name, code))).collect()
}

/// The file of the module that `path` names, or that contains it, as seen from the file `own`; `None`: none of `files`.
fn file_of(files: &BTreeMap<String, &str>, own: &str, path: &[&str]) -> Option<String> {
    let mut at: Vec<&str> = own.split('/').collect();
    let mut rest = path;
    match path[0] {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "super" | "self" => {
            while let Some((head @ (&"super" | &"self"), tail)) = rest.split_first() {
                rest = tail;
                if *head == "super" {
                    at.pop();
                }
            }
        }
        // A single word may be a variable.
        child if path.len() > 1 => _ = files.get(&format!("{own}/{child}"))?,
        _ => return None,
    }
    let outer = at.len();
    at.extend(rest);
    (outer.max(1)..=at.len()).rev().map(|end| at[..end].join("/")).find(|name| files.contains_key(name))
}

/// Every path of `code`, with lists in braces expanded: of `a::{b, c::d}` the paths `a::b` and `a::c::d`.
pub fn paths(code: &str) -> Vec<Vec<&str>> {
    // The path before each open brace; empty if the brace is no list.
    let mut prefixes: Vec<Vec<&str>> = Vec::new();
    let (mut paths, mut path): (Vec<Vec<&str>>, Vec<&str>) = (Vec::new(), Vec::new());
    // The next word continues the path, which is longer than the part before the brace.
    let (mut joined, mut named) = (false, false);
    for token in tokens(code) {
        let is_word = token.starts_with(in_word);
        match token {
            "::" => {
                joined = true;
                continue;
            }
            "{" if joined => {
                prefixes.push(std::mem::take(&mut path));
                named = false;
            }
            "{" => prefixes.push(Vec::new()),
            _ => {}
        }
        if !(is_word && joined) {
            let whole = std::mem::take(&mut path);
            paths.extend(std::mem::take(&mut named).then_some(whole));
        }
        match token {
            "}" => drop(prefixes.pop()),
            "{" | "," => path = prefixes.last().cloned().unwrap_or_default(),
            word if is_word => path.push(word),
            _ => {}
        }
        (joined, named) = (!is_word && !path.is_empty(), is_word);
    }
    paths.extend(named.then_some(path));
    paths
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words, `::` and every other character but white space; no `pub(super)`, which names a module and imports nothing.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = code;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        while let Some((_, after)) = rest.strip_prefix("pub(").and_then(|scope| scope.split_once(')')) {
            rest = after.trim_start();
        }
        let first = rest.chars().next()?;
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            first if in_word(first) => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
            first => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}
