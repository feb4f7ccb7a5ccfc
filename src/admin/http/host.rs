//! The host that a request names. A browser on this host, or on another that reaches the server, runs scripts of strangers: by a
//! name of theirs that they let resolve to the server's address (DNS rebinding), they would read its pages as their own. Such a
//! request names their host, not this one.

use std::net::{IpAddr, Ipv6Addr};

use hyper::Request;
use hyper::header::HOST;
use thiserror::Error;

use crate::config::Config;

/// Why a request gets no page.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum HostRefused {
    #[error(
        "the request is for host {0:?}; this server answers to its addresses, to localhost, to this host's name, and to the \
         names in admin.allowed_hosts"
    )]
    OtherHost(String),
    #[error("the request names its host twice, or not in ASCII")]
    Unclear,
}

/// The names that requests may use.
#[derive(Debug)]
pub(super) struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// The names in the file, this host's name and the instance's name.
    pub(super) fn of(config: &Config) -> Self {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let instance = config.instance.name.iter().map(ToString::to_string);
        Self { names: config.admin.allowed_hosts.iter().cloned().chain([own]).chain(instance).collect() }
    }

    /// Whether `request` is for this host. A request that names no host passes: each browser names one (RFC 9112 section 3.2).
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), HostRefused> {
        if let Some(host) = request.uri().host() {
            return self.judge(host);
        }
        let mut headers = request.headers().get_all(HOST).iter();
        match (headers.next(), headers.next()) {
            (None, _) => Ok(()),
            (Some(host), None) => self.judge(without_port(host.to_str().map_err(|_| HostRefused::Unclear)?)),
            (Some(_), Some(_)) => Err(HostRefused::Unclear),
        }
    }

    fn judge(&self, host: &str) -> Result<(), HostRefused> {
        let name = host.trim_end_matches('.');
        let is = |own: &str| own.trim_end_matches('.').eq_ignore_ascii_case(name);
        let known = is("localhost") || self.names.iter().any(|own| is(own));
        let refused = || HostRefused::OtherHost(host.chars().take(NAME_MAX).collect());
        (known || is_address(host)).then_some(()).ok_or_else(refused)
    }
}

/// Nobody can make an address resolve to another host.
fn is_address(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        // RFC 6874: a zone may follow.
        Some(v6) => v6.split('%').next().is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok()),
        None => host.parse::<IpAddr>().is_ok(),
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

/// The longest DNS name (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &str, headers: &[&[u8]]) -> Result<(), HostRefused> {
        let mut request = Request::builder().uri(uri);
        for header in headers {
            request = request.header(HOST, *header);
        }
        Hosts { names: vec!["lb-a.example.com".to_owned()] }.check(&request.body(()).unwrap())
    }

    #[test]
    fn addresses_and_own_names_pass_and_other_names_do_not() {
        for own in [
            "127.0.0.1:9470",
            "10.0.0.11",
            "[::1]:9470",
            "[fe80::1%eth0]:9470",
            "[fd00::1]",
            "localhost:9470",
            "LocalHost.",
            "lb-a.example.com:9470",
            "LB-A.example.com.",
        ] {
            assert_eq!(check("/", &[own.as_bytes()]), Ok(()), "{own}");
        }
        let others = [
            "attacker.example",
            "127.0.0.1.attacker.example:9470",
            "localhost.attacker.example",
            "lb-a",
            "",
            "[x]",
            "[",
        ];
        for other in others {
            assert!(matches!(check("/", &[other.as_bytes()]), Err(HostRefused::OtherHost(_))), "{other}");
        }
    }

    #[test]
    fn a_request_with_two_hosts_is_refused_and_its_target_counts_before_its_header() {
        assert_eq!(check("/", &[]), Ok(()));
        assert_eq!(check("/", &[b"127.0.0.1", b"attacker.example"]), Err(HostRefused::Unclear));
        assert_eq!(check("/", &[b"\xff"]), Err(HostRefused::Unclear));
        // RFC 9112 section 3.2.2.
        assert!(check("http://attacker.example/", &[b"127.0.0.1"]).is_err());
        assert_eq!(check("http://127.0.0.1:9470/", &[b"attacker.example"]), Ok(()));
    }
}
