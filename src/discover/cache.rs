//! The last set of a frontend on disk, for a start while its source is out of reach: the source in the first line, then an address a line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::config::read_file;
use crate::model::discover::{AddressSet, parse_list, valid};

const HEADER: &str = "# baton: the last backends of ";

/// The set that was kept of the source called `source`. `None`: there is none, or the file has that of another source.
pub(super) fn read(path: &Path, source: &str) -> Option<AddressSet> {
    let text = String::from_utf8(read_file(path).ok()?).ok()?;
    let first = text.lines().next()?.strip_prefix(HEADER)?;
    let set = parse_list(&text).ok().and_then(|set| valid(set).ok()).filter(|_| first == source);
    if set.is_none() {
        tracing::warn!(path = %path.display(), source, "the file with the last backends has none of this source; Baton does not use it");
    }
    set
}

/// Replaces the file at `path` in one step, so that no reader finds half of it.
pub(crate) fn write(path: &Path, source: &str, set: &AddressSet) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = Temporary(path.with_file_name(name));
    let mut file = fs::File::create(&temporary.0)?;
    writeln!(file, "{HEADER}{source}")?;
    set.iter().try_for_each(|address| writeln!(file, "{address}"))?;
    file.sync_all()?;
    fs::rename(&temporary.0, path)
}

/// Is removed if it was not renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::BackendAddr;

    #[test]
    fn a_set_is_read_as_it_was_written_and_only_for_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/apiserver.backends");
        assert_eq!(read(&path, "dns a"), None);
        let set: AddressSet =
            ["10.0.0.1:6443", "[2001:db8::1]:443"].iter().map(|it| BackendAddr::new(it.parse().unwrap())).collect();
        write(&path, "dns a", &set).unwrap();
        assert_eq!(read(&path, "dns a"), Some(set.clone()));
        assert_eq!(read(&path, "dns b"), None);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
        // Half a file, or another program's.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 2]).unwrap();
        assert_eq!(read(&path, "dns a"), None);
        fs::write(&path, "10.0.0.1:6443\n").unwrap();
        assert_eq!(read(&path, "dns a"), None);
        assert!(write(Path::new("/proc/none/x"), "dns a", &set).is_err());
    }
}
