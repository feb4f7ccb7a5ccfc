//! In which order HAProxy stops and Baton starts. Two processes listen at one address only by port sharing: Baton has the VIP's port,
//! and HAProxy the port on all addresses.

use std::net::{IpAddr, SocketAddr};

use crate::translate::haproxy::HaproxyAddresses;
use crate::translate::toml::array;

/// A step for each frontend that listens on all addresses. `vips`: each with its line.
pub(super) fn of_wildcards(vips: &[(usize, IpAddr)], haproxy: &HaproxyAddresses) -> Vec<String> {
    let wildcards = haproxy.frontends.iter().filter(|(_, listen)| has_wildcard(listen));
    let step = |(name, listen): &(String, Vec<SocketAddr>)| {
        let named = match &with_vips(listen, vips)[..] {
            [] => "Name the VIP in \"listen\" instead, and both serve at one time".to_owned(),
            named => format!("Name the VIP instead, and both serve at one time: listen = {}", array(named)),
        };
        format!(
            "HAProxy has to stop on a host before Baton starts there, a moment's interruption: frontend {name} listens on all \
             addresses, as HAProxy does. {named}"
        )
    };
    wildcards.map(step).collect()
}

/// The step for a balancer whose address nothing moves.
pub(in crate::translate) fn without_keepalived(haproxy: &HaproxyAddresses) -> Option<String> {
    let mut taken: Vec<_> = haproxy.frontends.iter().flat_map(|(_, listen)| listen).map(ToString::to_string).collect();
    taken.sort_unstable();
    taken.dedup();
    (!taken.is_empty()).then(|| {
        format!("HAProxy has to stop before Baton starts, a moment's interruption: both listen at {}", taken.join(", "))
    })
}

/// When keepalived's script can be another one, as the beginning of a sentence.
pub(super) fn of_script(haproxy: &HaproxyAddresses) -> &'static str {
    match haproxy.frontends.iter().any(|(_, listen)| has_wildcard(listen)) {
        true => "once Baton serves on a host, and before HAProxy stops there if both serve",
        false => "HAProxy has to stop on a host before Baton starts there, a moment's interruption; once Baton serves",
    }
}

fn has_wildcard(listen: &[SocketAddr]) -> bool {
    listen.iter().any(|address| address.ip().is_unspecified())
}

/// `listen` with the VIPs in place of all addresses of their family.
fn with_vips(listen: &[SocketAddr], vips: &[(usize, IpAddr)]) -> Vec<String> {
    let mut named: Vec<String> = Vec::new();
    for address in listen {
        let of_family = vips.iter().map(|(_, ip)| *ip).filter(|ip| ip.is_ipv4() == address.is_ipv4());
        let ips: Vec<_> = if address.ip().is_unspecified() { of_family.collect() } else { vec![address.ip()] };
        named.extend(ips.into_iter().map(|ip| SocketAddr::new(ip, address.port()).to_string()));
    }
    let mut seen = std::collections::HashSet::new();
    named.retain(|address| seen.insert(address.clone()));
    named
}

#[cfg(test)]
mod tests {
    use crate::translate::{ForeignFile, translate};

    fn steps(bind: &str, keepalived: &str) -> Vec<String> {
        let haproxy = format!("listen api\nbind {bind}\nserver a 10.0.0.1:6443\n");
        let [haproxy, keepalived] =
            [&*haproxy, keepalived].map(|text| ForeignFile { name: "f".to_owned(), text: text.to_owned() });
        translate(&haproxy, Some(&keepalived)).steps
    }

    /// Regression: Baton was to serve before HAProxy stops, and could not listen on all addresses while HAProxy did.
    #[test]
    fn baton_that_listens_on_all_addresses_starts_after_haproxy() {
        let kubeadm = include_str!("../../../tests/migration/kubeadm-keepalived.conf");
        for bind in ["*:6443", ":6443", "0.0.0.0:6443"] {
            let [first, script] = &steps(bind, kubeadm)[..] else { panic!("{:?}", steps(bind, kubeadm)) };
            assert!(first.starts_with("HAProxy has to stop on a host before Baton starts there"), "{first}");
            assert!(first.ends_with(": listen = [\"10.0.0.100:6443\"]"), "{first}");
            assert!(
                script.starts_with("once Baton serves on a host, and before HAProxy stops there if both"),
                "{script}"
            );
        }
        let fleet = include_str!("../../../tests/migration/unicast-keepalived.conf");
        let both = steps("[::]:6443,10.0.0.9:7443", fleet);
        let listen = "listen = [\"[fd00::100]:6443\", \"10.0.0.100:6443\", \"10.0.0.9:7443\"]";
        assert!(both.len() == 3 && both[0].ends_with(listen), "{both:?}");
        let variable = steps("*:6443", &kubeadm.replace("        10.0.0.100", "        ${VIP}"));
        assert!(
            variable[0].ends_with("Name the VIP in \"listen\" instead, and both serve at one time"),
            "{variable:?}"
        );
    }

    #[test]
    fn without_keepalived_haproxy_stops_first() {
        let text = "listen api\nbind 127.0.0.1:6443\nbind :7443\nserver a 10.0.0.1:6443\n".to_owned();
        let [step] = &translate(&ForeignFile { name: "f".to_owned(), text }, None).steps[..] else { panic!() };
        assert_eq!(
            step,
            "HAProxy has to stop before Baton starts, a moment's interruption: both listen at 0.0.0.0:7443, 127.0.0.1:6443"
        );
    }

    #[test]
    fn baton_at_haproxy_s_own_address_starts_after_it() {
        let kubeadm = include_str!("../../../tests/migration/kubeadm-keepalived.conf");
        let [script] = &steps("10.0.0.100:6443", kubeadm)[..] else { panic!() };
        assert!(script.starts_with("HAProxy has to stop on a host before Baton starts there, a moment's"), "{script}");
    }
}
