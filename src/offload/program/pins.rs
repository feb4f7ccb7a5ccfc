//! The pinned objects and their paths: the maps, the program, and a link for each interface.
//!
//! ```text
//!   DIRECTORY/flows notes counters backends ...             maps
//!             program                                       the program that the links run
//!             link-eth0 ...                                 each attaches it to one interface, and detaches it when removed
//!             filter-eth0 ...                               directories: a filter of clsact attaches it to this interface
//!             qdisc-2 ...                                   directories: Baton made the qdisc clsact of the interface with this index
//!             meta                                          a map of one element, made last: the rest is whole
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, flock, unlinkat};
use rustix::io::Errno;

use super::error::OpenError;
use crate::sys::bpf::{self, Map, Update};
use crate::sys::bpffs;

/// Version of everything that is pinned: another number means another layout. See `bpf/entry.h`.
pub const LAYOUT: u32 = 5;

/// The maps of `bpf/entry.h`.
pub(super) const MAPS: [&str; 13] = [
    "flows",
    "notes",
    "counters",
    "backends",
    "services",
    "port_ranges",
    "sources",
    "unknown_packets",
    "fragments",
    "foreign",
    "events",
    "moved",
    "meta",
];

/// The program, and the next one while it replaces the other.
const PROGRAMS: [&str; 2] = ["program", "program-next"];

const LINK_PREFIX: &str = "link-";
const FILTER_PREFIX: &str = "filter-";
const QDISC_PREFIX: &str = "qdisc-";

/// The file system takes no name with a dot, as a VLAN's interface has (`bpf_lookup`, kernel/bpf/inode.c); and no interface has a colon.
const DOT: (&str, &str) = (".", ":");

/// The directory.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    directory: PathBuf,
    /// A name by which this process reaches it.
    reached: PathBuf,
}

/// The maker of the pinned objects: `struct meta` of `bpf/entry.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub layout: u32,
    /// Entries of the map of services.
    pub services: u32,
    /// Digest of the program's object.
    pub digest: u128,
}

/// The pinned objects themselves, to pin them again if somebody removes the pins.
#[derive(Debug)]
pub(super) struct PinnedObjects(Vec<(&'static str, OwnedFd)>);

/// A lock that a process holds while it pins or removes objects.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code)] File);

impl PinnedObjects {
    pub(super) fn program(&self) -> impl AsFd {
        &self.0[0].1
    }
}

impl Pins {
    /// Names a directory without looking at it.
    pub(super) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), reached: bpffs::reach(directory) }
    }

    /// Makes the directory; mounts a BPF file system there if needed.
    pub(super) fn prepare(directory: &Path) -> Result<Self, OpenError> {
        let fail = |source| OpenError::Directory { path: directory.to_path_buf(), source };
        if !bpffs::holds(directory).map_err(fail)? && directory.starts_with(bpffs::MOUNT_POINT) {
            bpffs::mount_usual().map_err(OpenError::Mount)?;
        }
        if !bpffs::holds(directory).map_err(fail)? {
            return Err(OpenError::NotBpffs { path: directory.to_path_buf() });
        }
        std::fs::create_dir_all(directory).map_err(fail)?;
        Ok(Self::at(directory))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.reached.join(name)
    }

    pub(super) fn link_path(&self, interface: &str) -> PathBuf {
        self.path(&format!("{LINK_PREFIX}{}", interface.replace(DOT.0, DOT.1)))
    }

    pub(super) fn filter_path(&self, interface: &str) -> PathBuf {
        self.path(&format!("{FILTER_PREFIX}{}", interface.replace(DOT.0, DOT.1)))
    }

    pub(super) fn qdisc_path(&self, index: u32) -> PathBuf {
        self.path(&format!("{QDISC_PREFIX}{index}"))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for other processes that pin or remove here.
    pub(super) fn lock(&self) -> io::Result<Lock> {
        let directory = File::open(&self.reached)?;
        flock(&directory, FlockOperation::LockExclusive)?;
        Ok(Lock(directory))
    }

    pub(super) fn map(&self, name: &str) -> io::Result<Map> {
        Map::open(&self.path(name))
    }

    /// Opens the maps and the program.
    pub(super) fn objects(&self) -> io::Result<PinnedObjects> {
        // The map that says that the rest is whole is the last one.
        let names = [PROGRAMS[0]].into_iter().chain(MAPS);
        names.map(|name| Ok((name, bpf::open_pinned(&self.path(name))?))).collect::<io::Result<_>>().map(PinnedObjects)
    }

    /// Pins what is not pinned any more; returns whether anything was. Fails where this process may not make the directory again.
    pub(super) fn restore(&self, objects: &PinnedObjects) -> io::Result<bool> {
        let missing: Vec<_> = objects.0.iter().filter(|(name, _)| !self.path(name).exists()).collect();
        if missing.is_empty() {
            return Ok(false);
        }
        std::fs::create_dir_all(&self.reached)?;
        missing.iter().try_for_each(|(name, object)| bpf::pin(object, &self.path(name)))?;
        Ok(true)
    }

    /// Interfaces that the program belongs on, by a pinned link or by a filter, attached or not.
    pub(super) fn links(&self) -> io::Result<Vec<String>> {
        let names = bpffs::names(&self.reached)?.into_iter();
        let name = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            let name = name.strip_prefix(LINK_PREFIX).or_else(|| name.strip_prefix(FILTER_PREFIX))?;
            Some(name.replace(DOT.1, DOT.0))
        };
        let mut links: Vec<_> = names.filter_map(name).collect();
        links.sort();
        links.dedup();
        Ok(links)
    }

    /// `None`: there is no complete set of pinned objects.
    pub(super) fn meta(&self) -> io::Result<Option<Meta>> {
        match self.map("meta") {
            Ok(map) => Meta::read(&map),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Files in the directory that are not Baton's.
    pub(super) fn strangers(&self) -> io::Result<Vec<PathBuf>> {
        let ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let prefixes = [LINK_PREFIX, FILTER_PREFIX, QDISC_PREFIX];
            MAPS.contains(&name) || PROGRAMS.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        Ok(bpffs::names(&self.reached)?.into_iter().filter(|path| !ours(path)).collect())
    }

    /// Removes everything: the links first, so that no packet meets a program without its maps. Filters must be gone. It
    /// goes by a descriptor, and follows no link.
    pub(super) fn clear(&self) -> io::Result<()> {
        let folder = match bpffs::open(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            folder => folder?,
        };
        let names = Dir::read_from(&folder)?.map(|entry| Ok(entry?.file_name().to_owned()));
        let mut names: Vec<_> = names.collect::<io::Result<_>>()?;
        names.retain(|name| ![c".", c".."].contains(&&**name));
        names.sort_by_key(|name| !name.to_bytes().starts_with(LINK_PREFIX.as_bytes()));
        names.iter().try_for_each(|name| match unlinkat(&folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => Ok(unlinkat(&folder, name, AtFlags::REMOVEDIR)?),
            removed => Ok(removed?),
        })
    }
}

impl Meta {
    const SIZE: usize = 32;
    const MAGIC: u64 = u64::from_be_bytes(*b"baton/p\n");

    /// `None`: no process has written it yet.
    pub(super) fn read(map: &Map) -> io::Result<Option<Self>> {
        let mut raw = [0; Self::SIZE];
        if map.value_size() != Self::SIZE {
            // Any other length is another layout.
            return Ok(Some(Self { layout: 0, services: 0, digest: 0 }));
        }
        map.look_up(&0u32.to_ne_bytes(), &mut raw)?;
        let (magic, rest) = raw.split_at(8);
        let word = |at: usize| u32::from_ne_bytes(rest[at..][..4].try_into().expect("four bytes"));
        let digest = u128::from_ne_bytes(rest[8..].try_into().expect("sixteen bytes"));
        let written = magic == Self::MAGIC.to_ne_bytes();
        Ok(written.then(|| Self { layout: word(0), services: word(4), digest }))
    }

    pub(super) fn write(&self, map: &Map) -> io::Result<()> {
        let mut raw = [0; Self::SIZE];
        raw[..8].copy_from_slice(&Self::MAGIC.to_ne_bytes());
        raw[8..12].copy_from_slice(&self.layout.to_ne_bytes());
        raw[12..16].copy_from_slice(&self.services.to_ne_bytes());
        raw[16..].copy_from_slice(&self.digest.to_ne_bytes());
        map.update(&0u32.to_ne_bytes(), &raw, Update::Any)
    }
}
