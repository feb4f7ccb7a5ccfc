//! Flows of all kinds through three upgrades in a row, with as many workers each time as suits it.

use std::time::Duration;

use super::crowd::{Crowd, Seen};
use super::instance::{Instance, descriptors_of, wait_for};
use super::part;

/// How long round trips are watched, with an upgrade and without.
const WINDOW: Duration = Duration::from_secs(2);

/// How much an upgrade may add to the longest round trip.
const GOAL_US: u64 = 25_000;

/// How much it may add on a busy machine.
const STALL_US_MAX: u64 = 5_000_000;

/// The old process is to be gone this soon after the last acknowledgement.
const GONE_MAX: Duration = Duration::from_secs(2);

#[test]
fn a_thousand_flows_notice_none_of_three_upgrades() {
    carry(1000);
}

#[test]
fn five_thousand_flows_notice_none_of_three_upgrades() {
    carry(5000);
}

fn carry(flows: usize) {
    let (mut backends_part, backends) = part::backends(3);
    let mut instance = Instance::start(&backends, 2);
    let at_rest = descriptors_of(instance.first_pid());
    let mut crowd = Crowd::open(instance.frontend, flows);
    crowd.storm();
    // What begins all at once is over before anything is measured.
    watch(&mut crowd);
    println!("                    |        round trips of 1 ms talkers        | old process");
    println!(
        "flows  workers      |   count   median    99.9 %    longest     | gone after  flows moved  their bytes    took  longest pause"
    );
    let quiet: Vec<Seen> = (0..3).map(|_| watch(&mut crowd)).collect();
    for seen in &quiet {
        println!("{flows:>5}  2 (no upgrade) | {}", in_words(seen));
    }
    let undisturbed_us = quiet.iter().map(|seen| seen.longest).max().unwrap();
    let mut stall_us = 0;
    for workers in [1, 3, 2] {
        instance.configure(&backends, workers, "");
        crowd.look();
        let upgrade = instance.upgrade();
        let seen = watch(&mut crowd);
        let result = &upgrade.result;
        println!(
            "{flows:>5}  {workers:<14} | {} | {:>7} ms  {:>11}  {:>11}  {:>3} ms  {:>10} µs",
            in_words(&seen),
            upgrade.gone_after.as_millis(),
            result["moved"],
            result["held_bytes"],
            result["took_us"].as_u64().unwrap() / 1000,
            result["longest_pause_us"],
        );
        stall_us = stall_us.max(seen.longest);
        assert_eq!(result["not_moved"], serde_json::json!([]));
        assert!(result["moved"].as_u64().unwrap() >= flows as u64, "{result}");
        assert!(upgrade.gone_after < GONE_MAX, "the old process stayed for {:?}", upgrade.gone_after);
        assert_eq!(instance.pid(), Some(result["new_pid"].as_u64().unwrap() as u32));
        assert_ne!(result["new_pid"], result["old_pid"]);
    }
    let added_us = stall_us.saturating_sub(undisturbed_us);
    let judged = if added_us <= GOAL_US { "within" } else { "beyond" };
    println!(
        "longest round trip: {stall_us} µs with upgrades, {undisturbed_us} µs without: {judged} {} ms of it",
        GOAL_US / 1000
    );
    backends_part.ask::<()>("finish_drips");
    let report = crowd.finish();
    println!(
        "{flows} flows: {} failed; {} new connections meanwhile; {} MiB up and {} MiB down compared byte by byte",
        report.failures.len(),
        report.served,
        report.compared_up >> 20,
        report.compared_down >> 20
    );
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert!(added_us < STALL_US_MAX, "{added_us}");
    let pid = instance.pid().unwrap();
    let mut left = descriptors_of(pid);
    wait_for("all descriptors to be closed", || {
        left = descriptors_of(pid);
        // Pipes are kept for reuse, and the last question came over a socket that may not be closed yet.
        left.iter().filter(|(kind, _)| *kind != "pipe").all(|(kind, count)| {
            let before = at_rest.get(kind).copied().unwrap_or(0);
            *count <= before + usize::from(kind == "socket")
        })
    });
    println!("descriptors before: {at_rest:?}, after: {left:?}");
    let accepted = instance.ask(&["status"]).unwrap()["frontends"][0]["accepted_total"].as_u64().unwrap();
    assert!(accepted >= report.served + flows as u64, "the counters went back: {accepted}");
}

fn watch(crowd: &mut Crowd) -> Seen {
    std::thread::sleep(WINDOW);
    crowd.look()
}

fn in_words(seen: &Seen) -> String {
    let Seen { count, median, p999, longest } = seen;
    format!("{count:>7}  {median:>4} µs  {p999:>6} µs  {longest:>6} µs")
}
