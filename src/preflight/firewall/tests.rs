use super::*;
use crate::model::finding::Verdict;
use crate::model::fleet::InstanceName;

const SERVICE: &str = "10.0.0.100:6443";

/// Rules in the form of nft(8), as JSON items.
fn nft(items: &str) -> Ruleset {
    let json = format!("{{\"nftables\": [{items}]}}");
    nft::read(&serde_json::from_str(&json).unwrap()).unwrap().rules
}

fn chain(name: &str, hook: &str, priority: i32, policy: &str) -> String {
    format!(
        r#"{{"chain": {{"family": "inet", "table": "f", "name": "{name}", "handle": 1, "type": "filter", "hook": "{hook}", "prio": {priority}, "policy": "{policy}"}}}}"#
    )
}

fn rule(chain: &str, expr: &str) -> String {
    format!(r#"{{"rule": {{"family": "inet", "table": "f", "chain": "{chain}", "handle": 2, "expr": [{expr}]}}}}"#)
}

fn state(states: &str, act: &str) -> String {
    format!(
        r#"{{"match": {{"op": "in", "left": {{"ct": {{"key": "state"}}}}, "right": {states}}}}}, {{"{act}": null}}"#
    )
}

fn dport(port: &str, act: &str) -> String {
    let left = r#"{"payload": {"protocol": "tcp", "field": "dport"}}"#;
    format!(r#"{{"match": {{"op": "==", "left": {left}, "right": {port}}}}}, {{"{act}": null}}"#)
}

fn verdict(items: &[String], loose: i64) -> Option<(Verdict, String)> {
    let rules = nft(&items.join(","));
    judge(&rules, SERVICE.parse().unwrap(), Some(loose)).map(|finding| (finding.verdict, finding.fix))
}

fn input(policy: &str, rules: &[String]) -> Vec<String> {
    let mut items = vec![chain("in", "input", 0, policy)];
    items.extend(rules.iter().map(|expr| rule("in", expr)));
    items
}

#[test]
fn a_rule_that_drops_what_is_invalid_is_a_fault_where_nothing_is_picked_up() {
    let items = input("accept", &[state(r#""invalid""#, "drop")]);
    assert_eq!(verdict(&items, 0).unwrap().0, Verdict::Fault);
    assert_eq!(verdict(&items, 1).unwrap().0, Verdict::Advice);
    let before = input("accept", &[dport("6443", "accept"), state(r#""invalid""#, "drop")]);
    assert_eq!(verdict(&before, 0), None, "the port is let in before");
    let other = input("accept", &[dport("22", "accept"), state(r#""invalid""#, "drop")]);
    assert_eq!(verdict(&other, 0).unwrap().0, Verdict::Fault);
}

#[test]
fn a_policy_that_drops_all_but_new_and_established_ones_is_one_too() {
    let new =
        format!("{}, {}", state(r#"["new"]"#, "counter"), dport(r#"{"set": [22, {"range": [6000, 7000]}]}"#, "accept"));
    let items = input("drop", &[state(r#"["established", "related"]"#, "accept"), new]);
    let (found, fix) = verdict(&items, 0).unwrap();
    assert_eq!(found, Verdict::Fault);
    assert!(fix.ends_with("nft insert rule inet f in ip daddr 10.0.0.100 tcp dport 6443 accept"), "{fix}");
    let closed = input("drop", &[dport("22", "accept")]);
    let rules = nft(&closed.join(","));
    let finding = judge(&rules, SERVICE.parse().unwrap(), Some(1)).unwrap();
    assert_eq!((finding.verdict, finding.why.as_str()), (Verdict::Fault, "no client can connect"));
}

/// Regression: a rule for what begins a connection was not understood, and one that rejects it was no fault, since its clients are told.
#[test]
fn a_rule_that_keeps_new_connections_out_is_a_fault_however_it_names_them_and_whatever_it_answers() {
    let said = |rules: &Ruleset| judge(rules, SERVICE.parse().unwrap(), Some(1)).map(|it| (it.verdict, it.read));
    let flags = r#"{"payload": {"protocol": "tcp", "field": "flags"}}"#;
    let masked = format!(r#"{{"&": [{flags}, {{"|": ["fin", "syn", "rst", "ack"]}}]}}"#);
    for (op, left) in [("in", flags), ("==", &*masked)] {
        for (act, does) in [("drop", "drops"), ("reject", "rejects")] {
            let syn = format!(r#"{{"match": {{"op": "{op}", "left": {left}, "right": "syn"}}}}, {{"{act}": null}}"#);
            let (verdict, read) = said(&nft(&input("accept", &[syn]).join(","))).expect("a fault");
            assert_eq!(verdict, Verdict::Fault);
            assert_eq!(read, format!("inet f in: tcp flags syn {act} {does} new connections to {SERVICE}"));
        }
    }
    let save = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 6443 --tcp-flags FIN,SYN,RST,ACK SYN -j REJECT\nCOMMIT\n";
    assert_eq!(said(&iptables::read(save, "iptables")).expect("a fault").0, Verdict::Fault);
    let odd = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "flags"}}, "right": "fin"}}, {"drop": null}"#;
    assert_eq!(said(&nft(&input("accept", &[odd.to_owned()]).join(","))).map(|it| it.0), Some(Verdict::Advice));
}

#[test]
fn what_is_not_tracked_is_not_invalid() {
    let mut items = input("accept", &[state(r#""invalid""#, "drop")]);
    items.push(chain("raw", "prerouting", -300, "accept"));
    items.push(rule("raw", &dport("6443", "notrack")));
    assert_eq!(verdict(&items, 0), None);
    // After conntrack it is too late.
    items[2] = chain("raw", "prerouting", -150, "accept");
    assert_eq!(verdict(&items, 0).unwrap().0, Verdict::Fault);
}

#[test]
fn a_map_of_states_a_jump_and_a_named_set_are_followed() {
    let vmap = r#"{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["established", {"accept": null}], ["invalid", {"jump": {"target": "bad"}}]]}}}"#;
    let mut items = input("accept", &[vmap.to_owned()]);
    items.push(r#"{"chain": {"family": "inet", "table": "f", "name": "bad", "handle": 9}}"#.to_owned());
    assert_eq!(verdict(&items, 0), None, "the chain that is called is empty");
    items.push(rule("bad", &dport("\"@ports\"", "accept")));
    items.push(rule("bad", r#"{"counter": {"packets": 1, "bytes": 2}}, {"drop": null}"#));
    assert_eq!(verdict(&items, 0).unwrap().0, Verdict::Advice, "a set that is not there may hold anything");
    items.push(r#"{"set": {"family": "inet", "table": "f", "name": "ports", "elem": [22, 80]}}"#.to_owned());
    assert_eq!(verdict(&items, 0).unwrap().0, Verdict::Fault);
    *items.last_mut().unwrap() =
        r#"{"set": {"family": "inet", "table": "f", "name": "ports", "elem": [6443]}}"#.to_owned();
    assert_eq!(verdict(&items, 0), None);
}

#[test]
fn an_answer_that_is_dropped_leaves_a_client_waiting_as_well() {
    let items = [chain("out", "output", 0, "accept"), rule("out", &state(r#""invalid""#, "drop"))];
    assert_eq!(verdict(&items, 0).unwrap().0, Verdict::Fault);
}

#[test]
fn who_is_told_waits_for_nothing_and_a_rule_for_one_client_is_only_perhaps() {
    assert_eq!(verdict(&input("accept", &[state(r#""invalid""#, "reject")]), 0), None);
    let from = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.1.0.0", "len": 16}}}}"#;
    let some = input("accept", &[format!("{from}, {}", state(r#""invalid""#, "drop"))]);
    assert_eq!(verdict(&some, 0).unwrap().0, Verdict::Advice);
    let lo = r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}, {"accept": null}"#;
    let loopback = input("accept", &[lo.to_owned(), state(r#""invalid""#, "drop")]);
    assert_eq!(verdict(&loopback, 0).unwrap().0, Verdict::Fault, "no client is on lo");
}

#[test]
fn a_port_of_tcp_is_none_of_udp_whatever_is_asked_of_it() {
    let peers = [Peer {
        name: InstanceName("lb-b".into()),
        address: "10.0.0.22:9471".parse().unwrap(),
        public_keys: Vec::new(),
    }];
    let found = |items: &[String]| {
        let rules = nft(&items.join(","));
        [Transport::Tcp, Transport::Udp].map(|of| admits(&rules, of, "10.0.0.21:9471".parse().unwrap(), &peers))
    };
    let verdicts = |items: &[String]| found(items).map(|finding| finding.verdict);
    let udp = |act| dport("9471", act).replace("\"tcp\"", "\"udp\"");
    assert_eq!(verdicts(&input("drop", &[dport("9471", "accept")])), [Verdict::Good, Verdict::Advice]);
    assert_eq!(verdicts(&input("drop", &[udp("accept")])), [Verdict::Fault, Verdict::Good]);
    assert_eq!(verdicts(&input("drop", &[dport("9471", "accept"), udp("accept")])), [Verdict::Good; 2]);
    assert_eq!(verdicts(&input("accept", &[udp("drop")])), [Verdict::Good, Verdict::Advice]);
    let others = dport("22", "drop").replace("==", "!=");
    assert_eq!(verdicts(&input("accept", &[others])), [Verdict::Fault, Verdict::Good]);
    let [_, beats] = found(&input("drop", &[dport("9471", "accept")]));
    let fix = "nft insert rule inet f in ip saddr 10.0.0.22 ip daddr 10.0.0.21 udp dport 9471 accept";
    assert_eq!(beats.fix, fix);
}

#[test]
fn iptables_says_the_same_in_its_own_words() {
    let save = |rules: &str| {
        let text = format!("*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:BAD - [0:0]\n{rules}\nCOMMIT\n");
        let rules = iptables::read(&text, "iptables");
        judge(&rules, SERVICE.parse().unwrap(), Some(0)).map(|finding| (finding.verdict, finding.fix))
    };
    let invalid = "-A INPUT -m conntrack --ctstate INVALID -j DROP";
    let (verdict, _) = save(invalid).unwrap();
    assert_eq!(verdict, Verdict::Fault);
    let commented =
        format!("-A INPUT -p tcp -m tcp --dport 6443 -m comment --comment \"the API -j DROP\" -j ACCEPT\n{invalid}");
    assert_eq!(save(&commented), None);
    let other_vip = format!("-A INPUT -d 10.0.0.101/32 -p tcp -m multiport --dports 80,6000:7000 -j ACCEPT\n{invalid}");
    assert_eq!(save(&other_vip).unwrap().0, Verdict::Fault);
    let called = "-A INPUT ! -i lo -m state --state INVALID -j BAD\n-A BAD -j DROP";
    assert_eq!(save(called).unwrap().0, Verdict::Fault);
    let limited = "-A INPUT -m conntrack --ctstate INVALID -m limit --limit 5/min -j DROP";
    assert_eq!(save(limited).unwrap().0, Verdict::Advice);
    let raw =
        format!("{invalid}\nCOMMIT\n*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp --dport 6443 -j CT --notrack");
    assert_eq!(save(&raw), None);
}
