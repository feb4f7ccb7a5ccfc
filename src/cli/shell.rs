//! Output for packagers: shell completions and the man page, generated from the arguments.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the completions for `shell`.
pub(super) fn completion<Arguments: CommandFactory>(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "baton", &mut script);
    print(&script)
}

/// Prints the man page in troff.
pub(super) fn man<Arguments: CommandFactory>() -> ExitCode {
    let mut page = Vec::new();
    match clap_mangen::Man::new(Arguments::command()).render(&mut page) {
        Ok(()) => print(&page),
        Err(_) => ExitCode::FAILURE,
    }
}

/// If the reader has closed the pipe, as `head` does, that is no error.
fn print(bytes: &[u8]) -> ExitCode {
    match io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
