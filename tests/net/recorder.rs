//! The flight recorder: what can be said after the process is gone.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::lab::baton::BINARY;
use crate::lab::*;

/// A lab whose Baton records.
struct Recorded {
    lab: Lab,
    baton: Baton,
    directory: PathBuf,
}

impl Recorded {
    fn start(lab: Lab, adjust: impl FnOnce(Config) -> Config) -> Self {
        let directory = lab.directory().join("recorder");
        let baton = lab.start(&adjust(lab.config()).recording(&directory));
        Self { lab, baton, directory }
    }

    /// What a command prints that reads the files, without an instance.
    #[track_caller]
    fn offline(&self, arguments: &[&str]) -> String {
        let config = self.baton.paths.config.to_str().expect("UTF-8");
        let Output { status, stdout, stderr } =
            std::process::Command::new(BINARY).args(arguments).args(["-c", config]).output().expect("the binary runs");
        let said = String::from_utf8(stdout).expect("UTF-8");
        assert!(status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&stderr));
        said
    }

    /// The events in the files, of one kind.
    #[track_caller]
    fn recorded(&self, kind: &str) -> Vec<Value> {
        let said = self.offline(&["--json", "events", "--flows", "--since", "1h"]);
        let events = said.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        events.filter(|event: &Value| event["event"] == kind).collect()
    }
}

#[test]
fn events_and_ended_flows_outlive_a_killed_process_an_upgrade_and_the_next_process() {
    let Some(lab) = Lab::new("recorder") else { return };
    let _servers = lab.echo_everywhere();
    let mut it = Recorded::start(lab, |config| config);
    it.lab.client.connect(it.lab.lb.v4(6443)).echo(1, 1000);
    it.baton.wait_ended("client_closed", 1);
    let mut kept = it.lab.client.connect(it.lab.lb.v4(6443));
    kept.echo(2, 1000);
    let old = it.baton.status()["instance"]["pid"].clone();
    it.baton.order(&["upgrade"]);
    let new = it.baton.status()["instance"]["pid"].clone();
    assert_ne!(old, new);
    let new = Stranger::new(new.as_i64().expect("a number"));
    kept.echo(3, 1000);
    it.baton.order(&["drain", "b1"]);
    drop(kept);
    it.baton.wait_ended("client_closed", 2);
    eventually(LONG, "both ends are on disk", || it.recorded("flow_ended").len() == 2);
    new.kill();
    assert_eq!(it.recorded("started").len(), 2, "each process says it once");
    assert_eq!(it.recorded("upgrade_finished").len(), 1);
    let drained = it.recorded("order_received");
    assert!(drained.iter().any(|order| order["order"] == "drain b1"), "{drained:?}");
    let ends = it.recorded("flow_ended");
    assert_eq!(ends.len(), 2, "{ends:?}");
    let said = it.offline(&["events", "--since", "1h"]);
    assert!(said.contains("uid 0 (process") && said.contains("Z  "), "{said}");
    let none = it.offline(&["events", "--at", "1970-01-01T00:00Z", "--for", "1h"]);
    assert_eq!(none, "");

    // The next process goes on, in files of its own.
    it.baton = Baton::start_with(&it.lab.lb, it.lab.directory());
    it.baton.wait_until_ready();
    eventually(LONG, "the third start is on disk", || it.recorded("started").len() == 3);
    let status = it.baton.status();
    assert_eq!(status["recorder"]["directory"], it.directory.to_str().expect("UTF-8"));
    assert_eq!((&status["recorder"]["dropped_total"], &status["recorder"]["fault"]), (&0.into(), &Value::Null));
}
