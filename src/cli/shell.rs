//! What a packager asks for: shell completions and the man page, made from the arguments themselves.

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

/// A reader that has gone away, as `head` does, is no error worth words.
fn print(bytes: &[u8]) -> ExitCode {
    match io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
