//! The BPF file system, which keeps programs, maps and links without a process that holds them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};

/// The mount point on every distribution.
pub(crate) const MOUNT_POINT: &str = "/sys/fs/bpf";

/// BPF_FS_MAGIC (include/uapi/linux/magic.h).
const MAGIC: i64 = 0xcafe_4a11;

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

/// Mounts it at [`MOUNT_POINT`], as systemd does at boot. Needs CAP_SYS_ADMIN.
pub(crate) fn mount_usual() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("bpf", MOUNT_POINT, "bpf", flags, Some(c"mode=700"))?)
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
