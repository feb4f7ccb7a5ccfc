//! Random numbers, the same for the same seed, and the kinds of faults.

/// Numbers that look random (splitmix64).
pub(super) struct Dice(pub u64);

pub(super) fn mix(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word % sides.max(1)
    }

    pub(super) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.roll(from.len() as u64) as usize).copied()
    }
}

/// The faults that may happen in a world, besides begins, offloads and ends of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A host loses power; it comes back with an empty map.
    Die,
    /// A process is killed; another one begins with the pinned maps.
    Kill,
    /// The VIP moves, or routers choose other hosts, without need.
    Move,
    /// Only the peer link between two instances is cut.
    Cut,
    /// Only one direction of the link between two instances is cut.
    OneWay,
    /// A host is cut off from all others.
    Isolate,
    /// A second instance has a VIP as well.
    Split,
    /// A link delivers nothing for moments, while more changes happen than the log holds.
    Stall,
    /// The maps have room for only a part of the fleet's flows.
    Full,
    /// Some instances have no offload engine.
    Pathless,
    /// Reloads add and remove instances, on each host at another time.
    Members,
    /// Reloads add frontends, on each host at another time.
    Frontends,
    /// A new process gets everything from the old one.
    Upgrade,
    /// A process says farewell and ends; another one begins later.
    Stop,
    /// An operator evacuates a host and switches it off.
    Evacuation,
    /// The instances move the VIP themselves.
    BuiltIn,
    /// Each host has an apiserver of its own, which dies with it.
    Stacked,
}

impl Kind {
    pub(super) const ALL: [Self; 17] = [
        Self::Die,
        Self::Kill,
        Self::Move,
        Self::Cut,
        Self::OneWay,
        Self::Isolate,
        Self::Split,
        Self::Stall,
        Self::Full,
        Self::Pathless,
        Self::Members,
        Self::Frontends,
        Self::Upgrade,
        Self::Stop,
        Self::Evacuation,
        Self::BuiltIn,
        Self::Stacked,
    ];
}
