//! The VIP that Baton itself moves: the same faults as with keepalived, without keepalived.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::fleet::{Instance, Scene};

pub const VIP6: &str = "fd77::100";

/// The bounds of docs/vip.md with some time for a busy machine, and for the client, which tries again every 100 ms.
const SERVED_AFTER_DEATH: Duration = ms(1500);
const SERVED_AFTER_LEASE: Duration = ms(4000);
/// Interval between two looks for two owners. One look reads the hosts one after the other, so a move in between counts for nothing.
const LOOK_EVERY: Duration = ms(20);

/// The configuration of instance `number`.
pub fn config(scene: &Scene, number: usize) -> Config {
    let config = scene.config(number).peers("sync_deadline", "2s").process("shutdown_delay", "300ms");
    let config = config.frontend("listen", vec![format!("{VIP}:6443"), format!("[{VIP6}]:6443")]);
    let config = config.health("interval", "1s").process("stop_timeout", "500ms");
    config.vip("addresses", vec![format!("{VIP}/32"), format!("{VIP6}/128")]).vip("interface", "eth0")
}

pub fn fleet(test: &str, count: usize) -> Option<(Scene, [crate::lab::Server; 2], Vec<Instance>)> {
    let scene = Scene::new(test, count)?;
    let (servers, all) = launched(&scene, count);
    Some((scene, servers, all))
}

/// The backends and the instances.
pub fn launched(scene: &Scene, count: usize) -> ([crate::lab::Server; 2], Vec<Instance>) {
    (scene.serve(), (0..count).map(|number| scene.launch(number, &config(scene, number))).collect())
}

pub fn has_vip(instance: &Instance) -> bool {
    instance.host.has_address(VIP)
}

/// Waits until exactly one instance has the VIP, and returns it.
#[track_caller]
pub fn owner(all: &[Instance]) -> usize {
    let (owner, _) = eventually_some(LONG, "one has the VIP", || {
        let have: Vec<_> = (0..all.len()).filter(|number| has_vip(&all[*number])).collect();
        let is_both = |number: usize| all[number].host.has_address(VIP6);
        (have.len() == 1 && is_both(have[0])).then(|| have[0])
    });
    owner
}

pub fn places() -> [SocketAddr; 2] {
    [VIP, VIP6].map(|ip| SocketAddr::from((ip.parse::<IpAddr>().unwrap(), 6443)))
}

/// Waits until both addresses serve new connections, and returns how long that took.
#[track_caller]
pub fn served_after(scene: &Scene, watch: &Stopwatch) -> Duration {
    for place in places() {
        eventually(LONG, "the VIP is served", || {
            let conn = scene.lab.client.try_connect(place, ms(100));
            conn.is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok())
        });
    }
    watch.elapsed()
}

/// Both are ready and know each other's flows; returns the owner and the other one.
pub fn settled(scene: &Scene, all: &[Instance]) -> (usize, usize) {
    served_after(scene, &Stopwatch::start());
    all[0].wait_synced(all[1].name);
    all[1].wait_synced(all[0].name);
    let had = owner(all);
    (had, 1 - had)
}

/// Checks again and again, while `work` runs, whether two hosts have the VIP; returns the longest time that they both had it.
fn both_had_it<T>(all: &[&Host], work: impl FnOnce() -> T) -> (Duration, T) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let (mut since, mut longest) = (None, Duration::ZERO);
            while !done.load(Relaxed) {
                // The first once more: a move between two reads is no time that both have it.
                let both = all.iter().all(|host| host.has_address(VIP)) && all[0].has_address(VIP);
                if both {
                    longest = longest.max(since.get_or_insert_with(Stopwatch::start).elapsed());
                } else {
                    since = None;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            longest
        });
        // Ends the checks also if `work` panics, because the scope waits for them.
        let ends = SetsAtEnd(&done);
        let worked = work();
        drop(ends);
        (looks.join().unwrap(), worked)
    })
}

pub fn vip_of(instance: &Instance) -> Value {
    let output = instance.baton.cli(&["--json", "vip"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

pub fn restart(instance: &mut Instance) {
    instance.baton = Baton::start_with(&instance.host, &instance.directory);
    instance.baton.wait_until_ready();
}

#[test]
fn the_built_in_vip_leaves_a_host_whose_baton_is_killed_or_hung_or_that_is_cut_off_and_does_not_come_back() {
    let Some((scene, _servers, mut all)) = fleet("built-in vip", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let hosts = [scene.host(0).clone(), scene.host(1).clone()];
    for fault in ["cut off", "killed", "hung", "cut off"] {
        let most = if fault == "cut off" { SERVED_AFTER_DEATH } else { SERVED_AFTER_LEASE };
        wait::meets(most, &format!("{fault}: both addresses are served again after"), || {
            let (both, took) = leaves(&scene, &mut all, &hosts, fault);
            println!("{fault}: both had it for {both:?}");
            // Two owners are a figure that is not met.
            if both < LOOK_EVERY { took } else { took.max(most) }
        });
    }
}

/// The owner has this fault and gets well again. Returns for how long both had the VIP, and when it was served again.
fn leaves(scene: &Scene, all: &mut [Instance], hosts: &[Host; 2], fault: &str) -> (Duration, Duration) {
    all.iter().for_each(|instance| instance.baton.wait_until_ready());
    for (one, other) in [(0, 1), (1, 0)] {
        all[one].wait_synced(all[other].name);
    }
    let had = owner(all);
    let gets = 1 - had;
    both_had_it(&[&hosts[0], &hosts[1]], || {
        let watch = Stopwatch::start();
        match fault {
            "killed" => all[had].baton.process.kill(),
            "hung" => all[had].baton.process.stop(),
            _ => all[had].host.link_down(),
        }
        eventually(LONG, "the other has the VIP", || has_vip(&all[gets]));
        served_after(scene, &watch);
        let took = watch.unstalled();
        match fault {
            // The kernel has killed the one that hung.
            "killed" | "hung" => restart(&mut all[had]),
            _ => all[had].host.link_up(),
        }
        // The host that is well again must not take the VIP back: that would reset clients without need.
        eventually(LONG, "one has the VIP", || !has_vip(&all[had]) && has_vip(&all[gets]));
        wait::throughout(secs(2), "the VIP stays", || has_vip(&all[gets]) && !has_vip(&all[had]));
        took
    })
}

/// The next process keeps the addresses, or gives them up if a peer is ready earlier.
#[test]
fn a_baton_that_is_killed_and_started_at_once_leaves_one_owner_of_the_built_in_vip() {
    let Some((scene, _servers, mut all)) = fleet("built-in vip restarted", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let hosts = [scene.host(0).clone(), scene.host(1).clone()];
    for _ in 0..2 {
        all[0].wait_synced(all[1].name);
        all[1].wait_synced(all[0].name);
        let had = owner(&all);
        let (both, (took, now)) = both_had_it(&[&hosts[0], &hosts[1]], || {
            let watch = Stopwatch::start();
            all[had].baton.process.kill();
            restart(&mut all[had]);
            let took = served_after(&scene, &watch);
            // The lease of the killed process has not ended yet.
            std::thread::sleep(secs(3));
            (took, owner(&all))
        });
        assert_eq!(both, Duration::ZERO, "two had it");
        served_after(&scene, &Stopwatch::start());
        let who = if now == had { "stayed" } else { "moved" };
        println!("the VIP was served {} ms after the kill, and {who}", took.as_millis());
    }
}

#[test]
fn two_parted_hosts_both_have_the_built_in_vip_and_the_earlier_owner_yields_when_they_meet() {
    let Some((scene, _servers, all)) = fleet("built-in vip parted", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let first = owner(&all);
    let second = 1 - first;
    all.iter().for_each(|instance| instance.host.isolate(true));
    eventually(LONG, "both have the VIP", || all.iter().all(has_vip));
    served_after(&scene, &Stopwatch::start());
    let watch = Stopwatch::start();
    all.iter().for_each(|instance| instance.host.isolate(false));
    eventually(LONG, "the earlier owner yields", || !has_vip(&all[first]) && has_vip(&all[second]));
    println!("one owner {:?} after the hosts met again", watch.elapsed());
    let vip: IpAddr = VIP.parse().unwrap();
    let mac = all[second].host.mac();
    eventually(secs(5), "the client knows the owner", || scene.lab.client.neighbour(vip) == Some(mac.clone()));
    served_after(&scene, &Stopwatch::start());
    wait::throughout(secs(2), "it stays", || !has_vip(&all[first]) && has_vip(&all[second]));
}

#[test]
fn all_are_stopped_and_started_in_any_order_and_one_has_the_built_in_vip() {
    let Some((scene, _servers, mut all)) = fleet("built-in vip stopped", 3) else { return };
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        served_after(&scene, &Stopwatch::start());
        for number in order {
            let instance = &mut all[number];
            let had = has_vip(instance);
            instance.baton.process.signal(Signal::TERM);
            instance.baton.process.wait(LONG);
            assert!(!has_vip(instance), "a clean stop leaves nothing behind");
            if had && number != order[2] {
                served_after(&scene, &Stopwatch::start());
            }
        }
        for number in [order[1], order[2], order[0]] {
            let instance = &mut all[number];
            instance.baton = Baton::start_with(&instance.host, &instance.directory);
        }
        owner(&all);
    }
}

#[test]
fn a_built_in_vip_that_something_removes_is_added_again() {
    let Some((scene, _servers, all)) = fleet("built-in vip removed", 2) else { return };
    served_after(&scene, &Stopwatch::start());
    let instance = &all[owner(&all)];
    for address in [format!("{VIP}/32"), format!("{VIP6}/128")] {
        instance.host.run(&format!("ip address del {address} dev eth0"));
        eventually(LONG, "it is back", || instance.host.has_address(&address));
    }
    assert!(!instance.baton.events_of("vip_restored").is_empty());
    wait::throughout(secs(3), "the lease is renewed", || has_vip(instance));
}

#[test]
fn the_built_in_vip_stays_while_baton_is_upgraded_and_leaves_when_the_host_is_evacuated() {
    let Some((scene, _servers, all)) = fleet("built-in vip upgraded", 3) else { return };
    served_after(&scene, &Stopwatch::start());
    let had = owner(&all);
    // The operator names the instance that would come last.
    let [other, heir] = [[1, 2], [0, 2], [0, 1]][had];
    all.iter()
        .for_each(|it| all.iter().filter(|other| other.name != it.name).for_each(|other| it.wait_synced(other.name)));
    let mut conn = scene.lab.client.connect(places()[0]);
    conn.echo(1, 1000);
    let upgraded = all[had].baton.cli(&["upgrade"]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    wait::throughout(secs(4), "it stays", || has_vip(&all[had]) && !has_vip(&all[other]));
    conn.echo(2, 1000);
    drop(conn);
    let holds = |view: &Value| view["view"]["holder"] == all[had].name;
    let (view, _) = eventually_some(LONG, "it hears the holder", || Some(vip_of(&all[other])).filter(holds));
    assert_eq!(view["view"]["part"], "stands", "{view}");
    for number in [other, heir] {
        all[had].wait_synced(all[number].name);
        all[number].wait_synced(all[had].name);
    }
    let evacuated = all[had].baton.cli(&["evacuate", "--to", all[heir].name, "--deadline", "5s"]);
    println!("{}", String::from_utf8_lossy(&evacuated.stdout));
    assert!(evacuated.status.success(), "{evacuated:?}");
    assert_eq!(owner(&all), heir);
    served_after(&scene, &Stopwatch::start());
}

#[test]
fn hooks_hear_of_a_gain_and_of_a_loss() {
    let Some(scene) = Scene::new("built-in vip hooks", 2) else { return };
    let _servers = scene.serve();
    let file = scene.lab.directory().join("hooks");
    let script = scene.lab.directory().join("hook");
    std::fs::write(&script, format!("#!/bin/sh\necho \"$@\" >> {}\n", file.display())).unwrap();
    let hook = |name: &str| vec!["/bin/sh".to_owned(), script.display().to_string(), name.to_owned()];
    let launch = |number: usize| {
        let name = ["lb-a", "lb-b"][number];
        let config = config(&scene, number).vip("on_gain", hook(name)).vip("on_loss", hook(name));
        scene.launch(number, &config)
    };
    let first = launch(0);
    eventually(LONG, "the first has the VIP", || has_vip(&first));
    let second = launch(1);
    first.wait_synced("lb-b");
    second.wait_synced("lb-a");
    first.baton.process.signal(Signal::TERM);
    eventually(LONG, "the second has the VIP", || has_vip(&second));
    let addresses = format!("{VIP} {VIP6}");
    let expected =
        [format!("lb-a gain {addresses}"), format!("lb-a loss {addresses}"), format!("lb-b gain {addresses}")];
    eventually(LONG, "all hooks have run", || {
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        let mut said: Vec<_> = said.lines().map(str::to_owned).collect();
        said.sort();
        said == expected
    });
}

#[test]
fn the_built_in_vip_follows_a_reload() {
    let Some(scene) = Scene::new("built-in vip reloaded", 1) else { return };
    let _servers = scene.serve();
    let host = scene.host(0);
    host.second_link("eth1");
    let said = scene.lab.directory().join("hooks");
    let hook = |name: &str| {
        let command = format!("echo {name} \"$@\" >> {}", said.display());
        vec!["/bin/sh".to_owned(), "-c".to_owned(), command, "hook".to_owned()]
    };
    let own = || config(&scene, 0).alone();
    let instance = scene.launch(0, &own());
    let on = |interface: &str, address: &str| {
        !host.run(&format!("ip -o address show dev {interface} to {address}")).is_empty()
    };
    eventually(LONG, "it has both", || on("eth0", VIP) && on("eth0", VIP6));
    let follow = |config: &Config| {
        instance.baton.write_config(config);
        instance.reload();
    };
    let named = |addresses: &[&str]| addresses.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    let one = || own().vip("addresses", named(&[VIP])).vip("priority", 7);
    follow(&one());
    eventually(LONG, "one is gone", || on("eth0", VIP) && !on("eth0", VIP6));
    eventually(LONG, "the priority is another", || vip_of(&instance)["view"]["priority"] == 7);
    let hooked =
        |interface: &str| one().vip("interface", interface).vip("on_gain", hook("gained")).vip("on_loss", hook("lost"));
    let [gained, lost] = [format!("gained gain {VIP}\n"), format!("lost loss {VIP}\n")];
    // While a program runs, only the newest event waits for it.
    let have_run = |text: &str| {
        eventually(LONG, "the hooks have run", || std::fs::read_to_string(&said).unwrap_or_default() == text);
    };
    follow(&hooked("eth1"));
    eventually(LONG, "it is on the other interface", || !on("eth0", VIP) && on("eth1", VIP));
    have_run(&gained);
    // The VIP stays where it is: that is no gain.
    let gains = instance.baton.events_of("vip_gained").len();
    follow(&hooked("eth1").vip("priority", 8));
    eventually(LONG, "the priority is another", || vip_of(&instance)["view"]["priority"] == 8);
    eventually(LONG, "it holds it", || vip_of(&instance)["view"]["part"] == "holds");
    assert_eq!(instance.baton.events_of("vip_gained").len(), gains);
    follow(&hooked("eth0"));
    eventually(LONG, "it is back", || on("eth0", VIP) && !on("eth1", VIP));
    have_run(&format!("{gained}{lost}{gained}"));
    follow(&hooked("eth0").vip("mode", "external"));
    eventually(LONG, "another program has it to move", || !on("eth0", VIP) && !on("eth1", VIP));
    have_run(&format!("{gained}{lost}{gained}{lost}"));
}

#[test]
fn a_baton_that_may_not_ask_for_the_vip_does_not_take_it_and_says_why() {
    let Some(scene) = Scene::new("built-in vip refused", 1) else { return };
    let _servers = scene.serve();
    let directory = scene.lab.directory().join("lb-a");
    std::fs::create_dir_all(&directory).unwrap();
    let paths = crate::lab::config::Paths::below(&directory);
    std::fs::write(&paths.config, config(&scene, 0).alone().text(&paths.socket)).unwrap();
    let baton = Baton::start_by(&["setpriv", "--bounding-set=-net_raw"], scene.host(0), &directory);
    baton.wait_until_ready();
    eventually(LONG, "it says why", || !baton.events_of("vip_refused").is_empty());
    let says = || String::from_utf8(baton.cli(&["vip", "--why"]).stdout).unwrap().contains("CAP_NET_RAW");
    eventually(secs(5), "people see why", says);
    wait::throughout(secs(1), "it does not take it", || !scene.host(0).has_address(VIP));
}
