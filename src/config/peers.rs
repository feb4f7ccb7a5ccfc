//! `[instance]` and `[peers]`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::identity::{self, PublicKeyKind};
use super::kind::{Kind, Name, ProbePlace, Time, time, whole};
use super::section::Section;
use super::{Instance, KeyFile, Peer, PeerKey, Peers, PrivateKey, PublicKey};
use crate::model::fleet::{InstanceName, SLOTS};

/// Reads both tables. Without `[peers]` there is no fleet.
pub(super) fn read(instance: &Section, section: &Section, is_there: bool) -> (Instance, Option<Peers>) {
    let name = wanted(instance, is_there, "name", &Name).map(named);
    let slot = instance.read("slot", &whole(0, u32::from(SLOTS) - 1)).value.map(|slot| slot as u8);
    let own = Instance { name: name.clone(), slot };
    let listen = wanted(section, is_there, "listen", &ProbePlace).map(|address| address.socket_addr());
    let (shared, shared_previous) = (identity::shared(section), identity::shared_previous(section));
    let own_key = identity::own(section);
    let sync_deadline = section.read_or("sync_deadline", &SYNC_DEADLINE, Duration::from_secs(10)).value;
    if !is_there {
        return (own, None);
    }
    let beat_port = section.read("beat_port", &whole(1, 65535)).value.map(|port| port as u16);
    let peers = peers(section, name.as_ref(), listen, own_key.as_ref());
    check_keys(section, shared.as_ref(), own_key.as_ref());
    let (Some(name), Some(listen)) = (name, listen) else { return (own, None) };
    let before = peers.iter().filter(|peer| peer.name < name).count();
    let slot = slot.unwrap_or(before.min(usize::from(SLOTS) - 1) as u8);
    (own, Some(Peers { name, slot, listen, beat_port, shared, shared_previous, own_key, sync_deadline, peers }))
}

/// Says so where no key is named, and where two kinds of keys count.
fn check_keys(section: &Section, shared: Option<&KeyFile<PeerKey>>, own: Option<&KeyFile<PrivateKey>>) {
    if let (Some(shared), Some(own)) = (shared, own)
        && shared.key.0 == own.key.0
    {
        let message = format!("{} holds the shared key", section.name("private_key_file"));
        section.refuse(
            "private_key_file",
            message,
            "expected a key that no other instance has: `baton genkey --identity FILE`",
        );
    }
    match (section.has("key_file"), section.has("private_key_file")) {
        (false, false) => {
            let message = format!("missing {}", section.name("key_file"));
            let help = "expected the file of a key as `baton genkey` prints it, the same on all instances; or give each \
                        instance a key of its own by \"private_key_file\" and \"public_key\"";
            section.refuse("key_file", message, help);
        }
        (true, true) => {
            let message = format!("{} counts beside the instances' own keys", section.name("key_file"));
            let help = "remove it once every instance has \"private_key_file\": until then any host that has the shared key \
                        can act as any instance";
            section.warn("key_file", message, help);
        }
        _ => {}
    }
}

/// The keys by which `table` is known, the present one first. Reports what cannot be right: each key is one instance's.
fn public_keys(section: &Section, table: &Section, own: Option<&PrivateKey>, others: &[Peer]) -> Vec<PublicKey> {
    let own_public = own.map(PrivateKey::public);
    let mut keys = Vec::new();
    for key in ["public_key", "public_key_next"] {
        let Some(public) = table.read(key, &PublicKeyKind).value else { continue };
        let name = table.name(key);
        let twice = others.iter().find(|other| other.public_keys.contains(&public));
        if !section.has("private_key_file") {
            let message = format!("{name} has no effect without \"private_key_file\" in [peers]");
            table.refuse(key, message, "`baton genkey --identity FILE` makes such a file");
        }
        if keys.contains(&public) {
            let message = format!("{name} is also {}", table.name("public_key"));
            table.refuse(key, message, "set the key that the instance will have next, or remove it");
        }
        if own.is_some_and(|own| own.0 == public.0) {
            let help = "remove it from this file, and make a new one: a file of the configuration is no place for it";
            table.refuse(key, format!("{name} is this instance's private key"), help);
        } else if own_public.as_ref() == Some(&public) {
            let help = "set the key that `baton genkey --identity FILE` prints on that instance's host";
            table.refuse(key, format!("{name} is this instance's own"), help);
        } else if let Some(other) = twice {
            let message = format!("{name} is that of \"{}\", too", other.name);
            table.refuse(key, message, "give each instance a key of its own");
        }
        keys.push(public);
    }
    let needs_one = section.has("private_key_file") && (!section.has("key_file") || table.has("public_key_next"));
    if needs_one && !table.has("public_key") {
        table.require("public_key", &PublicKeyKind);
    }
    keys
}

fn peers(
    section: &Section,
    own: Option<&InstanceName>,
    listen: Option<SocketAddr>,
    own_key: Option<&KeyFile<PrivateKey>>,
) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    let tables = section.tables("peer");
    if tables.len() >= usize::from(SLOTS) {
        let help = format!("expected 1 to {} peers: a fleet has at most {SLOTS} instances", SLOTS - 1);
        section.refuse("peer", format!("{} has {} peers", section.title(), tables.len()), help);
    }
    for table in tables {
        let (name, address) = (table.require("name", &Name).map(named), table.require("address", &ProbePlace));
        let public_keys = public_keys(section, &table, own_key.map(|own| &own.key), &peers);
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
        peers.push(Peer { name, address, public_keys });
    }
    peers.sort_by(|one, other| one.name.cmp(&other.name));
    peers
}

impl Peers {
    /// The UDP port for incoming beats.
    pub(crate) fn beat_port(&self) -> u16 {
        self.beat_port.unwrap_or(self.listen.port())
    }

    /// Where beats come: every address of this host, so that a peer can reach it by any path that is left.
    pub(crate) fn beat_place(&self) -> SocketAddr {
        let any: IpAddr =
            if self.listen.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        SocketAddr::new(any, self.beat_port())
    }

    /// The beats' port of each peer.
    pub(crate) fn beat_ports(&self) -> impl Iterator<Item = (InstanceName, u16)> {
        self.peers.iter().map(|peer| (peer.name.clone(), self.beat_port.unwrap_or(peer.address.port())))
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config;

    #[test]
    fn a_key_in_the_place_of_another_is_named_and_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let [own, other] = [PrivateKey([1; 32]), PrivateKey([2; 32])];
        let file = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        file("own", own.spell());
        file("shared", own.spell());
        let read = |keys: &str, public: &str| {
            let text = format!(
                "[instance]\nname = \"lb-a\"\n[peers]\nlisten = \"10.0.0.21:9471\"\n{keys}\n[[peers.peer]]\n\
                 name = \"lb-b\"\naddress = \"10.0.0.22:9471\"\n{public}\n[[frontend]]\nname = \"a\"\nlisten = [\"127.0.0.1:1\"]\n\
                 [[frontend.backend]]\nname = \"cp-1\"\naddress = \"10.0.0.11:6443\"\n"
            );
            let read = config::parse(&text, &directory.path().join("baton.toml"));
            read.map(|_| ()).map_err(|rejected| format!("{rejected} {}", rejected.errors.len()))
        };
        let pin = |key: &str| format!("public_key = \"{key}\"");
        assert_eq!(read("private_key_file = \"own\"", &pin(&other.public().to_string())), Ok(()));
        let both = "private_key_file = \"own\"\nkey_file = \"shared\"";
        let next = format!("{}\npublic_key_next = \"{}\"", pin(&other.public().to_string()), other.public());
        for (keys, public, said) in [
            ("private_key_file = \"own\"", pin(&own.public().to_string()), "is this instance's own"),
            ("private_key_file = \"own\"", pin(&own.spell()), "is this instance's private key"),
            ("private_key_file = \"own\"", pin(&"0".repeat(64)), "invalid value for \"public_key\""),
            ("private_key_file = \"own\"", next, "is also \"public_key\""),
            (both, pin(&other.public().to_string()), "holds the shared key"),
        ] {
            let error = read(keys, &public).expect_err(said);
            assert!(error.contains(said) && error.ends_with(" 1"), "{error}");
            assert!(!error.contains("0101"), "{error}");
        }
    }
}
