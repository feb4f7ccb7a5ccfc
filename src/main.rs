//! The `baton` command.

fn main() -> std::process::ExitCode {
    baton::cli::main()
}
