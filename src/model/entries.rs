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

/// The entries, in their order, each by `parse`. Empty lines count for nothing, and neither does what follows a `#`.
///
/// # Errors
/// The last line, if no newline ends it: somebody is still writing it.
pub(crate) fn entries<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<impl Iterator<Item = Result<T, LineFault>>, LineFault> {
    if !text.is_empty() && !text.ends_with('\n') {
        let error = "the last line does not end with a newline: the file may be half written".to_owned();
        return Err(LineFault { line: text.lines().count(), error });
    }
    let entries = text.lines().enumerate().filter_map(move |(index, whole)| {
        let entry = whole.split('#').next().unwrap_or_default().trim();
        let parsed = (!entry.is_empty()).then(|| parse(entry))?;
        Some(parsed.map_err(|error| LineFault { line: index + 1, error }))
    });
    Ok(entries)
}

/// The beginning of `text`, for an error.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
