//! Flows and accepts per source network. All workers count in one map, for the kernel spreads the connections of one
//! source over all of them.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use papaya::HashMap;

use crate::addr::SourceNetwork;
use crate::model::ids::FrontendId;
use crate::model::pacing::TokenBucket;

/// Marks an entry that was swept out of the map; nobody may count on it any more.
const SWEPT: u32 = u32::MAX;

/// How a frontend's sources fare.
#[derive(Debug, Default)]
pub struct Sources {
    map: HashMap<(FrontendId, SourceNetwork), Arc<Source>>,
}

#[derive(Debug)]
struct Source {
    flows: AtomicU32,
    accepts: Mutex<Option<TokenBucket>>,
}

/// Counts one flow for as long as it is held.
#[derive(Debug)]
pub struct SourceHold(Arc<Source>);

/// Which cap a source reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRefusal {
    Connections,
    Rate,
}

impl Sources {
    /// Counts a flow of `source` in, or says which cap it has reached. `rate` is in accepts a second.
    pub fn admit(
        &self,
        frontend: FrontendId,
        source: SourceNetwork,
        max: Option<u32>,
        rate: Option<u32>,
        now_ns: u64,
    ) -> Result<SourceHold, SourceRefusal> {
        loop {
            let fresh = || Arc::new(Source { flows: AtomicU32::new(0), accepts: Mutex::new(None) });
            let known = self.map.pin().get_or_insert_with((frontend, source), fresh).clone();
            if let Some(rate) = rate
                && !known.take_accept(rate, now_ns)
            {
                return Err(SourceRefusal::Rate);
            }
            let counted = known.flows.fetch_update(AcqRel, Acquire, |flows| {
                (flows != SWEPT && max.is_none_or(|max| flows < max)).then(|| flows + 1)
            });
            match counted {
                Ok(_) => return Ok(SourceHold(known)),
                // The sweep was quicker: it also removes the entry, so the next turn finds a new one.
                Err(SWEPT) => std::hint::spin_loop(),
                Err(_) => return Err(SourceRefusal::Connections),
            }
        }
    }

    /// Forgets sources without flows whose bucket is full again, and returns how many remain.
    pub fn sweep(&self, now_ns: u64) -> usize {
        let map = self.map.pin();
        map.retain(|_, source| {
            let idle = source.bucket(|bucket| bucket.is_none_or(|bucket| bucket.is_full(now_ns)));
            !(idle && source.flows.compare_exchange(0, SWEPT, AcqRel, Acquire).is_ok()
                || source.flows.load(Acquire) == SWEPT)
        });
        map.len()
    }
}

impl Source {
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
