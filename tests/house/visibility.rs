//! An item is `pub(crate)` unless another crate needs it: a test, a benchmark, a fuzz target or the program. So rustc knows what
//! nobody uses.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::sources::{code_only, files};

/// The crates that use the library.
const USERS: &[&str] = &["tests", "benches", "fuzz/fuzz_targets", "src/main.rs"];

#[test]
fn an_item_is_public_only_if_another_crate_or_a_public_signature_names_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut needed = HashSet::new();
    for user in USERS {
        let user = root.join(user);
        let all = if user.is_dir() { files(&user) } else { vec![user] };
        all.iter().filter(|file| !file.ends_with("tests/house/visibility.rs")).for_each(|file| {
            needed.extend(words(&fs::read_to_string(file).unwrap()).map(str::to_owned));
        });
    }
    let own: Vec<_> = files(&root.join("src")).into_iter().filter(|file| !file.ends_with("src/main.rs")).collect();
    let own: Vec<_> = own.into_iter().map(|file| (code_only(&fs::read_to_string(&file).unwrap()), file)).collect();
    own.iter().for_each(|(code, _)| needed.extend(signatures(code)));
    let faults: Vec<_> = own
        .iter()
        .flat_map(|(code, file)| {
            let unneeded = code.lines().filter_map(public_item).filter(|name| !needed.contains(*name));
            unneeded.map(|name| format!("{}: {name}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(faults.is_empty(), "pub(crate) is enough for {} items\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_public_item_is_found_by_its_name() {
    for (line, name) in [
        ("pub fn plain(it: &str) {", Some("plain")),
        ("    pub const fn constant() -> u8 {", Some("constant")),
        ("pub async fn later() {", Some("later")),
        ("pub const LIMIT: u32 = 1;", Some("LIMIT")),
        ("pub struct Thing<T> {", Some("Thing")),
        ("pub mod room;", Some("room")),
        ("pub(crate) fn inner() {", None),
        ("pub field: u32,", None),
        ("pub use other::Thing;", None),
    ] {
        assert_eq!(public_item(line), name, "{line}");
    }
    let code = "pub fn plain(it: &Given) -> Result<Made, Fault>\nwhere\n    It: Bound,\n{\n    Inner::new()\n}\npub(crate) fn own(it: Other) {}";
    let signature = signatures(code);
    let names = |all: &[&str]| all.iter().all(|name| signature.contains(*name));
    assert!(names(&["Given", "Made", "Fault", "Bound"]), "{signature:?}");
    assert!(
        !signature.contains("plain") && !signature.contains("Inner") && !signature.contains("Other"),
        "{signature:?}"
    );
}

/// The name of the item that `line` makes public. A field is public as far as its struct is.
fn public_item(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let is_prefix = ["async", "unsafe"].contains(&word) || word == "const" && words.peek() == Some(&"fn");
        match word {
            _ if is_prefix => {}
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "mod" => {
                // A macro's item may have no name yet.
                return words.next()?.split(|c: char| !is_of_name(c)).next().filter(|name| !name.is_empty());
            }
            _ => return None,
        }
    }
    None
}

/// The types in the signatures and fields of public items of `code`, without the items' own names, and those that a
/// variant of an enum has.
fn signatures(code: &str) -> HashSet<String> {
    let mut named = HashSet::new();
    let mut in_head = false;
    let mut in_enum = false;
    for line in code.lines() {
        let own = public_item(line);
        let begins = line.trim_start().starts_with("pub ");
        in_head |= begins;
        in_enum = in_enum && line != "}" || line.starts_with("pub enum ");
        if in_head || in_enum {
            let head = if in_enum { line } else { line.split('{').next().unwrap_or_default() };
            named.extend(words(head).filter(|word| Some(*word) != own).map(str::to_owned));
        }
        in_head &= !(line.contains('{') || line.trim_end().ends_with([';', ',']) && begins);
    }
    named
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_of_name(c)).filter(|word| !word.is_empty())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
