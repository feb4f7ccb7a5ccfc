//! Messages for commands, options and values that do not exist, among them the former names of others, and a file without its option.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::model::humane::printable;

const COMMANDS: [(&str, &str); 2] = [("handover", "evacuate"), ("path", "offload")];

/// The command, its option's former name, and the present one.
const OPTIONS: [(&str, &str, &str); 2] = [("evacuate", "--back", "--cancel"), ("demo", "--script", "--tour")];

/// The option, its value's former name, and the words to type now.
const VALUES: [(&str, &str, &str); 2] =
    [("--state", "graduated", "--state offloaded"), ("--state", "ending", "--ending")];

/// The present name, if `error` is about the former name of a command, an option or a value; for a file that `check` was given
/// as `diff` and `import` take one, how to name it.
pub(super) fn renamed(error: &clap::Error) -> Option<String> {
    let typed = |kind| match error.get(kind) {
        Some(ContextValue::String(typed)) => Some(typed.as_str()),
        _ => None,
    };
    if let Some(command) = typed(ContextKind::InvalidSubcommand) {
        let (old, new) = COMMANDS.into_iter().find(|(old, _)| *old == command)?;
        return Some(format!("{old} is called {new} now: baton {new}"));
    }
    // clap shows an option with the name of its value.
    let option = typed(ContextKind::InvalidArg)?.split([' ', '=']).next()?;
    if let Some(value) = typed(ContextKind::InvalidValue) {
        let (_, old, new) = VALUES.into_iter().find(|(of, old, _)| (*of, *old) == (option, value))?;
        return Some(format!("{option} {old} is called {new} now"));
    }
    let usage = error.get(ContextKind::Usage)?.to_string();
    if usage.contains("baton check ") && error.kind() == ErrorKind::UnknownArgument && !option.starts_with('-') {
        let file = printable(typed(ContextKind::InvalidArg)?);
        return Some(format!("check takes the file after -c: baton check -c {file}"));
    }
    let is_it = |(command, old, _): &(&str, &str, &str)| *old == option && usage.contains(&format!("baton {command} "));
    let (command, old, new) = OPTIONS.into_iter().find(is_it)?;
    Some(format!("{old} is called {new} now: baton {command} {new}"))
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

    #[test]
    fn the_former_name_of_an_option_or_a_value_is_answered_with_the_new_one() {
        let said = |typed: &[&str]| renamed(&Arguments::try_parse_from(typed).unwrap_err());
        assert_eq!(
            said(&["baton", "evacuate", "--back"]).unwrap(),
            "--back is called --cancel now: baton evacuate --cancel"
        );
        assert_eq!(
            said(&["baton", "flows", "--state", "graduated"]).unwrap(),
            "--state graduated is called --state offloaded now"
        );
        assert_eq!(said(&["baton", "flows", "--state", "ending"]).unwrap(), "--state ending is called --ending now");
        Arguments::try_parse_from(["baton", "flows", "--ending"]).unwrap();
        assert_eq!(said(&["baton", "status", "--back"]), None, "an option of another command");
        assert_eq!(said(&["baton", "flows", "--state", "gradated"]), None);
        Arguments::try_parse_from(["baton", "evacuate", "--cancel"]).unwrap();
        Arguments::try_parse_from(["baton", "flows", "--state", "offloaded"]).unwrap();
    }

    #[test]
    fn a_file_without_c_is_answered_with_c() {
        let said = |typed: &[&str]| renamed(&Arguments::try_parse_from(typed).unwrap_err());
        let hint = "check takes the file after -c: baton check -c a.toml";
        assert_eq!(said(&["baton", "check", "a.toml"]).as_deref(), Some(hint));
        assert_eq!(said(&["baton", "check", "--host", "a.toml"]).as_deref(), Some(hint));
        assert_eq!(said(&["baton", "check", "--hos"]), None);
        assert_eq!(said(&["baton", "status", "a.toml"]), None);
    }

    #[cfg(feature = "lab")]
    #[test]
    fn the_former_name_of_an_option_of_the_demo_is_answered_with_the_new_one() {
        let error = Arguments::try_parse_from(["baton", "demo", "--script"]).unwrap_err();
        assert_eq!(renamed(&error).unwrap(), "--script is called --tour now: baton demo --tour");
        Arguments::try_parse_from(["baton", "demo", "--tour"]).unwrap();
    }
}
