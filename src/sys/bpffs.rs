//! The BPF file system, which keeps programs, maps and links without a process that holds them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags, fstat, fstatfs, openat, statfs};
use rustix::mount::{MountFlags, mount};

use super::broker::broker;

/// The mount point on every distribution.
pub(crate) const MOUNT_POINT: &str = "/sys/fs/bpf";

/// BPF_FS_MAGIC (include/uapi/linux/magic.h).
const MAGIC: i64 = 0xcafe_4a11;

/// Whether this directory lies on a BPF file system.
pub(crate) fn is_one(directory: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(directory)?.f_type as u32 as i64 == MAGIC)
}

/// Opens the directory at `path`, which must lie on a BPF file system, by its name [`reach`]. Whoever may write in the directory above could put a
/// link to any other one in its place, at any time: a link is not followed.
///
/// # Errors
/// Those of open(2): ENOENT, ELOOP or ENOTDIR for a link; or that it is not on a BPF file system.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let reached = reach(path);
    // The name of a descriptor is a link itself, and the broker has followed none to what it opened.
    let links = if reached == path { OFlags::NOFOLLOW } else { OFlags::empty() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links;
    let directory = openat(CWD, &reached, flags, Mode::empty())?;
    match is_one(&directory)? {
        true => Ok(directory),
        false => Err(io::Error::other("it is not on a BPF file system")),
    }
}

/// Whether `path`, or the nearest directory above it that exists, lies on a BPF file system.
pub(crate) fn holds(path: &Path) -> io::Result<bool> {
    for ancestor in path.ancestors() {
        match statfs(ancestor) {
            Ok(found) => return Ok(found.f_type as u32 as i64 == MAGIC),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The source of Baton's own mounts, by which `/proc/PID/mountinfo` tells them from the host's.
const SOURCE: &str = "baton";

/// Mounts it at [`MOUNT_POINT`], as systemd does at boot. Needs CAP_SYS_ADMIN.
pub(crate) fn mount_usual() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount(SOURCE, MOUNT_POINT, "bpf", flags, Some(c"mode=700"))?)
}

/// Whether the BPF file system of `path` ends with this process, and all that is pinned there: Baton itself has mounted it, in a mount namespace
/// that the host's first process, or the container's, is not in. A mount namespace ends with its last process (mount_namespaces(7)).
pub(crate) fn ends_with_process(path: &Path) -> bool {
    let [own, first] =
        ["self", "1"].map(|process| std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default());
    let own = nearest_mount(&own, path).filter(|mount| mount.is_batons());
    // A copy in another namespace has a number of its own.
    let is_first_s = |mount: &Mount| first.lines().filter_map(Mount::read).any(|its| its.id == mount.id);
    own.is_some_and(|mount| std::process::id() == 1 || !is_first_s(&mount))
}

/// A line of mountinfo in proc(5).
struct Mount<'a> {
    id: &'a str,
    at: &'a Path,
    /// Type and source.
    what: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut fields = place.split(' ');
        Some(Self { id: fields.next()?, at: Path::new(fields.nth(3)?), what })
    }

    fn is_batons(&self) -> bool {
        self.what.split(' ').take(2).eq(["bpf", SOURCE])
    }
}

/// Of two mounts at one place the later one counts.
fn nearest_mount<'a>(mountinfo: &'a str, path: &Path) -> Option<Mount<'a>> {
    let around = mountinfo.lines().filter_map(Mount::read).filter(|mount| path.starts_with(mount.at));
    around.max_by_key(|mount| mount.at.components().count())
}

/// Directories below [`MOUNT_POINT`] that only root may enter by their names.
static REACHED: Mutex<Vec<(PathBuf, OwnedFd)>> = Mutex::new(Vec::new());

/// A name by which this process reaches the directory `path`: that itself, unless the broker has to open it.
pub(crate) fn reach(path: &Path) -> PathBuf {
    let Some(broker) = broker().filter(|_| path.starts_with(MOUNT_POINT)) else { return path.to_owned() };
    if !matches!(statfs(path), Err(rustix::io::Errno::ACCESS)) {
        return path.to_owned();
    }
    let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    // A directory that was removed, and maybe made anew, has no name any more.
    reached.retain(|(_, directory)| fstat(directory).is_ok_and(|found| found.st_nlink > 0));
    let by = |directory: &OwnedFd| Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    if let Some((_, directory)) = reached.iter().find(|(at, _)| at == path) {
        return by(directory);
    }
    match broker.open_pins(path) {
        Ok(directory) => {
            let name = by(&directory);
            reached.push((path.to_owned(), directory));
            name
        }
        Err(_) => path.to_owned(),
    }
}

/// Whether a process has a mount at `path` in its mount namespace (proc(5), mountinfo: the fifth field). rmdir(2) in another namespace removes such mounts.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mounts = processes.filter_map(|process| std::fs::read_to_string(process.path().join("mountinfo")).ok());
    mounts
        .into_iter()
        .any(|text| text.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path)))
}

/// The names in a directory; none if there is no such directory.
pub(crate) fn names(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_the_host_has_mounted_is_told_from_one_that_baton_has() {
        let line =
            |at: &str, what: &str| format!("31 23 0:27 / {at} rw,nosuid,nodev,noexec,relatime shared:9 - {what}\n");
        let pins = Path::new("/sys/fs/bpf/baton");
        let host = line("/sys", "sysfs sysfs rw") + &line("/sys/fs/bpf", "bpf bpf rw,mode=700");
        let is_mounted_by_baton =
            |mountinfo: &str, path: &Path| nearest_mount(mountinfo, path).is_some_and(|mount| mount.is_batons());
        assert!(!is_mounted_by_baton(&host, pins));
        assert!(is_mounted_by_baton(&(host.clone() + &line("/sys/fs/bpf", "bpf baton rw,mode=700")), pins));
        let own_folder = line("/sys/fs/bpf", "bpf baton rw") + &line("/sys/fs/bpf/baton", "bpf bpf rw");
        assert!(!is_mounted_by_baton(&own_folder, pins) && !is_mounted_by_baton("", pins));
    }
}
