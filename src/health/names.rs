//! The addresses of a name: by getaddrinfo(3), or by Baton's own code with the feature `resolver`.
//!
//! A static binary cannot load the plug-ins that /etc/nsswitch.conf of its host names: they belong to the host's glibc.

#[cfg(all(target_feature = "crt-static", target_env = "gnu", not(feature = "resolver")))]
compile_error!("a static binary resolves names by its own code: build with --features resolver");

#[cfg(not(feature = "resolver"))]
pub(super) use tokio::net::lookup_host as look_up;

#[cfg(feature = "resolver")]
pub(super) use own::look_up;

#[cfg(feature = "resolver")]
mod own {
    use std::cmp::Reverse;
    use std::io;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::str::FromStr;

    use hickory_resolver::config::{NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;
    use hickory_resolver::proto::op::Query;
    use hickory_resolver::proto::rr::{Name, RecordType};
    use hickory_resolver::{Hosts, TokioResolver};

    /// The addresses of `host` in the order of preference. It reads /etc/hosts and /etc/resolv.conf each time, as both may have
    /// changed.
    pub(in crate::health) async fn look_up(
        (host, port): (&str, u16),
    ) -> io::Result<impl Iterator<Item = SocketAddr> + use<>> {
        let mut found = match Hosts::from_system() {
            Ok(hosts) => in_hosts(&hosts, host),
            Err(_) => Vec::new(),
        };
        if found.is_empty() {
            found = ask(host).await?;
        }
        let mut found: Vec<_> = found.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        found.sort_by_key(|address| Reverse((has_route(*address), precedence(address.ip()))));
        Ok(found.into_iter())
    }

    /// Its addresses in /etc/hosts. The resolver would ask a name server for the family that the file lacks, and wait while none
    /// answers.
    fn in_hosts(hosts: &Hosts, host: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_str(&host.to_lowercase()) else { return Vec::new() };
        let lookups =
            [RecordType::AAAA, RecordType::A].map(|kind| hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        let records = lookups.iter().flatten().flat_map(|lookup| lookup.answers());
        records.filter_map(|record| record.data.ip_addr()).collect()
    }

    async fn ask(host: &str) -> io::Result<Vec<IpAddr>> {
        let builder = TokioResolver::builder_tokio().unwrap_or_else(|_| {
            // resolv.conf(5): without the file, the name server on the local machine.
            let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            let config = ResolverConfig::from_parts(None, Vec::new(), vec![local]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        });
        let found = builder.build().map_err(io::Error::other)?.lookup_ip(host).await.map_err(io::Error::other)?;
        Ok(found.iter().collect())
    }

    /// Rule 1 of RFC 6724. It sends no packet.
    fn has_route(address: SocketAddr) -> bool {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect(address).is_ok())
    }

    /// RFC 6724, section 2.1, without the prefixes of retired protocols.
    fn precedence(address: IpAddr) -> u8 {
        match address {
            IpAddr::V6(address) if address.is_loopback() => 50,
            IpAddr::V6(address) if address.is_unique_local() => 3,
            IpAddr::V6(_) => 40,
            IpAddr::V4(_) => 35,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[tokio::test]
        async fn a_name_of_etc_hosts_and_an_address_need_no_name_server() {
            let local = look_up(("localhost", 6443)).await.unwrap().collect::<Vec<_>>();
            assert!(local.contains(&"127.0.0.1:6443".parse().unwrap()), "{local:?}");
            let literal = look_up(("10.0.0.7", 1)).await.unwrap().collect::<Vec<_>>();
            assert_eq!(literal, ["10.0.0.7:1".parse().unwrap()]);
        }

        /// Regression: with one family in the file and no name server, there was no answer within 5 s.
        #[test]
        fn a_name_of_etc_hosts_has_only_the_addresses_of_the_file() {
            let mut hosts = Hosts::default();
            hosts.read_hosts_conf("10.0.0.1 cp1.test CP1\nfd00::1 both\n10.0.0.2 both".as_bytes()).unwrap();
            let addresses = |host| in_hosts(&hosts, host).iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(addresses("cp1.test"), ["10.0.0.1"]);
            assert_eq!(addresses("cp1"), ["10.0.0.1"]);
            assert_eq!(addresses("both"), ["fd00::1", "10.0.0.2"]);
            assert_eq!(addresses("cp2"), [""; 0]);
        }

        #[test]
        fn a_unique_local_address_comes_after_ipv4_and_a_global_one_before() {
            let order = ["::1", "2001:db8::1", "10.0.0.1", "fd00::1"].map(|it| precedence(it.parse().unwrap()));
            assert!(order.is_sorted_by(|a, b| a > b), "{order:?}");
            assert!(has_route("127.0.0.1:1".parse().unwrap()));
        }
    }
}
