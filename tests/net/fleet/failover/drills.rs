//! `baton drill` against a pair with real keepalived, for each fault of the budget that `baton check` computes: the
//! longest time that a node goes without a heartbeat must be the computed one, except for the time of a reconnect. The
//! test prints the figures, which docs/drill.md and docs/check.md show.

mod haproxy;

use super::*;

const KUBELETS: u64 = 60;
/// Interval of the heartbeats. A kubelet's are 10 s apart; a fault adds the same time.
const EVERY_S: u64 = 2;
/// As deploy/keepalived has its timers.
const CLUSTER: &str = "[cluster]\nvrrp_advert_interval = \"100ms\"\nvrrp_track_time = \"2s\"\n";
/// A reconnect of all of them at once, TLS included, where nothing is left of the CPUs.
const BUSY: std::time::Duration = secs(8);

/// Two instances before two apiserver stand-ins, and kubelets at the VIP.
struct Cluster {
    scene: Scene,
    all: Vec<Instance>,
    stand_ins: [StandIn; 2],
    _keepalived: Vec<Process>,
    _pinned: Vec<Pinned>,
    drill: Drill,
}

/// The kubelets, which reach the VIP.
fn kubelets(lab: &Lab, certificates: &Certificates) -> Drill {
    Drill::start(lab, certificates, &format!("{VIP}:6443"), KUBELETS, EVERY_S)
}

impl Cluster {
    /// `offloading`: with the offload engine.
    fn new(test: &str, offloading: bool) -> Option<Self> {
        let pinned: Option<Vec<_>> = (0..2).filter(|_| offloading).map(|_| Pinned::unused(test)).collect();
        let pinned = pinned?;
        let scene = Scene::new(test, 2)?;
        let certificates = Certificates::make(&scene.lab);
        let stand_ins = [&scene.lab.b1, &scene.lab.b2].map(|host| StandIn::start(&scene.lab, &certificates, host));
        let start = |number| {
            let config = scene.config(number).https(&certificates.ca()).frontend("listen", vec![format!("{VIP}:6443")]);
            // As its file for keepalived says.
            let away = scene.lab.directory().join(NAMES[number]).join("away");
            let config = config.failover("track_file", away.to_str().unwrap());
            let config = pinned.get(number).iter().fold(config, |config, pins| config.offloading(&pins.directory));
            scene.launch(number, &config)
        };
        let all = vec![start(0), start(1)];
        for (instance, other) in all.iter().zip(["lb-b", "lb-a"]) {
            instance.baton.wait_until_ready();
            instance.wait_synced(other);
            for name in ["b1", "b2"] {
                instance.baton.wait_health(name, "ready", LONG);
            }
        }
        let pair = [(0, 1, 100), (1, 0, 90)].map(|(number, other, priority): (usize, usize, u8)| {
            let (own, peer) = (&all[number], &all[other]);
            let process = crate::vip::keepalived(&own.host, &peer.host, &own.directory, &own.baton, (priority, &[]));
            if number == 0 {
                let has_it = || own.host.has_address(VIP);
                eventually(LONG, "the first has the VIP", has_it);
            }
            process
        });
        let drill = kubelets(&scene.lab, &certificates);
        let cluster = Self { scene, all, stand_ins, _keepalived: pair.into(), _pinned: pinned, drill };
        eventually(secs(30), "all kubelets are connected", || cluster.all[0].baton.flow_count() == KUBELETS);
        // Each says something, and something more: handshakes are over, and heartbeats come.
        for _ in 0..2 {
            let said = || -> std::collections::BTreeMap<String, u64> {
                let flows = cluster.all[0].baton.flows().into_iter();
                flows.map(|flow| (flow["client"].to_string(), flow["bytes_to_backend"].as_u64().unwrap_or(0))).collect()
            };
            let before = said();
            eventually(secs(30), "each has a heartbeat", || {
                let now = said();
                before.iter().all(|(client, bytes)| now.get(client).is_some_and(|now| now > bytes))
            });
        }
        Some(cluster)
    }

    /// The budget for this fault, of the file that runs.
    fn computed(&self, fault: &str) -> std::time::Duration {
        let text = std::fs::read_to_string(&self.all[0].baton.paths.config).unwrap();
        let file = self.scene.lab.directory().join("budget.toml");
        std::fs::write(&file, format!("{text}\n{CLUSTER}lease_renew = \"{EVERY_S}s\"\n")).unwrap();
        let said = self.scene.lab.lb.run(&format!("{BINARY} check -c {} 2>&1", file.display()));
        let line =
            said.lines().find_map(|line| line.trim().strip_prefix(fault)).unwrap_or_else(|| panic!("{fault}: {said}"));
        let seconds = line.trim().split(' ').next().and_then(|number| number.parse().ok());
        std::time::Duration::from_secs_f64(seconds.unwrap_or_else(|| panic!("{line}")))
    }

    /// The drill's verdict at the end, when all nodes have had time to come back.
    #[track_caller]
    fn verdict(self, fault: &str) -> Value {
        let computed = self.computed(fault);
        self.drill.pass(computed + secs(EVERY_S));
        let (verdict, longest) = self.drill.end();
        println!(
            "drill: {fault}: computed {computed:?}, longest gap measured {longest:?}, {} of {KUBELETS} not ready, {} lost \
             their connection",
            verdict["not_ready"], verdict["disconnections"]
        );
        assert_eq!((&verdict["never"], &verdict["not_ready"]), (&0.into(), &0.into()), "{verdict}");
        assert!(longest < computed + BUSY, "{verdict}");
        verdict
    }
}

/// Whether flows of the offload engine notice a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offloaded {
    GoOn,
    End,
}

/// A fault without offload, and with it.
#[track_caller]
fn each_way(test: &str, fault: &str, offloaded: Offloaded, mut strikes: impl FnMut(&Cluster)) {
    for offloading in [false, true] {
        let Some(cluster) = Cluster::new(test, offloading) else { return };
        if offloading {
            cluster.all[0].baton.wait_offloaded(KUBELETS);
        }
        strikes(&cluster);
        println!("{test}, packet path {offloading}:");
        let verdict = cluster.verdict(fault);
        assert!(!offloading || offloaded == Offloaded::End || verdict["disconnections"] == 0, "{verdict}");
    }
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_an_apiserver_is_killed() {
    each_way("drill killed", "apiserver killed", Offloaded::End, |cluster| cluster.stand_ins[0].process.kill());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_an_apiserver_hangs() {
    each_way("drill hung", "apiserver hung", Offloaded::End, |cluster| cluster.stand_ins[0].process.stop());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_an_apiserver_s_host_is_gone() {
    each_way("drill silent", "apiserver's host gone", Offloaded::End, |cluster| cluster.scene.lab.b1.link_down());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_baton_is_killed() {
    each_way("drill baton killed", "Baton killed", Offloaded::GoOn, |cluster| cluster.all[0].baton.process.kill());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_baton_hangs() {
    each_way("drill baton hung", "Baton hung", Offloaded::GoOn, |cluster| cluster.all[0].baton.process.stop());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_the_host_of_baton_is_gone() {
    each_way("drill host gone", "Baton's host gone", Offloaded::GoOn, |cluster| cluster.all[0].host.link_down());
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_the_host_of_baton_is_gone_and_the_next_one_drops_what_it_has_not_tracked() {
    each_way("drill firewall", "Baton's host gone", Offloaded::GoOn, |cluster| {
        drop_untracked(&cluster.all[1].host);
        cluster.all[0].host.link_down();
    });
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_a_host_is_evacuated() {
    each_way("drill failover", "host evacuated", Offloaded::GoOn, |cluster| {
        let output = cluster.all[0].baton.cli(&["evacuate", "--deadline", "5s"]);
        println!("{}", String::from_utf8_lossy(&output.stdout));
        cluster.scene.lab.lb.link_down();
    });
}

#[test]
#[ignore = "figures for docs/drill.md: it wants a machine for itself"]
fn no_node_waits_longer_than_computed_when_baton_is_upgraded() {
    let mut ends = Vec::new();
    each_way("drill upgrade", "Baton upgraded", Offloaded::GoOn, |cluster| {
        let old = cluster.all[0].baton.process.pid();
        cluster.all[0].baton.order(&["upgrade"]);
        // It lives on under another parent; it ends with the test as the first would.
        let new = cluster.all[0].baton.status()["instance"]["pid"].as_i64().expect("a number");
        assert_ne!(new, i64::from(old.as_raw_nonzero().get()));
        ends.push(Stranger::new(new));
    });
}
