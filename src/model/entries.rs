//! Files of an entry a line, which somebody edits by hand.

use thiserror::Error;

/// Why such a file is invalid: the line, counted from 1, and the error in it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}: {error}")]
pub(crate) struct LineFault {
    pub line: usize,
    pub error: String,
}

/// Characters of a line that an error shows.
const SHOWN_CHARS_MAX: usize = 60;

/// Calls `take` with each entry, in their order. Empty lines count for nothing, and neither does what follows a `#`.
///
/// # Errors
/// The first line with an error of `take`; or the last line, if no newline ends it: somebody is still writing it.
pub(crate) fn for_each_entry(text: &str, mut take: impl FnMut(&str) -> Result<(), String>) -> Result<(), LineFault> {
    for (index, whole) in text.split_inclusive('\n').enumerate() {
        let fault = |error: String| LineFault { line: index + 1, error };
        if !whole.ends_with('\n') {
            return Err(fault("the last line does not end with a newline: the file may be half written".to_owned()));
        }
        let entry = whole.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            take(entry).map_err(fault)?;
        }
    }
    Ok(())
}

/// The beginning of `text`, for an error.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
