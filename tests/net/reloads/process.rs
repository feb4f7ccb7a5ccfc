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
