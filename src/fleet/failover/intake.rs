//! Events of the peer link, as fast as the offload engine can serve what follows from them.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::model::fleet::Remote;
use crate::ports::offload::StandbyQueues;

/// Events that are taken in one turn.
pub(super) const BURST: usize = 512;

/// While so many requests wait for the offload engine, no event is taken: then the link's queue fills, which the link takes for its
/// own deafness, and it stops reading from the peers. A request has the flows of one turn at most, some 60 KB.
const WAITING_MAX: usize = 1 << 10;

/// How often the task looks whether requests were served.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits for events, and returns their number; 0: the link is gone. Dropped before its end, it has taken none.
pub(super) async fn take(
    remotes: &mut mpsc::Receiver<Remote>,
    standby: &StandbyQueues,
    into: &mut Vec<Remote>,
) -> usize {
    while standby.serves() && standby.waiting() >= WAITING_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    remotes.recv_many(into, BURST).await
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::model::ends::Key;
    use crate::model::fleet::StandbyRequest;
    use crate::ports::offload::{Offload, OffloadedKeys};

    #[derive(Debug)]
    struct NoKeys;

    impl OffloadedKeys for NoKeys {
        fn carries(&self, _: &Key) -> io::Result<bool> {
            Ok(false)
        }
    }

    /// Regression: what a peer tells faster than the map can be written waited in a queue without end.
    #[tokio::test]
    async fn a_peer_that_tells_faster_than_the_map_is_written_fills_no_memory() {
        let offload = Offload::new(1).unwrap();
        offload.standby.serve(Box::new(NoKeys));
        let (tells, mut told) = mpsc::channel(8);
        let mut into = Vec::new();
        for number in 0..WAITING_MAX {
            offload.ask_standby(StandbyRequest::Report(number as u64));
        }
        tells.send(Remote::Untold(Vec::new())).await.unwrap();
        let taken = tokio::time::timeout(4 * LOOK_EVERY, take(&mut told, &offload.standby, &mut into)).await;
        assert!(taken.is_err() && into.is_empty(), "{taken:?}");
        offload.standby.next_request().unwrap();
        assert_eq!(take(&mut told, &offload.standby, &mut into).await, 1);
        drop(tells);
        assert_eq!(take(&mut told, &offload.standby, &mut into).await, 0);
    }
    #[tokio::test]
    async fn without_an_offload_engine_no_event_waits_for_it() {
        let offload = Offload::new(1).unwrap();
        let (tells, mut told) = mpsc::channel(8);
        (0..=WAITING_MAX).for_each(|number| offload.ask_standby(StandbyRequest::Report(number as u64)));
        tells.send(Remote::Untold(Vec::new())).await.unwrap();
        assert_eq!(take(&mut told, &offload.standby, &mut Vec::new()).await, 1);
    }
}
