//! The commands' output in docs/.

use std::path::Path;

/// The text below `$ command` in a block of `page`, up to the block's end.
pub(super) fn shown(page: &str, command: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let (_, rest) = text.split_once(&format!("$ {command}\n")).unwrap_or_else(|| panic!("{page}: no `$ {command}`"));
    rest.split("```").next().unwrap().to_owned()
}
