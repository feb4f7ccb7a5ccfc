//! For each key of the file the test which shows that a reload's change of it is used, or refused with the command that can.

use std::fs;

const CAPS: &str = "tests/net/reloads caps_and_lists_of_a_reload_count_for_the_next_connection";
const HEADERS: &str = "tests/net/reloads headers_of_the_proxy_protocol_are_read_and_sent_after_a_reload";
const TIMERS: &str = "tests/net/reloads timers_of_a_reload_count_for_the_next_connection_and_for_those_that_live";
const CHOICE: &str = "tests/net/reloads/backends the_choice_among_backends_follows_a_reload";
const ATTEMPTS: &str = "tests/net/reloads/backends attempts_to_connect_follow_a_reload";
const REBALANCE: &str = "tests/net/reloads/backends rebalancing_follows_a_reload";
const DOORS: &str = "tests/net/reloads/process the_doors_move_with_a_reload";
const GROUP: &str = "tests/net/reloads/process members_of_the_group_may_look_and_another_door_has_metrics_alone";
const HOSTS: &str = "tests/net/reloads/doors names_of_this_host_in_urls_follow_a_reload";
const LOG: &str = "tests/net/reloads/process the_log_follows_a_reload";
const PACE: &str = "tests/net/reloads/process the_pace_of_resets_follows_a_reload";
const STOP: &str = "tests/net/reloads/process the_times_of_a_stop_follow_a_reload";
const OFFLOAD: &str = "tests/net/reloads/process whether_and_when_flows_are_offloaded_follows_a_reload";
const PROBES: &str = "tests/net/reloads/health probes_follow_a_reload";
const CERTIFICATES: &str = "tests/net/reloads/health the_certificates_of_probes_follow_a_reload";
const CLIENT_CERTIFICATE: &str = "tests/file/config tls_settings_are_equal_only_while_the_files_are";
const HEALTH: &str = "src/health/tests each_timer_of_a_frontends_health_reaches_the_machine";
const WATCHED: &str = "src/health/tests timers_of_a_reload_count_for_a_backend_that_is_watched_already";
const RESOLVE: &str = "src/health/tests a_shorter_resolve_interval_counts_at_once";
const FRONTENDS: &str = "tests/net/faults_reload a_removed_frontend_accepts_no_more_and_an_added_one_listens";
const PORTS: &str = "tests/net/sharing a_reload_adds_and_removes_a_shared_port_and_refuses_to_turn_it_into_a_bound_one";
const BACKENDS: &str = "tests/net/faults_reload a_removed_backend_drains_and_an_added_one_serves";
const REFUSED: &str =
    "tests/net/fleet/failover/reload what_a_reload_cannot_change_is_refused_and_the_command_named_that_can";
const MEMBERS: &str =
    "tests/net/fleet/failover/reload a_reload_adds_an_instance_and_an_address_and_flows_outlive_the_move_to_it";
const FAILOVER_PACE: &str = "tests/net/fleet/failover/reload the_pace_of_a_failover_follows_a_reload";
const FAILOVER: &str = "src/model/fleet/failover/tests settings_of_a_reload_count_from_the_next_move_on";
const AWAY: &str = "tests/net/fleet/failover/evacuate a_host_is_emptied_by_real_keepalived_and_no_client_notices";
const LINK: &str = "tests/net/fleet/link a_link_moves_to_another_port_and_is_waited_for_as_long_as_a_reload_says";
const KEYS: &str = "tests/net/fleet/rotation a_new_key_for_the_fleet_costs_no_flow_and_fails_nobody_over";
const IDENTITIES: &str =
    "tests/net/fleet/identities a_fleet_gets_keys_of_its_instances_and_changes_one_and_no_flow_notices";
const VIP: &str = "tests/net/vip/built_in the_built_in_vip_follows_a_reload";
const DISCOVERY: &str =
    "tests/net/discovery/file discovered_backends_outlive_a_reload_an_upgrade_and_a_restart_without_their_source";
const DNS: &str = "tests/net/discovery/dns a_reload_asks_for_another_name_of_another_server";
const KUBERNETES: &str = "tests/net/discovery/kubernetes credentials_of_a_reload_count_for_the_next_request";
/// A running instance has no use for these: `baton check` computes from the file.
const CHECK: &str = "src/cli/check the_budget_is_computed_from_the_files_own_timers";

const RECORDER: &str = "src/recorder/tests another_directory_and_size_of_a_reload_count_at_once";

const NAMES: &str = "tests/net/names a_file_names_clients_in_lists_and_events_and_is_followed";

const REVERSE_DNS: &str =
    "tests/net/names reverse_dns_names_clients_that_nothing_else_names_if_the_name_has_their_address";

const PROOFS: [(&str, &str); 38] = [
    (NAMES, "names.file"),
    (REVERSE_DNS, "names.reverse_dns names.reverse_dns_servers"),
    (RECORDER, "recorder.directory recorder.size_mb"),
    (DNS, "frontend.discover.name frontend.discover.record frontend.discover.port frontend.discover.servers"),
    (
        KUBERNETES,
        "frontend.discover.ca_file frontend.discover.insecure_skip_verify frontend.discover.client_cert_file \
         frontend.discover.client_key_file frontend.discover.server_name frontend.discover.token_file",
    ),
    (DISCOVERY, "frontend.discover.kind frontend.discover.path frontend.discover.cache_file"),
    (DOORS, "admin.http admin.socket"),
    (GROUP, "admin.group admin.metrics"),
    (HOSTS, "admin.allowed_hosts"),
    (STOP, "process.shutdown_delay process.stop_timeout"),
    (PACE, "process.reset_within process.reset_rate"),
    (LOG, "log.format log.level log.flows log.flows_per_second"),
    (OFFLOAD, "offload.mode offload.after_round_trips offload.after"),
    (REFUSED, "process.workers offload.interfaces offload.max_flows offload.pins instance.name instance.slot"),
    (
        CHECK,
        "cluster.profile cluster.node_monitor_grace_period cluster.lease_renew cluster.vrrp_advert_interval \
         cluster.vrrp_track_time",
    ),
    (LINK, "peers.listen peers.beat_port peers.sync_deadline peers.peer.address"),
    (KEYS, "peers.key_file peers.key_file_previous"),
    (IDENTITIES, "peers.private_key_file peers.peer.public_key peers.peer.public_key_next"),
    (MEMBERS, "peers.peer.name"),
    (FAILOVER, "failover.challenge failover.guard failover.priority"),
    (FAILOVER_PACE, "failover.resets_per_second"),
    (AWAY, "failover.track_file"),
    (VIP, "vip.mode vip.addresses vip.interface vip.priority vip.on_gain vip.on_loss"),
    (FRONTENDS, "frontend.name frontend.listen"),
    (PORTS, "frontend.share_port"),
    (
        CHOICE,
        "frontend.balance frontend.source frontend.backend.address frontend.backend.weight frontend.backend.health_address",
    ),
    (BACKENDS, "frontend.backend.name"),
    (ATTEMPTS, "frontend.connect_timeout frontend.hedge_after frontend.connect_attempts"),
    (
        TIMERS,
        "frontend.drain_timeout frontend.idle_timeout frontend.keepalive_idle frontend.keepalive_interval \
         frontend.keepalive_count frontend.user_timeout",
    ),
    (HEADERS, "frontend.accept_proxy_from frontend.proxy_header_timeout frontend.send_proxy_v2"),
    (
        CAPS,
        "process.max_connections frontend.max_connections frontend.max_connections_per_source \
         frontend.accept_rate_per_source frontend.source_mask_ipv4 frontend.source_mask_ipv6 frontend.allow frontend.deny \
         frontend.backend.max_connections",
    ),
    (
        REBALANCE,
        "frontend.rebalance.when frontend.rebalance.per_minute frontend.rebalance.min_idle \
         frontend.rebalance.tolerance_percent",
    ),
    (
        PROBES,
        "frontend.health.kind frontend.health.path frontend.health.host frontend.health.interval frontend.health.timeout",
    ),
    (
        HEALTH,
        "frontend.health.fast_interval frontend.health.jitter_percent frontend.health.damping.half_life \
         frontend.health.damping.suppress frontend.health.damping.reuse",
    ),
    (WATCHED, "frontend.health.rise frontend.health.fall frontend.health.reset_fall frontend.health.slow_start"),
    (RESOLVE, "frontend.health.resolve_interval"),
    (CERTIFICATES, "frontend.health.ca_file frontend.health.insecure_skip_verify frontend.health.server_name"),
    (CLIENT_CERTIFICATE, "frontend.health.client_cert_file frontend.health.client_key_file"),
];

/// Every key of the reference, dotted; a test of its own says that it lacks none and has no other.
fn keys() -> Vec<String> {
    let mut table = "";
    let mut keys = Vec::new();
    let reference = include_str!("../../config/baton.toml");
    for line in reference.lines().map(|line| line.strip_prefix('#').unwrap_or(line)) {
        let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_matches(['[', ']']);
        } else if let Some((key, _)) = line.split_once('=').filter(|(key, _)| is_key(key.trim_end())) {
            keys.push(format!("{table}.{}", key.trim_end()));
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn each_key_has_a_test_of_its_change_by_reload() {
    let mut proven: Vec<_> = PROOFS.iter().flat_map(|(_, keys)| keys.split_whitespace()).collect();
    proven.sort_unstable();
    assert_eq!(proven, keys(), "left: the table of this file; right: the keys of config/baton.toml");
}

#[test]
fn each_test_that_is_named_is_there() {
    for (proof, keys) in PROOFS {
        let (file, name) = proof.split_once(' ').expect("a file and a test");
        let text = fs::read_to_string(format!("{}/{file}.rs", env!("CARGO_MANIFEST_DIR"))).unwrap_or_default();
        let is_there = text.split("test]\n").skip(1).any(|test| {
            let head: String = test.lines().take(3).collect();
            head.contains(&format!("fn {name}(")) && !head.contains("#[ignore")
        });
        assert!(is_there, "{keys}: {proof}");
    }
}
