//! Writes a file for sysctl.d(5) with every setting that this host should have; it does not apply them.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::kernel::{Setting, spelled};

/// The default path.
pub(crate) const DEFAULT: &str = "/etc/sysctl.d/90-baton.conf";

/// The first line, which marks a file that may be overwritten.
const HEAD: &str = "# Written by `baton check --host --fix`; it may be written over.";

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    New,
    /// It already had this content.
    Same,
    /// This host needs no settings.
    Nothing,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("{path} was not written by Baton; name another file with --fix=FILE", path = .0.display())]
    Foreign(PathBuf),
    #[error("{path}: {source}; run this as root, or name another file with --fix=FILE", path = .path.display())]
    Denied { path: PathBuf, source: io::Error },
    #[error("{path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Writes `settings` to `path`, whole or not at all.
pub(crate) fn write(path: &Path, settings: &[Setting]) -> Result<Written, WriteError> {
    if settings.is_empty() {
        return Ok(Written::Nothing);
    }
    let text = text(settings);
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            WriteError::Denied { path: path.to_owned(), source }
        }
        _ => WriteError::Write { path: path.to_owned(), source },
    };
    match std::fs::read_to_string(path) {
        Ok(before) if before == text => return Ok(Written::Same),
        Ok(before) if !before.starts_with(HEAD) => return Err(WriteError::Foreign(path.to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    // A small image may have no such directory.
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(fail)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::File::options().write(true).create_new(true).open(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    });
    if let Err(error) = written {
        let _ = std::fs::remove_file(&beside);
        return Err(fail(error));
    }
    Ok(Written::New)
}

fn text(settings: &[Setting]) -> String {
    let mut text = format!("{HEAD}\n");
    for Setting { path, value, why } in settings {
        // conntrack's settings do not exist before its module is loaded: that must not fail the whole file.
        let optional = if path.starts_with("net/netfilter/") { "-" } else { "" };
        let _ = write!(text, "\n# {why}.\n{optional}{} = {value}\n", spelled(path));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(path: &str, value: i64) -> Setting {
        Setting { path: path.to_owned(), value: value.to_string(), why: "because" }
    }

    #[test]
    fn it_is_written_once_and_over_nobody_else_s_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("90-baton.conf");
        let settings = [setting("net/ipv4/tcp_retries2", 8), setting("net/netfilter/nf_conntrack_tcp_loose", 1)];
        assert_eq!(write(&path, &settings).unwrap(), Written::New);
        assert_eq!(write(&path, &settings).unwrap(), Written::Same);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.ends_with("net.ipv4.tcp_retries2 = 8\n\n# because.\n-net.netfilter.nf_conntrack_tcp_loose = 1\n"),
            "{text}"
        );
        assert_eq!(write(&path, &settings[..1]).unwrap(), Written::New);
        std::fs::write(&path, "net.ipv4.tcp_retries2 = 5\n").unwrap();
        assert!(matches!(write(&path, &settings), Err(WriteError::Foreign(_))));
        let beside = tempfile::tempdir().unwrap();
        assert_eq!(write(&beside.path().join("none/90.conf"), &settings).unwrap(), Written::New);
        assert!(matches!(write(&path.join("90.conf"), &settings), Err(WriteError::Write { .. })));
        assert_eq!(write(&path, &[]).unwrap(), Written::Nothing);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
