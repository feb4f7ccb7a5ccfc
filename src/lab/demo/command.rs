//! `baton demo`.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::fleet::layout::{FleetLayout, Rival};
use super::fleet::{FleetError, FleetPlan};
use super::live::LiveError;
use super::stage::{DemoStage, StageError};
use super::tour::TourError;
use super::{fleet, guard, live, log, tour};
use crate::lab::pause::pause;
use crate::model::duration;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DemoArgs {
    /// Ends after this time, such as 90s; without it with q, SIGINT or SIGTERM.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub run_for: Option<Duration>,
    /// Prints lines instead of drawing, as it does when the output is not a terminal.
    #[arg(long)]
    pub no_tui: bool,
    /// Causes every fault by itself, prints a table at the end, and exits with 1 if a client waited too long.
    #[arg(long)]
    pub tour: bool,
    /// Shows hosts with network namespaces of their own, and a VIP that Baton moves between them; needs root.
    #[arg(long, conflicts_with_all = ["http", "guard"])]
    pub fleet: bool,
    /// Where the balancers of --fleet run.
    #[arg(long, requires = "fleet", value_enum, default_value_t)]
    pub layout: FleetLayout,
    /// Shows the same hosts with another balancer beside those with Baton; each key and fault acts on both.
    #[arg(long, requires = "fleet", value_enum, value_name = "BALANCER")]
    pub compare: Option<Rival>,
    /// Address of the status page; if its port is in use, the next free port. Not with --fleet, whose instances have a page each.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9470")]
    pub http: SocketAddr,
    /// Number of kubelet-like clients [default: 6; 12 with --fleet].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub kubelets: Option<u16>,
    /// Cleans up after a demo.
    #[arg(long, hide = true, value_name = "DIR")]
    pub guard: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("starting: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    DemoStage(#[from] StageError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error(transparent)]
    Tour(#[from] TourError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("the tour was ended before it was over")]
    CutShort,
}

/// Runs `baton demo` to its end.
pub(crate) fn run(args: DemoArgs) -> ExitCode {
    if let Some(dir) = &args.guard {
        return guard::run(dir);
    }
    let played = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(DemoError::from)
        .and_then(|runtime| runtime.block_on(play(&args)));
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("baton demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns false if a client of the tour waited too long.
async fn play(args: &DemoArgs) -> Result<bool, DemoError> {
    let mut over = std::pin::pin!(over(args.run_for)?);
    if args.fleet {
        let kubelets = args.kubelets.unwrap_or(FLEET_KUBELETS).into();
        let plan =
            FleetPlan { layout: args.layout, compare: args.compare, kubelets, tour: args.tour, no_tui: args.no_tui };
        return Ok(fleet::play(plan, over).await?);
    }
    let mut stage = tokio::select! {
        stage = DemoStage::start(args.http, args.kubelets.unwrap_or(KUBELETS).into()) => stage?,
        () = &mut over => return if args.tour { Err(DemoError::CutShort) } else { Ok(true) },
    };
    if let Some(said) = moved(args.http, stage.places().http) {
        log::print(&said);
    }
    let drawn = !args.tour && !args.no_tui && io::stdout().is_terminal() && io::stdin().is_terminal();
    let played = if args.tour {
        tokio::select! {
            within_budget = tour::run(&mut stage) => within_budget.map_err(DemoError::from),
            () = over => Err(DemoError::CutShort),
        }
    } else if drawn {
        tokio::select! {
            ended = live::run(&mut stage) => ended.map(|()| true).map_err(DemoError::from),
            () = over => Ok(true),
        }
    } else {
        tokio::select! {
            Err(error) = log::run(&mut stage) => Err(error.into()),
            () = over => Ok(true),
        }
    };
    stage.stop().await;
    played
}

/// The place of the status page if it is not at the address `asked`. Port 0 asks for any port.
fn moved(asked: SocketAddr, http: SocketAddr) -> Option<String> {
    let why = match asked.port() {
        _ if http == asked => return None,
        0 => String::new(),
        _ => format!("another process has {asked}: "),
    };
    Some(format!("{why}the status page is at http://{http}/"))
}

/// Ends after `run_for`, or with a signal.
fn over(run_for: Option<Duration>) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            () = pause(run_for) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

const KUBELETS: u16 = 6;
const FLEET_KUBELETS: u16 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_nobody_asked_for_is_not_said_to_be_in_use() {
        let said = |asked: &str, http: &str| moved(asked.parse().unwrap(), http.parse().unwrap());
        assert_eq!(said("127.0.0.1:9470", "127.0.0.1:9470"), None);
        assert_eq!(said("127.0.0.1:0", "127.0.0.1:4711").unwrap(), "the status page is at http://127.0.0.1:4711/");
        assert_eq!(
            said("127.0.0.1:9470", "127.0.0.1:9471").unwrap(),
            "another process has 127.0.0.1:9470: the status page is at http://127.0.0.1:9471/"
        );
    }
}
