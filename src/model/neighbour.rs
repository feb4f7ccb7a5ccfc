//! Frames that announce an address to every neighbour: gratuitous ARP (RFC 5227 section 3) and unsolicited neighbour
//! advertisements (RFC 4861 section 7.2.6); and a frame that asks which other host has an IPv6 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addr::Mac;

const BROADCAST: Mac = [0xff; 6];
/// The Ethernet address of ff02::1, all nodes (RFC 2464 section 7).
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// A neighbour that knows another address must replace it.
const OVERRIDE: u8 = 0x20;
const TARGET_ADDRESS: u8 = 2;

/// Times in ns after an address has come at which it is announced: neighbours may lose an announcement, and then send to its former host.
pub(crate) const ANNOUNCE_AFTER_NS: [u64; 4] = [0, 200_000_000, 1_000_000_000, 3_000_000_000];

/// The frames that announce `ip` at `mac`. ARP in both forms, because some hosts accept only one of them.
pub fn announcement(ip: IpAddr, mac: Mac) -> Vec<Vec<u8>> {
    match ip {
        IpAddr::V4(ip) => vec![arp(ip, mac, REQUEST), arp(ip, mac, REPLY)],
        IpAddr::V6(ip) => vec![advertisement(ip, mac)],
    }
}

fn arp(ip: Ipv4Addr, mac: Mac, operation: u8) -> Vec<u8> {
    let mut frame = [&BROADCAST[..], &mac, &ARP].concat();
    // Ethernet and IPv4, with their lengths.
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(ip.octets());
    frame.extend(if operation == REPLY { mac } else { [0; 6] });
    frame.extend(ip.octets());
    frame
}

fn advertisement(ip: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut icmp = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    icmp.extend(ip.octets());
    icmp.extend([TARGET_ADDRESS, 1]);
    icmp.extend(mac);
    icmpv6((mac, ip), (ALL_NODES_MAC, ALL_NODES), icmp)
}

/// Asks which host has `ip`, with the unspecified source, so that no neighbour learns anything from it: the host that
/// has the address answers to all nodes (RFC 4862 section 5.4). A host that is about to take the address would give it
/// up, so ask only for addresses of this host.
pub fn question(ip: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut icmp = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend(ip.octets());
    let [.., a, b, c] = ip.octets();
    // The multicast group of all hosts with an address that ends in these bytes (RFC 4291 section 2.7.1).
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    icmpv6((mac, Ipv6Addr::UNSPECIFIED), ([0x33, 0x33, 0xff, a, b, c], group), icmp)
}

/// The frame of a message whose checksum field is still 0.
fn icmpv6((mac, source): (Mac, Ipv6Addr), (to_mac, to): (Mac, Ipv6Addr), mut icmp: Vec<u8>) -> Vec<u8> {
    let length = (icmp.len() as u16).to_be_bytes();
    let pseudo = [&source.octets()[..], &to.octets(), &[0, 0], &length, &[0, 0, 0, ICMPV6], &icmp].concat();
    let check = checksum(&pseudo);
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    let mut frame = [&to_mac[..], &mac, &IPV6].concat();
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length);
    // Receivers drop a message that a router has forwarded (RFC 4861 section 7.1.2).
    frame.extend([ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(to.octets());
    frame.extend(icmp);
    frame
}

/// RFC 1071, for an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn arp_comes_in_both_forms_and_names_the_address_twice() {
        let frames = announcement("10.0.0.100".parse().unwrap(), MAC);
        let operations: Vec<_> = frames.iter().map(|frame| frame[21]).collect();
        assert_eq!(operations, [REQUEST, REPLY]);
        for frame in frames {
            assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (42, &BROADCAST[..], &MAC[..]));
            assert_eq!((&frame[28..32], &frame[38..42]), (&[10, 0, 0, 100][..], &[10, 0, 0, 100][..]));
        }
    }

    #[test]
    fn the_advertisement_has_a_checksum_that_holds_and_has_crossed_no_router() {
        let ip: Ipv6Addr = "2001:db8::100".parse().unwrap();
        let frame = announcement(ip.into(), MAC).remove(0);
        assert_eq!((frame.len(), frame[14 + 7]), (14 + 40 + 32, 255));
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, ICMPV6], &frame[54..]].concat();
        assert_eq!(checksum(&pseudo), 0);
        assert_eq!(frame[62..78], ip.octets());
    }
    #[test]
    fn the_question_goes_to_the_group_of_the_address_and_comes_from_nobody() {
        let ip: Ipv6Addr = "2001:db8::12:3456".parse().unwrap();
        let frame = question(ip, MAC);
        assert_eq!((frame.len(), &frame[..6]), (14 + 40 + 24, &[0x33, 0x33, 0xff, 0x12, 0x34, 0x56][..]));
        assert_eq!(frame[22..38], [0; 16]);
        assert_eq!(frame[38..54], "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap().octets());
        let pseudo = [&frame[22..54], &[0, 0, 0, 24, 0, 0, 0, ICMPV6], &frame[54..]].concat();
        assert_eq!(checksum(&pseudo), 0);
    }
}
