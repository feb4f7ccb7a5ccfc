//! Checks whether this host can carry offloaded flows: the value that was read, why it matters, and the command that
//! fixes it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::program;
use crate::model::finding::Finding;
use crate::sys::bpf::{self, Barrier};
use crate::sys::netdev::{self, HARDWARE_ETHERNET, HARDWARE_LOOPBACK};
use crate::sys::netlink::filter::{self, Filter};
use crate::sys::netlink::xfrm::Policies;
use crate::sys::process::holds_capability;
use crate::sys::{bpffs, netlink};
use aya::programs::{SchedClassifier, TcAttachType};

/// Runs all checks. `addresses`: the frontends' addresses. `backends`: the backends' addresses. `interfaces`: as
/// configured; empty: those that hold the addresses and lead to the backends.
pub fn look(
    directory: &Path,
    addresses: &[SocketAddr],
    backends: &[SocketAddr],
    interfaces: &[String],
) -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        loads(),
        btf(),
        capabilities(),
        barrier(),
        lockdown(),
        jit(),
        file_system(directory),
        pinned(directory),
    ];
    findings.extend(ipsec());
    let interfaces = if interfaces.is_empty() { by_addresses(addresses, backends) } else { interfaces.to_vec() };
    if interfaces.is_empty() {
        findings.push(Finding::advice(
            "interfaces",
            "none holds a frontend's address or leads to a backend",
            "a VIP may come later; flows that arrive by an interface without the BPF program stay proxied",
            "run this again on the host that has the VIP",
        ));
    }
    let mut mtus = BTreeMap::new();
    for name in &interfaces {
        look_at_interface(name, &mut findings, &mut mtus);
    }
    findings.extend(mtu(&mtus));
    findings
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    kernel_of(&release, bpf::knows_tcx(LOOPBACK))
}

/// Judges the kernel by its abilities: distributions backport features to older version numbers.
fn kernel_of(release: &str, knows_tcx: io::Result<bool>) -> Finding {
    match knows_tcx {
        Ok(true) => Finding::good("kernel", format!("Linux {release}, which has TCX links")),
        Ok(false) => Finding::good(
            "kernel",
            format!("Linux {release}, which has no TCX links: the BPF program is attached by filters of clsact"),
        ),
        Err(error) => Finding::advice(
            "kernel",
            format!("Linux {release}; cannot find out whether it has TCX links: {error}"),
            "Baton attaches the BPF program with TCX links (Linux 6.6), and by filters of clsact where the kernel has none",
            "run this as root",
        ),
    }
}

/// Has the kernel check the programs, and unloads them: only this shows what a kernel lacks, because distributions backport features.
fn loads() -> Finding {
    let topic = "BPF program";
    match program::try_out() {
        Ok(()) => Finding::good(topic, "the kernel accepts it"),
        Err(error) => Finding::hindrance(
            topic,
            error,
            "the kernel refuses the BPF program, without which every flow stays proxied",
            "give Baton the capabilities below; if it has them, boot a kernel of 6.1 or later",
        ),
    }
}

fn barrier() -> Finding {
    let topic = "waiting for packets";
    match Barrier::open() {
        Ok(Barrier::Membarrier) => Finding::good(topic, "by membarrier"),
        Ok(Barrier::Update { .. }) => {
            Finding::good(topic, "by a map of maps: the kernel refuses membarrier, as on a host with nohz_full")
        }
        Err(error) => Finding::hindrance(
            topic,
            error,
            "Baton may close a flow's sockets only once no packet is on its way into them, and this kernel offers no way to wait for that",
            "boot without nohz_full, or give Baton CAP_BPF",
        ),
    }
}

fn btf() -> Finding {
    let path = "/sys/kernel/btf/vmlinux";
    match Path::new(path).exists() {
        true => Finding::good("type information", path),
        false => Finding::hindrance(
            "type information",
            format!("{path} is not there"),
            "the place of a socket's sequence numbers differs from kernel to kernel, and only this file tells it",
            "boot a kernel that was built with CONFIG_DEBUG_INFO_BTF=y, as those of distributions are",
        ),
    }
}

fn capabilities() -> Finding {
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(_, number, or)| !holds_capability(*number) && !or.is_some_and(holds_capability))
        .map(|(name, ..)| *name)
        .collect();
    match missing.is_empty() {
        true => Finding::good("capabilities", "Baton has all that offload needs"),
        false => Finding::hindrance(
            "capabilities",
            format!("{} is missing", missing.join(", ")),
            "Baton needs them to load and attach the BPF program and to close sockets without FIN or RST",
            "run Baton as root, or with the AmbientCapabilities of deploy/baton.service in its unit",
        ),
    }
}

fn lockdown() -> Finding {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    match text.contains("[confidentiality]") {
        false => Finding::good("lockdown", if text.is_empty() { "none" } else { text.trim() }),
        true => Finding::hindrance(
            "lockdown",
            text.trim(),
            "in this mode the kernel lets no BPF program read sequence numbers of sockets",
            "boot with lockdown=integrity",
        ),
    }
}

fn jit() -> Finding {
    let path = "/proc/sys/net/core/bpf_jit_enable";
    match std::fs::read_to_string(path).unwrap_or_default().trim() {
        "0" => Finding::advice(
            "compiler",
            format!("{path} is 0"),
            "the kernel interprets the BPF program for each packet, which costs several times as much CPU",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        _ => Finding::good("compiler", "the kernel compiles BPF programs"),
    }
}

fn file_system(directory: &Path) -> Finding {
    match bpffs::holds(directory) {
        Ok(true) => Finding::good("file system", format!("{} is on a BPF file system", directory.display())),
        Ok(false) if directory.starts_with(bpffs::MOUNT_POINT) => Finding::advice(
            "file system",
            format!("no BPF file system at {}", bpffs::MOUNT_POINT),
            "flows outlive the process only on a BPF file system; Baton mounts one when it starts, if it has the right",
            "mount -t bpf bpf /sys/fs/bpf",
        ),
        Ok(false) | Err(_) => Finding::hindrance(
            "file system",
            format!("{} is not on a BPF file system", directory.display()),
            "flows outlive the process only on a BPF file system",
            format!("mount -t bpf bpf {}", directory.display()),
        ),
    }
}

fn pinned(directory: &Path) -> Finding {
    let fix = "baton offload remove";
    match program::status(directory) {
        Ok(None) => Finding::good("pinned", "nothing yet"),
        Ok(Some(status)) if status.recoverable => Finding::good(
            "pinned",
            format!("a program that this version recovers, {} entries", status.entries.unwrap_or(0)),
        ),
        Ok(Some(status)) => Finding::hindrance(
            "pinned",
            format!("a program of another version (layout {})", status.layout),
            "Baton cannot read its flows, and would reset them if it replaced the program",
            fix,
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::advice("pinned", error, "only root may read it", "run this as root")
        }
        Err(error) => Finding::hindrance("pinned", error, "Baton cannot read the pinned program and its flows", fix),
    }
}

fn ipsec() -> Option<Finding> {
    let policies = Policies::open().ok().filter(|policies| !policies.is_empty())?;
    Some(Finding::advice(
        "IPsec",
        format!("{} policies", policies.len()),
        "offloaded packets bypass IPsec, so flows that a policy covers stay proxied",
        "ip xfrm policy, then decide whether it has to cover clients or backends",
    ))
}

/// Interfaces that hold one of `addresses`, or an address from which a packet to one of `backends` leaves.
fn by_addresses(addresses: &[SocketAddr], backends: &[SocketAddr]) -> Vec<String> {
    let sources = backends.iter().filter_map(|backend| netdev::source_towards(backend.ip()));
    let wanted: Vec<_> = addresses.iter().map(SocketAddr::ip).chain(sources).collect();
    let all = netdev::addresses().unwrap_or_default();
    let mut names: Vec<_> = all.into_iter().filter(|(_, ip)| wanted.contains(ip)).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    names
}

fn look_at_interface(name: &str, findings: &mut Vec<Finding>, mtus: &mut BTreeMap<String, u32>) {
    let interface = match netdev::interface(name) {
        Ok(interface) => interface,
        Err(error) => {
            findings.push(Finding::hindrance(
                name,
                error,
                "Baton cannot attach the BPF program to it",
                "name an interface of this host in [offload] interfaces",
            ));
            return;
        }
    };
    if ![HARDWARE_ETHERNET, HARDWARE_LOOPBACK].contains(&interface.hardware) {
        findings.push(Finding::hindrance(
            name,
            format!("hardware type {}", interface.hardware),
            "its packets have no Ethernet header, which the program reads",
            "leave it out of [offload] interfaces; flows by it stay proxied",
        ));
    }
    if interface.hardware == HARDWARE_ETHERNET {
        mtus.insert(name.to_owned(), interface.mtu);
    }
    if netlink::merging().is_ok_and(|merging| merging.contains(&interface.index)) {
        findings.push(Finding::hindrance(
            name,
            "large receive offload is on, here or at a card below",
            "not every network card can send merged packets: Baton does not offload flows that arrive by this \
             interface",
            format!("ethtool -K {name} lro off (for a bond, VLAN or bridge: of the cards below it)"),
        ));
    }
    let others = others(name, interface.index);
    findings.push(match others.is_empty() {
        true => Finding::good(name, format!("MTU {}, no other program looks at its packets", interface.mtu)),
        false => Finding::advice(
            name,
            others.join("; "),
            "XDP programs see a packet before Baton's program and may take it; Baton's program runs before all other classifiers, \
             so these (Cilium, Calico) see no packet of an offloaded flow, neither for policy nor for counting",
            format!("bpftool net show dev {name}, then decide whether these flows may bypass its policy"),
        ),
    });
}

/// Other programs at the ingress of an interface.
fn others(name: &str, index: u32) -> Vec<String> {
    let mut others = Vec::new();
    if let Ok(Some(id)) = netlink::xdp_program(index) {
        others.push(format!("XDP program {id}"));
    }
    if let Ok((_, programs)) = SchedClassifier::query_tcx(name, TcAttachType::Ingress) {
        let names = programs.iter().map(|program| (program.id(), program.name_as_str().unwrap_or("?").to_owned()));
        others
            .extend(names.filter(|(_, name)| name != "offload").map(|(id, name)| format!("TCX program {id} ({name})")));
    }
    let filters = filter::ingress_filters(index).unwrap_or_default();
    others.extend(filters.iter().filter(|filter| filter.name != "baton").map(other_filter));
    others.dedup();
    others
}

fn other_filter(filter: &Filter) -> String {
    let Filter { kind, preference, name, .. } = filter;
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    format!("tc filter ({kind}){name} at preference {preference}")
}

fn mtu(mtus: &BTreeMap<String, u32>) -> Option<Finding> {
    let (narrow, wide) = (mtus.iter().min_by_key(|(_, mtu)| **mtu)?, mtus.iter().max_by_key(|(_, mtu)| **mtu)?);
    (narrow.1 != wide.1).then(|| {
        Finding::advice(
            "MTU",
            format!("{} has {}, {} has {}", narrow.0, narrow.1, wide.0, wide.1),
            "the kernel does not fragment packets of an offloaded flow: flows with segments that would not fit stay proxied",
            format!("ip link set {} mtu {}", wide.0, narrow.1),
        )
    })
}

/// Name, number, and the number of a capability that includes it (include/uapi/linux/capability.h).
const CAPABILITIES: [(&str, u32, Option<u32>); 4] =
    [("CAP_BPF", 39, Some(21)), ("CAP_PERFMON", 38, Some(21)), ("CAP_NET_ADMIN", 12, None), ("CAP_NET_RAW", 13, None)];

/// The loopback interface; the first in every network namespace.
const LOOPBACK: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::Verdict;

    #[test]
    fn neither_an_old_number_nor_the_lack_of_tcx_is_a_hindrance() {
        let verdict = |release, tcx| kernel_of(release, tcx).verdict;
        assert_eq!(verdict("5.14.0-570.el9.x86_64", Ok(true)), Verdict::Good);
        assert_eq!(verdict("6.1.0-56-amd64", Ok(false)), Verdict::Good);
        assert_eq!(verdict("5.14.0", Err(io::ErrorKind::PermissionDenied.into())), Verdict::Advice);
    }
}
