//! The other instances, and those of them that are new.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{SetupRefusal, SetupRequest};

/// Fails if one host has two places in a list.
pub(super) fn refuse_twice(request: &SetupRequest) -> Result<(), SetupRefusal> {
    for (option, all) in [("--hosts", &request.hosts), ("--peers", &request.peers)] {
        let mut seen = BTreeSet::new();
        if let Some(ip) = all.iter().find(|ip| !seen.insert(**ip)) {
            return Err(SetupRefusal::NamedTwice(option, *ip));
        }
    }
    Ok(())
}

/// Those of `peers` that Baton's file before does not name.
pub(super) fn new_peers(request: &SetupRequest, peers: &[IpAddr]) -> Vec<IpAddr> {
    let document = request.before.as_ref().and_then(|file| file.text.parse::<toml::Table>().ok());
    let before: Vec<_> = document.iter().flat_map(peers_of).collect();
    peers.iter().copied().filter(|ip| !before.contains(ip)).collect()
}

/// The hosts of the peers in Baton's file.
pub(super) fn peers_of(document: &toml::Table) -> impl Iterator<Item = IpAddr> {
    let peers = document.get("peers").and_then(|peers| peers.get("peer")).and_then(toml::Value::as_array);
    let addresses = peers.into_iter().flatten().filter_map(|peer| peer.get("address")?.as_str());
    addresses.filter_map(|address| address.parse::<SocketAddr>().ok()).map(|it| it.ip())
}
