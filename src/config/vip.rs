//! `[vip]`: the addresses that Baton itself moves between hosts.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::kind::{CommandWord, Kind, LoneAddress, OneOf, quote, whole};
use super::offload::InterfaceName;
use super::section::{Element, Section};
use super::{Backend, Frontend, Peers, Target, VipSettings};
use crate::addr::VipAddr;

/// Reads `[vip]`. `None`: Baton does not move the VIP. `listen` has the addresses of all frontends.
pub(super) fn read(
    section: &Section,
    peers: Option<&Peers>,
    listen: &[Element<VipAddr>],
    frontends: &[Arc<Frontend>],
) -> Option<VipSettings> {
    let addresses = section.list("addresses", &LoneAddress);
    let is_named = !section.is_absent_or_empty("addresses");
    let mode = section.read_or("mode", &MODE, is_named);
    let is_wanted = mode.value && is_named;
    let interface = match is_wanted {
        true => section.require("interface", &InterfaceName),
        false => section.read("interface", &InterfaceName).value,
    };
    let priority = section.read_or("priority", &whole(0, 255), 100).value as u8;
    let [on_gain, on_loss] = ["on_gain", "on_loss"].map(|key| command(section, key));
    if !mode.value {
        for key in OTHERS.iter().filter(|key| section.has(key) && !mode.is_refused()) {
            let message = match mode.is_given() {
                true => format!("{} has no effect while mode is \"external\"", section.name(key)),
                false => format!("{} has no effect without \"addresses\"", section.name(key)),
            };
            section.warn(key, message, "remove it, or set addresses, interface and mode = \"built-in\"");
        }
        return None;
    }
    if !is_named {
        let help = format!("expected an array in [ ], each element {}", LoneAddress.allowed());
        section.refuse("addresses", format!("missing {}", section.name("addresses")), help);
        return None;
    }
    if interface.as_deref() == Some("lo") {
        let help = "name the Ethernet interface by which clients reach this host, such as \"eth0\": nobody asks for addresses on lo";
        section.refuse("interface", format!("{} is \"lo\"", section.name("interface")), help.to_owned());
    }
    check(section, &addresses, peers, listen);
    refuse_backends(section, &addresses, frontends);
    let addresses = addresses.into_iter().map(|element| element.value).collect();
    Some(VipSettings { addresses, interface: Arc::from(interface?), priority, on_gain, on_loss })
}

fn check(section: &Section, addresses: &[Element<IpAddr>], peers: Option<&Peers>, listen: &[Element<VipAddr>]) {
    let document = section.document;
    for (index, element) in addresses.iter().enumerate() {
        let address = element.value;
        if let Some(first) = addresses[..index].iter().find(|other| other.value == address) {
            let message = format!("{} is \"{address}\", as is {}", element.name, first.name);
            document.error(&element.place, message, "name each address once");
        }
        let own = peers.filter(|peers| peers.listen.ip() == address);
        let its = peers.and_then(|peers| peers.peers.iter().find(|peer| peer.address.ip() == address));
        let is_taken = own.map(|peers| &peers.name).or(its.map(|peer| &peer.name));
        if let Some(name) = is_taken {
            let message = format!("{} is \"{address}\", the address of instance \"{name}\" in [peers]", element.name);
            document.error(&element.place, message, "name an address that moves: the peers reach each host at its own");
        }
        let serves =
            |vip: &VipAddr| vip.ip() == address || vip.ip().is_unspecified() && vip.ip().is_ipv4() == address.is_ipv4();
        if !listen.iter().any(|other| serves(&other.value)) {
            let message = format!("{} is \"{address}\", and no frontend listens on it", element.name);
            document.warning(
                &element.place,
                message,
                "name it in \"listen\" of a frontend, or clients are refused there",
            );
        }
    }
}

/// Baton would connect to itself, or take the address from its backend's host.
fn refuse_backends(section: &Section, addresses: &[Element<IpAddr>], frontends: &[Arc<Frontend>]) {
    for element in addresses {
        let is_its = |backend: &Backend| {
            let own = matches!(backend.address, Target::Address(address) if address.ip() == element.value);
            own || backend.health_address.is_some_and(|address| address.ip() == element.value)
        };
        let mut all = frontends.iter().flat_map(|frontend| frontend.backends.iter().map(move |it| (frontend, it)));
        if let Some((frontend, backend)) = all.find(|(_, backend)| is_its(backend)) {
            let (name, ip) = (&element.name, element.value);
            let message = format!(
                "{name} is \"{ip}\", the address of backend \"{}\" in frontend \"{}\"",
                backend.name, frontend.name
            );
            let help = "name an address that moves: backends keep the addresses of their own hosts";
            section.document.error(&element.place, message, help);
        }
    }
}

/// A program with its arguments, which Baton runs without a shell.
fn command(section: &Section, key: &str) -> Vec<String> {
    let words = section.list(key, &CommandWord);
    if let Some(program) = words.first().filter(|program| !Path::new(&program.value).is_absolute()) {
        let help = format!("expected the whole path of a program, beginning with /; found {}", quote(&program.value));
        section.document.error(&program.place, format!("invalid value for {}", program.name), help);
    }
    words.into_iter().map(|word| word.value).collect()
}

/// Which program moves the VIP.
const MODE: OneOf<bool> = OneOf(&[("built-in", true), ("external", false)]);
const OTHERS: [&str; 5] = ["addresses", "interface", "priority", "on_gain", "on_loss"];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use crate::config;

    #[test]
    fn an_address_of_an_instance_is_no_vip() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        std::fs::write(&key, "0".repeat(64)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = |address: &str| {
            format!(
                "[instance]\nname = \"lb-a\"\n[peers]\nlisten = \"10.0.0.21:9471\"\nkey_file = {key:?}\n[[peers.peer]]\n\
                 name = \"lb-b\"\naddress = \"10.0.0.22:9471\"\n[vip]\naddresses = [\"{address}\"]\ninterface = \"eth0\"\n\
                 [[frontend]]\nname = \"a\"\nlisten = [\"0.0.0.0:6443\"]\n[[frontend.backend]]\nname = \"cp-1\"\n\
                 address = \"10.0.0.11:6443\"\n"
            )
        };
        let read = |address: &str| config::parse(&text(address), &directory.path().join("baton.toml"));
        for (address, name) in [("10.0.0.21/32", "lb-a"), ("10.0.0.22", "lb-b")] {
            let errors = read(address).unwrap_err().errors;
            assert_eq!(errors.len(), 1);
            assert!(
                errors[0].message.contains(&format!("the address of instance \"{name}\"")),
                "{}",
                errors[0].message
            );
        }
        let vip = read("10.0.0.100/32").unwrap().config.vip.unwrap();
        assert_eq!((vip.addresses, vip.priority), (vec!["10.0.0.100".parse().unwrap()], 100));
    }

    #[test]
    fn the_vip_is_on_no_loopback_interface() {
        let text = "[vip]\naddresses = [\"10.0.0.100/32\"]\ninterface = \"lo\"\n[[frontend]]\nname = \"a\"\n\
                    listen = [\"10.0.0.100:6443\"]\n[[frontend.backend]]\nname = \"cp-1\"\naddress = \"10.0.0.11:6443\"\n";
        let errors = config::parse(text, std::path::Path::new("baton.toml")).unwrap_err().errors;
        assert_eq!((errors.len(), errors[0].line), (1, 3), "{errors:?}");
        assert!(errors[0].help.contains("Ethernet interface"), "{}", errors[0].help);
    }

    #[test]
    fn an_address_that_no_client_reaches_or_that_a_backend_has_is_no_vip() {
        let text = |address: &str| {
            format!(
                "[vip]\naddresses = [\"{address}\"]\ninterface = \"eth0\"\n[[frontend]]\nname = \"a\"\n\
                 listen = [\"0.0.0.0:6443\", \"[::]:6443\"]\n[[frontend.backend]]\nname = \"cp-1\"\naddress = \"10.0.0.11:6443\"\n\
                 [[frontend.backend]]\nname = \"cp-2\"\naddress = \"[fd00::12]:6443\"\nhealth_address = \"10.0.0.12:8080\"\n"
            )
        };
        let read = |address: &str| config::parse(&text(address), std::path::Path::new("baton.toml"));
        let refused = [
            "255.255.255.255",
            "240.0.0.1",
            "224.0.0.18",
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "10.0.0.100/24",
        ];
        for address in refused {
            let errors = read(address).expect_err(address).errors;
            assert_eq!(errors.len(), 1, "{address}");
            assert!(errors[0].message.contains("element 1 of \"addresses\" in [vip]"), "{}", errors[0].message);
            assert!(errors[0].help.contains("one unicast address that moves between hosts"), "{}", errors[0].help);
        }
        for (address, name) in [("10.0.0.11", "cp-1"), ("fd00::12/128", "cp-2"), ("10.0.0.12/32", "cp-2")] {
            let errors = read(address).expect_err(address).errors;
            assert_eq!(errors.len(), 1, "{address}");
            let its = format!("the address of backend \"{name}\" in frontend \"a\"");
            assert!(errors[0].message.contains(&its), "{}", errors[0].message);
        }
        for address in ["10.0.0.100", "fd00::100/128", "169.254.1.1/32"] {
            read(address).expect(address);
        }
    }
}
