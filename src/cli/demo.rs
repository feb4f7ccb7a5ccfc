//! `baton demo`.

macro_rules! absent {
    ($args:ident) => {
        #[derive(clap::Args, Clone, Debug)]
        pub struct $args {}

        pub fn run(_arguments: $args) -> std::process::ExitCode {
            eprintln!("baton: this command is not part of this build");
            std::process::ExitCode::FAILURE
        }
    };
}

pub mod command {
    absent!(DemoArgs);
}

pub mod stand_in {
    absent!(StandInArgs);
}

pub mod kubelet {
    pub mod command {
        absent!(KubeletArgs);
    }
}
