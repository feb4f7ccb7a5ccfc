//! A process that did not run for a while.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::instance::{Instance, wait_for};

/// Regression: a process that was stopped for some seconds left no event and no count of it.
#[test]
fn a_process_that_was_stopped_tells_for_how_long() {
    let instance = Instance::start(&["127.0.0.1:9".parse().unwrap()], 1);
    let pid = Pid::from_raw(instance.pid().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(1_600));
    kill_process(pid, Signal::CONT).unwrap();
    let mut found = None;
    wait_for("the event", || {
        let events = String::from_utf8(instance.run(&["--json", "events"]).stdout).unwrap();
        let mut events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = events.find(|event| event["event"] == "process_paused");
        found.is_some()
    });
    let for_ms = found.unwrap()["for_ms"].as_u64().unwrap();
    assert!((1_400..20_000).contains(&for_ms), "{for_ms} ms");
}
