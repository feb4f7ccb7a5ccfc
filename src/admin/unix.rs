//! The admin socket's file: private from its first moment, and never taken from a running instance.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use tokio::net::UnixListener;

/// Why the socket cannot be opened.
#[derive(Debug, Error)]
pub enum OpenSocketError {
    #[error("{path}: another instance answers on this admin socket", path = .0.display())]
    Taken(PathBuf),
    #[error("{path}: exists and is not a socket", path = .0.display())]
    NotASocket(PathBuf),
    #[error("{path}: cannot make the directory of the admin socket: {source}", path = .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{path}: another instance is opening it", path = .0.display())]
    Locked(PathBuf),
    #[error("{path}: cannot open the admin socket: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: cannot give the read-only socket to group {gid}: {source}; Baton needs CAP_CHOWN, or its user must be in that group", path = .path.display())]
    Group { path: PathBuf, gid: u32, source: io::Error },
}

/// A listening socket whose file is removed on drop, unless another file has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// An open descriptor, so that no other file can get the inode's number. `None`: another process removes the file.
    inode: Option<OwnedFd>,
}

/// Opens the admin socket at `path` with mode 0600. Replaces a file that a dead instance left. Needs a tokio runtime.
pub fn open(path: &Path) -> Result<(UnixListener, SocketFile), OpenSocketError> {
    let io_error = |source| OpenSocketError::Io { path: path.to_owned(), source };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|source| OpenSocketError::Directory { path: directory.to_owned(), source })?;
    // No other instance may bind between our check of the dead file and our bind.
    let guard = File::open(directory).map_err(io_error)?;
    lock(&guard).map_err(|_| OpenSocketError::Locked(path.to_owned()))?;
    remove_if_dead(path)?;

    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(io_error)?;
    // bind(2) gives the file the mode of the socket's own inode (net/unix/af_unix.c, unix_bind_bsd). With a chmod after
    // bind, any user could connect for a moment, and all threads share the umask.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|errno| io_error(errno.into()))?;
    let address = SockAddr::unix(path).map_err(io_error)?;
    socket.bind(&address).map_err(io_error)?;
    socket.listen(BACKLOG).map_err(io_error)?;
    socket.set_nonblocking(true).map_err(io_error)?;
    let file = SocketFile::claim(path)?;
    let listener = UnixListener::from_std(OwnedFd::from(socket).into()).map_err(io_error)?;
    Ok((listener, file))
}

/// As [`open`], with mode 0660 for the group `gid`.
pub(crate) fn open_for(path: &Path, gid: u32) -> Result<(UnixListener, SocketFile), OpenSocketError> {
    let (listener, file) = open(path)?;
    file.give_to(gid)?;
    Ok((listener, file))
}

/// Takes a socket that another instance listens on at `path`. Needs a tokio runtime.
pub(crate) fn inherit(path: &Path, socket: OwnedFd) -> Result<UnixListener, OpenSocketError> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    let ready = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
    ready.map_err(|source| OpenSocketError::Io { path: path.to_owned(), source })
}

impl SocketFile {
    /// The file at `path` belongs to this process from now on.
    pub(crate) fn claim(path: &Path) -> Result<Self, OpenSocketError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inode = rustix::fs::open(path, flags, Mode::empty());
        let inode = inode.map_err(|errno| OpenSocketError::Io { path: path.to_owned(), source: errno.into() })?;
        Ok(Self { path: path.to_owned(), inode: Some(inode) })
    }

    /// Lets the group `gid` connect.
    pub(crate) fn give_to(&self, gid: u32) -> Result<(), OpenSocketError> {
        let failed =
            |errno: rustix::io::Errno| OpenSocketError::Group { path: self.path.clone(), gid, source: errno.into() };
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
        // The group first: with the wider mode the former group could connect for a moment.
        let (directory, follow) = (rustix::fs::CWD, AtFlags::SYMLINK_NOFOLLOW);
        rustix::fs::chownat(directory, &self.path, None, Some(Gid::from_raw(gid)), follow).map_err(failed)?;
        rustix::fs::chmod(&self.path, mode).map_err(failed)
    }

    /// The file belongs to another process from now on.
    pub(crate) fn leave(&mut self) {
        self.inode = None;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Some(inode) = &self.inode else { return };
        let (Ok(there), Ok(ours)) = (rustix::fs::lstat(&self.path), rustix::fs::fstat(inode)) else { return };
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock(directory: &File) -> io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

fn remove_if_dead(path: &Path) -> Result<(), OpenSocketError> {
    let io_error = |source| OpenSocketError::Io { path: path.to_owned(), source };
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(OpenSocketError::NotASocket(path.to_owned()));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(io_error)?;
    // A full backlog must not block us; it means that an instance listens there.
    probe.set_nonblocking(true).map_err(io_error)?;
    match probe.connect(&SockAddr::unix(path).map_err(io_error)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(io_error),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(io_error(error)),
        _ => Err(OpenSocketError::Taken(path.to_owned())),
    }
}

const BACKLOG: i32 = 64;
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn the_socket_is_private_and_goes_away_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/admin.sock");
        let (_listener, file) = open(&path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_instances_file_is_replaced_and_a_living_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let (listener, file) = open(&path).unwrap();
        assert!(matches!(open(&path), Err(OpenSocketError::Taken(_))));
        drop(listener);
        let (_listener, _new) = open(&path).unwrap();
        // The first owner must not remove the second's file.
        drop(file);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(open(&path), Err(OpenSocketError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
