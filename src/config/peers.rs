//! `[instance]` and `[peers]`.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use super::file::{self, FileFault};
use super::kind::{FilePath, Kind, Name, ProbePlace, Time, time, whole};
use super::section::Section;
use super::{Instance, Peer, PeerKey, Peers};
use crate::model::fleet::{InstanceName, SLOTS};

/// Reads both tables. Without `[peers]` there is no fleet.
pub(super) fn read(instance: &Section, section: &Section, is_there: bool) -> (Instance, Option<Peers>) {
    let name = wanted(instance, is_there, "name", &Name).map(named);
    let slot = instance.read("slot", &whole(0, u32::from(SLOTS) - 1)).value.map(|slot| slot as u8);
    let own = Instance { name: name.clone(), slot };
    let listen = wanted(section, is_there, "listen", &ProbePlace).map(|address| address.socket_addr());
    let key = key(section, is_there);
    let key_previous = previous_key(section);
    let sync_deadline = section.read_or("sync_deadline", &SYNC_DEADLINE, Duration::from_secs(10)).value;
    if !is_there {
        return (own, None);
    }
    let beat_port = section.read("beat_port", &whole(1, 65535)).value.map(|port| port as u16);
    let peers = peers(section, name.as_ref(), listen);
    let (Some(name), Some(listen), Some((key_file, key))) = (name, listen, key) else { return (own, None) };
    let before = peers.iter().filter(|peer| peer.name < name).count();
    let slot = slot.unwrap_or(before.min(usize::from(SLOTS) - 1) as u8);
    (own, Some(Peers { name, slot, listen, beat_port, key, key_file, key_previous, sync_deadline, peers }))
}

fn peers(section: &Section, own: Option<&InstanceName>, listen: Option<SocketAddr>) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    let tables = section.tables("peer");
    if tables.len() >= usize::from(SLOTS) {
        let help = format!("expected 1 to {} peers: a fleet has at most {SLOTS} instances", SLOTS - 1);
        section.refuse("peer", format!("{} has {} peers", section.title(), tables.len()), help);
    }
    for table in tables {
        let (name, address) = (table.require("name", &Name).map(named), table.require("address", &ProbePlace));
        let (Some(name), Some(address)) = (name, address.map(|address| address.socket_addr())) else { continue };
        let all = own.into_iter().chain(peers.iter().map(|peer| &peer.name));
        let same_tag = all.clone().find(|other| other.tag() == name.tag() && **other != name);
        if all.clone().any(|other| *other == name) {
            table.refuse("name", format!("two instances are named \"{name}\""), "give each instance a name of its own");
        } else if let Some(other) = same_tag {
            let message = format!("\"{name}\" gives its flows the same numbers as \"{other}\"");
            table.refuse("name", message, "choose any other name");
        }
        let taken = listen.into_iter().chain(peers.iter().map(|peer| peer.address)).any(|other| other == address);
        if taken {
            let message = format!("two instances have the address \"{address}\"");
            table.refuse("address", message, "give each instance an address of its own");
        }
        if listen.is_some_and(|listen| listen.is_ipv4() != address.is_ipv4()) {
            let message = format!(
                "{} is \"{address}\", of another address family than \"listen\" in [peers]",
                table.name("address")
            );
            table.refuse("address", message, "set an address of the same family");
        }
        peers.push(Peer { name, address });
    }
    peers.sort_by(|one, other| one.name.cmp(&other.name));
    peers
}

/// Why a file is not a key. Never quotes the file's content.
#[derive(Debug, thiserror::Error)]
enum KeyFault {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("a file that does not hold {} hexadecimal digits", 2 * PeerKey::BYTES)]
    NotAKey,
}

/// The key, with its path.
fn key(section: &Section, is_there: bool) -> Option<(PathBuf, PeerKey)> {
    let named = wanted(section, is_there, "key_file", &FilePath)?;
    let path = section.document.resolve(&named);
    match read_key(&path) {
        Ok(key) => {
            warn_of_readers(section, "key_file", &named, &path);
            Some((path, key))
        }
        Err(fault) => {
            let message = format!("cannot use {named:?} as {}: {fault}", section.name("key_file"));
            section.refuse("key_file", message, "expected a key as `baton genkey` prints it");
            None
        }
    }
}

/// The key before the last rotation. The file exists only during a rotation, so none is no error.
fn previous_key(section: &Section) -> Option<PeerKey> {
    let named = section.read("key_file_previous", &FilePath).value?;
    let path = section.document.resolve(&named);
    if !path.exists() {
        return None;
    }
    match read_key(&path) {
        Ok(key) => {
            let message = format!("the key in {named:?} ({}) counts as well", section.name("key_file_previous"));
            let help = "remove the file once every instance has the new key: until then any host that has the old key \
                        can act as any instance";
            section.warn("key_file_previous", message, help);
            warn_of_readers(section, "key_file_previous", &named, &path);
            Some(key)
        }
        Err(fault) => {
            let message = format!("cannot use {named:?} as {}: {fault}", section.name("key_file_previous"));
            section.refuse("key_file_previous", message, "expected a key as `baton genkey` prints it, or no such file");
            None
        }
    }
}

fn warn_of_readers(section: &Section, key: &str, named: &str, path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o077 != 0 {
        let (name, mode) = (section.name(key), mode & 0o777);
        let message = format!("users other than its owner may read {named:?} ({name}): its mode is {mode:o}");
        section.warn(key, message, "set mode 600: any user who can read the key can act as any instance");
    }
}

fn read_key(path: &Path) -> Result<PeerKey, KeyFault> {
    let bytes = Zeroizing::new(file::read(path)?);
    let text = str::from_utf8(&bytes).map_err(|_| KeyFault::NotAKey)?;
    PeerKey::parse(text.trim()).ok_or(KeyFault::NotAKey)
}

impl Peers {
    /// All valid keys, first the one that this instance offers.
    pub(crate) fn keys(&self) -> Vec<PeerKey> {
        std::iter::once(&self.key).chain(&self.key_previous).cloned().collect()
    }

    /// The UDP port for incoming beats.
    pub(crate) fn beat_port(&self) -> u16 {
        self.beat_port.unwrap_or(self.listen.port())
    }

    /// The beats' port of each peer.
    pub(crate) fn beat_ports(&self) -> impl Iterator<Item = (InstanceName, u16)> {
        self.peers.iter().map(|peer| (peer.name.clone(), self.beat_port.unwrap_or(peer.address.port())))
    }
}

impl PeerKey {
    pub(crate) const BYTES: usize = 32;

    /// Parses hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut key = [0; Self::BYTES];
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(key))
    }

    /// The form that [`PeerKey::parse`] reads.
    pub fn spell(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The value of `key`; its absence is an error if the table exists.
fn wanted<K: Kind>(section: &Section, is_there: bool, key: &str, kind: &K) -> Option<K::Value> {
    if is_there { section.require(key, kind) } else { section.read(key, kind).value }
}

fn named(name: String) -> InstanceName {
    InstanceName(Arc::from(name))
}

const SYNC_DEADLINE: Time = time(Duration::from_secs(1), Duration::from_secs(600));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_spelling_and_nothing_else_is_one() {
        let key = PeerKey(std::array::from_fn(|index| index as u8 * 7));
        assert_eq!(PeerKey::parse(&key.spell()), Some(key.clone()));
        for text in ["", "00", &"g".repeat(64), &"0".repeat(63), &"0".repeat(65), &"+1".repeat(32), &"é".repeat(32)] {
            assert_eq!(PeerKey::parse(text), None, "{text}");
        }
        assert!(!format!("{key:?}").contains("07"), "{key:?}");
    }
}
