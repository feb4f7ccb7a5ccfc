//! Interfaces that stand on others: bonds, bridges, VLANs, macvlans.

use std::collections::{HashMap, HashSet};
use std::io;

use super::{NLM_F_DUMP, RTM_GETLINK, ask, attributes};
use crate::sys::netdev;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_CARRIER_CHANGES: u16 = 35;
/// The interface of IFLA_LINK is in another network namespace.
const IFLA_LINK_NETNSID: u16 = 37;

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NetLink {
    index: u32,
    name: String,
    /// What it stands on.
    lower: Option<u32>,
    /// What it is a part of.
    master: Option<u32>,
}

/// Interfaces whose packets may have been merged by a card for good (large receive offload): those that do it, and all that
/// stand on one.
pub fn merging() -> io::Result<HashSet<u32>> {
    let links = links()?;
    // What does not know the question merges nothing.
    Ok(health_on(&links, |link| netdev::merges_for_good(&link.name).unwrap_or(false)))
}

/// How often the carrier of an interface has come or gone since it was made.
pub fn carrier_changes(index: u32) -> io::Result<u32> {
    // struct ifinfomsg: family, padding, type, index, flags, change.
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut changes = None;
    ask(RTM_GETLINK, 0, &body, |message| {
        let mut all = attributes(message.get(16..).unwrap_or_default());
        let value = all.find(|(kind, _)| *kind == IFLA_CARRIER_CHANGES).and_then(|(_, value)| value.try_into().ok());
        changes = value.map(u32::from_ne_bytes);
    })?;
    changes.ok_or(io::ErrorKind::InvalidData.into())
}

fn links() -> io::Result<Vec<NetLink>> {
    let mut links = Vec::new();
    ask(RTM_GETLINK, NLM_F_DUMP, &[0; 16], |message| links.extend(link(message)))?;
    Ok(links)
}

/// From `struct ifinfomsg` and what follows it.
fn link(message: &[u8]) -> Option<NetLink> {
    let mut link = NetLink { index: u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?), ..NetLink::default() };
    let mut is_of_other_process = false;
    for (kind, value) in attributes(message.get(16..)?) {
        let number = || <[u8; 4]>::try_from(value).ok().map(u32::from_ne_bytes);
        match kind {
            IFLA_IFNAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
            IFLA_LINK => link.lower = number(),
            IFLA_MASTER => link.master = number(),
            IFLA_LINK_NETNSID => is_of_other_process = true,
            _ => {}
        }
    }
    link.lower = link.lower.filter(|lower| !is_of_other_process && *lower != link.index);
    Some(link)
}

/// Those for which it holds, and all that stand on one of these.
fn health_on(links: &[NetLink], holds: impl Fn(&NetLink) -> bool) -> HashSet<u32> {
    let mut uppers: HashMap<u32, Vec<u32>> = HashMap::new();
    for link in links {
        link.lower.into_iter().for_each(|lower| uppers.entry(lower).or_default().push(link.index));
        link.master.into_iter().for_each(|master| uppers.entry(link.index).or_default().push(master));
    }
    let mut found = HashSet::new();
    let mut at: Vec<_> = links.iter().filter(|link| holds(link)).map(|link| link.index).collect();
    while let Some(index) = at.pop() {
        if found.insert(index) {
            at.extend(uppers.get(&index).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::put;
    use super::*;

    fn one(index: u32, lower: Option<u32>, master: Option<u32>) -> NetLink {
        NetLink { index, name: format!("if{index}"), lower, master }
    }

    #[test]
    fn a_vlan_on_a_bond_of_a_card_that_merges_counts_and_another_card_does_not() {
        let links = [
            one(2, None, Some(4)),
            one(3, None, None),
            one(4, None, None),
            one(5, Some(4), Some(6)),
            one(6, None, None),
            one(7, Some(3), None),
        ];
        assert_eq!(health_on(&links, |link| link.index == 2), HashSet::from([2, 4, 5, 6]));
        // A veth pair in one namespace: each stands on the other.
        let pair = [one(2, Some(3), None), one(3, Some(2), None)];
        assert_eq!(health_on(&pair, |link| link.index == 3), HashSet::from([2, 3]));
        assert_eq!(health_on(&pair, |_| false), HashSet::new());
    }

    #[test]
    fn a_link_is_read_and_one_that_stands_elsewhere_stands_on_nothing_here() {
        let mut message = vec![0; 16];
        message[4] = 9;
        put(&mut message, IFLA_IFNAME, b"vlan5\0");
        put(&mut message, IFLA_LINK, &2u32.to_ne_bytes());
        put(&mut message, IFLA_MASTER, &3u32.to_ne_bytes());
        let link_here = NetLink { index: 9, name: "vlan5".to_owned(), lower: Some(2), master: Some(3) };
        assert_eq!(link(&message), Some(link_here));
        put(&mut message, IFLA_LINK_NETNSID, &0u32.to_ne_bytes());
        assert_eq!(link(&message).unwrap().lower, None);
        for length in 0..message.len() {
            link(&message[..length]);
        }
        assert!(links().unwrap().iter().any(|link| link.name == "lo" && link.index == 1));
        assert!(!merging().unwrap().contains(&1));
    }
}
