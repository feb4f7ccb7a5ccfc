use super::*;
use crate::model::finding::Verdict;
use crate::preflight::firewall::{iptables, nft};

const SERVICE: &str = "10.0.0.100:6443";
const BACKEND: &str = "10.0.0.11:6443";

fn found(rules: &Ruleset) -> Vec<(Verdict, String, String)> {
    let leg = |from: &str| FirstPacket {
        from: Some(from.parse().unwrap()),
        to: BACKEND.parse().unwrap(),
        interface: Some("eth0".to_owned()),
    };
    let findings = judge(rules, &[SERVICE.parse().unwrap()], &[leg("10.0.0.100"), leg("10.0.0.5")]);
    findings.into_iter().map(|finding| (finding.verdict, finding.read, finding.fix)).collect()
}

/// The nat table in the form of iptables-save(8).
fn saved(rules: &str) -> Vec<(Verdict, String, String)> {
    let mut chains: Vec<_> =
        ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"].iter().map(|name| format!(":{name} ACCEPT [0:0]\n")).collect();
    for name in rules.lines().filter_map(|line| line.strip_prefix("-A ")?.split(' ').next()) {
        let line = format!(":{name} - [0:0]\n");
        if !chains.iter().any(|known| known.starts_with(&format!(":{name} "))) {
            chains.push(line);
        }
    }
    found(&iptables::read(&format!("*nat\n{}{rules}\nCOMMIT\n", chains.concat()), "iptables"))
}

/// Rules in the form of nft(8), in a base chain at `hook`.
fn listed(hook: &str, expr: &str) -> Vec<(Verdict, String, String)> {
    let json = format!(
        r#"{{"nftables": [{{"chain": {{"family": "inet", "table": "n", "name": "c", "type": "nat", "hook": "{hook}", "prio": 100}}}},
        {{"rule": {{"family": "inet", "table": "n", "chain": "c", "handle": 7, "expr": [{expr}]}}}}]}}"#
    );
    found(&nft::read(&serde_json::from_str(&json).unwrap()).unwrap().rules)
}

#[test]
fn what_is_masqueraded_on_the_way_to_a_backend_is_named_once_with_what_exempts_it() {
    let masqueraded = [
        "-A POSTROUTING -o eth0 -j MASQUERADE",
        "-A POSTROUTING -o eth+ -p tcp -m tcp --dport 6443 -j MASQUERADE --random-fully",
        "-A POSTROUTING -s 10.0.0.0/24 -j SNAT --to-source 192.0.2.1",
        "-A POSTROUTING ! -d 192.168.0.0/16 -m mark ! --mark 0x1/0x1 -j MASQUERADE",
        "-A POSTROUTING -j OWN\n-A OWN -o eth0 -j MASQUERADE",
    ];
    for rules in masqueraded {
        let found = saved(rules);
        assert_eq!(found.len(), 1, "{rules}: {found:?}");
        assert_eq!(found[0].0, Verdict::Hindrance, "{rules}");
        let exempt = "iptables -t nat -I POSTROUTING -p tcp -d 10.0.0.11/32 --dport 6443 -j ACCEPT";
        assert_eq!(found[0].2, exempt, "{rules}");
        assert_eq!(saved(&format!("{}\n{rules}", exempt.replace("iptables -t nat -I", "-A"))), [], "{rules}");
    }
    let found = listed(
        "postrouting",
        r#"{"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": {"set": ["eth0", "eth1"]}}}, {"masquerade": null}"#,
    );
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, "inet n c: interface eth0,eth1 masquerade translates packets to 10.0.0.11:6443");
    assert_eq!(found[0].2, "nft insert rule inet n c ip daddr 10.0.0.11 tcp dport 6443 accept");
}

#[test]
fn what_brings_other_ports_or_addresses_to_a_frontend_is_named_with_what_takes_it_away() {
    for rules in [
        "-A PREROUTING -p tcp -m tcp --dport 443 -j REDIRECT --to-ports 6443",
        "-A PREROUTING -d 10.0.0.9/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 10.0.0.100:6443",
        "-A PREROUTING -d 10.0.0.9/32 -p tcp -m tcp --dport 6443 -j DNAT --to-destination 10.0.0.100",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j OWN\n-A OWN -p tcp -j DNAT --to-destination 10.0.0.100:6443",
    ] {
        let found = saved(rules);
        assert_eq!(found.len(), 1, "{rules}: {found:?}");
        let delete = rules.lines().last().unwrap().replace("-A", "iptables -t nat -D");
        assert!(found[0].2.ends_with(&format!(", then: {delete}")), "{}", found[0].2);
    }
    let to = r#"{"dnat": {"family": "ip", "addr": "10.0.0.100", "port": 6443}}"#;
    assert!(listed("prerouting", to)[0].2.ends_with("nft delete rule inet n c handle 7"));
    let over = r#"{"mangle": {"key": {"payload": {"protocol": "ip", "field": "daddr"}}, "value": "10.0.0.100"}}"#;
    let port = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 6443}}"#;
    assert_eq!(listed("prerouting", &format!("{port}, {over}")).len(), 1);
    let source = listed("input", r#"{"snat": {"family": "ip", "addr": "10.0.0.77"}}"#);
    assert!(source[0].1.ends_with("translates clients of 10.0.0.100:6443"), "{source:?}");
}

#[test]
fn a_frontend_whose_connections_are_translated_is_a_fault() {
    let found =
        saved("-A PREROUTING -d 10.0.0.100/32 -p tcp -m tcp --dport 6443 -j DNAT --to-destination 10.244.0.7:6443");
    assert_eq!(found[0].0, Verdict::Fault, "{found:?}");
    let rest = "-A PREROUTING -d 10.0.0.100/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.0.7:80";
    assert_eq!(saved(rest), []);
}

#[test]
fn a_backend_that_is_a_service_of_this_host_is_named() {
    let found = saved("-A OUTPUT -d 10.0.0.11/32 -p tcp -m tcp --dport 6443 -j DNAT --to-destination 10.244.0.7:6443");
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn what_may_meet_it_is_a_note_if_it_says_its_address() {
    let found = saved("-A POSTROUTING -d 10.0.0.11/32 -p tcp -m set --match-set some src -j MASQUERADE");
    assert_eq!(found[0].0, Verdict::Advice, "{found:?}");
}

#[test]
fn rules_of_docker_kube_proxy_flannel_and_calico_for_their_own_are_not_named() {
    let docker = "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n\
        -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE\n\
        -A DOCKER -i docker0 -j RETURN\n\
        -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80";
    let kube = "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
        -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
        -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
        -A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully\n\
        -A KUBE-SEP-A -s 10.0.0.11/32 -m comment --comment \"default/kubernetes:https\" -j KUBE-MARK-MASQ\n\
        -A KUBE-SEP-A -p tcp -m comment --comment \"default/kubernetes:https\" -m tcp -j DNAT --to-destination 10.0.0.11:6443\n\
        -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp --dport 443 -j KUBE-SVC-A\n\
        -A KUBE-SERVICES -m comment --comment \"node ports\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
        -A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-A\n\
        -A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ\n\
        -A KUBE-SVC-A -m comment --comment \"default/kubernetes:https -> 10.0.0.11:6443\" -m statistic --mode random --probability 0.5 -j KUBE-SEP-A\n\
        -A KUBE-SVC-A -j KUBE-SEP-A";
    let flannel = "-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
        -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN\n\
        -A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN\n\
        -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -j RETURN\n\
        -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\n\
        -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE --random-fully";
    let calico = "-A POSTROUTING -j cali-POSTROUTING\n\
        -A cali-POSTROUTING -j cali-nat-outgoing\n\
        -A cali-POSTROUTING -o tunl0 -m addrtype ! --src-type LOCAL --limit-iface-out -m addrtype --src-type LOCAL -j MASQUERADE --random-fully\n\
        -A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE --random-fully";
    for rules in [docker, kube, flannel, calico, &[docker, kube, flannel, calico].join("\n")] {
        assert_eq!(saved(rules), [], "{rules}");
    }
    let marked = r#"{"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, 16384]}, "right": 16384}}, {"masquerade": null}"#;
    assert_eq!(listed("postrouting", marked), []);
    let vpn = r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "wg0"}}, {"masquerade": null}"#;
    assert_eq!(listed("postrouting", vpn), []);
}
