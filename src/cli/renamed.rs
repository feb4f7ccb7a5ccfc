//! Messages for commands that do not exist.

use clap::error::{ContextKind, ContextValue};

const COMMANDS: [(&str, &str); 2] = [("handover", "evacuate"), ("path", "offload")];

/// The present name, if `error` is about a command's former name.
pub(super) fn renamed(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (old, new) = COMMANDS.into_iter().find(|(old, _)| old == typed)?;
    Some(format!("{old} is called {new} now: baton {new}"))
}

/// Removes suggestions from `error` that the help of `command` does not list: commands for the demo, the tests and the
/// upgrade.
pub(super) fn without_hidden(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else { return error };
    let is_listed = |name: &&String| command.find_subcommand(name).is_some_and(|it| !it.is_hide_set());
    let listed: Vec<_> = names.iter().filter(is_listed).cloned().collect();
    match listed.is_empty() {
        true => error.remove(ContextKind::SuggestedSubcommand),
        false => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(listed)),
    };
    error
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Arguments;
    use super::*;

    #[test]
    fn no_hidden_command_is_suggested() {
        let command = Arguments::command();
        let said = |typed| {
            without_hidden(command.clone().try_get_matches_from(["baton", typed]).unwrap_err(), &command).to_string()
        };
        for (typed, hidden) in [("stat", "stand-in"), ("stand", "stand-in"), ("kubele", "kubelet")] {
            assert!(!said(typed).contains(&format!("'{hidden}'")), "{}", said(typed));
        }
        assert!(said("stat").contains("'status'"), "{}", said("stat"));
    }

    #[test]
    fn a_command_s_former_name_is_answered_with_the_new_one() {
        let said = |typed: &[&str]| renamed(&Arguments::try_parse_from(typed).unwrap_err());
        assert_eq!(said(&["baton", "handover", "--check"]).unwrap(), "handover is called evacuate now: baton evacuate");
        assert_eq!(said(&["baton", "path", "status"]).unwrap(), "path is called offload now: baton offload");
        assert_eq!(said(&["baton", "handovr"]), None);
        for (_, new) in COMMANDS {
            let known = Arguments::try_parse_from(["baton", new, "--help"]).unwrap_err();
            assert_eq!(known.kind(), clap::error::ErrorKind::DisplayHelp, "{new} is a command");
        }
    }
}
