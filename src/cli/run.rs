//! `baton run`: an instance in the foreground, steered by signals.
//!
//! SIGTERM and SIGINT stop it, a second one hastens the stop; SIGHUP reloads.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::logging::{self, Logging};
use crate::app::{self, Bound};
use crate::config::{self, Config};
use crate::drain::Phase;

/// Threads for control work: probes, doors, logs. Two, so that one long task does not hold up the probes.
const CONTROL_THREADS: usize = 2;

/// Runs until stopped by a signal.
pub fn run(path: &Path) -> ExitCode {
    let loaded = match config::load(path) {
        Ok(loaded) => loaded,
        Err(rejected) => {
            for finding in rejected.errors.iter().chain(&rejected.warnings) {
                eprintln!("{finding}");
            }
            eprintln!("not started: {} errors in {}", rejected.errors.len(), path.display());
            return ExitCode::FAILURE;
        }
    };
    let logging = match logging::start(&loaded.config.log) {
        Ok(logging) => logging,
        Err(error) => return fail("start the log", &error),
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(serve(loaded.config, path, &Arc::new(logging))),
        Err(error) => fail("start the control threads", &error),
    }
}

async fn serve(config: Config, path: &Path, logging: &Arc<Logging>) -> ExitCode {
    let signals = (SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup());
    let (terminate, interrupt, hangup) = match (signal(signals.0), signal(signals.1), signal(signals.2)) {
        (Ok(terminate), Ok(interrupt), Ok(hangup)) => (terminate, interrupt, hangup),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return fail("wait for signals", &error),
    };
    let bound = match app::build(config, path).await {
        Ok(bound) => bound,
        Err(error) => {
            tracing::error!("not started: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = bound.workers,
        socket = %bound.socket.display(),
        http = bound.http.map(tracing::field::display),
        "listening"
    );
    tokio::spawn(follow_log_settings(bound.config(), Arc::downgrade(logging)));
    tokio::spawn(tell_service_manager(bound.phase()));
    tokio::spawn(reload_on(hangup, bound.reloader()));
    let mut stops = Stops { terminate, interrupt };
    stops.next().await;
    let hasten = bound.hasten();
    tokio::spawn(async move {
        loop {
            stops.next().await;
            hasten();
        }
    });
    stop(bound).await;
    ExitCode::SUCCESS
}

async fn stop(bound: Bound) {
    bound.stop().await;
    tracing::info!("stopped");
}

struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn reload_on(mut hangup: Signal, reloader: Arc<app::Reloader>) {
    while hangup.recv().await.is_some() {
        // The outcome is logged and kept by the reloader.
        let _ = reloader.reload().await;
    }
}

async fn follow_log_settings(mut config: tokio::sync::watch::Receiver<Arc<Config>>, logging: std::sync::Weak<Logging>) {
    while config.changed().await.is_ok() {
        let Some(logging) = logging.upgrade() else { return };
        logging.apply(&config.borrow_and_update().log);
    }
}

/// sd_notify(3); without a service manager nothing happens.
async fn tell_service_manager(mut phase: crate::drain::DrainWatch) {
    phase.reached(Phase::Serving).await;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    phase.reached(Phase::Leaving).await;
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}

fn fail(what: &str, error: &std::io::Error) -> ExitCode {
    eprintln!("not started: cannot {what}: {error}");
    ExitCode::FAILURE
}
