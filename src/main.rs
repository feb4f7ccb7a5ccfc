//! The `baton` command.

use std::process::ExitCode;

use baton::cli::demo::{command, kubelet, stand_in};
use clap::Parser;

#[derive(Parser)]
#[command(name = "baton", version)]
enum Command {
    /// Shows Baton before three apiserver stand-ins.
    Demo(command::DemoArgs),
    #[command(hide = true)]
    StandIn(stand_in::StandInArgs),
    #[command(hide = true)]
    Kubelet(kubelet::command::KubeletArgs),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Demo(args) => command::run(args),
        Command::StandIn(args) => stand_in::run(args),
        Command::Kubelet(args) => kubelet::command::run(args),
    }
}
