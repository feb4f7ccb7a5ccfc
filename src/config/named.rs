//! The files that a configuration file names.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::file;

/// Whether the configuration file at `config` has the path `named` as a value: relative ones begin at the file's own directory. False also if
/// it cannot be read.
pub(crate) fn names_file(config: &Path, named: &Path) -> bool {
    let Some(text) = file::read(config).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else { return false };
    let folder = config.parent().unwrap_or(Path::new(""));
    DeTable::parse(&text).is_ok_and(|table| {
        table.get_ref().values().any(|value| has(value.get_ref(), &|text| folder.join(text) == named))
    })
}

fn has(value: &DeValue<'_>, is_it: &impl Fn(&str) -> bool) -> bool {
    match value {
        DeValue::String(text) => is_it(text),
        DeValue::Array(values) => values.iter().any(|value| has(value.get_ref(), is_it)),
        DeValue::Table(table) => table.values().any(|value| has(value.get_ref(), is_it)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_if_it_is_a_value_and_neither_a_comment_nor_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("baton.toml");
        let text =
            "# \"/etc/shadow\"\n[peers]\nkey = \"peers.key\"\n[[frontend]]\ntls = { roots = [\"/etc/ca.crt\"] }\n";
        std::fs::write(&config, text).unwrap();
        assert!(names_file(&config, &folder.path().join("peers.key")) && names_file(&config, Path::new("/etc/ca.crt")));
        for other in ["/etc/shadow", "peers.key", "/etc/ca.crt/..", "/etc"] {
            assert!(!names_file(&config, Path::new(other)), "{other}");
        }
        std::fs::write(&config, "key = \"/etc/shadow").unwrap();
        assert!(!names_file(&config, Path::new("/etc/shadow")), "no TOML");
    }
}
