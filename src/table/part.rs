//! Handles of single parts of the table: a signature that takes them says what the callee may touch, and the callee reaches nothing else.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::backend::Registry;
use super::beats::LoopBeats;
use super::fleet::Fleet;
use super::flows::FlowTable;
use super::journal::Journal;
use super::late_resets::LateResets;
use super::offload::{Offload, OffloadCensus, StandbyQueues};
use super::orders::Orders;
use super::reachability::Reachability;
use super::worker::WorkerState;
use super::{FlowLogCensus, Table};

/// What can be handed out without the rest of the table.
pub trait TablePart {
    fn in_table(table: &Table) -> &Self;
}

/// One part of a table, which lives for as long as any of its parts is held. [`Table::part`] makes it.
///
/// The parts stay inside of the table. An `Arc` around each of them would be one more pointer that a worker follows on its way to
/// every flow; this handle is the table's own pointer, and only its type knows the part.
pub struct Part<P: TablePart + ?Sized> {
    table: Arc<Table>,
    part: PhantomData<fn(&P)>,
}

impl Table {
    /// A handle of one part; which one, the callee's signature says.
    pub fn part<P: TablePart + ?Sized>(self: &Arc<Self>) -> Part<P> {
        Part { table: self.clone(), part: PhantomData }
    }
}

impl<P: TablePart + ?Sized> Deref for Part<P> {
    type Target = P;

    fn deref(&self) -> &P {
        P::in_table(&self.table)
    }
}

impl<P: TablePart + ?Sized> Clone for Part<P> {
    fn clone(&self) -> Self {
        self.table.part()
    }
}

impl<P: TablePart + ?Sized> fmt::Debug for Part<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<P>())
    }
}

/// One line for each part: its type, and where it stands in a table.
macro_rules! parts {
    ($($part:ty => $table:ident . $($field:ident).+;)+) => {
        $(impl TablePart for $part {
            fn in_table($table: &Table) -> &Self {
                &$table.$($field).+
            }
        })+
    };
}

parts! {
    FlowTable => table.flows;
    Registry => table.registry;
    Orders => table.orders;
    Offload => table.offload;
    OffloadCensus => table.offload.census;
    StandbyQueues => table.offload.held;
    Fleet => table.fleet;
    Reachability => table.reachability;
    Journal => table.journal;
    LateResets => table.late_resets;
    LoopBeats => table.beats;
    FlowLogCensus => table.flow_log;
    [WorkerState] => table.workers;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_keeps_its_table_and_costs_one_pointer() {
        let table = Table::new(2).unwrap();
        let (workers, registry) = (table.part::<[WorkerState]>(), table.part::<Registry>());
        registry.frontend(&"apiserver".into());
        assert_eq!(table.registry.frontends().len(), 1, "it is the table's own, no copy");
        drop(table);
        assert_eq!((workers.len(), registry.clone().frontends().len()), (2, 1));
        assert_eq!(size_of_val(&workers), size_of::<Arc<Table>>());
    }
}
