//! The demo by itself: every fault of its tour, the real program, real clients.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

#[test]
fn no_client_of_the_tour_waits_on_a_dead_connection_and_nothing_is_left_behind() {
    let tmp = tempfile::tempdir().unwrap();
    let free = own_address();
    let demo = Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["demo", "--tour", "--for", "150s", "--kubelets", "6", "--http", &free.to_string()])
        .env("TMPDIR", tmp.path())
        .stdin(Stdio::null())
        .output()
        .expect("baton starts");
    let said = String::from_utf8_lossy(&demo.stdout);
    assert!(demo.status.success(), "{said}\n{}", String::from_utf8_lossy(&demo.stderr));
    // The closing table, which people want to see in the log of a test run.
    let table = said.split_once("\nfault ").expect("the tour ends in a table").1;
    println!("fault {table}");
    for cell in ["SIGKILL", "SIGSTOP", "/readyz answers 500", "SIGTERM", "drained by an operator"] {
        assert!(table.contains(cell), "{cell} is not in the table");
    }
    assert!(!table.contains("TOO LONG"));

    nothing_is_left(tmp.path());
}

/// Regression: the demo took the end of the old process for the end of Baton, ended, and left the new process behind.
#[test]
fn somebody_upgrades_baton_in_another_terminal_and_the_demo_goes_on_and_ends_both() {
    let tmp = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["demo", "--no-tui", "--for", "150s", "--kubelets", "3", "--http", &own_address().to_string()])
        .env("TMPDIR", tmp.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("baton starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    let baton = |arguments: &[&str]| {
        let places = tmp.path().read_dir().unwrap().flatten().map(|place| place.path().join("admin.sock"));
        let socket = places.last().unwrap_or_default();
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.arg("--socket").arg(socket).args(arguments).output().expect("baton starts")
    };
    while !baton(&["ready"]).status.success() {
        assert!(Instant::now() < deadline, "it is not ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..2 {
        let upgraded = baton(&["upgrade"]);
        assert!(upgraded.status.success(), "{upgraded:?}");
        // Longer than the demo waits for an answer of the new process.
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            assert!(demo.try_wait().unwrap().is_none(), "the demo has ended");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(baton(&["ready"]).status.success());
    }
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    demo.wait().unwrap();
    nothing_is_left(tmp.path());
}

/// Nobody else has this address, neither a demo that someone watches nor another test of this run.
fn own_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 192, high, low], 20_000))
}

/// Neither files in `tmp` nor processes that know of it.
#[track_caller]
fn nothing_is_left(tmp: &Path) {
    let left: Vec<_> = tmp.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let places = tmp.display().to_string();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&command).contains(&places), "still runs: {:?}", process.path());
    }
}
