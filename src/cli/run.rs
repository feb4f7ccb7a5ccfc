//! `baton run`: an instance in the foreground, controlled by signals.
//!
//! SIGTERM and SIGINT stop it, a second one shortens the stop; SIGHUP reloads; SIGUSR2 replaces it by a new process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Hook, SignalKind, signal};

use super::logging::{self, Logging};
use super::output::colours;
use super::service::{self, ServiceManager};
use crate::addr::VipAddr;
use crate::app::{self, Bound, Replacement, Succession};
use crate::config::{self, Config};
use crate::drain::LifePhase;
use crate::essential;
use crate::proxy;
use crate::sys::broker::{self, StartedBroker};
use crate::sys::{bpffs, inherited, process, rights, syscall_filter, text, trust};
use crate::upgrade::channel::Channel;
use crate::upgrade::destination;

/// Threads for control work: probes, admin servers, logs. Two, so that one long task does not delay the probes.
const CONTROL_THREADS: usize = 2;

/// How long the message to the old process may take that says why this one does not start.
const REFUSE_MAX: Duration = Duration::from_secs(2);

/// How long the message to the requester of an upgrade may take that says that it is done.
const TELL_MAX: Duration = Duration::from_secs(1);

/// How long the process that keeps the rights may take to start: on a host that has just begun to, and in an upgrade, where the old process waits
/// for 10 s.
const BROKER_STARTS_MAX: Duration = Duration::from_secs(30);
const BROKER_STARTS_MAX_IN_UPGRADE: Duration = Duration::from_secs(6);

/// Keepalive messages within the time after which the service manager expects one.
const KEEP_ALIVES: u32 = 5;

/// After this the start is over: probes have ended, and flows have moved.
const SETTLED: Duration = Duration::from_secs(10);

/// What is used comes back within a millisecond or so.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The source of a new process's listeners.
enum ListenerOrigin {
    /// The service manager, if it kept any.
    Fresh(Vec<(VipAddr, OwnedFd)>),
    /// The process before it.
    Upgrade(Channel),
}

/// Runs until stopped by a signal, or replaced.
pub(crate) fn run(path: &Path, upgrade: bool) -> ExitCode {
    // The fleet's key and the keys of the probes will be in it.
    process::keep_memory_private();
    let filtered = filter_system_calls();
    // Paths in the file are relative to it, and a later reload or comparison reads the same ones.
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let origin = match upgrade {
        false => ListenerOrigin::Fresh(service::passed_listeners()),
        true => match inherited::take_stdin().map_err(Into::into).and_then(Channel::new) {
            Ok(channel) => ListenerOrigin::Upgrade(channel),
            Err(error) => {
                eprintln!("Baton does not start: it cannot communicate with the old process: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    let broker = rights::are_worth_a_broker().then(|| StartedBroker::start(path));
    let loaded = match config::load(path) {
        Ok(loaded) => loaded,
        Err(rejected) => {
            eprint!("{}", rejected.render(colours(&std::io::stderr())));
            if let ListenerOrigin::Upgrade(channel) = &origin {
                let reasons = rejected.errors.iter().map(ToString::to_string).collect();
                destination::refuse(channel, reasons, REFUSE_MAX);
            }
            let errors = if rejected.errors.len() == 1 { "error" } else { "errors" };
            eprintln!("Baton does not start: it found {} {errors} in {}", rejected.errors.len(), path.display());
            return ExitCode::FAILURE;
        }
    };
    // Before there are threads: each has rights of its own.
    let patience = if upgrade { BROKER_STARTS_MAX_IN_UPGRADE } else { BROKER_STARTS_MAX };
    let broker = broker.map(|started| started.and_then(|started| started.rely_on(patience))).transpose();
    // Whoever has taken the old process over may have ended the new one's broker.
    let broker = match broker {
        Err(error) if !rustix::process::geteuid().is_root() => {
            let why = format!("it cannot start the process that keeps its rights: {error}");
            eprintln!("Baton does not start: {why}");
            if let ListenerOrigin::Upgrade(channel) = &origin {
                destination::refuse(channel, vec![why], REFUSE_MAX);
            }
            return ExitCode::FAILURE;
        }
        broker => broker,
    };
    let logging = match logging::start(&loaded.config.log) {
        Ok(logging) => logging,
        Err(error) => return fail("start the log", &error),
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = filtered {
        tracing::warn!(%error, "Baton runs without its filter of system calls");
    }
    watch_broker(broker, path);
    let origin = match origin {
        ListenerOrigin::Fresh(listeners) => ListenerOrigin::Fresh(fitting(&loaded.config, listeners)),
        upgrade => upgrade,
    };
    if let ListenerOrigin::Fresh(listeners) = &origin
        && !listeners.is_empty()
    {
        let listeners = listeners.len();
        tracing::warn!(
            listeners,
            "the previous process has ended, and its proxied flows with it; this process uses its listening sockets"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(serve(loaded.config, path, origin, &Arc::new(logging)));
            // An open connection to an admin server must not delay the exit.
            runtime.shutdown_background();
            code
        }
        Err(error) => fail("start the control threads", &error),
    }
}

/// Before there are threads. From then on nothing can be mounted, so that the BPF file system must be there; who needs it and does not have
/// it says why.
fn filter_system_calls() -> std::io::Result<()> {
    if let Ok(false) = bpffs::holds(Path::new(bpffs::MOUNT_POINT)) {
        let _ = bpffs::mount_usual();
    }
    syscall_filter::install()
}

/// Says so if the broker ends, or if there is none that could.
fn watch_broker(started: io::Result<Option<Child>>, config: &Path) {
    let watched = started.and_then(|process| {
        let Some(mut process) = process else { return Ok(()) };
        if let Err(why) = trust::only_others_write(config) {
            tracing::warn!(
                "{why}, so that Baton's own user could write the configuration file, and name any file of root's there: Baton does not open files that \
                 only root may read, binds no port below 1024, and cannot upgrade itself; put a new file of root's in the place of {}, and restart Baton",
                config.display()
            );
        }
        let wait = move || {
            let ended = process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            broker::has_ended();
            tracing::error!(
                "the process that keeps Baton's rights has ended ({ended}). All flows go on, and new ones are served; but this process cannot \
                 read files of root's or bind new ports below 1024 any more, as a reload may have to, nor upgrade itself: run `baton \
                 evacuate` and restart it"
            );
        };
        essential::thread("broker", wait).map(drop)
    });
    if let Err(error) = watched {
        tracing::warn!(%error, "Baton keeps its rights in one process");
    }
}

/// The sockets that this process can go on with. The others, of another share_port, are closed, and the service manager's with them.
fn fitting(config: &Config, listeners: Vec<(VipAddr, OwnedFd)>) -> Vec<(VipAddr, OwnedFd)> {
    let (fitting, other) = proxy::fitting_listeners(config, listeners);
    let manager = ServiceManager::find();
    other.into_iter().for_each(|address| manager.forget(address));
    fitting
}

async fn serve(config: Config, path: &Path, origin: ListenerOrigin, logging: &Arc<Logging>) -> ExitCode {
    let mut signals = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::user_defined2()] {
        match signal(kind) {
            Ok(signal) => signals.push(signal),
            Err(error) => return fail("wait for signals", &error),
        }
    }
    let Ok([terminate, interrupt, hangup, replace]) = <[Hook; 4]>::try_from(signals) else {
        unreachable!("four were made")
    };
    let built = match origin {
        ListenerOrigin::Fresh(listeners) => app::build(config, path, listeners).await,
        ListenerOrigin::Upgrade(channel) => app::upgrade_from(config, path, channel).await,
    };
    let bound = match built {
        Ok(bound) => bound,
        Err(error) => {
            tracing::error!("Baton does not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    tracing::info!(
        workers = bound.workers,
        socket = %bound.socket.display(),
        http = bound.http.map(tracing::field::display),
        "Baton listens on the addresses of all frontends"
    );
    let manager = Arc::new(ServiceManager::find());
    let log = Arc::downgrade(logging);
    bound.reloader().set_log(move |settings| {
        if let Some(log) = log.upgrade() {
            log.apply(settings);
        }
    });
    tokio::spawn(essential::task("service manager", tell_service_manager(bound.phase(), manager.clone())));
    if manager.is_there() {
        let open_listeners = bound.listeners_to_keep();
        tokio::spawn(essential::task(
            "listeners kept",
            keep_listeners(open_listeners, bound.config(), bound.phase(), manager.clone()),
        ));
    }
    if let Some(limit) = service::watchdog().filter(|_| manager.is_there()) {
        tokio::spawn(essential::task("keep-alive", keep_alive(bound.complaints(), limit, manager.clone())));
    }
    tokio::spawn(essential::task("reloads", reload_on(hangup, bound.reloader(), bound.upgrader())));
    tokio::spawn(essential::task("upgrades", upgrade_on(replace, bound.upgrader())));
    // In a fleet the code of a failover must not wait for a disk that hangs.
    if bound.config().borrow().peers.is_none() {
        let is_small = bound.config().borrow().process.workers == Some(1);
        tokio::spawn(essential::task("unused code", forget_unused_code(is_small)));
    }
    let mut stops = Stops { terminate, interrupt };
    tokio::select! {
        () = stops.next() => stop(bound, stops, manager).await,
        replacement = bound.replaced() => leave(bound, replacement, manager).await,
        () = serve_what_is_left(&bound) => bound.leave().await,
    }
    ExitCode::SUCCESS
}

/// Most of the code in memory served the start alone. An instance with one worker is there for its node alone, and takes as little as
/// it can afterwards too: each command, page and scrape brings code of its own.
async fn forget_unused_code(is_small: bool) {
    tokio::time::sleep(SETTLED).await;
    loop {
        if let Some(Err(error)) = essential::aside(text::forget_unused).await {
            tracing::debug!("unused code stays in memory: {error}");
        }
        if !is_small {
            return;
        }
        tokio::time::sleep(FORGET_EVERY).await;
    }
}

async fn stop(bound: Bound, mut stops: Stops, manager: Arc<ServiceManager>) {
    // During an upgrade it is undecided which process the stop is for.
    if let Succession::Done { pid } = bound.upgrader().settled().await {
        // A service manager stops all its processes itself.
        if !manager.is_there() {
            process::signal(pid, Signal::TERM);
        }
        let replacement = bound.replaced().await;
        return leave(bound, replacement, manager).await;
    }
    let shorten = bound.shorten_stop();
    let second_signals = async move {
        loop {
            stops.next().await;
            shorten();
        }
    };
    tokio::spawn(essential::task("signals", second_signals));
    bound.stop().await;
    tracing::info!("Baton has stopped");
}

/// A new process has everything: exit.
async fn leave(bound: Bound, replacement: Replacement, manager: Arc<ServiceManager>) {
    let Replacement { pid, told } = replacement;
    let known = tokio::task::spawn_blocking(move || manager.set_main_pid(pid));
    let _ = tokio::time::timeout(TELL_MAX, told).await;
    let _ = known.await;
    bound.leave().await;
    tracing::info!(pid, "the new process has everything from this process, which exits");
}

/// The upgrade to this process failed: returns when its last flow has ended.
async fn serve_what_is_left(bound: &Bound) {
    bound.dismissed().await;
    bound.gone().await;
    tracing::info!("the last flow of this process has ended");
}

struct Stops {
    terminate: Hook,
    interrupt: Hook,
}

impl Stops {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn reload_on(mut hangup: Hook, reloader: Arc<app::Reloader>, upgrader: Arc<app::Upgrader>) {
    while hangup.recv().await.is_some() {
        match upgrader.settled().await {
            Succession::Done { pid } => process::signal(pid, Signal::HUP),
            // The reloader logs and records the result.
            _ => drop(reloader.reload().await),
        }
    }
}

async fn upgrade_on(mut replace: Hook, upgrader: Arc<app::Upgrader>) {
    while replace.recv().await.is_some() {
        match upgrader.upgrade(Default::default()) {
            // The upgrader logs and records the result.
            Ok(upgrading) => drop(upgrading.outcome.await),
            Err(refused) => tracing::error!("{refused}"),
        }
    }
}

/// Gives the service manager all listening sockets, now and after each reload, and removes those that are closed.
async fn keep_listeners(
    open_listeners: impl Fn() -> std::io::Result<Vec<(VipAddr, OwnedFd)>> + Clone + Send + 'static,
    mut config: tokio::sync::watch::Receiver<Arc<Config>>,
    mut phase: crate::drain::DrainWatch,
    manager: Arc<ServiceManager>,
) {
    phase.reached(LifePhase::Serving).await;
    let mut kept = Vec::new();
    loop {
        config.borrow_and_update();
        let (open_listeners, manager) = (open_listeners.clone(), manager.clone());
        let before = std::mem::take(&mut kept);
        let stored = tokio::task::spawn_blocking(move || {
            let listeners = open_listeners()?;
            manager.store(&listeners);
            let now: Vec<_> = listeners.iter().map(|(address, _)| *address).collect();
            before.into_iter().filter(|address| !now.contains(address)).for_each(|address| manager.forget(address));
            Ok::<_, std::io::Error>(now)
        });
        match stored.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic())) {
            Ok(now) => kept = now,
            Err(error) => tracing::warn!(%error, "cannot give the listening sockets to the service manager"),
        }
        if config.changed().await.is_err() {
            return;
        }
    }
}

async fn tell_service_manager(mut phase: crate::drain::DrainWatch, manager: Arc<ServiceManager>) {
    phase.reached(LifePhase::Serving).await;
    manager.ready();
    phase.reached(LifePhase::Leaving).await;
    manager.stopping();
}

/// Sends keepalive messages to the service manager as long as all loops turn. That this task runs proves it for the
/// runtime's own threads.
async fn keep_alive(complaints: impl Fn() -> Vec<String>, limit: Duration, manager: Arc<ServiceManager>) {
    let mut ticks = tokio::time::interval(limit / KEEP_ALIVES);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut complained = false;
    loop {
        ticks.tick().await;
        let complaints = complaints();
        match complaints.is_empty() {
            true => manager.alive(),
            false if !complained => {
                tracing::error!(
                    "Baton stops its keepalive to the service manager's watchdog: {}",
                    complaints.join("; ")
                );
            }
            false => {}
        }
        complained = !complaints.is_empty();
    }
}

fn fail(what: &str, error: &std::io::Error) -> ExitCode {
    eprintln!("Baton does not start: it cannot {what}: {error}");
    ExitCode::FAILURE
}
