//! Checks whether this host lets a VIP serve its purpose: the kernel's settings, the firewall, limits, and keepalived's
//! configuration. It changes nothing; only [`sysctl_file`] writes a file, on request.
//!
//! ```text
//!   place ──▶ kernel        settings of sysctl(8)         ─┐
//!         ──▶ firewall      nftables, iptables, NAT        ├─▶ findings: the value, why it matters, the fix
//!         ──▶ limits        descriptors, ports, rights     │
//!         ──▶ shared_ports  who has the frontends' ports   │
//!         ──▶ keepalived    its file, its process          │
//!         ──▶ built_in_vip  rights, interface, with [vip]  │
//!         ──▶ fleet         link, key, ports, with [peers]─┘
//! ```

mod built_in_vip;
mod firewall;
mod fleet;
mod keepalived;
mod kernel;
mod limits;
pub(crate) mod mover;
mod node_ports;
mod place;
mod shared_ports;
pub(crate) mod sysctl_file;

use std::path::Path;

use crate::config::Config;
use crate::model::finding::Finding;
use keepalived::Keepalived;
pub(crate) use kernel::Setting;
use place::HostPlace;

/// The result of the checks.
#[derive(Debug)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Kernel settings that this host should have, also those that it has.
    pub settings: Vec<Setting>,
}

/// The longest interval between keepalived's adverts in the file at `path`, or in its default file. `None`: there is no such
/// file, or it moves nothing.
pub(crate) fn advert_interval(path: Option<&Path>) -> Option<std::time::Duration> {
    Keepalived::read(path).advert_interval()
}

/// Reads `bytes` as each listing and file that another program writes.
#[cfg(fuzzing)]
pub(crate) fn read_any(bytes: &[u8]) {
    firewall::read_any(bytes);
    keepalived::read_any(bytes);
}

/// Checks this host, in the calling thread's network namespace. `keepalived`: its file, if it is not
/// [`keepalived::KEEPALIVED_DEFAULT`].
pub fn look(config: &Config, keepalived: Option<&Path>) -> Report {
    let keepalived = Keepalived::read(keepalived);
    let place = HostPlace::find(config, &keepalived.addresses());
    let (mut findings, mut settings) = kernel::look(&place);
    findings.extend(firewall::look(config, &place));
    findings.extend(limits::look(config, &place));
    findings.extend(shared_ports::look(config));
    let (of_fleet, needed) = fleet::look(config, &place);
    findings.extend(of_fleet);
    settings.extend(needed);
    findings.extend(built_in_vip::look(config));
    findings.extend(keepalived.judge(config, &place));
    Report { findings, settings }
}
