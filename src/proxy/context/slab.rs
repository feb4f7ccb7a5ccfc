//! Where a worker's flows live: each at the same index as its entry in the table.

use super::WorkerContext;
use crate::model::ids::FlowId;
use crate::proxy::flow::Flow;
use crate::proxy::token::FlowRef;
use crate::table::flows::{FlowKey, FlowOrigin};

/// One worker's flows. A flow that the worker has in hand is taken out meanwhile.
#[derive(Debug, Default)]
pub(in crate::proxy) struct FlowSlab {
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    occupied: bool,
    /// `None` while the worker has it in hand, or another process.
    flow: Option<Box<Flow>>,
}

/// What was taken out of a place.
pub(in crate::proxy) enum Taken {
    Nothing,
    Flow(Box<Flow>),
    /// The place is a flow's, and nobody has it: it was lost with a panic.
    Lost(FlowKey),
}

impl FlowSlab {
    /// Enters a flow in the table and gives it a place, or returns `None` when the table is full. Put it there.
    pub(in crate::proxy) fn enter(&mut self, cx: &mut WorkerContext, origin: &FlowOrigin) -> Option<(FlowId, FlowRef)> {
        let (id, key) = cx.writer.insert(&cx.table.flows, origin)?;
        Some((id, self.occupy(key)))
    }

    /// As [`FlowSlab::enter`], for a flow that has an id already.
    pub(in crate::proxy) fn enter_known(
        &mut self,
        cx: &mut WorkerContext,
        id: FlowId,
        origin: &FlowOrigin,
    ) -> Option<FlowRef> {
        let key = cx.writer.insert_known(&cx.table.flows, id, origin)?;
        Some(self.occupy(key))
    }

    /// Frees a flow's place, here and in the table.
    pub(in crate::proxy) fn vacate(&mut self, cx: &mut WorkerContext, key: FlowKey) {
        let place = &mut self.places[key.index() as usize];
        place.generation = place.generation.wrapping_add(1);
        place.occupied = false;
        cx.writer.remove(&cx.table.flows, key);
    }

    /// Takes the flow at `at` in hand, if it still lives.
    pub(in crate::proxy) fn take(&mut self, at: FlowRef) -> Option<Box<Flow>> {
        self.place(at)?.flow.take()
    }

    /// Gives back a flow that was in hand, or that was just entered.
    pub(in crate::proxy) fn put(&mut self, flow: Box<Flow>) {
        let at = flow.at;
        self.places[at.index as usize].flow = Some(flow);
    }

    /// The flow at `at`, if it still lives and is not in hand.
    pub(in crate::proxy) fn get_mut(&mut self, at: FlowRef) -> Option<&mut Flow> {
        self.place(at)?.flow.as_deref_mut()
    }

    /// Whichever flow has its entry at `key` and is not in hand.
    pub(in crate::proxy) fn at_key(&self, key: FlowKey) -> Option<&Flow> {
        self.places.get(key.index() as usize)?.flow.as_deref()
    }

    /// False after a panic, which gives up the places of flows that are away.
    pub(in crate::proxy) fn keeps_place_of(&self, at: FlowRef) -> bool {
        let place = &self.places[at.index as usize];
        place.occupied && FlowRef::new(at.key(), place.generation) == at
    }

    /// Every flow that is not in hand.
    pub(in crate::proxy) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.places.iter().filter_map(|place| place.flow.as_deref())
    }

    pub(in crate::proxy) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.places.iter_mut().filter_map(|place| place.flow.as_deref_mut())
    }

    /// Places that there are, whether or not they are a flow's.
    pub(in crate::proxy) fn places(&self) -> usize {
        self.places.len()
    }

    /// Takes the flow in place `index` in hand if `wanted` says so.
    pub(in crate::proxy) fn take_if(&mut self, index: usize, wanted: impl Fn(&Flow) -> bool) -> Option<Box<Flow>> {
        self.places[index].flow.take_if(|flow| wanted(flow))
    }

    /// Takes whatever is in place `index`.
    pub(in crate::proxy) fn take_any(&mut self, index: usize) -> Taken {
        let place = &mut self.places[index];
        match place.flow.take() {
            Some(flow) => Taken::Flow(flow),
            None if place.occupied => Taken::Lost(FlowKey::new(index as u32)),
            None => Taken::Nothing,
        }
    }

    fn occupy(&mut self, key: FlowKey) -> FlowRef {
        let index = key.index() as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, Place::default);
        }
        self.places[index].occupied = true;
        FlowRef::new(key, self.places[index].generation)
    }

    fn place(&mut self, at: FlowRef) -> Option<&mut Place> {
        let place = self.places.get_mut(at.index as usize)?;
        (FlowRef::new(at.key(), place.generation) == at).then_some(place)
    }
}
