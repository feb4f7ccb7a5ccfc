//! The faults of a keepalived file for a VIP that Baton serves.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::syntax::{File, Node};
use super::{Keepalived, Script, TOPIC, VrrpInstance, scripts};
use crate::config::Config;
use crate::model::finding::Finding;
use crate::preflight::place::HostPlace;
use crate::sys::process;

/// With adverts this far apart or more, clients have no VIP for seconds after a failure.
const ADVERT_SLOW: Duration = Duration::from_secs(1);

pub(super) fn all(keepalived: &Keepalived, file: &File, config: &Config, place: &HostPlace) -> Vec<Finding> {
    let instances = keepalived.instances();
    let scripts = scripts(file);
    let mut judged = Judged { path: keepalived.path.display().to_string(), findings: Vec::new() };
    for missing in &file.unread {
        let why = "Baton cannot check the included files";
        judged.advice(format!("include {missing}"), why, "name a file that includes none by a pattern");
    }
    if instances.is_empty() {
        judged.advice("no vrrp_instance", "it moves no VIP", "begin with deploy/keepalived/keepalived.conf");
    }
    let global = file.nodes.iter().filter(|node| node.keyword() == "global_defs").cloned();
    let global = global.fold(Node::default(), |mut all, node| {
        all.block.extend(node.block);
        all
    });
    for instance in &instances {
        judged.preemption(*instance);
        judged.adverts(*instance, &global, config);
        judged.peers(*instance, place);
        judged.healing(*instance, &global);
        judged.script(*instance, &scripts, config);
        judged.interface(*instance, place);
    }
    judged.twice(&instances);
    judged.addresses(&instances, config, place);
    judged.process(&instances, place);
    judged.findings.extend((!instances.is_empty() && judged.findings.is_empty()).then(|| {
        let names: Vec<_> = instances.iter().map(|instance| instance.name).collect();
        Finding::good(TOPIC, format!("{}: {}", judged.path, names.join(", ")))
    }));
    judged.findings
}

struct Judged {
    path: String,
    findings: Vec<Finding>,
}

impl Judged {
    fn advice(&mut self, read: impl Into<String>, why: &str, fix: impl Into<String>) {
        self.findings.push(Finding::advice(TOPIC, read.into(), why, self.edit(&fix.into())));
    }

    fn fault(&mut self, read: impl Into<String>, why: &str, fix: impl Into<String>) {
        self.findings.push(Finding::fault(TOPIC, read.into(), why, self.edit(&fix.into())));
    }

    fn edit(&self, what: &str) -> String {
        format!("{}: {what}; then systemctl reload keepalived", self.path)
    }

    fn preemption(&mut self, VrrpInstance { node, name }: VrrpInstance) {
        let state = node.value("state").unwrap_or("BACKUP");
        let why = "a host that comes back takes the VIP from a host that works, and every client is moved or reset \
                   once more";
        match (state, node.is_on("nopreempt")) {
            ("BACKUP", true) => {}
            ("BACKUP", false) => self.advice(format!("{name}: no nopreempt"), why, format!("in {name}: nopreempt")),
            (state, _) => self.advice(
                format!("{name}: state {state}, with which nopreempt has no effect"),
                why,
                format!("in {name}, on both hosts: state BACKUP and nopreempt"),
            ),
        }
    }

    fn adverts(&mut self, instance: VrrpInstance, global: &Node, config: &Config) {
        let VrrpInstance { node, name } = instance;
        let interval = instance.advert_interval();
        let seconds = interval.as_secs_f64();
        let version = node.value("version").or(global.value("vrrp_version")).unwrap_or("2");
        if interval >= ADVERT_SLOW {
            self.advice(
                format!("{name}: advert_int {seconds}"),
                "the VIP is away for up to four adverts when its host dies",
                format!("vrrp_version 3 in global_defs, and in {name}: advert_int 0.1"),
            );
        } else if version != "3" {
            self.fault(
                format!("{name}: advert_int {seconds} with VRRP version {version}"),
                "only version 3 supports fractions of a second (RFC 9568)",
                "in global_defs: vrrp_version 3",
            );
        }
        let counted = config.cluster.vrrp_advert_interval;
        if let Some(counted) = counted.filter(|counted| *counted != interval) {
            self.findings.push(Finding::advice(
                TOPIC,
                format!("{name}: advert_int {seconds}, cluster.vrrp_advert_interval is {counted:?}"),
                "the heartbeat budget above is computed with the wrong one",
                format!("[cluster] vrrp_advert_interval = \"{}ms\"", interval.as_millis()),
            ));
        }
    }

    fn peers(&mut self, VrrpInstance { node, name }: VrrpInstance, place: &HostPlace) {
        let Some(peers) = node.find("unicast_peer") else {
            self.advice(
                format!("{name}: no unicast_peer"),
                "adverts go by multicast, which many networks filter: both hosts then take the VIP",
                format!("in {name}: unicast_src_ip with this host's address, and unicast_peer with the others'"),
            );
            return;
        };
        let peers: Vec<IpAddr> = peers.block.iter().filter_map(|line| line.keyword().parse().ok()).collect();
        if peers.is_empty() {
            self.fault(
                format!("{name}: unicast_peer is empty"),
                "the other host receives no adverts, and takes the VIP too",
                "name the other host in unicast_peer",
            );
        }
        for own in peers.iter().filter(|peer| place.holds(**peer)) {
            let why = "keepalived sends its adverts to this host, and the other host takes the VIP too";
            let fix = "name the other host in unicast_peer";
            self.fault(format!("{name}: {own} in unicast_peer is this host's"), why, fix);
        }
        let source = node.value("unicast_src_ip").and_then(|text| text.split('/').next()?.parse::<IpAddr>().ok());
        if let Some(source) = source.filter(|source| !place.holds(*source)) {
            let why = "keepalived cannot send its adverts, and the other host takes the VIP too";
            self.fault(
                format!("{name}: unicast_src_ip {source} is not on this host"),
                why,
                "set it to this host's address",
            );
        }
    }

    /// After a partition both hosts have had the VIP, and switches and clients may have either in their tables.
    fn healing(&mut self, VrrpInstance { node, name }: VrrpInstance, global: &Node) {
        let either = |local: &str, wide: &str| node.find(local).or_else(|| global.find(wide));
        let why = "after a partition, clients that learnt the other host's hardware address keep sending to it, and \
                   get no answer until their ARP entry expires";
        if !node.is_on("higher_prio_send_advert") && !global.is_on("vrrp_higher_prio_send_advert") {
            let fix = "in global_defs: vrrp_higher_prio_send_advert true";
            self.advice(format!("{name}: no vrrp_higher_prio_send_advert"), why, fix);
        }
        let repeat = either("garp_lower_prio_repeat", "vrrp_garp_lower_prio_repeat");
        if repeat.is_none_or(|node| node.argument() == Some("0")) {
            let fix = "in global_defs: vrrp_garp_lower_prio_repeat 5";
            self.advice(format!("{name}: no vrrp_garp_lower_prio_repeat"), why, fix);
        }
        let delay = either("garp_lower_prio_delay", "vrrp_garp_lower_prio_delay");
        let delay = delay.or_else(|| either("garp_master_delay", "vrrp_garp_master_delay"));
        let delay = delay.and_then(Node::argument).and_then(|text| text.parse::<u64>().ok()).unwrap_or(5);
        if delay > 1 {
            let fix = "in global_defs: vrrp_garp_master_delay 1";
            self.advice(
                format!("{name}: garp_master_delay {delay}"),
                "keepalived sends the second round of ARP announcements that many seconds late",
                fix,
            );
        }
    }

    fn script(&mut self, instance: VrrpInstance, scripts: &[Script], config: &Config) {
        let VrrpInstance { name, .. } = instance;
        let Some(script) = instance.asking(scripts) else {
            self.fault(
                format!("{name}: no track_script runs `baton ready`"),
                "the VIP stays on a host on which Baton is dead or hangs, though the other host could serve it",
                format!(
                    "vrrp_script baton {{ script \"/usr/bin/baton ready --within 500ms\" interval 0.5 timeout 1 fall 2 rise 2 }}, \
                     and in {name}: track_script {{ baton }}"
                ),
            );
            return;
        };
        if script.weight != 0 {
            self.advice(
                format!("{name}: {} has weight {}", script.name, script.weight),
                "a lower priority alone does not move the VIP if the other host has nopreempt",
                format!("no weight in vrrp_script {}", script.name),
            );
        }
        let time = script.fails_after();
        if config.cluster.vrrp_advert_interval.is_some() && config.cluster.vrrp_track_time != time {
            self.findings.push(Finding::advice(
                TOPIC,
                format!(
                    "{name}: {} fails after {time:?}, cluster.vrrp_track_time is {:?}",
                    script.name, config.cluster.vrrp_track_time
                ),
                "the heartbeat budget above is computed with the wrong one",
                format!("[cluster] vrrp_track_time = \"{}ms\"", time.as_millis()),
            ));
        }
    }

    fn interface(&mut self, VrrpInstance { node, name }: VrrpInstance, place: &HostPlace) {
        let interface = node.value("interface").unwrap_or_default();
        if !place.networks.iter().any(|(known, _)| known == interface) {
            let why = "keepalived does not start, or waits for the interface while no host has the VIP";
            self.fault(
                format!("{name}: interface {interface:?} has no address here"),
                why,
                "name an interface that `ip address` shows",
            );
        }
    }

    /// Settings that two instances must not share.
    fn twice(&mut self, instances: &[VrrpInstance]) {
        let (mut vips, mut ids) = (HashMap::new(), HashMap::new());
        for instance in instances {
            let name = instance.name;
            for vip in instance.addresses() {
                if let Some(other) = vips.insert(vip, name) {
                    let why = "the two instances take the VIP from each other, and one may remove it while the other serves it";
                    self.fault(format!("{vip} is in {other} and in {name}"), why, "name each VIP in one instance only");
                }
            }
            let id = (instance.node.value("virtual_router_id"), instance.node.value("interface"));
            if let Some(other) = ids.insert(id, name).filter(|_| id.0.is_some()) {
                let shown = id.0.unwrap_or_default();
                let why = "each instance treats the other's adverts as adverts of its own peer";
                self.fault(
                    format!("{other} and {name} both have virtual_router_id {shown}"),
                    why,
                    "give each instance a number of its own",
                );
            }
        }
    }

    /// VIPs without a frontend, and frontends without a VIP.
    fn addresses(&mut self, instances: &[VrrpInstance], config: &Config, place: &HostPlace) {
        let moved: Vec<_> = instances.iter().flat_map(VrrpInstance::addresses).collect();
        let listen = || config.frontends.iter().flat_map(|frontend| &frontend.listen).map(|vip| vip.socket_addr().ip());
        let served =
            |vip: IpAddr| listen().any(|ip| ip == vip || (ip.is_unspecified() && ip.is_ipv6() == vip.is_ipv6()));
        for vip in moved.iter().filter(|vip| !served(**vip)) {
            self.advice(
                format!("{vip} is a VIP, and no frontend listens on it"),
                "connections to this VIP do not reach Baton",
                format!("remove it, or in Baton's file: listen = [\"{vip}:6443\"]"),
            );
        }
        for vip in place.vips.iter().filter(|vip| !moved.contains(vip) && !place.kept.contains(vip)) {
            self.fault(
                format!("{vip} is a frontend's address, but not this host's, nor a VIP of any vrrp_instance"),
                "keepalived never moves it to this host",
                format!("add it to virtual_ipaddress: {vip}/{}", if vip.is_ipv6() { 128 } else { 32 }),
            );
        }
    }

    /// A VIP that is here while keepalived does not run was left behind: another host has it as well.
    fn process(&mut self, instances: &[VrrpInstance], place: &HostPlace) {
        let held: Vec<_> = instances.iter().flat_map(VrrpInstance::addresses).filter(|vip| place.holds(*vip)).collect();
        if let Some(vip) = held.first().filter(|_| !process::runs_any("keepalived")) {
            let device = place.networks.iter().find(|(_, network)| network.addr() == *vip);
            let (name, network) = device.map_or(("eth0", vip.to_string()), |(name, net)| (name, net.to_string()));
            self.findings.push(Finding::fault(
                TOPIC,
                format!("{vip} is on {name}, and keepalived does not run here"),
                "the other host has taken the VIP too: both answer ARP for it, and clients reach one of them at random",
                format!("systemctl start keepalived, or remove the VIP: ip address delete {network} dev {name}"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::syntax::parse;
    use super::*;
    use crate::model::finding::Verdict;
    use crate::model::keepalived::words;

    const SHIPPED: &str = include_str!("../../../deploy/keepalived/keepalived.conf");
    const VIP: &str = "10.0.0.100";

    fn findings(text: &str, listen: &str, on: &[(&str, &str)]) -> Vec<Finding> {
        let nodes = parse(&text.lines().map(words).collect::<Vec<_>>());
        let keepalived =
            Keepalived { path: PathBuf::from("k.conf"), named: true, file: Ok(File { nodes, unread: Vec::new() }) };
        let config = format!(
            "[cluster]\nvrrp_advert_interval = \"100ms\"\n[[frontend]]\nname = \"f\"\nlisten = [\"{listen}\"]\n\
             [[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.31:6443\"\n"
        );
        let config = crate::config::parse(&config, std::path::Path::new("b.toml")).unwrap().config;
        let networks: Vec<_> = on.iter().map(|(name, net)| (name.to_string(), net.parse().unwrap())).collect();
        let place = HostPlace { networks, vips: [VIP.parse().unwrap()].into(), ..HostPlace::default() };
        let Ok(file) = &keepalived.file else { unreachable!() };
        all(&keepalived, file, &config, &place)
    }

    const HOST: &[(&str, &str)] = &[("eth0", "10.0.0.21/24")];

    #[test]
    fn the_shipped_file_is_as_it_should_be() {
        let findings = findings(SHIPPED, "10.0.0.100:6443", HOST);
        assert_eq!(findings.iter().map(|f| f.verdict).collect::<Vec<_>>(), [Verdict::Good], "{findings:#?}");
    }

    /// With `[vip]` for the same address, the advice was to tune keepalived.
    #[test]
    fn a_file_that_has_the_vip_which_baton_moves_is_one_fault() {
        let nodes = parse(&SHIPPED.replace("nopreempt\n", "\n").lines().map(words).collect::<Vec<_>>());
        let keepalived =
            Keepalived { path: PathBuf::from("k.conf"), named: true, file: Ok(File { nodes, unread: Vec::new() }) };
        let judged = |vip: &str| {
            let config = format!(
                "[vip]\naddresses = [\"{vip}/32\"]\ninterface = \"eth0\"\n[[frontend]]\nname = \"f\"\nlisten = [\"{vip}:6443\"]\n\
                 [[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.31:6443\"\n"
            );
            let config = crate::config::parse(&config, std::path::Path::new("b.toml")).unwrap().config;
            let found = keepalived.judge(&config, &HostPlace::default());
            found.into_iter().map(|finding| (finding.verdict, finding.read)).collect::<Vec<_>>()
        };
        assert_eq!(judged(VIP), [(Verdict::Fault, "k.conf has 10.0.0.100, as [vip] has".to_owned())]);
        assert!(judged("10.0.0.99").len() > 1, "another address is keepalived's alone");
    }

    /// The findings if `from` in the shipped file is replaced by `to`.
    fn found(from: &str, to: &str) -> Vec<(Verdict, String)> {
        assert!(SHIPPED.contains(from), "{from}");
        let findings = findings(&SHIPPED.replace(from, to), "10.0.0.100:6443", HOST);
        findings.into_iter().map(|finding| (finding.verdict, finding.read)).collect()
    }

    #[test]
    fn each_fault_of_a_file_is_named() {
        use Verdict::*;
        let instance = "vrrp_instance apiserver {";
        for (from, to, verdict, said) in [
            ("state     BACKUP", "state MASTER", Advice, "state MASTER"),
            ("nopreempt\n", "\n", Advice, "no nopreempt"),
            ("advert_int 0.1", "advert_int 1", Advice, "advert_int 1"),
            ("vrrp_version 3", "", Fault, "with VRRP version 2"),
            ("10.0.0.22 ", "10.0.0.21 ", Fault, "10.0.0.21 in unicast_peer is this host's"),
            ("unicast_src_ip 10.0.0.21", "unicast_src_ip 10.0.0.29", Fault, "10.0.0.29 is not on this host"),
            ("unicast_src_ip 10.0.0.21", "unicast_src_ip 10.0.0.28/24", Fault, "10.0.0.28 is not on this host"),
            ("unicast_peer {", "other {", Advice, "no unicast_peer"),
            ("vrrp_higher_prio_send_advert true", "", Advice, "no vrrp_higher_prio_send_advert"),
            ("vrrp_garp_lower_prio_repeat 5", "", Advice, "no vrrp_garp_lower_prio_repeat"),
            ("vrrp_garp_master_delay 1", "", Advice, "garp_master_delay 5"),
            ("baton ready", "true", Fault, "no track_script runs"),
            ("fall     2", "fall 2\n weight -20", Advice, "has weight -20"),
            ("interval 0.5", "interval 2", Advice, "fails after 6s"),
            ("interface eth0", "interface eth7", Fault, "interface \"eth7\""),
            ("10.0.0.100/32", "10.0.0.100/32\n10.0.0.101/32", Advice, "10.0.0.101 is a VIP, and no frontend"),
            ("10.0.0.100/32", "", Fault, "10.0.0.100 is a frontend's address"),
            (
                instance,
                &format!("{instance}\nvirtual_router_id 51\nvirtual_ipaddress {{\n{VIP}\n}}\n}}\n{instance}"),
                Fault,
                "is in apiserver and in apiserver",
            ),
        ] {
            let found = found(from, to);
            assert!(found.iter().any(|(v, read)| *v == verdict && read.contains(said)), "{to}: {said}: {found:#?}");
        }
    }

    #[test]
    fn a_vip_without_its_keepalived_was_left_behind() {
        if process::runs_any("keepalived") {
            return;
        }
        let findings = findings(SHIPPED, "10.0.0.100:6443", &[("eth0", "10.0.0.21/24"), ("eth0", "10.0.0.100/32")]);
        assert_eq!(findings[0].verdict, Verdict::Fault);
        assert!(findings[0].fix.ends_with("ip address delete 10.0.0.100/32 dev eth0"), "{}", findings[0].fix);
    }
}
