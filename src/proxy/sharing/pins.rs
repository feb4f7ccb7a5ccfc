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

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::EbpfLoader;
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, SkLookup};
use rustix::fs::{FlockOperation, flock};

use super::error::SharingError;
use crate::addr::VipAddr;
use crate::sys::bpf::{self, Map, Update};
use crate::sys::{bpffs, netdev};

/// Of the maps and the program together: another number, another directory. `src/offload/bpf/sharing.c` says when it changes.
const LAYOUT: u32 = 1;

const DIRECTORY: &str = "/sys/fs/bpf/baton-ports";

const MAPS: [&str; 2] = ["places", "listeners"];
const LINK: &str = "link";

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../offload/bpf/sharing.o");

/// `struct place` of `src/offload/bpf/sharing.c`.
pub(super) type PlaceKey = [u8; 20];

/// The pins for this thread's network namespace.
#[derive(Clone, Debug)]
pub(super) struct PortPins {
    directory: PathBuf,
    namespace: u64,
}

/// The maps. No other process changes them while this one holds the lock.
#[derive(Debug)]
pub(super) struct LockedPorts {
    places: Map,
    listeners: Map,
    _lock: File,
}

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
        Ok(Self { directory: Path::new(DIRECTORY).join(format!("{namespace}-{LAYOUT}")), namespace })
    }

    /// The maps. Makes them and attaches the program if there is none.
    pub(super) fn open(&self) -> Result<LockedPorts, SharingError> {
        let fail = |source| SharingError::Directory { path: DIRECTORY.into(), source };
        if !bpffs::holds(Path::new(DIRECTORY)).map_err(fail)? {
            bpffs::mount_usual().map_err(SharingError::Mount)?;
        }
        let lock = make_and_lock().map_err(fail)?;
        sweep().map_err(fail)?;
        if !self.is_whole().map_err(fail)? {
            clear(&self.directory).map_err(fail)?;
            std::fs::create_dir_all(&self.directory).map_err(fail)?;
            self.load().inspect_err(|_| {
                let _ = clear(&self.directory);
            })?;
        }
        self.maps(lock).map_err(fail)
    }

    /// The maps, if the program runs. `None`: this namespace has no place.
    pub(super) fn find(&self) -> io::Result<Option<LockedPorts>> {
        if !self.directory.exists() {
            return Ok(None);
        }
        let lock = match lock() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            lock => lock?,
        };
        if !self.is_whole()? {
            return Ok(None);
        }
        self.maps(lock).map(Some)
    }

    /// Whether the program runs and its maps are there.
    pub(super) fn are_whole(&self) -> bool {
        self.is_whole().unwrap_or(false) && MAPS.iter().all(|name| self.directory.join(name).exists())
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
        clear(&self.directory)?;
        sweep()?;
        // The mounts of a running unit would go with it (ReadWritePaths of systemd.exec(5)), and it could not be made again there. It is not
        // empty if another namespace has places. One of another user is a unit's, which makes it before it starts.
        let is_own = std::fs::metadata(DIRECTORY).is_ok_and(|it| it.uid() == rustix::process::geteuid().as_raw());
        if is_own && !bpffs::is_mounted(Path::new(DIRECTORY)) {
            let _ = std::fs::remove_dir(DIRECTORY);
        }
        Ok(Some(places.len()))
    }

    fn maps(&self, lock: File) -> io::Result<LockedPorts> {
        let [places, listeners] = MAPS.map(|name| Map::open(&self.directory.join(name)));
        Ok(LockedPorts { places: places?, listeners: listeners?, _lock: lock })
    }

    /// Whether the program runs for this namespace: an earlier namespace may have had the same inode.
    fn is_whole(&self) -> io::Result<bool> {
        Ok(namespace_of(&self.directory)?.is_some_and(|namespace| u64::from(namespace) == self.namespace))
    }

    fn load(&self) -> Result<(), SharingError> {
        let mut loader = EbpfLoader::new();
        for name in MAPS {
            loader.map_pin_path(name, self.directory.join(name));
        }
        let mut object = loader.load(OBJECT).map_err(|error| SharingError::Load(Box::new(error)))?;
        let program = object.program_mut("sharing").expect("the object has it");
        let program: &mut SkLookup = program.try_into().expect("it looks up sockets");
        let fail = |error: ProgramError| SharingError::Program(error.into());
        program.load().map_err(fail)?;
        let (namespace, _) = netdev::namespace().map_err(SharingError::Namespace)?;
        let id = program.attach(namespace).map_err(fail)?;
        let link = FdLink::from(program.take_link(id).map_err(fail)?);
        link.pin(self.directory.join(LINK)).map_err(|error| SharingError::Pin(Box::new(error)))?;
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
fn lock() -> io::Result<File> {
    let directory = File::open(DIRECTORY)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    if std::fs::metadata(DIRECTORY)?.ino() != directory.metadata()?.ino() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(directory)
}

/// [`lock`], of a directory that is made if there is none.
fn make_and_lock() -> io::Result<File> {
    loop {
        std::fs::create_dir_all(DIRECTORY)?;
        match lock() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            lock => return lock,
        }
    }
}

/// Removes the pins of namespaces that are gone, and those of processes that died while they made them: the caller has the lock.
fn sweep() -> io::Result<()> {
    for directory in bpffs::names(Path::new(DIRECTORY))? {
        // A directory that cannot be read is another program's.
        if matches!(namespace_of(&directory), Ok(Some(0) | None)) {
            clear(&directory)?;
        }
    }
    Ok(())
}

/// The inode of the namespace whose ports are pinned in `directory`; 0: it is gone. `None`: nothing whole is pinned there.
fn namespace_of(directory: &Path) -> io::Result<Option<u32>> {
    match bpf::open_pinned(&directory.join(LINK)) {
        Ok(link) => bpf::namespace_of_link(link).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the link first, then the maps.
fn clear(directory: &Path) -> io::Result<()> {
    let mut names = bpffs::names(directory)?;
    names.sort_by_key(|path| !path.ends_with(LINK));
    names.iter().try_for_each(std::fs::remove_file)?;
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
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

    /// The directory of a layout is one program's: an instance takes the program that it finds there for its own.
    #[test]
    fn another_program_has_another_layout() {
        let digest = OBJECT.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        assert_eq!((LAYOUT, digest), (1, 0xf6c8_449d_387e_6789), "raise LAYOUT, and write its digest here");
    }
}
