//! A worker's flows: each has the same index as its entry in the table.

use super::WorkerContext;
use crate::model::ids::FlowId;
use crate::proxy::flow::Flow;
use crate::proxy::token::FlowRef;
use crate::table::flows::{FlowKey, FlowOrigin};

/// One worker's flows. While the worker handles a flow, the flow is taken out.
#[derive(Debug, Default)]
pub(in crate::proxy) struct FlowSlab {
    places: Vec<Place>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    occupied: bool,
    /// `None` while the worker handles it, or another process has it.
    flow: Option<Box<Flow>>,
}

/// The content of a place.
pub(in crate::proxy) enum TakenFlow {
    Nothing,
    Flow(Box<Flow>),
    /// The place belongs to a flow that a panic has lost.
    Lost(FlowKey),
}

impl FlowSlab {
    /// Enters a flow in the table and reserves its place; `None`: the table is full. Then `put` the flow.
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

    /// Takes the flow at `at` out, if it still exists.
    pub(in crate::proxy) fn take(&mut self, at: FlowRef) -> Option<Box<Flow>> {
        self.place(at)?.flow.take()
    }

    /// Puts a flow back that was taken out or just entered.
    pub(in crate::proxy) fn put(&mut self, flow: Box<Flow>) {
        let at = flow.at;
        self.places[at.index as usize].flow = Some(flow);
    }

    /// The flow at `at`, if it still exists and is not taken out.
    pub(in crate::proxy) fn get_mut(&mut self, at: FlowRef) -> Option<&mut Flow> {
        self.place(at)?.flow.as_deref_mut()
    }

    /// The flow with its entry at `key`, if it is not taken out.
    pub(in crate::proxy) fn at_key(&self, key: FlowKey) -> Option<&Flow> {
        self.places.get(key.index() as usize)?.flow.as_deref()
    }

    /// False after a panic, which frees the places of flows that are away.
    pub(in crate::proxy) fn keeps_place_of(&self, at: FlowRef) -> bool {
        let place = &self.places[at.index as usize];
        place.occupied && FlowRef::new(at.key(), place.generation) == at
    }

    /// Every flow that is not taken out.
    pub(in crate::proxy) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.places.iter().filter_map(|place| place.flow.as_deref())
    }

    pub(in crate::proxy) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.places.iter_mut().filter_map(|place| place.flow.as_deref_mut())
    }

    /// Number of places, used or not.
    pub(in crate::proxy) fn places(&self) -> usize {
        self.places.len()
    }

    /// Takes the flow in place `index` out if `wanted` returns true.
    pub(in crate::proxy) fn take_if(&mut self, index: usize, wanted: impl Fn(&Flow) -> bool) -> Option<Box<Flow>> {
        self.places[index].flow.take_if(|flow| wanted(flow))
    }

    /// Takes the content of place `index`.
    pub(in crate::proxy) fn take_any(&mut self, index: usize) -> TakenFlow {
        let place = &mut self.places[index];
        match place.flow.take() {
            Some(flow) => TakenFlow::Flow(flow),
            None if place.occupied => TakenFlow::Lost(FlowKey::new(index as u32)),
            None => TakenFlow::Nothing,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::testing::{context, enter};

    #[test]
    fn an_event_of_an_earlier_flow_in_the_same_place_finds_nothing() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let earlier = enter(&mut cx, &mut flows);
        drop(flows.take(earlier));
        flows.vacate(&mut cx, earlier.key());
        let later = enter(&mut cx, &mut flows);
        assert_eq!((later.index, flows.places()), (earlier.index, 1), "the place is used again");
        assert!(flows.take(earlier).is_none());
        assert!(flows.get_mut(earlier).is_none());
        assert!(!flows.keeps_place_of(earlier));
        assert_eq!(flows.get_mut(later).map(|flow| flow.at), Some(later));
        assert_eq!(cx.table.flows.len(), 1);
    }

    #[test]
    fn a_flow_in_hand_is_out_of_its_place_and_one_that_is_lost_with_a_panic_leaves_it_occupied() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let at = enter(&mut cx, &mut flows);
        let flow = flows.take(at).unwrap();
        assert!(flows.take(at).is_none(), "an event for it while it is in hand is dropped");
        assert!(flows.at_key(at.key()).is_none());
        assert_eq!(flows.iter().count(), 0);
        assert!(flows.keeps_place_of(at));
        flows.put(flow);
        assert!(flows.take_if(0, |_| false).is_none());
        assert!(matches!(flows.take_any(0), TakenFlow::Flow(_)));
        assert!(matches!(flows.take_any(0), TakenFlow::Lost(key) if key == at.key()));
        flows.vacate(&mut cx, at.key());
        assert!(matches!(flows.take_any(0), TakenFlow::Nothing));
    }
}
