//! Whether Baton takes the file that `baton init` would write.

use std::path::Path;

use super::SetupRefusal;
use crate::config;

/// Files that the text names and that may come later: the key is written after the text was read, and below `--root` this
/// host's CA is not the other one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupFiles {
    OfThisHost,
    BelowRoot,
}

/// Reads `toml` by the daemon's own loader, as the file at `path`. An error names the source of the value at fault.
pub(crate) fn refuse_rejected(toml: &str, path: &Path, files: SetupFiles) -> Result<(), SetupRefusal> {
    let Err(rejected) = config::parse(toml, path) else { return Ok(()) };
    let comes_later =
        |key: &str| key == "peers.key_file" || files == SetupFiles::BelowRoot && key.ends_with(".ca_file");
    let faults = rejected.errors.iter().filter(|error| !comes_later(&error.key));
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
        let read = |address: &str, files| {
            let text = format!(
                "[instance]\nname = \"lb-a\"\n[peers]\nlisten = \"10.0.0.21:9471\"\nkey_file = \"peers.key\"\n[[peers.peer]]\n\
                 name = \"lb-b\"\naddress = \"10.0.0.22:9471\"\n[[frontend]]\nname = \"a\"\nlisten = [\"10.0.0.1:6443\"]  # --port\n\
                 [frontend.health]\nkind = \"tls\"  # the CA is there\nca_file = \"none/ca.crt\"\n\
                 [[frontend.backend]]\nname = \"b\"\naddress = \"{address}\"  # --backends\n"
            );
            refuse_rejected(&text, Path::new("/none/baton.toml"), files).map_err(|error| error.to_string())
        };
        read("10.0.0.11:6443", SetupFiles::BelowRoot).unwrap();
        let error = read("10.0.0.11", SetupFiles::BelowRoot).unwrap_err();
        assert!(
            error.starts_with("Baton would reject the file, so none is written:\n--backends: invalid value"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 2, "{error}");
        let error = read("10.0.0.11:6443", SetupFiles::OfThisHost).unwrap_err();
        assert!(error.contains("\nthe CA is there: "), "{error}");
    }
}
