//! Values of haproxy.cfg: times and addresses.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::model::duration::display;
use crate::translate::ledger::Ledger;
use crate::translate::toml::quoted;

/// Limit for the addresses of one range of ports.
const PORTS_MAX: usize = 64;

/// A time (configuration.txt, section 2.5): milliseconds unless it has a unit.
pub(super) fn time(text: &str) -> Option<Duration> {
    time_in(text, "ms")
}

/// A time that is in `unit` unless it has one of its own.
pub(super) fn time_in(text: &str, unit: &str) -> Option<Duration> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let us = match if text[end..].is_empty() { unit } else { &text[end..] } {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    // In whole milliseconds, as Baton counts.
    Some(Duration::from_millis(number.checked_mul(us)? / 1000))
}

/// `value` within Baton's bounds; the ledger says if it is another one then. `words`: the setting as the file has it.
pub(super) fn bounded<T: Copy + Ord>(value: T, (min, max): (T, T), words: &str, line: usize, ledger: &mut Ledger) -> T {
    let bounded = value.clamp(min, max);
    if bounded != value {
        ledger.missing(line, format!("{words}: Baton's limit is used"));
    }
    bounded
}

/// A duration of Baton's file.
pub(super) fn duration(duration: Duration) -> String {
    quoted(&display(duration))
}

/// The addresses that `bind` listens on, each once: a list with commas, each with a port or a range of ports.
pub(super) fn listening(text: &str, only_v6: bool) -> Result<Vec<SocketAddr>, String> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let any = match part.starts_with("ipv6@") || part.starts_with("tcp6@") {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let part = tcp(part)?;
        let (host, ports) = part.rsplit_once(':').ok_or_else(|| format!("{part} has no port"))?;
        let ip = match host {
            "" | "*" => any,
            _ => bare(host)
                .parse()
                .map_err(|_| format!("Baton listens on addresses, and {host} is none: write its address"))?,
        };
        let ports =
            range(ports).ok_or_else(|| format!("{ports} is no port, and no range of at most {PORTS_MAX} ports"))?;
        for port in ports {
            all.push(SocketAddr::new(ip, port));
            if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !only_v6 {
                // Baton's [::] has no IPv4.
                all.push(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
            }
        }
    }
    // Two parts may have the same.
    let mut seen = HashSet::new();
    all.retain(|address| seen.insert(*address));
    Ok(all)
}

/// The address of a server: its host, an IPv6 address in brackets, and its port if it has one. The host is 0.0.0.0 where the text has
/// `*` or none, which HAProxy takes for the same (configuration.txt, section 5.2, `server`).
pub(super) fn server(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = host_and_port(tcp(text)?)?;
    let is_any = ["", "*"].contains(&&*host);
    Ok((if is_any { Ipv4Addr::UNSPECIFIED.to_string() } else { host }, port))
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    if let Ok(ip) = bare(text).parse::<IpAddr>() {
        // An IPv6 address without brackets ends in a port all the same, unless it is in brackets.
        if ip.is_ipv4() || text.starts_with('[') {
            return Ok((shown(ip), None));
        }
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Ok((text.to_owned(), None)) };
    let host = bare(host).parse().map_or(host.to_owned(), shown);
    match port {
        "" => Ok((host, None)),
        _ => match port.parse() {
            Ok(port) if port > 0 && !text.contains("+") => Ok((host, Some(port))),
            _ => Err(format!("{port} is no port that Baton can connect to")),
        },
    }
}

fn shown(ip: IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Without the prefix of its family.
fn tcp(text: &str) -> Result<&str, String> {
    if text.contains('$') {
        return Err(format!("{text} has a variable, and Baton reads no environment: write its value"));
    }
    if text.starts_with('/') {
        return Err("Baton has no Unix sockets for connections".to_owned());
    }
    match text.split_once('@') {
        None => Ok(text),
        Some(("ipv4" | "ipv6" | "tcp" | "tcp4" | "tcp6", address)) => Ok(address),
        Some((kind, _)) => Err(format!("Baton has no {kind} addresses, only TCP")),
    }
}

fn range(text: &str) -> Option<Vec<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    let fits = first > 0 && first <= last && usize::from(last - first) < PORTS_MAX;
    fits.then(|| (first..=last).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_unless_they_have_a_unit() {
        let ms = |text| time(text).map(|it| it.as_millis());
        assert_eq!(
            [ms("5000"), ms("10s"), ms("4m"), ms("1d"), ms("1500us")],
            [5000, 10_000, 240_000, 86_400_000, 1].map(Some)
        );
        assert_eq!([ms(""), ms("s"), ms("5x"), ms("-1"), ms("99999999999999999999")], [None; 5]);
    }

    #[test]
    fn each_form_of_an_address_is_read() {
        let listen = |text: &str| {
            let all = listening(text, false).unwrap();
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(listen("*:6443"), "0.0.0.0:6443");
        assert_eq!(listen(":6443,[::1]:6443"), "0.0.0.0:6443 [::1]:6443");
        assert_eq!(listen(":::6443"), "[::]:6443 0.0.0.0:6443");
        assert_eq!(listen("ipv6@:6443"), "[::]:6443 0.0.0.0:6443");
        assert_eq!(listen("ipv4@:6443,ipv6@*:6443"), "0.0.0.0:6443 [::]:6443");
        assert_eq!(listen("ipv4@10.0.0.1:80-82"), "10.0.0.1:80 10.0.0.1:81 10.0.0.1:82");
        for bad in ["10.0.0.1", "/run/x.sock", "unix@x", "*:${PORT}", "lb:6443", "*:0", "*:1-65535", "*:x"] {
            assert!(listening(bad, false).is_err(), "{bad}");
        }
        let server = |text: &str| server(text).ok();
        assert_eq!(server("10.0.0.11:6443"), Some(("10.0.0.11".to_owned(), Some(6443))));
        assert_eq!(server("fd00::11:6443"), Some(("[fd00::11]".to_owned(), Some(6443))));
        assert_eq!(server("[fd00::11]:6443"), Some(("[fd00::11]".to_owned(), Some(6443))));
        assert_eq!(server("cp1.example.com"), Some(("cp1.example.com".to_owned(), None)));
        assert_eq!(
            [server("cp1:+10"), server("unix@/x"), server("${CP1}:6443"), server("cp1:0")],
            [None, None, None, None]
        );
    }
}
