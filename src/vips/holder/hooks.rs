//! Runs the operator's programs when this host gets the VIP or gives it up: one at a time, and the last event always has its run. While a
//! program runs, only the newest event waits, so a VIP that moves to and fro leaves no queue of programs behind.

use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::essential;
use crate::model::duration::display;
use crate::model::secrets::REMOVED;
use crate::ports::vip::VipPort;
use crate::table::Part;
use crate::table::journal::{Journal, What};

/// The program to run next.
#[derive(Debug)]
pub(super) struct Hooks {
    next: watch::Sender<NextHook>,
    vip: Part<VipPort>,
}

#[derive(Clone, Debug, Default)]
struct NextHook {
    words: Vec<String>,
    /// What of them is told.
    shown: String,
    /// It ends a program that still runs.
    is_urgent: bool,
}

impl Hooks {
    /// Starts the task that runs them, each for no longer than `limit`. Needs a tokio runtime.
    pub(super) fn start(journal: Part<Journal>, vip: Part<VipPort>, limit: Duration) -> Self {
        let (next, mut commands) = watch::channel(NextHook::default());
        let port = vip.clone();
        let run = async move {
            while commands.changed().await.is_ok() {
                let NextHook { words, shown, .. } = commands.borrow_and_update().clone();
                let mut more = commands.clone();
                let ended = tokio::select! {
                    ended = run(&words, limit) => ended,
                    () = urgent(&mut more) => Err("Baton stopped it, because it stops itself".to_owned()),
                };
                if let Err(error) = ended {
                    journal.record(What::VipHookFailed { command: shown, error });
                }
                port.set_hooks_run(commands.has_changed().unwrap_or(false));
            }
        };
        tokio::spawn(essential::task("vip hooks", run));
        Self { next, vip }
    }

    /// Runs `command` next, instead of one that still waits; an empty one only takes that one's place. Its own arguments come first, then
    /// the event and the addresses.
    pub(super) fn run(&self, command: &[String], happened: &str, addresses: &[IpAddr]) {
        self.run_next(command, happened, addresses, false);
    }

    /// As [`Hooks::run`]; an urgent one also ends a program that runs.
    pub(super) fn run_next(&self, command: &[String], happened: &str, addresses: &[IpAddr], is_urgent: bool) {
        let more = || [happened.to_owned()].into_iter().chain(addresses.iter().map(ToString::to_string));
        let words = if command.is_empty() { Vec::new() } else { command.iter().cloned().chain(more()).collect() };
        let own = [command.first().map(String::as_str), (command.len() > 1).then_some(REMOVED)];
        let shown: Vec<_> = own.into_iter().flatten().map(str::to_owned).chain(more()).collect();
        self.vip.set_hooks_run(true);
        self.next.send_replace(NextHook { words, shown: shown.join(" "), is_urgent });
    }
}

/// Waits for an urgent one that is not there yet.
async fn urgent(next: &mut watch::Receiver<NextHook>) {
    while next.changed().await.is_ok() {
        if next.borrow_and_update().is_urgent {
            return;
        }
    }
    std::future::pending().await
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
    use crate::ports::AllPorts;
    use crate::table::Table;

    #[tokio::test]
    async fn a_program_that_hangs_is_stopped_one_that_fails_is_told_and_the_next_one_runs() {
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let table = Table::new(1);
        let hooks = Hooks::start(table.part(), AllPorts::new(1).unwrap().part(), Duration::from_secs(1));
        let script = |text: &str| ["/bin/sh", "-c", text, "hook"].map(str::to_owned).to_vec();
        let vip: IpAddr = "10.0.0.100".parse().unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        let failures = || table.journal.since(0, false).len();
        for (count, (script, happened)) in [
            (script(&format!("echo $$ > {0}; exec sleep 1000", said.display())), "gain"),
            (script("exit 3"), "loss"),
            (vec!["/nowhere".to_owned()], "gain"),
        ]
        .into_iter()
        .enumerate()
        {
            hooks.run(&script, happened, &[vip]);
            while failures() <= count && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        hooks.run(&script(&format!("echo $1 $2 >> {}", said.display())), "loss", &[vip]);
        let lines =
            || std::fs::read_to_string(&said).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
        while lines().len() < 2 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(lines()[1], "loss 10.0.0.100");
        let told = table.journal.since(0, false).into_iter().map(|event| match event.what {
            // An argument of the program may be a secret.
            What::VipHookFailed { command, error } if !command.contains("sleep") => error,
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

    /// Regression: each event queued a run, so hundreds ran one after the other, long after the VIP had come to rest.
    #[tokio::test]
    async fn while_a_program_runs_only_the_newest_event_waits() {
        let directory = tempfile::tempdir().unwrap();
        let [said, gate] = ["said", "gate"].map(|name| directory.path().join(name));
        let hooks = Hooks::start(Table::new(1).part(), AllPorts::new(1).unwrap().part(), Duration::from_secs(20));
        let text = format!("echo $1 >> {}; while [ ! -e {} ]; do sleep 0.01; done", said.display(), gate.display());
        let command = ["/bin/sh", "-c", &text, "hook"].map(str::to_owned);
        let lines = || std::fs::read_to_string(&said).unwrap_or_default();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        hooks.run(&command, "gain", &[]);
        while lines().is_empty() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..100 {
            hooks.run(&command, "loss", &[]);
            hooks.run(&command, "gain", &[]);
        }
        hooks.run(&command, "loss", &[]);
        std::fs::write(&gate, "").unwrap();
        while lines().lines().count() < 2 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(lines(), "gain\nloss\n");
        // An event without a program of its own also takes the place of one that waits.
        std::fs::remove_file(&gate).unwrap();
        hooks.run(&command, "gain", &[]);
        while lines().lines().count() < 3 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        hooks.run(&command, "gain again", &[]);
        hooks.run(&[], "loss", &[]);
        std::fs::write(&gate, "").unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(lines(), "gain\nloss\ngain\n");
    }
}
