//! The demo by itself: every fault of its tour, the real program, real clients.

use std::process::{Command, Stdio};

#[test]
fn no_client_of_the_tour_waits_on_a_dead_connection_and_nothing_is_left_behind() {
    let tmp = tempfile::tempdir().unwrap();
    // A port of its own, so that a demo that someone watches meanwhile is not in its way.
    let mut ports = (20_000..21_000).map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let free = ports.find(|address| std::net::TcpListener::bind(address).is_ok()).expect("a free port");
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

    let left: Vec<_> = tmp.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let places = tmp.path().display().to_string();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&command).contains(&places), "still runs: {:?}", process.path());
    }
}
