//! keepalived.conf: `[vip]`, and `[peers]` where the file names the other hosts.

pub(super) mod changeover;
mod conditions;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::ForeignFile;
use super::haproxy::HaproxyAddresses;
use super::ledger::Ledger;
use super::toml::{Toml, array, quoted};
use super::variable;
use crate::model::duration::display;
use crate::model::keepalived::{asks_baton, definition, substituted, words};

/// The port of the link between instances, as the examples have it.
pub(super) const PEER_PORT: u16 = 9471;
/// keepalived itself has at most four.
const DEPTH_MAX: usize = 16;
pub(super) const KEY_FILE: &str = "/etc/baton/peers.key";

/// What deploy/keepalived has in its vrrp_script.
const ASKING: &str =
    "script \"/usr/bin/baton ready --within 500ms\", interval 0.5, timeout 1, fall 2, rise 2, no weight";

/// A line, or a part of it, in the blocks around it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeepalivedLine {
    /// From 0.
    line: usize,
    /// The words before the braces around it, outermost first.
    blocks: Vec<Vec<String>>,
    words: Vec<String>,
    /// Whether a block begins here.
    opens: bool,
}

/// What the `vrrp_instance`s say. Each value has its line.
#[derive(Debug, Default)]
struct VrrpSettings {
    /// The name of the first, which counts.
    name: Option<String>,
    interface: Option<(usize, String)>,
    priority: Option<(usize, u8)>,
    addresses: Vec<(usize, IpAddr)>,
    own: Option<(usize, IpAddr)>,
    peers: Vec<(usize, IpAddr)>,
    advert: Option<(usize, Duration)>,
    on_gain: Option<(usize, Vec<String>)>,
    on_loss: Option<(usize, Vec<String>)>,
}

/// Writes `[vip]` into `toml`, and into `steps` what is to do by hand. `haproxy`: the balancer beside it.
pub(super) fn translate(
    file: &ForeignFile,
    haproxy: &HaproxyAddresses,
    toml: &mut Toml,
    steps: &mut Vec<String>,
) -> Ledger {
    let mut ledger = Ledger::new(file);
    let mut vrrp = VrrpSettings::default();
    let items = items(&file.text, &mut ledger);
    for item in &items {
        read(item, &mut vrrp, &mut ledger);
    }
    let is_complete = !vrrp.addresses.is_empty() && vrrp.interface.is_some();
    match vrrp.own {
        Some((line, own)) if is_complete && !vrrp.peers.is_empty() => {
            fleet(&vrrp, (line, own), toml, &mut ledger);
            built_in(&vrrp, toml, &mut ledger);
            conditions::note(&items, &vrrp, &haproxy.ports, &mut ledger);
            steps.extend(changeover::of_wildcards(&vrrp.addresses, haproxy));
            steps.push(key_step());
            steps.push("follow \"From keepalived to Baton, without a reset\" in docs/vip.md, host by host".to_owned());
        }
        _ => return external(&vrrp, &items, is_complete, (file, haproxy), toml, steps),
    }
    variables(&items, &mut ledger);
    for (line, text) in file.text.lines().enumerate() {
        if !words(text).is_empty() && !ledger.has_note(line) {
            ledger.kept(line, "another line decides");
        }
    }
    ledger
}

/// The lines of `text` as parts of blocks.
fn items(text: &str, ledger: &mut Ledger) -> Vec<KeepalivedLine> {
    let mut variables = HashMap::new();
    let mut items: Vec<KeepalivedLine> = Vec::new();
    let mut blocks: Vec<Vec<String>> = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let all = words(text);
        if let Some((name, value)) = definition(&all) {
            variables.insert(name, value);
            ledger.kept(line, "its value is written where the variable stands");
            continue;
        }
        let mut pending: Vec<String> = Vec::new();
        for word in all {
            match &*word {
                "{" if blocks.len() == DEPTH_MAX => {
                    ledger.missing(line, "its blocks lie in more than 16 others: the rest of the file was not read");
                    return items;
                }
                "{" => {
                    // The name may be on the line before.
                    if pending.is_empty()
                        && let Some(before) = items.last_mut().filter(|it| it.blocks == blocks && !it.opens)
                    {
                        before.opens = true;
                        blocks.push(before.words.clone());
                        ledger.kept(line, "a brace");
                        continue;
                    }
                    let words = std::mem::take(&mut pending);
                    items.push(KeepalivedLine { line, blocks: blocks.clone(), words: words.clone(), opens: true });
                    blocks.push(words);
                }
                "}" => {
                    if !pending.is_empty() {
                        let words = std::mem::take(&mut pending);
                        items.push(KeepalivedLine { line, blocks: blocks.clone(), words, opens: false });
                    }
                    ledger.kept(line, "a brace");
                    blocks.pop();
                }
                word if word.starts_with('@') && pending.is_empty() => {
                    ledger.missing(
                        line,
                        format!(
                            "{word}: Baton's file has no lines for one of several hosts, and this one was read for all"
                        ),
                    );
                }
                word => pending.push(substituted(word, &variables)),
            }
        }
        if !pending.is_empty() {
            items.push(KeepalivedLine { line, blocks: blocks.clone(), words: pending, opens: false });
        }
    }
    items
}

/// Notes all but the conditions: what they name may come later in the file.
fn read(item: &KeepalivedLine, vrrp: &mut VrrpSettings, ledger: &mut Ledger) {
    let line = item.line;
    let keyword = item.words.first().map_or("", String::as_str);
    let outer = item.blocks.first().and_then(|words| words.first()).map(String::as_str);
    match outer {
        None => top(item, keyword, vrrp, ledger),
        Some("vrrp_instance") => {
            let name = item.blocks[0].get(1);
            if name == vrrp.name.as_ref() {
                instance(item, keyword, vrrp, ledger);
            } else {
                ledger.no_equal(line, "it belongs to a further vrrp_instance, which is not written");
            }
        }
        Some("global_defs") => global(keyword, line, ledger),
        Some("vrrp_script" | "vrrp_track_process" | "vrrp_track_file" | "track_file") => {}
        Some("vrrp_sync_group") if conditions::is_condition(item) => {}
        Some("vrrp_sync_group") => ledger.kept(line, "Baton moves all addresses together"),
        Some("virtual_server" | "virtual_server_group") => {
            ledger.missing(line, "Baton forwards by its frontends, not by IPVS")
        }
        Some("static_ipaddress" | "static_routes" | "static_rules") => {
            ledger.missing(
                line,
                "Baton sets no address, route or rule that stays on a host: the network's configuration does",
            );
        }
        Some(other) => ledger.missing(line, format!("`baton import` does not know the block {other}")),
    }
}

fn top(item: &KeepalivedLine, keyword: &str, vrrp: &mut VrrpSettings, ledger: &mut Ledger) {
    let line = item.line;
    match keyword {
        "vrrp_instance" => {
            let name = item.words.get(1).cloned().unwrap_or_default();
            if vrrp.name.is_none() {
                vrrp.name = Some(name);
                ledger.translated(line, "[vip]");
            } else {
                ledger.missing(line, "Baton has one [vip]: all addresses are on one host at a time. Add these addresses to it, or leave them to keepalived");
            }
        }
        "vrrp_script" | "vrrp_track_process" | "vrrp_track_file" | "track_file" => {}
        "vrrp_sync_group" => ledger.kept(line, "Baton moves all addresses together"),
        "virtual_server" | "virtual_server_group" => {
            ledger.missing(line, "Baton forwards by its frontends, not by IPVS")
        }
        "static_ipaddress" | "static_routes" | "static_rules" => {
            ledger.missing(
                line,
                "Baton sets no address, route or rule that stays on a host: the network's configuration does",
            );
        }
        "global_defs" => ledger.kept(line, "a heading"),
        "include" => ledger.missing(line, "the included file was not read"),
        "" => ledger.kept(line, "a block without a name"),
        other => ledger.missing(line, format!("`baton import` does not know {other:?}")),
    }
}

fn global(keyword: &str, line: usize, ledger: &mut Ledger) {
    match keyword {
        "router_id" => ledger.no_equal(line, "[instance] name is the name of this instance among its peers"),
        "notification_email"
        | "notification_email_from"
        | "smtp_server"
        | "smtp_connect_timeout"
        | "smtp_alert"
        | "smtp_helo_name"
        | "lvs_flush" => {
            ledger.no_equal(line, "Baton sends no mail, and raises alerts by its metrics: deploy/prometheus")
        }
        word if word.contains('@') => {
            ledger.no_equal(line, "Baton sends no mail, and raises alerts by its metrics: deploy/prometheus")
        }
        "enable_script_security"
        | "script_user"
        | "vrrp_iptables"
        | "vrrp_ipsets"
        | "vrrp_strict"
        | "vrrp_version"
        | "vrrp_mcast_group4"
        | "vrrp_mcast_group6"
        | "vrrp_skip_check_adv_addr"
        | "max_auto_priority"
        | "vrrp_priority"
        | "vrrp_rt_priority"
        | "vrrp_no_swap"
        | "checker_priority"
        | "vrrp_higher_prio_send_advert"
        | "vrrp_lower_prio_no_advert"
        | "dynamic_interfaces"
        | "process_names"
        | "enable_snmp_vrrp"
        | "net_namespace" => {
            ledger.no_equal(line, "Baton's instances speak no VRRP: they agree over the link of [peers]");
        }
        word if word.starts_with("vrrp_garp") || word.starts_with("vrrp_gna") => {
            ledger.kept(line, "Baton announces the addresses, and repeats it");
        }
        other => ledger.no_equal(line, format!("{other}: it sets keepalived itself")),
    }
}

fn instance(item: &KeepalivedLine, keyword: &str, vrrp: &mut VrrpSettings, ledger: &mut Ledger) {
    let line = item.line;
    let value = item.words.get(1).map_or("", String::as_str);
    let block = item.blocks.get(1).and_then(|words| words.first()).map(String::as_str);
    match block {
        Some("virtual_ipaddress" | "virtual_ipaddress_excluded") => address(item, vrrp, ledger),
        Some("unicast_peer") => match keyword.parse() {
            Ok(ip) => vrrp.peers.push((line, ip)),
            Err(_) => ledger.missing(line, format!("{keyword} is no address")),
        },
        Some("track_script" | "track_interface" | "track_process" | "track_file") => {}
        Some("authentication") => {
            ledger.translated(line, format!("the key in {KEY_FILE}, as `baton genkey` prints it, shows who is a peer"));
        }
        Some("virtual_routes" | "virtual_rules") => {
            ledger.missing(line, "Baton moves addresses only: on_gain and on_loss name a program that moves routes");
        }
        Some(other) => ledger.missing(line, format!("`baton import` does not know the block {other}")),
        None => match keyword {
            "interface" => vrrp.interface = Some((line, value.to_owned())),
            "priority" => match value.parse() {
                Ok(priority) => vrrp.priority = Some((line, priority)),
                Err(_) => ledger.missing(line, format!("{value:?} is no number from 0 to 255")),
            },
            "advert_int" => match value.parse::<f64>().ok().filter(|it| (0.01..=255.0).contains(it)) {
                Some(seconds) => vrrp.advert = Some((line, Duration::from_millis((seconds * 1000.0).round() as u64))),
                None => ledger.missing(line, format!("{value:?} is no number of seconds")),
            },
            // keepalived reads an address with the length of its prefix, too.
            "unicast_src_ip" | "mcast_src_ip" => match value.split('/').next().unwrap_or_default().parse() {
                Ok(ip) => vrrp.own = Some((line, ip)),
                Err(_) => ledger.missing(line, format!("{value} is no address: write it in place of the variable")),
            },
            "notify_master" => hook(item, &mut vrrp.on_gain, ledger),
            "notify_backup" | "notify_fault" | "notify_stop" => hook(item, &mut vrrp.on_loss, ledger),
            "notify" => ledger.missing(
                line,
                "name the program in on_gain and on_loss: Baton runs it with gain or loss and the addresses",
            ),
            "state" => ledger.kept(line, "the instances agree who has the VIP; the priority counts when nobody has it"),
            "nopreempt" => ledger.kept(line, "Baton takes the VIP from no instance that has it"),
            "preempt" | "preempt_delay" => {
                ledger.missing(line, "Baton takes the VIP from no instance that has it: `baton evacuate --to` moves it")
            }
            "virtual_router_id" => {
                ledger.no_equal(line, "Baton's instances speak no VRRP: they agree over the link of [peers]")
            }
            "track_interface" | "track_script" | "track_process" | "track_file" => {}
            "dont_track_primary" => ledger.missing(line, "Baton gives the VIP up when its interface has no carrier"),
            "use_vmac" | "vmac_xmit_base" | "use_ipvlan" => ledger
                .missing(line, "Baton has no virtual MAC address: it announces the address with the interface's own"),
            "authentication" => ledger
                .translated(line, format!("the key in {KEY_FILE}, as `baton genkey` prints it, shows who is a peer")),
            "virtual_ipaddress" | "virtual_ipaddress_excluded" | "unicast_peer" => ledger.kept(line, "a heading"),
            "virtual_routes" | "virtual_rules" => {
                ledger.missing(line, "Baton moves addresses only: on_gain and on_loss name a program that moves routes")
            }
            "smtp_alert"
            | "debug"
            | "lvs_sync_daemon_interface"
            | "lvs_sync_daemon"
            | "native_ipv6"
            | "accept"
            | "no_accept"
            | "promote_secondaries"
            | "version"
            | "skip_check_adv_addr"
            | "strict_mode"
            | "kernel_rx_buf_size"
            | "higher_prio_send_advert"
            | "lower_prio_no_advert"
            | "unicast_fault_no_peers"
            | "check_unicast_src" => {
                ledger.no_equal(line, format!("{keyword}: it sets keepalived itself"));
            }
            word if word.starts_with("garp_") || word.starts_with("gna_") => {
                ledger.kept(line, "Baton announces the addresses, and repeats it")
            }
            other => ledger.missing(line, format!("`baton import` does not know {other:?} in vrrp_instance")),
        },
    }
}

fn address(item: &KeepalivedLine, vrrp: &mut VrrpSettings, ledger: &mut Ledger) {
    let line = item.line;
    let text = item.words.first().map_or("", String::as_str);
    let ip = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
    let usable = |ip: &IpAddr| {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local)
    };
    let Some(ip) = ip.ok().map(|ip| ip.to_canonical()).filter(usable) else {
        ledger.missing(line, format!("{text} is no address that Baton can move; write the value of a variable"));
        return;
    };
    if vrrp.addresses.iter().any(|(_, other)| *other == ip) {
        ledger.kept(line, "another line has this address");
        return;
    }
    vrrp.addresses.push((line, ip));
    let mut words = item.words.iter().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().map_or("", String::as_str);
        match &**word {
            "dev" if vrrp.interface.as_ref().is_some_and(|(_, own)| own == value) => {}
            "dev" if vrrp.interface.is_none() => vrrp.interface = Some((line, value.to_owned())),
            "dev" => ledger.missing(line, format!("dev {value}: all addresses of [vip] are on one interface")),
            "brd" | "label" | "scope" => ledger.no_equal(line, format!("{word}: Baton adds the address without it")),
            other => ledger.no_equal(line, format!("{other}: it sets keepalived itself")),
        }
    }
}

fn hook(item: &KeepalivedLine, hook: &mut Option<(usize, Vec<String>)>, ledger: &mut Ledger) {
    let line = item.line;
    // The command is one word; a user and a group may follow (keepalived.conf(5)).
    let script = item.words.get(1).map(String::as_str).unwrap_or_default();
    let command: Vec<_> = script.split_whitespace().map(str::to_owned).collect();
    if script.contains(['"', '\'']) {
        return ledger.missing(line, "quotes within the command: write its words into on_gain and on_loss one by one");
    }
    if let Some(user) = item.words.get(2) {
        ledger.missing(line, format!("Baton runs it as its own user, not as {user}"));
    }
    match command.first().is_some_and(|program| program.starts_with('/')) {
        true if hook.is_none() => {
            ledger.kept(line, "Baton adds gain or loss and the addresses as last arguments");
            *hook = Some((line, command));
        }
        true => ledger.missing(line, "on_loss is one program, for every way in which a host loses the VIP"),
        false => ledger.missing(line, "on_gain and on_loss need the whole path of a program"),
    }
}

/// How the instances get their key.
pub(super) fn key_step() -> String {
    format!("run `(umask 077; baton genkey > {KEY_FILE})` once, and copy the file to every host")
}

/// A name that every host gives to the one with this address.
pub(super) fn host_name(ip: IpAddr) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    format!("lb-{}", ip.to_string().chars().map(plain).collect::<String>())
}

fn fleet(vrrp: &VrrpSettings, (line, own): (usize, IpAddr), toml: &mut Toml, ledger: &mut Ledger) {
    let place = ledger.place(line);
    toml.table("[instance]");
    toml.key("name", &quoted(&host_name(own)), &place);
    toml.table("[peers]");
    toml.key("listen", &quoted(&SocketAddr::new(own, PEER_PORT).to_string()), &place);
    toml.key("key_file", &quoted(KEY_FILE), "baton genkey");
    ledger.translated(line, "[instance] name and [peers] listen");
    let mut seen = vec![own];
    for (line, ip) in &vrrp.peers {
        if seen.contains(ip) {
            ledger.kept(*line, "another line has this address");
            continue;
        }
        seen.push(*ip);
        let place = ledger.place(*line);
        toml.table("[[peers.peer]]");
        toml.key("name", &quoted(&host_name(*ip)), &place);
        toml.key("address", &quoted(&SocketAddr::new(*ip, PEER_PORT).to_string()), &place);
        ledger.translated(*line, "[[peers.peer]]");
    }
}

fn built_in(vrrp: &VrrpSettings, toml: &mut Toml, ledger: &mut Ledger) {
    toml.table("[vip]");
    toml.comment("To stay with keepalived, write only mode = \"external\" here.");
    vip_keys(vrrp).into_iter().for_each(|(key, value, line, words)| {
        toml.key(key, &value, &ledger.place(line));
        ledger.translated(line, words);
    });
    for (line, _) in &vrrp.addresses {
        ledger.translated(*line, "[vip] addresses");
    }
    if let Some((line, _)) = vrrp.advert {
        ledger.no_equal(line, "the instances send each other a beat every 50 ms");
    }
}

/// Names the variables that the file does not define, as those of a template have to be filled in.
fn variables(items: &[KeepalivedLine], ledger: &mut Ledger) {
    for item in items {
        if let Some(name) = item.words.iter().find_map(|word| variable(word)) {
            ledger.unknown_variable(item.line, &name, "this file does not define");
        }
    }
}

/// What tells keepalived whether this host should have the VIP, without a question to Baton: scripts and watched processes.
fn without_baton(items: &[KeepalivedLine]) -> impl Iterator<Item = &KeepalivedLine> {
    items.iter().filter(|item| {
        let block = item.blocks.first().and_then(|words| words.first()).map_or("", String::as_str);
        match (block, item.words.first().map_or("", String::as_str)) {
            ("vrrp_script", "script") => !asks_baton(&item.words),
            ("vrrp_track_process", "process") => item.words.iter().any(|word| word.contains("haproxy")),
            _ => false,
        }
    })
}

/// keepalived goes on: the file does not say which other hosts there are, and two hosts that do not know each other would both
/// take the VIP. So every line of it stays in force.
fn external(
    vrrp: &VrrpSettings,
    items: &[KeepalivedLine],
    is_complete: bool,
    (file, haproxy): (&ForeignFile, &HaproxyAddresses),
    toml: &mut Toml,
    steps: &mut Vec<String>,
) -> Ledger {
    const STAYS: &str =
        "keepalived goes on with it: without unicast_src_ip and unicast_peer the other hosts are not known to Baton";
    let mut ledger = Ledger::new(file);
    if let Some((line, interval)) = vrrp.advert {
        toml.table("[cluster]");
        toml.key("vrrp_advert_interval", &quoted(&display(interval)), &ledger.place(line));
        ledger.translated(line, "[cluster] vrrp_advert_interval, for the times that `baton check` computes");
    }
    toml.table("[vip]");
    toml.comment(
        "keepalived goes on moving the VIP. Once [peers] names the other hosts (config/baton.toml), Baton can do it:",
    );
    if is_complete {
        toml.comment("remove mode, and write");
        for (key, value, line, _) in vip_keys(vrrp) {
            toml.comment(&format!("{key} = {value}  # {}", ledger.place(line)));
        }
    }
    toml.bare_key("mode", "\"external\"");
    variables(items, &mut ledger);
    let others: Vec<_> = without_baton(items).map(|item| item.line).collect();
    for line in &others {
        ledger.missing(
            *line,
            "it does not run `baton ready`: what looks at HAProxy fails on every host once HAProxy has stopped, and then no host has the VIP",
        );
    }
    steps.extend(changeover::of_wildcards(&vrrp.addresses, haproxy));
    if !others.is_empty() {
        let places = others.iter().map(|line| ledger.place(*line)).collect::<Vec<_>>().join(", ");
        let when = changeover::of_script(haproxy);
        steps.push(format!(
            "{when}, let keepalived ask Baton in place of {places}: a tracked vrrp_script with {ASKING}, as \
             deploy/keepalived/keepalived.conf has it"
        ));
    }
    for (line, text) in file.text.lines().enumerate() {
        let words = words(text);
        if asks_baton(&words) && words[0] == "script" {
            ledger
                .kept(line, "keepalived goes on with it; `baton ready` tells it whether this host should have the VIP");
        } else if !words.is_empty() && !ledger.has_note(line) {
            ledger.kept(line, STAYS);
        }
    }
    ledger
}

/// The keys of `[vip]`, with the line of each, and the note for it.
fn vip_keys(vrrp: &VrrpSettings) -> Vec<(&'static str, String, usize, String)> {
    let mut keys = Vec::new();
    let mut add = |key: &'static str, value: String, line: usize| {
        let words = format!("[vip] {key} = {value}");
        keys.push((key, value, line, words));
    };
    if let Some((line, _)) = vrrp.addresses.first() {
        let all: Vec<_> =
            vrrp.addresses.iter().map(|(_, ip)| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })).collect();
        add("addresses", array(&all), *line);
    }
    if let Some((line, interface)) = &vrrp.interface {
        add("interface", quoted(interface), *line);
    }
    if let Some((line, priority)) = vrrp.priority {
        add("priority", priority.to_string(), line);
    }
    for (key, hook) in [("on_gain", &vrrp.on_gain), ("on_loss", &vrrp.on_loss)] {
        if let Some((line, command)) = hook {
            add(key, array(command), *line);
        }
    }
    keys
}
