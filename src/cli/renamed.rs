//! Commands that have another name now.

use clap::error::{ContextKind, ContextValue};

const COMMANDS: [(&str, &str); 2] = [("handover", "evacuate"), ("path", "offload")];

/// What to type instead, if `error` is about a command's former name.
pub fn renamed(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (old, new) = COMMANDS.into_iter().find(|(old, _)| old == typed)?;
    Some(format!("{old} is called {new} now: baton {new}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Arguments;
    use super::*;

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
