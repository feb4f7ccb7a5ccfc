//! Checks the host's limits for Baton: descriptors, ports, and the right to listen.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::kernel::{command, read};
use super::place::HostPlace;
use crate::config::Config;
use crate::model::finding::Finding;
use crate::sys::process::{self, FILES_MIN, FILES_PER_FLOW, RESERVED_FILES};
use crate::sys::syscall_filter;

pub(super) fn look(config: &Config, place: &HostPlace) -> Vec<Finding> {
    let mut findings = vec![files(config)];
    findings.extend(ports(config));
    findings.extend(reserved(place));
    findings.extend(low_ports(config));
    findings.extend(system_calls());
    findings
}

/// `None`: `baton run` can filter its system calls.
fn system_calls() -> Option<Finding> {
    syscall_filter::supported().err().map(|error| {
        Finding::advice(
            "system calls",
            format!("seccomp(2): {error}"),
            "Baton runs without its filter of system calls: who takes it over can use more of the kernel",
            "a kernel with CONFIG_SECCOMP_FILTER, and a container whose profile allows seccomp(2)",
        )
    })
}

/// The limit of this command: a service has its unit's LimitNOFILE, which `systemctl show` prints.
fn files(config: &Config) -> Finding {
    let limit = process::file_limit_max();
    let shown = format!("{limit} here; a service has its unit's LimitNOFILE");
    if limit < FILES_MIN {
        let why = format!("Baton does not start with fewer than {FILES_MIN}");
        return Finding::fault(
            "descriptors",
            shown,
            why,
            format!("ulimit -Hn {FILES_MIN}, or LimitNOFILE= in the unit"),
        );
    }
    let Some(flows) = config.process.max_connections else {
        let flows = limit.saturating_sub(RESERVED_FILES) / FILES_PER_FLOW;
        return Finding::good("descriptors", format!("{shown}; enough for {flows} proxied flows"));
    };
    let needed = u64::from(flows) * FILES_PER_FLOW + RESERVED_FILES;
    match limit >= needed {
        true => Finding::good("descriptors", shown),
        false => Finding::advice(
            "descriptors",
            shown,
            format!("max_connections = {flows} needs {needed}: Baton pauses accepting before it has that many flows"),
            format!("ulimit -Hn {needed}, or LimitNOFILE={needed} in the unit"),
        ),
    }
}

/// Each flow uses a port towards its backend, and in the worst case all go to one.
fn ports(config: &Config) -> Option<Finding> {
    let range = local_ports()?;
    let number = range.clone().count();
    let shown = format!("{}-{}: {number}", range.start(), range.end());
    let flows = config.process.max_connections.map_or(0, |flows| flows as usize);
    Some(match number >= flows {
        true => Finding::good("local ports", shown),
        false => Finding::advice(
            "local ports",
            shown,
            format!("max_connections = {flows} flows may all go to one backend, and each takes a port towards it"),
            format!("sysctl -w net.ipv4.ip_local_port_range=\"{WIDE}\""),
        ),
    })
}

/// A listening port within the kernel's range for outgoing connections may be in use when Baton wants to listen.
fn reserved(place: &HostPlace) -> Option<Finding> {
    let range = local_ports()?;
    let reserved = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let reserved = ranges(reserved.trim());
    let ports: BTreeSet<_> = place.services.iter().map(|service| service.port()).collect();
    let is_free = |port: &u16| reserved.iter().any(|range| range.contains(port));
    let loose: Vec<_> = ports.into_iter().filter(|port| range.contains(port) && !is_free(port)).collect();
    let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    (!loose.is_empty()).then(|| {
        let already: String = reserved.iter().map(|range| format!("{}-{},", range.start(), range.end())).collect();
        Finding::advice(
            "reserved ports",
            format!("the kernel may give {} to any outgoing connection", list(&loose)),
            "Baton cannot listen on a port while an outgoing connection has it",
            format!("sysctl -w net.ipv4.ip_local_reserved_ports={already}{}", list(&loose)),
        )
    })
}

fn low_ports(config: &Config) -> Option<Finding> {
    let first_free = read("net/ipv4/ip_unprivileged_port_start")?;
    let ports = config.frontends.iter().flat_map(|frontend| &frontend.listen).map(|vip| vip.socket_addr().port());
    let lowest = ports.min()?;
    let may = process::holds_capability(CAP_NET_BIND_SERVICE);
    (i64::from(lowest) < first_free && !may).then(|| {
        Finding::fault(
            "low ports",
            format!("port {lowest} is below {first_free}, and CAP_NET_BIND_SERVICE is missing"),
            "Baton cannot listen on this port",
            command("net/ipv4/ip_unprivileged_port_start", lowest.into())
                + ", or AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit",
        )
    })
}

pub(super) fn local_ports() -> Option<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_whitespace().map(|end| end.parse::<u16>());
    Some(ends.next()?.ok()?..=ends.next()?.ok()?)
}

/// `8080,9148-9150` (Documentation/networking/ip-sysctl.rst).
pub(super) fn ranges(text: &str) -> Vec<RangeInclusive<u16>> {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    parts.collect()
}

/// include/uapi/linux/capability.h
const CAP_NET_BIND_SERVICE: u32 = 10;
/// All but the ports of well-known services.
const WIDE: &str = "10240 65535";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_read_as_the_kernel_writes_them() {
        assert_eq!(ranges("8080,9148-9150"), [8080..=8080, 9148..=9150]);
        assert_eq!(ranges(""), []);
    }
}
