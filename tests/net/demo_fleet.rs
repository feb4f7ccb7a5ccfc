//! `baton demo --fleet`: its tour in both layouts and beside haproxy, and that nothing of it is left behind, however it
//! ends.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::baton::BINARY;
use crate::lab::network::skip;
use crate::lab::*;

/// A demo that is killed when dropped, and what it must leave nothing of.
struct Demo {
    child: Child,
    directory: tempfile::TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Command::new(BINARY)
            .args(["demo", "--fleet"])
            .args(arguments)
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("baton starts");
        Self { child, directory }
    }

    /// Reads its output up to a line with `text`; false if it ends before.
    fn wait_line(&mut self, text: &str) -> bool {
        let stdout = BufReader::new(self.child.stdout.as_mut().expect("it is piped"));
        stdout.lines().map_while(Result::ok).any(|line| line.contains(text))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Namespaces, BPF programs, files and processes.
    fn left_behind(&self) -> Vec<String> {
        let prefix = format!("baton-demo-{}", self.child.id());
        let names = |directory: &str| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
        };
        let mut left: Vec<_> = ["/run/netns", "/sys/fs/bpf", "/run/baton"].iter().flat_map(|it| names(it)).collect();
        // Locks have the name of what they lock in theirs.
        left.retain(|path| Path::new(path).file_name().is_some_and(|name| name.to_string_lossy().contains(&prefix)));
        left.extend(names(&self.directory.path().display().to_string()));
        let files = self.directory.path().display().to_string();
        left.extend(names("/proc").into_iter().filter(|process| {
            let command = std::fs::read(format!("{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&files)
        }));
        left
    }

    #[track_caller]
    fn wait_nothing_left(&self) {
        let deadline = secs(30);
        let watch = Stopwatch::start();
        while !self.left_behind().is_empty() {
            assert!(watch.elapsed() < deadline, "left behind: {:?}", self.left_behind());
            std::thread::sleep(ms(50));
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its output at its end, and whether it could run here.
fn output(mut demo: Demo, test: &str) -> Option<(Demo, Output)> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    demo.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    demo.child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    let status = demo.child.wait().unwrap();
    let why = String::from_utf8_lossy(&stderr).into_owned();
    if why.contains("--fleet: it needs") {
        skip(test, why.trim());
        return None;
    }
    Some((demo, Output { status, stdout, stderr }))
}

/// The rows of the closing table: fault, VIP, connections lost with their apiserver, others, gap. With `--compare`:
/// fault, what it cost with Baton, and what with haproxy.
fn rows<const COLUMNS: usize>(said: &str) -> Vec<[String; COLUMNS]> {
    let (_, table) = said.split_once("\nfault ").unwrap_or_else(|| panic!("no table:\n{said}"));
    let rows = table.lines().skip(1).take_while(|line| !line.is_empty());
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|line| cells(line).try_into().unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn tour(test: &str, layout: &str) {
    let demo = Demo::start(&["--tour", "--layout", layout, "--for", "170s"]);
    let Some((demo, output)) = output(demo, test) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    let rows: Vec<[String; 5]> = rows(&said);
    let faults: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(
        faults,
        [
            "Baton upgraded",
            "Baton killed, back in 0.5 s",
            "evacuated, then plug pulled",
            "plug pulled, firewalls drop",
            "apiserver killed"
        ]
    );
    for [fault, vip, with_apiserver, others, gap] in &rows {
        // On a busy machine the process may be late: then the VIP moves, and flows to its own apiserver are reset (docs/limits.md).
        let is_late = fault.starts_with("Baton killed") && layout == "stacked" && vip.contains('→');
        assert!(others == "0" || is_late, "{fault}: {others} connections were lost although their apiserver lived");
        assert!(!gap.contains("TOO LONG") || is_late, "{fault}: {gap}");
        let keeps_apiservers = layout == "dedicated" && fault != "apiserver killed";
        assert!(with_apiserver == "0" || !keeps_apiservers, "{fault}: {with_apiserver} connections were lost");
    }
    let moves = |fault: &str| rows.iter().any(|row| row[0] == fault && row[1].contains('→'));
    assert!(moves("evacuated, then plug pulled") && moves("plug pulled, firewalls drop"), "{said}");
    // Otherwise the tour would not see a lost connection at all.
    let last = rows.last().unwrap();
    assert!(last[2].parse::<u32>().unwrap() > 0, "{said}");
    assert!(output.status.success() || rows[1][1].contains('→'), "{said}\n{why}");
    assert_eq!(demo.left_behind(), [""; 0]);
}

#[test]
fn no_kubelet_of_two_balancers_reconnects_when_one_of_them_is_upgraded_killed_evacuated_or_cut_off() {
    tour("demo_fleet_dedicated", "dedicated");
}

#[test]
fn kubelets_of_stacked_hosts_lose_only_connections_whose_apiserver_goes_with_its_host() {
    tour("demo_fleet_stacked", "stacked");
}

#[test]
fn a_tour_beside_haproxy_shows_kubelets_that_hang_before_haproxy_and_none_that_reconnects_before_baton() {
    let test = "demo_fleet_beside_haproxy";
    let demo = Demo::start(&["--tour", "--layout", "dedicated", "--compare", "haproxy", "--for", "280s"]);
    let Some((demo, output)) = output(demo, test) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let rows: Vec<[String; 3]> = rows(&said);
    assert_eq!(rows.len(), 5, "{said}");
    for [fault, baton, _] in &rows {
        assert!(
            baton.starts_with("none, "),
            "{fault}: before Baton, kubelets whose apiserver lived reconnected: {baton}"
        );
    }
    let of = |fault: &str| &rows.iter().find(|row| row[0].starts_with(fault)).unwrap_or_else(|| panic!("{said}"))[2];
    for fault in ["balancer upgraded", "balancer killed", "evacuated"] {
        assert!(!of(fault).starts_with("none"), "{fault}: {}", of(fault));
    }
    // Each kubelet waits until its own ping stays unanswered.
    let firewalls = of("plug pulled, firewalls drop");
    assert!(firewalls.starts_with("12 (12 hung, 12 NotReady), 4"), "{firewalls}");
    assert_eq!(demo.left_behind(), [""; 0]);
}

#[test]
fn a_comparison_with_programs_that_are_missing_names_their_packages() {
    // A PATH that has nothing but ip(8).
    let directory = tempfile::tempdir().unwrap();
    let ip = std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|it| it.join("ip")).find(|it| it.exists());
    std::os::unix::fs::symlink(ip.expect("ip(8) is there"), directory.path().join("ip")).unwrap();
    let baton = |arguments: &[&str]| {
        Command::new(BINARY).arg("demo").args(arguments).env("PATH", directory.path()).output().expect("baton starts")
    };
    let said = String::from_utf8(baton(&["--fleet", "--compare", "haproxy"]).stderr).unwrap();
    if said.contains("--fleet: it needs") {
        return skip("a comparison with programs that are missing", said.trim());
    }
    let expected =
        "baton demo: --compare haproxy: it needs haproxy keepalived curl: apt-get install haproxy keepalived curl\n";
    assert_eq!(said, expected);
    let said = String::from_utf8(baton(&["--compare", "haproxy"]).stderr).unwrap();
    assert!(said.contains("--fleet"), "{said}");
}

#[test]
fn a_fleet_that_is_killed_or_told_to_end_leaves_no_namespace_behind() {
    // Killed while it lays out the hosts, killed when it serves, and told to end.
    for (line, signal) in [("laying out", Signal::KILL), ("kubelets connect", Signal::KILL), ("or run", Signal::TERM)] {
        let mut demo = Demo::start(&["--no-tui", "--for", "100s"]);
        if !demo.wait_line(line) {
            let test = "a_fleet_that_is_killed_or_told_to_end_leaves_no_namespace_behind";
            let Some((_, output)) = output(demo, test) else { return };
            panic!("it ended before {line:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let spaces = || demo.left_behind().iter().filter(|path| path.starts_with("/run/netns")).count();
        eventually(LONG, "it makes namespaces", || spaces() > 0);
        demo.signal(signal);
        demo.wait_nothing_left();
        let status = demo.child.wait().unwrap();
        assert_eq!(status.success(), signal == Signal::TERM, "{status}");
    }
}

/// Regression: the demo took the end of the old process for the end of Baton, and ended.
#[test]
fn somebody_upgrades_baton_on_a_host_in_another_terminal_and_the_demo_goes_on() {
    let mut demo = Demo::start(&["--no-tui", "--for", "100s"]);
    if !demo.wait_line("or run") {
        let test = "somebody_upgrades_baton_on_a_host_in_another_terminal_and_the_demo_goes_on";
        let Some((_, output)) = output(demo, test) else { return };
        panic!("it ended before it served: {}", String::from_utf8_lossy(&output.stderr));
    }
    let place = demo.directory.path().join(format!("baton-demo-{}", demo.child.id()));
    let baton = |verb: &str| {
        let socket = place.join("cp1.sock");
        Command::new(BINARY).arg("--socket").arg(socket).arg(verb).output().expect("baton starts")
    };
    eventually(secs(60), "cp1 is ready", || baton("ready").status.success());
    let upgraded = baton("upgrade");
    assert!(upgraded.status.success(), "{upgraded:?}");
    // Longer than the demo waits for an answer of the new process.
    wait::throughout(secs(5), "the demo goes on", || demo.child.try_wait().unwrap().is_none());
    assert!(baton("ready").status.success());
    demo.signal(Signal::TERM);
    demo.wait_nothing_left();
}
