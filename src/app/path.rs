//! Opens the path, and takes it through start, upgrade and stop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::StartError;
use crate::config::{Config, Graduate, PathSettings};
use crate::path::graduator::Graduator;
use crate::path::program::{self, OpenError, Program};
use crate::path::settings;
use crate::sys::netdev;
use crate::table::Table;
use crate::table::graduation::PathView;
use crate::table::journal::What;

/// How often, and how many times, it is asked whether flows are still between two steps.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LOOKS: u32 = 500;

/// The path of this instance, if it has one.
#[derive(Debug)]
pub struct Path {
    table: Arc<Table>,
    graduator: Mutex<Option<Graduator>>,
}

impl Path {
    /// Opens the path as `config` wants it. Nothing graduates before [`Path::serve`].
    pub fn open(config: &Config, table: &Arc<Table>) -> Result<Self, StartError> {
        let wanted = config.path.graduate;
        let graduator = match start(&config.path, table) {
            Ok(graduator) => graduator,
            Err(error) if wanted == Graduate::Require => return Err(StartError::Path(error)),
            Err(error) => {
                tracing::warn!("flows stay proxied: {error}");
                shut(table, error.to_string());
                None
            }
        };
        if wanted == Graduate::Off {
            shut(table, "path.graduate is \"off\"".to_owned());
        }
        Ok(Self { table: table.clone(), graduator: Mutex::new(graduator) })
    }

    /// Lets flows graduate.
    pub fn serve(&self) {
        if self.with(|_| ()).is_some() && !self.table.graduation.is_open() {
            self.table.graduation.set_open(true);
            let interfaces = self.table.graduation.census.view().interfaces.clone();
            self.table.journal.record(What::PathOpened { interfaces });
        }
    }

    /// Gives the flows of an earlier process their places.
    pub fn adopt(&self) {
        self.with(|graduator| graduator.adopt());
    }

    /// Lets no more flows graduate: another process is about to take over.
    pub fn pause(&self) {
        self.table.graduation.set_open(false);
    }

    /// Leaves the map alone, once no flow is between two steps. It blocks for moments.
    pub fn freeze(&self) {
        self.pause();
        for _ in 0..LOOKS {
            if self.table.graduation.in_flight() == 0 {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.with(|graduator| graduator.freeze(true));
    }

    /// Goes on after [`Path::pause`] or [`Path::freeze`].
    pub fn resume(&self) {
        self.with(|graduator| graduator.freeze(false));
        if self.with(|_| ()).is_some() {
            self.table.graduation.set_open(true);
        }
    }

    /// Ends its thread; what is graduated goes on.
    pub fn stop(&self) {
        self.with(Graduator::stop);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Graduator) -> T) -> Option<T> {
        self.graduator.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }
}

/// `None`: nothing is to graduate, and nothing is left that has.
fn start(settings: &PathSettings, table: &Arc<Table>) -> Result<Option<Graduator>, OpenError> {
    let pinned = program::status(&settings.pins).ok().flatten();
    if settings.graduate == Graduate::Off && pinned.as_ref().is_none_or(|status| status.entries == Some(0)) {
        return Ok(None);
    }
    let mut interfaces: Vec<_> = settings.interfaces.iter().map(ToString::to_string).collect();
    // What an earlier process attached stays: its flows need it.
    for link in pinned.into_iter().flat_map(|status| status.links).filter(|_| !settings.interfaces.is_empty()) {
        if !interfaces.contains(&link.interface) && netdev::interface(&link.interface).is_ok() {
            interfaces.push(link.interface);
        }
    }
    let directory = settings.pins.clone();
    let program = Program::open(&settings::PathSettings { directory, interfaces, flows_max: settings.max_flows })?;
    let on_demand = settings.interfaces.is_empty();
    Graduator::start(program, table.clone(), on_demand).map(Some).map_err(OpenError::Pinned)
}

fn shut(table: &Table, why: String) {
    let census = &table.graduation.census;
    let view = PathView { why_not: Some(why.clone()), ..(*census.view()).clone() };
    census.show(view);
    table.journal.record(What::PathShut { why });
}
