//! Row 40: instances and addresses that a reload brings, and takes away, used.

use super::*;

/// Two instances that know nothing of each other, nor of the VIP: each waits for a third that never comes.
fn strangers(test: &str) -> Option<Fleet> {
    let scene = Scene::new(test, 3)?;
    let vip = SocketAddr::new(VIP.parse().unwrap(), 6443);
    let hosts = [&scene.lab.b1, &scene.lab.b2];
    let servers = hosts.map(|host| host.serve_on(host.v4(6443), Behaviour::Echo));
    let pinned = vec![Pinned::unused(test)?, Pinned::unused(test)?];
    let mut fleet = Fleet { vip, all: Vec::new(), scene, servers, pinned };
    for number in 0..2 {
        let config =
            fleet.config_with(number, &[2]).frontend("listen", vec![fleet.scene.host(number).v4(6443).to_string()]);
        fleet.all.push(fleet.scene.launch(number, &config));
    }
    fleet.all.iter().for_each(|it| it.baton.wait_until_ready());
    Some(fleet)
}

impl Fleet {
    /// Of instance `number` before the VIP, with these peers.
    fn config_with(&self, number: usize, peers: &[usize]) -> Config {
        let config = self.scene.config(number).frontend("listen", vec![self.vip.to_string()]);
        let config = config
            .instance("slot", number as i64)
            .peers("sync_deadline", "1s")
            .offloading(&self.pinned[number].directory);
        let config =
            config.offload("after_round_trips", 3).offload("after", "1h").peers("peer", Vec::<toml::Value>::new());
        peers.iter().fold(config, |config, peer| config.peer(NAMES[*peer], self.scene.host(*peer).v4(PORT)))
    }

    fn reload(&self, number: usize, config: &Config) {
        self.all[number].baton.write_config(config);
        self.all[number].baton.order(&["reload"]);
    }
}

#[test]
fn a_reload_adds_an_instance_and_an_address_and_flows_outlive_the_move_to_it() {
    let test = "a_reload_adds_an_instance_and_an_address";
    let Some(fleet) = strangers(test) else { return };
    for number in 0..2 {
        fleet.reload(number, &fleet.config_with(number, &[1 - number, 2]));
    }
    fleet.owner().wait_synced("lb-b");
    fleet.heir().wait_synced("lb-a");
    fleet.take(fleet.owner());
    fleet.wait_served();
    let mut proxied = fleet.clients(4);
    let mut offloaded = fleet.clients(6);
    for round in 0..5 {
        offloaded.iter_mut().for_each(|conn| conn.echo(round, 200));
    }
    fleet.owner().baton.wait_offloaded(6);
    fleet.wait_known(10, 6);

    // Both live.
    fleet.remove_vip(fleet.owner());
    fleet.take(fleet.heir());
    for round in 0..3 {
        proxied.iter_mut().chain(&mut offloaded).for_each(|conn| conn.echo(round, 2000));
    }
    fleet.serve_at(fleet.heir(), &mut offloaded, 300);
    eventually(LONG, "what is in sockets stays", || fleet.owner().baton.flow_count() == 4);
    assert_eq!(fleet.resets(), 0.0);

    // And away again: packets that were forwarded to it belong to no instance, and are answered so; flows that came
    // from it stay.
    fleet.reload(1, &fleet.config_with(1, &[2]));
    eventually(LONG, "it is forgotten", || fleet.heir().sees("lb-a").is_null());
    offloaded.iter_mut().for_each(|conn| conn.echo(7, 300));
    proxied.iter_mut().for_each(|conn| drop(conn.send(8, 100)));
    println!("row 40: flows of an instance that was removed reset after {:?}", all_reset(&mut proxied));
}

#[test]
fn what_a_reload_cannot_change_is_refused_and_the_command_named_that_can() {
    let Some(fleet) = strangers("what_a_reload_cannot_change_is_refused") else { return };
    let good = || fleet.config_with(0, &[2]).frontend("listen", vec![fleet.owner().listens_at().to_string()]);
    let moved = fleet.scene.lab.directory().join("moved");
    let moved = format!("/sys/fs/bpf/{}", moved.file_name().unwrap().to_str().unwrap());
    let changed = [
        ("process.workers", good().process("workers", 7), "baton upgrade"),
        ("offload.interfaces", good().offload("interfaces", vec!["eth0".to_owned()]), "baton upgrade"),
        ("offload.max_flows", good().offload("max_flows", 7), "baton offload remove"),
        ("offload.pins", good().offload("pins", moved), "baton offload remove"),
        ("instance.name", good().instance("name", "lb-other"), "baton evacuate"),
        ("instance.slot", good().instance("slot", 5), "baton evacuate"),
        ("[peers]", good().alone(), "baton upgrade"),
    ];
    for (key, config, command) in changed {
        fleet.owner().baton.write_config(&config);
        let output = fleet.owner().baton.cli(&["reload"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(key) && said.contains(command), "{key}: {said}");
    }
    fleet.reload(0, &good());
}

#[test]
fn the_pace_of_a_failover_follows_a_reload() {
    let Some(fleet) = strangers("the_pace_of_a_failover_follows_a_reload") else { return };
    for number in 0..2 {
        fleet.reload(number, &fleet.config_with(number, &[1 - number]));
    }
    fleet.owner().wait_synced("lb-b");
    fleet.take(fleet.owner());
    fleet.wait_served();
    let mut conns = fleet.clients(20);
    fleet.wait_known(20, 0);
    fleet.reload(1, &fleet.config_with(1, &[0]).failover("resets_per_second", 4));
    fleet.owner().host.link_down();
    fleet.heir().wait_sees("lb-a", "liveness", "dead");
    let watch = Stopwatch::start();
    fleet.take(fleet.heir());
    all_reset(&mut conns);
    let took = watch.elapsed();
    assert!(took > secs(2), "20 at 4 a second: {took:?}");
}
