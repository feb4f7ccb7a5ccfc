//! The admin servers while they run. The runner of the instance owns them; a reload moves them and an upgrade passes
//! their sockets on. Both need this handle, and neither owns the servers.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::admin::doors::{Doors, OpenDoorError, Prepared, SharedListener};
use crate::config;

/// Empty before the instance serves, and after an upgrade has given the listeners to another process.
#[derive(Debug, Default)]
pub(crate) struct OpenDoors(Mutex<Option<Doors>>);

impl OpenDoors {
    pub(crate) fn set(&self, doors: Doors) {
        *self.doors() = Some(doors);
    }

    pub(crate) fn take(&self) -> Option<Doors> {
        self.doors().take()
    }

    /// Their listening sockets, for another process.
    pub(crate) fn share(&self) -> io::Result<Vec<SharedListener>> {
        self.doors().as_ref().map_or(Ok(Vec::new()), Doors::share)
    }

    /// See [`Doors::set_shut`].
    pub(crate) fn set_shut(&self, shut: bool) -> io::Result<()> {
        self.doors().as_mut().map_or(Ok(()), |doors| doors.set_shut(shut))
    }

    /// See [`Doors::prepare`].
    pub(crate) fn prepare(&self, config: &config::Admin) -> Result<Option<Prepared>, OpenDoorError> {
        self.doors().as_ref().map(|doors| doors.prepare(config)).transpose()
    }

    /// See [`Doors::change`].
    pub(crate) fn change(&self, prepared: Prepared) -> Result<(), OpenDoorError> {
        self.doors().as_mut().map_or(Ok(()), |doors| doors.change(prepared))
    }

    fn doors(&self) -> MutexGuard<'_, Option<Doors>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
