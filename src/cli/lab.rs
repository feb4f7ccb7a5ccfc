//! The lab's commands, in a binary built with it; without it, the message that they were left out.

use clap::error::{ContextKind, ContextValue};

#[cfg(feature = "lab")]
pub(super) use crate::lab::{LabVerb, run};
#[cfg(not(feature = "lab"))]
pub(super) use absent::{NoLab as LabVerb, run};

const COMMANDS: [&str; 5] = ["demo", "drill", "gameday", "kubelet", "stand-in"];

/// The message if `error` is about a command of the lab, which is unknown only if it was left out.
pub(super) fn left_out(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let of_lab = COMMANDS.contains(&typed.as_str());
    of_lab.then(|| format!("this binary was built without the lab feature, and so without baton {typed}"))
}

#[cfg(not(feature = "lab"))]
mod absent {
    use std::process::ExitCode;

    /// There are none.
    #[derive(Debug, clap::Subcommand)]
    pub(crate) enum NoLab {}

    pub(crate) fn run(command: NoLab, _json: bool) -> ExitCode {
        match command {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn a_command_of_the_lab_that_was_left_out_is_said_to_be() {
        let without = || Command::new("baton").subcommand(Command::new("run"));
        let said = |typed| left_out(&without().try_get_matches_from(["baton", typed]).unwrap_err());
        for command in COMMANDS {
            let expected = format!("this binary was built without the lab feature, and so without baton {command}");
            assert_eq!(said(command), Some(expected));
        }
        assert_eq!(said("dmeo"), None);
    }

    #[cfg(feature = "lab")]
    #[test]
    fn each_command_of_the_lab_is_listed() {
        use clap::Subcommand;
        let lab = LabVerb::augment_subcommands(Command::new("baton"));
        let mut names: Vec<_> = lab.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(names, COMMANDS);
    }
}
