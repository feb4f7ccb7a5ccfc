//! A read-only view of the map of flows, for other threads.

use std::io;

use super::Program;
use crate::model::ends::Key;
use crate::offload::entry::{Action, ENTRY_SIZE, Entry};
use crate::ports::offload;
use crate::sys::bpf::Map;

/// A second handle on the map of flows.
#[derive(Debug)]
pub(crate) struct FlowMap(Map);

impl Program {
    pub(crate) fn flow_map(&self) -> io::Result<FlowMap> {
        self.flows.try_clone().map(FlowMap)
    }
}

impl offload::OffloadedKeys for FlowMap {
    fn carries(&self, key: &Key) -> io::Result<bool> {
        let mut raw = [0; ENTRY_SIZE];
        let found = self.0.look_up(&key.encode(), &mut raw)?;
        Ok(found && Entry::decode(&raw).action == Action::Splice)
    }
}
