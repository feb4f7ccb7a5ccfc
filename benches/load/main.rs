//! `load`: makes traffic for the comparison, and measures it. One process serves the backends, another is the clients;
//! each prints one JSON object. benches/README.md tells what the rows mean.

mod behave;
mod bulk;
mod connect;
mod death;
mod entries;
mod idle;
mod malformed;
mod net;
mod pattern;
mod promise;
mod records;
mod requests;
mod script;
mod serve;
mod stall;
mod usage;
mod window;

use std::net::SocketAddr;

use clap::{Parser, Subcommand};
use window::Window;

#[derive(Parser)]
#[command(about = "Traffic for benches/compare and benches/soak")]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

/// When and of whom to measure.
#[derive(clap::Args, Clone)]
struct Common {
    /// Where the clients connect.
    #[arg(long)]
    target: SocketAddr,
    /// Measured time, in s.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Time before it that does not count, in s.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Processes of the proxy, whose CPU time and memory are reported.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
}

impl Common {
    fn window(&self) -> Window {
        Window::new(self.warmup, self.seconds, self.pids.clone())
    }
}

#[derive(clap::Args)]
struct Death {
    #[arg(long)]
    flows: usize,
    /// Where flows of other backends connect.
    #[arg(long)]
    others: SocketAddr,
    /// Process of the backend.
    #[arg(long)]
    victim: i32,
    /// It has bytes that it did not read, so that its end is a reset instead of a FIN.
    #[arg(long)]
    unread: bool,
}

#[derive(Subcommand)]
enum Mode {
    /// Backends, until killed.
    Serve {
        #[arg(long, value_delimiter = ',')]
        listen: Vec<SocketAddr>,
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Requests on health state connections: the next when the last was answered, or at a fixed rate.
    Requests {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        connections: usize,
        #[arg(long, default_value_t = 64)]
        bytes: usize,
        /// A second, of all connections together; latency then counts from when a request was due.
        #[arg(long)]
        rate: Option<f64>,
    },
    /// Connect, one exchange of 64 bytes, close.
    Connect {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        connections: usize,
        #[command(flatten)]
        manner: connect::Manner,
    },
    /// As many bytes as go, one way.
    Bulk {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        flows: usize,
        #[arg(long, value_enum)]
        direction: bulk::Way,
        /// Bytes a second of each flow at most.
        #[arg(long)]
        rate: Option<f64>,
        /// Time for which the connections are left alone first, in s; part of the time that does not count.
        #[arg(long, default_value_t = 0.0)]
        settle: f64,
    },
    /// Flows that do nothing.
    Idle {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        flows: usize,
    },
    /// A client that asks for everything and reads nothing.
    Stall {
        #[command(flatten)]
        common: Common,
        /// A backend, which is asked what it sent.
        #[arg(long)]
        witness: SocketAddr,
    },
    /// Kills a backend that has all of these flows, and waits until each client is told.
    Death {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        death: Death,
    },
    /// Fills a map of offloaded flows with flows that nobody has.
    Entries(entries::Entries),
    /// Watches two instances' maps while flows are offloaded at one of them.
    Records(records::Records),
    /// Clients that say how long they waited, and for what, a line each.
    Promise(promise::Promise),
    /// Whether bytes, FIN and RST get through as they are.
    Behave {
        #[arg(long)]
        target: SocketAddr,
        /// A backend, which is asked what it saw.
        #[arg(long)]
        witness: SocketAddr,
    },
}

fn main() -> std::io::Result<()> {
    baton::sys::process::raise_file_limit();
    let report = match Arguments::parse().mode {
        Mode::Serve { listen, threads } => return serve::run(&listen, threads),
        Mode::Requests { common, connections, bytes, rate } => requests::run(&common, connections, bytes, rate)?,
        Mode::Connect { common, connections, manner } => connect::run(&common, connections, &manner)?,
        Mode::Bulk { common, flows, direction, rate, settle } => bulk::run(&common, flows, direction, rate, settle)?,
        Mode::Idle { common, flows } => idle::run(&common, flows)?,
        Mode::Stall { common, witness } => stall::run(&common, witness)?,
        Mode::Death { common, death } => death::run(&common, &death)?,
        Mode::Entries(asked) => entries::run(&asked)?,
        Mode::Records(asked) => records::run(&asked)?,
        Mode::Promise(asked) => promise::run(&asked)?,
        Mode::Behave { target, witness } => behave::run(target, witness),
    };
    println!("{report}");
    Ok(())
}
