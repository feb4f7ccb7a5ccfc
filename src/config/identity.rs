//! The keys of `[peers]`: one that the whole fleet shares, or one of each instance.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Dh;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::file::{self, FileFault};
use super::kind::{FilePath, Kind};
use super::section::Section;
use crate::model::secrets;

/// A key, and the file that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile<K> {
    pub key: K,
    pub path: PathBuf,
}

/// The secret that makes an instance one of the fleet.
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct PeerKey(pub [u8; 32]);

/// The secret that makes an instance this one: the private half of a pair of X25519 (RFC 7748).
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct PrivateKey(pub [u8; 32]);

/// The public half, by which the others know an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl std::fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerKey(..)")
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// Why a file is not a key. Never quotes the file's content.
#[derive(Debug, thiserror::Error)]
enum KeyFault {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("a file that does not hold {} hexadecimal digits", 2 * KEY_BYTES)]
    NotAKey,
}

/// A public key, as a value of the file.
#[derive(Debug)]
pub(super) struct PublicKeyKind;

/// Bytes of each of the keys.
const KEY_BYTES: usize = 32;

const SHARED_KEY: &str = "expected a key as `baton genkey` prints it";
const SHARED_KEY_OR_NONE: &str = "expected a key as `baton genkey` prints it, or no such file";
const PRIVATE_KEY: &str = "expected a key as `baton genkey --identity FILE` writes it";
const PASTED: &str = "write it to a file of mode 600 and name that file; if others can read this file, make a new key";
const READER_OF_SHARED: &str = "any user who can read the key can act as any instance";
const READER_OF_OWN: &str = "any user who can read the key can act as this instance";

/// The key that all instances share.
pub(super) fn shared(section: &Section) -> Option<KeyFile<PeerKey>> {
    let named = section.read("key_file", &FilePath).value?;
    let (key, path) = of_file(section, "key_file", &named, SHARED_KEY, READER_OF_SHARED)?;
    Some(KeyFile { key: PeerKey(key), path })
}

/// The shared key before the last rotation. The file exists only during a rotation, so none is no error.
pub(super) fn shared_previous(section: &Section) -> Option<PeerKey> {
    let named = section.read("key_file_previous", &FilePath).value?;
    if !section.document.resolve(&named).exists() {
        return None;
    }
    let (key, _) = of_file(section, "key_file_previous", &named, SHARED_KEY_OR_NONE, READER_OF_SHARED)?;
    let message = format!("the key in {named:?} ({}) counts as well", section.name("key_file_previous"));
    let help = "remove the file once every instance has the new key: until then any host that has the old key can act \
                as any instance";
    section.warn("key_file_previous", message, help);
    Some(PeerKey(key))
}

/// The key that only this instance has.
pub(super) fn own(section: &Section) -> Option<KeyFile<PrivateKey>> {
    let named = section.read("private_key_file", &FilePath).value?;
    let (key, path) = of_file(section, "private_key_file", &named, PRIVATE_KEY, READER_OF_OWN)?;
    Some(KeyFile { key: PrivateKey(key), path })
}

/// Reads the key in the file that `key` of `section` names. `reader`: what a stranger who can read it can do.
fn of_file(
    section: &Section,
    key: &str,
    named: &str,
    expected: &str,
    reader: &str,
) -> Option<([u8; KEY_BYTES], PathBuf)> {
    let path = section.document.resolve(named);
    match read(&path) {
        Ok(bytes) => {
            let mode = file::metadata(&path).map_or(0, |metadata| metadata.permissions().mode());
            if mode & 0o077 != 0 {
                let (name, mode) = (section.name(key), mode & 0o777);
                let message = format!("users other than its owner may read {named:?} ({name}): its mode is {mode:o}");
                section.warn(key, message, format!("set mode 600: {reader}"));
            }
            Some((bytes, path))
        }
        Err(KeyFault::File(FileFault::Unanswered(silence))) => {
            section.refuse_unread(key, named, silence);
            None
        }
        Err(fault) => {
            let name = section.name(key);
            match secrets::is_key(named) {
                true => section.refuse(key, format!("{name} is a key, and not the name of a file with one"), PASTED),
                false => section.refuse(key, format!("cannot use {named:?} as {name}: {fault}"), expected),
            }
            None
        }
    }
}

fn read(path: &Path) -> Result<[u8; KEY_BYTES], KeyFault> {
    let bytes = Zeroizing::new(file::read(path)?);
    let text = str::from_utf8(&bytes).map_err(|_| KeyFault::NotAKey)?;
    parse(text.trim()).ok_or(KeyFault::NotAKey)
}

fn parse(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

fn spell(key: &[u8; KEY_BYTES]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pair_of(private: &[u8; KEY_BYTES]) -> Box<dyn Dh> {
    let mut pair = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("X25519 is compiled in");
    pair.set(private);
    pair
}

impl PeerKey {
    /// Parses hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        parse(text).map(Self)
    }

    /// The form that [`PeerKey::parse`] reads.
    pub fn spell(&self) -> String {
        spell(&self.0)
    }
}

impl PrivateKey {
    /// Parses hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        parse(text).map(Self)
    }

    /// The form that [`PrivateKey::parse`] reads.
    pub fn spell(&self) -> String {
        spell(&self.0)
    }

    /// The other half of the pair (X25519, RFC 7748, section 6.1).
    pub fn public(&self) -> PublicKey {
        let mut public = [0; KEY_BYTES];
        public.copy_from_slice(pair_of(&self.0).pubkey());
        PublicKey(public)
    }
}

impl PublicKey {
    /// Parses hexadecimal digits. `None`: they are no public key. A point of low order is none, because whatever private key is
    /// used with it, the shared secret is zero (RFC 7748, section 6.1), so that anybody could prove to have it.
    pub fn parse(text: &str) -> Option<Self> {
        let key = parse(text)?;
        let mut secret = [0; KEY_BYTES];
        pair_of(&[1; KEY_BYTES]).dh(&key, &mut secret).ok()?;
        (secret != [0; KEY_BYTES]).then_some(Self(key))
    }
}

/// The form that [`PublicKey::parse`] reads.
impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&spell(&self.0))
    }
}

impl Kind for PublicKeyKind {
    type Value = PublicKey;

    fn read(&self, value: &toml::de::DeValue) -> Option<PublicKey> {
        PublicKey::parse(value.as_str()?)
    }

    fn allowed(&self) -> String {
        format!("the {} hexadecimal digits that `baton genkey --identity FILE` prints at that instance", 2 * KEY_BYTES)
    }
}

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
        assert!(!format!("{:?}", PrivateKey([7; 32])).contains("07"));
    }

    /// RFC 7748, section 6.1: the keys of Alice.
    #[test]
    fn a_public_key_is_that_of_x25519() {
        let own =
            PrivateKey::parse("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a").expect("64 digits");
        let public = PublicKey::parse("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_eq!(Some(own.public()), public);
        assert_eq!(PublicKey::parse(&own.public().to_string()), public);
        for low in ["00", "01"] {
            assert_eq!(PublicKey::parse(&(low.to_owned() + &"00".repeat(31))), None, "a point of low order");
        }
    }
}
