//! The files that a configuration file names.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::file;

/// Whether the configuration file at `config` has the path `named` as a value of a key for files: relative ones begin at the file's own
/// directory. False also if it cannot be read.
pub(crate) fn names_file(config: &Path, named: &Path) -> bool {
    let Some(text) = file::read(config).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else { return false };
    let folder = config.parent().unwrap_or(Path::new(""));
    DeTable::parse(&text).is_ok_and(|table| has(table.get_ref(), &|text| folder.join(text) == named))
}

fn has(table: &DeTable<'_>, is_it: &impl Fn(&str) -> bool) -> bool {
    table.iter().any(|(key, value)| is_or_has(key.get_ref(), value.get_ref(), is_it))
}

fn is_or_has(key: &str, value: &DeValue<'_>, is_it: &impl Fn(&str) -> bool) -> bool {
    match value {
        DeValue::String(text) => is_of_file(key) && is_it(text),
        DeValue::Array(values) => values.iter().any(|value| is_or_has(key, value.get_ref(), is_it)),
        DeValue::Table(table) => has(table, is_it),
        _ => false,
    }
}

/// `ca_file`, `key_file_previous`, and the `path` of a list of backends.
fn is_of_file(key: &str) -> bool {
    key == "path" || key.split('_').any(|word| word == "file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_if_it_is_a_value_and_neither_a_comment_nor_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("baton.toml");
        let text = "# \"/etc/shadow\"\n[instance]\nname = \"/etc/gshadow\"\n[peers]\nkey_file_previous = \"peers.key\"\n[[frontend]]\ndiscover = [{ path = \"list\", profile = \"x\" }]\nhealth = { tls = { ca_file = \"/etc/ca.crt\" } }\n";
        std::fs::write(&config, text).unwrap();
        for named in [folder.path().join("peers.key"), folder.path().join("list"), "/etc/ca.crt".into()] {
            assert!(names_file(&config, &named), "{named:?}");
        }
        let another = folder.path().join("x");
        for other in ["/etc/shadow", "/etc/gshadow", "peers.key", "/etc/ca.crt/..", "/etc", another.to_str().unwrap()] {
            assert!(!names_file(&config, Path::new(other)), "{other}");
        }
        std::fs::write(&config, "key = \"/etc/shadow").unwrap();
        assert!(!names_file(&config, Path::new("/etc/shadow")), "no TOML");
    }
}
