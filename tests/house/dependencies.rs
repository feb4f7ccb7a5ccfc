//! Finds unused dependencies: everybody who builds Baton compiles each of them, and somebody must watch it for
//! advisories.

use std::fs;
use std::path::Path;

use crate::circles::paths;
use crate::sources::{files, without_text, words};

#[test]
fn every_dependency_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut unused = unused(root, "dependencies", &["src"]);
    unused.extend(self::unused(root, "dev-dependencies", &["src", "tests", "benches"]));
    unused.extend(self::unused(&root.join("fuzz"), "dependencies", &["fuzz_targets", "../tests/admin"]));
    assert_eq!(unused, Vec::<String>::new());
}

#[test]
fn a_dependency_that_is_named_in_a_comment_only_is_not_used() {
    let code = "use tokio::net;\n// slab::Slab was slower\nlet x = my_toml::read();\nfn f(it: serde_json::Value) {}\n";
    let used = |name| uses(code, name);
    assert_eq!(["tokio", "slab", "toml", "serde_json", "serde"].map(used), [true, false, false, true, false]);
}

/// Names in `table` of the manifest below `root` that no source in `folders` uses.
fn unused(root: &Path, table: &str, folders: &[&str]) -> Vec<String> {
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    let files = folders.iter().flat_map(|folder| files(&root.join(folder)));
    let sources: Vec<_> = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    assert!(!sources.is_empty(), "{folders:?} were not found");
    let names: Vec<_> = manifest[table].as_table().unwrap().keys().collect();
    assert!(!names.is_empty(), "{table} was not read");
    let is_used = |name: &str| sources.iter().any(|code| uses(code, &name.replace('-', "_")));
    names.into_iter().filter(|name| !is_used(name)).map(|name| format!("{table}: {name}")).collect()
}

#[test]
fn a_dependency_with_the_name_of_a_module_is_used_only_where_the_module_is_not_in_scope() {
    let used = |code: &str| uses(code, "notify");
    for module in ["mod notify;", "mod notify {}", "use super::notify;", "use crate::{a, notify::{self, B}};"] {
        assert!(!used(&format!("{module}\nfn f() {{ notify::tell() }}")), "{module}");
        assert!(used(&format!("{module}\nfn f() {{ ::notify::tell() }}")), "{module}");
    }
    assert!(!used("use tokio::sync::notify;\nlet a = notify::A;"));
    assert!(used("use notify::{Event, EventKind};") && used("let a = super::b::c(notify::A);"));
}

/// Whether the file has a module of this name, or imports one: then the name alone is not the dependency.
fn is_shadowed(code: &str, name: &str) -> bool {
    let code = without_text(code);
    let words: Vec<_> = words(&code).collect();
    let declared = words.windows(2).any(|pair| pair == ["mod", name]);
    let imports = code.split(';').filter_map(|statement| statement.rsplit_once("use ").map(|(_, path)| path));
    let mut paths = imports.flat_map(paths);
    declared || paths.any(|path| matches!(path[..], [_, .., last] if last == name) || path.ends_with(&[name, "self"]))
}

/// Whether a line that is no comment has `name::`, or imports all of it.
fn uses(code: &str, name: &str) -> bool {
    let is_letter = |it: char| it.is_alphanumeric() || it == '_';
    let from_root = format!("::{name}::");
    let is_from_root = |line: &str| {
        line.match_indices(&from_root).any(|(at, _)| !line[..at].ends_with(|it| is_letter(it) || it == '>'))
    };
    if is_shadowed(code, name) {
        return code.lines().map(str::trim_start).any(|line| !line.starts_with("//") && is_from_root(line));
    }
    let at = |line: &str, path: &str| {
        let mut found = line.match_indices(path);
        found.any(|(at, _)| !line[..at].ends_with(is_letter) && !line[..at].ends_with("::"))
    };
    let lines = code.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let mut lines = lines.filter(|line| line.contains(name));
    lines.any(|line| at(line, &format!("{name}::")) || is_from_root(line) || at(line, &format!("use {name};")))
}
