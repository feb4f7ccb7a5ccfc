//! Reads a table key by key. What is wrong is noted and read as absent, so that reading goes on to the next key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::Document;
use super::kind::{Kind, show};
use super::{renamed, spelling};

/// A table of the file, or the place where one could be.
#[derive(Debug)]
pub struct Section<'d> {
    pub document: &'d Document<'d>,
    /// The dotted key of the table, empty for the whole file.
    path: String,
    table: Option<&'d DeTable<'d>>,
    /// Of its header, or of its parent's if it is absent.
    line: u32,
}

/// What a key held.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    pub value: T,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The key is absent: the value is the default.
    Absent,
    Given,
    /// It was wrong and is reported: the value is the default, and comparing it with others would only mislead.
    Refused,
}

impl<T> Field<T> {
    pub fn is_given(&self) -> bool {
        self.origin == Origin::Given
    }

    pub fn is_refused(&self) -> bool {
        self.origin == Origin::Refused
    }
}

/// One element of a list that can be complained about later.
#[derive(Clone, Debug)]
pub struct Element<T> {
    pub value: T,
    pub key: String,
    pub line: u32,
}

impl<'d> Section<'d> {
    pub fn root(document: &'d Document<'d>, table: &'d DeTable<'d>) -> Self {
        Self { document, path: String::new(), table: Some(table), line: 1 }
    }

    /// The value of `key`, or none if it is absent.
    pub fn read<K: Kind>(&self, key: &str, kind: &K) -> Field<Option<K::Value>> {
        let Some(value) = self.value(key) else {
            return Field { value: None, origin: Origin::Absent };
        };
        let read = kind.read(value.get_ref());
        if read.is_none() {
            self.refuse(key, show(value.get_ref()), kind.allowed());
        }
        let origin = if read.is_some() { Origin::Given } else { Origin::Refused };
        Field { value: read, origin }
    }

    /// The value of `key`, or `default`.
    pub fn read_or<K: Kind>(&self, key: &str, kind: &K, default: K::Value) -> Field<K::Value> {
        let Field { value, origin } = self.read(key, kind);
        Field { value: value.unwrap_or(default), origin }
    }

    /// The value of `key`; its absence is an error. `None` only if an error was reported.
    pub fn require<K: Kind>(&self, key: &str, kind: &K) -> Option<K::Value> {
        let field = self.read(key, kind);
        if field.origin == Origin::Absent {
            self.refuse(key, "nothing", kind.allowed());
        }
        field.value
    }

    /// The good elements of the array `key`; none if it is absent.
    pub fn list<K: Kind>(&self, key: &str, kind: &K) -> Vec<Element<K::Value>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            self.refuse(key, show(value.get_ref()), format!("an array in [ ], each element {}", kind.allowed()));
            return Vec::new();
        };
        let elements = items.iter().enumerate().filter_map(|(index, item)| {
            let (key, line) = (format!("{}[{index}]", self.key(key)), self.document.line(item.span().start));
            let Some(value) = kind.read(item.get_ref()) else {
                self.document.error(line, key, show(item.get_ref()), kind.allowed());
                return None;
            };
            Some(Element { value, key, line })
        });
        elements.collect()
    }

    /// The table `key`; an empty one if it is absent.
    pub fn table(&self, key: &str) -> Section<'d> {
        let value = self.value(key);
        let table = value.and_then(|value| value.get_ref().as_table());
        if let (Some(value), None) = (value, table) {
            self.refuse(key, show(value.get_ref()), format!("a table, [{}]", self.pattern(key)));
        }
        Section { document: self.document, path: self.key(key), table, line: self.line_of(key) }
    }

    /// The tables `[[key]]`; at least one unless an error was reported.
    pub fn tables(&self, key: &str) -> Vec<Section<'d>> {
        let header = format!("one or more tables, [[{}]]", self.pattern(key));
        let Some(value) = self.value(key) else {
            self.refuse(key, "nothing", header);
            return Vec::new();
        };
        let items = value.get_ref().as_array().filter(|items| !items.is_empty());
        let Some(items) = items else {
            self.refuse(key, show(value.get_ref()), header);
            return Vec::new();
        };
        let sections = items.iter().enumerate().filter_map(|(index, item)| {
            let (path, line) = (format!("{}[{index}]", self.key(key)), self.document.line(item.span().start));
            let Some(table) = item.get_ref().as_table() else {
                self.document.error(line, path, show(item.get_ref()), format!("a table, [[{}]]", self.pattern(key)));
                return None;
            };
            Some(Section { document: self.document, path, table: Some(table), line })
        });
        sections.collect()
    }

    /// Reports an error at `key`, or at the table's header if the key is absent.
    pub fn refuse(&self, key: &str, read: impl Into<String>, allowed: impl Into<String>) {
        self.document.error(self.line_of(key), self.key(key), read, allowed);
    }

    /// As [`Self::refuse`], but a warning.
    pub fn warn(&self, key: &str, read: impl Into<String>, advised: impl Into<String>) {
        self.document.warning(self.line_of(key), self.key(key), read, advised);
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Whether `key` is absent or an empty array.
    pub fn is_absent_or_empty(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_none_or(|value| value.get_ref().as_array().is_some_and(|items| items.is_empty()))
    }

    /// Of `key` if it is present, else of the table's header.
    pub fn line_of(&self, key: &str) -> u32 {
        let entry = self.table.and_then(|table| table.get_key_value(key));
        entry.map_or(self.line, |(name, _)| self.document.line(name.span().start))
    }

    /// The whole dotted key of `key`.
    pub fn key(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Reports each key that nobody has asked for. For the root, once all is read.
    pub fn refuse_unknown_keys(&self) {
        let known: Vec<String> = self.document.known().into_iter().collect();
        if let Some(table) = self.table {
            refuse_unknown(self.document, &known, table, "", "");
        }
    }

    fn value(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.document.know(self.pattern(key));
        self.table.and_then(|table| table.get(key))
    }

    /// The whole dotted key without indices.
    fn pattern(&self, key: &str) -> String {
        without_indices(&join(&self.path, key))
    }
}

fn refuse_unknown(document: &Document, known: &[String], table: &DeTable, path: &str, pattern: &str) {
    for (name, value) in table {
        let (path, whole) = (join(path, name.get_ref()), join(pattern, name.get_ref()));
        if !known.contains(&whole) {
            let line = document.line(name.span().start);
            document.error(line, path, "an unknown key", suggestion(known, name.get_ref(), pattern));
            continue;
        }
        match value.get_ref() {
            DeValue::Table(table) if has_keys(known, &whole) => refuse_unknown(document, known, table, &path, &whole),
            DeValue::Array(items) if has_keys(known, &whole) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(table) = item.get_ref().as_table() {
                        refuse_unknown(document, known, table, &format!("{path}[{index}]"), &whole);
                    }
                }
            }
            // Not a table: what read it has said what is wrong, if anything.
            _ => {}
        }
    }
}

/// What may have been meant by the unknown `name` in the table `pattern`.
fn suggestion(known: &[String], name: &str, pattern: &str) -> String {
    let siblings: Vec<&str> = known.iter().filter_map(|whole| child(whole, pattern)).collect();
    let elsewhere = || known.iter().find(|whole| whole.rsplit('.').next() == Some(name));
    if let Some(new) = renamed::renamed(&join(pattern, name)) {
        return format!("{new}, as {name} is called now");
    }
    if let Some(near) = spelling::closest(name, siblings.iter().copied()) {
        return format!("{near} (did you mean that?)");
    }
    match elsewhere() {
        Some(whole) => match whole.rsplit_once('.') {
            Some((table, _)) => format!("{name} in [{table}]"),
            None => format!("[{whole}] at the top"),
        },
        None => siblings.join(", "),
    }
}

/// The last part of `whole` if it lies directly in the table `pattern`.
fn child<'k>(whole: &'k str, pattern: &str) -> Option<&'k str> {
    let name = if pattern.is_empty() { whole } else { whole.strip_prefix(pattern)?.strip_prefix('.')? };
    (!name.contains('.')).then_some(name)
}

fn has_keys(known: &[String], pattern: &str) -> bool {
    known.iter().any(|whole| child(whole, pattern).is_some())
}

fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let key = if plain { key.to_owned() } else { super::kind::quote(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

fn without_indices(path: &str) -> String {
    let parts = path.split('.').map(|part| part.split('[').next().unwrap_or_default());
    parts.collect::<Vec<_>>().join(".")
}
