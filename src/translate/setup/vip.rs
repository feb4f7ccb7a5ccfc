//! Which address clients know, and the interface that gets it.

use std::net::IpAddr;

use super::refusal::spelled_ips;
use super::sources::KUBEADM_CONFIG;
use super::{Apiserver, Facts, SetupHost, SetupRefusal, SetupRequest};

/// `known`: where the cluster's clients connect to.
pub(super) fn vips(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
    known: Option<IpAddr>,
    facts: &mut Facts,
) -> Result<Vec<IpAddr>, SetupRefusal> {
    let (vips, place) = match &request.vips[..] {
        [] => found_vip(request, host, local, known)?,
        given => (given.to_vec(), "--vip".to_owned()),
    };
    for ip in &vips {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local {
            return Err(SetupRefusal::BadVip(*ip));
        }
        if host.is_fixed(*ip) {
            return Err(SetupRefusal::OwnVip(*ip));
        }
        if let Some(network) = host.network_without(*ip) {
            return Err(SetupRefusal::NetworksVip(*ip, network));
        }
    }
    facts.add("vip", spelled_ips(&vips), place);
    Ok(vips)
}

/// An address in the cluster's own files that is no host's, so far as is known, but of this host's networks.
fn found_vip(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
    known: Option<IpAddr>,
) -> Result<(Vec<IpAddr>, String), SetupRefusal> {
    let is_host = |ip: &IpAddr| request.hosts.contains(ip) || request.peers.contains(ip);
    let is_vip = |ip: &IpAddr| !host.is_fixed(*ip) && !is_host(ip) && host.network_of(*ip).is_some();
    if let Some(ip) = known.filter(is_vip) {
        return Ok((vec![ip], format!("{KUBEADM_CONFIG}: server")));
    }
    let Some(Apiserver { local, .. }) = local else { return Err(SetupRefusal::NoVip) };
    let (found, place) = local.named(is_vip);
    let of_v4 = found.iter().filter(|ip| ip.is_ipv4()).count();
    match (of_v4, found.len() - of_v4) {
        (0, 0) => Err(SetupRefusal::NoVip),
        // One of each family is one VIP for clients of both.
        (0 | 1, 0 | 1) => Ok((found, place)),
        // The hosts' own addresses stand there as well.
        _ => Err(SetupRefusal::SeveralVips(found, place)),
    }
}

/// The interface that gets the VIP, and why.
pub(super) fn interface(
    request: &SetupRequest,
    host: &SetupHost,
    vip: IpAddr,
) -> Result<(String, String), SetupRefusal> {
    if let Some(name) = &request.interface {
        let is_there = host.networks.iter().any(|(other, _)| other == name);
        return match is_there {
            true => Ok((name.clone(), "--interface".to_owned())),
            false => Err(SetupRefusal::UnknownInterface(name.clone())),
        };
    }
    if let Some((name, own)) = host.network_of(vip) {
        return Ok((name.to_owned(), format!("its network, of {own}, has {vip} in it")));
    }
    match (host.route)(vip).filter(|route| route.interface != "lo") {
        Some(route) => {
            let place = format!(
                "the route to {vip}, which is in no network of this host: ARP does not find it, routers have to"
            );
            Ok((route.interface, place))
        }
        None => Err(SetupRefusal::NoInterface(vip)),
    }
}
