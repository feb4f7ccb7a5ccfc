//! Checks the kernel's settings, with the names of sysctl(8).

use std::io;
use std::path::Path;

use super::place::HostPlace;
use crate::model::finding::Finding;
use crate::model::humane::duration_ms;
use crate::sys::netlink::conntrack::{self, TableLoad};

/// One line of a sysctl.d(5) file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The path below /proc/sys.
    pub path: String,
    pub value: String,
    pub why: &'static str,
}

/// Findings, and every setting that this host should have.
pub(super) fn look(place: &HostPlace) -> (Vec<Finding>, Vec<Setting>) {
    let mut looked = Looked { findings: Vec::new(), settings: Vec::new(), place };
    if !place.vips.is_empty() {
        looked.arp();
        looked.forwarding();
        looked.reverse_path();
        looked.conntrack();
    }
    looked.table();
    looked.retries();
    looked.queue();
    (looked.findings, looked.settings)
}

struct Looked<'p> {
    findings: Vec<Finding>,
    settings: Vec<Setting>,
    place: &'p HostPlace,
}

impl Looked<'_> {
    /// Which host answers ARP for a VIP that several hosts keep on their loopback interface.
    fn arp(&mut self) {
        let kept = self.place.kept.iter().any(|vip| vip.is_ipv4());
        let moves = self.place.has_peers && self.place.vips.iter().any(|vip| vip.is_ipv4());
        if !kept && !moves {
            let read = "no VIP is on lo: this host answers ARP only for the VIPs that it has";
            self.findings.push(Finding::good("ARP", read));
            return;
        }
        self.at_least("arp_ignore", 1, if kept { ARP_IGNORE } else { ARP_IGNORE_LATER });
        self.at_least("arp_announce", 2, if kept { ARP_ANNOUNCE } else { ARP_ANNOUNCE_LATER });
    }

    /// A setting of which the kernel uses the larger value of `all` and the interface's own.
    fn at_least(&mut self, key: &str, wanted: i64, why: &'static str) {
        let all = per_interface("all", key);
        let value = read(&all).unwrap_or(0);
        let values = self.of_interfaces(key);
        let short = value < wanted && (values.is_empty() || values.iter().any(|(_, value)| *value < wanted));
        let read = spelled_out(value, &values);
        self.settings.push(Setting { path: all.clone(), value: value.max(wanted).to_string(), why });
        self.findings.push(match short {
            false => Finding::good(key, read),
            true => Finding::fault(key, read, why, command(&all, wanted)),
        });
    }

    /// Packets of offloaded flows and of other instances' flows never need the kernel's own forwarding. Where it is on,
    /// it must not send clients redirects.
    fn forwarding(&mut self) {
        if self.place.vips.iter().all(|vip| vip.is_ipv6()) {
            return;
        }
        let forwards = read(FORWARD).unwrap_or(0) != 0;
        self.findings.push(match forwards {
            true => Finding::good("ip_forward", "1"),
            false => Finding::good("ip_forward", "0: neither offloaded nor forwarded flows need it"),
        });
        if !forwards {
            return;
        }
        let key = "send_redirects";
        let all = per_interface("all", key);
        let value = read(&all).unwrap_or(0);
        let values = self.of_interfaces(key);
        let mut paths = vec![all];
        paths.extend(values.iter().map(|(name, _)| per_interface(name, key)));
        self.settings.extend(paths.iter().map(|path| Setting {
            path: path.clone(),
            value: "0".to_owned(),
            why: REDIRECTS,
        }));
        let read = spelled_out(value, &values);
        // It is off only if both are.
        let wrong = value != 0 || values.iter().any(|(_, value)| *value != 0);
        self.findings.push(match wrong {
            false => Finding::good(key, read),
            true => Finding::advice(key, read, REDIRECTS, commands(paths.iter().map(|path| (path.as_str(), 0)))),
        });
    }

    /// The strict check drops packets that arrive on another interface than their answer would leave by.
    fn reverse_path(&mut self) {
        if self.place.vips.iter().all(|vip| vip.is_ipv6()) {
            return;
        }
        let key = "rp_filter";
        let all = read(&per_interface("all", key)).unwrap_or(0);
        let values = self.of_interfaces(key);
        let strict = all.max(values.iter().map(|(_, value)| *value).max().unwrap_or(0)) == 1;
        let read = spelled_out(all, &values);
        // With one interface the answer can leave by no other.
        let (kept, peers) = (!self.place.kept.is_empty(), self.place.has_peers);
        let matters = (kept || peers) && self.place.interfaces.len() > 1;
        let why = if kept { RP_FILTER } else { RP_FILTER_PEERS };
        let path = per_interface("all", key);
        if matters {
            self.settings.push(Setting { path: path.clone(), value: if strict { 2 } else { all }.to_string(), why });
        }
        self.findings.push(match strict && matters {
            false => Finding::good(key, read),
            true => Finding::advice(key, read, why, command(&path, 2)),
        });
    }

    /// Only if connections are tracked.
    fn conntrack(&mut self) {
        let Some(loose) = read(LOOSE) else {
            self.findings.push(Finding::good("conntrack", "not loaded: this host tracks no connection"));
            return;
        };
        self.settings.push(Setting { path: LOOSE.to_owned(), value: loose.max(1).to_string(), why: LOOSE_WHY });
        self.findings.push(match loose {
            0 => Finding::advice("nf_conntrack_tcp_loose", "0", LOOSE_WHY, command(LOOSE, 1)),
            value => Finding::good("nf_conntrack_tcp_loose", value),
        });
        let liberal = read(LIBERAL).unwrap_or(0);
        self.settings.push(Setting { path: LIBERAL.to_owned(), value: liberal.max(1).to_string(), why: LIBERAL_WHY });
        self.findings.push(match liberal {
            0 => Finding::advice("nf_conntrack_tcp_be_liberal", "0", LIBERAL_WHY, command(LIBERAL, 1)),
            value => Finding::good("nf_conntrack_tcp_be_liberal", value),
        });
    }

    /// A full table drops all new connections.
    fn table(&mut self) {
        let Ok(Some(TableLoad { entries, entries_max })) = conntrack::load() else { return };
        let read = format!("{entries} of {entries_max} entries");
        self.findings.push(match entries * 5 < entries_max * 4 {
            true => Finding::good("conntrack table", read),
            false => Finding::fault("conntrack table", read, TABLE_WHY, command(TABLE, (entries_max * 4) as i64)),
        });
    }

    /// For clients on this host: Baton's own connections mostly end earlier.
    fn retries(&mut self) {
        let Some(retries) = read(RETRIES) else { return };
        let local = self.has_other_ends();
        let wait = duration_ms(1000 * retransmission_s(retries));
        let shown = format!("{retries}: a client of this host waits up to {wait} on a silent connection");
        if local {
            let value = retries.min(RETRIES_WANTED);
            self.settings.push(Setting { path: RETRIES.to_owned(), value: value.to_string(), why: RETRIES_WHY });
        }
        self.findings.push(match local && retries > RETRIES_WANTED {
            true => Finding::advice("tcp_retries2", shown, RETRIES_WHY, command(RETRIES, RETRIES_WANTED)),
            false if local => Finding::good("tcp_retries2", shown),
            false => {
                let own = format!(
                    "{retries}: Baton's own connections end after user_timeout, or after {wait} if that is shorter"
                );
                Finding::good("tcp_retries2", own)
            }
        });
    }

    /// For ends of flows on this host: a card's queues are longer. Only the host itself has this setting, no network namespace.
    fn queue(&mut self) {
        let Some(packets) = read(BACKLOG).filter(|_| self.has_other_ends()) else { return };
        let value = packets.max(BACKLOG_WANTED);
        self.settings.push(Setting { path: BACKLOG.to_owned(), value: value.to_string(), why: BACKLOG_WHY });
        self.findings.push(match packets < BACKLOG_WANTED {
            true => Finding::advice("netdev_max_backlog", packets, BACKLOG_WHY, command(BACKLOG, BACKLOG_WANTED)),
            false => Finding::good("netdev_max_backlog", packets),
        });
    }

    /// Whether this host has clients or backends of its own.
    fn has_other_ends(&self) -> bool {
        self.place.has_backend || Path::new(KUBELET).exists()
    }

    fn of_interfaces(&self, key: &str) -> Vec<(String, i64)> {
        let names = self.place.interfaces.iter();
        names.filter_map(|name| Some((name.clone(), read(&per_interface(name, key))?))).collect()
    }
}

/// The value at `path` below /proc/sys; `None` if there is no such setting.
pub(super) fn read(path: &str) -> Option<i64> {
    let text: io::Result<_> = std::fs::read_to_string(Path::new(PROC_SYS).join(path));
    text.ok()?.trim().parse().ok()
}

/// In the form of sysctl(8): with dots, unless an interface's name has one.
pub(super) fn spelled(path: &str) -> String {
    if path.contains('.') { path.to_owned() } else { path.replace('/', ".") }
}

/// The command that sets `path` until the next boot.
pub(super) fn command(path: &str, value: i64) -> String {
    commands([(path, value)])
}

fn commands<'p>(settings: impl IntoIterator<Item = (&'p str, i64)>) -> String {
    let settings: Vec<_> = settings.into_iter().map(|(path, value)| format!("{}={value}", spelled(path))).collect();
    format!("sysctl -w {}", settings.join(" "))
}

fn per_interface(interface: &str, key: &str) -> String {
    format!("net/ipv4/conf/{interface}/{key}")
}

fn spelled_out(all: i64, interfaces: &[(String, i64)]) -> String {
    let each: String = interfaces.iter().map(|(name, value)| format!(", {name} {value}")).collect();
    format!("all {all}{each}")
}

/// The time from the first transmission until the kernel gives a connection up: the timeout doubles from TCP_RTO_MIN up
/// to TCP_RTO_MAX (net/ipv4/tcp_timer.c, tcp_model_timeout).
fn retransmission_s(retries: i64) -> u64 {
    let timeouts = (0..=retries.clamp(0, 255)).map(|number| (200u64 << number.min(16)).min(120_000));
    timeouts.sum::<u64>() / 1000
}

const PROC_SYS: &str = "/proc/sys";
const FORWARD: &str = "net/ipv4/ip_forward";
const TABLE: &str = "net/netfilter/nf_conntrack_max";
const TABLE_WHY: &str =
    "when the table is full, this host drops the first packet of every new connection, and the client waits";
const LOOSE: &str = "net/netfilter/nf_conntrack_tcp_loose";
const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
const RETRIES: &str = "net/ipv4/tcp_retries2";
const RETRIES_WANTED: i64 = 8;
const BACKLOG: &str = "net/core/netdev_max_backlog";
const BACKLOG_WANTED: i64 = 10_000;
/// The path of the kubelet's credentials on a kubeadm host.
const KUBELET: &str = "/etc/kubernetes/kubelet.conf";

const ARP_IGNORE: &str = "the VIP is on lo of this host also while another host has it, and with 0 this host answers \
                          ARP requests for it on every interface: clients reach one of two hosts at random";
const ARP_ANNOUNCE: &str = "with less than 2 this host sends ARP requests from the VIP, and neighbours then send the \
                            VIP's packets here instead of to the host that has the VIP";
const ARP_IGNORE_LATER: &str = "Baton keeps a VIP that leaves on lo while flows need it, and this host must not \
                                answer ARP requests for it; Baton sets this itself if it may write below /proc/sys \
                                (deploy/baton.service does not allow it), and otherwise those flows lose their address";
const ARP_ANNOUNCE_LATER: &str = "Baton keeps a VIP that leaves on lo while flows need it; with less than 2 this host \
                                  sends ARP requests from the VIP, and neighbours then send the VIP's packets here";
const REDIRECTS: &str = "this host forwards packets, and sends clients ICMP redirects when a VIP's packets still come to it: \
                         the clients then bypass the load balancer";
const RP_FILTER: &str = "clients' packets to a VIP on lo may arrive by another interface than the one by which the \
                         reply leaves, and the strict check drops them without an answer";
const RP_FILTER_PEERS: &str = "packets that a peer forwards arrive by the link to the peer, with a client's address: if the route to \
                               the client uses another interface, the strict check drops them without an answer";
const LOOSE_WHY: &str = "the firewall considers connections invalid that began before this host had the VIP: a rule that drops \
                         invalid packets leaves their clients waiting";
const LIBERAL_WHY: &str = "conntrack does not see the packets of offloaded flows, so it considers the next packet that it sees of such a \
                           flow out of window and invalid";
const RETRIES_WHY: &str = "a control-plane component or kubelet on this host without its own timeout waits that long for a silent \
                           apiserver";
const BACKLOG_WHY: &str = "thousands of flows between ends on this host that began in the same second and rest ask in the same moment whether \
                           their ends live; what does not fit into this queue is lost, and a flow ends after four questions";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_fifteen_retries_is_a_quarter_of_an_hour() {
        assert_eq!([15, 8].map(retransmission_s), [924, 102]);
    }

    #[test]
    fn an_interface_with_a_dot_in_its_name_keeps_it() {
        assert_eq!(spelled("net/ipv4/ip_forward"), "net.ipv4.ip_forward");
        let vlan = per_interface("eth0.7", "arp_ignore");
        assert_eq!(command(&vlan, 1), "sysctl -w net/ipv4/conf/eth0.7/arp_ignore=1");
    }
}
