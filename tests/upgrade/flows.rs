//! Flows of all kinds through three upgrades in a row, with as many workers each time as suits it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use baton::sys::clock::now_ns;
use tokio::task::JoinSet;

use super::backend;
use super::instance::{Instance, lives, sockets_of, wait_for};
use super::scene::{self, Outcome, Shared};

const MIB: u64 = 1 << 20;

#[test]
fn two_hundred_flows_notice_none_of_three_upgrades() {
    carry(200);
}

/// As many as the goal says. Slow in a debug build; `--ignored` in a release build measures.
#[test]
#[ignore]
fn a_thousand_flows_notice_none_of_three_upgrades() {
    carry(1000);
}

#[test]
#[ignore]
fn five_thousand_flows_notice_none_of_three_upgrades() {
    carry(4500);
}

fn carry(flows: usize) {
    baton::sys::process::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let backends: Vec<SocketAddr> = (0..3).map(|_| runtime.block_on(backend::serve())).collect();
    let mut instance = Instance::start(&backends, 2);
    let at_rest = sockets_of(instance.first_pid());
    let shared = Arc::new(Shared::default());
    let mut clients = runtime.block_on(clients(instance.frontend, flows, &shared));
    wait_for("all flows", || shared.begun.load(Relaxed) >= flows as u64);

    let quiet_us = longest(&shared);
    let storms: Vec<_> = (0..4).map(|_| runtime.spawn(scene::storm(instance.frontend, shared.clone()))).collect();
    let stormy_us = longest(&shared);
    println!(
        "flows  workers  moved  held bytes    took  pause of a flow  longest round trip  old gone after  peak RSS"
    );
    println!("{flows:>5}  before upgrades: longest round trip in 1 s {quiet_us} µs, in the storm {stormy_us} µs");
    for workers in [1, 3, 2] {
        instance.configure(&backends, workers, "");
        let old = instance.pid().unwrap();
        shared.longest_us.store(0, Relaxed);
        let upgraded = instance.ask(&["upgrade"]).unwrap_or_else(|| panic!("no upgrade: {}", instance.log()));
        let told_ns = now_ns();
        let old_peak = peak_kib(old);
        wait_for("the old process to exit", || {
            instance.reap();
            !lives(old)
        });
        let gone_ms = (now_ns() - told_ns) / 1_000_000;
        let longest_us = longest(&shared);
        let new = upgraded["new_pid"].as_u64().unwrap() as u32;
        println!(
            "{flows:>5}  {workers:>7}  {:>5}  {:>10}  {:>3} ms  {:>12} µs  {longest_us:>15} µs  {gone_ms:>11} ms  {}+{} KiB",
            upgraded["moved"],
            upgraded["held_bytes"],
            upgraded["took_us"].as_u64().unwrap() / 1000,
            upgraded["longest_pause_us"],
            old_peak,
            peak_kib(new),
        );
        assert_eq!(upgraded["not_moved"], serde_json::json!([]));
        assert!(upgraded["moved"].as_u64().unwrap() >= flows as u64 * 9 / 10, "{upgraded}");
        assert!(gone_ms < 2000, "the old process stayed for {gone_ms} ms");
        assert_eq!(instance.pid(), Some(new));
        assert_ne!(old, new);
    }
    shared.over.store(true, Relaxed);
    let served: u64 = storms.into_iter().map(|storm| runtime.block_on(storm).unwrap().unwrap()).sum();
    let mut failed = Vec::new();
    while let Some(outcome) = runtime.block_on(clients.join_next()) {
        let (kind, outcome) = outcome.unwrap();
        failed.extend(outcome.err().map(|error| format!("{kind}: {error}")));
    }
    println!(
        "{served} new connections meanwhile, {} round trips, {} failed flows",
        shared.round_trips.load(Relaxed),
        failed.len()
    );
    assert!(failed.is_empty(), "{} flows failed: {:?}", failed.len(), &failed[..failed.len().min(10)]);
    assert!(served > 100, "the storm was a breeze: {served}");
    let pid = instance.pid().unwrap();
    // One more: the admin connection that asked a moment ago.
    wait_for("all sockets to be closed", || sockets_of(pid) <= at_rest + 1);
    let ended = instance.ask(&["status"]).unwrap()["frontends"][0]["accepted_total"].as_u64().unwrap();
    assert!(ended >= served + flows as u64, "the counters went back: {ended}");
}

/// A second's longest round trip.
fn longest(shared: &Shared) -> u64 {
    let before = shared.longest_us.load(Relaxed);
    std::thread::sleep(Duration::from_secs(1));
    let longest_us = shared.longest_us.swap(0, Relaxed);
    longest_us.max(before)
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

async fn clients(to: SocketAddr, flows: usize, shared: &Arc<Shared>) -> JoinSet<(&'static str, Outcome)> {
    let mut clients = JoinSet::new();
    for number in 0..flows {
        let (shared, seed) = (shared.clone(), number as u32);
        clients.spawn(async move {
            match number % 20 {
                0..12 => ("idle", scene::idle(to, shared).await),
                12 | 13 => ("talker", scene::talker(to, shared).await),
                14 | 15 => ("slow reader", scene::slow_reader(to, shared, seed, 6 * MIB).await),
                16 => ("uploader", scene::uploader(to, shared, seed, 24 * MIB).await),
                17 => ("both ways", scene::both_ways(to, shared, seed, 24 * MIB).await),
                _ => ("half-closed", scene::half_closed(to, shared, seed, 1500).await),
            }
        });
        if number % 50 == 49 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    clients
}
