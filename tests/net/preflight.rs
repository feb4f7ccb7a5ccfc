//! `baton check --host`: each fault is really set, found, and gone after the advised command; and where it makes a black
//! hole, the hole is shown before and the reset after.

mod fleet;

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ::baton::config;
use ::baton::model::finding::{Finding, Verdict};
use ::baton::preflight;
use serde_json::Value;

use crate::lab::baton::BINARY;
use crate::lab::*;

const VIP: &str = "10.77.0.100";

/// Baton's file on a host, with a frontend at the VIP and a backend on the host itself.
fn config(lab: &Lab, host: &Host) -> PathBuf {
    let path = lab.directory().join("check.toml");
    let config = lab.config().frontend("listen", vec![format!("{VIP}:6443")]).backend("own", host.v4(6444));
    std::fs::write(&path, config.text(&lab.directory().join("admin.sock"))).unwrap();
    path
}

fn look(host: &Host, config: &Path) -> Vec<Finding> {
    let config = config::load(config).unwrap().config;
    host.enter(|| preflight::look(&config, None).findings)
}

/// The finding about `topic`, and whether there is anything to fix.
#[track_caller]
fn of<'f>(findings: &'f [Finding], topic: &str) -> &'f Finding {
    findings.iter().find(|finding| finding.topic == topic).unwrap_or_else(|| panic!("{topic}: {findings:#?}"))
}

/// The fault is found, the advised command is run, and it is not found any more.
#[track_caller]
fn fixed(host: &Host, config: &Path, topic: &str, verdict: Verdict) {
    let findings = look(host, config);
    let found = of(&findings, topic);
    assert_eq!(found.verdict, verdict, "{found:#?}");
    println!("preflight: {topic}: {} | {}", found.read, found.fix);
    host.run(&found.fix);
    let findings = look(host, config);
    assert_eq!(of(&findings, topic).verdict, Verdict::Good, "{findings:#?}");
}

/// Connections that are tracked, as once any rule has asked for their state.
fn track(host: &Host) {
    host.nft("table inet lab { chain see { type filter hook input priority 10; ct state new accept; }; }");
}

#[test]
fn each_setting_of_the_kernel_is_found_and_fixed_by_what_is_advised() {
    let Some(lab) = Lab::new("preflight") else { return };
    let host = &lab.lb;
    let config = config(&lab, host);
    host.run(&format!("ip address add {VIP}/32 dev lo"));
    track(host);
    for (path, value) in [
        ("net/ipv4/conf/all/arp_ignore", "0"),
        ("net/ipv4/conf/eth0/arp_ignore", "0"),
        ("net/ipv4/conf/all/arp_announce", "0"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/send_redirects", "1"),
        ("net/ipv4/conf/eth0/send_redirects", "1"),
        ("net/ipv4/tcp_retries2", "15"),
        ("net/netfilter/nf_conntrack_tcp_loose", "0"),
        ("net/netfilter/nf_conntrack_tcp_be_liberal", "0"),
        ("net/ipv4/conf/all/rp_filter", "1"),
    ] {
        host.sysctl(path, value);
    }
    // By a second interface, the answer may leave another way than the question came.
    host.run("ip link add dmz type veth peer name zmd; ip link set zmd up; ip address add 192.0.2.1/24 dev dmz; ip link set dmz up");
    fixed(host, &config, "arp_ignore", Verdict::Fault);
    fixed(host, &config, "arp_announce", Verdict::Fault);
    fixed(host, &config, "send_redirects", Verdict::Advice);
    fixed(host, &config, "rp_filter", Verdict::Advice);
    fixed(host, &config, "tcp_retries2", Verdict::Advice);
    fixed(host, &config, "nf_conntrack_tcp_loose", Verdict::Advice);
    fixed(host, &config, "nf_conntrack_tcp_be_liberal", Verdict::Advice);
    assert!(look(host, &config).iter().all(|finding| finding.verdict == Verdict::Good), "{:#?}", look(host, &config));
}

/// The setting is the machine's own, which a test only reads: a network namespace has none.
#[test]
fn a_queue_that_loses_keepalive_probes_of_thousands_is_found_where_an_end_is_on_this_host() {
    let Some(lab) = Lab::new("preflight queue") else { return };
    let topic = "netdev_max_backlog";
    assert!(!look(&lab.lb, &config(&lab, &lab.lb)).iter().any(|finding| finding.topic == topic));
    let Ok(packets) = std::fs::read_to_string("/proc/sys/net/core/netdev_max_backlog") else {
        println!("skipped: this test itself runs in a network namespace");
        return;
    };
    let path = lab.directory().join("own.toml");
    let here = lab
        .config()
        .frontend("listen", vec!["127.0.0.1:6443"])
        .only(&[])
        .backend("own", "127.0.0.1:6444".parse().unwrap());
    std::fs::write(&path, here.text(&lab.directory().join("admin.sock"))).unwrap();
    let findings = preflight::look(&config::load(&path).unwrap().config, None).findings;
    let packets: u64 = packets.trim().parse().unwrap();
    let found = of(&findings, topic);
    let (verdict, fix) = match packets < 10_000 {
        true => (Verdict::Advice, "sysctl -w net.core.netdev_max_backlog=10000"),
        false => (Verdict::Good, ""),
    };
    assert_eq!((found.verdict, found.read.as_str(), found.fix.as_str()), (verdict, packets.to_string().as_str(), fix));
}

#[test]
fn a_port_that_any_connection_may_be_given_and_too_few_ports_are_found() {
    let Some(lab) = Lab::new("preflight ports") else { return };
    let path = config(&lab, &lab.lb);
    let text = std::fs::read_to_string(&path).unwrap().replace("[process]", "[process]\nmax_connections = 30000");
    std::fs::write(&path, text).unwrap();
    lab.lb.sysctl("net/ipv4/ip_local_port_range", "6000 7000");
    fixed(&lab.lb, &path, "local ports", Verdict::Advice);
    lab.lb.sysctl("net/ipv4/ip_local_port_range", "1024 65535");
    let findings = look(&lab.lb, &path);
    let found = of(&findings, "reserved ports");
    lab.lb.run(&found.fix);
    assert!(look(&lab.lb, &path).iter().all(|finding| finding.topic != "reserved ports"));
}

/// What would keep Baton's own VIP from this host, or move it behind Baton's back.
#[test]
fn a_host_that_cannot_have_the_built_in_vip_or_has_keepalived_too_is_told_so() {
    let Some(lab) = Lab::new("preflight vip") else { return };
    let path = config(&lab, &lab.lb);
    let text = std::fs::read_to_string(&path).unwrap();
    let on = |interface: &str| {
        let vip = format!("[vip]\naddresses = [\"{VIP}/32\"]\ninterface = \"{interface}\"\n");
        std::fs::write(&path, format!("{text}\n{vip}")).unwrap();
        look(&lab.lb, &path)
    };
    let findings = on("eth9");
    assert!(of(&findings, "vip").read.starts_with("interface eth9: "), "{findings:#?}");
    if Path::new("/dev/net/tun").exists() {
        lab.lb.run("ip tuntap add name tun0 mode tun");
        let findings = on("tun0");
        assert!(of(&findings, "vip").read.starts_with("interface tun0 is not Ethernet"), "{findings:#?}");
    } else {
        network::skip("preflight vip", "this host has no /dev/net/tun for an interface without Ethernet");
    }
    let good = format!("Baton moves {VIP} on eth0");
    assert_eq!(of(&on("eth0"), "vip").read, good);
    lab.lb.run(&format!("ip address add {VIP}/24 dev eth0"));
    assert_eq!(of(&look(&lab.lb, &path), "vip").read, format!("{VIP}/24 is on eth0"));
    fixed(&lab.lb, &path, "vip", Verdict::Fault);
    lab.lb.run("ip link set eth0 down");
    fixed(&lab.lb, &path, "vip", Verdict::Fault);
    lab.lb.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1");
    let both = std::fs::read_to_string(&path)
        .unwrap()
        .replace(&format!("\"{VIP}/32\""), &format!("\"{VIP}/32\", \"fd77::100/128\""));
    std::fs::write(&path, both).unwrap();
    assert_eq!(of(&look(&lab.lb, &path), "vip").read, "IPv6 is disabled on eth0");
    fixed(&lab.lb, &path, "vip", Verdict::Fault);
    on("eth0");
    // Without rights.
    let check = ["check", "--host", "-c", path.to_str().unwrap()];
    let said = lab.lb.run(&format!("setpriv --bounding-set=-net_raw {BINARY} {} 2>&1 || true", check.join(" ")));
    assert!(said.contains("this command does not have CAP_NET_RAW"), "{said}");
    // keepalived runs by its own file.
    let file = lab.directory().join("keepalived.conf");
    std::fs::write(&file, format!("vrrp_instance v {{\nvirtual_ipaddress {{\n{VIP}/32\n}}\n}}\n")).unwrap();
    let program = lab.directory().join("keepalived");
    std::fs::write(&program, "#!/bin/sh\nsleep 60\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let command = [program.to_str().unwrap(), "-f", file.to_str().unwrap()];
    let mover = lab.lb.spawn(&command, &lab.directory().join("keepalived.log"));
    eventually(LONG, "keepalived is found", || {
        of(&look(&lab.lb, &path), "vip").read == format!("keepalived runs here and moves {VIP} too")
    });
    drop(mover);
    eventually(LONG, "it is gone", || of(&look(&lab.lb, &path), "vip").read == good);
}

#[test]
fn an_ordinary_host_without_a_vip_is_told_to_change_nothing() {
    let Some(lab) = Lab::new("preflight ordinary") else { return };
    let path = lab.directory().join("check.toml");
    std::fs::write(&path, lab.config().text(&lab.directory().join("admin.sock"))).unwrap();
    lab.lb.sysctl("net/ipv4/conf/all/arp_ignore", "0");
    lab.lb.nft("table inet f { chain in { type filter hook input priority 0; ct state invalid drop; }; }");
    let findings = look(&lab.lb, &path);
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.topic != "arp_ignore"), "{findings:#?}");
}

/// Moves a VIP with a connection from one host to another that `prepare` has set up; returns the answer that the client
/// then gets.
fn after_the_move(lab: &Lab, prepare: impl FnOnce(&Host)) -> End {
    let (old, new) = (&lab.b1, &lab.lb);
    let vip: IpAddr = VIP.parse().unwrap();
    old.run(&format!("ip address replace {VIP}/32 dev eth0"));
    let server = old.serve_on((vip, 6443).into(), Behaviour::Echo);
    lab.client.run("ip neigh flush dev eth0");
    let mut conn = lab.client.connect((vip, 6443).into());
    conn.echo(1, 100);
    prepare(new);
    old.run(&format!("ip address delete {VIP}/32 dev eth0"));
    new.run(&format!("ip address replace {VIP}/32 dev eth0"));
    lab.client.run("ip neigh flush dev eth0");
    conn.send(2, 100).unwrap();
    let end = conn.end(secs(3));
    new.run(&format!("ip address delete {VIP}/32 dev eth0"));
    drop(server);
    end
}

/// With `rules` as the new owner's firewall the client waits, preflight reports that, and its advice ends it.
#[track_caller]
fn a_black_hole_is_found_and_filled(lab: &Lab, rules: impl Fn(&Host)) {
    let config = config(lab, &lab.b2);
    let forgetful = |host: &Host| {
        rules(host);
        host.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
    };
    assert_eq!(after_the_move(lab, forgetful), End::Open, "the rules make no black hole: the test shows nothing");
    let findings = look(&lab.lb, &config);
    let found = of(&findings, "firewall");
    println!("preflight: {} | {}", found.read, found.fix);
    assert_eq!(found.verdict, Verdict::Fault, "{found:#?}");
    lab.lb.run(&found.fix);
    let findings = look(&lab.lb, &config);
    assert_eq!(of(&findings, "firewall").verdict, Verdict::Good, "{findings:#?}");
    assert_eq!(after_the_move(lab, |_| {}), End::Rst);
}

#[test]
fn a_firewall_that_drops_what_is_invalid_is_found_before_it_leaves_a_client_waiting() {
    let Some(lab) = Lab::new("preflight firewall") else { return };
    a_black_hole_is_found_and_filled(&lab, |host| {
        host.nft("table inet f { chain in { type filter hook input priority 0; iifname lo accept; ct state invalid drop; }; }");
    });
}

/// `...` in the page stands for what differs between hosts, and for lines that are left out.
#[test]
fn docs_check_shows_what_is_said_of_a_firewall() {
    let Some(lab) = Lab::new("preflight page") else { return };
    let path = lab.directory().join("check.toml");
    let file = lab.config().frontend("listen", vec!["10.0.0.100:6443".to_owned()]);
    std::fs::write(&path, file.text(&lab.directory().join("admin.sock"))).unwrap();
    lab.lb.nft("table inet f { chain in { type filter hook input priority 0; ct state invalid drop; }; }");
    lab.lb.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0");
    let said = lab.lb.enter(|| {
        std::process::Command::new(BINARY).args(["check", "--host", "-c"]).arg(&path).output().unwrap().stdout
    });
    let said = String::from_utf8(said).unwrap();
    let page = include_str!("../../docs/check.md");
    let shown =
        page.split("$ baton check -c /etc/baton/baton.toml --host\n").nth(1).unwrap().split("```").next().unwrap();
    let mut shown: Vec<_> = shown.lines().filter(|line| *line != "...").collect();
    assert!(shown.len() >= 3, "{shown:?}");
    let is_it = |line: &str, shown: &str| match shown.split_once("...") {
        Some((begins, ends)) => line.starts_with(begins) && line.ends_with(ends),
        None => line == shown,
    };
    for line in said.lines() {
        if shown.first().is_some_and(|first| is_it(line, first)) {
            shown.remove(0);
        }
    }
    assert_eq!(shown, Vec::<&str>::new(), "not said, or not in this order:\n{said}");
}

#[test]
fn a_firewall_that_lets_in_only_new_and_established_ones_is_found_as_well() {
    let Some(lab) = Lab::new("preflight policy") else { return };
    a_black_hole_is_found_and_filled(&lab, |host| {
        host.nft(
            "table inet f { set open { type inet_service; elements = { 22, 6443 }; }\n\
             chain in { type filter hook input priority 0; policy drop; ip protocol icmp accept; meta l4proto ipv6-icmp accept;\n\
             ct state vmap { established : accept, related : accept, invalid : drop };\n\
             ct state new tcp dport @open accept; }; }",
        );
    });
}

#[test]
fn the_same_firewall_made_by_iptables_is_found() {
    let Some(lab) = Lab::new("preflight iptables") else { return };
    if lab.lb.enter(|| std::process::Command::new("iptables").arg("-S").output()).is_err() {
        return network::skip("preflight iptables", "iptables is not installed");
    }
    a_black_hole_is_found_and_filled(&lab, |host| {
        host.run("iptables -A INPUT -m conntrack --ctstate INVALID -j DROP");
    });
}

#[test]
fn the_file_for_sysctl_d_fixes_what_it_is_for_and_is_the_same_when_written_again() {
    let Some(lab) = Lab::new("preflight fix") else { return };
    let host = &lab.lb;
    let config = config(&lab, host).display().to_string();
    host.run(&format!("ip address add {VIP}/32 dev lo"));
    host.sysctl("net/ipv4/conf/all/arp_ignore", "0");
    host.sysctl("net/ipv4/conf/all/arp_announce", "0");
    let file = lab.directory().join("90-baton.conf").display().to_string();
    let check = |more: &str| {
        let command = format!("{BINARY} check -c {config} --host {more} 2>&1 && echo code 0 || echo code $?");
        host.run(&command)
    };
    let first = check(&format!("--fix={file}"));
    assert!(first.contains(&format!("{file} written")) && first.ends_with("code 1\n"), "{first}");
    assert!(first.contains("fault    arp_ignore: all 0, eth0 0"), "{first}");
    let apply =
        first.lines().find_map(|line| line.split("or now if you run: ").nth(1)).expect("the command that applies it");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        look(host, Path::new(&config)).iter().filter(|f| f.verdict == Verdict::Fault).count(),
        2,
        "only written"
    );
    host.run(apply);
    let second = check(&format!("--fix={file}"));
    assert!(second.contains("needs no change") && second.ends_with("code 0\n"), "{second}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    // The user nobody cannot read a directory of root's.
    let closed = lab.directory().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(lab.directory(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).unwrap();
    let denied = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {BINARY} check -c {config} --host --fix={}/90.conf 2>&1 && echo code 0 || echo code $?",
        closed.display()
    );
    let denied = host.run(&denied);
    assert!(denied.contains("Permission denied") && denied.contains("run this as root"), "{denied}");
    assert!(denied.ends_with("code 1\n"), "{denied}");
    let json = host.run(&format!("{BINARY} --json check -c {config} --host | sed -n '/^\\[/,$p'"));
    let findings: Vec<Value> = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert!(findings.iter().any(|finding| finding["topic"] == "arp_ignore" && finding["verdict"] == "good"), "{json}");
}

/// Rules of the balancer's host and the expected findings: (the command that makes them, a part of the finding).
const TRANSLATING: [(&str, &str); 6] = [
    (
        "nft 'table inet n { chain out { type nat hook postrouting priority srcnat; oifname { eth0, eth1 } masquerade; }; }'",
        "masquerade",
    ),
    ("iptables -t nat -A POSTROUTING -o eth0 -p tcp --dport 6443 -j MASQUERADE", "masquerade"),
    ("iptables-legacy -t nat -A POSTROUTING -s 10.77.0.0/24 -j SNAT --to-source 10.77.0.2", "snat to 10.77.0.2"),
    (
        "nft 'table inet n { chain in { type nat hook prerouting priority dstnat; tcp dport 443 redirect to :6443; }; }'",
        "redirect to :6443",
    ),
    (
        "iptables -t nat -A PREROUTING -p tcp --dport 443 -j DNAT --to-destination 10.77.0.2:6443",
        "dnat to 10.77.0.2:6443",
    ),
    (
        "nft 'table ip n { chain in { type filter hook prerouting priority raw; tcp dport 443 tcp dport set 6443; }; }'",
        "",
    ),
];

#[test]
fn rules_that_translate_what_goes_to_a_frontend_or_a_backend_are_named_and_fixed() {
    let Some(lab) = Lab::new("preflight nat") else { return };
    let host = &lab.lb;
    let path = lab.directory().join("check.toml");
    let config = lab.config().offload("mode", "auto");
    std::fs::write(&path, config.text(&lab.directory().join("admin.sock"))).unwrap();
    assert_eq!(of(&look(host, &path), "NAT").verdict, Verdict::Good);
    // Rules for others' networks only.
    host.run(
        "iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE; \
         iptables -t nat -A PREROUTING -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80; \
         iptables -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
    );
    assert_eq!(of(&look(host, &path), "NAT").verdict, Verdict::Good, "{:#?}", look(host, &path));
    for (rules, found) in TRANSLATING {
        if rules.starts_with("iptables-legacy") && host.enter(|| !legacy()) {
            println!("preflight: no {rules}: this kernel has no ip_tables");
            continue;
        }
        host.run(rules);
        let findings = look(host, &path);
        let nat = of(&findings, "NAT");
        println!("preflight: {} | {}", nat.read, nat.fix);
        assert!(nat.verdict == Verdict::Hindrance && nat.read.contains(found), "{rules}: {nat:#?}");
        let fix = nat.fix.split_once("then: ").map_or(nat.fix.as_str(), |(_, command)| command);
        host.run(fix);
        assert_eq!(of(&look(host, &path), "NAT").verdict, Verdict::Good, "{rules}: {:#?}", look(host, &path));
    }
    // A frontend whose connections are translated to another address.
    host.run("iptables -t nat -I PREROUTING -p tcp -d 10.77.0.2 --dport 6443 -j DNAT --to-destination 10.77.0.99:6443");
    fixed(host, &path, "NAT", Verdict::Fault);
}

/// Whether the older tables are there.
fn legacy() -> bool {
    let output = std::process::Command::new("iptables-legacy").args(["-t", "nat", "-S"]).output();
    output.is_ok_and(|output| output.status.success())
}
