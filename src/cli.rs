//! The command line: arguments, exit codes, and what people see.
//!
//! Exit codes after sysexits(3): 0 fine, 1 an error, 64 wrong usage, 69 the instance cannot be reached.

mod bundle;
pub(crate) mod check;
mod diff;
mod evacuate;
mod events;
mod explain;
mod flows;
mod follow;
mod genkey;
mod grid;
mod help;
mod import;
mod init;
mod kill;
mod lab;
mod living;
pub(crate) mod logging;
mod man;
mod memory;
mod network;
mod new_file;
mod nodes;
mod offload;
mod orders;
mod output;
mod panes;
mod peers;
mod ready;
mod recording;
mod reload;
mod renamed;
mod replay;
pub(crate) mod run;
#[cfg(test)]
mod samples;
mod service;
mod shell;
mod socket;
mod status;
mod terminal;
mod top;
mod upgrade;
mod vip;
mod what_if;
mod who;
mod wrap;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::admin::client::ClientError;
use crate::admin::protocol::BackendName;
pub(crate) use output::EXIT_USAGE;
use output::{CliError, Output};
use socket::DEFAULT_CONFIG;

/// A connection-tracking TCP load balancer for Kubernetes apiservers: a client never waits on a dead connection.
#[derive(Debug, Parser)]
#[command(name = "baton", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
struct Arguments {
    /// The configuration file. Commands to a running instance read the admin socket's path from it.
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The admin socket of the instance [default: the path in -c FILE, $BATON_SOCKET, /run/baton/admin.sock].
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Prints JSON: one document, or one a line for flows and events.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs an instance in the foreground.
    Run {
        /// Upgrades from the process at the other end of standard input, which started this one.
        #[arg(long, hide = true)]
        upgrade: bool,
    },
    /// Checks a configuration file and prints every error in it.
    Check(check::CheckArguments),
    /// Writes this host's files: baton.toml, key and unit, from what is on the host; then checks them.
    Init(Box<init::InitArguments>),
    /// Translates an haproxy.cfg, and the keepalived.conf beside it, into a configuration file for Baton.
    Import(import::ImportArguments),
    #[command(flatten)]
    Lab(Box<lab::LabVerb>),
    /// Shows the instance, its frontends, backends and peers, and the last events.
    Status,
    /// Shows the instance on a terminal, live: backends, flows, peers; keys drain, eject and kill.
    Top(top::TopArguments),
    /// Tells scripts that move the VIP whether this host should have it: exit code 0 if the instance serves.
    Ready(ready::ReadyArguments),
    /// Lists flows.
    Flows(flows::FlowsArguments),
    /// Lists backends with their probes, connects and bytes.
    Backends {
        /// Only this backend: NAME or FRONTEND/NAME.
        #[arg(add = shell::backend_names())]
        backend: Option<String>,
    },
    /// Lists the cluster's nodes: their connections, their last byte, and the time that is left until they are NotReady.
    Nodes(nodes::NodesArguments),
    /// Lists the other instances of the fleet, their links, and the number of their flows that this instance knows.
    Peers(peers::PeersArguments),
    /// Shows which instance has the VIP that Baton itself moves, and which could take it.
    Vip(vip::VipArguments),
    /// Lists events, also of the past and of a process that has ended: --at 03:12 --for 5m.
    Events(events::EventsArguments),
    /// Shows an instance as it was at a time of the past, on a terminal: --at 03:12. Needs no instance.
    Replay(replay::ReplayArguments),
    /// Says why in a few sentences: why a flow ended, why a backend was lost, how a peer is, what was behind an event, what happened last.
    Explain(explain::ExplainArguments),
    /// Says which client was behind an address and port of Baton's, as an apiserver's audit log has them.
    Who(who::WhoArguments),
    /// Writes one file for a ticket: the recorder's files, the status, the configuration without secrets, check --host.
    Bundle(bundle::BundleArguments),
    /// Sends a backend no new flows; its existing flows go on until drain_timeout.
    Drain {
        /// NAME or FRONTEND/NAME.
        #[arg(add = shell::backend_names())]
        backend: String,
        /// Waits until the backend has no flow left, and shows the number of its flows.
        #[arg(long)]
        wait: bool,
    },
    /// Ends a drain or an eject: the probes decide about the backend again.
    Undrain {
        /// NAME or FRONTEND/NAME.
        #[arg(add = shell::backend_names())]
        backend: String,
    },
    /// Sends a backend no new flows and resets its existing flows.
    Eject {
        /// NAME or FRONTEND/NAME.
        #[arg(add = shell::backend_names())]
        backend: String,
    },
    /// Resets flows.
    Kill(kill::KillArguments),
    /// Says what a death or a restart would do to clients: flows kept, moved and reset, the longest gap, and the settings that decide it.
    WhatIf(what_if::WhatIfArguments),
    /// Reads the configuration file again and applies it if it is valid.
    Reload,
    /// Shows what a reload of FILE would change, and the flows that it would end. Exit code: 0 no difference, 1 differences, 2 an error.
    Diff(diff::DiffArguments),
    /// Replaces the process with the binary now at its path and keeps every flow. -c FILE: with that file.
    Upgrade(upgrade::UpgradeArguments),
    /// Empties this host before you switch it off: another instance gets the VIP and the flows.
    Evacuate(evacuate::EvacuationArguments),
    /// Moves flows from backends with more than their share, each at a quiet moment. Waits up to 45 s, then prints how many flows moved
    /// and why the others stayed. After an outage Baton does the same by itself for flows that began in it ([frontend.rebalance]).
    Rebalance {
        /// Only lists how many flows each backend would give away; moves none.
        #[arg(long)]
        dry_run: bool,
    },
    /// Shows or removes the BPF program and its flows in the kernel; needs no running instance.
    Offload(offload::OffloadArguments),
    /// Prints a new secret for the instances of a fleet, which have the same file: (umask 077; baton genkey > peers.key).
    /// With --identity: makes a key of this instance alone.
    Genkey(genkey::GenkeyArguments),
    /// Prints the versions of this command and of the instance.
    Version,
    /// Which versions of the upgrade this binary speaks.
    #[command(hide = true)]
    UpgradeVersion,
    /// Keeps the rights of an instance, which starts it.
    #[command(hide = true)]
    Broker,
    /// Prints completions for a shell: source them, or save them in the shell's completion directory.
    Completion { shell: clap_complete::Shell },
    /// Prints the man page.
    #[command(hide = true)]
    Man(man::ManArguments),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    shell::complete::<Arguments>();
    let typed = help::grouped(Arguments::command(), output::columns()).try_get_matches();
    let arguments = match typed.and_then(|it| Arguments::from_arg_matches(&it)) {
        Ok(arguments) => arguments,
        Err(error) => {
            let error = renamed::without_hidden(error, &Arguments::command());
            // If writing fails, there is no other way to report it.
            let _ = match renamed::renamed(&error).or_else(|| lab::left_out(&error)) {
                Some(said) => writeln!(std::io::stderr(), "error: {said}"),
                None => error.print(),
            };
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let config = || arguments.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
    match arguments.command {
        Verb::Run { upgrade } => run::run(&config(), upgrade),
        Verb::UpgradeVersion => upgrade::upgrade_version(),
        Verb::Broker => crate::app::broker::serve(&config()),
        Verb::Check(check) => check::run(&config(), &check, arguments.json),
        Verb::Lab(command) => lab::run(*command, arguments.json),
        Verb::Completion { shell } => shell::completion(shell),
        Verb::Man(man) => man::man::<Arguments>(&man),
        Verb::Genkey(genkey) => {
            let output = Output::new(arguments.json);
            genkey::genkey(&genkey, &output).unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Offload(command) => {
            let output = Output::new(arguments.json);
            offload::run(command, arguments.config.as_deref(), &output).unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Import(files) => {
            let output = Output::new(arguments.json);
            import::run(&files, &output).unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Init(wanted) => {
            let output = Output::new(arguments.json);
            init::run(&wanted, &config(), &output).unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Diff(compared) => {
            let output = Output::new(arguments.json);
            diff::run(compared, arguments.socket, arguments.config.as_deref(), &output)
        }
        Verb::Events(wanted) => {
            let output = Output::new(arguments.json);
            let listed = events::run(&wanted, arguments.socket, arguments.config.as_deref(), &output);
            listed.unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Explain(wanted) => {
            let output = Output::new(arguments.json);
            let told = explain::run(&wanted, arguments.socket, arguments.config.as_deref(), &output);
            told.unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Replay(wanted) => {
            let output = Output::new(arguments.json);
            let shown = replay::run(&wanted, arguments.socket, arguments.config.as_deref(), &output);
            shown.unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Who(wanted) => {
            let output = Output::new(arguments.json);
            let told = who::run(&wanted, arguments.socket, arguments.config.as_deref(), &output);
            told.unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Bundle(wanted) => {
            let output = Output::new(arguments.json);
            let written = bundle::run(&wanted, arguments.socket, arguments.config.as_deref(), &output);
            written.unwrap_or_else(|error| output.fail(&error))
        }
        Verb::Nodes(wanted) if wanted.is_of_bundle() => {
            let output = Output::new(arguments.json);
            nodes::of_bundle(&wanted, &output).unwrap_or_else(|error| output.fail(&error))
        }
        command => {
            let output = Output::new(arguments.json);
            match talk(command, arguments.socket, arguments.config.as_deref(), &output) {
                Ok(code) => code,
                Err(error) => output.fail(&error),
            }
        }
    }
}

/// The commands for a running instance.
fn talk(command: Verb, named: Option<PathBuf>, config: Option<&Path>, output: &Output) -> Result<ExitCode, CliError> {
    let socket = match named {
        Some(socket) => socket,
        None => socket::find(config)?,
    };
    if let Verb::Version = command {
        return reload::version(&socket, output);
    }
    if let Verb::Ready(arguments) = &command {
        return ready::ready(&socket, arguments, output);
    }
    if let Verb::Top(arguments) = command {
        return top::top(&socket, arguments, output);
    }
    if let Verb::Nodes(arguments) = &command {
        return nodes::nodes(&socket, arguments, output);
    }
    let mut client = match command {
        Verb::Status | Verb::Flows(_) | Verb::Backends { .. } | Verb::Peers(_) | Verb::Vip(_) => {
            socket::connect_to_read(&socket)?
        }
        _ => socket::connect(&socket)?,
    };
    match command {
        Verb::Status => status::status(&mut client, output),
        Verb::Flows(arguments) => flows::list(&mut client, arguments, output),
        Verb::Backends { backend } => status::backends(&mut client, backend.map(BackendName), output),
        Verb::Peers(arguments) => peers::peers(&mut client, &arguments, output),
        Verb::Vip(arguments) => vip::vip(&mut client, &arguments, output),
        Verb::Drain { backend, wait } => orders::drain(&mut client, BackendName(backend), wait, output),
        Verb::Undrain { backend } => orders::undrain(&mut client, BackendName(backend), output),
        Verb::Eject { backend } => orders::eject(&mut client, BackendName(backend), output),
        Verb::Kill(arguments) => kill::kill(&mut client, arguments, output),
        Verb::WhatIf(arguments) => what_if::what_if(&mut client, &arguments, output),
        Verb::Reload => reload::reload(&mut client, output),
        Verb::Upgrade(arguments) => upgrade::upgrade(&mut client, arguments, config, output),
        Verb::Evacuate(arguments) => evacuate::run(&mut client, arguments, output),
        Verb::Rebalance { dry_run } => reload::rebalance(&mut client, dry_run, output),
        Verb::Run { .. }
        | Verb::UpgradeVersion
        | Verb::Broker
        | Verb::Check(_)
        | Verb::Diff(_)
        | Verb::Events(_)
        | Verb::Explain(_)
        | Verb::Bundle(_)
        | Verb::Replay(_)
        | Verb::Who(_)
        | Verb::Import(_)
        | Verb::Init(_)
        | Verb::Offload(_)
        | Verb::Genkey(_)
        | Verb::Lab(_)
        | Verb::Completion { .. }
        | Verb::Man(_)
        | Verb::Nodes(_)
        | Verb::Ready(_)
        | Verb::Top(_)
        | Verb::Version => unreachable!("these ask no running instance, or were answered above"),
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        CliError::Client(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn kill_takes_exactly_one_target_and_all_needs_a_yes() {
        let parses = |line: &str| Arguments::try_parse_from(line.split(' ')).is_ok();
        for good in [
            "baton kill 7",
            "baton kill --backend cp1",
            "baton kill --client 10.0.0.7",
            "baton kill --all --yes",
            "baton kill --all --check",
        ] {
            assert!(parses(good), "{good}");
        }
        for bad in ["baton kill", "baton kill 7 --backend cp1", "baton kill --all", "baton kill x", "baton kill --yes"]
        {
            assert!(!parses(bad), "{bad}");
        }
    }
}
