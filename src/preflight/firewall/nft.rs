//! Converts `nft -j list ruleset` (libnftables-json(5)) to [`Ruleset`].

use std::collections::HashMap;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::Value;

use super::rules::{
    Act, Base, Chain, Hook, Matched, Rule, RuleTarget, RuleWay, Ruleset, Side, Test, Translation, Transport, network,
};

/// The result of reading.
#[derive(Debug, Default)]
pub(super) struct RulesRead {
    pub rules: Ruleset,
    /// Families (`ip`, `ip6`) with tables that iptables made with its own matches, which this format does not show.
    pub foreign: Vec<String>,
}

/// Elements of named sets and maps; the key joins family, table and name.
type NamedSets<'j> = HashMap<String, Vec<&'j Value>>;

/// The named sets that the rules of one table can use.
#[derive(Clone, Copy)]
struct Sets<'s, 'j> {
    named: &'s NamedSets<'j>,
    table: &'s str,
}

impl<'s, 'j> Sets<'s, 'j> {
    /// `name` with its `@`.
    fn elements(&self, name: &str) -> Option<&'s [&'j Value]> {
        let key = format!("{} {}", self.table, name.strip_prefix('@')?);
        self.named.get(&key).map(Vec::as_slice)
    }
}

/// `None`: it is not output of nft.
pub(super) fn read(json: &Value) -> Option<RulesRead> {
    let items = json["nftables"].as_array()?;
    let mut named = NamedSets::new();
    for item in items {
        let set = item.get("set").or_else(|| item.get("map"));
        if let Some(set) = set
            && let Some((family, table)) = place(set)
        {
            let elements = set["elem"].as_array().map(|elements| elements.iter().collect()).unwrap_or_default();
            named.insert(format!("{family} {table} {}", set["name"].as_str()?), elements);
        }
    }
    let mut read = RulesRead::default();
    for item in items {
        if let Some(chain) = item.get("chain") {
            read.rules.chains.extend(new_chain(chain));
        } else if let Some(rule) = item.get("rule") {
            add(&mut read, &named, rule);
        }
    }
    Some(read)
}

fn place(item: &Value) -> Option<(&str, &str)> {
    Some((item["family"].as_str()?, item["table"].as_str()?))
}

fn new_chain(chain: &Value) -> Option<Chain> {
    let (family, table) = place(chain)?;
    // Tables of bridges and devices see other packets.
    if !["ip", "ip6", "inet"].contains(&family) {
        return None;
    }
    let base = chain["hook"].as_str().and_then(Hook::named).map(|hook| Base {
        hook,
        priority: chain["prio"].as_i64().unwrap_or(0) as i32,
        drops: chain["policy"] == "drop",
    });
    let name = chain["name"].as_str()?.to_owned();
    Some(Chain { table: format!("{family} {table}"), name, base, rules: Vec::new() })
}

fn add(read: &mut RulesRead, named: &NamedSets, rule: &Value) {
    let Some((family, table)) = place(rule) else { return };
    let (in_table, in_chain) = (format!("{family} {table}"), rule["chain"].as_str().unwrap_or_default());
    let chain = read.rules.chains.iter_mut().find(|chain| chain.table == in_table && chain.name == in_chain);
    let Some(chain) = chain else { return };
    let mut tests = Vec::new();
    // Packets of both families pass an inet chain; other chains see only one.
    tests.extend(match family {
        "ip" => Some(Test::new(Matched::Family(4))),
        "ip6" => Some(Test::new(Matched::Family(6))),
        _ => None,
    });
    let sets = Sets { named, table: &in_table };
    let delete = format!("nft delete rule {in_table} {in_chain} handle {}", rule["handle"]);
    for statement in rule["expr"].as_array().into_iter().flatten() {
        let Some((kind, value)) = statement.as_object().and_then(|object| object.iter().next()) else { continue };
        let act = match kind.as_str() {
            "match" => {
                tests.push(test(value, sets));
                continue;
            }
            "vmap" => {
                chain.rules.extend(of_map(value, sets, &tests, &delete));
                continue;
            }
            "xt" => {
                if !read.foreign.iter().any(|known| known == family) {
                    read.foreign.push(family.to_owned());
                }
                tests.push(Test::other("iptables match"));
                continue;
            }
            "limit" | "quota" | "ct count" => {
                tests.push(Test::other(kind.as_str()));
                continue;
            }
            _ => act(kind, value),
        };
        if act != Act::Pass {
            chain.rules.push(Rule { tests: tests.clone(), act, way: RuleWay::Nft, delete: delete.clone() });
        }
    }
}

fn act(kind: &str, value: &Value) -> Act {
    let target = || value["target"].as_str().unwrap_or_default().to_owned();
    match kind {
        "accept" => Act::Accept,
        "drop" => Act::Drop,
        "reject" => Act::Reject,
        "return" => Act::Return,
        "notrack" => Act::Notrack,
        "jump" => Act::Jump(target()),
        "goto" => Act::Goto(target()),
        "masquerade" | "snat" => Act::Translate(translation(Side::Source, kind, value)),
        "redirect" | "dnat" => Act::Translate(translation(Side::Destination, kind, value)),
        "mangle" => rewriting(value).map_or(Act::Pass, Act::Translate),
        _ => Act::Pass,
    }
}

fn translation(side: Side, kind: &str, value: &Value) -> Translation {
    let to = match kind {
        "masquerade" | "redirect" => RuleTarget::Own,
        _ => value["addr"].as_str().and_then(|text| text.parse().ok()).map_or(RuleTarget::Same, RuleTarget::Address),
    };
    Translation { side, to, ports: ports(&value["port"]), is_stateless: false }
}

/// `ip daddr set 10.0.0.1`: replaces an address or a port.
fn rewriting(value: &Value) -> Option<Translation> {
    let (payload, new) = (&value["key"]["payload"], &value["value"]);
    let (protocol, field) = (payload["protocol"].as_str()?, payload["field"].as_str()?);
    let (to, ports) = match (protocol, field) {
        ("ip" | "ip6", "saddr" | "daddr") => {
            (new.as_str().and_then(|text| text.parse().ok()).map_or(RuleTarget::Same, RuleTarget::Address), None)
        }
        ("tcp" | "th", "sport" | "dport") => (RuleTarget::Same, ports(new)),
        _ => return None,
    };
    Some(Translation { side: side(field), to, ports, is_stateless: true })
}

/// Makes a rule of each element of a verdict map.
fn of_map(vmap: &Value, sets: Sets, before: &[Test], delete: &str) -> Vec<Rule> {
    let inline = vmap["data"]["set"].as_array().map(|set| set.iter().collect::<Vec<_>>());
    let elements = inline.or_else(|| Some(sets.elements(vmap["data"].as_str()?)?.to_vec())).unwrap_or_default();
    let rules = elements.into_iter().filter_map(|element| {
        let (key, verdict) = (element.get(0)?, element.get(1)?);
        let (kind, value) = verdict.as_object()?.iter().next()?;
        let of = matched(&vmap["key"], &[key]).unwrap_or_else(|| Matched::Other("map".to_owned()));
        let tests = before.iter().cloned().chain([Test::new(of)]).collect();
        Some(Rule { tests, act: act(kind, value), way: RuleWay::Nft, delete: delete.to_owned() })
    });
    rules.collect()
}

fn test(value: &Value, sets: Sets) -> Test {
    let (left, right) = (&value["left"], &value["right"]);
    let values: Vec<&Value> = match right {
        Value::String(name) if name.starts_with('@') => match sets.elements(name) {
            Some(elements) => elements.to_vec(),
            None => return Test::other(name.as_str()),
        },
        Value::Array(values) => values.iter().collect(),
        _ if right["set"].is_array() => right["set"].as_array().into_iter().flatten().collect(),
        _ => vec![right],
    };
    let operator = value["op"].as_str().unwrap_or("==");
    match matched(left, &values) {
        Some(of) if ["==", "in", "!="].contains(&operator) => Test { of, negated: operator == "!=" },
        _ => Test::other(short(left)),
    }
}

/// `None`: the test decides nothing here, or its form is unknown.
fn matched(left: &Value, right: &[&Value]) -> Option<Matched> {
    let right: Vec<_> = right.iter().map(|value| value.get("elem").map_or(*value, |elem| &elem["val"])).collect();
    let texts = || right.iter().map(|value| text(value)).collect::<Option<Vec<_>>>();
    if let Some(mark) = mark(left, &right) {
        return Some(mark);
    }
    if left["ct"]["key"] == "state" {
        return Some(Matched::State(texts()?));
    }
    let flags = &left["&"].get(0).unwrap_or(left)["payload"];
    if flags["protocol"] == "tcp" && flags["field"] == "flags" {
        return (texts()? == ["syn"]).then_some(Matched::Begins);
    }
    match left["meta"]["key"].as_str() {
        Some("l4proto") => return Some(Matched::Protocol(texts()?)),
        Some("nfproto") => {
            return match &texts()?[..] {
                [one] if one == "ipv4" => Some(Matched::Family(4)),
                [one] if one == "ipv6" => Some(Matched::Family(6)),
                _ => None,
            };
        }
        Some("iif" | "iifname" | "oif" | "oifname") => {
            return Some(Matched::Interface(texts()?));
        }
        _ => {}
    }
    let payload = &left["payload"];
    match (payload["protocol"].as_str()?, payload["field"].as_str()?) {
        (of @ ("tcp" | "udp" | "th"), field @ ("sport" | "dport")) => {
            let ports = right.iter().map(|value| ports(value)).collect::<Option<_>>()?;
            Some(Matched::Port(Transport::named(of), side(field), ports))
        }
        ("ip" | "ip6", field @ ("saddr" | "daddr")) => {
            Some(Matched::Address(side(field), right.iter().map(|value| net(value)).collect::<Option<_>>()?))
        }
        ("ip", "protocol") | ("ip6", "nexthdr") => Some(Matched::Protocol(texts()?)),
        (protocol @ ("udp" | "sctp" | "icmp" | "icmpv6" | "dccp" | "udplite"), _) => {
            Some(Matched::Protocol(vec![protocol.to_owned()]))
        }
        _ => None,
    }
}

/// `meta mark 0x1`, `meta mark & 0x4000 == 0x4000`
fn mark(left: &Value, right: &[&Value]) -> Option<Matched> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let [value] = right else { return None };
    let (of, mask) = match left["&"].as_array().map(Vec::as_slice) {
        Some([of, mask]) => (of, number(mask)?),
        _ => (left, u32::MAX),
    };
    let value = number(value)?;
    (of["meta"]["key"] == "mark").then_some(Matched::Mark { mask, value })
}

fn side(field: &str) -> Side {
    if field.starts_with('s') { Side::Source } else { Side::Destination }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()))
}

fn ports(value: &Value) -> Option<RangeInclusive<u16>> {
    let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    match value["range"].as_array() {
        Some(ends) => Some(port(ends.first()?)?..=port(ends.get(1)?)?),
        None => port(value).map(|port| port..=port),
    }
}

fn net(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => network(&format!("{}/{}", prefix["addr"].as_str()?, prefix["len"].as_u64()?)),
        None => network(value.as_str()?),
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().filter(|character| !"{}\"".contains(*character)).take(60).collect()
}
