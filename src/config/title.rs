//! The name of a table in messages: by its own name rather than by its number.

use toml::de::{DeTable, DeValue};

use super::kind::quote;

#[derive(Clone, Debug)]
pub(super) struct Title {
    /// `[admin]`, `backend "cp1" of frontend "apiserver"`; empty for the whole file.
    words: String,
    /// The list's element that it is, or that contains it, such as `frontend "apiserver"`.
    owner: Option<String>,
}

impl Title {
    pub(super) fn root() -> Self {
        Self { words: String::new(), owner: None }
    }

    /// The title of the table `[pattern]` in this one.
    pub(super) fn table(&self, pattern: &str) -> Self {
        let words = match &self.owner {
            Some(owner) => format!("[{pattern}] of {owner}"),
            None => format!("[{pattern}]"),
        };
        Self { words, owner: self.owner.clone() }
    }

    /// The title of `table`, the `index`th `[[pattern]]` in this one, from 0.
    pub(super) fn element(&self, pattern: &str, index: usize, table: &DeTable) -> Self {
        let kind = pattern.rsplit('.').next().unwrap_or(pattern);
        let name = table.get("name").and_then(|name| DeValue::as_str(name.get_ref())).filter(|name| !name.is_empty());
        let own = match name {
            Some(name) => format!("{kind} {}", quote(name)),
            None => format!("[[{pattern}]] number {}", index + 1),
        };
        let words = match &self.owner {
            Some(owner) => format!("{own} of {owner}"),
            None => own,
        };
        Self { owner: Some(words.clone()), words }
    }

    pub(super) fn words(&self) -> &str {
        &self.words
    }

    /// The name of `key` in this table.
    pub(super) fn name(&self, key: &str) -> String {
        if self.words.is_empty() { quote(key) } else { format!("{} in {}", quote(key), self.words) }
    }
}
