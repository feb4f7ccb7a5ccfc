//! Finds backends with more than their share of flows, and how many should move.

pub(crate) mod outage;

/// One backend as the plan sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackendLoad {
    /// Backends that are not ready neither give nor take: their flows end by themselves or by other rules.
    pub ready: bool,
    /// Its weight now, times [`balance::WHOLE_SHARE`](crate::model::balance::WHOLE_SHARE): slow start makes it smaller. A
    /// backend with 0 takes no flows, so it neither gives nor takes here.
    pub weight: u32,
    /// Its weight once slow start is over, in the same unit.
    pub whole_weight: u32,
    pub flows: u32,
    pub max_connections: Option<u32>,
}

/// Flows that a backend should give away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Index of the backend.
    pub backend: usize,
    pub flows: u32,
}

/// The flows to move so that no ready backend has more than `tolerance_percent` above its share of all flows on ready
/// backends. Shares are by weight, and never above `max_connections`: the others get the rest of a full backend's
/// share. A share is rounded up, so that one flow among three backends stays. `returning` flows have just been moved, and
/// their clients have not connected again yet. What a backend cannot take yet, because it returns slowly, stays with the others; but what
/// it has is not too much while it is no more than its whole share.
pub(crate) fn plan(loads: &[BackendLoad], returning: u32, tolerance_percent: u32) -> Vec<Excess> {
    let takers = loads.iter().filter(|load| takes_part(load)).count();
    if takers < 2 {
        return Vec::new();
    }
    let now = limits(loads, returning, tolerance_percent, |load| load.weight);
    let whole = limits(loads, returning, tolerance_percent, |load| load.whole_weight);
    let excess = |backend: usize| {
        let limit = now[backend]?.max(whole[backend]?);
        let flows = u128::from(loads[backend].flows).saturating_sub(limit) as u32;
        (flows > 0).then_some(Excess { backend, flows })
    };
    (0..loads.len()).filter_map(excess).collect()
}

/// The number of flows up to which each backend has not too many, by these weights. `None`: it gives none.
fn limits(
    loads: &[BackendLoad],
    returning: u32,
    tolerance_percent: u32,
    weight: impl Fn(&BackendLoad) -> u32,
) -> Vec<Option<u128>> {
    let mut sharers: Vec<usize> = (0..loads.len()).filter(|index| takes_part(&loads[*index])).collect();
    let mut flows: u128 = sharers.iter().map(|index| u128::from(loads[*index].flows)).sum();
    flows += u128::from(returning);
    let weight_of = |index: usize| u128::from(weight(&loads[index]));
    let mut weights: u128 = sharers.iter().map(|index| weight_of(*index)).sum();
    // A backend that cannot hold its share drops out with all that it can hold; that raises the shares of the others.
    let capped = |index: &usize, flows: u128, weights: u128| {
        loads[*index].max_connections.is_some_and(|max| flows * weight_of(*index) > u128::from(max) * weights)
    };
    while let Some(place) = sharers.iter().position(|index| capped(index, flows, weights)) {
        let index = sharers.remove(place);
        flows -= u128::from(loads[index].max_connections.unwrap_or(0)).min(flows);
        weights -= weight_of(index);
    }
    let mut limits = vec![None; loads.len()];
    for index in sharers {
        let share = flows * weight_of(index);
        let tolerated = share * (100 + u128::from(tolerance_percent)) / (weights * 100);
        limits[index] = Some(tolerated.max(share.div_ceil(weights)));
    }
    limits
}

/// The number of flows that may move over time: `per_minute`, evenly; unused moves do not add up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// The rest below one flow, in billionths of a flow times a minute.
    rest: u64,
    at_ns: u64,
}

const MINUTE_NS: u64 = 60_000_000_000;

impl Allowance {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { rest: 0, at_ns: now_ns }
    }

    /// The number of flows that may move now, for the time since the last call.
    pub(crate) fn take(&mut self, per_minute: u32, now_ns: u64) -> u32 {
        let passed_ns = now_ns.saturating_sub(self.at_ns).min(MINUTE_NS);
        self.at_ns = now_ns;
        let earned = self.rest + passed_ns * u64::from(per_minute);
        self.rest = earned % MINUTE_NS;
        (earned / MINUTE_NS) as u32
    }
}

fn takes_part(load: &BackendLoad) -> bool {
    load.ready && load.weight > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(flows: u32) -> BackendLoad {
        BackendLoad { ready: true, weight: 1, whole_weight: 1, flows, max_connections: None }
    }

    fn moves(loads: &[BackendLoad], tolerance_percent: u32) -> Vec<(usize, u32)> {
        plan(loads, 0, tolerance_percent).iter().map(|excess| (excess.backend, excess.flows)).collect()
    }

    #[test]
    fn a_backend_that_returned_empty_is_filled_from_the_others() {
        assert_eq!(moves(&[ready(1500), ready(1500), ready(0)], 10), [(0, 400), (1, 400)]);
        assert_eq!(moves(&[ready(1500), ready(1500), ready(0)], 0), [(0, 500), (1, 500)]);
    }

    #[test]
    fn within_tolerance_nothing_moves() {
        assert_eq!(moves(&[ready(1100), ready(1000), ready(900)], 10), []);
        assert_eq!(moves(&[ready(1101), ready(1000), ready(899)], 10), [(0, 1)]);
        assert_eq!(moves(&[ready(1), ready(0), ready(0)], 0), []);
    }

    #[test]
    fn shares_follow_weights() {
        let heavy = BackendLoad { weight: 3, whole_weight: 3, ..ready(300) };
        assert_eq!(moves(&[heavy, ready(100)], 0), []);
        assert_eq!(moves(&[heavy, ready(300)], 0), [(1, 150)]);
    }

    /// Regression: `baton rebalance` reset flows of a backend that had kept its own through a drain and returned slowly.
    #[test]
    fn a_backend_that_returns_slowly_takes_little_and_gives_nothing_of_its_share() {
        let slow = |flows| BackendLoad { weight: 14, whole_weight: 100, ..ready(flows) };
        let whole = |flows| BackendLoad { weight: 100, whole_weight: 100, ..ready(flows) };
        assert_eq!(moves(&[whole(10), whole(10), slow(10)], 0), []);
        // Above its whole share it gives.
        assert_eq!(moves(&[whole(7), whole(7), slow(16)], 0), [(2, 6)]);
        // It takes no more than its share of now: one of the fifteen is to move.
        assert_eq!(moves(&[whole(15), whole(14), slow(1)], 0), []);
        assert_eq!(moves(&[whole(16), whole(14), slow(0)], 0), [(0, 1)]);
    }

    #[test]
    fn one_ready_backend_has_nowhere_to_move_to() {
        let away = BackendLoad { ready: false, ..ready(0) };
        let idle = BackendLoad { weight: 0, whole_weight: 0, ..ready(0) };
        assert_eq!(moves(&[ready(1000), away, idle], 10), []);
    }

    #[test]
    fn a_full_backend_is_not_asked_to_take_more() {
        let full = BackendLoad { max_connections: Some(50), ..ready(50) };
        assert_eq!(moves(&[ready(475), ready(475), full], 0), []);
        assert_eq!(moves(&[ready(950), ready(0), full], 0), [(0, 475)]);
    }

    #[test]
    fn flows_whose_clients_are_about_to_return_are_counted() {
        // Six of twenty have just been closed for the empty one: their clients are what it lacks.
        assert_eq!(plan(&[ready(7), ready(7), ready(0)], 6, 0), []);
        assert_eq!(plan(&[ready(7), ready(7), ready(0)], 0, 0).len(), 2);
    }

    #[test]
    fn an_allowance_is_even_and_does_not_pile_up() {
        let mut allowance = Allowance::new(0);
        let step_ns = 1_000_000_000;
        let taken: Vec<_> = (1..=12).map(|second| allowance.take(10, second * step_ns)).collect();
        assert_eq!(taken, [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        let hours_ns = 3600 * step_ns * 5;
        assert_eq!(allowance.take(10, hours_ns), 10);
        assert_eq!(allowance.take(600, hours_ns + step_ns), 10);
    }

    proptest! {
        /// Moving helps and ends: a backend that gives is over its share, the others together can take the flows within
        /// their limits, and after the moves nothing is left to do.
        #[test]
        fn a_plan_that_was_carried_out_leaves_nothing_to_do(
            raw in proptest::collection::vec((any::<bool>(), 0u32..5, 0u32..10_000, proptest::option::of(0u32..10_000)), 0..8),
            tolerance_percent in 0u32..50,
        ) {
            let mut loads: Vec<_> = raw.into_iter().map(|(ready, weight, flows, max)| {
                BackendLoad { ready, weight, whole_weight: weight, flows, max_connections: max.map(|max| max.max(flows)) }
            }).collect();
            let mut homeless = 0;
            for excess in plan(&loads, 0, tolerance_percent) {
                prop_assert!(takes_part(&loads[excess.backend]));
                loads[excess.backend].flows -= excess.flows;
                homeless += excess.flows;
            }
            // Each moved flow goes to the least loaded backend with room, as with least_conn.
            for _ in 0..homeless {
                let room = |load: &&mut BackendLoad| takes_part(load) && load.max_connections.is_none_or(|max| load.flows < max);
                let per_weight = |load: &&mut BackendLoad| u64::from(load.flows + 1) * 60 / u64::from(load.weight);
                let new_process = loads.iter_mut().filter(room).min_by_key(per_weight);
                prop_assert!(new_process.is_some(), "a moved flow found no room");
                new_process.unwrap().flows += 1;
            }
            prop_assert_eq!(plan(&loads, 0, tolerance_percent), []);
        }
    }
}
