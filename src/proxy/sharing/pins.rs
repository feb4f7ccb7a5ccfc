//! The pins of shared ports: all instances of a network namespace use one program and its maps, so that each sees the places of
//! the others.
//!
//! ```text
//!   /sys/fs/bpf/baton-ports/NAMESPACE-LAYOUT/places      the places, each with its owner
//!                                            listeners   one living socket of each place that has one
//!                                            link        attaches the program; Baton pins it last
//! ```
//! The pins and the program outlive the process: the kernel answers with RST for a place without a socket, although another process
//! listens on the port.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::EbpfLoader;
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, SkLookup};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::error::SharingError;
use crate::addr::VipAddr;
use crate::sys::bpf::{self, Map, Update};
use crate::sys::broker::{BrokerRequest, broker};
use crate::sys::{bpffs, netdev};

/// Of the maps and the program together: another number, another directory. `src/offload/bpf/sharing.c` says when it changes.
const LAYOUT: u32 = 1;

pub(crate) const DIRECTORY: &str = "/sys/fs/bpf/baton-ports";

const MAPS: [&str; 2] = ["places", "listeners"];
const LINK: &str = "link";

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../offload/bpf/sharing.o");

/// `struct place` of `src/offload/bpf/sharing.c`.
pub(super) type PlaceKey = [u8; 20];

/// The pins for this thread's network namespace.
#[derive(Clone, Debug)]
pub(super) struct PortPins {
    /// Of their folder in [`DIRECTORY`].
    name: CString,
    namespace: u64,
}

/// The maps. No other process changes them while this one holds the lock.
#[derive(Debug)]
pub(super) struct LockedPorts {
    places: Map,
    listeners: Map,
    lock: PinFolder,
}

/// A directory by its descriptor: Baton's user may write in [`DIRECTORY`], and whoever has taken its process over may put a link to any other
/// directory in the place of a folder, at any time.
#[derive(Debug)]
struct PinFolder(OwnedFd);

/// The state of an address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceState {
    /// It is no place.
    Free,
    /// It is a place, and no socket serves it: the process that made it is dead.
    Dead,
    /// This socket, by its cookie, is one of those that serve it.
    Served(u64),
}

impl PortPins {
    pub(super) fn here() -> io::Result<Self> {
        let (_, namespace) = netdev::namespace()?;
        Ok(Self { name: CString::new(format!("{namespace}-{LAYOUT}"))?, namespace })
    }

    /// The maps. Makes them and attaches the program if there is none.
    pub(super) fn open(&self) -> Result<LockedPorts, SharingError> {
        let fail = |source| SharingError::Directory { path: DIRECTORY.into(), source };
        match broker() {
            None => self.install(),
            Some(broker) => {
                let asked = broker.ask::<()>(&BrokerRequest::InstallSharing, &[]);
                asked.map_err(SharingError::Broker)?;
                self.find().and_then(|ports| ports.ok_or_else(|| io::ErrorKind::NotFound.into())).map_err(fail)
            }
        }
    }

    /// As [`Self::open`], with this process's own rights.
    pub(super) fn install(&self) -> Result<LockedPorts, SharingError> {
        let fail = |source| SharingError::Directory { path: DIRECTORY.into(), source };
        if !bpffs::holds(Path::new(DIRECTORY)).map_err(fail)? {
            bpffs::mount_usual().map_err(SharingError::Mount)?;
        }
        let all = make_and_lock().map_err(fail)?;
        all.sweep().map_err(fail)?;
        if !self.is_whole(&all).map_err(fail)? {
            all.clear(&self.name).map_err(fail)?;
            let folder = all.make(&self.name).map_err(fail)?;
            self.load(&folder.path()).inspect_err(|_| {
                let _ = all.clear(&self.name);
            })?;
        }
        self.maps(all).map_err(fail)
    }

    /// The maps, if the program runs. `None`: this namespace has no place.
    pub(super) fn find(&self) -> io::Result<Option<LockedPorts>> {
        let all = match lock() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        if !self.is_whole(&all)? {
            return Ok(None);
        }
        self.maps(all).map(Some)
    }

    /// Whether the program runs and its maps are there.
    pub(super) fn are_whole(&self) -> bool {
        let Ok(all) = PinFolder::all() else { return false };
        let Ok(Some(folder)) = all.inside(&self.name) else { return false };
        self.is_whole(&all).unwrap_or(false) && MAPS.iter().all(|name| folder.path().join(name).exists())
    }

    /// Removes the program and the maps. `None`: there were none. Fails with `ResourceBusy` if a process serves a place.
    pub(super) fn remove(&self) -> io::Result<Option<usize>> {
        let Some(ports) = self.find()? else { return Ok(None) };
        let places = ports.places()?;
        for (place, _) in &places {
            if let PlaceState::Served(_) = ports.state(place)? {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
        }
        // The kernel detaches a link a moment after its last name is gone.
        places.iter().try_for_each(|(place, _)| ports.free(place))?;
        ports.lock.clear(&self.name)?;
        ports.lock.sweep()?;
        // The mounts of a running unit would go with it (ReadWritePaths of systemd.exec(5)), and it could not be made again there. It is not
        // empty if another namespace has places. One of another user is a unit's, which makes it before it starts.
        let is_own = std::fs::metadata(DIRECTORY).is_ok_and(|it| it.uid() == rustix::process::geteuid().as_raw());
        if is_own && !bpffs::is_mounted(Path::new(DIRECTORY)) {
            let _ = std::fs::remove_dir(DIRECTORY);
        }
        Ok(Some(places.len()))
    }

    fn maps(&self, lock: PinFolder) -> io::Result<LockedPorts> {
        let folder = lock.inside(&self.name)?.ok_or(io::ErrorKind::NotFound)?;
        let [places, listeners] = MAPS.map(|name| Map::open(&folder.path().join(name)));
        let (places, listeners) = (places?, listeners?);
        // The kernel writes as many bytes as a map has, whoever has pinned it there.
        let has_form = |map: &Map| (map.key_size(), map.value_size()) == (size_of::<PlaceKey>(), size_of::<u64>());
        match has_form(&places) && has_form(&listeners) {
            true => Ok(LockedPorts { places, listeners, lock }),
            false => Err(io::Error::other("another program's maps are pinned there")),
        }
    }

    /// Whether the program runs for this namespace: an earlier namespace may have had the same inode.
    fn is_whole(&self, all: &PinFolder) -> io::Result<bool> {
        let Some(folder) = all.inside(&self.name).or_else(none_if_no_folder)? else { return Ok(false) };
        Ok(folder.namespace()?.is_some_and(|namespace| u64::from(namespace) == self.namespace))
    }

    fn load(&self, folder: &Path) -> Result<(), SharingError> {
        let mut loader = EbpfLoader::new();
        for name in MAPS {
            loader.map_pin_path(name, folder.join(name));
        }
        let mut object = loader.load(OBJECT).map_err(|error| SharingError::Load(Box::new(error)))?;
        let program = object.program_mut("sharing").expect("the object has it");
        let program: &mut SkLookup = program.try_into().expect("it looks up sockets");
        let fail = |error: ProgramError| SharingError::Program(error.into());
        program.load().map_err(fail)?;
        let (namespace, _) = netdev::namespace().map_err(SharingError::Namespace)?;
        let id = program.attach(namespace).map_err(fail)?;
        let link = FdLink::from(program.take_link(id).map_err(fail)?);
        link.pin(folder.join(LINK)).map_err(|error| SharingError::Pin(Box::new(error)))?;
        Ok(())
    }
}

impl LockedPorts {
    pub(super) fn state(&self, place: &PlaceKey) -> io::Result<PlaceState> {
        let mut value = [0; 8];
        if self.listeners.look_up(place, &mut value)? {
            return Ok(PlaceState::Served(u64::from_ne_bytes(value)));
        }
        Ok(if self.places.look_up(place, &mut value)? { PlaceState::Dead } else { PlaceState::Free })
    }

    /// Gives connections to `place` to the group of `listener` from the next packet on.
    pub(super) fn give(&self, place: &PlaceKey, listener: impl AsFd, owner: u64) -> io::Result<()> {
        let socket = listener.as_fd().as_raw_fd() as u64;
        // The socket first: the kernel answers with RST for a place without one.
        self.listeners.update(place, &socket.to_ne_bytes(), Update::Any)?;
        self.places.update(place, &owner.to_ne_bytes(), Update::Any)
    }

    /// Leaves connections to `place` to the kernel from the next packet on.
    pub(super) fn free(&self, place: &PlaceKey) -> io::Result<()> {
        self.places.delete(place)?;
        self.listeners.delete(place)?;
        Ok(())
    }

    /// Every place, and its owner.
    pub(super) fn places(&self) -> io::Result<Vec<(PlaceKey, u64)>> {
        let mut all = Vec::new();
        let (mut keys, mut values, mut mark) = ([0; BATCH * size_of::<PlaceKey>()], [0; BATCH * 8], None);
        loop {
            let (count, next) = self.places.look_up_batch(mark, &mut keys, &mut values)?;
            let keys = keys.as_chunks().0.iter().take(count).copied();
            all.extend(keys.zip(values.as_chunks().0.iter().map(|raw| u64::from_ne_bytes(*raw))));
            mark = next;
            if mark.is_none() {
                return Ok(all);
            }
        }
    }
}

/// [`DIRECTORY`], by a name by which this process reaches it.
fn all() -> PathBuf {
    bpffs::reach(Path::new(DIRECTORY))
}

pub(super) fn key(address: VipAddr) -> PlaceKey {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut key = [0; size_of::<PlaceKey>()];
    key[..16].copy_from_slice(&ip.octets());
    key[16..].copy_from_slice(&u32::from(address.port()).to_ne_bytes());
    key
}

/// The address of a key.
pub(super) fn address(key: &PlaceKey) -> VipAddr {
    let (ip, port) = key.split_at(16);
    let ip: [u8; 16] = ip.try_into().expect("sixteen bytes");
    let port = u32::from_ne_bytes(port.try_into().expect("four bytes"));
    VipAddr::new(SocketAddr::new(IpAddr::from(ip), port as u16))
}

/// Waits until no other process changes the places. `NotFound`: there is no directory, or another process removed it meanwhile.
fn lock() -> io::Result<PinFolder> {
    let directory = PinFolder::all()?;
    flock(&directory.0, FlockOperation::LockExclusive)?;
    if std::fs::metadata(all())?.ino() != fstat(&directory.0)?.st_ino {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(directory)
}

/// [`lock`], of a directory that is made if there is none.
fn make_and_lock() -> io::Result<PinFolder> {
    loop {
        std::fs::create_dir_all(all())?;
        match lock() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lock => return lock,
        }
    }
}

/// What is at the name of a folder, and is none, is as good as nothing: it goes before the folder is made.
fn none_if_no_folder(error: io::Error) -> io::Result<Option<PinFolder>> {
    if is_no_folder(&error) { Ok(None) } else { Err(error) }
}

/// O_NOFOLLOW and O_DIRECTORY of open(2): it is a link or a file.
fn is_no_folder(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// NAMESPACE-LAYOUT.
fn is_name(name: &CStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.to_str().ok().and_then(|name| name.split_once('-'));
    parts.is_some_and(|(namespace, layout)| is_number(namespace) && is_number(layout))
}

impl PinFolder {
    fn flags() -> OFlags {
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
    }

    /// [`DIRECTORY`].
    fn all() -> io::Result<Self> {
        bpffs::open(Path::new(DIRECTORY)).map(Self)
    }

    fn of(directory: OwnedFd) -> io::Result<Self> {
        match bpffs::is_one(&directory)? {
            true => Ok(Self(directory)),
            false => Err(io::Error::other("it is not on a BPF file system")),
        }
    }

    /// `None`: nothing is there. Fails for a link.
    fn inside(&self, name: &CStr) -> io::Result<Option<Self>> {
        match openat(&self.0, name, Self::flags() | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(folder) => Self::of(folder).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn make(&self, name: &CStr) -> io::Result<Self> {
        rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o777))?;
        self.inside(name)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Its name for calls that know no descriptors of directories.
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string())
    }

    /// The inode of the namespace whose ports are pinned in this folder; 0: it is gone. `None`: nothing whole is pinned there.
    fn namespace(&self) -> io::Result<Option<u32>> {
        match bpf::open_pinned(&self.path().join(LINK)) {
            Ok(link) => bpf::namespace_of_link(link).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the pins of namespaces that are gone, and those of processes that died while they made them: the caller has the lock. Whatever
    /// else is in the directory stays, but no link.
    fn sweep(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.0)? {
            let name = entry?.file_name().to_owned();
            let is_link = statat(&self.0, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Symlink);
            // A folder that cannot be read is another program's.
            let is_old =
                || matches!(self.inside(&name), Ok(Some(folder)) if matches!(folder.namespace(), Ok(Some(0) | None)));
            if is_link || is_name(&name) && is_old() {
                // One stays that somebody else has put something into.
                let _ = self.clear(&name);
            }
        }
        Ok(())
    }

    /// Removes a folder of pins: its link first, then the maps, and nothing of others. A link in its place goes itself.
    fn clear(&self, name: &CStr) -> io::Result<()> {
        let removed = match self.inside(name) {
            Ok(None) => return Ok(()),
            Ok(Some(folder)) => {
                for pin in [LINK].into_iter().chain(MAPS) {
                    missing_is_fine(unlinkat(&folder.0, pin, AtFlags::empty()))?;
                }
                unlinkat(&self.0, name, AtFlags::REMOVEDIR)
            }
            Err(error) if is_no_folder(&error) => unlinkat(&self.0, name, AtFlags::empty()),
            Err(error) => return Err(error),
        };
        missing_is_fine(removed)
    }
}

fn missing_is_fine(removed: rustix::io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error != Errno::NOENT => Err(error.into()),
        _ => Ok(()),
    }
}

/// Places that are read at once.
const BATCH: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_address_and_its_port() {
        for text in ["10.0.0.100:6443", "[fd77::64]:6443", "[::1]:65535"] {
            let vip = VipAddr::new(text.parse().unwrap());
            assert_eq!(address(&key(vip)), vip);
        }
        let mapped = key(VipAddr::new("10.0.0.100:6443".parse().unwrap()));
        assert_eq!(mapped[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 100]);
    }

    /// Regression: it took a link for a folder of pins, and root's `baton offload remove` emptied the directory that the link led to.
    #[test]
    fn a_link_among_the_pins_goes_and_what_it_leads_to_stays() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let [place, other] = [0; 2].map(|_| tempfile::tempdir().unwrap());
        let (mounted, kept) = (place.path(), other.path().join("ca.key"));
        std::fs::write(&kept, "of root's").unwrap();
        // The kernel puts files of its own into the highest directory.
        let at = &mounted.join("baton-ports");
        rustix::mount::mount("bpf", mounted, "bpf", rustix::mount::MountFlags::empty(), None).unwrap();
        let done = (|| {
            std::fs::create_dir(at)?;
            let all = PinFolder::of(openat(rustix::fs::CWD, at, PinFolder::flags(), Mode::empty())?)?;
            let strange = ["others/pins", "4026531840-x", "4026531840-1/places"];
            strange.iter().try_for_each(|name| std::fs::create_dir_all(at.join(name)))?;
            for name in ["evil", "77-1", "78-1"] {
                std::os::unix::fs::symlink(other.path(), at.join(name))?;
            }
            std::os::unix::fs::symlink(at.join("others"), at.join("79-1"))?;
            std::fs::create_dir(at.join("80-1"))?;
            all.clear(c"78-1")?;
            let own = all.make(c"78-1")?;
            let made = own.path().canonicalize()?;
            all.sweep()?;
            let mut left: Vec<_> = bpffs::names(at)?;
            left.sort();
            Ok::<_, io::Error>((left, made, at.join("others/pins").exists()))
        })();
        rustix::mount::unmount(mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
        let (left, made, others) = done.unwrap();
        assert!(kept.exists(), "what a link led to is gone");
        assert_eq!((made, others), (at.join("78-1"), true));
        let names: Vec<_> = left.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["4026531840-1", "4026531840-x", "others"], "what is of others stays, and nothing else");
    }

    /// The directory of a layout is one program's: an instance takes the program that it finds there for its own.
    #[test]
    fn another_program_has_another_layout() {
        let digest = OBJECT.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        assert_eq!((LAYOUT, digest), (1, 0xf6c8_449d_387e_6789), "raise LAYOUT, and write its digest here");
    }
}
