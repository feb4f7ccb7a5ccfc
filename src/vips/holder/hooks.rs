//! Runs the operator's programs when this host gets the VIP or gives it up: one at a time, in the order of the events.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::essential;
use crate::model::duration::display;
use crate::table::Part;
use crate::table::journal::{Journal, What};

/// The queue of programs to run.
#[derive(Debug)]
pub(super) struct Hooks {
    waiting: mpsc::UnboundedSender<Vec<String>>,
}

impl Hooks {
    /// Starts the task that runs them, each for no longer than `limit`. Needs a tokio runtime.
    pub(super) fn start(journal: Part<Journal>, limit: Duration) -> Self {
        let (waiting, mut commands) = mpsc::unbounded_channel::<Vec<String>>();
        let run = async move {
            while let Some(words) = commands.recv().await {
                if let Err(error) = run(&words, limit).await {
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

async fn run(words: &[String], limit: Duration) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match timeout(limit, command.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(status.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("Baton stopped it after {}", display(limit))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[tokio::test]
    async fn a_program_that_hangs_is_stopped_one_that_fails_is_told_and_the_next_one_runs() {
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let table = Table::new(1);
        let hooks = Hooks::start(table.part(), Duration::from_secs(1));
        let script = |text: &str| ["/bin/sh", "-c", text, "hook"].map(str::to_owned).to_vec();
        let vip: IpAddr = "10.0.0.100".parse().unwrap();
        hooks.run(&[], "gain", &[vip]);
        hooks.run(&script(&format!("echo $$ > {0}; exec sleep 1000", said.display())), "gain", &[vip]);
        hooks.run(&script("exit 3"), "loss", &[vip]);
        hooks.run(&["/nowhere".to_owned()], "gain", &[vip]);
        hooks.run(&script(&format!("echo $1 $2 >> {}", said.display())), "loss", &[vip]);
        let lines =
            || std::fs::read_to_string(&said).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while lines().len() < 2 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(lines()[1], "loss 10.0.0.100");
        let told = table.journal.since(0, false).into_iter().map(|event| match event.what {
            What::VipHookFailed { error, .. } => error,
            other => panic!("{other:?}"),
        });
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[..2], ["Baton stopped it after 1s".to_owned(), "exit status: 3".to_owned()]);
        assert!(told[2].contains("No such file"), "{told:?}");
        let hung = std::path::Path::new("/proc").join(&lines()[0]);
        while hung.join("cmdline").exists() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!hung.exists(), "it still runs");
    }
}
