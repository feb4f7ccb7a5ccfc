//! `baton drill` on the lab's client: many kubelets, and one verdict at the end.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::baton::BINARY;
use super::process::Process;
use super::stand_in::Certificates;
use super::{LONG, Lab, wait};

/// A running drill; dropping it ends it.
#[derive(Debug)]
pub struct Drill(Process);

impl Drill {
    /// So many kubelets, each with a heartbeat every `every_s` seconds, that connect to `server`, HOST:PORT.
    pub fn start(lab: &Lab, certificates: &Certificates, server: &str, kubelets: u64, every_s: u64) -> Self {
        let (ca, name) = (certificates.ca().display().to_string(), lab.lb.v4.to_string());
        let (number, every) = (kubelets.to_string(), format!("{every_s}s"));
        let command =
            [BINARY, "--json", "drill", server, "--ca", &ca, "--server-name", &name, "-n", &number, "--every", &every];
        Self(lab.client.spawn(&command, &lab.directory().join("drill.log")))
    }

    /// Lets time pass while nobody ends.
    #[track_caller]
    pub fn pass(&self, time: Duration) {
        wait::throughout(time, "the drill goes on", || self.0.exit_status().is_none());
    }

    /// Its verdict at the end, and the longest gap of all nodes.
    #[track_caller]
    pub fn end(&self) -> (Value, Duration) {
        self.0.signal(Signal::INT);
        self.0.wait(LONG);
        let text = self.0.log_text();
        let verdict = text.find('{').map(|at| &text[at..]).and_then(|json| serde_json::from_str::<Value>(json).ok());
        let verdict = verdict.unwrap_or_else(|| panic!("{text}"));
        let longest = Duration::from_millis(verdict["gap_ms_max"].as_u64().expect("a number"));
        (verdict, longest)
    }
}
