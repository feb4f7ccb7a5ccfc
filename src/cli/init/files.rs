//! The files that `baton init` writes: none is overwritten without an order, and then a copy is kept.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::new_file::NewFile;

/// A file to write.
#[derive(Clone, Debug)]
pub(super) struct SetupFile {
    pub path: PathBuf,
    pub text: String,
    pub mode: u32,
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetupOutcome {
    New,
    Same,
    /// Another text was there, of which a copy is kept.
    Replaced(PathBuf),
}

/// Why a file stays as it is.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = .path.display())]
pub(super) struct SetupFileError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// Finds every file that may not be written, before any is.
pub(super) fn refuse_overwriting(files: &[SetupFile], force: bool) -> Result<(), SetupFileError> {
    for file in files {
        let differs = present(&file.path)?.is_some_and(|text| text != file.text.as_bytes());
        if differs && !force {
            let error = io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it exists and differs; --force replaces it and keeps a copy, --print shows the new text",
            );
            return Err(SetupFileError { path: file.path.clone(), source: error });
        }
    }
    Ok(())
}

/// Writes the whole file or nothing.
pub(super) fn write(file: &SetupFile) -> Result<SetupOutcome, SetupFileError> {
    let path = &file.path;
    let fault = |source| SetupFileError { path: path.clone(), source };
    let before = present(path)?;
    if before.as_deref() == Some(file.text.as_bytes()) {
        return Ok(SetupOutcome::Same);
    }
    if let Some(directory) = path.parent() {
        // Whatever the umask is, nobody else can put another file in its place.
        fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(fault)?;
    }
    let new = NewFile::write(path, file.text.as_bytes(), file.mode).map_err(fault)?;
    let copy = before.is_some().then(|| backup(path)).transpose().map_err(fault)?;
    new.place().map_err(fault)?;
    Ok(copy.map_or(SetupOutcome::New, SetupOutcome::Replaced))
}

fn present(path: &Path) -> Result<Option<Vec<u8>>, SetupFileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            // What leads there would not find the new text.
            Ok(target) => {
                let why = format!(
                    "a symbolic link to {}, which does not exist: make that file, or remove the link",
                    target.display()
                );
                Err(SetupFileError { path: path.to_owned(), source: io::Error::new(io::ErrorKind::NotFound, why) })
            }
            Err(_) => Ok(None),
        },
        Err(error) => Err(SetupFileError { path: path.to_owned(), source: error }),
    }
}

/// A copy beside the file. The dot keeps the kubelet from running the copy of a manifest as well.
fn backup(path: &Path) -> io::Result<PathBuf> {
    for number in 1.. {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".before-{number}"));
        let copy = path.with_file_name(name);
        // A hard link fails if the name is taken.
        match fs::hard_link(path, &copy) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| copy),
        }
    }
    unreachable!("the range has no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("baton.toml");
        std::os::unix::fs::symlink("/nonexistent/baton.toml", &path).unwrap();
        let file = SetupFile { path: path.clone(), text: "one".to_owned(), mode: 0o644 };
        for error in [refuse_overwriting(std::slice::from_ref(&file), true), write(&file).map(drop)] {
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("baton.toml: a symbolic link to /nonexistent/baton.toml, which does not"),
                "{error}"
            );
        }
        assert!(path.is_symlink());
    }

    #[test]
    fn nothing_is_overwritten_and_a_forced_one_leaves_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/baton.toml");
        let file = |text: &str| SetupFile { path: path.clone(), text: text.to_owned(), mode: 0o644 };
        let outcome = |text: &str| write(&file(text)).unwrap();
        assert_eq!(outcome("one"), SetupOutcome::New);
        assert_eq!(outcome("one"), SetupOutcome::Same);
        refuse_overwriting(&[file("one")], false).unwrap();
        let error = refuse_overwriting(&[file("two")], false).unwrap_err().to_string();
        assert!(error.contains("etc/baton.toml: it exists and differs; --force"), "{error}");
        refuse_overwriting(&[file("two")], true).unwrap();
        let copies = [outcome("two"), outcome("three")].map(|outcome| match outcome {
            SetupOutcome::Replaced(copy) => fs::read_to_string(copy).unwrap(),
            other => panic!("{other:?}"),
        });
        assert_eq!(copies, ["one", "two"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3, "nothing else is left behind");
    }
}
