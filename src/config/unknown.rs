//! Unknown keys, with a guess at the intended ones.

use toml::de::{DeTable, DeValue};

use super::document::{Document, Location};
use super::section::join;
use super::title::Title;
use super::{renamed, spelling};

/// Reports each key of the file that is not in `known`, which are dotted and without indices.
pub(super) fn refuse(document: &Document, known: &[String], root: &DeTable) {
    Search { document, known }.walk(root, "", "", &Title::root());
}

struct Search<'s> {
    document: &'s Document<'s>,
    known: &'s [String],
}

impl Search<'_> {
    /// In the table `path`, whose form without indices is `pattern`.
    fn walk(&self, table: &DeTable, path: &str, pattern: &str, title: &Title) {
        for (name, value) in table {
            let (path, whole) = (join(path, name.get_ref()), join(pattern, name.get_ref()));
            if !self.known.contains(&whole) {
                let what = if is_table(value.get_ref()) { "table" } else { "key" };
                let message = format!("unknown {what} {}", title.name(name.get_ref()));
                let place = Location { key: path, span: Some(name.span()) };
                self.document.error(&place, message, self.suggestion(name.get_ref(), pattern));
                continue;
            }
            match value.get_ref() {
                DeValue::Table(table) if self.has_keys(&whole) => self.walk(table, &path, &whole, &title.table(&whole)),
                DeValue::Array(items) if self.has_keys(&whole) => {
                    for (index, item) in items.iter().enumerate() {
                        if let Some(table) = item.get_ref().as_table() {
                            let title = title.element(&whole, index, table);
                            self.walk(table, &format!("{path}[{index}]"), &whole, &title);
                        }
                    }
                }
                // Not a table: its reader has reported errors, if any.
                _ => {}
            }
        }
    }

    /// The key that was probably intended by the unknown `name` in the table `pattern`.
    fn suggestion(&self, name: &str, pattern: &str) -> String {
        let siblings: Vec<&str> = self.known.iter().filter_map(|whole| child(whole, pattern)).collect();
        let in_other_table = || self.known.iter().find(|whole| whole.rsplit('.').next() == Some(name));
        if let Some(new) = renamed::renamed(&join(pattern, name)) {
            return format!("its name is now {new:?}");
        }
        if let Some(near) = spelling::closest(name, siblings.iter().copied()) {
            return format!("did you mean {near:?}?");
        }
        match in_other_table().map(|whole| (whole, whole.rsplit_once('.'))) {
            Some((_, Some((table, _)))) => format!("{name:?} is a key of [{table}]"),
            Some((whole, None)) => format!("[{whole}] is a table at the top level of the file"),
            None => format!("expected one of {}", siblings.join(", ")),
        }
    }

    fn has_keys(&self, pattern: &str) -> bool {
        self.known.iter().any(|whole| child(whole, pattern).is_some())
    }
}

fn is_table(value: &DeValue) -> bool {
    let mut items = value.as_array().into_iter().flatten().peekable();
    value.is_table() || (items.peek().is_some() && items.all(|item| item.get_ref().is_table()))
}

/// The last part of `whole` if it lies directly in the table `pattern`.
fn child<'k>(whole: &'k str, pattern: &str) -> Option<&'k str> {
    let name = if pattern.is_empty() { whole } else { whole.strip_prefix(pattern)?.strip_prefix('.')? };
    (!name.contains('.')).then_some(name)
}
