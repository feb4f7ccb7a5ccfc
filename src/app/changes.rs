//! The changes of a reload, in words for the log and for the operator who ordered it.

mod spell;

use std::sync::Arc;

use crate::addr::VipAddr;
use crate::admin::diff::ConfigChange;
use crate::config::{Backend, Config, Discover, Frontend, OffloadMode, Peers, SharePort, VipSettings};
use crate::model::secrets::shown_value;
use spell::{Spell, spelled};

const ANEW: &str = "it needs a restart: `baton evacuate`, then `systemctl restart baton`";

/// The keys of a probe's TLS.
const PROBE_TLS: &str = "ca_file, client_cert_file, client_key_file, server_name or insecure_skip_verify";

/// Changes that a reload cannot make: a sentence each, with the command that can. Empty: none. `has_offload`: whether this
/// process can offload flows.
pub(super) fn refused(old: &Config, new: &Config, has_offload: bool) -> Vec<String> {
    const UPGRADE: &str = "`baton upgrade` starts a new process with it, which gets all flows";
    const KEEP: &str = "without it, the slot is this instance's position among all names, which has changed; set it \
                        to the slot that `baton peers` shows, or restart: `baton evacuate`, then `systemctl restart \
                        baton`";
    const EMPTY: &str = "it needs an empty map: `baton evacuate`, stop Baton, `baton offload remove`, start it";
    let places = |config: &Config| config.peers.as_ref().map(|peers| (peers.name.clone(), peers.slot));
    let (before, after) = (places(old), places(new));
    let [renamed, moved] = match (&before, &after) {
        (Some(before), Some(after)) => [before.0 != after.0, before.1 != after.1],
        _ => [false; 2],
    };
    let keys = [
        ("process.workers", old.process.workers != new.process.workers, UPGRADE),
        (
            "offload.mode",
            old.offload.mode == OffloadMode::Off && new.offload.mode != OffloadMode::Off && !has_offload,
            UPGRADE,
        ),
        ("offload.interfaces", old.offload.interfaces != new.offload.interfaces, UPGRADE),
        ("offload.max_flows", old.offload.max_flows != new.offload.max_flows, EMPTY),
        ("offload.pins", old.offload.pins != new.offload.pins, EMPTY),
        ("instance.name", renamed, ANEW),
        ("instance.slot", moved, if new.instance.slot.is_some() { ANEW } else { KEEP }),
        ("[peers]", before.is_some() != after.is_some(), UPGRADE),
    ];
    let refused = keys.iter().filter(|(_, changed, _)| *changed);
    refused.map(|(key, _, how)| format!("a reload cannot change {key}: {how}")).collect()
}

/// As [`refused`], of listening addresses that are served in the other way than share_port asks for.
pub(super) fn refused_ports(ports: &[(VipAddr, SharePort)]) -> Vec<String> {
    let line = |(address, asked): &(VipAddr, SharePort)| {
        format!("a reload cannot change share_port of {address} to \"{}\": {ANEW}", asked.label())
    };
    ports.iter().map(line).collect()
}

/// Each change from `old` to `new`; empty if there is none.
pub(super) fn between(old: &Config, new: &Config) -> Vec<ConfigChange> {
    let mut changes = Vec::new();
    tables(old, new, &mut changes);
    for frontend in &new.frontends {
        match named(&old.frontends, &frontend.name) {
            None => ChangePlace::Frontend(&frontend.name).says("added", &mut changes),
            Some(before) => compare(before, frontend, &mut changes),
        }
    }
    for frontend in old.frontends.iter().filter(|frontend| named(&new.frontends, &frontend.name).is_none()) {
        ChangePlace::Frontend(&frontend.name).says("removed: its flows drain", &mut changes);
    }
    changes
}

/// The tables that stand once in the file.
fn tables(old: &Config, new: &Config, changes: &mut Vec<ConfigChange>) {
    let (a, b) = (&old.admin, &new.admin);
    ChangePlace::Table("admin").settings(
        a != b,
        spelled!(a, b; "http" => http, "socket" => socket, "metrics" => metrics, "allowed_hosts" => allowed_hosts, "group" => group),
        changes,
    );
    let (a, b) = (&old.process, &new.process);
    let process = spelled!(a, b; "workers" => workers, "max_connections" => max_connections,
        "shutdown_delay" => shutdown_delay, "stop_timeout" => stop_timeout, "reset_within" => reset_within,
        "reset_rate" => reset_rate);
    ChangePlace::Table("process").settings(a != b, process, changes);
    let (a, b) = (&old.log, &new.log);
    let log =
        spelled!(a, b; "format" => format, "level" => level, "flows" => flows, "flows_per_second" => flows_per_second);
    ChangePlace::Table("log").settings(a != b, log, changes);
    let (a, b) = (&old.recorder, &new.recorder);
    let recorder = spelled!(a, b; "directory" => directory, "size_mb" => size_mb);
    ChangePlace::Table("recorder").settings(a != b, recorder, changes);
    let (a, b) = (&old.names, &new.names);
    let names =
        spelled!(a, b; "file" => file, "reverse_dns" => reverse_dns, "reverse_dns_servers" => reverse_dns_servers);
    ChangePlace::Table("names").settings(a != b, names, changes);
    let (a, b) = (&old.offload, &new.offload);
    let offload = spelled!(a, b; "mode" => mode, "interfaces" => interfaces, "max_flows" => max_flows,
        "after_round_trips" => after_round_trips, "after" => after, "pins" => pins);
    ChangePlace::Table("offload").settings(a != b, offload, changes);
    let (a, b) = (&old.cluster, &new.cluster);
    let cluster = spelled!(a, b; "node_monitor_grace_period" => node_monitor_grace_period, "lease_renew" => lease_renew,
        "vrrp_advert_interval" => vrrp_advert_interval, "vrrp_track_time" => vrrp_track_time);
    ChangePlace::Table("cluster").settings(a != b, cluster, changes);
    let (a, b) = (&old.instance, &new.instance);
    ChangePlace::Table("instance").settings(a != b, spelled!(a, b; "name" => name, "slot" => slot), changes);
    let (a, b) = (&old.failover, &new.failover);
    let failover = spelled!(a, b; "challenge" => challenge, "resets_per_second" => resets_per_second, "guard" => guard,
        "priority" => priority, "track_file" => track_file);
    ChangePlace::Table("failover").settings(a != b, failover, changes);
    optional("peers", old.peers.as_ref(), new.peers.as_ref(), peers, changes);
    optional("vip", old.vip.as_ref(), new.vip.as_ref(), vip, changes);
}

fn peers(old: &Peers, new: &Peers, changes: &mut Vec<ConfigChange>) {
    let peers = spelled!(old, new; "listen" => listen, "beat_port" => beat_port, "key_file" => shared,
        "private_key_file" => own_key, "sync_deadline" => sync_deadline, "peer" => peers);
    ChangePlace::Table("peers").settings(old != new, peers, changes);
}

fn vip(old: &VipSettings, new: &VipSettings, changes: &mut Vec<ConfigChange>) {
    let vip = spelled!(old, new; "addresses" => addresses, "interface" => interface, "priority" => priority,
        "on_gain" => on_gain, "on_loss" => on_loss);
    ChangePlace::Table("vip").settings(old != new, vip, changes);
}

fn optional<T>(
    table: &'static str,
    old: Option<&T>,
    new: Option<&T>,
    both: fn(&T, &T, &mut Vec<ConfigChange>),
    changes: &mut Vec<ConfigChange>,
) {
    match (old, new) {
        (Some(old), Some(new)) => both(old, new, changes),
        (None, Some(_)) => ChangePlace::Table(table).says("added", changes),
        (Some(_), None) => ChangePlace::Table(table).says("removed", changes),
        (None, None) => {}
    }
}

fn compare(old: &Frontend, new: &Frontend, changes: &mut Vec<ConfigChange>) {
    let place = ChangePlace::Frontend(&new.name);
    for address in new.listen.iter().filter(|address| !old.listen.contains(address)) {
        place.says(&format!("listens on {address}"), changes);
    }
    for address in old.listen.iter().filter(|address| !new.listen.contains(address)) {
        place.says(&format!("no longer listens on {address}"), changes);
    }
    for backend in &new.backends {
        let place = ChangePlace::Backend(&new.name, &backend.name);
        match old.backends.iter().find(|before| before.name == backend.name) {
            None => place.says("added", changes),
            Some(before) => compare_backend(before, backend, place, changes),
        }
    }
    for backend in old.backends.iter().filter(|before| !new.backends.iter().any(|after| after.name == before.name)) {
        ChangePlace::Backend(&new.name, &backend.name).says("removed: its flows drain", changes);
    }
    let rest = Frontend { listen: new.listen.clone(), backends: new.backends.clone(), ..old.clone() };
    let mut settings = spelled!(old, new; "share_port" => share_port, "balance" => balance, "source" => source,
        "connect_timeout" => connect_timeout, "hedge_after" => hedge_after, "connect_attempts" => connect_attempts,
        "drain_timeout" => drain_timeout, "idle_timeout" => idle_timeout, "keepalive_idle" => keepalive.idle,
        "keepalive_interval" => keepalive.interval, "keepalive_count" => keepalive.count,
        "user_timeout" => keepalive.user_timeout, "accept_proxy_from" => proxy_protocol.accept_from,
        "proxy_header_timeout" => proxy_protocol.header_timeout, "send_proxy_v2" => proxy_protocol.send_v2,
        "max_connections" => limits.max_connections,
        "max_connections_per_source" => limits.max_connections_per_source,
        "accept_rate_per_source" => limits.accept_rate_per_source,
        "source_mask_ipv4" => limits.source_mask.ipv4_bits, "source_mask_ipv6" => limits.source_mask.ipv6_bits,
        "allow" => allow, "deny" => deny, "rebalance.when" => rebalance.when,
        "rebalance.per_minute" => rebalance.per_minute, "rebalance.min_idle" => rebalance.min_idle,
        "rebalance.tolerance_percent" => rebalance.tolerance_percent);
    settings.extend(discovery(old, new));
    settings.extend(health(old, new));
    // The content of the certificate files counts too, and has no short form.
    let has_other_tls = old.health.tls != new.health.tls;
    if has_other_tls {
        place.says(&format!("probes by other TLS settings ({PROBE_TLS})"), changes);
    }
    place.settings(rest != *new && !has_other_tls, settings, changes);
}

fn discovery(old: &Frontend, new: &Frontend) -> Vec<(&'static str, String, String)> {
    let [old, new] = [old, new].map(|it| it.discover.as_ref());
    let source = |it: Option<&Discover>| it.map_or("none".to_owned(), |it| it.source.label());
    let cache_file = |it: Option<&Discover>| it.map(|it| it.cache_file.clone()).spell();
    vec![("discover, its source", source(old), source(new)), ("discover.cache_file", cache_file(old), cache_file(new))]
}

fn health(old: &Frontend, new: &Frontend) -> Vec<(&'static str, String, String)> {
    let (old, new) = (&old.health, &new.health);
    spelled!(old, new; "health.kind" => kind, "health.path" => path, "health.host" => host,
        "health.interval" => interval, "health.fast_interval" => fast_interval, "health.timeout" => timeout,
        "health.rise" => rise, "health.fall" => fall, "health.reset_fall" => reset_fall,
        "health.jitter_percent" => jitter_percent, "health.slow_start" => slow_start,
        "health.damping.half_life" => damping.half_life, "health.damping.suppress" => damping.suppress,
        "health.damping.reuse" => damping.reuse, "health.resolve_interval" => resolve_interval)
}

fn compare_backend(old: &Backend, new: &Backend, place: ChangePlace, changes: &mut Vec<ConfigChange>) {
    let settings = spelled!(old, new; "address" => address, "weight" => weight, "max_connections" => max_connections,
        "health_address" => health_address);
    place.settings(old != new, settings, changes);
}

/// Where a change is in the file.
#[derive(Clone, Copy, Debug)]
enum ChangePlace<'n> {
    Table(&'static str),
    Frontend(&'n str),
    Backend(&'n str, &'n str),
}

impl ChangePlace<'_> {
    /// One change for each of `settings` (key, before, after) that differ; `changed`: whether the settings as a whole do.
    fn settings(self, changed: bool, settings: Vec<(&'static str, String, String)>, changes: &mut Vec<ConfigChange>) {
        let before = changes.len();
        for (key, old, new) in settings.into_iter().filter(|(_, old, new)| old != new) {
            let [old, new] = [old, new].map(|value| shown_value(key, &value).into_owned());
            let words = format!("{key} {old} becomes {new}{}", self.note(key, &old));
            let key = match self {
                Self::Table(table) => format!("{table}.{key}"),
                Self::Frontend(_) | Self::Backend(..) => key.to_owned(),
            };
            let change = ConfigChange { key: Some(key), before: Some(old), after: Some(new), ..self.change(&words) };
            changes.push(change);
        }
        if changed && before == changes.len() {
            self.says("settings changed", changes);
        }
    }

    fn says(self, words: &str, changes: &mut Vec<ConfigChange>) {
        changes.push(self.change(words));
    }

    fn change(self, words: &str) -> ConfigChange {
        let (frontend, backend, words) = match self {
            Self::Table(table) => (None, None, format!("[{table}] {words}")),
            Self::Frontend(name) if words.contains(" becomes ") => {
                (Some(name), None, format!("frontend {name}: {words}"))
            }
            Self::Frontend(name) => (Some(name), None, format!("frontend {name} {words}")),
            Self::Backend(frontend, name) if words.contains(" becomes ") => {
                (Some(frontend), Some(name), format!("backend {frontend}/{name}: {words}"))
            }
            Self::Backend(frontend, name) => (Some(frontend), Some(name), format!("backend {frontend}/{name} {words}")),
        };
        ConfigChange {
            frontend: frontend.map(str::to_owned),
            backend: backend.map(str::to_owned),
            words,
            ..ConfigChange::default()
        }
    }

    /// When the change applies, if not at once.
    fn note(self, key: &str, before: &str) -> &'static str {
        match (self, key) {
            // "off" and the other keys are for a new process.
            (Self::Table("offload"), "mode") if before == "off" => "",
            (Self::Table("offload"), "mode" | "after" | "after_round_trips") => {
                ": it applies to flows that Baton tries to offload from now on"
            }
            (Self::Table("failover"), "track_file") => ": it applies from the next evacuation on",
            _ => "",
        }
    }
}

fn named<'a>(frontends: &'a [Arc<Frontend>], name: &str) -> Option<&'a Arc<Frontend>> {
    frontends.iter().find(|frontend| &*frontend.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(frontend: &str, top: &str) -> Config {
        let text = format!(
            "{top}\n[[frontend]]\nname = \"f\"\nlisten = [\"127.0.0.1:1\"]\n{frontend}\n[[frontend.backend]]\nname = \"a\"\n\
             address = \"10.0.0.1:1\"\n[[frontend.backend]]\nname = \"b\"\naddress = \"10.0.0.2:1\"\n"
        );
        crate::config::parse(&text, std::path::Path::new("baton.toml")).unwrap().config
    }

    fn words(old: &Config, new: &Config) -> Vec<String> {
        between(old, new).into_iter().map(|change| change.words).collect()
    }

    /// Regression: a token that was renewed by a reload stood in the event of the reload, and so on the page, in the recorder and in each bundle.
    #[test]
    fn what_may_be_a_secret_is_not_told_and_its_change_is() {
        let vip = |token: &str| VipSettings {
            addresses: vec!["127.0.0.1".parse().unwrap()],
            interface: "lo".into(),
            priority: 0,
            on_gain: vec!["/bin/true".to_owned(), format!("--token={token}")],
            on_loss: Vec::new(),
        };
        let [old, new] = ["one", "two"].map(|token| {
            let health = format!("[frontend.health]\nkind = \"http\"\npath = \"/readyz?token={token}\"");
            Config { vip: Some(vip(token)), ..config(&health, "") }
        });
        assert_eq!(
            words(&old, &new),
            [
                "[vip] on_gain [/bin/true, (removed)] becomes [/bin/true, (removed)]",
                "frontend f: health.path /readyz?(removed) becomes /readyz?(removed)"
            ]
        );
    }

    #[test]
    fn each_key_is_named_with_its_values() {
        let old = config("", "");
        assert_eq!(words(&old, &old), [""; 0]);
        let new = config(
            "balance = \"round_robin\"\ndrain_timeout = \"1m\"\nidle_timeout = \"2h\"\nallow = [\"10.0.0.0/8\"]\n[frontend.health]\nrise = 5",
            "[process]\nstop_timeout = \"5s\"\n[offload]\nafter = \"1s\"",
        );
        assert_eq!(
            words(&old, &new),
            [
                "[process] stop_timeout 30s becomes 5s",
                "[offload] after 20ms becomes 1s: it applies to flows that Baton tries to offload from now on",
                "frontend f: balance least_conn becomes round_robin",
                "frontend f: drain_timeout 150s becomes 1m",
                "frontend f: idle_timeout none becomes 2h",
                "frontend f: allow [] becomes [10.0.0.0/8]",
                "frontend f: health.rise 2 becomes 5",
            ]
        );
        let change = &between(&old, &new)[0];
        assert_eq!((change.key.as_deref(), change.before.as_deref()), (Some("process.stop_timeout"), Some("30s")));
    }

    /// Regression: a reload that took all names of clients away said that nothing had changed.
    #[test]
    fn another_file_of_names_or_none_is_a_change() {
        let [one, other] = ["one", "other"].map(|file| config("", &format!("[names]\nfile = \"/names/{file}\"")));
        assert_eq!(words(&one, &other), ["[names] file /names/one becomes /names/other"]);
        assert_eq!(words(&one, &config("", "")), ["[names] file /names/one becomes none"]);
        assert_eq!(words(&config("", ""), &other), ["[names] file none becomes /names/other"]);
    }

    /// `baton diff` said both "from now on" and "a reload cannot change".
    #[test]
    fn only_what_a_reload_can_change_is_said_to_apply_from_now_on() {
        let [off, on, pins] = ["mode = \"off\"", "mode = \"auto\"", "pins = \"/sys/fs/bpf/other\""]
            .map(|offload| config("", &format!("[offload]\n{offload}")));
        assert_eq!(words(&off, &on), ["[offload] mode off becomes auto"]);
        let later = "it applies to flows that Baton tries to offload from now on";
        assert_eq!(words(&on, &off), [format!("[offload] mode auto becomes off: {later}")]);
        assert_eq!(words(&on, &pins), ["[offload] pins /sys/fs/bpf/baton becomes /sys/fs/bpf/other"]);
    }

    /// Regression: config/baton.toml said that a process that started with "off" never offloads after a reload, and one that had found flows of
    /// an earlier process did.
    #[test]
    fn a_reload_turns_offloading_on_only_where_this_process_watches_flows_already() {
        let [off, on] = ["off", "auto"].map(|mode| config("", &format!("[offload]\nmode = \"{mode}\"")));
        assert!(refused(&off, &on, true).is_empty());
        assert!(matches!(&refused(&off, &on, false)[..], [only] if only.contains("offload.mode")));
        let documented = include_str!("../../config/baton.toml");
        assert!(documented.contains("by a reload only if it found flows of an earlier process"));
    }

    #[test]
    fn a_difference_of_the_probes_tls_is_seen() {
        let tls =
            |more: &str| config(&format!("[frontend.health]\nkind = \"tls\"\ninsecure_skip_verify = true\n{more}"), "");
        let said = words(&tls(""), &tls("server_name = \"kubernetes\""));
        assert_eq!(said, [format!("frontend f probes by other TLS settings ({PROBE_TLS})")]);
    }
}
