//! The help: commands in groups by what one wants to do, and an example of each.

use clap::Command;
use clap::builder::StyledStr;

use super::wrap::wrap;

/// The groups, in the order of the help; the commands of each, with an example. A build leaves out what it does not have.
const GROUPS: [(&str, &[(&str, &str)]); 5] = [
    (
        "Look at a running instance",
        &[
            ("status", "baton status"),
            ("top", "baton top --client 10.0.0.0/24"),
            ("flows", "baton flows --backend cp2 --limit 0"),
            ("backends", "baton backends cp2"),
            ("events", "baton events --follow"),
            ("replay", "baton replay --at 03:12 --for 10m"),
            ("explain", "baton explain last"),
            ("who", "baton who 10.0.0.100:51234 --at 03:12:07"),
            ("bundle", "baton bundle"),
            ("nodes", "baton nodes --silent"),
            ("peers", "baton peers"),
            ("vip", "baton vip --why"),
            ("what-if", "baton what-if cp2 dies"),
            ("ready", "baton ready --within 500ms"),
        ],
    ),
    (
        "Steer it",
        &[
            ("drain", "baton drain cp2 --wait"),
            ("undrain", "baton undrain cp2"),
            ("eject", "baton eject cp2"),
            ("rebalance", "baton rebalance --dry-run"),
            ("kill", "baton kill --client 10.0.0.7"),
            ("diff", "baton diff new.toml"),
            ("reload", "baton reload"),
            ("upgrade", "baton upgrade"),
            ("evacuate", "baton evacuate --deadline 30s"),
        ],
    ),
    (
        "Install it",
        &[
            ("init", "baton init --vip 10.0.0.100 --peers 10.0.0.12"),
            ("import", "baton import /etc/haproxy/haproxy.cfg"),
            ("genkey", "(umask 077; baton genkey > /etc/baton/peers.key)"),
            ("check", "baton check -c /etc/baton/baton.toml --host"),
            ("run", "baton run -c /etc/baton/baton.toml"),
            ("offload", "baton offload status"),
        ],
    ),
    (
        "Try it",
        &[
            ("demo", "baton demo --tour"),
            ("drill", "baton drill 10.0.0.100:6443 --for 5m"),
            ("gameday", "baton gameday plan.toml 10.0.0.100:6443 --plan"),
        ],
    ),
    (
        "Others",
        &[
            ("version", "baton version"),
            ("completion", "baton completion bash > /etc/bash_completion.d/baton"),
            ("help", "baton help drain"),
        ],
    ),
];

/// `command` with its subcommands in groups, and an example below the help of each. `width`: of the terminal, if it is one.
pub(super) fn grouped(command: Command, width: Option<usize>) -> Command {
    let about_of = |name: &str| {
        let listed = command.get_subcommands().find(|it| it.get_name() == name && !it.is_hide_set());
        let about = listed.and_then(Command::get_about).map(StyledStr::to_string);
        about.or((name == "help").then(|| "Prints this, or the help of a command".to_owned()))
    };
    let mut text = String::new();
    for (title, commands) in GROUPS {
        let line = |name: &str| {
            let about = about_of(name)?;
            Some(format!("  {name:<11} {}\n", about.split(". ").next().unwrap_or_default()))
        };
        let lines: String = commands.iter().filter_map(|(name, _)| line(name)).collect();
        if !lines.is_empty() {
            text += &format!("{title}:\n{}\n", wrap(&lines, width));
        }
    }
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}");
    let mut command =
        command.help_template(template).after_help("A command's options and an example: baton help COMMAND");
    for (name, example) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
        if command.find_subcommand(name).is_some() {
            command = command.mut_subcommand(name, |it| it.after_help(format!("Example: {example}")));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::super::Arguments;
    use super::*;

    fn in_groups() -> Vec<(&'static str, &'static str)> {
        GROUPS.iter().flat_map(|(_, commands)| commands.iter().copied()).collect()
    }

    #[test]
    fn each_command_is_in_one_group() {
        let command = Arguments::command();
        let listed: BTreeSet<_> =
            command.get_subcommands().filter(|it| !it.is_hide_set()).map(Command::get_name).collect();
        let grouped: Vec<_> = in_groups().into_iter().map(|(name, _)| name).collect();
        let unique: BTreeSet<_> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), unique.len(), "no command is in two groups");
        assert_eq!(listed.difference(&unique).collect::<Vec<_>>(), Vec::<&&str>::new());
        let help = super::grouped(command.clone(), None).render_help().to_string();
        for name in listed {
            assert!(help.contains(&format!("\n  {name} ")), "{name} is in the help:\n{help}");
        }
    }

    #[test]
    fn a_build_without_the_lab_had_a_group_without_commands() {
        let without =
            Command::new("baton").subcommand(Command::new("run").about("Runs")).subcommand(Command::new("status"));
        let help = super::grouped(without, None).render_help().to_string();
        assert!(help.contains("Install it:\n  run         Runs\n\nOthers:\n"), "{help}");
        assert!(!help.contains("Try it"), "{help}");
    }

    /// Regression: a terminal of 80 columns broke most lines in the middle of a word.
    #[test]
    fn on_a_terminal_a_long_line_goes_on_below_its_text() {
        let help = super::grouped(Arguments::command(), Some(80)).render_help().to_string();
        let commands = help.split("Options:").next().unwrap().split("Usage:").nth(1).unwrap();
        assert!(commands.lines().all(|line| line.chars().count() <= 80), "{commands}");
        let below = commands.lines().filter(|line| line.starts_with("              ")).count();
        assert!(below > 5 && commands.contains("\n  bundle      Writes one file for a ticket: "), "{commands}");
    }

    #[test]
    fn each_example_is_accepted_and_is_in_the_help_of_its_command() {
        let mut command = super::grouped(Arguments::command(), None);
        command.build();
        for (name, example) in in_groups() {
            let Some(of_it) = command.find_subcommand_mut(name) else { continue };
            let help = of_it.render_help().to_string();
            if name != "help" {
                assert!(help.contains(&format!("Example: {example}")), "{help}");
                let typed = example.trim_start_matches("(umask 077; ").split(" > ").next().unwrap().split(' ');
                Arguments::command().try_get_matches_from(typed).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
        }
    }
}
