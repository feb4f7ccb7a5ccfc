//! Checks `[vip]`: whether Baton can move the VIP on this host, and whether another program moves it as well.

use ipnet::IpNet;

use super::{kernel, mover};
use crate::config::{Config, VipSettings};
use crate::model::finding::Finding;
use crate::model::humane::list;
use crate::sys::{netdev, process};

const TOPIC: &str = "vip";

/// Without `[vip]`: none. `both`: [`of_keepalived`].
pub(super) fn look(config: &Config, both: &[String]) -> Vec<Finding> {
    let Some(vip) = &config.vip else { return Vec::new() };
    let mut findings: Vec<_> = rights().into_iter().chain(interface(vip)).collect();
    findings.extend(without_ipv6(vip));
    findings.extend(foreign_entries(vip));
    findings.extend(keepalived(both));
    if findings.is_empty() {
        findings.push(Finding::good(TOPIC, format!("Baton moves {} on {}", list(&vip.addresses), vip.interface)));
    }
    findings
}

fn rights() -> Option<Finding> {
    let missing = RIGHTS.iter().filter(|(number, _)| !process::holds_capability(*number));
    let missing: Vec<_> = missing.map(|(_, name)| *name).collect();
    (!missing.is_empty()).then(|| {
        Finding::fault(
            TOPIC,
            format!("this command does not have {}", missing.join(" and ")),
            "with CAP_NET_ADMIN Baton adds the addresses, and with CAP_NET_RAW it asks whether another host has them; without \
             both this host cannot have the VIP",
            "start Baton by deploy/baton.service, which has both",
        )
    })
}

fn interface(vip: &VipSettings) -> Option<Finding> {
    let name = &vip.interface;
    let fault = |read: String, fix: String| Some(Finding::fault(TOPIC, read, "this host cannot have the VIP", fix));
    let other = || "name an Ethernet interface of this host in interface under [vip]".to_owned();
    match netdev::interface(name) {
        Ok(interface) if interface.hardware == netdev::HARDWARE_ETHERNET => {}
        Ok(_) => return fault(format!("interface {name} is not Ethernet"), other()),
        Err(error) => return fault(format!("interface {name}: {error}"), other()),
    }
    match netdev::has_carrier(name) {
        Ok(true) => None,
        _ => fault(format!("interface {name} is down, or has no carrier"), format!("ip link set {name} up")),
    }
}

fn without_ipv6(vip: &VipSettings) -> Option<Finding> {
    let name = &vip.interface;
    let address = vip.addresses.iter().find(|ip| ip.is_ipv6())?;
    let path = format!("net/ipv6/conf/{name}/disable_ipv6");
    let is_disabled = netdev::interface(name).is_ok() && kernel::read(&path) != Some(0);
    is_disabled.then(|| {
        Finding::fault(
            TOPIC,
            format!("IPv6 is disabled on {name}"),
            format!("the kernel refuses {address} there, and Baton has all addresses of the VIP on one host or none: this host cannot have it"),
            format!("sysctl -w {}=0", path.replace('/', ".")),
        )
    })
}

/// Entries that Baton has not added: with another mask, or on another interface.
fn foreign_entries(vip: &VipSettings) -> Option<Finding> {
    let all = netdev::networks().unwrap_or_default().into_iter();
    let is_foreign = |name: &str, it: &IpNet| name != &*vip.interface || it.prefix_len() != it.max_prefix_len();
    let mut of_vip = all.filter(|(name, network)| name != "lo" && vip.addresses.contains(&network.addr()));
    let (name, network) = of_vip.find(|(name, network)| is_foreign(name, network))?;
    Some(Finding::fault(
        TOPIC,
        format!("{network} is on {name}"),
        "Baton adds each address alone, and only to the interface of [vip]: while no Baton runs here, this host answers for the VIP, and no \
         other host can take it",
        format!("ip address del {network} dev {name}"),
    ))
}

/// The addresses of `[vip]` that a keepalived on this host moves too.
pub(super) fn of_keepalived(config: &Config) -> Vec<String> {
    let Some(vip) = &config.vip else { return Vec::new() };
    let all = mover::keepalived();
    let has = |address| all.iter().any(|it| it.addresses().contains(address));
    vip.addresses.iter().filter(|address| has(*address)).map(ToString::to_string).collect()
}

/// keepalived does not ask Baton: with both, two hosts have the address.
fn keepalived(both: &[String]) -> Option<Finding> {
    (!both.is_empty()).then(|| {
        Finding::fault(
            TOPIC,
            format!("keepalived runs here and moves {} too", both.join(", ")),
            "keepalived does not ask Baton, and both add and remove the address",
            "systemctl disable --now keepalived, in the order that docs/vip.md describes",
        )
    })
}

/// include/uapi/linux/capability.h
const RIGHTS: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];
