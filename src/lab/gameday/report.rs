//! What a game day has shown, and its page.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::order::Ran;
use crate::model::humane::{date_and_time, duration_ms, plural, printable};

/// Times are in ms since the first step, unless their names say otherwise.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GamedayReport {
    pub began_unix_ms: u64,
    pub server: String,
    pub kubelets: u64,
    pub every_ms: u64,
    pub grace_ms: u64,
    pub silent_max_ms: u64,
    /// A sentence about each instance's view of the nodes.
    pub guards: Vec<String>,
    pub steps: Vec<StepReport>,
    /// The titles of the steps behind a halt.
    pub left_out: Vec<String>,
    pub halt: Option<Halt>,
    /// One a second.
    pub samples: Vec<SilenceSample>,
    pub leases_left: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct StepReport {
    pub title: String,
    /// UTC.
    pub at: String,
    pub began_ms: u64,
    pub undone_ms: Option<u64>,
    pub ended_ms: u64,
    /// The longest time that a kubelet went without a heartbeat.
    pub gap_ms: u64,
    /// Connections that did not end by their kubelet.
    pub lost: u64,
    /// Why, as the instances have recorded it of the kubelets' addresses.
    pub lost_for: BTreeMap<String, u64>,
    /// Heartbeats and connects that failed.
    pub failures: u64,
    /// `None`: it was stopped.
    pub run: Option<Ran>,
    pub undo: Option<Ran>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SilenceSample {
    pub at_ms: u64,
    /// The longest time since a kubelet's last heartbeat.
    pub silent_ms: u64,
    /// Connections so far that did not end by their kubelet.
    pub lost: u64,
}

/// Why a game day ended before its last step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(super) enum Halt {
    Signal,
    KubeletSilent { name: String, for_ms: u64, limit_ms: u64, why: Option<String> },
    NodeSilent { node: String, by: String, for_ms: u64, limit_ms: u64 },
    CommandFailed { command: String, failed: String },
    NotSettled(String),
}

impl Halt {
    pub(super) fn in_words(&self) -> String {
        match self {
            Self::Signal => "somebody stopped it by a signal".to_owned(),
            Self::KubeletSilent { name, for_ms, limit_ms, why } => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(": {}", printable(why)));
                let (silent, limit) = (duration_ms(*for_ms), duration_ms(*limit_ms));
                format!("kubelet {name} had no heartbeat for {silent}, more than {limit}{why}")
            }
            Self::NodeSilent { node, by, for_ms, limit_ms } => format!(
                "{by} said that node {} was silent for {}, more than {}",
                printable(node),
                duration_ms(*for_ms),
                duration_ms(*limit_ms)
            ),
            Self::CommandFailed { command, failed } => format!("the command `{command}` failed: {failed}"),
            Self::NotSettled(restless) => format!("after the step, {restless}"),
        }
    }
}

impl StepReport {
    pub(super) fn in_words(&self) -> String {
        format!(
            "longest time without a heartbeat {}; {} lost{}; {}",
            duration_ms(self.gap_ms),
            plural(self.lost, "connection"),
            self.reasons(),
            match &self.undo {
                Some(Ran { failed: Some(failed), .. }) => format!("NOT undone: {failed}"),
                Some(_) => "undone".to_owned(),
                None => "nothing to undo".to_owned(),
            }
        )
    }

    /// ` (rebalanced 3)`, or nothing.
    fn reasons(&self) -> String {
        let each = self.lost_for.iter().map(|(reason, flows)| format!("{reason} {flows}")).collect::<Vec<_>>();
        if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) }
    }

    fn is_undone(&self) -> bool {
        self.undo.as_ref().is_none_or(|ran| ran.failed.is_none())
    }

    /// Whether a node would have gone NotReady.
    fn not_ready(&self, grace_ms: u64) -> bool {
        self.gap_ms > grace_ms
    }
}

impl GamedayReport {
    pub(super) fn passed(&self) -> bool {
        self.halt.is_none() && !self.steps.iter().any(|step| step.not_ready(self.grace_ms))
    }

    /// One sentence.
    pub(super) fn verdict(&self) -> String {
        let gap_ms = self.steps.iter().map(|step| step.gap_ms).max().unwrap_or(0);
        let longest = format!(
            "the longest time without a heartbeat was {} of {}",
            duration_ms(gap_ms),
            duration_ms(self.grace_ms)
        );
        match &self.halt {
            Some(halt) => {
                let undone = match self.steps.last().is_none_or(StepReport::is_undone) {
                    true => "",
                    false => " The step is NOT undone: do that by hand.",
                };
                format!("Stopped in step {}: {}; {longest}.{undone}", self.steps.len(), halt.in_words())
            }
            None if !self.passed() => format!("Failed: {longest}, so nodes would have gone NotReady."),
            None => format!("Passed: {} played, {longest}.", plural(self.steps.len() as u64, "step")),
        }
    }

    /// The page in Markdown. `picture`: the name of the file of [`super::plot`].
    pub(super) fn page(&self, plan: &Path, picture: &str) -> String {
        let (date, time) = date_and_time(self.began_unix_ms);
        let mut text = format!("# Game day, {date} {time}Z\n\n**{}**\n\n", cell(&self.verdict()));
        text += &format!(
            "Plan `{}`; {} at {}, a heartbeat every {}. A node is NotReady after {}; the game day stops after {}.\n\n",
            printable(&plan.display().to_string()),
            plural(self.kubelets, "kubelet"),
            cell(&self.server),
            duration_ms(self.every_ms),
            duration_ms(self.grace_ms),
            duration_ms(self.silent_max_ms)
        );
        for guard in &self.guards {
            text += &format!("- {}\n", cell(guard));
        }
        text += &format!("\n![Longest time since a heartbeat, each second]({picture})\n\n");
        text += "| # | step | at (UTC) | longest gap | connections lost | failed requests | result |\n|---|---|---|---|---|---|---|\n";
        for (number, step) in self.steps.iter().enumerate() {
            let is_last = number + 1 == self.steps.len();
            let result = match () {
                () if !step.is_undone() => "**stopped, NOT undone**",
                () if is_last && self.halt.is_some() => "**stopped**",
                () if step.not_ready(self.grace_ms) => "**NotReady**",
                () => "ok",
            };
            text += &format!(
                "| {} | {} | {} | {} | {}{} | {} | {result} |\n",
                number + 1,
                cell(&step.title),
                step.at,
                duration_ms(step.gap_ms),
                step.lost,
                cell(&step.reasons()),
                step.failures
            );
        }
        for (number, title) in self.left_out.iter().enumerate() {
            text += &format!("| {} | {} | – | – | – | – | left out |\n", self.steps.len() + number + 1, cell(title));
        }
        text += "\n## Commands\n";
        for (number, step) in self.steps.iter().enumerate() {
            text += &format!("\n### {}. {}\n", number + 1, cell(&step.title));
            for (what, ran) in [("ran", &step.run), ("undid", &step.undo)] {
                let Some(ran) = ran else { continue };
                let ended = ran.failed.clone().or_else(|| ran.code.map(|code| format!("exit code {code}")));
                let took = duration_ms(ran.took_ms);
                text += &format!("\n{what} `{}` in {took}: {}\n", ran.command, ended.unwrap_or_default());
                if !ran.said.is_empty() {
                    text += &format!("\n{}\n", indented(&ran.said));
                }
            }
        }
        if self.leases_left > 0 {
            text += &format!("\n{} of the kubelets could not be removed.\n", plural(self.leases_left as u64, "lease"));
        }
        text
    }
}

/// Text within a line or a table of Markdown.
fn cell(text: &str) -> String {
    printable(text).replace('|', "\\|").replace('<', "&lt;")
}

/// A block of code that no line of it can end.
fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
