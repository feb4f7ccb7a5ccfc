//! Writes Baton's file.

use crate::model::humane::printable;

/// Text of a configuration file.
#[derive(Clone, Debug, Default)]
pub(super) struct Toml {
    text: String,
}

impl Toml {
    pub(super) fn comment(&mut self, words: &str) {
        self.text += &format!("# {}\n", printable(words));
    }

    /// Begins a table; `header` has its brackets.
    pub(super) fn table(&mut self, header: &str) {
        self.text += &format!("\n{header}\n");
    }

    /// `value` is TOML; `places`: where it comes from.
    pub(super) fn key(&mut self, key: &str, value: &str, places: &str) {
        self.text += &format!("{key} = {value}  # {}\n", printable(places));
    }

    /// A key that no line asks for.
    pub(super) fn bare_key(&mut self, key: &str, value: &str) {
        self.text += &format!("{key} = {value}\n");
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.text += &other.text;
    }

    pub(super) fn text(self) -> String {
        self.text
    }
}

/// A string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted += "\\\"",
            '\\' => quoted += "\\\\",
            letter if letter.is_control() => quoted += &format!("\\u{:04x}", u32::from(letter)),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// An array of strings of TOML.
pub(super) fn array<T: AsRef<str>>(all: &[T]) -> String {
    let all: Vec<_> = all.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", all.join(", "))
}

/// `text` as a name: letters, digits, "-", "_" and ".", at most 63, the first a letter or digit; different from those `taken`.
pub(super) fn name(text: &str, taken: &[String]) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    let name: String = text.chars().map(plain).collect();
    let name = name.trim_start_matches(['-', '_', '.']);
    let name: String = if name.is_empty() { "unnamed".to_owned() } else { name.chars().take(56).collect() };
    let mut candidate = name.clone();
    for number in 2.. {
        if !taken.contains(&candidate) {
            break;
        }
        candidate = format!("{name}-{number}");
    }
    candidate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_batons_and_a_new_one() {
        assert_eq!(name("kube_api:6443", &[]), "kube_api-6443");
        assert_eq!(name("é", &[]), "unnamed");
        assert_eq!(name("a", &["a".to_owned()]), "a-2");
        assert_eq!(name("a", &["a".to_owned(), "a-2".to_owned()]), "a-3");
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
