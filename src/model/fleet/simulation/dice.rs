//! Chance, the same for the same seed, and what may befall a world.

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

/// What may befall a world, beside births, offloads and ends of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A host loses power; it comes back with an empty map.
    Die,
    /// A process is killed; another one begins with what is pinned.
    Kill,
    /// The VIP moves, or routers choose among others, without need.
    Move,
    /// The link between two instances is cut, and nothing else.
    Cut,
    /// Of the link between two instances one direction is cut.
    OneWay,
    /// A host is cut off from everybody.
    Isolate,
    /// A second instance has a VIP, too.
    Split,
    /// A link stands still for moments, while more happens than the log holds.
    Stall,
    /// Maps have room for some of the fleet's flows only.
    Full,
    /// Some instances have no offload engine.
    Pathless,
    /// Instances are added and removed by reload, here sooner and there later.
    Members,
    /// Frontends are added by reload, here sooner and there later.
    Frontends,
    /// Another process takes over all that a process has.
    Upgrade,
    /// A process says goodbye and ends; another one begins later.
    Stop,
    /// A host is emptied on purpose and switched off.
    Evacuation,
}

impl Kind {
    pub(super) const ALL: [Self; 15] = [
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
    ];
}
