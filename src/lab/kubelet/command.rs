//! `baton kubelet`: the kubelet-like client as a command.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustls_pki_types::ServerName;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::{Kubelet, KubeletEvent, KubeletSettings, Summary};
use crate::addr::VipAddr;
use crate::lab::pause::pause;
use crate::lab::tls::{self, TlsFileError};
use crate::model::duration;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct KubeletArgs {
    /// The address to connect to.
    #[arg(long)]
    pub server: SocketAddr,
    /// Certificates to trust, PEM.
    #[arg(long)]
    pub ca: PathBuf,
    /// The name to send (SNI) and to verify in the certificate, instead of the address.
    #[arg(long)]
    pub server_name: Option<String>,
    /// The node's name.
    #[arg(long, default_value = "node-1")]
    pub name: String,
    #[arg(long, default_value = "1s", value_parser = duration::parse)]
    pub renew_every: Duration,
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub request_timeout: Duration,
    /// Holds a watch on the same connection.
    #[arg(long)]
    pub watch: bool,
    /// Sends a ping after this time without a frame from the server; 0: never.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub ping_after: Duration,
    /// Closes a connection on which a ping is unanswered for this time.
    #[arg(long, default_value = "15s", value_parser = duration::parse)]
    pub ping_timeout: Duration,
    /// The address to connect from.
    #[arg(long)]
    pub source: Option<IpAddr>,
    /// Ends after this time; without it on SIGINT or SIGTERM.
    #[arg(long = "for", value_parser = duration::parse)]
    pub run_for: Option<Duration>,
    /// Exits with 1 if the longest gap between renewals was longer than this.
    #[arg(long, value_parser = duration::parse)]
    pub max_gap: Option<Duration>,
    /// Prints a JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error("--server-name {name:?} is neither a DNS name nor an address")]
    ServerName { name: String },
    #[error("--renew-every must be longer than 0")]
    RenewEvery,
    #[error("starting: {0}")]
    Start(#[from] io::Error),
}

/// Runs `baton kubelet` until its time is over.
pub(crate) fn run(args: KubeletArgs) -> ExitCode {
    let ended = settings(&args).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(live(&args, settings))
    });
    match ended {
        Ok(summary) => {
            let within = args.max_gap.is_none_or(|max| u128::from(summary.longest_gap_ms) <= max.as_millis());
            if within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("baton kubelet: {error}");
            ExitCode::FAILURE
        }
    }
}

fn settings(args: &KubeletArgs) -> Result<KubeletSettings, KubeletError> {
    if args.renew_every.is_zero() {
        return Err(KubeletError::RenewEvery);
    }
    let mut settings =
        KubeletSettings::new(VipAddr::new(args.server), tls::client_config(&args.ca)?, args.name.clone());
    if let Some(name) = &args.server_name {
        settings.server_name =
            ServerName::try_from(name.clone()).map_err(|_| KubeletError::ServerName { name: name.clone() })?;
    }
    settings.renew_every = args.renew_every;
    settings.request_timeout = args.request_timeout;
    settings.watch = settings.watch.filter(|_| args.watch);
    settings.ping_after = Some(args.ping_after).filter(|after| !after.is_zero());
    settings.ping_timeout = args.ping_timeout;
    settings.source = args.source;
    Ok(settings)
}

async fn live(args: &KubeletArgs, settings: KubeletSettings) -> Result<Summary, KubeletError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut over = std::pin::pin!(pause(args.run_for));
    let (kubelet, mut observed) = Kubelet::start(settings);
    loop {
        tokio::select! {
            Some(seen) = observed.recv() => match args.json {
                true => say_json(&seen),
                false if matches!(seen.event, KubeletEvent::Watched { .. }) => {}
                false => say(format_args!("{:>9.3} s  {}", seen.at_ms as f64 / 1000.0, seen.event)),
            },
            () = &mut over => break,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    let summary = kubelet.stop();
    if args.json {
        say_json(&LastLine { event: "summary", summary: &summary });
    } else {
        say(format_args!(
            "{}: {} renewals, {} failures, {} connections, longest gap {} ms",
            summary.name, summary.renewals, summary.failures, summary.connections, summary.longest_gap_ms
        ));
    }
    Ok(summary)
}

#[derive(Serialize)]
struct LastLine<'a> {
    event: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

fn say_json(line: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(line) {
        say(format_args!("{text}"));
    }
}

/// If the reader is gone, the exit code still counts.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
