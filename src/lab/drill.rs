//! `baton drill`: many kubelet-like clients against any address. How many nodes would have gone NotReady?
//!
//! ```text
//! fleet    the kubelets, born one after the other                kubeconfig   server, trust and user from kubectl's file
//! tally    every gap between two heartbeats, and the verdict     screen       the display meanwhile
//! leases   which leases are written, where it is a PUT
//! ```

mod fleet;
mod kubeconfig;
mod leases;
mod screen;
mod tally;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

use super::tls::TlsFileError;
use crate::lab::lease::DRILL_LABEL;
use crate::lab::pause::pause;
use crate::model::duration;
use crate::sys::clock::now_ns;
pub(super) use fleet::KubeletFleet;
use kubeconfig::KubeconfigError;
use leases::LeaseName;
use screen::{Moment, seconds};
use tally::{DrillVerdict, GapTally};

/// kubeadm's.
const DEFAULT_CA: &str = "/etc/kubernetes/pki/ca.crt";

/// Interval of the picture, or of the lines where no picture can be drawn.
const DRAW_EVERY: Duration = Duration::from_secs(1);
const LINES_EVERY: u32 = 5;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DrillArgs {
    /// The address that kubelets connect to: the control plane's endpoint, HOST:PORT.
    #[arg(value_name = "SERVER", required_unless_present = "kubeconfig")]
    pub server: Option<String>,
    /// Takes server, certificates and user from this file, as far as no other option names them.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current-context].
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// Certificates to trust, PEM [default: the kubeconfig's, or /etc/kubernetes/pki/ca.crt].
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Accepts any certificate of the server.
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
    /// The name to verify in the server's certificate, instead of the host of SERVER.
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Number of kubelets, each with one connection.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub kubelets: u16,
    /// Path of the heartbeat, a GET request that changes nothing.
    #[arg(long, value_name = "PATH", default_value = "/readyz")]
    pub path: String,
    /// Renews one Lease per kubelet in this namespace, PREFIX-1, PREFIX-2 ..., instead of the GET. The drill creates
    /// the leases if necessary and deletes them at the end; it needs the rights to get, create, update and delete leases
    /// there. It never touches a lease that no drill has created. [default PREFIX: baton-drill]
    #[arg(long, value_name = "NAMESPACE[/PREFIX]", conflicts_with = "path", value_parser = leases::parse)]
    pub lease: Option<LeaseName>,
    /// Holds watches of this path on each connection [default with --watches: /api/v1/nodes?watch=true&...].
    #[arg(long, value_name = "PATH")]
    pub watch: Option<String>,
    /// Number of watches on each connection [default with --watch: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub watches: Option<u16>,
    /// A bearer token, for paths that need one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A client certificate, PEM, instead of a token.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
    /// Time between heartbeats: the kubelet's nodeLeaseDurationSeconds / 4.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub every: Duration,
    /// Timeout of one heartbeat.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub timeout: Duration,
    /// Sends an HTTP/2 ping after this time without a frame; 0: never.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub ping_after: Duration,
    /// Closes a connection on which a ping is unanswered for this time.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    pub ping_timeout: Duration,
    /// The controller-manager's --node-monitor-grace-period: 40s up to Kubernetes 1.31, 50s from 1.32.
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = duration::parse)]
    pub grace: Duration,
    /// Ends after this time; without it on SIGINT or SIGTERM.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub run_for: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DrillError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("--kubeconfig: {0}")]
    Kubeconfig(#[from] KubeconfigError),
    #[error(
        "there is no {DEFAULT_CA} here: name the cluster's CA with --ca, or take it from --kubeconfig, or verify nothing with --insecure"
    )]
    NoCa,
    #[error("{server} is not HOST:PORT, or cannot be resolved: {source}")]
    Server { server: String, source: io::Error },
    #[error("{server} has no address")]
    NoAddress { server: String },
    #[error("{name:?} is neither a DNS name nor an address")]
    ServerName { name: String },
    #[error("--every must be longer than 0")]
    Every,
    #[error("--path and --watch must begin with a slash")]
    Path,
    #[error("reading {}: {source}", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("{0} kubelets need more than {0} descriptors, and the limit is {1}: raise it with ulimit -n")]
    Files(u16, u64),
    #[error("starting: {0}")]
    Start(#[from] io::Error),
}

impl DrillArgs {
    /// Whether SERVER can be an address, as far as that shows without asking for its name.
    pub(super) fn check_server(&self) -> Result<(), DrillError> {
        let Some(server) = &self.server else { return Ok(()) };
        let port = server.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        let fault = match port {
            Some(Ok(_)) => return Ok(()),
            Some(Err(_)) => "invalid port value",
            None => "invalid socket address",
        };
        let source = io::Error::new(io::ErrorKind::InvalidInput, fault);
        Err(DrillError::Server { server: server.clone(), source })
    }
}

/// Runs the drill to its end. Exit code 1: a node would have gone NotReady.
pub(crate) fn run(args: &DrillArgs, json: bool) -> ExitCode {
    // One thread on purpose: the cost of the clients must not look like a cost of the server.
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DrillError::from)
        .and_then(|runtime| runtime.block_on(drill(args, json)));
    match ended {
        Ok(verdict) => {
            tell(&verdict, json);
            if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("baton drill: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn drill(args: &DrillArgs, json: bool) -> Result<DrillVerdict, DrillError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut over = std::pin::pin!(pause(args.run_for));
    let (mut fleet, mut observed) = KubeletFleet::new(args).await?;
    let mut births = fleet.births();
    let mut draws = interval(DRAW_EVERY);
    let mut picture = Picture::new(json);
    let mut tally = GapTally::default();
    let start_ns = now_ns();
    loop {
        tokio::select! {
            biased;
            () = &mut over => break,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = draws.tick() => picture.draw(&Moment {
                server: fleet.server(),
                elapsed: Duration::from_nanos(now_ns() - start_ns),
                every: args.every,
                grace: args.grace,
                nodes: &fleet.summaries(),
                tally: &tally,
            }),
            Some(seen) = observed.recv() => tally.note(&seen.event),
            _ = births.tick(), if !fleet.is_whole() => fleet.grow(),
        }
    }
    let mut verdict = tally.verdict(&fleet.summaries(), args.grace);
    verdict.leases_left = fleet.dismiss().await;
    Ok(verdict)
}

/// On a terminal it draws over its last picture; into a file or pipe it prints a line now and then.
struct Picture {
    quiet: bool,
    terminal: bool,
    drawn: usize,
    draws: u32,
}

impl Picture {
    fn new(quiet: bool) -> Self {
        Self { quiet, terminal: io::stdout().is_terminal(), drawn: 0, draws: 0 }
    }

    /// If the reader is gone, the exit code still counts.
    fn draw(&mut self, moment: &Moment<'_>) {
        self.draws += 1;
        let mut out = io::stdout().lock();
        if self.quiet {
        } else if self.terminal {
            let mut lines = moment.lines();
            // A line that the terminal wraps would count as two.
            let width = ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns));
            lines.iter_mut().for_each(|line| *line = line.chars().take(width).collect());
            // Moves the cursor up by the drawn lines, then writes each line and erases the rest of its old text
            // (ECMA-48 CUU, EL, ED).
            let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            let text: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
            let _ = write!(out, "{up}{text}\x1b[J").and_then(|()| out.flush());
            self.drawn = lines.len();
        } else if self.draws % LINES_EVERY == 1 {
            let _ = writeln!(out, "{}", moment.line()).and_then(|()| out.flush());
        }
    }
}

fn tell(verdict: &DrillVerdict, json: bool) {
    let mut out = io::stdout().lock();
    let text = match json {
        true => serde_json::to_string(verdict).unwrap_or_default(),
        false => format!(
            "\n{} of {} nodes would have become NotReady; the longest time without a heartbeat was {} of {} allowed{}",
            verdict.not_ready,
            verdict.kubelets,
            seconds(Duration::from_millis(verdict.gap_ms_max)),
            seconds(Duration::from_millis(verdict.grace_ms)),
            if verdict.never > 0 { format!("; {} never had one", verdict.never) } else { String::new() },
        ),
    };
    let text = text + &if json { String::new() } else { more(verdict) };
    let _ = writeln!(out, "{text}");
}

/// The sentences that get a line of their own.
fn more(verdict: &DrillVerdict) -> String {
    let mut text = String::new();
    if verdict.disconnections > 0 {
        let plural = if verdict.disconnections == 1 { " was" } else { "s were" };
        text += &format!("\n{} connection{plural} lost", verdict.disconnections);
    }
    if verdict.watches_open > 0 || verdict.watches_ended > 0 {
        text += &format!(
            "\nwatches: {} open, {} ended, {} events, the longest time without one {}",
            verdict.watches_open,
            verdict.watches_ended,
            verdict.watch_events,
            seconds(Duration::from_millis(verdict.watch_gap_ms_max))
        );
    }
    if let Some(error) = verdict.last_error.as_ref().filter(|_| verdict.never > 0) {
        text += &format!("\nlast failure: {error}");
    }
    if verdict.leases_left > 0 {
        let (key, value) = DRILL_LABEL;
        text += &format!(
            "\ncannot remove {} leases: kubectl delete leases -l {key}={value} -n NAMESPACE",
            verdict.leases_left
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::kubelet::KubeletEvent;
    use super::*;

    #[test]
    fn a_drill_tells_how_many_connections_were_lost() {
        let mut tally = GapTally::default();
        let told = |tally: &GapTally| more(&tally.verdict(&[], Duration::from_secs(40)));
        assert_eq!(told(&tally), "");
        let lost = KubeletEvent::Disconnected { error: "reset".to_owned() };
        tally.note(&lost);
        assert_eq!(told(&tally), "\n1 connection was lost");
        tally.note(&lost);
        assert_eq!(told(&tally), "\n2 connections were lost");
    }
}
