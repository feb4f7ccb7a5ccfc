//! Flows that go on: those of the running instance, or of the moment at which a bundle was made.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::bundle::{FLOWS, LivingFlows};
use super::output::CliError;
use super::recording::{self, RecordingFrom};
use super::socket;
use crate::admin::protocol::{Command, FlowFilter, FlowRow, Listed};
use crate::admin::status::PeersReport;
use crate::model::fleet::InstanceName;
use crate::sys::clock::unix_ms;

/// Where a command looks for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct LivingPlace<'a> {
    pub from: &'a RecordingFrom,
    pub socket: Option<&'a Path>,
    pub config: Option<&'a Path>,
}

/// Flows at `at_ms`, from which their ages count back; ms since 1970.
#[derive(Debug)]
pub(super) struct LivingRows {
    pub rows: Vec<FlowRow>,
    pub at_ms: u64,
    is_of_bundle: bool,
}

impl LivingPlace<'_> {
    /// The flows that `is_wanted` names; `filter` lets the instance leave others out. `None`: no instance answers, or what is named has no list.
    pub(super) fn flows(
        self,
        filter: FlowFilter,
        is_wanted: impl Fn(&FlowRow) -> bool,
    ) -> Result<Option<LivingRows>, CliError> {
        if self.from.is_named() {
            let part = self.from.part::<LivingFlows>(FLOWS)?;
            return Ok(part.map(|(part, at_ms)| {
                let rows = part.flows.into_iter().filter(is_wanted).collect();
                LivingRows { rows, at_ms, is_of_bundle: true }
            }));
        }
        Ok(self.ask(filter, is_wanted))
    }

    fn ask(self, filter: FlowFilter, is_wanted: impl Fn(&FlowRow) -> bool) -> Option<LivingRows> {
        let at_ms = unix_ms();
        let mut rows = Vec::new();
        let take = |row: FlowRow| {
            rows.extend(is_wanted(&row).then_some(row));
            ControlFlow::Continue(())
        };
        socket::connect_briefly(&self.path()?).ok()?.list::<FlowRow, Listed>(&Command::Flows(filter), take).ok()?;
        Some(LivingRows { rows, at_ms, is_of_bundle: false })
    }

    /// The peer of the running instance that `is_it` names.
    pub(super) fn peer(self, is_it: impl Fn(&InstanceName, Option<u8>) -> bool) -> Option<InstanceName> {
        let mut client = socket::connect_briefly(&self.path().filter(|_| !self.from.is_named())?).ok()?;
        let report: PeersReport = client.ask(&Command::Peers {}).ok()?;
        report.peers.into_iter().find(|peer| is_it(&peer.name, peer.slot)).map(|peer| peer.name)
    }

    fn path(self) -> Option<PathBuf> {
        self.socket.map_or_else(|| socket::find(self.config), |path| Ok(path.to_owned())).ok()
    }
}

impl LivingRows {
    /// Says at the end of a sentence of what time it is: `, as of 2026-11-25 03:12:07Z, when the bundle was made`.
    pub(super) fn as_of(&self) -> String {
        match self.is_of_bundle {
            true => format!(", as of {}, when the bundle was made", recording::shown(self.at_ms)),
            false => String::new(),
        }
    }
}
