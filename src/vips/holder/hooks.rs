//! Runs the operator's programs when this host gets the VIP or gives it up: one at a time, in the order of the events.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::essential;
use crate::table::Part;
use crate::table::journal::{Journal, What};

const RUN_MAX: Duration = Duration::from_secs(30);

/// The queue of programs to run.
#[derive(Debug)]
pub(super) struct Hooks {
    waiting: mpsc::UnboundedSender<Vec<String>>,
}

impl Hooks {
    /// Starts the task that runs them. Needs a tokio runtime.
    pub(super) fn start(journal: Part<Journal>) -> Self {
        let (waiting, mut commands) = mpsc::unbounded_channel::<Vec<String>>();
        let run = async move {
            while let Some(words) = commands.recv().await {
                if let Err(error) = run(&words).await {
                    journal.record(What::VipHookFailed { command: words.join(" "), error });
                }
            }
        };
        tokio::spawn(essential::task("vip hooks", run));
        Self { waiting }
    }

    /// Queues `command`, unless it is empty. Its own arguments come first, then the event and the addresses.
    pub(super) fn run(&self, command: &[String], happened: &str, addresses: &[IpAddr]) {
        if command.is_empty() {
            return;
        }
        let all = command.iter().cloned().chain([happened.to_owned()]);
        let _ = self.waiting.send(all.chain(addresses.iter().map(ToString::to_string)).collect());
    }
}

async fn run(words: &[String]) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match timeout(RUN_MAX, command.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(status.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("Baton stopped it after {} s", RUN_MAX.as_secs())),
    }
}
