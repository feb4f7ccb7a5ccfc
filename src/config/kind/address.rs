//! Kinds of values that name an address, a network or a file.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use rustls_pki_types::ServerName;
use toml::de::DeValue;

use super::Kind;
use crate::addr::{BackendAddr, VipAddr, is_plain};
use crate::config::{Source, Target};

/// An address to listen on. Port 0 lets the kernel choose.
#[derive(Debug)]
pub(crate) struct Listen;

/// A backend's address or DNS name, with its port.
#[derive(Debug)]
pub(crate) struct AddressKind;

/// An address that probes go to.
#[derive(Debug)]
pub(crate) struct ProbePlace;

/// The source address of backend legs.
#[derive(Debug)]
pub(crate) struct SourcePlace;

/// A network, or a single address.
#[derive(Debug)]
pub(crate) struct Network;

/// A DNS name or an address, without a port.
#[derive(Debug)]
pub(crate) struct Host;

/// A DNS name.
#[derive(Debug)]
pub(crate) struct DnsName;

/// An address that moves between hosts, alone in its network.
#[derive(Debug)]
pub(crate) struct LoneAddress;

/// A string that can be a path: not empty and without NUL.
pub(crate) fn path_text<'v>(value: &'v DeValue) -> Option<&'v str> {
    value.as_str().filter(|text| !text.is_empty() && !text.contains('\0'))
}

impl Kind for Listen {
    type Value = VipAddr;

    fn read(&self, value: &DeValue) -> Option<VipAddr> {
        let address: SocketAddr = value.as_str()?.parse().ok()?;
        is_plain(&address).then(|| VipAddr::new(address))
    }

    fn allowed(&self) -> String {
        "an address (not multicast or link-local) with its port, such as \"10.0.0.100:6443\" or \"[::]:6443\"".into()
    }
}

impl Kind for ProbePlace {
    type Value = BackendAddr;

    fn read(&self, value: &DeValue) -> Option<BackendAddr> {
        BackendAddr::reachable(value.as_str()?.parse().ok()?)
    }

    fn allowed(&self) -> String {
        "an address that can be connected to, with its port, such as \"10.0.0.11:8080\" or \"[2001:db8::11]:8080\""
            .into()
    }
}

impl Kind for AddressKind {
    type Value = Target;

    fn read(&self, value: &DeValue) -> Option<Target> {
        let text = value.as_str()?;
        if let Ok(address) = text.parse() {
            return BackendAddr::reachable(address).map(Target::Address);
        }
        let (host, port) = text.rsplit_once(':')?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port > 0)?;
        is_dns_name(host).then(|| Target::Name { host: host.to_ascii_lowercase(), port })
    }

    fn allowed(&self) -> String {
        "an address or DNS name with its port, such as \"10.0.0.11:6443\", \"[2001:db8::11]:6443\" or \"cp1.example.com:6443\""
            .into()
    }
}

impl Kind for SourcePlace {
    type Value = Source;

    fn read(&self, value: &DeValue) -> Option<Source> {
        match value.as_str()? {
            "auto" => Some(Source::Auto),
            "route" => Some(Source::Route),
            text => {
                let ip = text.parse::<IpAddr>().ok()?.to_canonical();
                let usable = is_plain(&SocketAddr::new(ip, 0)) && !ip.is_unspecified();
                usable.then_some(Source::Address(ip))
            }
        }
    }

    fn allowed(&self) -> String {
        "\"auto\", \"route\", or an address of this host without a port, such as \"10.0.0.100\"".into()
    }
}

impl Kind for Network {
    type Value = IpNet;

    fn read(&self, value: &DeValue) -> Option<IpNet> {
        let text = value.as_str()?;
        let network: IpNet = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
        (network.trunc() == network).then(|| canonical(network))
    }

    fn allowed(&self) -> String {
        "a network without host bits, such as \"10.0.0.0/8\" or \"2001:db8::/32\", or one address".into()
    }
}

impl Kind for LoneAddress {
    type Value = IpAddr;

    fn read(&self, value: &DeValue) -> Option<IpAddr> {
        let text = value.as_str()?;
        let network: IpNet = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
        let ip = network.addr().to_canonical();
        let is_alone = network.prefix_len() == network.max_prefix_len() && network.addr() == ip;
        let is_usable = is_plain(&SocketAddr::new(ip, 0)) && !ip.is_unspecified() && !ip.is_loopback();
        // The kernel adds these to an interface, and no client reaches them: 0.0.0.0/8, and 240.0.0.0/4 with the broadcast address.
        let is_reserved = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.octets()[0] >= 240);
        (is_alone && is_usable && !is_reserved).then_some(ip)
    }

    fn allowed(&self) -> String {
        "one unicast address that moves between hosts, such as \"10.0.0.100/32\" or \"fd00::100/128\"".into()
    }
}

impl Kind for Host {
    type Value = (String, ServerName<'static>);

    fn read(&self, value: &DeValue) -> Option<Self::Value> {
        let text = value.as_str()?;
        let name = ServerName::try_from(text.to_owned()).ok()?;
        let plain = !matches!(name, ServerName::DnsName(_)) || is_dns_name(text);
        plain.then(|| (text.to_owned(), name))
    }

    fn allowed(&self) -> String {
        "a DNS name or an address, without a port".into()
    }
}

impl Kind for DnsName {
    type Value = String;

    fn read(&self, value: &DeValue) -> Option<String> {
        value.as_str().filter(|text| is_dns_name(text)).map(str::to_ascii_lowercase)
    }

    fn allowed(&self) -> String {
        "a whole DNS name, such as \"api.example.com\"".into()
    }
}

/// Turns a network of IPv4-mapped addresses into its IPv4 network: clients are compared in that form.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(ip, bits)| IpNet::new(ip.into(), bits).ok()).unwrap_or(network)
}

/// RFC 1123 section 2.1; a last label of digits is a mistyped IPv4 address and no name.
fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        let edges = label.starts_with('-') || label.ends_with('-');
        let plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        (1..=63).contains(&label.len()) && plain && !edges
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253 && name.split('.').all(label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<K: Kind>(kind: &K, text: &str) -> Option<K::Value> {
        kind.read(&DeValue::String(text.into()))
    }

    #[test]
    fn a_backend_is_an_address_or_a_name() {
        let address = |text: &str| Some(Target::Address(BackendAddr::new(text.parse().unwrap())));
        let name = |host: &str, port| Some(Target::Name { host: host.into(), port });
        assert_eq!(read(&AddressKind, "10.0.0.11:6443"), address("10.0.0.11:6443"));
        assert_eq!(read(&AddressKind, "[::ffff:10.0.0.11]:6443"), address("10.0.0.11:6443"));
        assert_eq!(read(&AddressKind, "CP1.example.com:6443"), name("cp1.example.com", 6443));
        assert_eq!(read(&AddressKind, "localhost:1"), name("localhost", 1));
        let bad = [
            "10.0.0.11",
            "10.0.0.999:6443",
            "10.0.0.11:0",
            "10.0.0.11:65536",
            "cp1",
            "cp1:",
            "cp1:+1",
            ":6443",
            "-cp1:1",
            "cp1..x:1",
            "https://cp1:6443",
            "cp 1:6443",
            "0.0.0.0:6443",
            "[::]:6443",
            "224.0.0.1:1",
            "[fe80::1%2]:6443",
            "2001:db8::1:6443",
            "",
        ];
        for text in bad {
            assert_eq!(read(&AddressKind, text), None, "{text}");
        }
    }

    #[test]
    fn a_network_with_host_bits_is_a_mistake() {
        assert_eq!(read(&Network, "10.0.0.0/8"), Some("10.0.0.0/8".parse().unwrap()));
        assert_eq!(read(&Network, "10.0.0.7"), Some("10.0.0.7/32".parse().unwrap()));
        assert_eq!(read(&Network, "2001:db8::1"), Some("2001:db8::1/128".parse().unwrap()));
        assert_eq!(read(&Network, "::ffff:10.0.0.0/104"), Some("10.0.0.0/8".parse().unwrap()));
        assert_eq!(read(&Network, "::ffff:10.0.0.7"), Some("10.0.0.7/32".parse().unwrap()));
        assert_eq!(read(&Network, "::/0"), Some("::/0".parse().unwrap()));
        for text in ["10.0.0.7/8", "10.0.0.0/33", "10.0.0.0:1", "all", ""] {
            assert_eq!(read(&Network, text), None, "{text}");
        }
    }

    #[test]
    fn a_source_is_a_word_or_an_address_without_a_port() {
        assert_eq!(read(&SourcePlace, "route"), Some(Source::Route));
        assert_eq!(read(&SourcePlace, "::ffff:10.0.0.7"), Some(Source::Address("10.0.0.7".parse().unwrap())));
        for text in ["", "Auto", "any", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "10.0.0.7:1", "cp1", "10.0.0.0/8"] {
            assert_eq!(read(&SourcePlace, text), None, "{text}");
        }
    }

    #[test]
    fn a_host_has_no_port() {
        assert!(read(&Host, "kubernetes.default.svc").is_some() && read(&Host, "10.96.0.1").is_some());
        for text in ["cp1:6443", "a b", "", "10.0.0.999", "x\r\ny"] {
            assert!(read(&Host, text).is_none(), "{text}");
        }
    }
}
