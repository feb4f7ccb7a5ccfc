//! Limits the files that hold the whole table or all ports. A signature with a `Part` says what a part of Baton may
//! use; one with the whole table does not, and is only for the wiring and the admin servers, which show everything. All
//! ports together are only for the wiring.

use std::fs;
use std::path::Path;

use crate::sources::{files, without_text};

/// The files of src, with their tests, that may hold all of a shared object: its type, and their number.
const WHOLES: &[(&str, usize)] = &[("Table", 2), ("AllPorts", 1)];

#[test]
fn few_files_hold_the_whole_table_or_all_ports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (whole, most) in WHOLES {
        let mut holders: Vec<_> = files(&root)
            .into_iter()
            .filter(|path| holds(whole, &without_text(&fs::read_to_string(path).unwrap())))
            .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
            .collect();
        holders.sort();
        assert!(!holders.is_empty(), "no Arc<{whole}> was found");
        assert!(
            holders.len() <= *most,
            "{} files hold an Arc<{whole}>, at most {most} may; hand out what each touches with {whole}::part:\n{}",
            holders.len(),
            holders.join("\n")
        );
    }
}

#[test]
fn a_whole_is_found_by_any_path_and_in_tests() {
    let holds = |text: &str| holds("Table", &without_text(text));
    for text in [
        "fn run(table: Arc<Table>) {}",
        "struct Held(std::sync::Arc<super::Table>);",
        "fn run(table: &Arc<\n    crate::table::Table,\n>) {}",
        "#[cfg(test)]\nmod tests {\n    fn bench() -> Arc<Table> {}\n}",
    ] {
        assert!(holds(text), "{text}");
    }
    for text in
        ["// Arc<Table>", "fn run(table: Arc<FlowTable>, part: Part<Registry>) {}", "const A: &str = \"Arc<Table>\";"]
    {
        assert!(!holds(text), "{text}");
    }
}

/// Whether `code` names the type of a shared pointer to `whole`.
fn holds(whole: &str, code: &str) -> bool {
    let code: String = code.split_whitespace().collect();
    let mut pointed_to = code.match_indices("Arc<").filter_map(|(at, arc)| code[at + arc.len()..].split_once('>'));
    pointed_to.any(|(path, _)| path.trim_end_matches(',').rsplit("::").next() == Some(whole))
}
