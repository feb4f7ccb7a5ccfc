//! Faults of Baton's own host that are none of the network: a full disk, a read-only /run, a process that was stopped for a minute, memory
//! that is not there, another clock.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::lab::*;
use crate::offloaded::Scene;

/// Starts Baton in `directory`, with its log at `log`.
#[track_caller]
fn start_with_log(lab: &Lab, directory: &std::path::Path, log: &str) -> Baton {
    let paths = config::Paths::below(directory);
    std::fs::write(&paths.config, lab.config().text(&paths.socket)).expect("a file");
    let wrapper = ["sh", "-c", &format!("exec \"$0\" \"$@\" >{log} 2>&1")];
    Baton::start_by(&wrapper, &lab.lb, directory)
}

#[test]
fn a_log_on_a_full_disk_costs_no_flow_and_no_order() {
    let Some(lab) = Lab::new("full log") else { return };
    let _servers = lab.echo_everywhere();
    let mut baton = start_with_log(&lab, lab.directory(), "/dev/full");
    baton.wait_until_ready();
    baton.wait_for_backends(&["b1", "b2", "b3"]);
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 10_000));
    // Each end, order and reload is a line of the log.
    conns.truncate(10);
    eventually(LONG, "half of them have ended", || baton.flow_count() == 10);
    baton.order(&["drain", "b1"]);
    baton.write_config(&lab.config().frontend("drain_timeout", "1m"));
    baton.order(&["reload"]);
    baton.order(&["undrain", "b1"]);
    conns.iter_mut().for_each(|conn| conn.echo(2, 10_000));
    lab.client.connect(lab.lb.v4(6443)).echo(3, 10_000);
    drop(conns);
    baton.rests();
}

/// A file system for /run/baton.
struct Run(PathBuf);

impl Run {
    #[track_caller]
    fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).expect("a directory");
        let run = Self(path);
        run.mount(&["-t", "tmpfs", "-o", "size=4m", "baton-test"]);
        run
    }

    /// Whoever opens a file by its path from now on finds it read-only. Baton has one open for writing, for which the kernel refuses to
    /// remount the file system itself.
    #[track_caller]
    fn make_read_only(&self) {
        self.mount(&["--bind", self.0.to_str().expect("UTF-8")]);
        self.mount(&["-o", "remount,bind,ro"]);
    }

    #[track_caller]
    fn mount(&self, options: &[&str]) {
        assert!(Command::new("mount").args(options).arg(&self.0).status().expect("mount runs").success());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The second mount lies on the first.
        while Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status().is_ok_and(|it| it.success())
        {
        }
    }
}

#[test]
fn a_run_that_has_become_read_only_costs_no_flow_and_no_order_and_the_next_start_says_why_not() {
    let Some(lab) = Lab::new("read-only run") else { return };
    let _servers = lab.echo_everywhere();
    let run = Run::new(lab.directory().join("run"));
    let mut baton = start_with_log(&lab, &run.0, "/dev/null");
    baton.wait_until_ready();
    baton.wait_for_backends(&["b1", "b2", "b3"]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 10_000);
    run.make_read_only();
    baton.order(&["drain", "b1"]);
    baton.order(&["reload"]);
    conn.echo(2, 10_000);
    lab.client.connect(lab.lb.v4(6443)).echo(3, 10_000);
    drop(conn);
    baton.rests();
    baton.process.kill();
    drop(baton);
    let file = run.0.join("baton.toml");
    let command = [baton::BINARY, "run", "-c", file.to_str().expect("UTF-8")];
    let next = lab.lb.spawn(&command, &lab.directory().join("next.log"));
    eventually(LONG, "it has ended", || next.exit_status().is_some());
    assert!(!next.exit_status().expect("it has ended").success());
    let said = next.log_text();
    assert!(said.contains("Baton does not start: ") && said.contains("Read-only file system"), "{said}");
}

/// A hypervisor stops its guests for as long when it moves or saves them.
#[test]
fn a_process_that_was_stopped_for_a_minute_goes_on_with_every_flow() {
    let Some(lab) = Lab::new("stopped for a minute") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conns: Vec<_> = (0..10).map(|_| lab.client.connect(lab.lb.v4(6443)).patient(secs(20))).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 10_000));
    baton.process.stop();
    let mut late = Vec::new();
    wait::throughout(secs(60), "it is stopped", || {
        // The kernel takes connections for it.
        if late.len() < 3 {
            late.push(lab.client.connect(lab.lb.v4(6443)).patient(secs(20)));
        }
        baton.process.exit_status().is_none()
    });
    baton.process.go_on();
    conns.iter_mut().chain(&mut late).for_each(|conn| conn.echo(2, 10_000));
    // Long enough for each decision that a silence of a minute could have led to.
    wait::throughout(secs(5), "no backend is blamed", || {
        ["b1", "b2", "b3"].iter().all(|name| baton.health_state(name) == "ready")
    });
    conns.iter_mut().for_each(|conn| conn.echo(3, 10_000));
    assert_eq!(baton.flow_count(), 13);
    drop((conns, late));
    baton.rests();
}

/// Connections that a process takes before the memory that it is left must be used up.
const FLOOD_MAX: usize = 6_000;

#[test]
fn a_process_that_is_killed_for_its_memory_costs_no_offloaded_flow() {
    let Some(scene) = Scene::new("out of memory") else { return };
    let Some(limit) = MemoryLimit::new("out of memory") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let (config, paths) = (scene.config(), config::Paths::below(lab.directory()));
    std::fs::write(&paths.config, config.text(&paths.socket)).expect("a file");
    let wrapper = limit.wrapper();
    let mut baton = Baton::start_by(&wrapper.each_ref().map(String::as_str), &lab.lb, lab.directory());
    baton.wait_until_ready();
    baton.wait_for_backends(&["b1", "b2", "b3"]);
    assert!(limit.has(&baton.process));
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    conns.iter_mut().for_each(|conn| (0..4).for_each(|round| conn.echo(round, 100)));
    baton.wait_offloaded(20);

    limit.leave(512 * 1024);
    let mut flood = Vec::new();
    while baton.process.exit_status().is_none() && flood.len() < FLOOD_MAX {
        let Ok(mut conn) = lab.client2.try_connect(lab.lb.v4(6443), secs(1)) else { continue };
        let _ = conn.send(1, 1_000);
        flood.push(conn);
        let at = flood.len() % conns.len();
        conns[at].echo(5, 100);
    }
    let ended = baton.process.wait(LONG);
    println!("out of memory: killed beside {} connections more", flood.len());
    assert_eq!((ended.signal(), limit.kills()), (Some(9), 1), "{ended}");
    conns.iter_mut().for_each(|conn| conn.echo(6, 10_000));
    drop(flood);

    let baton = lab.start(&config);
    eventually(LONG, "the flood is over, and the others are here", || {
        baton.flow_count() == 20 && baton.status()["totals"]["flows"]["offloaded"] == 20
    });
    conns.iter_mut().for_each(|conn| conn.echo(7, 10_000));
    drop(conns);
    baton.rests();
}

/// Eleven days: more than any limit of Baton's.
const OTHER_CLOCK_S: u64 = 1_000_000;

/// A restored container's clock is that of its first host, and the program in the kernel knows nothing of it (time_namespaces(7)).
#[test]
fn a_process_whose_clock_is_not_its_kernels_recovers_flows_with_their_ages() {
    let Some(scene) = Scene::new("other clock") else { return };
    let lab = &scene.lab;
    let offset = OTHER_CLOCK_S.to_string();
    let unshare = ["unshare", "--time", "--monotonic", &offset, "--boottime", &offset];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|it| it.success()) {
        network::skip("other clock", "unshare(1) makes no time namespace here");
        return;
    }
    let _servers = lab.echo_everywhere();
    let mut baton = lab.start(&scene.config());
    let watch = Stopwatch::start();
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    for wrapper in [&unshare[..], &[], &unshare[..]] {
        baton.process.kill();
        baton = Baton::start_by(wrapper, &lab.lb, lab.directory());
        baton.wait_until_ready();
        baton.wait_for_backends(&["b1", "b2", "b3"]);
        baton.wait_offloaded(1);
        let flow = baton.flows().remove(0);
        let figure = |key: &str| ms(flow[key].as_u64().unwrap_or_else(|| panic!("no {key}: {flow}")));
        let (age, idle, lived) = (figure("age_ms"), figure("idle_ms"), watch.elapsed());
        println!("other clock: after {lived:?} the flow is {age:?} old, and its last byte");
        assert!(age <= lived && lived - age < secs(5), "{age:?} of {lived:?}: {flow}");
        assert!(idle <= age, "{flow}");
        // Nobody takes it for silent.
        wait::throughout(secs(2), "it goes on", || baton.flow_count() == 1);
        conn.echo(9, 10_000);
        let idle = || baton.flows()[0]["idle_ms"].as_u64();
        eventually(LONG, "its last byte was a moment ago", || idle().is_some_and(|idle| idle < 2_000));
    }
    drop(conn);
    baton.rests();
}
