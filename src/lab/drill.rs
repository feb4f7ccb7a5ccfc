//! `baton drill`: many kubelet-like clients against any address. How many nodes would have gone NotReady?
//!
//! ```text
//! tally    every gap between two heartbeats, and the verdict      screen   the display meanwhile
//! leases   which leases are written, where it is a PUT           kubeconfig   server, trust and user from kubectl's file
//! ```

mod kubeconfig;
mod leases;
mod screen;
mod tally;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::kubelet::{Heartbeat, Kubelet, KubeletSettings, Observed, Retries, Summary};
use super::tls::{self, PemText, TlsFileError};
use crate::addr::VipAddr;
use crate::lab::lease::{DRILL_LABEL, WATCH_PATH};
use crate::lab::pause::pause;
use crate::model::duration;
use crate::sys::clock::now_ns;
use crate::sys::process;
use kubeconfig::{KubeContext, KubeTrust, KubeUser, KubeconfigError};
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

/// Runs the drill to its end. Exit code 1: a node would have gone NotReady.
pub(crate) fn run(args: &DrillArgs, json: bool) -> ExitCode {
    process::raise_file_limit();
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
    let target = target(args)?;
    let settings = settings(args, &target).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut over = std::pin::pin!(pause(args.run_for));
    let (events, mut observed) = mpsc::unbounded_channel();
    let mut fleet = KubeletFleet { settings, events, kubelets: Vec::with_capacity(args.kubelets.into()) };
    // Spread over one interval, as the nodes of a cluster are.
    let mut births = interval((args.every / u32::from(args.kubelets)).max(Duration::from_micros(100)));
    births.set_missed_tick_behavior(MissedTickBehavior::Burst);
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
                server: &target.server,
                elapsed: Duration::from_nanos(now_ns() - start_ns),
                every: args.every,
                grace: args.grace,
                nodes: &fleet.summaries(),
                tally: &tally,
            }),
            Some(seen) = observed.recv() => tally.note(&seen.event),
            _ = births.tick(), if fleet.kubelets.len() < usize::from(args.kubelets) => fleet.grow(),
        }
    }
    let mut verdict = tally.verdict(&fleet.summaries(), args.grace);
    if let Some(LeaseName { namespace, .. }) = &args.lease {
        let nodes: Vec<_> = (1..=fleet.kubelets.len()).map(|number| fleet.name(number)).collect();
        // Otherwise they would create the leases again.
        fleet.kubelets.clear();
        let gone = Kubelet::remove_leases(&fleet.settings, namespace, &nodes, REMOVAL_LIMIT).await;
        verdict.leases_left = nodes.len() - gone;
    }
    Ok(verdict)
}

/// Where the kubelets connect, what they trust, and who they are.
#[derive(Debug)]
struct DrillTarget {
    /// HOST:PORT.
    server: String,
    server_name: String,
    /// `None`: any server.
    ca: Option<PemText>,
    own: Option<(PemText, PemText)>,
    authorization: Option<String>,
}

/// Options count before the kubeconfig.
fn target(args: &DrillArgs) -> Result<DrillTarget, DrillError> {
    let config = args.kubeconfig.as_deref().map(|path| kubeconfig::read(path, args.context.as_deref())).transpose()?;
    let server = args.server.clone().or_else(|| config.as_ref().map(|it| it.server.clone())).unwrap_or_default();
    let host = server.rsplit_once(':').map_or(server.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let server_name = args.server_name.clone().or_else(|| config.as_ref().and_then(|it| it.server_name.clone()));
    let (own, authorization) = credentials(args, config.as_ref())?;
    Ok(DrillTarget { server_name: server_name.unwrap_or(host), ca: trusted(args, config)?, own, authorization, server })
}

fn trusted(args: &DrillArgs, config: Option<KubeContext>) -> Result<Option<PemText>, DrillError> {
    if args.insecure {
        return Ok(None);
    }
    match (&args.ca, config.map(|it| it.trust)) {
        (Some(ca), _) => Ok(Some(PemText::read(ca)?)),
        (None, Some(KubeTrust::Anything)) => Ok(None),
        (None, Some(KubeTrust::Given(pem))) => Ok(Some(pem)),
        (None, None | Some(KubeTrust::Default)) => match PemText::read(DEFAULT_CA.as_ref()) {
            Err(TlsFileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Err(DrillError::NoCa),
            read => Ok(Some(read?)),
        },
    }
}

/// A client certificate and its key, and the header `authorization`.
type DrillCredentials = (Option<(PemText, PemText)>, Option<String>);

fn credentials(args: &DrillArgs, config: Option<&KubeContext>) -> Result<DrillCredentials, DrillError> {
    let bearer = |token: &str| Some(format!("Bearer {}", token.trim()));
    let own = args.client_cert.as_deref().zip(args.client_key.as_deref());
    let own = own.map(|(cert, key)| Ok::<_, TlsFileError>((PemText::read(cert)?, PemText::read(key)?))).transpose()?;
    if let Some(path) = &args.token_file {
        let token = std::fs::read_to_string(path);
        let token = token.map_err(|source| DrillError::Token { path: path.clone(), source })?;
        return Ok((own, bearer(&token)));
    }
    if own.is_some() {
        return Ok((own, None));
    }
    // The heartbeat of /readyz needs no credentials.
    let needs_some = args.lease.is_some() || args.watch.is_some() || args.watches.is_some();
    match config.map(|it| &it.user) {
        None | Some(KubeUser::Nobody) => Ok((None, None)),
        Some(KubeUser::Token(token)) => Ok((None, bearer(token))),
        Some(KubeUser::Certificate { cert, key }) => Ok((Some((cert.clone(), key.clone())), None)),
        Some(KubeUser::Provider { key, by }) if needs_some => {
            let path = args.kubeconfig.clone().unwrap_or_default();
            Err(KubeconfigError::Provider { path, key: key.clone(), by }.into())
        }
        Some(KubeUser::Provider { .. }) => Ok((None, None)),
    }
}

async fn settings(args: &DrillArgs, target: &DrillTarget) -> Result<KubeletSettings, DrillError> {
    if args.every.is_zero() {
        return Err(DrillError::Every);
    }
    if !args.path.starts_with('/') || args.watch.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(DrillError::Path);
    }
    let limit = process::file_limit();
    if u64::from(args.kubelets) + SPARE_FILES > limit {
        return Err(DrillError::Files(args.kubelets, limit));
    }
    let server = resolve(&target.server).await?;
    let name = &target.server_name;
    let prefix = args.lease.as_ref().map_or("node", |lease| &lease.prefix);
    Ok(KubeletSettings {
        server_name: ServerName::try_from(name.clone()).map_err(|_| DrillError::ServerName { name: name.clone() })?,
        heartbeat: match &args.lease {
            Some(lease) => Heartbeat::DrillLease { namespace: lease.namespace.clone() },
            None => Heartbeat::Get(args.path.clone()),
        },
        renew_every: args.every,
        retries: Retries::KUBELET,
        request_timeout: args.timeout,
        watch: args.watch.clone().or_else(|| args.watches.map(|_| WATCH_PATH.to_owned())),
        watches: args.watches.unwrap_or(1),
        authorization: target.authorization.clone(),
        ping_after: Some(args.ping_after).filter(|after| !after.is_zero()),
        ping_timeout: args.ping_timeout,
        ..KubeletSettings::new(
            VipAddr::new(server),
            tls::client_config_of(target.ca.as_ref(), target.own.as_ref())?,
            prefix,
        )
    })
}

async fn resolve(server: &str) -> Result<SocketAddr, DrillError> {
    let found = tokio::net::lookup_host(server).await;
    let mut addresses = found.map_err(|source| DrillError::Server { server: server.to_owned(), source })?;
    addresses.next().ok_or_else(|| DrillError::NoAddress { server: server.to_owned() })
}

/// The kubelets so far.
struct KubeletFleet {
    settings: KubeletSettings,
    events: mpsc::UnboundedSender<Observed>,
    kubelets: Vec<Kubelet>,
}

impl KubeletFleet {
    fn grow(&mut self) {
        let settings = KubeletSettings { name: self.name(self.kubelets.len() + 1), ..self.settings.clone() };
        self.kubelets.push(Kubelet::start_into(settings, self.events.clone()));
    }

    /// The name of the kubelet with this number, counted from 1.
    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.settings.name)
    }

    fn summaries(&self) -> Vec<Summary> {
        self.kubelets.iter().map(Kubelet::summary).collect()
    }
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

/// Time limit for removing all leases at the end.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// Descriptors reserved for other uses than connections.
const SPARE_FILES: u64 = 64;

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
