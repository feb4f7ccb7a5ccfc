//! Opens the offload engine, and takes it through start, upgrade and stop.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::StartError;
use crate::config::{Config, OffloadMode, OffloadSettings};
use crate::offload::engine::{EngineParts, OffloadEngine};
use crate::offload::pins_lock::{PinsLock, PinsLockError};
use crate::offload::program::{self, Attachment, InstalledProgram, LAYOUT, OpenError, Program};
use crate::offload::settings;
use crate::sys::broker::{Broker, BrokerRequest, broker};
use crate::sys::clock::now_ns;
use crate::sys::{bpffs, netdev};
use crate::table::journal::What;
use crate::table::offload::{OFF, OffloadView};
use crate::upgrade::message::ProgramReader;

/// How often, and how many times, the code checks whether flows are still between two steps.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LOOKS: u32 = 500;

/// A process that was killed has its lock until the kernel has closed its descriptors: limit for that, and the interval between two attempts.
const CLOSED_WITHIN_NS: u64 = 3_000_000_000;
const TRY_EVERY: Duration = Duration::from_millis(20);

/// The offload engine of this instance, if it has one.
#[derive(Debug)]
pub(super) struct InstanceOffload {
    table: EngineParts,
    pins: PathBuf,
    engine: Mutex<Option<OffloadEngine>>,
    /// Held as long as this process manages the pinned objects.
    lock: Mutex<Option<PinsLock>>,
    /// Why no process watches an earlier process's offloaded flows, if that is so.
    unwatched: Option<String>,
}

/// The last user of the pinned objects.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeftBy {
    /// A process that has ended, or none.
    Dead,
    /// The process that this one follows; it still manages the pinned objects, with so many flows.
    Living { offloaded: u64 },
}

/// Why there is no offload engine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoOffload {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("another instance has its flows in {path}; give this one another folder in offload.pins", path = .0.display())]
    InUse(PathBuf),
    #[error("the lock of {path}: {source}", path = .path.display())]
    Lock { path: PathBuf, source: io::Error },
}

impl InstanceOffload {
    /// Opens the offload engine according to `config`. It offloads nothing before [`InstanceOffload::serve`]. If this process
    /// follows another one, it must be able to recover that one's flows: no other process would watch them.
    pub(super) fn open(config: &Config, table: EngineParts, left_by: LeftBy) -> Result<Self, StartError> {
        let wanted = config.offload.mode;
        let pins = config.offload.pins.clone();
        let mut lock = None;
        let (started, to_recover) = match left_by {
            LeftBy::Living { offloaded } => (start(&config.offload, &table), offloaded > 0),
            LeftBy::Dead => (start_locked(&config.offload, &table, &mut lock), false),
        };
        let mut unwatched = None;
        let engine = match started {
            Ok(engine) => engine,
            Err(error) if wanted == OffloadMode::Require || to_recover => return Err(StartError::Offload(error)),
            Err(error) => {
                unwatched = left_alone(&pins, &error);
                shut(&table, error.to_string(), unwatched.clone());
                None
            }
        };
        if engine.is_none() {
            // It uses no pins, and `baton offload remove` may remove what stands in the way.
            lock = None;
        }
        if wanted == OffloadMode::Off {
            shut_off(&table);
        }
        Ok(Self { table, pins, engine: Mutex::new(engine), lock: Mutex::new(lock), unwatched })
    }

    /// Why this process should be restarted once the obstacle is removed.
    pub(super) fn unwatched(&self) -> Option<String> {
        self.unwatched.clone()
    }

    /// Number of flows that are offloaded here, or are about to be.
    pub(super) fn offloaded(&self) -> u64 {
        self.table.census.without_sockets() as u64 + u64::from(self.table.offload.in_flight())
    }

    /// Why a process with this `reader` cannot recover the flows offloaded here; `None`: it can.
    pub(super) fn obstacle(&self, reader: Option<&ProgramReader>) -> Option<String> {
        let offloaded = self.offloaded();
        let why = match reader {
            _ if offloaded == 0 => return None,
            None => "does not know offloaded flows".to_owned(),
            Some(ProgramReader { layout, .. }) if *layout != LAYOUT => {
                format!("reads flows in layout {layout}, and these have layout {LAYOUT}")
            }
            Some(ProgramReader { pins: Some(pins), .. }) if *pins != self.pins => {
                format!("looks for flows in {}, and these are in {}", pins.display(), self.pins.display())
            }
            Some(_) => return None,
        };
        Some(format!(
            "{offloaded} flows are offloaded, and the new binary {why}; stop Baton, and `baton offload remove` resets them"
        ))
    }

    /// Takes the lock of the process before this one, once that process has ended. Call it now and then.
    pub(super) fn keep_lock(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() && self.with(|_| ()).is_some() {
            *lock = own(&self.pins).ok();
        }
    }

    /// Lets flows be offloaded.
    pub(super) fn serve(&self) {
        if self.with(|_| ()).is_some() && !self.table.offload.is_open() {
            self.table.offload.set_open(true);
            let interfaces = self.table.census.view().interfaces.clone();
            self.table.journal.record(What::OffloadOpened { interfaces });
        }
    }

    /// Whether this process can offload flows.
    pub(super) fn is_there(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// A reload has changed whether flows are offloaded. Flows that already are stay so.
    pub(super) fn follow(&self, before: OffloadMode, now: OffloadMode) {
        match (before, now) {
            (OffloadMode::Auto | OffloadMode::Require, OffloadMode::Off) if self.is_there() => shut_off(&self.table),
            (OffloadMode::Off, OffloadMode::Auto | OffloadMode::Require) if self.is_there() => {
                self.table.census.set_off(false);
                self.serve();
            }
            _ => {}
        }
    }

    /// Gives an earlier process's flows to workers.
    pub(super) fn recover(&self) {
        if self.with(|engine| engine.recover()).is_none() {
            self.table.fleet.set_whole();
        }
    }

    /// Offloads no more flows: an upgrade to another process is under way.
    pub(super) fn pause(&self) {
        self.table.offload.set_open(false);
    }

    /// Changes the map no more, once no flow is between two steps. It blocks for moments.
    pub(super) fn freeze(&self) {
        self.pause();
        for _ in 0..LOOKS {
            if self.table.offload.in_flight() == 0 {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // What the failover has decided must be in the map: the next process finds it there.
        for _ in 0..LOOKS {
            if !self.table.offload.standby.serves() || self.table.offload.standby.waiting() == 0 {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.with(|engine| engine.freeze(true));
    }

    /// Continues after [`InstanceOffload::pause`] or [`InstanceOffload::freeze`].
    pub(super) fn resume(&self) {
        self.with(|engine| engine.freeze(false));
        if self.with(|_| ()).is_some() {
            self.table.offload.set_open(true);
        }
    }

    /// Ends the engine's thread; offloaded flows go on.
    pub(super) fn stop(&self) {
        self.with(OffloadEngine::stop);
    }

    fn with<T>(&self, act: impl FnOnce(&mut OffloadEngine) -> T) -> Option<T> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }
}

/// `None`: flows shall not be offloaded, and no offloaded ones are left.
fn start(settings: &OffloadSettings, table: &EngineParts) -> Result<Option<OffloadEngine>, NoOffload> {
    let installed = match broker() {
        Some(broker) => installed_by(broker)?,
        None => install(settings)?,
    };
    let Some(installed) = installed else { return Ok(None) };
    let program = Program::of(&settings.pins, installed)?;
    tracing::info!("the BPF program of offloaded flows is attached by {}", program.attachment());
    let on_demand = settings.interfaces.is_empty();
    Ok(Some(OffloadEngine::start(program, table.clone(), on_demand)?))
}

fn installed_by(broker: &Broker) -> Result<Option<InstalledProgram>, OpenError> {
    let (facts, tools) = broker.ask(&BrokerRequest::InstallProgram, &[]).map_err(OpenError::Broker)?;
    let Some(facts) = facts else { return Ok(None) };
    let tools = tools.try_into().map_err(|_| OpenError::Broker(io::ErrorKind::InvalidData.into()))?;
    Ok(Some(InstalledProgram { facts, tools }))
}

/// Loads or finds the program, as [`start`] needs it. Takes the rights to do so.
pub(super) fn install(settings: &OffloadSettings) -> Result<Option<InstalledProgram>, NoOffload> {
    let (pinned, unread) = match program::status(&settings.pins) {
        Ok(pinned) => (pinned, None),
        Err(error) => (None, Some(error)),
    };
    // A map that cannot be read may hold flows.
    let may_have_flows = match &pinned {
        Some(status) => status.entries != Some(0),
        None => unread.is_some() && settings.pins.exists(),
    };
    if settings.mode == OffloadMode::Off && !may_have_flows {
        return Ok(None);
    }
    let mut interfaces: Vec<_> = settings.interfaces.iter().map(ToString::to_string).collect();
    // Interfaces with an earlier process's program stay attached: its flows need them.
    for link in pinned.into_iter().flat_map(|status| status.links).filter(|_| !settings.interfaces.is_empty()) {
        if !interfaces.contains(&link.interface) && netdev::interface(&link.interface).is_ok() {
            interfaces.push(link.interface);
        }
    }
    let directory = settings.pins.clone();
    let program = settings::OffloadSettings { directory, interfaces, flows_max: settings.max_flows };
    let installed = InstalledProgram::install(&program, Attachment::of_kernel())?;
    if let Some(error) = unread.filter(|_| !settings.interfaces.is_empty()) {
        // The pins can be read by now, but the attached interfaces beyond those of the settings are not known.
        return Err(OpenError::Pinned(error).into());
    }
    Ok(Some(installed))
}

/// As [`start`], as the only instance with these pins.
fn start_locked(
    settings: &OffloadSettings,
    table: &EngineParts,
    lock: &mut Option<PinsLock>,
) -> Result<Option<OffloadEngine>, NoOffload> {
    if settings.mode == OffloadMode::Off && !bpffs::reach(&settings.pins).exists() {
        return Ok(None);
    }
    *lock = Some(own_when_free(&settings.pins)?);
    start(settings, table)
}

fn own(pins: &std::path::Path) -> Result<PinsLock, NoOffload> {
    PinsLock::take(pins).map_err(|error| match error {
        PinsLockError::InUse => NoOffload::InUse(pins.to_owned()),
        PinsLockError::Io(source) => NoOffload::Lock { path: PinsLock::path(pins), source },
    })
}

/// As [`own`], and waits for a process that is ending.
fn own_when_free(pins: &std::path::Path) -> Result<PinsLock, NoOffload> {
    let mut until_ns = None;
    loop {
        match own(pins) {
            Err(NoOffload::InUse(_)) if until_ns.is_none_or(|until_ns| now_ns() < until_ns) => {
                until_ns.get_or_insert_with(|| {
                    tracing::info!(
                        "another process still has the flows in {}: Baton waits for its end",
                        pins.display()
                    );
                    now_ns() + CLOSED_WITHIN_NS
                });
                std::thread::sleep(TRY_EVERY);
            }
            owned => return owned,
        }
    }
}

/// The fault if this process cannot watch the flows in `pins`: their clients wait on backends that die. `None`: there
/// are no flows, or another instance has them.
fn left_alone(pins: &std::path::Path, error: &NoOffload) -> Option<String> {
    if matches!(error, NoOffload::InUse(_)) {
        return None;
    }
    let entries = match program::status(pins) {
        Ok(status) => status?.entries,
        Err(_) if bpffs::reach(pins).exists() => None,
        Err(_) => return None,
    };
    if entries == Some(0) {
        return None;
    }
    let flows = entries.map_or("flows".to_owned(), |entries| format!("{} flows", entries / 2));
    Some(format!("no process watches {flows} that an earlier process offloaded: {error}"))
}

fn shut_off(table: &EngineParts) {
    table.census.set_off(true);
    table.journal.record(What::OffloadShut { why: OFF.to_owned(), unwatched: false });
}

fn shut(table: &EngineParts, why: String, unwatched: Option<String>) {
    let census = &table.census;
    let view = OffloadView { why_not: Some(why.clone()), ..(*census.view()).clone() };
    census.show(view);
    let (why, unwatched) = (unwatched.clone().unwrap_or(why), unwatched.is_some());
    table.journal.record(What::OffloadShut { why, unwatched });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_instance_does_not_take_the_first_ones_flows_for_a_dead_ones() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let pins = PathBuf::from(format!("/nowhere/baton-test-{}", std::process::id()));
        let first = own(&pins).unwrap();
        assert!(matches!(own(&pins), Err(NoOffload::InUse(_))));
        drop(first);
        own(&pins).unwrap();
        std::fs::remove_file(PinsLock::path(&pins)).unwrap();
    }

    #[test]
    fn an_instance_waits_for_a_process_that_ends_and_not_for_one_that_goes_on() {
        if rustix::process::geteuid().as_raw() != 0 {
            return;
        }
        let pins = PathBuf::from(format!("/nowhere/baton-wait-{}", std::process::id()));
        let first = own(&pins).unwrap();
        let began_ns = now_ns();
        assert!(matches!(own_when_free(&pins), Err(NoOffload::InUse(_))));
        assert!(now_ns() - began_ns >= CLOSED_WITHIN_NS);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| own_when_free(&pins).map(drop));
            drop(first);
            waits.join().unwrap().unwrap();
        });
        std::fs::remove_file(PinsLock::path(&pins)).unwrap();
    }

    #[test]
    fn flows_of_an_earlier_process_that_cannot_be_read_are_not_passed_over() {
        let pins = PathBuf::from(format!("/sys/fs/bpf/baton-unread-{}", std::process::id()));
        let error = NoOffload::Open(OpenError::Begin(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(left_alone(&pins, &error), None, "there is nothing");
        // No map: its content cannot be read. Only root may make it, on a BPF file system.
        if std::fs::create_dir_all(pins.join("meta")).is_err() {
            return;
        }
        let (status, said) = (program::status(&pins), left_alone(&pins, &error));
        let _ = std::fs::remove_dir(pins.join("meta")).and_then(|()| std::fs::remove_dir(&pins));
        assert!(status.is_err(), "{status:?}");
        assert!(said.is_some_and(|said| said.contains("no process watches")));
    }
}
