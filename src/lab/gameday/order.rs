//! Runs the commands of a plan.

use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::plan::shell;
use crate::model::humane::{duration_ms, printable_lines};

/// A command that has ended.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ran {
    pub command: String,
    pub took_ms: u64,
    /// `None`: it was not run to its end, or a signal ended it.
    pub code: Option<i32>,
    /// `None`: it has ended as the plan allows.
    pub failed: Option<String>,
    /// The end of what it printed on both streams.
    pub said: String,
    #[serde(skip)]
    pub out: Vec<u8>,
}

/// The exit codes of a command of which the plan says nothing.
pub(super) const GOOD: &[i32] = &[0];

/// What is kept of a command's output.
const SAID_MAX: usize = 2000;

/// Runs `command` without a shell and without standard input, for `limit` at most. `good`: the exit codes that are no failure. Dropped,
/// it kills the command.
pub(super) async fn run(command: &[String], good: &[i32], limit: Duration) -> Ran {
    let began = Instant::now();
    let ended = match command.split_first() {
        Some((program, arguments)) => {
            let mut process = Command::new(program);
            process.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
            timeout(limit, process.output()).await
        }
        None => Ok(Err(std::io::ErrorKind::InvalidInput.into())),
    };
    let took_ms = began.elapsed().as_millis() as u64;
    let mut ran =
        Ran { command: shell(command), took_ms, code: None, failed: None, said: String::new(), out: Vec::new() };
    match ended {
        Err(_) => ran.failed = Some(format!("it had not ended after {}", duration_ms(limit.as_millis() as u64))),
        Ok(Err(error)) => ran.failed = Some(format!("it could not be run: {error}")),
        Ok(Ok(output)) => {
            ran.code = output.status.code();
            let is_good = ran.code.is_some_and(|code| good.contains(&code));
            ran.failed = (!is_good).then(|| output.status.to_string());
            ran.said = tail([&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat().trim());
            ran.out = output.stdout;
        }
    }
    ran
}

/// The last letters of a text, made fit to print.
fn tail(text: &str) -> String {
    let from = text.char_indices().rev().take(SAID_MAX).last().map_or(0, |(at, _)| at);
    printable_lines(&text[from..])
}
