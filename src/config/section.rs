//! Reads a table key by key. A wrong value is reported and then counts as absent, so that reading continues.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{Document, Location};
use super::file::UnreadFile;
use super::kind::{Kind, show};
use super::title::Title;
use super::unknown;
use crate::sys::broker::BrokerSilence;

/// A table of the file, or the place where one could be.
#[derive(Debug)]
pub(super) struct Section<'d> {
    pub document: &'d Document<'d>,
    /// The dotted key of the table, empty for the whole file.
    path: String,
    title: Title,
    table: Option<&'d DeTable<'d>>,
    /// The place of its header, or of its parent's if it is absent. `None`: the whole file, which has no header.
    header: Option<Range<usize>>,
}

/// The value of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<T> {
    pub value: T,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The key is absent: the value is the default.
    Absent,
    Given,
    /// The value was wrong and is reported: the value here is the default, and a comparison with it would only mislead.
    Refused,
}

impl<T> Field<T> {
    pub(super) fn is_given(&self) -> bool {
        self.origin == Origin::Given
    }

    pub(super) fn is_refused(&self) -> bool {
        self.origin == Origin::Refused
    }
}

/// One element of a list, for later errors about it.
#[derive(Clone, Debug)]
pub(super) struct Element<T> {
    pub value: T,
    pub place: Location,
    /// Its name in messages: `element 2 of "listen" in frontend "apiserver"`.
    pub name: String,
}

impl<'d> Section<'d> {
    pub(super) fn root(document: &'d Document<'d>, table: &'d DeTable<'d>) -> Self {
        Self { document, path: String::new(), title: Title::root(), table: Some(table), header: None }
    }

    /// The value of `key`, or none if it is absent.
    pub(super) fn read<K: Kind>(&self, key: &str, kind: &K) -> Field<Option<K::Value>> {
        let Some(value) = self.value(key) else {
            return Field { value: None, origin: Origin::Absent };
        };
        let read = kind.read(value.get_ref());
        if read.is_none() {
            self.refuse_value(key, &kind.allowed(), &kind.found(value.get_ref()));
        }
        let origin = if read.is_some() { Origin::Given } else { Origin::Refused };
        Field { value: read, origin }
    }

    /// The value of `key`, or `default`.
    pub(super) fn read_or<K: Kind>(&self, key: &str, kind: &K, default: K::Value) -> Field<K::Value> {
        let Field { value, origin } = self.read(key, kind);
        Field { value: value.unwrap_or(default), origin }
    }

    /// The value of `key`; its absence is an error. `None` only if an error was reported.
    pub(super) fn require<K: Kind>(&self, key: &str, kind: &K) -> Option<K::Value> {
        let field = self.read(key, kind);
        if field.origin == Origin::Absent {
            self.refuse_missing(key, &kind.allowed());
        }
        field.value
    }

    /// The valid elements of the array `key`; none if it is absent.
    pub(super) fn list<K: Kind>(&self, key: &str, kind: &K) -> Vec<Element<K::Value>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(items) = value.get_ref().as_array() else {
            let allowed = format!("an array in [ ], each element {}", kind.allowed());
            self.refuse_value(key, &allowed, &show(value.get_ref()));
            return Vec::new();
        };
        let elements = items.iter().enumerate().filter_map(|(index, item)| {
            let place = Location { key: format!("{}[{index}]", self.key(key)), span: Some(item.span()) };
            let name = format!("element {} of {}", index + 1, self.name(key));
            let Some(value) = kind.read(item.get_ref()) else {
                self.document.error(&place, invalid(&name), expected(&kind.allowed(), &kind.found(item.get_ref())));
                return None;
            };
            Some(Element { value, place, name })
        });
        elements.collect()
    }

    /// The table `key`; an empty one if it is absent.
    pub(super) fn table(&self, key: &str) -> Section<'d> {
        let value = self.value(key);
        let table = value.and_then(|value| value.get_ref().as_table());
        if let (Some(value), None) = (value, table) {
            self.refuse_value(key, &format!("a table, [{}]", self.pattern(key)), &show(value.get_ref()));
        }
        let header = table.and(self.place(key).span).or(self.header.clone());
        let title = self.title.table(&self.pattern(key));
        Section { document: self.document, path: self.key(key), title, table, header }
    }

    /// The tables `[[key]]`; at least one unless an error was reported.
    pub(super) fn tables(&self, key: &str) -> Vec<Section<'d>> {
        let header = format!("one or more tables [[{}]]", self.pattern(key));
        let Some(value) = self.value(key) else {
            let missing = if self.title().is_empty() { String::new() } else { format!(" in {}", self.title()) };
            self.refuse(key, format!("missing [[{}]]{missing}", self.pattern(key)), format!("expected {header}"));
            return Vec::new();
        };
        let items = value.get_ref().as_array().filter(|items| !items.is_empty());
        let Some(items) = items else {
            self.refuse_value(key, &header, &show(value.get_ref()));
            return Vec::new();
        };
        let sections = items.iter().enumerate().filter_map(|(index, item)| {
            let (path, span) = (format!("{}[{index}]", self.key(key)), item.span());
            let Some(table) = item.get_ref().as_table() else {
                let name = format!("element {} of {}", index + 1, self.name(key));
                let help = expected(&format!("a table, [[{}]]", self.pattern(key)), &show(item.get_ref()));
                self.document.error(&Location { key: path, span: Some(span) }, invalid(&name), help);
                return None;
            };
            let title = self.title.element(&self.pattern(key), index, table);
            Some(Section { document: self.document, path, title, table: Some(table), header: Some(span) })
        });
        sections.collect()
    }

    /// Reports an error at `key`, or at the table's header if the key is absent.
    pub(super) fn refuse(&self, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.document.error(&self.place(key), message, help);
    }

    /// Reports that the broker did not open the file that `key` names.
    pub(super) fn refuse_unread(&self, key: &str, named: &str, silence: BrokerSilence) {
        let file = UnreadFile { path: self.document.resolve(named), silence };
        self.document.leave_unread(file);
        self.refuse(key, format!("cannot read {named:?} ({}): {silence}", self.name(key)), silence.advice());
    }

    /// Reports that the value of `key` is `found` instead of one that is `allowed`.
    pub(super) fn refuse_value(&self, key: &str, allowed: &str, found: &str) {
        self.refuse(key, invalid(&self.name(key)), expected(allowed, found));
    }

    /// As [`Self::refuse`], but a warning.
    pub(super) fn warn(&self, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.document.warning(&self.place(key), message, help);
    }

    /// The table's name in messages: `[admin]`, `backend "cp1" of frontend "apiserver"`. Empty: the whole file.
    pub(super) fn title(&self) -> &str {
        self.title.words()
    }

    /// The name of `key` in messages: `"weight" in backend "cp1" of frontend "apiserver"`.
    pub(super) fn name(&self, key: &str) -> String {
        self.title.name(key)
    }

    /// Whether the table has `key`, which then counts as one that is known.
    pub(super) fn table_has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Whether `key` is absent or an empty array.
    pub(super) fn is_absent_or_empty(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_none_or(|value| value.get_ref().as_array().is_some_and(|items| items.is_empty()))
    }

    /// The place of the value of `key` if it begins on the line of the key; or of the key; or, if it is absent, of the
    /// table's header.
    pub(super) fn place(&self, key: &str) -> Location {
        let entry = self.table.and_then(|table| table.get_key_value(key));
        let span = entry.map(|(name, value)| {
            let beside = self.document.line(name.span().start) == self.document.line(value.span().start);
            if beside { value.span() } else { name.span() }
        });
        Location { key: self.key(key), span: span.or(self.header.clone()) }
    }

    /// The line of [`Self::place`].
    pub(super) fn line_of(&self, key: &str) -> u32 {
        self.place(key).span.map_or(1, |span| self.document.line(span.start))
    }

    /// The whole dotted key of `key`.
    pub(super) fn key(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Reports each key that no code has read. Call it for the root, after all reads.
    pub(super) fn refuse_unknown_keys(&self) {
        let known: Vec<String> = self.document.known().into_iter().collect();
        if let Some(table) = self.table {
            unknown::refuse(self.document, &known, table);
        }
    }

    fn refuse_missing(&self, key: &str, allowed: &str) {
        self.refuse(key, format!("missing {}", self.name(key)), format!("expected {allowed}"));
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

fn invalid(name: &str) -> String {
    format!("invalid value for {name}")
}

fn expected(allowed: &str, found: &str) -> String {
    format!("expected {allowed}; found {found}")
}

/// A dotted key.
pub(super) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let key = if plain { key.to_owned() } else { super::kind::quote(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

fn without_indices(path: &str) -> String {
    let parts = path.split('.').map(|part| part.split('[').next().unwrap_or_default());
    parts.collect::<Vec<_>>().join(".")
}
