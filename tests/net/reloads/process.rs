//! The process itself: doors, log, pace of resets, stop, and whether flows are offloaded.

use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use super::*;

#[test]
fn the_doors_move_with_a_reload() {
    let Some(mut it) = Running::start("reloaded doors") else { return };
    it.reload(&it.config.clone().admin("http", "127.0.0.1:9471"));
    let answers = |port: u16| it.lab.lb.enter(|| TcpStream::connect(("127.0.0.1", port))).is_ok();
    assert!(answers(9471));
    eventually(LONG, "the old door is closed", || !answers(9470));
    let before = it.baton.paths.clone();
    let socket = it.lab.directory().join("another.sock");
    std::fs::write(&before.config, it.config.text(&socket)).unwrap();
    it.baton.order(&["reload"]);
    it.baton.paths.socket = socket;
    eventually(LONG, "the old one is gone", || !before.socket.exists());
    it.connect().echo(1, 100);
    it.baton.rests();
}

/// Regression: directly after an edit `baton reload` said "nothing changed" and no more, as Baton had loaded the file by itself.
#[test]
fn a_reload_after_an_edit_names_what_baton_loaded_by_itself() {
    let Some(it) = Running::start("reloaded by itself") else { return };
    it.baton.write_config(&it.config.clone().admin("metrics", "127.0.0.1:9472"));
    let answers = || it.lab.lb.enter(|| TcpStream::connect(("127.0.0.1", 9472))).is_ok();
    eventually(LONG, "Baton has loaded the file", answers);
    eventually(LONG, "the load is recorded", || it.baton.order(&["events"]).contains("reloaded the configuration: "));
    let said = it.baton.order(&["reload"]);
    assert!(said.contains("nothing changed since Baton saw that the file had changed, and loaded it at "), "{said}");
    assert!(said.lines().count() == 2 && said.contains("metrics"), "{said}");
    assert_eq!(it.baton.order(&["reload"]), "reloaded: nothing changed\n");
}

/// GET of `path` at 127.0.0.1:`port` of the balancer: the status, and the body.
fn page(it: &Running, port: u16, path: &str) -> Option<(u16, String)> {
    let said = it.lab.lb.run(&format!("curl -s -w '\\n%{{http_code}}' http://127.0.0.1:{port}{path} || true"));
    let (body, status) = said.rsplit_once('\n')?;
    Some((status.parse().ok().filter(|status| *status != 0)?, body.to_owned()))
}

/// Runs the command as a user who is in the group `gid` alone.
fn as_member(it: &Running, gid: u32, arguments: &str) -> (bool, String) {
    // Not everybody may look into the folder that the test's own binary is in.
    let binary = it.lab.directory().join("baton");
    if !binary.exists() {
        std::fs::copy(crate::lab::baton::BINARY, &binary).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(it.lab.directory(), open).unwrap();
    }
    let (binary, socket) = (binary.display(), it.baton.paths.socket.display());
    let said = it.lab.lb.run(&format!(
        "setpriv --reuid 65533 --regid {gid} --clear-groups {binary} --socket {socket} {arguments} 2>&1 && echo well || echo badly"
    ));
    let said = said.trim_end();
    (said.ends_with("well"), said.rsplit_once('\n').map_or("", |(said, _)| said).to_owned())
}

/// Regression: looking took root, and Prometheus at another host got the addresses of all clients with the metrics.
#[test]
fn members_of_the_group_may_look_and_another_door_has_metrics_alone() {
    let Some(mut it) = Running::start("reloaded group") else { return };
    let nobody = || as_member(&it, 65532, "status");
    let (well, said) = nobody();
    assert!(!well && said.contains("with \"group\" in [admin], the members of that group may look"), "{said}");

    let config = it.config.clone().admin("group", "65534").admin("metrics", "127.0.0.1:9472");
    it.reload(&config);
    let looked = |it: &Running| {
        let mut conn = it.connect();
        conn.echo(1, 10);
        for look in ["status", "flows", "backends", "events", "version", "rebalance --dry-run"] {
            let (well, said) = as_member(it, 65534, look);
            assert!(well, "{look}: {said}");
        }
        assert!(as_member(it, 65534, "flows").1.contains(&format!("{}:", it.lab.client.v4)));
        for order in [
            "drain b1",
            "undrain b1",
            "eject b1",
            "kill --all --yes",
            "reload",
            "rebalance",
            "upgrade",
            "upgrade --check",
        ] {
            let (well, said) = as_member(it, 65534, order);
            let name = if order.contains("--check") { order } else { order.split(' ').next().unwrap() };
            let refused = format!(
                "baton: the read-only socket refuses \"{name}\": only root and the user that Baton runs as may use the admin socket"
            );
            assert!(!well && said == refused, "{order}: {said}");
        }
        let (well, said) = as_member(it, 65532, "status");
        assert!(!well, "no member: {said}");
        assert_eq!(page(it, 9472, "/livez"), Some((200, "ok\n".to_owned())));
        assert_eq!(page(it, 9472, "/readyz"), Some((200, "ok\n".to_owned())));
        assert!(
            page(it, 9472, "/metrics").is_some_and(|(status, text)| status == 200 && text.contains("baton_build_info"))
        );
        for path in ["/", "/status.json"] {
            let expected = "this server has no such page; it has /metrics, /livez, /readyz\n";
            assert_eq!(page(it, 9472, path), Some((404, expected.to_owned())));
        }
        assert_eq!(page(it, 9470, "/status.json").unwrap().0, 200);
    };
    looked(&it);
    // What a killed process left is replaced.
    it.baton.process.kill();
    it.baton = Baton::start_with(&it.lab.lb, it.lab.directory());
    it.baton.wait_until_ready();
    looked(&it);
    // An upgrade passes both on.
    it.baton.order(&["upgrade"]);
    looked(&it);
    // Another group.
    it.reload(&config.clone().admin("group", "65532"));
    assert!(as_member(&it, 65532, "status").0 && !as_member(&it, 65534, "status").0);
    // Without the file's mode the kernel's word for who speaks is left.
    let allow = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&it.baton.paths.socket, mode).unwrap();
    };
    allow(0o666);
    let (well, said) = as_member(&it, 65531, "drain b1");
    allow(0o600);
    assert!(!well && said.starts_with("baton: uid 65533 may not use this socket"), "{said}");
    // Bad values change nothing.
    for (key, value, expected) in [
        (
            "group",
            "no-such-group",
            "expected the name of a group in /etc/group, its number as a string, or \"\" (no such socket)",
        ),
        ("metrics", "127.0.0.1:9470", "give each of the two HTTP servers a port of its own"),
        ("metrics", "9472", "expected an address with its port, such as \"0.0.0.0:9472\", or \"\" (not served)"),
    ] {
        it.baton.write_config(&config.clone().admin(key, value));
        let refused = it.baton.cli(&["reload"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(expected), "{said}");
    }
    assert!(as_member(&it, 65532, "status").0);
    // Neither of them.
    let read_socket = it.baton.paths.socket.with_file_name("admin-read.sock");
    assert!(read_socket.exists());
    it.reload(&it.config.clone());
    eventually(LONG, "both are closed", || !read_socket.exists() && page(&it, 9472, "/livez").is_none());
}

#[test]
fn the_log_follows_a_reload() {
    let Some(it) = Running::start("reloaded log") else { return };
    let lines = || it.baton.process.log_text().lines().map(str::to_owned).collect::<Vec<_>>();
    // Of so many flows, those that have a line, once the last line is there that is not about one.
    let told = |flows: u64| {
        let before = lines().len();
        let seen = || it.baton.events_of("flow_ended").len();
        let count = seen() + flows as usize;
        (0..flows).for_each(|seed| it.connect().echo(seed, 10));
        // As soon as their lines are written.
        eventually(LONG, "they have ended", || seen() == count);
        it.reload(&it.config);
        eventually(LONG, "the reload is told", || lines()[before..].iter().any(|line| line.contains("reloaded")));
        lines()[before..].iter().filter(|line| line.contains("bytes_to_client")).count()
    };
    it.reload(&it.config.clone().log("flows", "all"));
    assert_eq!(told(3), 3);
    it.reload(&it.config.clone().log("flows", "off"));
    assert_eq!(told(3), 0);
    it.reload(&it.config.clone().log("flows", "errors"));
    assert_eq!(told(3), 0);
    it.reload(&it.config.clone().log("flows_per_second", 1));
    assert!(told(30) < 20);

    let reloads = || lines().iter().filter(|line| line.contains("[log] level debug becomes error")).count();
    let told = reloads();
    it.reload(&it.config.clone().log("level", "error"));
    eventually(LONG, "the reload is told", || reloads() == told + 1);
    let before = lines().len();
    it.connect().echo(1, 10);
    it.baton.order(&["drain", "b1"]);
    it.baton.order(&["undrain", "b1"]);
    assert_eq!(lines()[before..], [""; 0]);
    it.reload(&it.config.clone().log("format", "json"));
    let before = lines().len();
    it.baton.order(&["drain", "b2"]);
    eventually(LONG, "there is a line", || lines().len() > before);
    assert!(
        lines()[before..].iter().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{:?}",
        &lines()[before..]
    );
    it.baton.rests();
}

#[test]
fn the_pace_of_resets_follows_a_reload() {
    let Some(it) = Running::start("reloaded pace") else { return };
    let config = it.config.clone().only(&["b1"]);
    let last_reset = |config: &Config, flows: usize| {
        it.reload(config);
        it.baton.wait_health("b1", "ready", LONG);
        let mut conns: Vec<_> = (0..flows).map(|_| it.connect()).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 10));
        let watch = Stopwatch::start();
        it.baton.order(&["eject", "b1"]);
        conns.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
        let took = watch.elapsed();
        it.baton.order(&["undrain", "b1"]);
        took
    };
    let slow = last_reset(&config.clone().process("reset_within", "0s").process("reset_rate", 10), 25);
    assert!(slow > ms(1200), "25 at 10 a second: {slow:?}");
    let spread = last_reset(&config.clone().process("reset_within", "3s").process("reset_rate", 50_000), 40);
    assert!(spread > ms(1500), "40 over 3 s: {spread:?}");
    it.reload(&it.config);
    it.baton.rests();
}

#[test]
fn the_times_of_a_stop_follow_a_reload() {
    let Some(it) = Running::with("reloaded stop", |config| config.process("shutdown_delay", "0s")) else { return };
    it.reload(&it.config.clone().process("shutdown_delay", "3s").process("stop_timeout", "1s"));
    let mut conn = it.connect();
    conn.echo(1, 100);
    let watch = Stopwatch::start();
    it.baton.process.signal(Signal::TERM);
    eventually(LONG, "it is not ready", || it.baton.http("/readyz").is_some_and(|(status, _)| status == 503));
    // New flows are served meanwhile.
    it.connect().echo(2, 100);
    assert_eq!(conn.end(LONG), End::Rst);
    let took = watch.unstalled();
    assert!((ms(3500)..secs(12)).contains(&took), "3 s and 1 s, by default 1 s and 30 s: {took:?}");
    eventually(LONG, "it ends", || it.baton.process.exit_status().is_some());
}

#[test]
fn whether_and_when_flows_are_offloaded_follows_a_reload() {
    let test = "reloaded offload";
    let Some(pinned) = Pinned::unused(test) else { return };
    let never =
        |config: Config| config.offloading(&pinned.directory).offload("after_round_trips", 1000).offload("after", "1h");
    let Some(it) = Running::with(test, never) else { return };
    let talk = || {
        let mut conn = it.connect();
        (0..6).for_each(|seed| conn.echo(seed, 100));
        conn
    };
    let offloaded = || it.baton.status()["totals"]["flows"]["offloaded"].as_u64().unwrap();
    let talked = talk();
    assert_eq!(offloaded(), 0);
    it.reload(&it.config.clone().offload("after_round_trips", 2));
    let by_requests = talk();
    it.baton.wait_offloaded(1);
    it.reload(&it.config.clone().offload("after", "10ms"));
    let by_age = talk();
    eventually(LONG, "one by its age", || offloaded() >= 2);
    let before = offloaded();
    it.reload(&it.config.clone().offload("mode", "off").offload("after", "10ms"));
    assert_eq!(it.baton.status()["offload"]["why_not"], "offload.mode is \"off\"");
    let mut off = talk();
    assert!(offloaded() <= before + 1, "only what was tried before");
    let still = offloaded();
    off.stays_open(ms(1200));
    assert_eq!(offloaded(), still);
    it.reload(&it.config.clone().offload("mode", "auto").offload("after", "10ms"));
    assert!(it.baton.status()["offload"]["why_not"].is_null());
    let on = talk();
    eventually(LONG, "one more", || offloaded() > still);
    drop((talked, by_requests, by_age, off, on));
    it.baton.rests();
}

/// Regression: a reload said that flows would be offloaded from then on, but none was until the next start.
#[test]
fn a_reload_that_would_begin_to_offload_is_refused() {
    let Some(it) = Running::start("offload by reload") else { return };
    it.baton.write_config(&it.config.clone().offload("mode", "auto"));
    let output = it.baton.cli(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("offload.mode") && said.contains("baton upgrade"), "{said}");
    it.reload(&it.config);
    it.baton.rests();
}

/// Regression: flows kept the patience of the old file, 30 s where the new one said 2 s.
#[test]
fn an_offloaded_flow_whose_client_has_vanished_ends_when_the_user_timeout_of_a_reload_says() {
    let test = "reloaded patience";
    let (Some(pinned), Some(lab)) = (Pinned::unused(test), Lab::new(test)) else { return };
    let server = lab.b1.serve(Behaviour::AnswerAfterFin { seed: 5, bytes: u64::MAX });
    let config = lab.config().only(&["b1"]).offloading(&pinned.directory);
    let baton = lab.start(&config.clone().frontend("user_timeout", "10m"));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    baton.wait_offloaded(1);
    conn.half_close();
    conn.read_tally(100_000).unwrap();
    lab.client.link_down();
    baton.write_config(&config.frontend("user_timeout", "2s"));
    baton.order(&["reload"]);
    let watch = Stopwatch::start();
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|seen| seen.end == End::Rst));
    assert!(watch.unstalled() < secs(8), "{:?}", watch.elapsed());
    baton.wait_ended("client_timed_out", 1);
    baton.rests();
}
