//! The checks of a fleet: each fault is really made, and is gone after the advised command.

use std::net::UdpSocket;

use super::*;

const PORT: u16 = 9471;

/// A host with an instance to be, and a peer that listens.
struct Pair {
    lab: Lab,
    key: PathBuf,
}

impl Pair {
    fn new(test: &str) -> Option<Self> {
        let lab = Lab::new(test)?;
        let key = lab.directory().join("peers.key");
        std::fs::write(&key, "07".repeat(32) + "\n").unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        for (path, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            lab.lb.sysctl(&format!("net/ipv4/conf/all/{path}"), value);
        }
        // Where conntrack is loaded, whether by another test or not.
        lab.lb.run("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1 || true");
        Some(Self { lab, key })
    }

    /// Baton's file on `lb`, whose peer is at `peer`.
    fn config(&self, vip: &str, listen: &str, peer: &str) -> PathBuf {
        let path = self.lab.directory().join("fleet.toml");
        let config = self.lab.config().frontend("listen", vec![vip]).instance("name", "lb-a");
        let config = config.peers("listen", listen).peers("key_file", self.key.to_str().unwrap());
        let config = config.peer("lb-b", peer.parse().unwrap());
        std::fs::write(&path, config.text(&self.lab.directory().join("admin.sock"))).unwrap();
        path
    }

    fn ordinary(&self) -> PathBuf {
        let [own, peer] = [&self.lab.lb, &self.lab.client2].map(|host| host.v4(PORT).to_string());
        self.config(&format!("{VIP}:6443"), &own, &peer)
    }

    fn peer_listens(&self) -> Server {
        self.lab.client2.serve_on(self.lab.client2.v4(PORT), Behaviour::Echo)
    }
}

/// The findings about faults.
fn faults(host: &Host, config: &Path) -> Vec<Finding> {
    // keepalived's file is another test's.
    look(host, config).into_iter().filter(|it| it.verdict != Verdict::Good && it.topic != "keepalived").collect()
}

#[test]
fn a_host_of_a_fleet_with_nothing_to_fix_is_told_what_was_looked_at() {
    let Some(pair) = Pair::new("preflight fleet") else { return };
    let _peer = pair.peer_listens();
    let config = pair.ordinary();
    let findings = look(&pair.lab.lb, &config);
    assert_eq!(faults(&pair.lab.lb, &config), []);
    for topic in [
        "arp_ignore",
        "arp_announce",
        "peers.listen",
        "peers.key_file",
        "link to lb-b",
        "firewall of peers.listen",
        "firewall of peers.beat_port",
        "port of lb-b",
        "source ports",
        "NodePorts",
    ] {
        println!("preflight: {topic}: {}", of(&findings, topic).read);
    }
    // Without peers, none of it is asked for.
    let alone = super::config(&pair.lab, &pair.lab.lb);
    assert!(look(&pair.lab.lb, &alone).iter().all(|it| !it.topic.contains("peer") && it.topic != "source ports"));
}

#[test]
fn settings_that_a_fleet_needs_are_found_and_fixed_by_what_is_advised() {
    let Some(pair) = Pair::new("preflight fleet settings") else { return };
    let (_peer, host, config) = (pair.peer_listens(), &pair.lab.lb, pair.ordinary());
    for (path, value) in [
        ("net/ipv4/conf/all/arp_ignore", "0"),
        ("net/ipv4/conf/all/arp_announce", "0"),
        ("net/ipv4/conf/all/rp_filter", "1"),
        ("net/ipv4/ip_local_port_range", "40000 40800"),
    ] {
        host.sysctl(path, value);
    }
    // Peers' packets may come by one interface, and clients be behind another.
    host.run("ip link add dmz type veth peer name zmd; ip link set zmd up; ip address add 192.0.2.1/24 dev dmz; ip link set dmz up");
    let text = std::fs::read_to_string(&config).unwrap().replace("[process]", "[process]\nmax_connections = 5000");
    std::fs::write(&config, text.replace("10.77.0.100:6443", "192.0.2.100:6443")).unwrap();
    fixed(host, &config, "arp_ignore", Verdict::Fault);
    fixed(host, &config, "arp_announce", Verdict::Fault);
    fixed(host, &config, "rp_filter", Verdict::Advice);
    fixed(host, &config, "source ports", Verdict::Advice);
    // So many flows take a range that has NodePorts in it.
    fixed(host, &config, "NodePorts", Verdict::Advice);
    host.sysctl("net/ipv4/ip_local_port_range", "40000 40006");
    fixed(host, &config, "source ports", Verdict::Fault);
    assert_eq!(faults(host, &config), []);
}

#[test]
fn the_file_for_sysctl_d_holds_what_a_fleet_needs() {
    let Some(pair) = Pair::new("preflight fleet fix") else { return };
    let (_peer, host, config) = (pair.peer_listens(), &pair.lab.lb, pair.ordinary());
    host.sysctl("net/ipv4/conf/all/arp_ignore", "0");
    host.sysctl("net/ipv4/ip_local_port_range", "40000 40006");
    assert_eq!(faults(host, &config).len(), 2);
    let file = pair.lab.directory().join("90.conf").display().to_string();
    host.run(&format!("{BINARY} check -c {} --host --fix={file} || true", config.display()));
    host.run(&format!("sysctl -p {file}"));
    assert_eq!(faults(host, &config), [], "{}", std::fs::read_to_string(file).unwrap());
}

#[test]
fn source_ports_that_may_be_nodeports_are_found_and_fixed() {
    let Some(pair) = Pair::new("preflight fleet NodePorts") else { return };
    let (_peer, host, config) = (pair.peer_listens(), &pair.lab.lb, pair.ordinary());
    host.sysctl("net/ipv4/ip_local_port_range", "10240 65535");
    fixed(host, &config, "NodePorts", Verdict::Advice);
    assert_eq!(faults(host, &config), []);
    let range = host.run("cat /proc/sys/net/ipv4/ip_local_port_range");
    assert_eq!(range.split_whitespace().collect::<Vec<_>>(), ["32768", "65535"]);
}

#[test]
fn a_key_that_others_may_read_is_found_and_fixed() {
    let Some(pair) = Pair::new("preflight fleet key") else { return };
    let (_peer, config) = (pair.peer_listens(), pair.ordinary());
    std::fs::set_permissions(&pair.key, PermissionsExt::from_mode(0o644)).unwrap();
    fixed(&pair.lab.lb, &config, "peers.key_file", Verdict::Advice);
}

#[test]
fn a_firewall_that_keeps_a_peer_out_is_found_on_either_side_and_opened() {
    let Some(pair) = Pair::new("preflight fleet firewall") else { return };
    let (_peer, host, other) = (pair.peer_listens(), &pair.lab.lb, &pair.lab.client2);
    let _own = host.serve_on(host.v4(PORT), Behaviour::Echo);
    let config = pair.ordinary();
    let reach = || other.try_connect(host.v4(PORT), ms(500)).is_ok();
    assert!(reach());
    // Only another host is let in.
    host.nft(&format!(
        "table inet f {{ chain in {{ type filter hook input priority 0; policy drop; ct state established accept; \
         ip protocol icmp accept; ip saddr {} tcp dport {PORT} accept; tcp dport 6443 accept; }}; }}",
        pair.lab.b1.v4
    ));
    assert!(!reach(), "the rules keep nobody out: the test shows nothing");
    fixed(host, &config, "firewall of peers.listen", Verdict::Fault);
    assert!(reach());
    // The beats beside the link go to the same port.
    fixed(host, &config, "firewall of peers.beat_port", Verdict::Advice);
    let [near, far] = [host, other].map(|host| host.enter(|| UdpSocket::bind(host.v4(PORT)).unwrap()));
    far.send_to(b"beat", host.v4(PORT)).unwrap();
    near.set_read_timeout(Some(LONG)).unwrap();
    near.recv(&mut [0; 8]).expect("what was advised lets it in");
    // And the other's keeps this one out.
    other.drop_packets("input", &format!("tcp dport {PORT}"));
    let findings = look(host, &config);
    let found = of(&findings, "port of lb-b");
    assert_eq!(found.verdict, Verdict::Fault, "{found:#?}");
}

#[test]
fn a_peer_that_does_not_run_or_is_behind_a_router_or_is_this_host_is_found() {
    let Some(pair) = Pair::new("preflight fleet link") else { return };
    let host = &pair.lab.lb;
    let ordinary = pair.ordinary();
    let down = look(host, &ordinary);
    assert_eq!(of(&down, "port of lb-b").verdict, Verdict::Advice, "it may start in a moment: {down:#?}");
    let (vip, own) = (format!("{VIP}:6443"), host.v4(PORT).to_string());
    let verdict = |config: &Path, topic: &str| of(&look(host, config), topic).clone();
    host.run(&format!("ip route add 192.0.2.0/24 via {}", pair.lab.b3.v4));
    let routed = verdict(&pair.config(&vip, &own, "192.0.2.7:9471"), "link to lb-b");
    assert!(routed.verdict == Verdict::Fault && routed.read.contains(&pair.lab.b3.v4.to_string()), "{routed:#?}");
    let itself = verdict(&pair.config(&vip, &own, &format!("{}:9472", host.v4)), "link to lb-b");
    assert!(itself.verdict == Verdict::Fault && itself.read.contains("an address of this host"), "{itself:#?}");
    let peer = pair.lab.client2.v4(PORT).to_string();
    for (listen, read) in [(format!("{VIP}:{PORT}"), "is a VIP"), ("10.77.0.99:9471".to_owned(), "is not on this host")]
    {
        let found = verdict(&pair.config(&vip, &listen, &peer), "peers.listen");
        assert!(found.verdict == Verdict::Fault && found.read.contains(read), "{found:#?}");
        assert!(found.fix.contains(&own), "{found:#?}");
    }
    // Packets for an IPv6 VIP need an IPv6 next hop.
    let v6 = pair.config("[fd77::100]:6443", &own, &peer);
    assert!(look(host, &v6).iter().all(|it| it.topic != "link"));
    host.run(&format!("ip address del {}/64 dev eth0", host.v6(0).ip()));
    assert_eq!(verdict(&v6, "link").verdict, Verdict::Fault);
}
