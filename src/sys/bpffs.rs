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
    let own = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let [own_space, first_space] = ["/proc/self/ns/mnt", "/proc/1/ns/mnt"].map(std::fs::read_link);
    let is_shared = std::process::id() != 1 && matches!((own_space, first_space), (Ok(own), Ok(first)) if own == first);
    is_mounted_by_baton(&own, path) && !is_shared
}

/// `mountinfo`: as in proc(5); of two mounts at one place the later one counts.
fn is_mounted_by_baton(mountinfo: &str, path: &Path) -> bool {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        Some((Path::new(place.split(' ').nth(4)?), what))
    });
    let around = mounts.filter(|(at, _)| path.starts_with(at));
    let nearest = around.max_by_key(|(at, _)| at.components().count());
    nearest.is_some_and(|(_, what)| what.split(' ').take(2).eq(["bpf", SOURCE]))
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
        assert!(!is_mounted_by_baton(&host, pins));
        assert!(is_mounted_by_baton(&(host.clone() + &line("/sys/fs/bpf", "bpf baton rw,mode=700")), pins));
        let own_folder = line("/sys/fs/bpf", "bpf baton rw") + &line("/sys/fs/bpf/baton", "bpf bpf rw");
        assert!(!is_mounted_by_baton(&own_folder, pins) && !is_mounted_by_baton("", pins));
    }
}
