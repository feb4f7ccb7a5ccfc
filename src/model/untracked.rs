//! nftables rules that exempt a service's packets from connection tracking, with the routers' errors about them.

use std::net::SocketAddr;

/// Lines for a chain at `prerouting`, each with `notrack`.
///
/// An ICMP error about an untracked connection is invalid to conntrack (nf_conntrack_inet_error,
/// net/netfilter/nf_conntrack_proto_icmp.c): a firewall that drops invalid packets would drop "fragmentation needed",
/// and the connection would hang if its path's MTU is smaller than the host's. Only errors that quote the service's
/// port are exempted (RFC 792, RFC 4443 section 3: the packet follows 8 bytes of header), because errors about other
/// connections of the same address must be translated with those.
pub fn coming(service: SocketAddr) -> [String; 2] {
    let (ip, port) = (service.ip(), service.port());
    // In bits: the error's own header, the quoted packet's IP header, and the source port in it.
    let (family, errors, quoted) = match service {
        SocketAddr::V4(_) => {
            ("ip", "icmp type { destination-unreachable, time-exceeded, parameter-problem }", (8 + 20) * 8)
        }
        SocketAddr::V6(_) => (
            "ip6",
            "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
            (8 + 40) * 8,
        ),
    };
    [
        format!("{family} daddr {ip} tcp dport {port} notrack"),
        format!("{family} daddr {ip} {errors} @th,{quoted},16 {port} notrack"),
    ]
}

/// A line for a chain at `output`.
pub fn going(service: SocketAddr) -> String {
    let family = if service.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} saddr {} tcp sport {} notrack", service.ip(), service.port())
}
