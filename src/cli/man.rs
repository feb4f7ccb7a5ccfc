//! The man pages, made from the arguments as the help is.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Args, Command, CommandFactory};

use super::{help, shell};

#[derive(Debug, Args)]
pub(super) struct ManArguments {
    /// Writes a page for each command to this directory instead.
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
}

/// Prints the man page in troff, or writes a page for each command.
pub(super) fn man<Arguments: CommandFactory>(arguments: &ManArguments) -> ExitCode {
    let mut page = Vec::new();
    let mut command = help::grouped(Arguments::command(), None).disable_help_subcommand(true);
    command.build();
    let command = with_synopses(command);
    let done = match &arguments.directory {
        Some(directory) => clap_mangen::generate_to(command, directory),
        None => clap_mangen::Man::new(command).render(&mut page),
    };
    match done {
        Ok(()) => shell::print(&page),
        Err(error) => {
            eprintln!("baton: cannot write the man pages: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `command`, which is built, and its subcommands with a synopsis that shows the values of options: `clap_mangen` leaves them out.
fn with_synopses(command: Command) -> Command {
    let synopsis = synopsis(&command);
    command.override_usage(synopsis).mut_subcommands(with_synopses)
}

/// As man-pages(7) writes it: `baton kill [--yes] <FLOW|--backend BACKEND>`.
fn synopsis(command: &Command) -> String {
    let groups: Vec<Vec<&Arg>> = command
        .get_groups()
        .filter(|group| group.is_required_set())
        .map(|group| command.get_arguments().filter(|it| group.get_args().any(|id| id == it.get_id())).collect())
        .collect();
    let is_grouped = |arg: &Arg| groups.iter().flatten().any(|it| it.get_id() == arg.get_id());
    let (positionals, mut options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(|it| !it.is_hide_set() && !is_grouped(it)).partition(|it| it.is_positional());
    options.sort_by_key(|it| (it.is_required_set(), it.get_long()));
    let mut words = vec![command.get_bin_name().unwrap_or(command.get_name()).to_owned()];
    words.extend(options.into_iter().map(marked));
    words.extend(
        groups.iter().map(|args| format!("<{}>", args.iter().map(|it| usage(it)).collect::<Vec<_>>().join("|"))),
    );
    words.extend(positionals.into_iter().map(marked));
    if command.has_subcommands() {
        words.push(if command.is_subcommand_required_set() { "<COMMAND>" } else { "[COMMAND]" }.to_owned());
    }
    words.join(" ")
}

/// In brackets, unless it has to be there.
fn marked(arg: &Arg) -> String {
    let usage = usage(arg);
    let more = if arg.is_positional() && arg.get_num_args().is_some_and(|it| it.max_values() > 1) { "..." } else { "" };
    match (arg.is_required_set(), arg.is_positional()) {
        (false, _) => format!("[{usage}]{more}"),
        (true, true) => format!("<{usage}>{more}"),
        (true, false) => usage,
    }
}

/// `-c|--config PATH`, `--json` or `FLOW`.
fn usage(arg: &Arg) -> String {
    let names = [arg.get_short().map(|it| format!("-{it}")), arg.get_long().map(|it| format!("--{it}"))];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join("|");
    let takes_values = arg.get_num_args().is_some_and(|it| it.takes_values());
    let values = arg.get_value_names().filter(|_| takes_values || arg.is_positional()).map(|it| it.join(" "));
    [names, values.unwrap_or_default()].into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::Arguments;
    use super::*;

    fn synopsis_of(path: &[&str]) -> String {
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        let found = path.iter().fold(&command, |command, name| command.find_subcommand(name).expect("a command"));
        synopsis(found)
    }

    #[test]
    fn a_synopsis_shows_the_values_of_options_and_what_has_to_be_there() {
        assert_eq!(synopsis_of(&["diff"]), "baton diff [-c|--config FILE] [-h|--help] [--json] [--socket PATH] <FILE>");
        let kill = synopsis_of(&["kill"]);
        assert!(kill.contains("<FLOW|--backend"), "{kill}");
        assert!(synopsis_of(&["offload"]).ends_with(" <COMMAND>"));
        assert!(synopsis_of(&["init"]).contains("[--vip ADDRESS]"), "{}", synopsis_of(&["init"]));
    }
}
