//! The sources of Baton for the tests of their layout: the room of each file, and its code without comments and
//! strings.

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms whose parts are siblings as rooms are, each with its row in the layers; the room's own file only lists them.
pub const DIVIDED: &[&str] = &["fleet"];

pub struct Source {
    pub path: PathBuf,
    /// The first part of its path below src, without `.rs`; the first two in a divided room.
    pub module: String,
    pub lines: usize,
    pub code: String,
}

impl Source {
    /// Its path below src, without `.rs`.
    pub fn name(&self) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        self.path.strip_prefix(root).unwrap().with_extension("").to_str().unwrap().to_owned()
    }
}

/// Every file below src but those that only list modules, and files of tests.
pub fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    for path in files(&root) {
        let below = path.strip_prefix(&root).unwrap();
        if below != Path::new("lib.rs")
            && !DIVIDED.iter().any(|room| below == Path::new(room).with_extension("rs"))
            && !path.ends_with("tests.rs")
        {
            let module = module_of(below);
            let text = fs::read_to_string(&path).unwrap();
            sources.push(Source { module, lines: text.lines().count(), code: code_only(&text), path });
        }
    }
    assert!(sources.len() > 10, "src was not found");
    sources
}

/// Every file of Rust below `root`.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut directories = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Of the file `below` src.
fn module_of(below: &Path) -> String {
    let below = below.with_extension("");
    let mut parts = below.iter().map(|part| part.to_str().unwrap());
    let first = parts.next().unwrap();
    let second = parts.next().filter(|_| DIVIDED.contains(&first));
    second.map_or(first.to_owned(), |second| format!("{first}/{second}"))
}

pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// `text` without comments, without the content of strings, and without its `#[cfg(test)]` module, which comes last; a
/// module in a file of its own leaves only its name.
pub fn code_only(text: &str) -> String {
    let begins = |at: usize| text[at..].find(['{', ';']).is_some_and(|end| text[at + end..].starts_with('{'));
    let tests = text.match_indices("#[cfg(test)]\nmod ").find(|(at, _)| begins(*at));
    without_text(tests.map_or(text, |(at, _)| &text[..at]))
}

/// `text` without comments and the content of strings.
pub fn without_text(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = skipped_prefix(rest, code.chars().next_back());
        if skipped > 0 {
            code.push(' ');
            rest = &rest[skipped..];
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    code
}

/// Number of bytes at the start of `rest` that are a comment or a literal; 0 if neither. `before`: the text before it.
fn skipped_prefix(rest: &str, before: Option<char>) -> usize {
    let to_end_of = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return to_end_of("\n", 2);
    }
    if rest.starts_with("/*") {
        return to_end_of("*/", 2);
    }
    if !in_word && rest.starts_with('r') {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + hashes..].starts_with('"') {
            return to_end_of(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    if let Some(inside) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = inside.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        return end.map_or(rest.len(), |at| at + 2);
    }
    if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
        return to_end_of("'", 1);
    }
    0
}
