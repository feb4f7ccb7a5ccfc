//! Chooses the backend of a new flow.

use serde::{Deserialize, Serialize};

/// Balancing policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The backend with the fewest flows for its weight; ties are drawn.
    LeastConn,
    /// In turn, by weight.
    RoundRobin,
    /// The one with fewer flows of two that are drawn by weight (Mitzenmacher 2001).
    RandomTwo,
    /// Rendezvous hashing of the client's address (Thaler, Ravishankar 1998): a lost backend moves only its own
    /// clients.
    SourceHash,
}

/// A backend's preference for new flows; a lower tier is used only if no higher one is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Preference {
    Ready = 0,
    /// Draining because its readiness probe failed.
    Draining = 1,
    /// Draining by an operator's order.
    OrderedAway = 2,
    /// Ejected or removed.
    Never = 3,
}

impl Preference {
    /// The inverse of `as u8`; any other value is [`Preference::Never`].
    pub(crate) fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Ready,
            1 => Self::Draining,
            2 => Self::OrderedAway,
            _ => Self::Never,
        }
    }
}

/// One backend as a candidate.
#[derive(Clone, Copy, Debug)]
pub struct PickCandidate {
    pub preference: Preference,
    /// Weight times share: 1024 is weight 1 with a full share. A candidate with 0 is never picked.
    pub weight: u32,
    pub active: u32,
    /// Whether it is at its cap.
    pub full: bool,
    /// Whether this flow has tried it already.
    pub tried: bool,
    pub hash_key: u64,
}

/// Why no backend can be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPick {
    /// All are ejected, tried, or of weight 0.
    None,
    /// At least one would do, but all of these are at their cap.
    AllFull,
}

/// The random values that one pick may use.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub random: u64,
    /// A hash of the client's address.
    pub source_hash: u64,
}

/// State of [`Balance::RoundRobin`]: smooth weighted round robin, one credit per candidate.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    credits: Vec<i64>,
}

/// The index of the candidate that gets the flow.
pub fn pick(policy: Balance, candidates: &[PickCandidate], turns: &mut Turns, draw: Draw) -> Result<usize, NoPick> {
    let usable = |c: &PickCandidate| !c.tried && c.weight > 0 && c.preference != Preference::Never;
    let best = candidates.iter().filter(|c| usable(c)).map(|c| c.preference).min().ok_or(NoPick::None)?;
    let open = |c: &PickCandidate| usable(c) && c.preference == best && !c.full;
    let picked = match policy {
        Balance::LeastConn => least_loaded(candidates, open, draw.random),
        Balance::RoundRobin => turns.next(candidates, open),
        Balance::RandomTwo => {
            let first = by_weight(candidates, open, draw.random);
            let second = by_weight(candidates, |c| open(c) && !same(c, first, candidates), mix(draw.random));
            match (first, second) {
                (Some(a), Some(b)) if load(&candidates[b]) < load(&candidates[a]) => Some(b),
                (first, _) => first,
            }
        }
        Balance::SourceHash => rendezvous(candidates, open, draw.source_hash),
    };
    picked.ok_or(NoPick::AllFull)
}

/// The share of a backend that takes its whole part of new flows.
pub(crate) const WHOLE_SHARE: u32 = 1024;

/// The share of a backend that came back, in 1/1024: grows linearly from a tenth, over `ramp_ns`.
pub(crate) fn ramp(start_ns: u64, ramp_ns: u64, now_ns: u64) -> u32 {
    let passed = now_ns.saturating_sub(start_ns);
    if passed >= ramp_ns {
        return WHOLE_SHARE;
    }
    let grown = u128::from(passed) * 922 / u128::from(ramp_ns);
    102 + grown as u32
}

/// Limit for the flows of a backend that came back at `start_ns`, before any other of its frontend: thousands of clients wait
/// for it, and their handshakes would drown it. `None`: there is no limit, after five seconds or without slow start.
pub(crate) fn first_back_max(start_ns: u64, ramp_ns: u64, now_ns: u64) -> Option<u32> {
    (now_ns.saturating_sub(start_ns) < FIRST_BACK_NS.min(ramp_ns)).then_some(FIRST_BACK_MAX)
}

const FIRST_BACK_NS: u64 = 5_000_000_000;
const FIRST_BACK_MAX: u32 = 1_000;

/// A hash of a backend's names in the configuration (FNV-1a, mixed): the same on every instance.
pub fn hash_name(frontend: &str, backend: &str) -> u64 {
    hash_bytes(frontend.bytes().chain([0]).chain(backend.bytes()))
}

/// A hash of a client's address without its port.
pub(crate) fn hash_ip(ip: std::net::IpAddr) -> u64 {
    match ip {
        std::net::IpAddr::V4(ip) => hash_bytes(ip.octets().into_iter()),
        std::net::IpAddr::V6(ip) => hash_bytes(ip.octets().into_iter()),
    }
}

impl Turns {
    /// From earlier [`Turns::credits`], in the order of the candidates.
    pub(crate) fn resumed(credits: Vec<i64>) -> Self {
        Self { credits }
    }

    /// One per candidate; candidates that are missing at the end have none.
    pub(crate) fn credits(&self) -> &[i64] {
        &self.credits
    }

    fn next(&mut self, candidates: &[PickCandidate], open: impl Fn(&PickCandidate) -> bool) -> Option<usize> {
        self.credits.resize(candidates.len(), 0);
        let mut total = 0;
        let mut best: Option<usize> = None;
        for (index, candidate) in candidates.iter().enumerate().filter(|(_, c)| open(c)) {
            self.credits[index] += i64::from(candidate.weight);
            total += i64::from(candidate.weight);
            if best.is_none_or(|best| self.credits[index] > self.credits[best]) {
                best = Some(index);
            }
        }
        self.credits[best?] -= total;
        best
    }
}

/// Flows per weight if it took one more flow.
fn load(candidate: &PickCandidate) -> f64 {
    f64::from(candidate.active + 1) / f64::from(candidate.weight)
}

fn least_loaded(candidates: &[PickCandidate], open: impl Fn(&PickCandidate) -> bool, random: u64) -> Option<usize> {
    let offset = (random % candidates.len().max(1) as u64) as usize;
    (0..candidates.len())
        .map(|step| (step + offset) % candidates.len())
        .filter(|index| open(&candidates[*index]))
        .min_by(|a, b| load(&candidates[*a]).total_cmp(&load(&candidates[*b])))
}

fn by_weight(candidates: &[PickCandidate], open: impl Fn(&PickCandidate) -> bool, random: u64) -> Option<usize> {
    let total: u64 = candidates.iter().filter(|c| open(c)).map(|c| u64::from(c.weight)).sum();
    let mut ticket = random.checked_rem(total)?;
    candidates.iter().position(|c| {
        if !open(c) {
            return false;
        }
        let hit = ticket < u64::from(c.weight);
        ticket = ticket.saturating_sub(u64::from(c.weight));
        hit
    })
}

fn same(candidate: &PickCandidate, index: Option<usize>, candidates: &[PickCandidate]) -> bool {
    index.is_some_and(|index| std::ptr::eq(candidate, &candidates[index]))
}

/// Weighted rendezvous: the least of -ln(u) / weight wins, where u is a hash of source and backend in (0, 1].
fn rendezvous(candidates: &[PickCandidate], open: impl Fn(&PickCandidate) -> bool, source_hash: u64) -> Option<usize> {
    let score = |c: &PickCandidate| {
        let u = ((mix(source_hash ^ c.hash_key) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -u.ln() / f64::from(c.weight)
    };
    let open = candidates.iter().enumerate().filter(|(_, c)| open(c));
    open.min_by(|(_, a), (_, b)| score(a).total_cmp(&score(b))).map(|(index, _)| index)
}

fn hash_bytes(bytes: impl Iterator<Item = u8>) -> u64 {
    mix(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(active: u32) -> PickCandidate {
        PickCandidate {
            preference: Preference::Ready,
            weight: 1024,
            active,
            full: false,
            tried: false,
            hash_key: mix(u64::from(active)),
        }
    }

    fn spread(policy: Balance, candidates: &[PickCandidate], flows: u64) -> Vec<u64> {
        let mut counts = vec![0; candidates.len()];
        let mut turns = Turns::default();
        for flow in 0..flows {
            let draw = Draw { random: mix(flow), source_hash: mix(!flow) };
            counts[pick(policy, candidates, &mut turns, draw).unwrap()] += 1;
        }
        counts
    }

    const ALL: [Balance; 4] = [Balance::LeastConn, Balance::RoundRobin, Balance::RandomTwo, Balance::SourceHash];

    #[test]
    fn draining_backends_serve_when_no_ready_one_is_left() {
        for policy in ALL {
            let mut all = [ready(9), ready(0), ready(0)];
            all[1].preference = Preference::Draining;
            all[2].preference = Preference::Never;
            let mut turns = Turns::default();
            let draw = Draw { random: 7, source_hash: 7 };
            assert_eq!(pick(policy, &all, &mut turns, draw), Ok(0));
            all[0].tried = true;
            assert_eq!(pick(policy, &all, &mut turns, draw), Ok(1));
            all[1].preference = Preference::Never;
            assert_eq!(pick(policy, &all, &mut turns, draw), Err(NoPick::None));
        }
    }

    #[test]
    fn a_full_ready_backend_does_not_spill_onto_a_draining_one() {
        for policy in ALL {
            let mut all = [ready(3), ready(0)];
            all[0].full = true;
            all[1].preference = Preference::Draining;
            let draw = Draw { random: 1, source_hash: 1 };
            assert_eq!(pick(policy, &all, &mut Turns::default(), draw), Err(NoPick::AllFull));
        }
    }

    #[test]
    fn weights_are_kept_by_every_drawing_policy() {
        let mut all = [ready(0), ready(1), ready(2)];
        all.iter_mut().for_each(|c| c.active = 0);
        all[2].weight = 2048;
        for policy in [Balance::RoundRobin, Balance::SourceHash] {
            let counts = spread(policy, &all, 40_000);
            assert!((19_000..21_000).contains(&counts[2]), "{policy:?}: {counts:?}");
            assert!((9_000..11_000).contains(&counts[0]), "{policy:?}: {counts:?}");
        }
    }

    #[test]
    fn least_conn_weighs_flows() {
        let mut all = [ready(10), ready(15)];
        all[1].weight = 2048;
        assert_eq!(spread(Balance::LeastConn, &all, 100), [0, 100]);
    }

    #[test]
    fn random_two_never_picks_the_most_loaded_of_three() {
        let counts = spread(Balance::RandomTwo, &[ready(1), ready(5), ready(100)], 10_000);
        assert_eq!(counts[2], 0);
        assert!(counts[0] > counts[1] && counts[1] > 0);
    }

    #[test]
    fn losing_a_backend_moves_only_its_own_clients() {
        let all = [ready(1), ready(2), ready(3)];
        let mut less = all;
        less[1].preference = Preference::Never;
        for flow in 0..5000 {
            let draw = Draw { random: 0, source_hash: mix(flow) };
            let before = pick(Balance::SourceHash, &all, &mut Turns::default(), draw).unwrap();
            let after = pick(Balance::SourceHash, &less, &mut Turns::default(), draw).unwrap();
            assert!(before == after || before == 1);
        }
    }

    #[test]
    fn a_share_grows_from_a_tenth_to_the_whole() {
        assert_eq!(ramp(1000, 100, 1000), 102);
        assert_eq!(ramp(1000, 100, 1050), 563);
        assert_eq!(ramp(1000, 100, 1100), 1024);
        assert_eq!(ramp(0, 0, 5), 1024);
    }

    proptest::proptest! {
        /// For any candidates, the pick is one that may be picked, from the best tier.
        #[test]
        fn a_pick_is_always_allowed(
            raw in proptest::collection::vec((0u8..4, 0u32..3000, 0u32..50, proptest::bool::ANY, proptest::bool::ANY), 0..8),
            random: u64,
            source_hash: u64,
        ) {
            let candidates: Vec<_> = raw.iter().enumerate().map(|(index, &(tier, weight, active, full, tried))| PickCandidate {
                preference: Preference::from_u8(tier), weight, active, full, tried, hash_key: index as u64,
            }).collect();
            for policy in ALL {
                match pick(policy, &candidates, &mut Turns::default(), Draw { random, source_hash }) {
                    Ok(index) => {
                        let picked = &candidates[index];
                        assert!(!picked.full && !picked.tried && picked.weight > 0);
                        let better = candidates.iter().any(|c| !c.tried && c.weight > 0 && c.preference < picked.preference);
                        assert!(!better && picked.preference != Preference::Never);
                    }
                    Err(NoPick::AllFull) => assert!(candidates.iter().any(|c| c.full)),
                    Err(NoPick::None) => {
                        assert!(candidates.iter().all(|c| c.tried || c.weight == 0 || c.preference == Preference::Never));
                    }
                }
            }
        }
    }
}
