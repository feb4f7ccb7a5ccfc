//! Flows and accepts per source network. All workers count in one map, because the kernel spreads the connections of
//! one source over all of them.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use papaya::HashMap;

use crate::addr::SourceNetwork;
use crate::model::ids::FrontendId;
use crate::model::pacing::TokenBucket;
use crate::table::other_process::OtherProcess;
use crate::table::saved::{SavedBucket, SavedSource};

/// Marks an entry that was swept out of the map; no flow may be counted on it any more.
const SWEPT: u32 = u32::MAX;

/// The counts of a frontend's sources.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    map: HashMap<(FrontendId, SourceNetwork), Arc<SourceCounts>>,
}

#[derive(Debug)]
struct SourceCounts {
    flows: AtomicU32,
    other_process: OtherProcess,
    accepts: Mutex<Option<TokenBucket>>,
}

/// Counts one flow, as long as the hold exists.
#[derive(Debug)]
pub(crate) struct SourceHold(Arc<SourceCounts>);

/// The cap that a source has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceRefusal {
    Connections,
    Rate,
}

impl Sources {
    /// Counts a flow of `source`, or returns the cap that it has reached. `rate` is in accepts per second.
    pub(crate) fn admit(
        &self,
        frontend: FrontendId,
        source: SourceNetwork,
        max: Option<u32>,
        rate: Option<u32>,
        now_ns: u64,
    ) -> Result<SourceHold, SourceRefusal> {
        loop {
            let known = self.source(frontend, source);
            if let Some(rate) = rate
                && !known.take_accept(rate, now_ns)
            {
                return Err(SourceRefusal::Rate);
            }
            let counted = known.flows.fetch_update(AcqRel, Acquire, |flows| {
                let room = max.is_none_or(|max| flows.saturating_add(known.other_process.count()) < max);
                (flows != SWEPT && room).then(|| flows + 1)
            });
            match counted {
                Ok(_) => return Ok(SourceHold(known)),
                // The sweep came first: it also removes the entry, so the next turn finds a new one.
                Err(SWEPT) => std::hint::spin_loop(),
                Err(_) => return Err(SourceRefusal::Connections),
            }
        }
    }

    /// Counts a flow that comes from another process; never refuses it.
    pub(crate) fn count_in(&self, frontend: FrontendId, source: SourceNetwork, now_ns: u64) -> SourceHold {
        let hold = self.count_again(frontend, source, now_ns);
        hold.0.other_process.arrive();
        hold
    }

    /// Counts a flow that exists here already and was not counted so far; never refuses it.
    pub(crate) fn count_again(&self, frontend: FrontendId, source: SourceNetwork, now_ns: u64) -> SourceHold {
        self.admit(frontend, source, None, None, now_ns).expect("without a cap nothing is refused")
    }

    /// The state of the sources for another process: of at most `most`, those nearest to their limits. `name` returns a
    /// frontend's name. Also returns how many are left out.
    pub(crate) fn save(
        &self,
        name: impl Fn(FrontendId) -> Option<String>,
        most: usize,
        now_ns: u64,
    ) -> (Vec<SavedSource>, u64) {
        let map = self.map.pin();
        let saved = map.iter().filter_map(|((frontend, network), source)| {
            let flows = Some(source.flows.load(Acquire)).filter(|flows| *flows != SWEPT)?;
            let bucket = source.bucket(|bucket| bucket.filter(|bucket| !bucket.is_full(now_ns)));
            let bucket = bucket.map(|bucket| {
                let (level, at_ns) = bucket.level();
                SavedBucket { level, at_ns }
            });
            let tells = flows > 0 || bucket.is_some();
            let network = network.base();
            tells.then(|| Some(SavedSource { frontend: name(*frontend)?, network, flows, bucket })).flatten()
        });
        let mut saved: Vec<_> = saved.collect();
        let left_out = saved.len().saturating_sub(most);
        if left_out > 0 {
            let level = |source: &SavedSource| source.bucket.map_or(u64::MAX, |bucket| bucket.level);
            saved.select_nth_unstable_by_key(most, |source| (level(source), Reverse(source.flows)));
            saved.truncate(most);
        }
        (saved, left_out as u64)
    }

    /// Continues another process's count for a source. If called twice, the lower bucket counts.
    pub(crate) fn restore(&self, frontend: FrontendId, source: SourceNetwork, bucket: TokenBucket, now_ns: u64) {
        self.source(frontend, source).bucket(|here| match here {
            Some(here) => here.lower_to(&bucket, now_ns),
            None => *here = Some(bucket),
        });
    }

    /// Another process has so many flows of a source, and will give them to this one.
    pub(crate) fn expect(&self, frontend: FrontendId, source: SourceNetwork, flows: u32) {
        self.source(frontend, source).other_process.expect(flows);
    }

    /// No flow of the other process counts here any more.
    pub(crate) fn forget_other_process(&self) {
        self.map.pin().values().for_each(|source| source.other_process.forget());
    }

    /// Forgets sources without flows whose bucket is full again, and returns how many remain.
    pub(crate) fn sweep(&self, now_ns: u64) -> usize {
        let map = self.map.pin();
        map.retain(|_, source| {
            let full = source.bucket(|bucket| bucket.is_none_or(|bucket| bucket.is_full(now_ns)));
            let idle = full && source.other_process.count() == 0;
            !(idle && source.flows.compare_exchange(0, SWEPT, AcqRel, Acquire).is_ok()
                || source.flows.load(Acquire) == SWEPT)
        });
        map.len()
    }

    fn source(&self, frontend: FrontendId, source: SourceNetwork) -> Arc<SourceCounts> {
        let fresh = || {
            let (flows, other_process) = (AtomicU32::new(0), OtherProcess::default());
            Arc::new(SourceCounts { flows, other_process, accepts: Mutex::new(None) })
        };
        self.map.pin().get_or_insert_with((frontend, source), fresh).clone()
    }
}

impl SourceHold {
    /// The flow belongs to another process now, and still counts.
    pub(crate) fn leave(&self) {
        self.0.other_process.leave();
    }
}

impl SourceCounts {
    fn take_accept(&self, rate: u32, now_ns: u64) -> bool {
        self.bucket(|bucket| bucket.get_or_insert_with(|| TokenBucket::new(rate, rate, now_ns)).take(now_ns))
    }

    /// Held for nanoseconds, and only by flows of one source.
    fn bucket<T>(&self, use_bucket: impl FnOnce(&mut Option<TokenBucket>) -> T) -> T {
        use_bucket(&mut self.accepts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for SourceHold {
    fn drop(&mut self) {
        self.0.flows.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{ClientAddr, SourceMask};

    fn network(ip: &str) -> SourceNetwork {
        SourceMask::default().network(ClientAddr::new(format!("{ip}:1").parse().unwrap()))
    }

    #[test]
    fn a_source_at_its_cap_is_refused_and_others_are_not() {
        let sources = Sources::default();
        let admit = |ip| sources.admit(FrontendId(0), network(ip), Some(2), None, 1);
        let _first = admit("10.0.0.1").unwrap();
        let second = admit("10.0.0.1").unwrap();
        assert_eq!(admit("10.0.0.1").unwrap_err(), SourceRefusal::Connections);
        admit("10.0.0.2").unwrap();
        drop(second);
        admit("10.0.0.1").unwrap();
    }

    #[test]
    fn a_fast_source_is_refused_until_its_bucket_fills() {
        let sources = Sources::default();
        let admit = |now| sources.admit(FrontendId(0), network("10.0.0.1"), None, Some(3), now);
        assert_eq!((0..10).filter(|_| admit(1).is_ok()).count(), 3);
        assert!(admit(1_000_000_000).is_ok());
    }

    #[test]
    fn flows_of_another_process_count_until_they_come_or_the_upgrade_is_over() {
        let sources = Sources::default();
        let here = network("10.0.0.1");
        sources.expect(FrontendId(0), here, 2);
        let admit = || sources.admit(FrontendId(0), here, Some(3), None, 1);
        let first = admit().unwrap();
        assert_eq!(admit().unwrap_err(), SourceRefusal::Connections);
        let came = sources.count_in(FrontendId(0), here, 1);
        assert_eq!(admit().unwrap_err(), SourceRefusal::Connections, "it counts once, not twice");
        drop(first);
        let second = admit().unwrap();
        second.leave();
        drop(second);
        assert_eq!(admit().unwrap_err(), SourceRefusal::Connections, "it counts where it is");
        sources.forget_other_process();
        admit().unwrap();
        drop(came);
        assert_eq!(sources.sweep(2), 0);
    }

    #[test]
    fn a_bucket_goes_over_to_another_process() {
        let (old, new) = (Sources::default(), Sources::default());
        let admit = |sources: &Sources, ip| sources.admit(FrontendId(0), network(ip), None, Some(4), 5);
        (0..3).for_each(|_| drop(admit(&old, "10.0.0.1").unwrap()));
        let _held = admit(&old, "10.0.0.2").unwrap();
        let (saved, left_out) = old.save(|_| Some("api".to_owned()), 10, 5);
        assert_eq!((saved.len(), left_out), (2, 0));
        for source in &saved {
            let bucket = source.bucket.unwrap();
            let bucket = TokenBucket::resumed(4, 4, bucket.level, bucket.at_ns);
            let network = SourceMask::default().network(ClientAddr::new((source.network, 1).into()));
            new.restore(FrontendId(0), network, bucket, 5);
        }
        assert_eq!((0..9).filter(|_| admit(&new, "10.0.0.1").is_ok()).count(), 1);
        assert_eq!((0..9).filter(|_| admit(&new, "10.0.0.2").is_ok()).count(), 3);
        let (few, left_out) = old.save(|_| Some("api".to_owned()), 1, 5);
        assert_eq!((few[0].network, left_out), ("10.0.0.1".parse().unwrap(), 1), "the one nearest to its limit");
    }

    #[test]
    fn a_swept_source_counts_afresh_and_a_busy_one_stays() {
        let sources = Sources::default();
        let held = sources.admit(FrontendId(0), network("10.0.0.1"), Some(1), None, 1).unwrap();
        drop(sources.admit(FrontendId(0), network("10.0.0.2"), Some(1), None, 1).unwrap());
        assert_eq!(sources.sweep(2), 1);
        assert!(sources.admit(FrontendId(0), network("10.0.0.1"), Some(1), None, 1).is_err());
        drop(held);
        assert_eq!(sources.sweep(3), 0);
        sources.admit(FrontendId(0), network("10.0.0.1"), Some(1), None, 1).unwrap();
    }
}
