//! `baton genkey`: the secret that the instances of a fleet share, or the key of this instance alone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use zeroize::Zeroizing;

use super::new_file::NewFile;
use super::output::{CliError, Output};
use crate::config::{PeerKey, PrivateKey};
use crate::sys::random;

#[derive(Debug, Args)]
pub(super) struct GenkeyArguments {
    /// Writes a new key to this file and moves its old key to FILE.previous, both with mode 600. Copy both files to all
    /// hosts, then run `baton reload` on each
    #[arg(long, value_name = "FILE")]
    next: Option<PathBuf>,
    /// Writes a key of this instance alone to this file, with mode 600, and prints its public half for the files of the
    /// others. A key that is there stays, and its public half is printed
    #[arg(long, value_name = "FILE", conflicts_with = "next")]
    identity: Option<PathBuf>,
}

/// Why the keys in the files could not be read or changed. No file has changed.
#[derive(Debug, thiserror::Error)]
enum KeyFileError {
    #[error("{path}: {source}", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} holds no key: create the first key with `(umask 077; baton genkey > FILE)`", .0.display())]
    NoSharedKey(PathBuf),
    #[error("{} holds no key: name a file that does not exist yet", .0.display())]
    NoOwnKey(PathBuf),
    #[error("{} exists: once all instances have the newer key, remove this file and run `baton reload` on each", .0.display())]
    Unfinished(PathBuf),
}

/// Prints a new key in the form of `peers.key_file`, or writes it to a file.
pub(super) fn genkey(arguments: &GenkeyArguments, output: &Output) -> Result<ExitCode, CliError> {
    let secret = match random::secret() {
        Ok(secret) => secret,
        Err(error) => {
            eprintln!("baton: cannot read random bytes from the kernel: {error}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let made = match (&arguments.next, &arguments.identity) {
        (Some(file), _) => next(file, &PeerKey(secret)).map(|previous| {
            let (file, previous) = (file.display().to_string(), previous.display().to_string());
            let line = format!(
                "{file} has the new key, {previous} the old one; copy both to all hosts, then run `baton reload` on each"
            );
            (json!({ "key_file": file, "key_file_previous": previous }), line)
        }),
        (None, Some(file)) => identity(file, PrivateKey(secret)).map(|own| {
            let public = own.public().to_string();
            let line = format!("public_key = \"{public}\"");
            (json!({ "private_key_file": file.display().to_string(), "public_key": public }), line)
        }),
        (None, None) => {
            let key = PeerKey(secret).spell();
            Ok((json!({ "key": key }), key))
        }
    };
    match made {
        Ok((document, _)) if output.json => output.document(&document)?,
        Ok((_, line)) => output.line(line)?,
        Err(error) => {
            eprintln!("baton: {error}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A concurrent reader finds the present key in one of the files, because it is saved first.
fn next(file: &Path, key: &PeerKey) -> Result<PathBuf, KeyFileError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| KeyFileError::File { path, source }
    };
    let previous = beside(file, ".previous");
    let text = fs::read_to_string(file).map_err(failed(file))?;
    let current = PeerKey::parse(text.trim()).ok_or_else(|| KeyFileError::NoSharedKey(file.to_owned()))?;
    if previous.exists() {
        return Err(KeyFileError::Unfinished(previous));
    }
    // A full disk is found before either has its place.
    let write = |path: &Path, key: &PeerKey| {
        NewFile::write(path, format!("{}\n", key.spell()).as_bytes(), 0o600).map_err(failed(path))
    };
    let (old, new) = (write(&previous, &current)?, write(file, key)?);
    old.place().map_err(failed(&previous))?;
    new.place().map_err(|source| {
        // Otherwise the next attempt would be refused.
        let _ = fs::remove_file(&previous);
        failed(file)(source)
    })?;
    Ok(previous)
}

/// The key in `file`, which is `new` if there was none.
fn identity(file: &Path, new: PrivateKey) -> Result<PrivateKey, KeyFileError> {
    let failed = |source| KeyFileError::File { path: file.to_owned(), source };
    if !file.exists() {
        let text = Zeroizing::new(format!("{}\n", new.spell()));
        match NewFile::write(file, text.as_bytes(), 0o600).map_err(failed)?.place_new() {
            Ok(()) => return Ok(new),
            // Another command made one at the same time: the public half of that one is the right one.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let text = Zeroizing::new(fs::read_to_string(file).map_err(failed)?);
    PrivateKey::parse(text.trim()).ok_or_else(|| KeyFileError::NoOwnKey(file.to_owned()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_of_an_instance_is_made_once_and_then_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("instance.key");
        let made = identity(&file, PrivateKey([1; 32])).unwrap();
        assert_eq!(identity(&file, PrivateKey([2; 32])).unwrap(), made);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file, "no key").unwrap();
        assert!(matches!(identity(&file, PrivateKey([2; 32])), Err(KeyFileError::NoOwnKey(_))));
        assert_eq!(fs::read_to_string(&file).unwrap(), "no key");
        assert!(matches!(identity(directory.path(), PrivateKey([2; 32])), Err(KeyFileError::File { .. })));
    }

    #[test]
    fn the_key_before_is_kept_until_somebody_removes_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("peers.key");
        assert!(matches!(next(&file, &PeerKey([2; 32])), Err(KeyFileError::File { .. })));
        fs::write(&file, "no key").unwrap();
        assert!(matches!(next(&file, &PeerKey([2; 32])), Err(KeyFileError::NoSharedKey(_))));
        let first = PeerKey([1; 32]);
        fs::write(&file, first.spell()).unwrap();
        let previous = next(&file, &PeerKey([2; 32])).unwrap();
        let read = |path: &Path| PeerKey::parse(fs::read_to_string(path).unwrap().trim());
        assert_eq!((read(&file), read(&previous)), (Some(PeerKey([2; 32])), Some(first.clone())));
        for path in [&file, &previous] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(matches!(next(&file, &PeerKey([3; 32])), Err(KeyFileError::Unfinished(_))));
        assert_eq!((read(&file), read(&previous)), (Some(PeerKey([2; 32])), Some(first)));
    }
}
