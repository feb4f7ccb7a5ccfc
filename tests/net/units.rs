//! The units of deploy/: Baton as the user nobody, with exactly the capabilities that they give it; and, if systemd can
//! run here, by systemd itself, as shipped.

mod apart;
mod filtered;
mod supervised;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::lab::baton::BINARY;
use crate::lab::*;

const FULL: &str = include_str!("../../deploy/baton.service");
const PROXY: &str = include_str!("../../deploy/baton-proxy.service");

const NOBODY: u32 = 65_534;

/// The words behind `key` in a unit.
fn words(unit: &str, key: &str) -> Vec<String> {
    let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).expect("the unit has it");
    line.split_whitespace().map(str::to_owned).collect()
}

/// Starts Baton on `lb` as systemd would by `unit`: as nobody, who has a /run of its own and the folder `pins`.
fn start(lab: &Lab, unit: &str, config: &Config, pins: Option<&Path>) -> Baton {
    let ambient = words(unit, "AmbientCapabilities");
    assert_eq!(ambient, words(unit, "CapabilityBoundingSet"));
    let sets: String =
        ambient.iter().map(|cap| format!(",+{}", cap.trim_start_matches("CAP_").to_lowercase())).collect();
    let directory = lab.directory().join("own");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(lab.directory(), PermissionsExt::from_mode(0o755)).unwrap();
    // Everybody may make files there, and change only his own.
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o1777)).unwrap();
    // Where root has installed it, and where this repository is who knows whose.
    let binary = lab.directory().join("baton");
    std::fs::hard_link(BINARY, &binary).or_else(|_| std::fs::copy(BINARY, &binary).map(drop)).unwrap();
    let paths = config::Paths::below(&directory);
    // In a directory for all, others could give another file its name: a link of root's they could not replace.
    let etc = lab.directory().join("etc");
    std::fs::create_dir(&etc).unwrap();
    std::os::unix::fs::symlink(etc.join("baton.toml"), &paths.config).unwrap();
    std::fs::write(&paths.config, config.text(&paths.socket)).unwrap();
    let pins = pins.map(|pins| pins.display().to_string()).unwrap_or_default();
    let script = format!(
        "mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/baton && chown -R {NOBODY} /run/baton {pins} && shift && exec setpriv \
         --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --inh-caps=-all{sets} --ambient-caps=-all{sets} \
         --bounding-set=-all{sets} {} \"$@\"",
        binary.display()
    );
    let baton = Baton::start_by(&["unshare", "--mount", "sh", "-euc", &script, "sh"], &lab.lb, &directory);
    baton.wait_until_ready();
    let held = held(baton.process.pid().as_raw_nonzero().get());
    let apart = ["CAP_BPF", "CAP_PERFMON", "CAP_DAC_READ_SEARCH", "CAP_NET_BIND_SERVICE"];
    let kept = ambient.iter().filter(|it| !apart.contains(&it.as_str()));
    assert_eq!(held.count_ones() as usize, kept.count(), "{held:x}: {ambient:?}");
    baton
}

/// Capabilities that it may use, and that it is not root.
fn held(pid: i32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    assert!(of("Uid:").split_whitespace().all(|uid| uid == NOBODY.to_string()), "{}", of("Uid:"));
    u64::from_str_radix(&of("CapEff:"), 16).unwrap()
}

#[test]
fn a_plain_relay_needs_no_capability_at_all() {
    let Some(lab) = Lab::new("unit of a relay") else { return };
    let _servers = lab.echo_everywhere();
    let baton = start(&lab, PROXY, &lab.config(), None);
    assert_eq!(held(baton.process.pid().as_raw_nonzero().get()), 0);
    lab.client.connect(lab.lb.v4(6443)).echo(1, 100_000);
}

/// A process that does not watch the offloaded flows must say so: their clients wait on a backend that dies.
#[test]
fn an_instance_that_cannot_look_after_what_has_offloaded_is_not_live() {
    let test = "an_instance_that_cannot_look_after_what_has_offloaded_is_not_live";
    let Some(lab) = Lab::new(test) else { return };
    let Some(pinned) = Pinned::unused(test) else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().offloading(&pinned.directory).offload("mode", "auto");
    let mut baton = Baton::start(&lab.lb, lab.directory(), &config);
    baton.wait_until_ready();
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|seed| conn.echo(seed, 1000));
    baton.wait_offloaded(1);
    baton.process.kill();
    // Its lock cannot be made where a file is in the way.
    let no_lock = "mount -t tmpfs tmpfs /run && touch /run/baton && exec \"$@\"";
    baton = Baton::start_by(&["unshare", "--mount", "sh", "-euc", no_lock, "sh"], &lab.lb, lab.directory());
    baton.wait_until_ready();
    let (status, why) = baton.http("/livez").unwrap();
    assert_eq!(status, 503);
    assert!(why.contains("no process watches 1 flows that an earlier process offloaded"), "{why}");
    baton.process.kill();
    baton = Baton::start_with(&lab.lb, lab.directory());
    baton.wait_until_ready();
    baton.wait_offloaded(1);
    assert_eq!(baton.http("/livez").unwrap().0, 200);
}

#[test]
fn flows_are_offloaded_with_the_capabilities_of_the_unit_and_no_others() {
    let Some(lab) = Lab::new("unit with offload") else { return };
    let pinned = Pinned::new();
    if let Err(error) = pinned.open(&[]) {
        return network::skip("unit with offload", &error.to_string());
    }
    let _servers = lab.echo_everywhere();
    // Two ports below 1024 for the user nobody to listen on.
    let listen = vec![lab.lb.v4(443).to_string()];
    let config = lab.config().offloading(&pinned.directory).frontend("listen", listen);
    let baton = start(&lab, FULL, &config, Some(&pinned.directory));
    let mut conn = lab.client.connect(lab.lb.v4(443));
    for seed in 0..4 {
        conn.echo(seed, 1000);
    }
    baton.wait_offloaded(1);
    conn.echo(9, 100_000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
}
