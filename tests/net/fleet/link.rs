//! The messages between instances.

use super::*;

#[test]
fn a_peer_is_explained_by_its_name_and_its_address_while_it_lives_and_after_its_death() {
    let test = "a_peer_is_explained_by_its_name_and_its_address";
    let Some(scene) = Scene::new(test, 2) else { return };
    let _servers = scene.serve();
    let recorded = |number| scene.config(number).recording(&scene.lab.directory().join(format!("recorder-{number}")));
    let all = [0, 1].map(|number| scene.launch(number, &recorded(number)));
    all[0].wait_synced("lb-b");
    all[1].wait_synced("lb-a");
    let mut conn = scene.lab.client.connect(all[1].listens_at());
    conn.echo(1, 100);
    all[0].wait_sees("lb-b", "flows", 1);
    let explain = |asked: &str| all[0].baton.order(&["explain", asked]);
    let address = scene.host(1).v4(PORT);
    for asked in ["lb-b".to_owned(), "instance:lb-b".to_owned(), address.to_string(), address.ip().to_string()] {
        // The event may be on its way to the disk.
        let told = |said: &str| said.contains(" ago: ") && said.contains("lb-b");
        let (said, _) = eventually_some(LONG, "it is explained", || Some(explain(&asked)).filter(|said| told(said)));
        assert!(
            said.starts_with(&format!("lb-b ({address}, Baton ")) && said.contains(") is alive"),
            "{asked}: {said}"
        );
        assert!(said.contains("This instance knows all flows of lb-b: 1 flow, "), "{said}");
        assert!(
            said.contains("lb-b has ") && said.contains("If it dies (Baton killed), of its flows 1 would "),
            "{said}"
        );
        assert!(said.contains("the longest gap is decided by this: "), "{said}");
    }
    let unknown = all[0].baton.cli(&["explain", "lb-x"]);
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("and no peer, VIP, instance, frontend or node of this name"),
        "{unknown:?}"
    );

    all[1].baton.process.kill();
    all[0].wait_sees("lb-b", "liveness", "dead");
    eventually(LONG, "its death is explained", || {
        let said = explain("lb-b");
        // What became of its flows is told in place of that where it came a millisecond earlier.
        let is_told =
            ["lb-b is considered dead", "lb-b is dead: this instance carries on"].iter().any(|it| said.contains(it));
        said.contains(") is dead") && is_told && !said.contains("If it dies")
    });
    // Without an instance its last event is known.
    let recorder = scene.lab.directory().join("recorder-0");
    all[0].baton.process.kill();
    let mut command = Command::new(baton::BINARY);
    command.args(["explain", "lb-b", "--from", recorder.to_str().unwrap()]);
    let output = command.output().expect("the binary");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("lb-b is considered dead"), "{output:?}");
}

#[test]
fn two_instances_know_each_others_flows_within_moments() {
    let Some(scene) = Scene::new("two_instances_know_each_others_flows_within_moments", 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    let mut conns: Vec<_> = (0..50).map(|_| scene.lab.client.connect(a.listens_at())).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    b.wait_sees("lb-a", "flows", 50);
    assert_eq!((a.sees("lb-b")["flows"].as_u64(), a.sees("lb-b")["slot"].as_u64()), (Some(0), Some(1)));
    a.wait_sees("lb-b", "behind", 0);
    conns.truncate(20);
    b.wait_sees("lb-a", "flows", 20);
    assert_eq!(b.baton.metric("baton_peer_flows", &["peer=\"lb-a\""]), 20.0);
    assert_eq!(b.baton.metric("baton_peer_up", &["peer=\"lb-a\""]), 1.0);
    let table = b.baton.order(&["peers"]);
    assert!(table.contains("lb-a") && table.contains("alive") && table.contains("ready for the VIP"), "{table}");
    // The views of the instance itself show the peers, too.
    assert!(b.baton.order(&["status"]).contains("Peers of lb-b: lb-a alive\n"));
    assert_eq!(b.baton.status()["fleet"]["peers"][0]["flows"], 20);
    let (_, page) = b.baton.http("/").expect("the page");
    let (_, peers) = page.split_once("Peers of lb-b").expect("a table of its peers");
    let row = peers.split("<tr>").find(|row| row.contains("<b>lb-a</b>")).expect("a row for its peer");
    assert!(row.contains(">alive<") && row.contains(">20<"), "{row}");
}

#[test]
fn an_instance_that_joins_is_told_what_there_was_before_it() {
    let Some(scene) = Scene::new("an_instance_that_joins_is_told_what_there_was_before_it", 3) else { return };
    let _servers = scene.serve();
    // There is no other instance: it is ready once the deadline has passed, and not before. That is time enough to see it wait.
    let first = scene.launch(0, &scene.config(0).peers("sync_deadline", "5s"));
    eventually(LONG, "it says why it is not ready", || {
        first.baton.http("/readyz").is_some_and(|(status, why)| status == 503 && why.contains("lb-b, lb-c"))
    });
    first.baton.wait_until_ready();
    let mut conns: Vec<_> = (0..30).map(|_| scene.lab.client.connect(first.listens_at())).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    let others: Vec<_> = (1..3).map(|number| scene.launch(number, &scene.config(number))).collect();
    for other in &others {
        other.baton.wait_until_ready();
        other.wait_synced("lb-a");
        other.wait_sees("lb-a", "flows", 30);
    }
    others[0].wait_synced("lb-c");
    drop(conns);
    others.iter().for_each(|other| other.wait_sees("lb-a", "flows", 0));
}

#[test]
fn what_cannot_be_a_link_is_said_at_both_ends() {
    let Some(scene) = Scene::new("what_cannot_be_a_link_is_said_at_both_ends", 2) else { return };
    let other = scene.write_key("other.key", 8);
    let a = scene.launch(0, &scene.config(0));
    let b = scene.launch(1, &scene.config(1).peers("key_file", other.to_str().unwrap()));
    let why = |it: &Instance, peer: &str| it.sees(peer)["why_not"].as_str().unwrap_or_default().to_owned();
    for (one, peer) in [(&a, "lb-b"), (&b, "lb-a")] {
        eventually(LONG, "the wrong key is named", || why(one, peer).contains("peers.key_file"));
        one.baton.wait_log(&["no link to ", "peers.key_file"]);
        assert_eq!(one.sees(peer)["liveness"], "unheard");
    }
    drop(b);
    let b = scene.launch(1, &scene.config(1).instance("slot", 0));
    for (one, peer) in [(&a, "lb-b"), (&b, "lb-a")] {
        eventually(LONG, "the slot is named", || why(one, peer).contains("slot 0"));
    }
    drop(b);
    let b = scene.launch(1, &scene.config(1));
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
}

#[test]
fn a_peer_that_is_killed_is_silent_in_moments_and_dead_soon() {
    let Some(scene) = Scene::new("a_peer_that_is_killed_is_silent_in_moments_and_dead_soon", 2) else { return };
    let _servers = scene.serve();
    let mut all = scene.start();
    let b = all.pop().unwrap();
    let a = all.pop().unwrap();
    let mut conn = scene.lab.client.connect(b.listens_at());
    conn.echo(1, 100);
    a.wait_sees("lb-b", "flows", 1);
    let before = a.baton.events_of("peer_liveness").len();
    b.baton.process.kill();
    a.wait_sees("lb-b", "liveness", "dead");
    // Its flows are still known: a failover needs them.
    assert_eq!(a.sees("lb-b")["flows"], 1);
    assert!(a.baton.http("/readyz").is_some_and(|(status, _)| status == 200));
    let told = a.baton.events_of("peer_liveness");
    let mut states: Vec<_> = told.iter().skip(before).map(|event| event["liveness"].clone()).collect();
    // For as long as its last beat beside the link counts, it could be the link alone that is lost.
    states.retain(|liveness| liveness != "unlinked" && liveness != "alive");
    // It may have been silent for a moment before, where the machine had no time for it.
    states.dedup();
    assert_eq!(states, ["silent", "dead"]);
    let again = Baton::start_with(&b.host, &b.directory);
    again.wait_until_ready();
    a.wait_synced("lb-b");
    a.wait_sees("lb-b", "flows", 0);
}

#[test]
fn a_peer_that_stops_or_is_replaced_says_so() {
    let Some(scene) = Scene::new("a_peer_that_stops_or_is_replaced_says_so", 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    let mut conns: Vec<_> = (0..20).map(|_| scene.lab.client.connect(b.listens_at())).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 100));
    a.wait_sees("lb-b", "flows", 20);
    let before = a.sees("lb-b")["epoch"].as_u64().unwrap();
    // Its progress comes first.
    let said = b.baton.order(&["--json", "upgrade"]);
    let said = serde_json::Deserializer::from_str(&said).into_iter::<serde_json::Value>();
    let upgraded = said.last().expect("a result").expect("JSON");
    let _successor = Stranger::new(upgraded["new_pid"].as_i64().expect("the new process's pid"));
    eventually(LONG, "the new process is heard", || a.sees("lb-b")["epoch"].as_u64().unwrap() > before);
    a.wait_synced("lb-b");
    a.wait_sees("lb-b", "flows", 20);
    conns.iter_mut().for_each(|conn| conn.echo(2, 100));
    let mut states: Vec<_> = a.baton.events_of("peer_liveness").iter().map(|event| event["liveness"].clone()).collect();
    // 0.25 s without a beat, before or after: the machine had no time for it. Dead or unlinked it never is.
    states.retain(|liveness| liveness != "silent" && liveness != "alive");
    assert_eq!(states, [serde_json::json!({ "left": "succeeded" })]);
}

/// Regression: two hosts with different ranges of source ports were linked, and nobody was told that both use the same ports.
#[test]
fn peers_whose_source_ports_overlap_say_so_at_both_ends() {
    let Some(scene) = Scene::new("peers_whose_source_ports_overlap", 3) else { return };
    scene.host(1).sysctl("net/ipv4/ip_local_port_range", "32768 36863");
    let all = scene.start();
    for (at, other) in [(0, "lb-b"), (1, "lb-a")] {
        let told = || all[at].baton.events_of("ports_overlap");
        eventually(LONG, "it is told", || !told().is_empty());
        assert_eq!(told()[0]["peer"], other);
    }
    assert!(all[2].baton.events_of("ports_overlap").is_empty(), "its ports are of nobody else");
}

#[test]
fn strangers_on_the_peer_port_disturb_nobody() {
    let Some(scene) = Scene::new("strangers_on_the_peer_port_disturb_nobody", 2) else { return };
    let _servers = scene.serve();
    let all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    let mut conn = scene.lab.client.connect(a.listens_at());
    conn.echo(1, 100);
    // Silent ones, in numbers, and some that say nonsense.
    let silent: Vec<_> = (0..40).filter_map(|_| scene.lab.client.try_connect(b.host.v4(PORT), secs(5)).ok()).collect();
    for text in ["GET / HTTP/1.1\r\n\r\n", "BTNP\0\x01\0\x01\0\x30", "BTNP\0\x07\0\x09"] {
        let mut stranger = scene.lab.client.connect(b.host.v4(PORT));
        let _ = stranger.send_bytes(text.as_bytes());
        stranger.end(LONG);
    }
    b.baton.wait_log(&["a program that is not a peer connected to the peer link"]);
    conn.echo(2, 100);
    b.wait_sees("lb-a", "liveness", "alive");
    assert_eq!(b.baton.events_of("peer_lost").len(), 0);
    drop(silent);
    // Regression: each `check --host` of a peer was a warning in this log. A program there that says nonsense still is one.
    drop(a.host.connect(b.host.v4(PORT)));
    let mut stranger = a.host.connect(b.host.v4(PORT));
    let _ = stranger.send_bytes(b"GET / HTTP/1.1\r\n\r\n");
    stranger.end(LONG);
    b.baton.wait_log(&["a program at a linked peer's address connected to the peer link"]);
    assert!(!b.baton.process.log_text().contains("it closed the connection"), "{}", b.baton.process.log_text());
}

#[test]
fn the_key_that_genkey_prints_is_taken() {
    let key = std::process::Command::new(baton::BINARY).arg("genkey").output().unwrap();
    assert!(key.status.success());
    let text = String::from_utf8(key.stdout).unwrap();
    assert_eq!((text.trim().len(), text.lines().count()), (64, 1));
    let again = std::process::Command::new(baton::BINARY).arg("genkey").output().unwrap();
    assert_ne!(again.stdout, text.as_bytes());
}

#[test]
fn a_link_moves_to_another_port_and_is_waited_for_as_long_as_a_reload_says() {
    let test = "a_link_moves_to_another_port_and_is_waited_for_as_long_as_a_reload_says";
    let Some(scene) = Scene::new(test, 2) else { return };
    let reload = |instance: &Instance, config: &Config| {
        instance.baton.write_config(config);
        instance.baton.order(&["reload"]);
    };
    let a = scene.launch(0, &scene.config(0).peers("sync_deadline", "10m"));
    eventually(LONG, "it waits", || a.baton.http("/readyz").is_some_and(|(_, why)| why.contains("lb-b")));
    reload(&a, &scene.config(0).peers("sync_deadline", "1s"));
    a.baton.wait_until_ready();
    let b = scene.launch(1, &scene.config(1));
    a.wait_synced("lb-b");
    b.wait_synced("lb-a");
    let moved = |number: usize| {
        let (own, other) = (scene.host(number), scene.host(1 - number));
        let config = scene.config(number).peers("listen", own.v4(9999).to_string()).peers("beat_port", 9998);
        config.peers("peer", Vec::<toml::Value>::new()).peer(NAMES[1 - number], other.v4(9999))
    };
    reload(&a, &moved(0));
    reload(&b, &moved(1));
    let listens = |it: &Instance| it.host.run("ss -Hltun").lines().map(str::to_owned).collect::<Vec<_>>();
    for it in [&a, &b] {
        it.wait_synced(if it.name == "lb-a" { "lb-b" } else { "lb-a" });
        let has = |it: &Instance, what: &str, port: &str| {
            listens(it).iter().any(|line| line.starts_with(what) && line.contains(&format!(":{port} ")))
        };
        eventually(LONG, "the new ports, and only those", || {
            has(it, "tcp", "9999") && has(it, "udp", "9998") && !has(it, "tcp", "9471") && !has(it, "udp", "9471")
        });
    }
    // It listens at the same port all the while: no other program can take it.
    for sync_deadline in ["2s", "3s", "4s", "5s", "6s"] {
        reload(&a, &moved(0).peers("sync_deadline", sync_deadline));
    }
    let said = a.baton.process.log_text();
    assert!(!said.contains("cannot listen for peers"), "{said}");
    a.wait_synced("lb-b");
}
