//! Interfaces that are built on others: bonds, bridges, VLANs, macvlans.

use std::collections::{HashMap, HashSet};
use std::io;

use netlink_packet_core::{Emitable, NLM_F_DUMP, NlaBuffer, parse_u32};
use netlink_packet_route::link::LinkHeader;

use super::ask;
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
    /// The interface that it is built on.
    lower: Option<u32>,
    /// The interface that it is a part of.
    master: Option<u32>,
}

/// Interfaces whose packets a card may have merged irreversibly (large receive offload): those that merge, and all that
/// are built on one.
pub(crate) fn merging() -> io::Result<HashSet<u32>> {
    // An interface that does not support the request merges nothing.
    Ok(merging_of(&links()?, |link| netdev::merges_for_good(&link.name).unwrap_or(false)))
}

/// `says`: whether an interface has the feature. One that is built on others merges nothing itself, whatever it says: each bond has
/// the feature as a permission for its cards (drivers/net/bonding/bond_main.c, BOND_VLAN_FEATURES).
fn merging_of(links: &[NetLink], says: impl Fn(&NetLink) -> bool) -> HashSet<u32> {
    let built: HashSet<u32> =
        links.iter().flat_map(|link| [link.master, link.lower.map(|_| link.index)]).flatten().collect();
    health_on(links, |link| !built.contains(&link.index) && says(link))
}

/// Indices of all interfaces of this network namespace.
pub(crate) fn indices() -> io::Result<Vec<u32>> {
    Ok(links()?.iter().map(|link| link.index).collect())
}

/// Number of changes of an interface's carrier since it was made.
pub(crate) fn carrier_changes(index: u32) -> io::Result<u32> {
    let mut changes = None;
    ask(None, libc::RTM_GETLINK, 0, &[&header(index)], |message| {
        let attribute = attributes(message).find(|it| it.kind() == IFLA_CARRIER_CHANGES);
        changes = attribute.and_then(|it| parse_u32(it.value()).ok());
    })?;
    changes.ok_or(io::ErrorKind::InvalidData.into())
}

/// The header of a request about one interface, or with 0 about all.
pub(super) fn header(index: u32) -> LinkHeader {
    LinkHeader { index, ..LinkHeader::default() }
}

/// The attributes of an interface. The crate's `LinkAttribute` would read them, but it also reads the attributes of
/// each kind of interface, and panics if one is shorter than it expects (in 0.34: IFLA_BAREUDP_SRCPORT_MIN).
pub(super) fn attributes(message: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    super::attributes(message.get(LinkHeader::default().buffer_len()..).unwrap_or_default())
}

fn links() -> io::Result<Vec<NetLink>> {
    let mut links = Vec::new();
    ask(None, libc::RTM_GETLINK, NLM_F_DUMP, &[&header(0)], |message| links.extend(link(message)))?;
    Ok(links)
}

/// As [`super::read_any`].
#[cfg(fuzzing)]
pub(super) fn read_any(message: &[u8]) {
    link(message);
}

/// `None`: the message is truncated.
fn link(message: &[u8]) -> Option<NetLink> {
    let mut link = NetLink { index: LinkHeader::parse(message).ok()?.index, ..NetLink::default() };
    let mut is_of_other_namespace = false;
    for attribute in attributes(message) {
        let number = || parse_u32(attribute.value()).ok();
        match attribute.kind() {
            IFLA_IFNAME => link.name = String::from_utf8_lossy(attribute.value()).trim_end_matches('\0').to_owned(),
            IFLA_LINK => link.lower = number(),
            IFLA_MASTER => link.master = number(),
            IFLA_LINK_NETNSID => is_of_other_namespace = true,
            _ => {}
        }
    }
    link.lower = link.lower.filter(|lower| !is_of_other_namespace && *lower != link.index);
    Some(link)
}

/// The interfaces for which `holds` returns true, and all that are built on one of these.
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
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

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
        // Regression: every bond says that it merges, and no flow by a bond was offloaded.
        assert_eq!(merging_of(&links, |link| [4, 5, 6].contains(&link.index)), HashSet::new());
        assert_eq!(merging_of(&links, |link| [2, 4].contains(&link.index)), HashSet::from([2, 4, 5, 6]));
        // Its card is in another namespace.
        assert_eq!(merging_of(&links, |link| link.index == 3), HashSet::from([3, 7]));
        // A veth pair in one namespace: each is built on the other.
        let pair = [one(2, Some(3), None), one(3, Some(2), None)];
        assert_eq!(health_on(&pair, |link| link.index == 3), HashSet::from([2, 3]));
        assert_eq!(health_on(&pair, |_| false), HashSet::new());
    }

    #[test]
    fn a_link_is_read_and_one_on_a_link_of_another_namespace_stands_on_nothing_here() {
        let mut message = LinkMessage::default();
        message.header.index = 9;
        let attributes =
            [LinkAttribute::IfName("vlan5".to_owned()), LinkAttribute::Link(2), LinkAttribute::Controller(3)];
        message.attributes.extend(attributes);
        let raw = |message: &LinkMessage| {
            let mut raw = vec![0; message.buffer_len()];
            message.emit(&mut raw);
            raw
        };
        let link_here = NetLink { index: 9, name: "vlan5".to_owned(), lower: Some(2), master: Some(3) };
        assert_eq!(link(&raw(&message)), Some(link_here));
        message.attributes.push(LinkAttribute::LinkNetNsId(0));
        let message = raw(&message);
        assert_eq!(link(&message).unwrap().lower, None);
        for length in 0..message.len() {
            link(&message[..length]);
        }
        assert!(links().unwrap().iter().any(|link| link.name == "lo" && link.index == 1));
        assert!(!merging().unwrap().contains(&1));
    }

    #[test]
    fn what_the_library_would_panic_at_is_not_shown_to_it() {
        // struct ifinfomsg; IFLA_LINKINFO: IFLA_INFO_KIND, IFLA_INFO_DATA: a port of one byte; IFLA_LINK.
        let mut message = vec![0; 16];
        message.extend([28, 0, 18, 0, 12, 0, 1, 0]);
        message.extend(b"bareudp\0");
        message.extend([12, 0, 2, 0, 5, 0, 3, 0, 1, 0, 0, 0, 8, 0, 5, 0, 2, 0, 0, 0]);
        assert_eq!(link(&message).unwrap().lower, Some(2));
    }
}
