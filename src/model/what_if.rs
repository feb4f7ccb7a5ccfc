//! What would happen to the flows of an instance, if an instance or a backend died or the apiservers restarted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What happens to the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happening {
    Dies,
    Restarts,
}

/// The fate of flows after a fault. A flow has one; but of restarts one after another, `reset` counts the connections that its client makes
/// meanwhile as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFates {
    /// They go on where they are.
    pub kept: u64,
    /// They go on without an interruption that a client must notice: at another instance, or, if they are being
    /// connected, at another backend.
    pub moved: u64,
    /// Their clients get RST, or FIN if the backend's kernel closes the connection.
    pub reset: u64,
    /// Nobody resets them: their clients wait until they give up by themselves.
    pub waiting: u64,
}

/// Flows of an instance, by what decides their fate when that instance dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnFlows {
    /// Offloaded, with a backend on another host.
    pub offloaded: u64,
    /// Offloaded, with a backend on this host.
    pub offloaded_to_own: u64,
    /// All others.
    pub with_sockets: u64,
}

/// Flows of an instance towards backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendFlows {
    /// Both legs are established.
    pub served: u64,
    /// Being connected.
    pub connecting: u64,
}

impl FlowFates {
    /// A process ends, and its host lives: the kernel closes the sockets, and carries offloaded flows on until another instance has the VIP.
    /// `heir`: whether the instance that takes the VIP knows its flows; `None`: no instance takes it. `stays`: the BPF program does. Otherwise no
    /// socket answers to their packets, and the kernel answers the next one with RST (RFC 9293 section 3.5.2).
    pub(crate) fn of_killed_instance(flows: OwnFlows, heir: Option<bool>, stays: bool) -> Self {
        let offloaded = flows.offloaded + flows.offloaded_to_own;
        match heir {
            _ if !stays => Self { reset: flows.with_sockets + offloaded, ..Self::default() },
            None => Self { kept: offloaded, reset: flows.with_sockets, ..Self::default() },
            Some(true) => Self::of_lost_host(flows, true),
            Some(false) => Self { reset: flows.with_sockets, waiting: offloaded, ..Self::default() },
        }
    }

    /// A host is gone. `heir`: whether another instance knows its flows.
    pub(crate) fn of_lost_host(flows: OwnFlows, heir: bool) -> Self {
        let lost = flows.offloaded_to_own + flows.with_sockets;
        match heir {
            true => Self { moved: flows.offloaded, reset: lost, ..Self::default() },
            false => Self { waiting: flows.offloaded + lost, ..Self::default() },
        }
    }

    /// A backend is gone. `others`: the other flows of the instance; `spare`: whether another backend takes new flows.
    pub(crate) fn of_lost_backend(flows: BackendFlows, others: u64, spare: bool) -> Self {
        let moved = if spare { flows.connecting } else { 0 };
        Self { kept: others, moved, reset: flows.served + flows.connecting - moved, waiting: 0 }
    }
}

/// How many connections end while backends restart one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartsInTurn {
    /// The number that no order of the restarts and no choice of new backends exceeds.
    pub at_most: u64,
    /// If they restart in the given order, and the clients of each connect again in even shares to the others.
    pub about: u64,
}

/// `flows`: of each backend. Each restarts once, and a client whose connection ended makes one other. So each restart ends a connection of a
/// client at most once, but the first ones end only those that are there already: at worst the fullest backend is the first, and its clients
/// go each time to the one that restarts next. `wander`: flows that no restart ended move as well, so that each restart may end all.
pub(crate) fn restarted_in_turn(flows: &[u64], wander: bool) -> RestartsInTurn {
    let mut there: Vec<f64> = flows.iter().map(|flows| *flows as f64).collect();
    let mut ended = 0.0;
    for turn in 0..there.len() {
        let of_it = std::mem::take(&mut there[turn]);
        ended += of_it;
        let share = of_it / (flows.len() as f64 - 1.0).max(1.0);
        there.iter_mut().enumerate().filter(|(other, _)| *other != turn).for_each(|(_, flows)| *flows += share);
    }
    let mut fullest_first = flows.to_vec();
    fullest_first.sort_unstable_by_key(|flows| std::cmp::Reverse(*flows));
    let times = (1..=flows.len() as u64).rev();
    let at_most = match wander {
        true => flows.iter().sum::<u64>() * flows.len() as u64,
        false => fullest_first.iter().zip(times).map(|(flows, times)| flows * times).sum(),
    };
    RestartsInTurn { at_most, about: ended.round() as u64 }
}

/// The spellings of each.
const SPELLINGS: [(Happening, &[&str]); 2] = [
    (
        Happening::Dies,
        &[
            "dies",
            "die",
            "dead",
            "died",
            "fails",
            "fail",
            "crashes",
            "crash",
            "killed",
            "gone",
            "down",
            "lost",
            "disappears",
        ],
    ),
    (Happening::Restarts, &["restart", "restarts", "restarted", "restarting", "upgrade", "upgraded"]),
];

impl FromStr for Happening {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.to_lowercase();
        let words: Vec<_> = text.split_whitespace().filter(|word| !FILLERS.contains(word)).collect();
        let found = SPELLINGS.iter().find(|(_, all)| matches!(*words, [word] if all.contains(&word)));
        found.map(|(happening, _)| *happening).ok_or_else(|| format!("expected \"dies\" or \"restarts\", not {text:?}"))
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dies => "dies",
            Self::Restarts => "restarts",
        })
    }
}

/// `is gone` means `gone`.
const FILLERS: [&str; 5] = ["is", "are", "goes", "go", "were"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn people_say_it_in_many_ways_and_an_error_names_both() {
        for text in ["dies", "die", "is dead", "are killed", "Crashes", "goes down", "is gone"] {
            assert_eq!(text.parse(), Ok(Happening::Dies), "{text}");
        }
        for text in ["restart", "restarts", "are restarted"] {
            assert_eq!(text.parse(), Ok(Happening::Restarts), "{text}");
        }
        let error = "melts".parse::<Happening>().unwrap_err();
        assert_eq!(error, "expected \"dies\" or \"restarts\", not \"melts\"");
        assert!("".parse::<Happening>().is_err() && "is".parse::<Happening>().is_err());
    }

    #[test]
    fn without_an_heir_nobody_resets_the_clients_of_a_lost_host() {
        let flows = OwnFlows { offloaded: 20, offloaded_to_own: 10, with_sockets: 3 };
        let fates = |kept, moved, reset, waiting| FlowFates { kept, moved, reset, waiting };
        assert_eq!(FlowFates::of_lost_host(flows, true), fates(0, 20, 13, 0));
        assert_eq!(FlowFates::of_lost_host(flows, false), fates(0, 0, 0, 33));
        assert_eq!(FlowFates::of_killed_instance(flows, None, true), fates(30, 0, 3, 0));
        // Regression: where the BPF file system ends with the process, offloaded flows were foretold to go on.
        for heir in [None, Some(false), Some(true)] {
            assert_eq!(FlowFates::of_killed_instance(flows, heir, false), fates(0, 0, 33, 0));
        }
    }

    /// Regression: flows of a killed process, whose peer takes the VIP and carries them on, were told as kept there.
    #[test]
    fn flows_of_a_killed_process_whose_vip_a_peer_takes_move() {
        let flows = OwnFlows { offloaded: 20, offloaded_to_own: 10, with_sockets: 3 };
        let fates = |moved, reset, waiting| FlowFates { kept: 0, moved, reset, waiting };
        assert_eq!(FlowFates::of_killed_instance(flows, Some(true), true), fates(20, 13, 0));
        assert_eq!(FlowFates::of_killed_instance(flows, Some(false), true), fates(0, 3, 30));
    }

    #[test]
    fn a_flow_that_is_being_connected_moves_only_if_another_backend_takes_it() {
        let flows = BackendFlows { served: 7, connecting: 2 };
        let fates = |kept, moved, reset| FlowFates { kept, moved, reset, waiting: 0 };
        assert_eq!(FlowFates::of_lost_backend(flows, 11, true), fates(11, 2, 7));
        assert_eq!(FlowFates::of_lost_backend(flows, 0, false), fates(0, 0, 9));
    }

    #[test]
    fn a_client_may_be_reset_again_by_the_apiserver_that_it_went_to() {
        let of = |flows: &[u64], wander| {
            let RestartsInTurn { at_most, about } = restarted_in_turn(flows, wander);
            (at_most, about)
        };
        assert_eq!(of(&[30, 30, 30], false), (180, 143));
        assert_eq!(of(&[30, 30, 30], true), (270, 143));
        assert_eq!(of(&[0, 4, 6], false), (26, 12), "the bound holds in any order");
        assert_eq!(of(&[10], false), (10, 10), "they have nowhere to go");
        assert_eq!(of(&[], false), (0, 0));
    }

    proptest! {
        /// Clients that go wherever they like, and restarts in any order.
        #[test]
        fn no_restart_in_turn_ends_more_than_the_bound(flows in prop::collection::vec(0..20_u64, 1..6), seed: u64) {
            let bound = restarted_in_turn(&flows, false).at_most;
            let mut state = seed | 1;
            let mut dice = |sides: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % sides
            };
            let mut there = flows.clone();
            let mut left: Vec<usize> = (0..flows.len()).collect();
            let mut ended = 0;
            while !left.is_empty() {
                let restarts = left.swap_remove(dice(left.len()));
                let of_it = std::mem::take(&mut there[restarts]);
                ended += of_it;
                let to = if left.is_empty() { restarts } else { left[dice(left.len())] };
                there[to] += of_it;
            }
            prop_assert!(ended <= bound, "{} > {}", ended, bound);
        }

        #[test]
        fn no_flow_has_two_fates_or_none(offloaded in 0..1000_u64, offloaded_to_own in 0..1000_u64, with_sockets in 0..1000_u64, heir: bool, stays: bool) {
            let flows = OwnFlows { offloaded, offloaded_to_own, with_sockets };
            let all = offloaded + offloaded_to_own + with_sockets;
            let killed = [None, Some(heir)].map(|heir| FlowFates::of_killed_instance(flows, heir, stays));
            for FlowFates { kept, moved, reset, waiting } in killed.into_iter().chain([FlowFates::of_lost_host(flows, heir)]) {
                prop_assert_eq!(kept + moved + reset + waiting, all);
            }
        }
    }
}
