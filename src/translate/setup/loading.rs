//! Whether Baton takes the file that `baton init` would write.

use std::path::Path;

use super::SetupRefusal;
use crate::config;

/// Reads `toml` by the daemon's own loader, as the file at `path`. An error names the source of the value at fault. The key
/// is written after the text was read, and may be missing.
pub(crate) fn refuse_rejected(toml: &str, path: &Path) -> Result<(), SetupRefusal> {
    let Err(rejected) = config::parse(toml, path) else { return Ok(()) };
    let faults = rejected.errors.iter().filter(|error| error.key != "peers.key_file");
    let faults: Vec<_> = faults
        .map(|error| format!("{}: {}; {}", place(toml, error.line as usize), error.message, error.help))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(SetupRefusal::Rejected(faults)) }
}

/// The source that stands behind the key on `line`, from 1, or on the nearest line above that names one.
fn place(toml: &str, line: usize) -> String {
    let above: Vec<_> = toml.lines().take(line).collect();
    let named = above.iter().rev().find_map(|line| line.rsplit_once("  # ")).map(|(_, place)| place.to_owned());
    named.unwrap_or_else(|| "the file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_source_of_the_value_and_a_key_may_come_later() {
        let read = |address: &str, health: &str| {
            let text = format!(
                "[instance]\nname = \"lb-a\"\n[peers]\nlisten = \"10.0.0.21:9471\"\nkey_file = \"peers.key\"\n[[peers.peer]]\n\
                 name = \"lb-b\"\naddress = \"10.0.0.22:9471\"\n[[frontend]]\nname = \"a\"\nlisten = [\"10.0.0.1:6443\"]  # --port\n\
                 [frontend.health]\n{health}\
                 [[frontend.backend]]\nname = \"b\"\naddress = \"{address}\"  # --backends\n"
            );
            refuse_rejected(&text, Path::new("/none/baton.toml")).map_err(|error| error.to_string())
        };
        read("10.0.0.11:6443", "").unwrap();
        let error = read("10.0.0.11", "").unwrap_err();
        assert!(
            error.starts_with("Baton would reject the file, so none is written:\n--backends: invalid value"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 2, "{error}");
        let health = "kind = \"tls\"  # the CA is there\nca_file = \"none/ca.crt\"\n";
        let error = read("10.0.0.11:6443", health).unwrap_err();
        assert!(error.contains("\nthe CA is there: "), "{error}");
    }
}
