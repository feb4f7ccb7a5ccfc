//! The `baton` command.

use std::process::ExitCode;

use baton::cli::demo::{kubelet, stand_in};
use clap::Parser;

#[derive(Parser)]
#[command(name = "baton", version)]
enum Command {
    #[command(hide = true)]
    StandIn(stand_in::StandInArgs),
    #[command(hide = true)]
    Kubelet(kubelet::command::KubeletArgs),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::StandIn(args) => stand_in::run(args),
        Command::Kubelet(args) => kubelet::command::run(args),
    }
}
