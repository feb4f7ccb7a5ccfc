//! Offloaded flows and the process: killed, stopped, started again, replaced.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ::baton::offload::program::LAYOUT;
use ::baton::upgrade::codec;
use ::baton::upgrade::message::{Hello, Message, ProgramReader};

use super::Scene;
use crate::lab::*;

/// The instance that serves now, which is no child of the test after an upgrade; killed with this.
struct Successor<'a>(&'a Baton);

impl Successor<'_> {
    fn pid(&self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(self.0.status()["instance"]["pid"].as_i64()? as i32)
    }
}

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Regression: an instance that began at once after another one was killed ended, because that one's descriptors were still being closed, and
/// its lock was among them.
#[test]
fn an_instance_that_begins_while_a_killed_one_is_not_quite_gone_waits_for_its_end() {
    use rustix::fs::{FlockOperation, flock};
    let Some(scene) = Scene::new("killed, not quite gone") else { return };
    let lab = &scene.lab;
    let pins = scene.pinned.directory.to_str().unwrap().replace('/', "-");
    std::fs::create_dir_all("/run/baton").unwrap();
    let lock = std::fs::File::create(format!("/run/baton/baton{pins}.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let baton = Baton::start(&lab.lb, lab.directory(), &scene.config());
    baton.wait_log(&["another process still has the flows in"]);
    drop(lock);
    baton.wait_until_ready();
}

#[test]
fn row33_offloaded_flows_do_not_notice_a_kill_and_the_next_process_recovers_them() {
    let Some(scene) = Scene::new("row33") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let mut baton = lab.start(&config);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_offloaded(20);
    let before: Vec<_> =
        baton.flows().iter().map(|flow| (flow["id"].to_string(), flow["backend"].to_string())).collect();
    for _ in 0..2 {
        baton.process.kill();
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 10_000));
        baton = lab.start(&config);
        baton.wait_offloaded(20);
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 10_000));
    }
    let mut after: Vec<_> =
        baton.flows().iter().map(|flow| (flow["id"].to_string(), flow["backend"].to_string())).collect();
    let mut before = before;
    before.sort();
    after.sort();
    assert_eq!(before, after);
    eventually(LONG, "all of their bytes are counted", || {
        baton.flows().iter().all(|flow| flow["bytes_to_backend"] == 40_400 && flow["bytes_to_client"] == 40_400)
    });
    // New flows beside them, and an order for an recovered one.
    lab.client.connect(lab.lb.v4(6443)).echo(1, 1000);
    let id = baton.flows().iter().find(|flow| flow["client"] == conns[0].local().to_string()).unwrap()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    baton.order(&["kill", &id]);
    assert_eq!(conns[0].end(LONG), End::Rst);
    drop(conns);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
}

/// Not as `internal`, for which there is an alert.
#[test]
fn flows_that_their_ends_close_or_reset_while_no_process_runs_are_counted_so_by_the_next_one() {
    let Some(scene) = Scene::new("between") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let baton = lab.start(&config);
    let mut conns: Vec<_> = (0..40).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    (0..4).for_each(|round| conns.iter_mut().for_each(|conn| conn.echo(round, 100)));
    baton.wait_offloaded(40);
    baton.process.kill();
    conns.drain(..10).for_each(Conn::reset);
    drop(conns);
    // Nothing passes their entries for longer than these are kept for late packets.
    wait::throughout(secs(3), "no process runs", || baton.process.exit_status().is_some());
    let baton = lab.start(&config);
    eventually(LONG, "all have ended", || baton.ended().values().sum::<u64>() == 40);
    let ended = baton.ended();
    assert_eq!((ended.get("client_closed"), ended.get("client_reset")), (Some(&30), Some(&10)), "{ended:?}");
}

#[test]
fn a_stop_leaves_offloaded_flows_alone_and_ends_at_once() {
    let Some(scene) = Scene::new("stop") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let config = scene.config();
    let baton = lab.start(&config);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    let watch = Stopwatch::start();
    baton.process.signal(rustix::process::Signal::TERM);
    eventually(LONG, "it has stopped", || baton.process.exit_status().is_some());
    assert!(watch.unstalled() < secs(5), "a stop waits for flows that need no process: {:?}", watch.elapsed());
    conn.echo(9, 100_000);
    let baton = lab.start(&config);
    baton.wait_offloaded(1);
    conn.echo(10, 100_000);
}

#[test]
fn an_upgrade_takes_offloaded_flows_along_without_a_touch() {
    let Some(scene) = Scene::new("upgrade") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let _here = lab.lb.serve_on(lab.lb.v4(7443), Behaviour::Echo);
    let baton = lab.start(&scene.config().backend("here", lab.lb.v4(7443)));
    baton.wait_health("here", "ready", LONG);
    let _successor = Successor(&baton);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_offloaded(20);
    assert!(baton.flows_of("here") > 0);
    let ids = || {
        let mut ids: Vec<_> = baton.flows().iter().map(|flow| flow["id"].to_string()).collect();
        ids.sort();
        ids
    };
    let before = ids();
    for _ in 0..2 {
        baton.order(&["upgrade"]);
        eventually(LONG, "the new process has them", || {
            baton.http("/readyz").is_some_and(|(status, _)| status == 200) && ids() == before
        });
        conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 20_000));
    }
    baton.wait_offloaded(20);
    lab.client.connect(lab.lb.v4(6443)).echo(1, 1000);
}

/// Counters of the process itself, and of its own work alone; all others continue.
const OF_THE_PROCESS: [&str; 3] = ["process_", "baton_config_reloads", "baton_upgrade"];

/// Every sample of a counter or a histogram on the page.
fn counters(page: &str) -> Vec<(String, f64)> {
    let mut counts = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            counts = kind.ends_with(" counter") || kind.ends_with(" histogram");
        } else if counts && !line.starts_with('#') && !OF_THE_PROCESS.iter().any(|own| line.starts_with(own)) {
            let (sample, value) = line.rsplit_once(' ').expect("a sample");
            found.push((sample.to_owned(), value.parse().expect("a number")));
        }
    }
    found
}

#[test]
fn no_counter_of_the_metrics_page_falls_in_an_upgrade() {
    let Some(scene) = Scene::new("counters") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().log("flows", "all").log("flows_per_second", 1));
    let _successor = Successor(&baton);
    let mut conns: Vec<_> = (0..8).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| (0..4).for_each(|round| conn.echo(round, 100)));
    baton.wait_offloaded(8);
    // Some that end, more than the log takes in a second.
    conns.truncate(4);
    eventually(LONG, "they have ended", || baton.flow_count() == 4);
    eventually(LONG, "the log left some out", || baton.metric("baton_flow_log_skipped_total", &[]) >= 1.0);
    let before = counters(&baton.metrics());
    assert!(before.len() > 50 && before.iter().any(|(name, n)| name.starts_with("baton_flows_offloaded") && *n >= 5.0));
    for _ in 0..2 {
        let pid = baton.status()["instance"]["pid"].clone();
        baton.order(&["upgrade"]);
        eventually(LONG, "the new process has them", || {
            baton.http("/readyz").is_some_and(|(status, _)| status == 200)
                && baton.status()["instance"]["pid"] != pid
                && baton.flow_count() == 4
        });
        let after = counters(&baton.metrics());
        for (sample, count) in &before {
            let now = after.iter().find(|(name, _)| name == sample).map_or(0.0, |(_, count)| *count);
            assert!(now >= *count, "{sample}: {count} before, {now} after");
        }
        assert!(baton.status()["offload"]["offloaded_total"].as_u64() >= Some(5));
    }
}

/// Flows that rest, that talk without a pause and that move bulk, in whatever state each is, through upgrades amid a storm
/// of new clients.
#[test]
fn a_thousand_flows_offloaded_and_proxied_notice_none_of_three_upgrades() {
    const RESTING: u64 = 800;
    const TALKING: u64 = 180;
    const BULK: u64 = 20;
    // The map has room for half of them.
    const ROOM: u64 = 500;
    let Some(scene) = Scene::new("mixed") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    // The map is made by the first that opens it, for so many.
    drop(::baton::offload::program::remove(&scene.pinned.directory));
    let baton = lab.start(&scene.config().offload("max_flows", ROOM as i64));
    let _successor = Successor(&baton);
    let open = |count: u64| (0..count).map(|_| lab.client.connect(lab.lb.v4(6443))).collect::<Vec<_>>();
    let (mut resting, talking, bulk) = (open(RESTING), open(TALKING), open(BULK));
    for (seed, conn) in resting.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    let (over, rounds, newly_opened) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let over = OnDrop(&over);
        let until_over = |conns: Vec<Conn>, bytes: u64| {
            let (over, rounds) = (over.0, &rounds);
            scope.spawn(move || {
                let mut conns = conns;
                while !over.load(Relaxed) {
                    for (seed, conn) in conns.iter_mut().enumerate() {
                        conn.echo(seed as u64, bytes);
                        rounds.fetch_add(1, Relaxed);
                    }
                }
            })
        };
        let mut talking = talking;
        until_over(talking.split_off(TALKING as usize / 2), 700);
        until_over(talking, 700);
        until_over(bulk, 2_000_000);
        let (flag, served) = (over.0, &newly_opened);
        scope.spawn(move || {
            while !flag.load(Relaxed) {
                lab.client.connect(lab.lb.v4(6443)).echo(served.fetch_add(1, Relaxed), 300);
            }
        });
        let offloaded = || baton.status()["totals"]["flows"]["offloaded"].as_u64().unwrap();
        eventually(LONG, "many flows have been offloaded", || offloaded() > ROOM / 2);
        for _ in 0..3 {
            let upgraded: serde_json::Value = {
                let text = baton.order(&["upgrade", "--json"]);
                let documents = serde_json::Deserializer::from_str(&text).into_iter();
                documents.map(Result::unwrap).last().expect("what became of it")
            };
            println!("{upgraded}");
            assert_eq!(upgraded["not_moved"], serde_json::json!([]));
            assert!(upgraded["moved"].as_u64() > Some(ROOM / 2), "most that are proxied move");
            let told = |name: &str| baton.metric(&format!("baton_upgrade_{name}"), &[]);
            let seconds = |key: &str| upgraded[key].as_f64().expect("microseconds") / 1e6;
            assert_eq!(baton.metric("baton_upgrades_total", &["outcome=\"finished\""]), 1.0);
            assert_eq!(told("flows_imported_total"), upgraded["moved"].as_f64().expect("a count"));
            assert_eq!(
                (told("flows_not_moved_total"), told("undelivered_bytes_total")),
                (0.0, upgraded["held_bytes"].as_f64().unwrap())
            );
            assert!((told("longest_pause_seconds") - seconds("longest_pause_us")).abs() < 1e-6);
            let event = baton.events_of("upgrade_finished").pop().expect("an event of it");
            for key in ["held_bytes", "longest_pause_us"] {
                assert_eq!(event[key], upgraded[key], "{event}");
            }
            assert_eq!(event["flows"], upgraded["moved"], "{event}");
            let before = rounds.load(Relaxed);
            resting.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, 3_000));
            eventually(LONG, "all flows in motion are used", || rounds.load(Relaxed) > before + 2 * TALKING);
        }
        println!("{} of {} flows have been offloaded", offloaded(), RESTING + TALKING + BULK);
        drop(over);
    });
    println!("{} exchanges and {} new clients meanwhile", rounds.load(Relaxed), newly_opened.load(Relaxed));
    let reasons = baton.ended();
    let ordinary = |reason: &str| ["client_closed", "backend_closed"].contains(&reason);
    assert!(reasons.iter().all(|(reason, count)| ordinary(reason) || *count == 0), "{reasons:?}");
    drop(resting);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
}

/// True once this is dropped, also if earlier code panics: threads wait for it.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A binary of another release, as far as this one asks it.
fn another_release(directory: &Path, name: &str, hello: &Hello) -> PathBuf {
    let (path, frame) = (directory.join(name), directory.join(format!("{name}.hello")));
    std::fs::write(&frame, codec::encode(&Message::Hello(hello.clone()), 0).unwrap()).unwrap();
    let text = format!(
        "#!/bin/sh\ncase $1 in\nupgrade-version) echo '{}';;\nrun) cat {} >&0; exec sleep 60;;\nesac\n",
        serde_json::to_string(hello).unwrap(),
        frame.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// They would have gone on without anyone who ends them when their backend dies.
#[test]
fn a_release_that_cannot_recover_offloaded_flows_replaced_one_that_can_and_left_them_unwatched() {
    let Some(scene) = Scene::new("downgrade") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let reads = |layout, pins| Hello::here().reading(ProgramReader { layout, pins });
    let other_pins = Some(PathBuf::from("/sys/fs/bpf/other"));
    let releases = [
        ("before", Hello { version: "0.1.0".to_owned(), ..Hello::here() }, "does not know offloaded flows"),
        ("newer", reads(LAYOUT + 1, None), "reads flows in layout"),
        ("astray", reads(LAYOUT, other_pins), "looks for flows in /sys/fs/bpf/other"),
    ];
    let releases = releases.map(|(name, hello, words)| (another_release(lab.directory(), name, &hello), words));
    let check = |binary: &Path| baton.cli(&["upgrade", "--check", "--binary", binary.to_str().unwrap()]);
    for (binary, _) in &releases {
        assert!(check(binary).status.success(), "no flow has been offloaded: {:?}", check(binary));
    }
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    for (binary, words) in &releases {
        for output in [check(binary), baton.cli(&["upgrade", "--binary", binary.to_str().unwrap()])] {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(!output.status.success() && said.contains(words), "{}: {said}", binary.display());
        }
        conn.echo(9, 1000);
        assert_eq!(baton.status()["totals"]["flows"]["offloaded"], 1);
    }
    drop(conn);
    baton.rests();
}

#[test]
fn removing_offload_resets_its_flows_though_nobody_sends_a_byte() {
    let Some(scene) = Scene::new("remove") else { return };
    let lab = &scene.lab;
    let servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    for (seed, conn) in conns.iter_mut().enumerate() {
        (0..4).for_each(|round| conn.echo(seed as u64 * 10 + round, 100));
    }
    baton.wait_offloaded(20);
    baton.process.kill();
    conns[0].echo(7, 100);
    let pins = scene.pinned.directory.to_str().unwrap();
    let told = lab.lb.run(&format!("{} offload --pins {pins} remove --yes", crate::lab::baton::BINARY));
    assert!(told.contains("20 flows in it"), "{told}");
    for conn in &mut conns {
        assert_eq!(conn.end(LONG), End::Rst);
    }
    eventually(LONG, "the backends are rid of them", || servers.iter().all(|server| server.open() == 0));
}

/// Without the program each flow that it offloaded from then on lost its next packet to the kernel, which reset it.
#[test]
fn removing_offload_under_a_running_instance_had_its_flows_reset() {
    let Some(scene) = Scene::new("remove-used") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config());
    let pins = scene.pinned.directory.to_str().unwrap();
    // However the directory is spelled.
    for pins in [pins.to_owned(), format!("{pins}/")] {
        let remove = || baton.cli(&["offload", "--pins", &pins, "remove", "--yes"]);
        let refused = lab.lb.enter(remove);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("a running instance uses what is pinned in"), "{refused:?}");
    }
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    conn.echo(9, 1000);
}
