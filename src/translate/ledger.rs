//! What became of each line of a file: kept, translated, or without an equal.

use serde::Serialize;

use super::ForeignFile;

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LineOutcome {
    /// Baton does so without a key, or the line says nothing.
    Kept,
    /// Keys of Baton's file say it.
    Translated,
    /// Baton has nothing like it; the note says why.
    NoEqual,
}

/// A statement about a line or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LineNote {
    pub outcome: LineOutcome,
    /// The key with its value, or the reason.
    pub words: String,
    /// Only of a part without an equal: whether connections are treated in another way without it.
    pub changes_behaviour: bool,
}

/// One line. Its outcome is that of its most fortunate part: a `server` with an option that has no equal is translated, and the
/// note about the option says what is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TranslatedLine {
    /// From 1.
    pub number: usize,
    /// Without secrets.
    pub text: String,
    pub notes: Vec<LineNote>,
    /// The words of its secret, which no note may quote.
    hidden: Vec<String>,
}

impl TranslatedLine {
    pub(crate) fn outcome(&self) -> LineOutcome {
        let has = |outcome| self.notes.iter().any(|note| note.outcome == outcome);
        match () {
            () if has(LineOutcome::Translated) => LineOutcome::Translated,
            () if has(LineOutcome::NoEqual) => LineOutcome::NoEqual,
            () => LineOutcome::Kept,
        }
    }

    pub(crate) fn changes_behaviour(&self) -> bool {
        self.notes.iter().any(|note| note.changes_behaviour)
    }

    /// Whether there is nothing to tell about it: it is empty or a comment.
    pub(crate) fn is_silent(&self) -> bool {
        self.notes.is_empty()
    }
}

/// All lines of a file.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub name: String,
    lines: Vec<TranslatedLine>,
}

impl Ledger {
    pub(super) fn new(file: &ForeignFile) -> Self {
        let line = |(index, text): (usize, &str)| TranslatedLine {
            number: index + 1,
            text: without_secret(text.trim()),
            notes: Vec::new(),
            hidden: hidden(text),
        };
        Self { name: file.name.clone(), lines: file.text.lines().enumerate().map(line).collect() }
    }

    pub(crate) fn lines(&self) -> &[TranslatedLine] {
        &self.lines
    }

    /// `line` counts from 0, as in all of these.
    pub(super) fn kept(&mut self, line: usize, why: impl Into<String>) {
        self.note(line, LineOutcome::Kept, why.into(), false);
    }

    pub(super) fn translated(&mut self, line: usize, key: impl Into<String>) {
        self.note(line, LineOutcome::Translated, key.into(), false);
    }

    /// Without it Baton treats connections in the same way.
    pub(super) fn no_equal(&mut self, line: usize, why: impl Into<String>) {
        self.note(line, LineOutcome::NoEqual, why.into(), false);
    }

    /// Without it Baton treats connections in another way.
    pub(super) fn missing(&mut self, line: usize, why: impl Into<String>) {
        self.note(line, LineOutcome::NoEqual, why.into(), true);
    }

    /// Goes back to `before`, and keeps only what was found to have no equal since.
    pub(super) fn withdraw(&mut self, before: Self) {
        let since = std::mem::replace(self, before);
        for (line, noted) in since.lines.into_iter().enumerate() {
            let found = noted.notes.into_iter().filter(|note| note.outcome == LineOutcome::NoEqual);
            found.for_each(|note| self.note(line, note.outcome, note.words, note.changes_behaviour));
        }
    }

    pub(super) fn has_note(&self, line: usize) -> bool {
        !self.lines[line].notes.is_empty()
    }

    /// Notes a variable whose value nobody here knows, unless nothing of the line counts, or a note names it.
    /// `why` ends before its name.
    pub(super) fn unknown_variable(&mut self, line: usize, name: &str, why: &str) {
        let noted = &self.lines[line];
        let is_named = |note: &LineNote| note.outcome == LineOutcome::NoEqual && note.words.contains(name);
        if noted.outcome() != LineOutcome::NoEqual && !noted.notes.iter().any(is_named) {
            self.missing(line, format!("{why} {name}: write its value"));
        }
    }

    /// `haproxy.cfg:12`, for the key's comment.
    pub(super) fn place(&self, line: usize) -> String {
        format!("{}:{}", self.name, line + 1)
    }

    fn note(&mut self, line: usize, outcome: LineOutcome, words: String, changes_behaviour: bool) {
        let hidden = &self.lines[line].hidden;
        let words = hidden.iter().fold(words, |words, secret| words.replace(secret, "…"));
        let note = LineNote { outcome, words, changes_behaviour };
        let notes = &mut self.lines[line].notes;
        // Several sections inherit one line of `defaults`.
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

/// The line, without the password or token that it has: terminals and logs have other readers.
fn without_secret(line: &str) -> String {
    match secret_begins(line) {
        Some(end) if end < line.len() => format!("{} …", line[..end].trim_end()),
        _ => line.to_owned(),
    }
}

/// Words of the secret that are long enough to be one.
fn hidden(line: &str) -> Vec<String> {
    let secret = secret_begins(line).map_or("", |at| &line[at..]);
    let words = secret.split(|letter: char| letter.is_whitespace() || "\\\"':@".contains(letter));
    words.filter(|word| word.len() >= 6).map(str::to_owned).collect()
}

/// Where the rest of the line may be a secret, in bytes.
fn secret_begins(line: &str) -> Option<usize> {
    const SECRET: [&str; 12] = [
        "auth_pass",
        "passwd",
        "password",
        "passphrase",
        "stats auth",
        "setenv",
        "presetenv",
        "authorization",
        "bearer",
        "basic ",
        "token",
        "api-key",
    ];
    // Of the same length, also in other letters.
    let plain = line.to_ascii_lowercase();
    let words = SECRET.iter().filter_map(|word| plain.find(word).map(|at| at + word.len()));
    // user:password@host
    let in_url = plain
        .find("://")
        .map(|at| at + 3)
        .filter(|at| plain[*at..].split(['/', ' ']).next().is_some_and(|it| it.contains('@')));
    words.chain(in_url).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        assert_eq!(without_secret("auth_pass 42hunter"), "auth_pass …");
        assert_eq!(without_secret("stats auth admin:pw"), "stats auth …");
        assert_eq!(without_secret("user a insecure-password pw"), "user a insecure-password …");
        assert_eq!(without_secret("bind :6443"), "bind :6443");
        let header = "http-check send hdr Authorization \"Bearer eyJhbGciOi\"";
        assert_eq!(without_secret(header), "http-check send hdr Authorization …");
        assert_eq!(
            without_secret("option httpchk GET / HTTP/1.1\\r\\nX-Token:\\ abc"),
            "option httpchk GET / HTTP/1.1\\r\\nX-Token …"
        );
        assert_eq!(without_secret("log http://me:hunter22@10.0.0.1/"), "log http:// …");
        let mut ledger = Ledger::new(&ForeignFile { name: "f".to_owned(), text: header.to_owned() });
        ledger.missing(0, "the header \"Bearer eyJhbGciOi\" has no equal");
        assert!(!ledger.lines()[0].notes[0].words.contains("eyJ"), "{:?}", ledger.lines()[0]);
    }

    #[test]
    fn a_line_with_a_part_that_was_translated_is_translated() {
        let file = ForeignFile { name: "f".to_owned(), text: "a\nb\nc".to_owned() };
        let mut ledger = Ledger::new(&file);
        ledger.missing(0, "why");
        ledger.translated(0, "key");
        ledger.no_equal(1, "why");
        assert_eq!(
            ledger.lines().iter().map(TranslatedLine::outcome).collect::<Vec<_>>(),
            [LineOutcome::Translated, LineOutcome::NoEqual, LineOutcome::Kept]
        );
        assert_eq!(
            ledger.lines().iter().map(TranslatedLine::changes_behaviour).collect::<Vec<_>>(),
            [true, false, false]
        );
    }
}
