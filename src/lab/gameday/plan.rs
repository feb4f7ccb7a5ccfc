//! The file of a game day: which faults, in which order, and when to stop.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::order::GOOD;
use crate::model::duration;
use crate::model::humane::{duration_ms, printable, printable_lines};

/// A plan that can be played.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GamedayPlan {
    /// A kubelet or a node that is silent for longer ends the game day.
    #[serde(deserialize_with = "time")]
    pub silent_max: Duration,
    /// Limit for the wait after each step until nobody is silent any more.
    #[serde(default = "settle", deserialize_with = "time")]
    pub settle: Duration,
    #[serde(default, rename = "instance")]
    pub instances: Vec<PlanInstance>,
    #[serde(default, rename = "step")]
    pub steps: Vec<PlanStep>,
}

/// An instance of the fleet, and how its `baton` is called from here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanInstance {
    pub name: String,
    pub command: Vec<String>,
}

/// A fault, and the way back.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanStep {
    pub title: String,
    /// The instance whose command `run` and `undo` belong to; without one they are commands of their own.
    pub at: Option<String>,
    pub run: Vec<String>,
    pub undo: Option<Vec<String>>,
    /// Of `run`, those that are no failure.
    #[serde(default = "exit_codes")]
    pub exit_codes: Vec<i32>,
    /// How long to look after the command has ended.
    #[serde(default = "watch", deserialize_with = "time")]
    pub watch: Duration,
    /// Limit for the command, and for its undoing.
    #[serde(default = "limit", deserialize_with = "time")]
    pub limit: Duration,
}

/// What a game day by a plan would do, as `--plan --json` prints it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedDay {
    /// `None`: that of the kubeconfig.
    pub server: Option<String>,
    pub kubelets: u16,
    pub silent_max_ms: u64,
    pub settle_max_ms: u64,
    /// The names of those whose nodes are looked at.
    pub instances: Vec<String>,
    pub steps: Vec<PlannedStep>,
    pub least_ms: u64,
    pub most_ms: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedStep {
    pub title: String,
    /// The whole command.
    pub run: Vec<String>,
    pub exit_codes: Vec<i32>,
    pub limit_ms: u64,
    pub watch_ms: u64,
    pub undo: Option<Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {said}", path.display())]
    Syntax { path: PathBuf, said: String },
    #[error("{}: {place}: {said}", path.display())]
    Wrong { path: PathBuf, place: String, said: String },
}

impl GamedayPlan {
    /// Reads the plan for kubelets with a heartbeat each `every`.
    pub(super) fn read(path: &Path, every: Duration, grace: Duration) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|source| PlanError::Read { path: path.into(), source })?;
        let syntax = |error: toml::de::Error| PlanError::Syntax {
            path: path.into(),
            said: printable_lines(error.to_string().trim_end()),
        };
        let plan: Self = toml::from_str(&text).map_err(syntax)?;
        match plan.fault(every, grace) {
            Some((place, said)) => Err(PlanError::Wrong { path: path.into(), place: printable(&place).into(), said }),
            None => Ok(plan),
        }
    }

    /// The first place that is wrong, and why.
    fn fault(&self, every: Duration, grace: Duration) -> Option<(String, String)> {
        let wrong = |place: &str, said: String| Some((place.to_owned(), said));
        if self.silent_max <= every {
            let (max, every) = (duration::display(self.silent_max), duration::display(every));
            return wrong(
                "silent_max",
                format!("{max} is not longer than the heartbeats' interval, {every} (--every)"),
            );
        }
        if self.silent_max >= grace {
            let (max, grace) = (duration::display(self.silent_max), duration::display(grace));
            let said = format!(
                "{max} is not shorter than the grace period, {grace} (--grace): it would stop once nodes are NotReady"
            );
            return wrong("silent_max", said);
        }
        let mut names = BTreeSet::new();
        for (number, instance) in self.instances.iter().enumerate() {
            let place = format!("instance {} ({:?})", number + 1, instance.name);
            if instance.name.is_empty() || !names.insert(&instance.name) {
                return wrong(&place, "expected a name that no other instance has".to_owned());
            }
            if instance.command.is_empty() {
                return wrong(
                    &place,
                    "command is empty: expected an array such as [\"ssh\", \"lb-a\", \"baton\"]".to_owned(),
                );
            }
        }
        if self.steps.is_empty() {
            return wrong("step", "expected at least one [[step]]".to_owned());
        }
        for (number, step) in self.steps.iter().enumerate() {
            let place = format!("step {} ({:?})", number + 1, step.title);
            if step.title.trim().is_empty() || step.title.chars().any(char::is_control) {
                return wrong(&place, "expected a title on one line".to_owned());
            }
            if step.run.is_empty() || step.undo.as_ref().is_some_and(Vec::is_empty) {
                return wrong(&place, "run and undo: expected an array with the command and its arguments".to_owned());
            }
            if step.exit_codes.is_empty() {
                return wrong(&place, "exit_codes is empty: expected an array such as [0, 1]".to_owned());
            }
            if let Some(at) = step.at.as_ref().filter(|at| !names.contains(at)) {
                let all: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
                let all = if all.is_empty() { "there is no [[instance]]".to_owned() } else { all.join(", ") };
                return wrong(
                    &place,
                    format!("at is {at:?}, which is no instance of the plan; expected one of: {all}"),
                );
            }
        }
        None
    }

    /// The whole command of `order`, which belongs to `step`.
    pub(super) fn command(&self, step: &PlanStep, order: &[String]) -> Vec<String> {
        let at = step.at.as_ref().and_then(|at| self.instances.iter().find(|it| it.name == *at));
        at.map_or(&[][..], |instance| &instance.command).iter().chain(order).cloned().collect()
    }

    /// The least and the most time that a game day by this plan takes.
    fn times(&self) -> [Duration; 2] {
        let least = self.steps.iter().map(|step| step.watch).sum();
        [least, self.steps.iter().map(|step| step.watch + step.limit * 2 + self.settle).sum()]
    }

    /// What a game day by this plan would do, for a program.
    pub(super) fn planned(&self, kubelets: u16, server: Option<&str>) -> PlannedDay {
        let ms = |time: Duration| time.as_millis() as u64;
        let planned = |step: &PlanStep| PlannedStep {
            title: step.title.clone(),
            run: self.command(step, &step.run),
            exit_codes: step.exit_codes.clone(),
            limit_ms: ms(step.limit),
            watch_ms: ms(step.watch),
            undo: step.undo.as_ref().map(|undo| self.command(step, undo)),
        };
        let [least_ms, most_ms] = self.times().map(ms);
        PlannedDay {
            server: server.map(str::to_owned),
            kubelets,
            silent_max_ms: ms(self.silent_max),
            settle_max_ms: ms(self.settle),
            instances: self.instances.iter().map(|it| it.name.clone()).collect(),
            steps: self.steps.iter().map(planned).collect(),
            least_ms,
            most_ms,
        }
    }

    /// What a game day by this plan would do.
    pub(super) fn in_words(&self, kubelets: u16, server: &str) -> String {
        let names: Vec<_> = self.instances.iter().map(|it| printable(&it.name).into_owned()).collect();
        let mut text = format!(
            "{kubelets} kubelets connect to {server}. The game day stops, and undoes the step that it is in, when one of them{} is silent \
             for {}, when a command fails, or at SIGINT.\n",
            if names.is_empty() { String::new() } else { format!(", or a node that {} lists,", names.join(" or ")) },
            duration::display(self.silent_max)
        );
        for (number, step) in self.steps.iter().enumerate() {
            text += &format!("\n{}. {}\n", number + 1, printable(&step.title));
            text += &format!("   runs      {}\n", shell(&self.command(step, &step.run)));
            text += &format!("   watches   for {}\n", duration::display(step.watch));
            let undo = step.undo.as_ref().map(|undo| shell(&self.command(step, undo)));
            text += &format!("   undoes    {}\n", undo.as_deref().unwrap_or("nothing: the step has no undo"));
            text += &format!("   waits     until nobody is silent, for {} at most\n", duration::display(self.settle));
        }
        let [least, most] = self.times().map(|time| duration_ms(time.as_millis() as u64));
        text + &format!("\nIt takes at least {least}, and at most {most}.\n")
    }
}

/// A command as one would type it.
pub(super) fn shell(command: &[String]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@,+%".contains(letter);
    let quoted = command.iter().map(|word| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", printable(word).replace('\'', "'\\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(value)?;
    let wrong =
        |fault| serde::de::Error::custom(format!("{text:?} is no duration: {fault}; expected one such as \"30s\""));
    duration::parse(&text).map_err(wrong)
}

fn exit_codes() -> Vec<i32> {
    GOOD.to_vec()
}

fn settle() -> Duration {
    Duration::from_secs(120)
}

fn watch() -> Duration {
    Duration::from_secs(30)
}

fn limit() -> Duration {
    Duration::from_secs(60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "silent_max = \"25s\"\n\
        [[instance]]\nname = \"lb-a\"\ncommand = [\"ssh\", \"lb-a\", \"baton\"]\n\
        [[step]]\ntitle = \"evacuated\"\nat = \"lb-a\"\nrun = [\"evacuate\"]\nundo = [\"evacuate\", \"--cancel\"]\n\
        [[step]]\ntitle = \"cp2 gone\"\nrun = [\"virsh\", \"destroy\", \"cp 2's\"]\nwatch = \"1m\"\n";

    fn read(text: &str) -> Result<GamedayPlan, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.toml");
        std::fs::write(&path, text).unwrap();
        let directory = format!("{}/", directory.path().display());
        GamedayPlan::read(&path, Duration::from_secs(10), Duration::from_secs(40))
            .map_err(|error| error.to_string().replace(&directory, ""))
    }

    #[test]
    fn a_plan_says_what_it_would_do() {
        insta::assert_snapshot!(read(GOOD).unwrap().in_words(100, "10.0.0.100:6443"));
    }

    /// Regression: `--plan --json` printed the text for people.
    #[test]
    fn a_plan_for_a_program_is_one_document_with_whole_commands_and_times() {
        let planned = serde_json::to_value(read(GOOD).unwrap().planned(100, Some("10.0.0.100:6443"))).unwrap();
        assert_eq!((&planned["server"], &planned["kubelets"]), (&"10.0.0.100:6443".into(), &100.into()));
        assert_eq!((&planned["silent_max_ms"], &planned["instances"][0]), (&25_000.into(), &"lb-a".into()));
        let [first, second] = [0, 1].map(|number| &planned["steps"][number]);
        assert_eq!(first["undo"], serde_json::json!(["ssh", "lb-a", "baton", "evacuate", "--cancel"]));
        assert_eq!((&second["watch_ms"], &second["undo"]), (&60_000.into(), &serde_json::Value::Null));
        assert_eq!((&planned["least_ms"], &planned["most_ms"]), (&90_000.into(), &570_000.into()));
    }

    #[test]
    fn a_wrong_plan_is_refused_with_the_place_and_what_is_allowed() {
        let refused = |from: &str, to: &str| read(&GOOD.replace(from, to)).unwrap_err();
        let all = [
            refused("25s", "10s"),
            refused("25s", "soon"),
            refused("25s", "40s"),
            refused("at = \"lb-a\"", "at = \"lb-c\""),
            refused("\"ssh\", \"lb-a\", \"baton\"", ""),
            refused("[\"evacuate\"]", "[]"),
            refused("title = \"cp2 gone\"", "title = \"\""),
            refused("watch", "wach"),
            read("silent_max = \"20s\"").unwrap_err(),
        ];
        insta::assert_snapshot!(all.join("\n"));
    }
}
