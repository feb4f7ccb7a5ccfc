//! proptest looks for the seeds of a file's tests at the same path below `proptest-regressions`. A file of seeds without
//! such a source would never be read.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn the_seeds_of_each_file_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = seeds(&root.join("proptest-regressions"));
    assert!(!found.is_empty(), "the seeds were not found");
    let source = |path: &PathBuf| {
        root.join("src").join(path.strip_prefix(root.join("proptest-regressions")).unwrap()).with_extension("rs")
    };
    let is_read = |path: &&PathBuf| fs::read_to_string(source(path)).is_ok_and(|text| text.contains("proptest!"));
    let unread: Vec<_> = found.iter().filter(|path| !is_read(path)).collect();
    assert!(unread.is_empty(), "move each to the path of its source: {unread:?}");
}

/// Every file below `folder`.
fn seeds(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { seeds(&path) } else { vec![path] }).collect()
}
